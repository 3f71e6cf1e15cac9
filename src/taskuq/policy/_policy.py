"""Calibrated stopping policies and their decisions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq._arrays import (
    as_real_array,
    ranges_from_json,
    ranges_to_json,
    require_in_ranges,
    warn_of_calibration_cases,
)
from taskuq._display import Displayed, Summary, svg
from taskuq._io import (
    complete_record,
    fingerprint,
    number_from_json,
    number_to_json,
    read_json,
    write_json,
)
from taskuq.conformal._family import mean_and_deviation
from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal._quantiles import bound_text, exact_alpha
from taskuq.conformal.scores import score_from_dict, score_name
from taskuq.errors import InputError
from taskuq.interval import FloatArray, Interval, TaskRange
from taskuq.policy._goal import Goal, Goals, goal_from_dict
from taskuq.policy._kinds import POLICIES
from taskuq.policy._rules import Record, Rules, StoppingRule, group_allowance, joint_report
from taskuq.protocols import Score
from taskuq.table._terminology import round_label

SCHEMA = "taskuq.policy/1"


@dataclass(frozen=True)
class Decision:
    """Decision of a policy after a round.

    Args:
        stop: True if the scan may stop; with several cases, if all of them may stop.
        stops: True for each case that may stop, (case,).
        interval: Interval to report for each case if its scan stops now.
        round: Index of the round, from 0.
        acceleration: Acceleration of the round; 1 for the full measurement.
        reason: Reason for the decision, in a few words.
        task_names: One name per task.
    """

    stop: bool
    stops: np.ndarray
    interval: Interval
    round: int
    acceleration: float
    reason: str
    task_names: tuple[str, ...] = ("task",)

    @property
    def by_task(self) -> dict[str, Interval]:
        """Intervals by task name."""
        if len(self.task_names) == 1:
            return {self.task_names[0]: self.interval}
        low, high = self.interval.lower, self.interval.upper
        return {n: Interval(low[..., t], high[..., t]) for t, n in enumerate(self.task_names)}

    def __repr__(self) -> str:
        if np.ndim(self.stops):
            return self.reason
        intervals = [f"{name} {interval}" for name, interval in self.by_task.items()]
        return f"{self.reason}; {', '.join(intervals)}"


@dataclass(frozen=True, repr=False)
class Policy(Displayed):
    """Calibrated policy that decides when a scan stops and which interval it reports.

    :func:`taskuq.plan` calibrates a policy; :meth:`decide` applies it after each round.

    Args:
        kind: A name in :data:`taskuq.policy.POLICIES`.
        goal: Goal for the reported interval, one for all tasks or one per task.
        accelerations: Acceleration of each round, decreasing; the full measurement that follows
            the last of them is omitted.
        _rules: Stopping rule of each round and task.
        thresholds: Threshold of each round.
        guarantee: Guarantee for the interval reported when a scan stops; for the kind 'paper', for
            the interval of each single round.
        samples: Number of posterior samples per case and round.
        whole_group: True if all cases of a group stop together.
        min_group_size: Number of cases of the smallest calibration group, if whole groups stop.
        task_ranges: Declared range of each task, if any.
        task_names: One name per task.
        round_names: Display names of the rounds, if any.
        certificate: Mean acceleration on the calibration set, and its certified lower bound.
        provenance: Origin and settings of the calibration.
        warning: Warning if no calibration scan stops early, or if each stops in the first round in
            which its interval can meet the goal; else None.
        monitor_reference: First-round statistics of the calibration units, by name, with which
            :class:`taskuq.Monitor` compares new units.
        strata: Thresholds by stratum, for a guarantee within strata; ``thresholds`` then holds
            the largest threshold of each round.
    """

    kind: str
    goal: Goal | Goals
    accelerations: tuple[float, ...]
    _rules: Rules
    thresholds: tuple[float, ...]
    guarantee: Guarantee
    samples: int
    whole_group: bool = False
    min_group_size: int | None = None
    task_ranges: tuple[TaskRange, ...] = (None,)
    task_names: tuple[str, ...] = ("task",)
    round_names: tuple[str, ...] | None = None
    certificate: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    warning: str | None = None
    monitor_reference: Mapping[str, tuple[float, ...]] = field(default_factory=dict, repr=False)
    strata: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        POLICIES[self.kind]
        rounds, tasks = len(self.accelerations), len(self.task_names)
        rules = [len(row) for row in self._rules]
        lengths = {len(self.thresholds), len(self.round_names or self.thresholds)}
        lengths |= {len(thresholds) for thresholds in self.strata.values()}
        is_complete = rules == [tasks] * rounds and len(self.task_ranges) == tasks
        if lengths != {rounds} or not is_complete or not rounds * tasks:
            raise InputError("parts of the policy are missing; plan again", code="shape.mismatch")

    @property
    def is_guaranteed(self) -> bool:
        """True if the interval reported when a scan stops has a finite-sample guarantee."""
        return POLICIES[self.kind].is_guaranteed

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the policy, which is stored with every round of a scan."""
        return fingerprint(self.to_dict())

    @property
    def alpha(self) -> float:
        """Error rate."""
        return self.guarantee.alpha

    @property
    def statement(self) -> str:
        """Guarantee for the interval reported when the scan stops."""
        parts = [POLICIES[self.kind]().statement(self.goal, self.guarantee.statement)]
        if self.whole_group:
            parts.append("All cases of a group stop together.")
            if self.guarantee.given and self.guarantee.delta is not None:
                twice = min(Fraction(1), 2 * exact_alpha(self.guarantee.delta))
                sets = f"a fraction {bound_text(twice, 4, is_upper=True)} of calibration sets"
                parts.append(f"If groups of one case exist, this holds for all but {sets}.")
        if self.is_guaranteed and self.goal.has_level and not self.guarantee.given:
            parts.append(
                f"The error rate of {self.alpha:g} is over all scans; among those that stop early, "
                "a larger fraction of reports may miss the target."
            )
        if "chosen" in self.provenance:
            parts.append(str(self.provenance["chosen"]["sentence"]))
        return " ".join(parts)

    def for_stratum(self, stratum: int | str | None) -> Policy:
        """Return the policy for scans of one stratum; a policy without strata returns itself.

        Raises:
            InputError: If the stratum is missing or unknown, or the policy has no strata.
        """
        if not self.strata:
            if stratum is not None:
                message = f"the policy has no strata; remove stratum={stratum!r}"
                raise InputError(message, code="option.unused")
            return self
        named = ", ".join(self.strata)
        if stratum is None:
            message = f"the policy has strata; pass stratum= or --stratum, one of {named}"
            raise InputError(message, code="option.missing")
        if str(stratum) not in self.strata:
            message = f"stratum {stratum!r} was not calibrated; the policy has {named}"
            raise InputError(message, code="choice.unknown")
        provenance = {**self.provenance, "stratum": str(stratum)}
        thresholds = self.strata[str(stratum)]
        return replace(self, thresholds=thresholds, strata={}, provenance=provenance)

    def decide(
        self,
        round: int,
        outputs: ArrayLike | None,
        *,
        value: float | FloatArray | None = None,
        stratum: int | str | None = None,
    ) -> Decision:
        """Decide after a round whether the scan may stop, and which interval it then reports.

        A policy for whole groups treats the given cases as all cases of one group. It does not stop
        a group of one case early, because its other cases are probably missing, unless a
        calibration group had one case.

        Args:
            round: Index of the round just measured, from 0; ``len(accelerations)`` for the full
                measurement.
            outputs: Outputs of all rounds so far: (round, sample) for one case,
                (round, case, sample) for several cases or a group; with a last axis for the task
                if there are several tasks. None for the full measurement.
            value: Target, required for the full measurement.
            stratum: Stratum of all these cases, for a policy with strata.

        Raises:
            InputError: If outputs, number of samples or stratum do not fit the policy.
        """
        if self.strata or stratum is not None:
            return self.for_stratum(stratum).decide(round, outputs, value=value)
        last = len(self.accelerations)
        if not isinstance(round, int | np.integer) or not 0 <= round <= last:
            raise InputError(f"round must be in 0 to {last}, got {round!r}", code="value.invalid")
        if round == last:
            if value is None:
                raise InputError(
                    "everything is measured: pass the target as value=", code="option.missing"
                )
            z = as_real_array(value, "value", ndim=(0, 1, 2)).astype(float)
            require_in_ranges(z, self.task_ranges, "the value")
            reason = "stop: everything is measured, so the target is known"
            every, point = np.ones(z.shape, dtype=bool), Interval(z, z)
            return Decision(True, every, point, last, 1.0, reason, self.task_names)
        round = int(round)
        x, single = self._check_outputs(outputs, round)
        warn_of_calibration_cases(self.provenance.get("cases"), x[0])
        threshold, tasks = self.thresholds[round], []
        stops = np.ones(x.shape[1], dtype=bool)
        for t, rule in enumerate(self._rules[round]):
            tasks.append(rule.examine(x[..., t]))
            stops &= tasks[t].stops(threshold)
        # Samples that all agree, in any round, where those of no calibration case did.
        agreeing = np.zeros(len(stops), dtype=bool)
        if self.samples > 1 and self.provenance.get("identical_samples") == 0:
            agreeing = (x == x[:, :, :1]).all(axis=2).any(axis=(0, 2))
        is_part = self.whole_group and len(stops) == 1 and self.min_group_size != 1
        if self.whole_group:
            largest, index = np.min([e.largest for e in tasks], axis=0), np.zeros(len(stops), int)
            limit = group_allowance(largest, index, tasks[0].is_risk)[0]
            stops[:] = threshold < limit and not is_part and not agreeing.any()
        else:
            stops &= ~agreeing
        interval, stop = joint_report(tasks, threshold), bool(stops.all())
        reason = self._reason(round, stops, interval, agreeing, is_part)
        if single:
            stops, interval = stops[0], interval[0]
        R = self.accelerations[round]
        return Decision(stop, stops, interval, round, R, reason, self.task_names)

    def _check_outputs(self, outputs: Any, round: int | None = None) -> tuple[FloatArray, bool]:
        """Return outputs (round, case, sample, task), and True if the input had no case axis."""
        tasks = len(self.task_names)
        extra = 1 if tasks > 1 else 0
        x = as_real_array(outputs, "outputs", ndim=(1 + extra, 2 + extra, 3 + extra))
        # The first round of one case may come without its round axis.
        x = x[None] if x.ndim == 1 + extra else x
        single = x.ndim == 2 + extra
        if single and self.whole_group:
            raise InputError(
                f"pass whole groups, (round, case, sample), got {np.shape(outputs)}",
                code="shape.axes",
            )
        x = x[:, None] if single else x
        x = x if extra else x[..., None]
        rounds = len(x) if round is None else round + 1
        if len(x) != rounds or x.shape[2:] != (self.samples, tasks):
            needed = f"{rounds} rounds (all so far), {self.samples} samples and {tasks} tasks"
            raise InputError(
                f"outputs need {needed}, got {np.shape(outputs)}", code="samples.mismatch"
            )
        if x.shape[1] == 0:
            raise InputError("outputs have no case; pass at least one", code="table.incomplete")
        if any(self.task_ranges):
            require_in_ranges(x, self.task_ranges, "outputs")
        return x, single

    def _reason(
        self, round: int, stops: np.ndarray, interval: Interval, agreeing: np.ndarray, is_part: bool
    ) -> str:
        at = self._labels[round]
        if agreeing.any() and (len(stops) == 1 or self.whole_group):
            return f"continue {at}: all samples of a round agree, unlike in calibration"
        if is_part:
            return f"continue {at}: no calibration group had one case; pass all cases of the group"
        if self.whole_group:
            at += f" for all {len(stops)} cases of the group" if len(stops) > 1 else ""
        elif len(stops) > 1:
            word = "stop" if stops.all() else "continue"
            return f"{word}: {int(stops.sum())} of {len(stops)} cases may stop {at}"
        if stops.all():
            # No interval is empty where a scan stops.
            widths = (interval.upper - interval.lower).reshape(-1, len(self.task_names)).max(axis=0)
            widest = ", ".join(map("{:.4g}".format, widths.tolist()))
            alpha = self.guarantee.alpha
            return f"stop {at}: {self._goal_statement} (width {widest}), at alpha {alpha:g}"
        if np.isposinf(self.thresholds[round]):
            return f"continue {at}: {self.guarantee.caveat}"
        return f"continue {at}: not yet certain enough that {self._goal_statement}"

    def round_label(self, round: int) -> str:
        """Return the label of a round for use in sentences, e.g. 'at R = 4'."""
        return self._labels[round]

    @cached_property
    def _labels(self) -> tuple[str, ...]:
        names = self.round_names or [None] * len(self.accelerations)
        return tuple(
            "after this round"
            if name is None and not np.isfinite(R)
            else f"at {round_label(R, name)}"
            for R, name in zip(self.accelerations, names, strict=True)
        )

    @cached_property
    def _goal_statement(self) -> str:
        return self.goal.statement

    def _summary(self) -> Summary:
        rates = [self.round_label(k).removeprefix("at ") for k in range(len(self.accelerations))]
        R = self.certificate.get("mean_acceleration")
        rows = [
            ("goal", self._goal_statement),
            ("rounds", ", ".join(rates)),
            *([] if R is None else [("mean R", f"{R:.4g}, on the calibration set")]),
            ("samples", str(self.samples)),
        ]
        # Consequences before the guarantee.
        notes = [f"Note: {self.guarantee.caveat}."] if self.guarantee.caveat else []
        notes += [self.warning] if self.warning else []
        score = score_name(self._rules[0][0].score)
        title = f"{self.kind} ({score}) at alpha {self.alpha:g}"
        return Summary(title, rows, "\n".join([*notes, self.statement]))

    def _picture(self) -> str:
        if by_class := self.certificate.get("by_class"):
            bars = [(0.0, float(row["mean_acceleration"])) for row in by_class]
            return svg("mean R by class", bars=bars, labels=[row["class"] for row in by_class])
        bars = [(0.0, 1 / R) for R in self.accelerations if R == R]
        return svg("cost of each round", bars=bars, labels=[f"{R:g}" for R in self.accelerations])

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "alpha": self.alpha,
            "goal": self.goal.to_dict(),
            "accelerations": [None if np.isnan(R) else R for R in self.accelerations],
            "rules": [[rule.to_dict() for rule in rules] for rules in self._rules],
            "thresholds": [number_to_json(t) for t in self.thresholds],
            **({"strata": _strata_to_json(self.strata)} if self.strata else {}),
            "guarantee": self.guarantee.to_dict(),
            "guaranteed": self.is_guaranteed,
            "sentence": self.statement,
            "samples": self.samples,
            "whole_group": self.whole_group,
            "smallest_group": self.min_group_size,
            **ranges_to_json(self.task_ranges),
            "task_names": list(self.task_names),
            "round_names": self.round_names and list(self.round_names),
            "certificate": dict(self.certificate),
            "provenance": dict(self.provenance),
            "outlook": self.warning,
            "watch": {name: list(values) for name, values in self.monitor_reference.items()},
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the policy as JSON and return the path."""
        return write_json(path, self.to_dict())


def _strata_to_json(strata: Mapping[str, tuple[float, ...]]) -> dict[str, list[Any]]:
    return {name: [number_to_json(t) for t in values] for name, values in strata.items()}


def load_policy(path: str | os.PathLike[str], *, score: Score | None = None) -> Policy:
    """Read a policy that :meth:`Policy.save` wrote.

    Args:
        path: JSON file.
        score: Object of your own score class, if the policy uses one.
    """
    record = read_json(path, SCHEMA, remedy="plan again")
    with complete_record(path, "policy", "plan again"):
        goal = goal_from_dict(record["goal"])
        task_names, round_names = tuple(record["task_names"]), record.get("round_names")
        ranges = ranges_from_json(record, task_names)
        kind, warning = record["kind"], record.get("outlook")
        if not isinstance(warning, str | None):
            raise TypeError(warning)
        rule = POLICIES[kind].rule_class

        def read(one: Record, t: int) -> StoppingRule:
            if one["kind"] != rule.name:
                raise InputError(f"unknown rule {one['kind']!r} in the file", code="file.format")
            own = score_from_dict(one["score"], score)
            return rule.from_dict(one, own, goal.for_task(t), ranges[t])

        policy = Policy(
            kind=kind,
            goal=goal,
            accelerations=tuple(float("nan" if R is None else R) for R in record["accelerations"]),
            _rules=tuple(
                tuple(read(one, t) for t, one in enumerate(row)) for row in record["rules"]
            ),
            thresholds=tuple(number_from_json(t) for t in record["thresholds"]),
            guarantee=Guarantee.from_dict(record["guarantee"]),
            samples=int(record["samples"]),
            strata={
                str(name): tuple(map(number_from_json, values))
                for name, values in record.get("strata", {}).items()
            },
            whole_group=bool(record["whole_group"]),
            min_group_size=record.get("smallest_group"),
            task_ranges=ranges,
            task_names=task_names,
            round_names=None if round_names is None else tuple(round_names),
            certificate=dict(record["certificate"]),
            provenance=dict(record["provenance"]),
            warning=warning,
            monitor_reference={
                str(name): tuple(map(number_from_json, values))
                for name, values in record.get("watch", {}).items()
            },
        )
        # Values that nothing above has looked at.
        policy.to_dict()
        return policy


ERROR = "error"
# Significant digits: a policy's file stays small, and the last bits of a network are noise.
DIGITS = 6


def monitor_statistics(
    outputs: FloatArray,
    index: NDArray[np.int64],
    task_names: Sequence[str],
    targets: FloatArray | None = None,
) -> dict[str, tuple[float, ...]]:
    x, cases = np.asarray(outputs, dtype=float), np.bincount(index)
    found: dict[str, tuple[float, ...]] = {}
    for t, task in enumerate(task_names):
        suffix, centre = "" if len(task_names) == 1 else f" of {task}", x[..., t].mean(axis=1)
        columns = {"centre": centre}
        if x.shape[1] > 1:
            columns["spread"] = mean_and_deviation(x[..., t])[1]
            columns["largest"] = x[..., t].max(axis=1)
        if targets is not None:
            columns[ERROR] = np.abs(targets[:, t] - centre)
        for name, values in columns.items():
            found[name + suffix] = round_significant(np.bincount(index, weights=values) / cases)
    return found


def round_significant(values: ArrayLike) -> tuple[float, ...]:
    return tuple([float(f"{value:.{DIGITS}g}") for value in np.ravel(values).tolist()])
