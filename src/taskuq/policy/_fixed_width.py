"""Fixed-width windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, final

import numpy as np

from taskuq.conformal._family import IDENTITY, LinearFamily, Side, clipped
from taskuq.conformal._quantiles import conformal_quantile, exact_alpha
from taskuq.conformal.scores import score_to_dict
from taskuq.conformal.scores._learned import LearnedScore
from taskuq.conformal.scores._mlwr import MLWR
from taskuq.errors import InputError
from taskuq.interval import FloatArray, Interval, TaskRange
from taskuq.policy._goal import Goal, Goals
from taskuq.policy._kinds import PolicyKind, PolicySpec, TaskSpec
from taskuq.policy._rules import (
    Record,
    RoundStatistics,
    Rules,
    StoppingRule,
    StoppingStatistics,
    opening_threshold,
    stopping_statistics,
)
from taskuq.policy._stopping import Calibrator, guarantee_at_stop, stopping_score
from taskuq.protocols import IntervalFamily, Score

# The log odds at which quantiles are remembered; between and beyond them the law is logistic.
LOG_ODDS = np.arange(-10, 11) / 2
# How many points stand for the kernel around a residual.
POINTS = 40


@final
@dataclass(frozen=True)
class _ResidualDistribution:
    """Smoothed distribution of scaled residuals."""

    quantiles: tuple[float, ...]

    def __post_init__(self) -> None:
        q = np.asarray(self.quantiles, dtype=float)
        if q.shape != LOG_ODDS.shape or not np.isfinite(q).all() or not (np.diff(q) > 0).all():
            raise InputError(
                f"a law of residuals needs {LOG_ODDS.size} rising quantiles; plan again"
            )

    def log_odds(self, residuals: FloatArray) -> FloatArray:
        """Return the log odds that a residual is at most so large; infinite ones are certain."""
        q = np.asarray(self.quantiles)
        slopes = np.diff(LOG_ODDS) / np.diff(q)
        piece = np.clip(np.searchsorted(q, residuals) - 1, 0, len(slopes) - 1)
        return np.asarray(LOG_ODDS[piece] + slopes[piece] * (residuals - q[piece]))

    def outside(self, below: FloatArray, above: FloatArray) -> FloatArray:
        """Return the probability of a residual outside of [below, above]."""
        from scipy.special import expit

        # A sum of two tails: one minus what lies between would lose small ones to rounding.
        return np.asarray(expit(self.log_odds(below)) + expit(-self.log_odds(above)))


def _fit_residual_law(residuals: FloatArray) -> _ResidualDistribution:
    """Fit the law of residuals, each of them smoothed by a logistic kernel."""
    share = (np.arange(POINTS) + 0.5) / POINTS
    iqr = float(np.subtract(*np.quantile(residuals, [0.75, 0.25])))
    deviation = 0.9 * iqr / 1.34 * len(residuals) ** -0.2
    width = deviation * np.sqrt(3) / np.pi
    smoothed = residuals[:, None] + width * np.log(share / (1 - share))
    quantiles = np.quantile(smoothed, 1 / (1 + np.exp(-LOG_ODDS)))
    # Residuals that are all the same have quantiles that are; a law has to rise.
    least = 1e-9 * (1 + float(np.abs(quantiles).max()))
    return _ResidualDistribution(tuple(map(float, quantiles + least * np.arange(len(quantiles)))))


def _most_probable_window(
    family: LinearFamily, law: _ResidualDistribution, goal: Goal, place: TaskRange
) -> tuple[Interval, FloatArray]:
    """Return the most probable windows and their probability."""
    assert goal.max_width is not None
    tau, link = goal.max_width, family.link
    m, u = family.high[:, None], family.scale[:, None]
    low, high = place or (-np.inf, np.inf)
    top = max(low, high - tau)
    # The window around the centre first: it is kept where no other is better.
    around = goal.window(family.high, link, place)[0].lower[:, None]
    ends = link.inverse(m + u * np.asarray(law.quantiles))
    lower = np.clip(np.concatenate([around, ends, ends - tau], axis=1), low, top)
    # (high - tau) + tau may round to less than high, and would lose a target there.
    upper = np.maximum(lower + tau, np.where(lower >= top, high, -np.inf))
    below = np.where(lower <= low, -np.inf, (link(lower) - m) / u)
    above = np.where(upper >= high, np.inf, (link(upper) - m) / u)
    missed = law.outside(below, above)
    best = np.arange(len(missed)), missed.argmin(axis=1)
    return Interval(lower[best], upper[best]), missed[best]


# The share of units from which reports learn when and how far to shrink.
NARROWING_TUNING_SHARE = 0.3


@final
@dataclass(frozen=True)
class WindowRule(StoppingRule):
    """Stop when the risk of a goal-sized window is below the threshold."""

    name: ClassVar[str] = "window"
    scaling: ClassVar[int] = 1

    score: Score
    goal: Goal
    task_range: TaskRange
    weight: float
    narrowing: tuple[float, float] | None = None
    residuals: _ResidualDistribution | None = None

    def risk(self, family: IntervalFamily) -> tuple[FloatArray, Interval, LinearFamily]:
        """Return the risk statistic, the windows and the families of cases."""
        if not isinstance(family, LinearFamily):
            raise InputError("a fixed-width policy needs the statistic 'spread' or 'learned'")
        place = window_place(self.score, self.task_range)
        if self.residuals is not None:
            window, p = _most_probable_window(family, self.residuals, self.goal, place)
            with np.errstate(divide="ignore"):  # what cannot be missed has no risk
                certainty = np.log(2) - np.log(p)
            return self.weight / certainty, clipped(window, self.task_range), family
        window, reach = self.goal.window(family.high, family.link, place)
        steepness = np.divide(self.weight, reach, out=np.full(reach.shape, np.inf), where=reach > 0)
        return steepness * family.scale, clipped(window, self.task_range), family

    def examined(self, family: IntervalFamily, cases: int) -> RoundStatistics:
        """Examine so many cases by their nested intervals."""
        h, window, family = self.risk(family)
        if self.narrowing is None:
            return RoundStatistics(
                family, window, np.full(h.shape, -np.inf), -h, window_from=-np.inf
            )
        t0, B = self.narrowing
        largest = np.divide(t0, h, out=np.full(h.shape, np.inf), where=h > 0)
        narrowed = replace(family, scale=B * family.scale)
        return RoundStatistics(
            family=narrowed,
            window=window,
            lowest=opening_threshold(narrowed, cases),
            largest=np.where(h < t0, largest, -np.inf),
            window_from=1.0,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""
        law, narrowing = self.residuals, self.narrowing
        return {
            "kind": self.name,
            "score": score_to_dict(self.score),
            # Versions that know no law of residuals miss the weight, and refuse the file.
            **({"weight": self.weight} if law is None else {}),
            "narrowing": narrowing and list(narrowing),
            **({"probable": {"weight": self.weight, **asdict(law)}} if law else {}),
        }

    @classmethod
    def from_dict(cls, record: Record, score: Score, goal: Goal, range_: TaskRange) -> WindowRule:
        """Read a rule back from its description."""
        narrowing, probable = record["narrowing"], record.get("probable")
        weight = record["weight"] if probable is None else probable["weight"]
        return cls(
            score, goal, range_, float(weight),
            None if narrowing is None else (float(narrowing[0]), float(narrowing[1])),
            None if probable is None else _ResidualDistribution(tuple(map(float, probable["quantiles"]))),
        )  # fmt: skip


def window_place(score: Score, task_range: TaskRange) -> TaskRange:
    """Return the range that windows are kept in: the declared one, or [0, 1] where it was seen."""
    link = score.link if isinstance(score, MLWR | LearnedScore) else IDENTITY
    return (link.low, link.high) if task_range is None and not link.is_identity else task_range


def _spread_score(side: Side) -> MLWR:
    """Return the score behind the statistic 'spread': MLWR with half its usual floor."""
    return MLWR(side=side, floor=0.25)


# The score behind each risk statistic.
STATISTICS: dict[str, Callable[[Side], Score]] = {"spread": _spread_score, "learned": LearnedScore}


@final
class FixedWidthPolicy(PolicyKind):
    """Report a window of the requested width; stop when its risk is small."""

    options: ClassVar[tuple[str, ...]] = ("statistic", "budget", "lateness")
    rules: ClassVar[type[StoppingRule]] = WindowRule
    is_guaranteed: ClassVar[bool] = True
    stops_whole_groups: ClassVar[bool] = True
    promises_early: ClassVar[bool] = True

    def base(self, plan: TaskSpec) -> Score:
        """Return the score behind the risk statistic."""
        return STATISTICS[plan.statistic](plan.goal.side)

    def rule(
        self, plan: TaskSpec, score: Score, range_: TaskRange, acceleration: float
    ) -> StoppingRule:
        """Return a rule that is the more tolerant the later the round."""
        weight = float(acceleration**plan.lateness) if np.isfinite(acceleration) else 1.0
        return WindowRule(score, plan.goal, range_, weight)

    def tuning_share(self, plan: PolicySpec) -> float:
        """Return what reports narrower than the window learn from."""
        return NARROWING_TUNING_SHARE if plan.budget < 1 else 0.0

    def learned(self, plan: PolicySpec, rules: Rules, x: FloatArray, z: FloatArray) -> Rules:
        """Return rules whose reports shrink, where the budget leaves something for that."""
        return _fit_shrinkage(plan, rules, x, z) if plan.budget < 1 else _place_windows(rules, x, z)

    def thresholds(self, seen: StoppingStatistics, calibrator: Calibrator) -> FloatArray:
        """Return the threshold at which stopped reports keep the promise."""
        return calibrator.stopping(seen)

    def sentence(self, goal: Goal | Goals, promise: str) -> str:
        return guarantee_at_stop(goal, promise)


def window_law(
    score: Score, outputs: FloatArray, targets: FloatArray
) -> _ResidualDistribution | None:
    """Return the law by which the windows of a score lie; None where they lie around its centre."""
    # Near the ends of a range the centre is rarely the best place. Without a range it is as good,
    # and probabilities of a miss were seen to choose rounds worse.
    if not isinstance(score, LearnedScore) or score.side != "two" or score.link.is_identity:
        return None
    family = score.family(outputs)
    return _fit_residual_law((score.link(targets) - family.high) / family.scale)


def _place_windows(rules: Rules, outputs: FloatArray, targets: FloatArray) -> Rules:
    """Fit where windows are centred, on tuning cases."""
    laws = [
        [
            window_law(rule.score, outputs[: k + 1, ..., t], targets[k, :, t])
            for t, rule in enumerate(of_round)
        ]
        for k, of_round in enumerate(rules)
    ]
    return tuple(
        tuple(replace(rule, residuals=law) for rule, law in zip(*both, strict=True))  # type: ignore[type-var]  # a WindowRule
        for both in zip(rules, laws, strict=True)
    )


def _fit_shrinkage(
    plan: PolicySpec, rules: Rules, outputs: FloatArray, targets: FloatArray
) -> Rules:
    """Fit when to stop and how reports shrink, on tuning cases."""
    seen = stopping_statistics(rules, outputs, targets)
    Lambda = stopping_score(seen.lowest, seen.largest, seen.score)
    level = float(exact_alpha(plan.alpha)) * plan.budget
    t0 = -conformal_quantile(Lambda, level)
    if t0 == np.inf:
        # Hardly any window misses, so every risk seen is small enough.
        risks = -seen.largest[np.isfinite(seen.largest)]
        t0 = 2 * float(risks.max(initial=0.0))
    t0 = t0 if np.isfinite(t0) and t0 > 0 else float(np.median(-seen.largest[-1]))
    t0 = t0 if np.isfinite(t0) and t0 > 0 else 1.0
    # Any scale is valid; a large residual over predicted error makes the useful range about [0, 1].
    residuals = [
        e.family.score(targets[k, :, t])
        for k, of_round in enumerate(seen.rounds)
        for t, e in enumerate(of_round)
    ]
    finite = np.concatenate([r[np.isfinite(r)] for r in residuals])
    B = 2 * float(np.quantile(finite, 1 - level)) if finite.size else 1.0
    B = B if B > 0 else 1.0
    return tuple(
        tuple(replace(rule, narrowing=(t0, B)) for rule in of_round)  # type: ignore[type-var]  # a WindowRule
        for of_round in rules
    )
