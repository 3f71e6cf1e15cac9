"""Fixed-width stopping policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, final

import numpy as np

from taskuq.conformal._quantiles import conformal_quantile, exact_alpha
from taskuq.conformal.scores._learned import LearnedScore
from taskuq.conformal.scores._mlwr import MLWR
from taskuq.interval import FloatArray, TaskRange
from taskuq.policy._goal import Goal, Goals
from taskuq.policy._kinds import PolicyKind, PolicySpec, TaskSpec
from taskuq.policy._rules import (
    LOG_ODDS,
    ResidualDistribution,
    Rules,
    StoppingRule,
    StoppingStatistics,
    WindowRule,
    stopping_statistics,
)
from taskuq.policy._stopping import Calibrator, guarantee_at_stop, stopping_score
from taskuq.protocols import Score


def _fit_residual_law(residuals: FloatArray) -> ResidualDistribution:
    """Fit the distribution of residuals, smoothed by a logistic kernel."""
    level = (np.arange(40) + 0.5) / 40
    iqr = float(np.subtract(*np.quantile(residuals, [0.75, 0.25])))
    deviation = 0.9 * iqr / 1.34 * len(residuals) ** -0.2
    width = deviation * np.sqrt(3) / np.pi
    smoothed = residuals[:, None] + width * np.log(level / (1 - level))
    quantiles = np.quantile(smoothed, 1 / (1 + np.exp(-LOG_ODDS)))
    # Equal residuals have equal quantiles, and a distribution has to rise.
    least = 1e-9 * (1 + float(np.abs(quantiles).max()))
    return ResidualDistribution(tuple(map(float, quantiles + least * np.arange(len(quantiles)))))


# Fraction of units from which reports learn when and how far to shrink.
NARROWING_FRACTION = 0.3


def _spread_score(goal: Goal) -> MLWR:
    # The shift is an offset of the margin, by round.
    is_shifted = True if goal.level is not None else None
    return MLWR(side=goal.side, floor=0.25, is_shifted=is_shifted)


# The score of each risk statistic.
STATISTICS: dict[str, Callable[[Goal], Score]] = {
    "spread": _spread_score,
    "learned": lambda goal: LearnedScore(goal.side),
}


@final
class FixedWidthPolicy(PolicyKind):
    """Policy that reports a window of the requested width and stops when its risk is small."""

    options: ClassVar[tuple[str, ...]] = ("statistic", "budget", "round_tolerance")
    rule_class: ClassVar[type[StoppingRule]] = WindowRule
    is_guaranteed: ClassVar[bool] = True
    stops_whole_groups: ClassVar[bool] = True
    supports_early: ClassVar[bool] = True

    def make_score(self, spec: TaskSpec) -> Score:
        return STATISTICS[spec.statistic](spec.goal)

    def make_rule(
        self, spec: TaskSpec, score: Score, range_: TaskRange, acceleration: float
    ) -> StoppingRule:
        is_known = np.isfinite(acceleration)
        weight = float(acceleration**spec.round_tolerance) if is_known else 1.0
        return WindowRule(score, spec.goal, range_, weight)

    def tuning_fraction(self, spec: PolicySpec) -> float:
        return NARROWING_FRACTION if spec.budget < 1 else 0.0

    def fit(self, spec: PolicySpec, rules: Rules, x: FloatArray, z: FloatArray) -> Rules:
        if spec.budget < 1:
            return _fit_shrinkage(spec, rules, x, z)

        def place(rule: StoppingRule, k: int, t: int) -> StoppingRule:
            law = window_distribution(rule.score, x[: k + 1, ..., t], z[k, :, t])
            return replace(rule, residuals=law)  # type: ignore[type-var]  # a WindowRule

        rounds = enumerate(rules)
        return tuple(tuple(place(rule, k, t) for t, rule in enumerate(row)) for k, row in rounds)

    def thresholds(self, statistics: StoppingStatistics, calibrator: Calibrator) -> FloatArray:
        return calibrator.stopping_threshold(statistics)

    def statement(self, goal: Goal | Goals, guarantee: str) -> str:
        return guarantee_at_stop(goal, guarantee)


def window_distribution(
    score: Score, outputs: FloatArray, targets: FloatArray
) -> ResidualDistribution | None:
    """Return the residual distribution used to place windows; None if they are centred."""
    # Near the ends of a range the centre is rarely the best place; without a range it is.
    if not isinstance(score, LearnedScore) or score.side != "two" or score.link.is_identity:
        return None
    family = score.family(outputs)
    return _fit_residual_law((score.link(targets) - family.high) / family.scale)


def _fit_shrinkage(
    spec: PolicySpec, rules: Rules, outputs: FloatArray, targets: FloatArray
) -> Rules:
    """Fit the stopping statistic and the shrinkage of reports to tuning cases."""
    statistics = stopping_statistics(rules, outputs, targets)
    Lambda = stopping_score(statistics.lowest, statistics.largest, statistics.score)
    level = float(exact_alpha(spec.alpha)) * spec.budget
    t0 = -conformal_quantile(Lambda, level)
    if t0 == np.inf:
        # Hardly any window misses, so every risk is small enough.
        risks = -statistics.largest[np.isfinite(statistics.largest)]
        t0 = 2 * float(risks.max(initial=0.0))
    last = -statistics.largest[-1]
    # With few units none is held out; any scale is valid.
    t0 = t0 if np.isfinite(t0) and t0 > 0 else float(np.median(last)) if last.size else 1.0
    t0 = t0 if np.isfinite(t0) and t0 > 0 else 1.0
    # Any scale is valid; a large residual over predicted error makes the useful range about [0, 1].
    examined = [(k, t, e) for k, row in enumerate(statistics.rounds) for t, e in enumerate(row)]
    residuals = np.concatenate([e.family.score(targets[k, :, t]) for k, t, e in examined])
    finite = residuals[np.isfinite(residuals)]
    B = 2 * float(np.quantile(finite, 1 - level)) if finite.size else 1.0
    B = B if B > 0 else 1.0
    return tuple(
        tuple(replace(rule, narrowing=(t0, B)) for rule in row)  # type: ignore[type-var]  # a WindowRule
        for row in rules
    )
