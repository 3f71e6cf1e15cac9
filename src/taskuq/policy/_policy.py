"""Stopping policy, its decisions and unit statistics."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskuq._arrays import as_real_array, ranges_from_json, ranges_to_json, require_in_ranges
from taskuq._io import (
    complete_record,
    fingerprint,
    number_from_json,
    number_to_json,
    read_json,
    write_json,
)
from taskuq.conformal._guarantee import Guarantee
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
    """What a policy says after a round.

    Arguments:
        stop: Whether to stop scanning; for several cases, whether all may stop.
        stops: Whether each case may stop (case,).
        interval: The interval of each case, as it would be reported now.
        round: The round, counted from 0.
        acceleration: Its acceleration; 1 when everything is measured.
        reason: Why, in a sentence.
        task_names: One per task.
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
        """The interval of each task, by its name."""
        ends, names = (self.interval.lower, self.interval.upper), self.task_names
        if len(names) == 1:
            return {names[0]: self.interval}
        return {name: Interval(*(end[..., t] for end in ends)) for t, name in enumerate(names)}

    def __repr__(self) -> str:
        if np.ndim(self.stops):
            return self.reason
        said = [f"{name} {interval}" for name, interval in self.by_task.items()]
        return f"{self.reason}; {', '.join(said)}"


@dataclass(frozen=True)
class Policy:
    """When to stop scanning and what to report then.

    Arguments:
        kind: A name in :data:`~taskuq.policy._kinds.POLICIES`.
        goal: What the report has to achieve, of all tasks or of each.
        accelerations: Of the rounds, decreasing; everything measured is implied at the end.
        rules: How each task is examined in each round, rules[round][task].
        thresholds: One per round; the same for all but the paper's policy.
        guarantee: Whom the promise is for; for the paper's policy, each round taken by itself.
        samples: The number of posterior samples per case and round.
        whole_group: Whether all cases of a group are stopped together.
        smallest_group: The fewest cases of a calibration group, where whole groups are stopped.
        task_ranges: The declared range of each task, if any.
        task_names: One per task.
        round_names: What rounds are called, where they have names.
        certificate: The average acceleration measured at calibration, and certified, and what is
            drawn at random in that average.
        provenance: What else is known of the calibration.
        outlook: That no scan stops early, or every one in the first round, where that is so.
        watch: What was seen of each calibration unit in the first round, by the name of the
            statistic: what :class:`taskuq.Monitor` compares new units with.
    """

    kind: str
    goal: Goal | Goals
    accelerations: tuple[float, ...]
    rules: Rules
    thresholds: tuple[float, ...]
    guarantee: Guarantee
    samples: int
    whole_group: bool = False
    smallest_group: int | None = None
    task_ranges: tuple[TaskRange, ...] = (None,)
    task_names: tuple[str, ...] = ("task",)
    round_names: tuple[str, ...] | None = None
    certificate: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    outlook: str | None = None
    watch: Mapping[str, tuple[float, ...]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        POLICIES[self.kind]
        rounds, tasks = len(self.accelerations), len(self.task_names)
        rules = [len(of_round) for of_round in self.rules]
        if len(self.task_ranges) != tasks or len(self.round_names or self.thresholds) != rounds:
            raise InputError(f"a policy needs a range for each of {tasks} tasks; plan again")
        if rules != [tasks] * rounds or len(self.thresholds) != rounds or not rounds * tasks:
            raise InputError(
                f"a policy of {rounds} rounds and {tasks} tasks needs as many thresholds and rules,"
                f" got {len(self.thresholds)} and {rules}; plan again"
            )

    @property
    def is_guaranteed(self) -> bool:
        """Whether the report at the stop has a finite-sample guarantee."""
        return POLICIES[self.kind].is_guaranteed

    @cached_property
    def fingerprint(self) -> str:
        """What it holds as one short text; every round of every scan names it."""
        return fingerprint(self.to_dict())

    @property
    def alpha(self) -> float:
        """The error rate."""
        return self.guarantee.alpha

    @property
    def sentence(self) -> str:
        """What is promised about the interval that is reported when the scan stops."""
        said = [POLICIES[self.kind]().sentence(self.goal, self.guarantee.statement)]
        if self.whole_group:
            said.append("All cases of a group stop together.")
        if "chosen" in self.provenance:
            said.append(str(self.provenance["chosen"]["sentence"]))
        return " ".join(said)

    def decide(
        self, round: int, outputs: Any, *, value: float | FloatArray | None = None
    ) -> Decision:
        """Return the decision after a round; its interval is what would be reported now.

        A policy for whole groups takes the cases it is given as all cases of one group. One case
        without a case axis is refused. A group of one case is never stopped early, unless there
        was one among the calibration groups: far more likely it is part of a group.

        Arguments:
            round: The round just measured, counted from 0; the one after the last stored round is
                the fully measured one.
            outputs: The outputs of all rounds so far: (round, sample) for one case,
                (round, case, sample) for several or a group, with a last axis for several tasks.
            value: The target, known once everything is measured.
        """
        last = len(self.accelerations)
        if not isinstance(round, int | np.integer) or not 0 <= round <= last:
            raise InputError(f"this policy has rounds 0 to {last}, got {round!r}")
        if round == last:
            return self._known(value)
        x, single = self.checked(outputs, int(round))
        examined = [rule.examine(x[..., t]) for t, rule in enumerate(self.rules[round])]
        threshold = self.thresholds[round]
        stops = np.all([e.stops(threshold) for e in examined], axis=0)
        if self.whole_group:
            largest = np.min([e.largest for e in examined], axis=0)
            index = np.zeros(len(largest), dtype=np.int64)
            stops[:] = threshold < group_allowance(largest, index, examined[0].is_risk)[0]
            stops &= not self._is_part(len(stops))
        agreeing = self._agree_for_once(x)
        stops &= ~(agreeing.any() if self.whole_group else agreeing)
        interval = joint_report(examined, threshold)
        return Decision(
            stop=bool(stops.all()),
            stops=stops[0] if single else stops,
            interval=interval[0] if single else interval,
            round=int(round),
            acceleration=self.accelerations[round],
            reason=self._reason(int(round), stops, interval, agreeing),
            task_names=self.task_names,
        )

    def _agree_for_once(self, outputs: FloatArray) -> np.ndarray:
        """Which cases had samples that all agree, in any round, where no calibration case had."""
        if self.provenance.get("identical_samples") != 0 or self.samples < 2:
            return np.zeros(outputs.shape[1], dtype=bool)
        agree = (outputs == outputs[:, :, :1]).all(axis=2)
        return np.asarray(agree.any(axis=(0, 2)))

    def _is_part(self, cases: int) -> bool:
        """Return True if so few cases are taken as part of a group; calibration had no group of
        one.
        """
        return self.whole_group and cases == 1 and self.smallest_group != 1

    def _known(self, value: float | FloatArray | None) -> Decision:
        if value is None:
            raise InputError("at the fully measured round the target is known; pass it as value=")
        z = as_real_array(value, "value", ndim=(0, 1, 2)).astype(float)
        require_in_ranges(z, self.task_ranges, "the value")
        return Decision(
            stop=True,
            stops=np.ones(z.shape, dtype=bool),
            interval=Interval(z, z),
            round=len(self.accelerations),
            acceleration=1.0,
            reason="stop: everything is measured, so the target is known",
            task_names=self.task_names,
        )

    def checked(self, outputs: Any, round: int | None = None) -> tuple[FloatArray, bool]:
        """Bring outputs to (round, case, sample, task), or say what is wrong with them.

        Arguments:
            outputs: As :meth:`decide` takes them.
            round: The last round they are of; whichever it is where None.

        Returns:
            The outputs, and whether they came without a case axis.
        """
        tasks = len(self.task_names)
        extra = 1 if tasks > 1 else 0
        x = as_real_array(outputs, "outputs", ndim=(1 + extra, 2 + extra, 3 + extra))
        if x.ndim == 1 + extra:
            # The first round of one case may come without its round axis.
            x = x[None]
        single = x.ndim == 2 + extra
        if single and self.whole_group:
            raise InputError(
                f"this policy decides about all cases of a group at once, got outputs of shape "
                f"{np.shape(outputs)}, which have no case axis; pass those of all cases of the "
                "group, (round, case, sample)"
            )
        x = x[:, None] if single else x
        x = x if extra else x[..., None]
        if round is not None and len(x) != round + 1:
            raise InputError(
                f"round {round} needs the outputs of rounds 0 to {round} in order, got {len(x)} "
                "rounds; pass every round so far, (round, case, sample)"
            )
        if x.shape[2] != self.samples or x.shape[3] != tasks:
            raise InputError(
                f"this policy was calibrated with {self.samples} samples and {tasks} tasks, got "
                f"outputs of shape {np.shape(outputs)}"
            )
        if x.shape[1] == 0:
            raise InputError("outputs hold no case, so there is nothing to decide; give one")
        require_in_ranges(x, self.task_ranges, "outputs")
        return x, single

    def _reason(
        self, round: int, stops: np.ndarray, interval: Interval, agreeing: np.ndarray
    ) -> str:
        at = self.at(round)
        if agreeing.any() and (len(stops) == 1 or self.whole_group):
            return f"continue {at}: all samples of a round are identical, as in no calibration case"
        if self._is_part(len(stops)):
            return f"continue {at}: no calibration group had one case; pass all cases of the group"
        if self.whole_group:
            at += f" for all {len(stops)} cases of the group" if len(stops) > 1 else ""
        elif len(stops) > 1:
            word = "stop" if stops.all() else "continue"
            return f"{word}: {int(stops.sum())} of {len(stops)} cases may stop {at}"
        if stops.all():
            width = np.max(interval.width.reshape(-1, len(self.task_names)), axis=0)
            said = f"width {', '.join(f'{w:.4g}' for w in width)}"
            return f"stop {at}: {self.goal.sentence} ({said}), at alpha {self.alpha:g}"
        if np.isposinf(self.thresholds[round]):
            return f"continue {at}: {self.guarantee.caveat}"
        return f"continue {at}: not yet certain enough that {self.goal.sentence}"

    def at(self, round: int) -> str:
        """Say at which round, by its name or its acceleration."""
        R, names = self.accelerations[round], self.round_names
        if names is None and not np.isfinite(R):
            return "after this round"
        return f"at {round_label(R, None if names is None else names[round])}"

    def __repr__(self) -> str:
        score = score_name(self.rules[0][0].score)
        # What it comes to is said before what it promises.
        said = [f"{self.kind} ({score}) at alpha {self.alpha:g}."]
        said += [f"Note: {self.guarantee.caveat}."] if self.guarantee.caveat else []
        said += [self.outlook] if self.outlook else []
        return " ".join([*said, self.sentence])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON can hold."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "alpha": self.alpha,
            "goal": self.goal.to_dict(),
            "accelerations": [None if np.isnan(R) else R for R in self.accelerations],
            "rules": [[rule.to_dict() for rule in rules] for rules in self.rules],
            "thresholds": [number_to_json(t) for t in self.thresholds],
            "guarantee": self.guarantee.to_dict(),
            "guaranteed": self.is_guaranteed,
            "sentence": self.sentence,
            "samples": self.samples,
            "whole_group": self.whole_group,
            "smallest_group": self.smallest_group,
            **ranges_to_json(self.task_ranges),
            "task_names": list(self.task_names),
            "round_names": self.round_names and list(self.round_names),
            "certificate": dict(self.certificate),
            "provenance": dict(self.provenance),
            "outlook": self.outlook,
            "watch": {name: list(values) for name, values in self.watch.items()},
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the policy as JSON and return the path."""
        return write_json(path, self.to_dict())


def load_policy(path: str | os.PathLike[str], *, score: Score | None = None) -> Policy:
    """Return the policy that :meth:`Policy.save` wrote.

    Arguments:
        path: The JSON file.
        score: An object of your own score class, where the policy was made with one.
    """
    record = read_json(path, SCHEMA, remedy="plan again")
    with complete_record(path, "policy", "plan again"):
        goal = goal_from_dict(record["goal"])
        names, called = tuple(record["task_names"]), record.get("round_names")
        ranges = ranges_from_json(record, names)
        kind, outlook = record["kind"], record.get("outlook")
        if not isinstance(outlook, str | None):
            raise TypeError(f"outlook is a sentence, got {outlook!r}")
        policy = Policy(
            kind=kind,
            goal=goal,
            accelerations=tuple(
                float("nan") if R is None else float(R) for R in record["accelerations"]
            ),
            rules=tuple(
                tuple(
                    _read_rule(kind, rule, goal.of(t), range_, score)
                    for t, (rule, range_) in enumerate(zip(rules, ranges, strict=True))
                )
                for rules in record["rules"]
            ),
            thresholds=tuple(number_from_json(t) for t in record["thresholds"]),
            guarantee=Guarantee.from_dict(record["guarantee"]),
            samples=int(record["samples"]),
            whole_group=bool(record["whole_group"]),
            smallest_group=record.get("smallest_group"),
            task_ranges=ranges,
            task_names=names,
            round_names=None if called is None else tuple(called),
            certificate=record["certificate"],
            provenance=record["provenance"],
            outlook=outlook,
            watch={
                str(name): tuple(map(number_from_json, values))
                for name, values in record.get("watch", {}).items()
            },
        )
    return policy


def _read_rule(
    kind: str, record: Record, goal: Goal, range_: TaskRange, custom: Score | None
) -> StoppingRule:
    score, rule = score_from_dict(record["score"], custom), POLICIES[kind].rules
    if record["kind"] != rule.name:
        raise InputError(f"unknown kind of rule {record['kind']!r} in the file")
    return rule.from_dict(record, score, goal, range_)


ERROR = "error"
# So many digits count: a policy's file stays small, and the last bits of a network tell nothing.
DIGITS = 6


def monitor_statistics(
    outputs: FloatArray,
    index: NDArray[np.int64],
    task_names: Sequence[str],
    targets: FloatArray | None = None,
) -> dict[str, tuple[float, ...]]:
    """Return the per-unit statistics of the first round."""
    x = np.asarray(outputs, dtype=float)
    cases = np.bincount(index)
    found: dict[str, tuple[float, ...]] = {}
    for t, task in enumerate(task_names):
        of = "" if len(task_names) == 1 else f" of {task}"
        centre = x[..., t].mean(axis=1)
        seen = {"centre": centre}
        if x.shape[1] > 1:
            seen["spread"] = x[..., t].std(axis=1)
        if targets is not None:
            seen[ERROR] = np.abs(targets[:, t] - centre)
        found |= {
            name + of: tuple(map(round_significant, np.bincount(index, weights=values) / cases))
            for name, values in seen.items()
        }
    return found


def round_significant(value: float) -> float:
    """Round to six significant digits."""
    return float(f"{value:.{DIGITS}g}")
