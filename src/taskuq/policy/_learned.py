"""Stopping rules fitted to the calibration units of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taskuq.conformal._calibrate import is_self_tuned, tuned_score, tuning_units
from taskuq.conformal._family import LinearFamily
from taskuq.conformal._units import Unit, choose_units, table_contents, unit_index
from taskuq.interval import BoolArray, FloatArray
from taskuq.policy._kinds import PolicySpec
from taskuq.policy._rules import (
    RoundStatistics,
    Rules,
    StoppingRule,
    StoppingStatistics,
    combine_tasks,
    stopping_statistics,
)
from taskuq.policy._stopping import TuningCases
from taskuq.protocols import LeaveOneOutFit, Score
from taskuq.table._table import TaskOutputs


@dataclass(frozen=True)
class _FittedRules:
    rules: Rules
    held_out: BoolArray
    # Calibrates the thresholds; allows for all that a unit's own absence could change.
    statistics: StoppingStatistics
    # Under the fitted rules.
    final: StoppingStatistics
    with_margin: Callable[[float], StoppingStatistics] | None = None
    tuning: TuningCases | None = None


def fit_rules(
    spec: PolicySpec,
    table: TaskOutputs,
    unit: Unit,
    index: NDArray[np.int64],
    delta: float | None,
    rng: np.random.Generator | None,
    classes: np.ndarray | None = None,
) -> _FittedRules:
    fit = self_tuned_rules(spec, table, delta, classes)
    if fit is not None:
        everyone = np.ones(table.cases, dtype=bool)
        rules, statistics = fit.learn(everyone, index)
        margin = partial(fit.with_margin, everyone, index)
        return _FittedRules(rules, ~everyone, statistics, fit.final(rules), margin)
    units = int(index.max()) + 1
    take = tuning_units(spec.base_score, unit, units, spec.alpha, delta, spec.tuning_fraction)
    held_out = choose_units(index, take, rng, table_contents(table))
    rules, statistics = evaluate_rules(spec, table, held_out, ~held_out)
    tuning = evaluate_tuning_cases(rules, table, held_out, index) if spec.given else None
    return _FittedRules(rules, held_out, statistics, statistics, tuning=tuning)


def evaluate_rules(
    spec: PolicySpec, table: TaskOutputs, held_out: np.ndarray, others: np.ndarray
) -> tuple[Rules, StoppingStatistics]:
    policy, (x, z) = spec.policy, round_arrays(table)
    outputs, targets = x[:, held_out], z[:, held_out]
    group = None if table.group is None else table.group[held_out]

    def rule(k: int, task: int) -> StoppingRule:
        part, range_ = spec.for_task(task), table.task_ranges[task]
        earlier, z = outputs[: k + 1, ..., task], targets[k, :, task]
        score = tuned_score(policy.make_score(part), earlier, z, range_, group)
        return policy.make_rule(part, score, range_, table.accelerations[k])

    rules = tuple(tuple(rule(k, task) for task in range(table.tasks)) for k in range(len(x)))
    rules = policy.fit(spec, rules, outputs, targets)
    return rules, stopping_statistics(rules, x[:, others], z[:, others])


def evaluate_tuning_cases(
    rules: Rules, table: TaskOutputs, held_out: BoolArray, index: NDArray[np.int64]
) -> TuningCases:
    x, z = round_arrays(table)
    statistics = stopping_statistics(rules, x[:, held_out], z[:, held_out])
    return statistics, unit_index(statistics.cases, index[held_out])


def round_arrays(table: TaskOutputs) -> tuple[FloatArray, FloatArray]:
    """Return outputs (round, case, sample, task) and targets (round, case, task) of a table."""
    x = table.outputs if table.outputs.ndim == 4 else table.outputs[..., None]
    z = table.targets if table.has_round_targets else table.targets[None]
    z = z if table.outputs.ndim == 4 else z[..., None]
    return x, np.broadcast_to(z, (x.shape[0], x.shape[1], x.shape[3]))


class _SelfTunedCell(NamedTuple):
    fit: LeaveOneOutFit
    summary: Any
    targets: FloatArray


@dataclass(frozen=True)
class SelfTunedRules:
    """Stopping rules whose scores are fitted to all calibration units, with none held out."""

    spec: PolicySpec
    table: TaskOutputs
    cells: tuple[tuple[_SelfTunedCell, ...], ...]
    targets: FloatArray

    def learn(self, kept: BoolArray, index: NDArray[np.int64]) -> tuple[Rules, StoppingStatistics]:
        """Return rules fitted to the kept cases, and bounds on their stopping statistics."""
        fits = [[cell.fit.fit(kept, index) for cell in row] for row in self.cells]
        rules = self._rules([[fit.score for fit in row] for row in fits])
        return rules, self._bracketed(rules, [[fit.corners for fit in row] for row in fits], kept)

    def with_margin(
        self, kept: BoolArray, index: NDArray[np.int64], margin: float
    ) -> StoppingStatistics:
        """Return bounds on the stopping statistics for quantile levels off by up to ``margin``."""
        corners = [[cell.fit.between(kept, index, margin) for cell in row] for row in self.cells]
        rules = self._rules([[some[0] for some in row] for row in corners])
        return self._bracketed(rules, corners, kept)

    def final(self, rules: Rules) -> StoppingStatistics:
        """Return the stopping statistics of all cases of the table under the given rules."""
        rounds = [
            [
                rule.examine_family(_family(rule.score, cell.summary), self.table.cases)
                for cell, rule in zip(cells, row, strict=True)
            ]
            for cells, row in zip(self.cells, rules, strict=True)
        ]
        return combine_tasks(rounds, self.targets)

    def _rules(self, scores: Sequence[Sequence[Score]]) -> Rules:
        make, table = self.spec.policy.make_rule, self.table
        tasks = [(self.spec.for_task(t), range_) for t, range_ in enumerate(table.task_ranges)]
        return tuple(
            tuple(
                make(part, score, range_, R)
                for score, (part, range_) in zip(row, tasks, strict=True)
            )
            for row, R in zip(scores, table.accelerations, strict=True)
        )

    def _bracketed(
        self, rules: Rules, corners: Sequence[Sequence[Sequence[Score]]], kept: BoolArray
    ) -> StoppingStatistics:
        rounds = [
            [
                _bracket(rule, cell.summary.take(kept), cell.targets[kept], ends)
                for cell, rule, ends in zip(*row, strict=True)
            ]
            for row in zip(self.cells, rules, corners, strict=True)
        ]
        return StoppingStatistics(
            lowest=np.stack([np.max([one.lowest for one in row], axis=0) for row in rounds]),
            largest=np.stack([np.min([one.largest for one in row], axis=0) for row in rounds]),
            score=np.stack([np.max([one.score for one in row], axis=0) for row in rounds]),
            rounds=tuple(tuple(one.examined for one in row) for row in rounds),
            surely=np.stack([np.min([one.surely for one in row], axis=0) for row in rounds]),
            least=np.stack([np.max([one.least for one in row], axis=0) for row in rounds]),
        )

    def learn_outside(
        self, test: NDArray[np.uint8], index: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], StoppingStatistics, StoppingStatistics]:
        """Fit rules to the units outside the test set.

        Return the unit of each case outside the test set, bounds on the stopping statistics of
        these cases, and the stopping statistics of all cases under the fitted rules.
        """
        kept = test[index] == 0
        units = (np.cumsum(test == 0) - 1)[index[kept]]
        rules, statistics = self.learn(kept, units)
        return units, statistics, self.final(rules)


def self_tuned_rules(
    spec: PolicySpec, table: TaskOutputs, delta: float | None, classes: np.ndarray | None = None
) -> SelfTunedRules | None:
    """Return rules fitted to the calibration units; None if the policy needs held-out units."""
    policy = spec.policy
    is_bracketed = policy.rule_class.is_bracketed
    if (
        policy.tuning_fraction(spec)
        or not is_bracketed
        or not is_self_tuned(spec.base_score, delta)
    ):
        return None
    x, z = round_arrays(table)

    def cell(k: int, task: int) -> _SelfTunedCell:
        score, targets = policy.make_score(spec.for_task(task)), z[k, :, task]
        assert is_self_tuned(score, delta), "as the score of the first task is"
        summary = score.summarise(x[k, ..., task])
        fit = score.leave_one_out(summary, targets, table.task_ranges[task])
        return _SelfTunedCell(
            fit if classes is None else fit.for_classes(classes), summary, targets
        )

    tasks = range(x.shape[3])
    cells = tuple(tuple(cell(k, task) for task in tasks) for k in range(len(x)))
    return SelfTunedRules(spec, table, cells, z)


def _family(score: Score, summary: Any) -> LinearFamily:
    return score.summary_family(summary)  # type: ignore[attr-defined, no-any-return]  # a linear one


class _Bracket(NamedTuple):
    lowest: FloatArray
    largest: FloatArray
    surely: FloatArray
    score: FloatArray
    least: FloatArray
    examined: RoundStatistics


def _bracket(
    rule: StoppingRule, summary: Any, targets: FloatArray, corners: Sequence[Score]
) -> _Bracket:
    """Return bounds over all scores with parameters between those of the scores ``corners``."""
    n, corner = len(targets), len(corners)
    families = [_family(one, summary) for one in corners]
    with np.errstate(invalid="ignore"):
        # All corners at once: a call costs more than what it computes for a case.
        low, high, scale = (
            np.concatenate([getattr(family, name) for family in families])
            for name in ("low", "high", "scale")
        )
        together = replace(families[0], low=low, high=high, scale=scale, mean=None)
        seen = rule.examine_family(together, corner * n)
        score = seen.score(np.tile(targets, corner)).reshape(corner, n).max(axis=0)
        lowest, tops = (a.reshape(corner, n) for a in (seen.lowest, seen.largest))
        centers = together.low.reshape(corner, n)
        ends = [centers.min(axis=0), centers.max(axis=0)]
        if not np.array_equal(*ends):
            # A threshold is monotone in the scale, and in the centre to each side of the middle.
            middle = np.mean(rule.task_range or (0.0, 0.0))
            if np.isfinite(middle):
                ends.append(np.clip(middle, *ends))
            scales = together.scale.reshape(corner, n)
            center = np.concatenate([ends, ends]).ravel()
            scale = np.repeat([scales.min(axis=0), scales.max(axis=0)], len(ends), axis=0).ravel()
            extreme = replace(together, low=center, high=center, scale=scale)
            tops = rule.examine_family(extreme, len(center)).largest.reshape(-1, n)
    largest, surely = np.max(tops, axis=0), np.min(tops, axis=0)
    lower, upper = (end.reshape(corner, n) for end in (seen.window.lower, seen.window.upper))
    beyond = (targets < lower.min(axis=0)) | (targets > upper.max(axis=0))
    return _Bracket(
        lowest=lowest.max(axis=0),
        # Not a number where a centre or a scale has no bound.
        largest=np.where(np.isnan(largest), np.inf, largest),
        surely=np.where(np.isnan(surely), -np.inf, surely),
        score=np.where(np.isnan(score), np.inf, score),
        # A window misses a target at every threshold or at none.
        least=np.where(beyond, np.inf, -np.inf),
        examined=seen,
    )
