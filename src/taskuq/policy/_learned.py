"""Rules learned from units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taskuq.conformal._calibrate import is_self_tuned, tuned_score, tuning_units
from taskuq.conformal._units import Unit, choose_units, unit_index
from taskuq.interval import FloatArray
from taskuq.policy._kinds import PolicySpec
from taskuq.policy._rules import (
    RoundStatistics,
    Rules,
    StoppingRule,
    StoppingStatistics,
    examination,
    stopping_statistics,
)
from taskuq.policy._stopping import TuningCases
from taskuq.protocols import LeaveOneOutFit, Score, SelfTunedScore
from taskuq.table._table import TaskOutputs


@dataclass(frozen=True)
class _FittedRules:
    """Fitted rules and calibration cases evaluated under them."""

    rules: Rules
    aside: NDArray[np.bool_]
    seen: StoppingStatistics
    shown: StoppingStatistics
    within: Callable[[float], StoppingStatistics] | None = None
    tuning: TuningCases | None = None


def fit_rules(
    spec: PolicySpec,
    table: TaskOutputs,
    unit: Unit,
    index: NDArray[np.int64],
    delta: float | None,
    rng: np.random.Generator | None,
) -> _FittedRules:
    """Fit the rules of a policy as its guarantee allows."""
    steady = steady_rules(spec, table, delta)
    if steady is not None:
        everyone = np.ones(table.cases, dtype=bool)
        rules, seen = steady.learn(everyone, index)
        within = partial(steady.within, everyone, index)
        return _FittedRules(rules, ~everyone, seen, steady.seen(rules), within)
    units = int(index.max()) + 1
    take = tuning_units(spec.base, unit, units, spec.alpha, delta, spec.tuning_share)
    aside = choose_units(index, take, rng)
    rules, seen = evaluate_rules(spec, table, aside, ~aside)
    tuning = set_aside(rules, table, aside, index) if spec.given else None
    return _FittedRules(rules, aside, seen, seen, tuning=tuning)


def evaluate_rules(
    spec: PolicySpec, table: TaskOutputs, learning: np.ndarray, kept: np.ndarray
) -> tuple[Rules, StoppingStatistics]:
    """Evaluate fitted rules on other cases."""
    x, z = round_arrays(table)
    group = None if table.group is None else table.group[learning]
    rules = _tuned_rules(spec, table, x[:, learning], z[:, learning], group)
    return rules, stopping_statistics(rules, x[:, kept], z[:, kept])


def set_aside(
    rules: Rules, table: TaskOutputs, aside: NDArray[np.bool_], index: NDArray[np.int64]
) -> TuningCases:
    """Return the cases set aside in the light of rules that learned from them."""
    x, z = round_arrays(table)
    seen = stopping_statistics(rules, x[:, aside], z[:, aside])
    return TuningCases(seen, unit_index(seen.cases, index[aside]))


def round_arrays(table: TaskOutputs) -> tuple[FloatArray, FloatArray]:
    """Return outputs (round, case, sample, task) and targets (round, case, task) of a table."""
    x = table.outputs if table.outputs.ndim == 4 else table.outputs[..., None]
    z = table.targets if table.has_round_targets else table.targets[None]
    z = z if table.outputs.ndim == 4 else z[..., None]
    return x, np.broadcast_to(z, (x.shape[0], x.shape[1], x.shape[3]))


def _tuned_rules(
    spec: PolicySpec,
    table: TaskOutputs,
    outputs: FloatArray,
    targets: FloatArray,
    group: np.ndarray | None,
) -> Rules:
    """Return the rules, tuned on outputs (round, case, sample, task) and targets of some cases."""
    policy = spec.policy

    def rule(k: int, task: int) -> StoppingRule:
        plan, range_ = spec.of(task), table.task_ranges[task]
        x, z = outputs[: k + 1, ..., task], targets[k, :, task]
        score = tuned_score(policy.base(plan), x, z, range_, group)
        return policy.rule(plan, score, range_, table.accelerations[k])

    rounds, tasks = outputs.shape[0], outputs.shape[3]
    rules = tuple(tuple(rule(k, task) for task in range(tasks)) for k in range(rounds))
    return policy.learned(spec, rules, outputs, targets)


@dataclass(frozen=True)
class SelfTunedRules:
    """Rules fitted to all calibration outputs, without a held-out set."""

    spec: PolicySpec
    table: TaskOutputs
    parts: tuple[tuple[_SelfTunedCell, ...], ...]
    targets: FloatArray

    def learn(
        self, kept: NDArray[np.bool_], index: NDArray[np.int64]
    ) -> tuple[Rules, StoppingStatistics]:
        """Return the rules for new cases, and the calibration cases in the light of their ranges."""
        learnt = [[part.learner.fit(kept, index) for part in parts] for parts in self.parts]
        rules = tuple(
            tuple(self._rule(k, task, one.score) for task, one in enumerate(of_round))
            for k, of_round in enumerate(learnt)
        )
        return rules, self._between([[one[1:] for one in row] for row in learnt], kept)

    def within(
        self, kept: NDArray[np.bool_], index: NDArray[np.int64], margin: float
    ) -> StoppingStatistics:
        """Return calibration cases in the light of all rules whose medians are off by a margin."""
        ends = [
            [part.learner.between(kept, index, margin) for part in parts] for parts in self.parts
        ]
        return self._between(ends, kept)

    def seen(self, rules: Rules) -> StoppingStatistics:
        """Return all cases of the table in the light of learnt rules."""
        rounds = [
            [part.rescaled(rule.score, rule.scaling) for part, rule in zip(*both, strict=True)]
            for both in zip(self.parts, rules, strict=True)
        ]
        return examination(rounds, self.targets)

    def _between(self, ends: Ends, kept: NDArray[np.bool_]) -> StoppingStatistics:
        """Cases in the light of rules known by the two ends of their range."""
        least, most = (
            self._at([[one[end] for one in row] for row in ends], kept) for end in (0, 1)
        )
        lowest = np.stack(
            [np.max([p.base.lowest[kept] for p in row], axis=0) for row in self.parts]
        )
        return StoppingStatistics(
            lowest=lowest,
            largest=np.maximum(least[0], most[0]),
            score=np.maximum(least[1], most[1]),
            rounds=tuple(tuple(part.base for part in row) for row in self.parts),
            surely=np.minimum(least[0], most[0]),
        )

    def _at(
        self, scores: list[list[SelfTunedScore]], kept: NDArray[np.bool_]
    ) -> tuple[FloatArray, FloatArray]:
        """The largest thresholds, and the scores, of cases by scores of some scale."""
        scaling = self.spec.policy.rules.scaling
        largest, worst = [], []
        for parts, row in zip(self.parts, scores, strict=True):
            found = [part.at(one, kept, scaling) for part, one in zip(parts, row, strict=True)]
            largest.append(np.min([threshold for threshold, _ in found], axis=0))
            worst.append(np.max([score for _, score in found], axis=0))
        return np.stack(largest), np.stack(worst)

    def _rule(self, k: int, task: int, score: Score) -> StoppingRule:
        plan, table = self.spec.of(task), self.table
        return plan.policy.rule(plan, score, table.task_ranges[task], table.accelerations[k])


# The two ends of what scores can be, ends[round][task].
Ends: TypeAlias = list[list[tuple[SelfTunedScore, SelfTunedScore]]]


@dataclass(frozen=True)
class _SelfTunedCell:
    """Self-tuned rule of one task and round."""

    learner: LeaveOneOutFit
    read: Any
    base: RoundStatistics
    score: FloatArray

    def rescaled(self, score: Score, scaling: int) -> RoundStatistics:
        """Return all cases as they are by a score that has learnt."""
        return self.base.rescaled(_scale(score, self.read), scaling)

    def at(
        self, score: SelfTunedScore, kept: NDArray[np.bool_], scaling: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return the largest thresholds and the scores of some cases by a score of their own."""
        scale = _scale(score, self.read.take(kept))
        largest, own = self.base.largest[kept], self.score[kept]
        return (
            largest / scale if scaling < 0 else largest * scale,
            own if self.base.is_risk else own / scale,
        )


def steady_rules(
    spec: PolicySpec, table: TaskOutputs, delta: float | None
) -> SelfTunedRules | None:
    """Return rules that learn from the calibration units themselves, where the plan allows it."""
    policy = spec.policy
    if policy.tuning_share(spec) or not policy.rules.scaling or not is_self_tuned(spec.base, delta):
        return None
    x, z = round_arrays(table)

    def part(k: int, task: int) -> _SelfTunedCell:
        plan, range_ = spec.of(task), table.task_ranges[task]
        score = policy.base(plan)
        assert is_self_tuned(score, delta), "as the score of the first task is"
        read = score.summarise(x[k, ..., task])
        learner = score.leave_one_out(read, range_)
        # Any calibration cases tell where windows are; only scales are learnt from them.
        some = learner.fit(np.ones(table.cases, dtype=bool), np.arange(table.cases)).score
        rule = policy.rule(plan, some, range_, table.accelerations[k])
        family = replace(some.summary_family(read), scale=np.ones(table.cases))  # type: ignore[type-var]  # an anchored one
        base = rule.examined(family, table.cases)
        return _SelfTunedCell(learner, read, base, base.score(z[k, :, task]))

    tasks = range(x.shape[3])
    parts = tuple(tuple(part(k, task) for task in tasks) for k in range(len(x)))
    return SelfTunedRules(spec, table, parts, z)


def _scale(score: Score, read: Any) -> FloatArray:
    return score.summary_family(read).scale  # type: ignore[attr-defined, no-any-return]  # a steady one


class _FoldFit(NamedTuple):
    """Policy refitted without one fold."""

    units: NDArray[np.int64]
    seen: StoppingStatistics
    shown: StoppingStatistics


# Learns from the units outside a fold (unit,).
LearnFrom: TypeAlias = Callable[[NDArray[np.uint8]], _FoldFit]


def learn_folds(steady: SelfTunedRules, index: NDArray[np.int64]) -> LearnFrom:
    """Return a function that learns from the units outside a fold."""

    def learn(fold: NDArray[np.uint8]) -> _FoldFit:
        kept = fold[index] == 0
        units = (np.cumsum(fold == 0) - 1)[index[kept]]
        rules, seen = steady.learn(kept, units)
        return _FoldFit(units, seen, steady.seen(rules))

    return learn
