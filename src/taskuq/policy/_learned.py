"""Stopping rules fitted to the calibration units of a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskuq.conformal._calibrate import is_self_tuned, tuned_score, tuning_units
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
from taskuq.protocols import LeaveOneOutFit, Score, SelfTunedScore
from taskuq.table._table import TaskOutputs


@dataclass(frozen=True)
class _FittedRules:
    rules: Rules
    held_out: BoolArray
    # Calibrates the thresholds; allows for all that a unit's own absence could change.
    statistics: StoppingStatistics
    # By the rules as they are.
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
) -> _FittedRules:
    fit = self_tuned_rules(spec, table, delta)
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


@dataclass(frozen=True)
class _SelfTunedCell:
    """Self-tuned rule of one task and round, evaluated at scale 1."""

    fit: LeaveOneOutFit
    summary: Any
    base: RoundStatistics
    score: FloatArray


@dataclass(frozen=True)
class SelfTunedRules:
    """Rules fitted to all calibration outputs, without a held-out set."""

    spec: PolicySpec
    table: TaskOutputs
    cells: tuple[tuple[_SelfTunedCell, ...], ...]
    targets: FloatArray

    def learn(self, kept: BoolArray, index: NDArray[np.int64]) -> tuple[Rules, StoppingStatistics]:
        """Return the rules for new cases, and bounds on the statistics of the calibration cases."""
        make, table = self.spec.policy.make_rule, self.table
        fits = [[cell.fit.fit(kept, index) for cell in row] for row in self.cells]
        tasks = [(self.spec.for_task(t), range_) for t, range_ in enumerate(table.task_ranges)]
        rules = tuple(
            tuple(
                make(part, fit.score, range_, R)
                for fit, (part, range_) in zip(row, tasks, strict=True)
            )
            for row, R in zip(fits, table.accelerations, strict=True)
        )
        return rules, self._bracketed([[one[1:] for one in row] for row in fits], kept)

    def with_margin(
        self, kept: BoolArray, index: NDArray[np.int64], margin: float
    ) -> StoppingStatistics:
        """Return bounds on the statistics for an error of up to a margin in the rules' medians."""
        ends = [[cell.fit.between(kept, index, margin) for cell in row] for row in self.cells]
        return self._bracketed(ends, kept)

    def final(self, rules: Rules) -> StoppingStatistics:
        """Return the statistics of all cases of the table under given rules."""
        rounds: list[list[RoundStatistics]] = []
        for cells, row in zip(self.cells, rules, strict=True):
            rounds.append([])
            for cell, rule in zip(cells, row, strict=True):
                scale, top = _scale(rule.score, cell.summary), cell.base.largest
                family = replace(cell.base.family, scale=scale)  # type: ignore[type-var]  # a linear one
                largest = top / scale if rule.scaling < 0 else top * scale
                rounds[-1].append(replace(cell.base, family=family, largest=largest))
        return combine_tasks(rounds, self.targets)

    def _bracketed(
        self, ends: list[list[tuple[SelfTunedScore, SelfTunedScore]]], kept: BoolArray
    ) -> StoppingStatistics:
        scaling = self.spec.policy.rule_class.scaling
        largest, scores = [], []
        for end in (0, 1):
            for cells, row in zip(self.cells, ends, strict=True):
                tops, worst = [], []
                for cell, pair in zip(cells, row, strict=True):
                    scale = _scale(pair[end], cell.summary.take(kept))
                    top, own = cell.base.largest[kept], cell.score[kept]
                    tops.append(top / scale if scaling < 0 else top * scale)
                    worst.append(own if cell.base.is_risk else own / scale)
                largest.append(np.min(tops, axis=0))
                scores.append(np.max(worst, axis=0))
        n = len(self.cells)
        low, high = np.stack(largest[:n]), np.stack(largest[n:])
        lowest = [np.max([cell.base.lowest[kept] for cell in row], axis=0) for row in self.cells]
        return StoppingStatistics(
            lowest=np.stack(lowest),
            largest=np.maximum(low, high),
            score=np.maximum(np.stack(scores[:n]), np.stack(scores[n:])),
            rounds=tuple(tuple(cell.base for cell in row) for row in self.cells),
            surely=np.minimum(low, high),
        )

    def learn_outside(
        self, test: NDArray[np.uint8], index: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], StoppingStatistics, StoppingStatistics]:
        """Fit to the units outside a test set; return their index, bounded and final statistics."""
        kept = test[index] == 0
        units = (np.cumsum(test == 0) - 1)[index[kept]]
        rules, statistics = self.learn(kept, units)
        return units, statistics, self.final(rules)


def self_tuned_rules(
    spec: PolicySpec, table: TaskOutputs, delta: float | None
) -> SelfTunedRules | None:
    """Return rules fitted to the calibration units themselves, if the policy supports it."""
    policy, scaling = spec.policy, spec.policy.rule_class.scaling
    if policy.tuning_fraction(spec) or not scaling or not is_self_tuned(spec.base_score, delta):
        return None
    x, z = round_arrays(table)

    def cell(k: int, task: int) -> _SelfTunedCell:
        part, range_ = spec.for_task(task), table.task_ranges[task]
        score = policy.make_score(part)
        assert is_self_tuned(score, delta), "as the score of the first task is"
        summary = score.summarise(x[k, ..., task])
        fit = score.leave_one_out(summary, range_)
        # Any calibration cases give the centres of the windows; only scales are learned from them.
        some = fit.fit(np.ones(table.cases, dtype=bool), np.arange(table.cases)).score
        rule = policy.make_rule(part, some, range_, table.accelerations[k])
        family = replace(some.summary_family(summary), scale=np.ones(table.cases))  # type: ignore[type-var]  # a linear one
        base = rule.examine_family(family, table.cases)
        return _SelfTunedCell(fit, summary, base, base.score(z[k, :, task]))

    tasks = range(x.shape[3])
    cells = tuple(tuple(cell(k, task) for task in tasks) for k in range(len(x)))
    return SelfTunedRules(spec, table, cells, z)


def _scale(score: Score, summary: Any) -> FloatArray:
    return score.summary_family(summary).scale  # type: ignore[attr-defined, no-any-return]  # a linear one
