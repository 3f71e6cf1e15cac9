"""Policy specifications and the registry of policy kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, final, get_args

import numpy as np

from taskuq._registry import Registry
from taskuq.conformal._quantiles import conformal_quantile, exact_alpha
from taskuq.conformal.scores import resolve_score, score_name
from taskuq.conformal.scores._learned import LearnedScore
from taskuq.conformal.scores._mlwr import MLWR
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray, TaskRange
from taskuq.policy._goal import Goal, Goals
from taskuq.policy._rules import (
    LOG_ODDS,
    IntervalRule,
    ResidualDistribution,
    Rules,
    StoppingRule,
    StoppingStatistics,
    WindowRule,
    stopping_statistics,
)
from taskuq.policy._stopping import (
    EARLY_FRACTION,
    ROUND_FRACTION,
    Calibrator,
    TuningCases,
    certified_rounds,
    guarantee_at_stop,
    last_certified,
    stopping_score,
    threshold_grid,
)
from taskuq.protocols import Score

Statistic = Literal["spread", "learned"]
Given = Literal["early", "round"]


@dataclass(frozen=True)
class PolicySpec:
    """Specification of a policy: everything but the calibration data.

    Args:
        kind: A name in :data:`POLICIES`: 'fixed-width', 'adaptive', 'anytime', 'paper' or your own.
        alpha: Error rate in (0, 1).
        goal: Goal for the reported interval, one for all tasks or one per task.
        score: For 'adaptive', 'anytime' and 'paper': score that defines the intervals.
        statistic: For 'fixed-width': estimate of the risk, 'spread' or 'learned'.
        budget: For 'fixed-width': fraction of alpha spent on stopping early; the rest is spent on
            reporting intervals narrower than the goal requires.
        round_tolerance: For 'fixed-width': the risk at acceleration R is multiplied by
            R ** round_tolerance.
        given: 'early' for a guarantee among the scans that stop before the full measurement,
            'round' for a guarantee among the scans that stop in each single round.

    Example:
        >>> PolicySpec("paper", alpha=0.1, goal=Goal(max_width=0.2), score="cqr").name
        'paper:cqr'
    """

    kind: str
    alpha: float
    goal: Goal | Goals
    score: str | Score = "mlwr"
    statistic: Statistic = "spread"
    budget: float = 1.0
    round_tolerance: float = 0.25
    given: Given | None = None

    def __post_init__(self) -> None:
        exact_alpha(self.alpha)
        kind = POLICIES[self.kind]
        if self.statistic not in get_args(Statistic):
            raise InputError(f"unknown statistic {self.statistic!r}", code="choice.unknown")
        if not 0 < self.budget <= 1:
            raise InputError(f"budget must be in (0, 1], got {self.budget}", code="value.invalid")
        if not -10 <= self.round_tolerance <= 10:
            raise InputError("round_tolerance must be in [-10, 10]", code="value.invalid")
        if self.given not in (None, *get_args(Given)):
            message = f"given must be 'early' or 'round', got {self.given!r}"
            raise InputError(message, code="choice.unknown")
        if self.given and not kind.supports_early:
            raise InputError(
                f"given={self.given!r} needs 'adaptive' or 'fixed-width'", code="option.conflict"
            )

    @property
    def policy(self) -> PolicyKind:
        return POLICIES[self.kind]()

    @property
    def name(self) -> str:
        """Short name, e.g. 'fixed-width:spread'."""
        first, *others = self.policy.options
        main = getattr(self, first)
        words = [main if isinstance(main, str) else score_name(main)]
        others = [name for name in others if getattr(self, name) != getattr(PolicySpec, name)]
        return ":".join([self.kind, *words, *(f"{n}={getattr(self, n):g}" for n in others)])

    @property
    def base_score(self) -> Score:
        """Unfitted score of the first task."""
        return self.policy.make_score(self.for_task(0))

    def for_task(self, task: int) -> TaskSpec:
        return TaskSpec(**vars(replace(self, goal=self.goal.for_task(task))))

    @property
    def tuning_fraction(self) -> float:
        """Fraction of units held out to fit the policy; the score may hold out more units."""
        own = {None: 0.0, "early": EARLY_FRACTION, "round": ROUND_FRACTION}[self.given]
        return max(self.policy.tuning_fraction(self), own)

    def thresholds(
        self,
        statistics: StoppingStatistics,
        calibrator: Calibrator,
        tuning: TuningCases | None = None,
        within: np.ndarray | None = None,
    ) -> FloatArray:
        """Return the threshold of each round, (round,), or of each round and stratum.

        ``within`` holds the class or stratum of each calibration case, followed by those of the
        tuning cases.
        """
        if calibrator.unit.stops_together and not self.policy.stops_whole_groups:
            raise InputError(
                f"{self.kind!r} cannot stop whole groups; use unit='group'", code="option.conflict"
            )
        if calibrator.unit.stops_together and not statistics.is_always_open:
            raise InputError("cqr cannot stop whole groups; use mlwr", code="option.conflict")
        n, classes = statistics.cases, [calibrator]
        inside: list[BoolArray | None] = [None]
        if within is not None:
            names = np.unique(within[:n])
            classes = [replace(calibrator, inside=within[:n] == name) for name in names]
            inside = [within[n:] == name for name in names]
        is_class = calibrator.guarantee.kind == "class"
        if self.given:
            assert tuning is not None
            chunks = (
                [(classes, inside)]
                if is_class
                else [([c], [i]) for c, i in zip(classes, inside, strict=True)]
            )
            each = [
                certified_rounds(statistics, some, tuning, of_tuning)
                if self.given == "round"
                else last_certified(statistics, some, threshold_grid(tuning, calibrator, of_tuning))
                for some, of_tuning in chunks
            ]
        else:
            each = [self.policy.thresholds(statistics, one) for one in classes]
        if within is None:
            found = each[0]
        else:
            # The class of a new case is unknown: the largest threshold serves them all.
            found = np.max(each, axis=0) if is_class else np.stack(each, axis=-1)
        return np.broadcast_to(found, (len(statistics.score), *found.shape[1:]))


@dataclass(frozen=True)
class TaskSpec(PolicySpec):
    goal: Goal


# A policy by name: 'adaptive:mlwr', {'kind': 'adaptive', 'score': 'mlwr'}, or a specification.
PolicyName: TypeAlias = str | Mapping[str, Any] | PolicySpec


def parse_policy(named: PolicyName, default: PolicySpec) -> PolicySpec:
    """Return the specification for a name such as 'adaptive:mlwr'; ``default`` sets the rest."""
    if isinstance(named, PolicySpec):
        return named
    if isinstance(named, str):
        kind, *words = named.split(":")
        first = POLICIES[kind].options[0]
        pairs = [word.split("=", 1) if "=" in word else [first, word] for word in words]
        named = {"kind": kind, **dict(pairs)}
    if not isinstance(named, Mapping):
        raise InputError(f"name a policy as 'adaptive:mlwr', got {named!r}", code="choice.unknown")
    kind, values = named.get("kind", default.kind), dict(named)
    if unknown := sorted(set(named) - {"kind", *POLICIES[kind].options}):
        raise InputError(f"policy {kind!r} has no option {unknown[0]!r}", code="choice.unknown")
    for name in {"budget", "round_tolerance"} & set(values):
        try:
            values[name] = float(values[name])
        except (TypeError, ValueError):
            raise InputError(f"{name} must be a number", code="dtype.invalid") from None
    return replace(default, **values)


class PolicyKind(ABC):
    """Base class of policies: defines the stopping rule, its calibration and its guarantee."""

    # The fields of a specification that it reads, the main one first.
    options: ClassVar[tuple[str, ...]]
    rule_class: ClassVar[type[StoppingRule]]
    # The interval reported when the scan stops has a finite-sample guarantee.
    is_guaranteed: ClassVar[bool]
    # One decision about all cases of a group is possible.
    stops_whole_groups: ClassVar[bool]
    # Intervals hold for any way of stopping, also where a round could not be decided.
    holds_at_any_stop: ClassVar[bool] = False
    # One threshold decides all stops, so that a guarantee about the early ones can be tested.
    supports_early: ClassVar[bool] = False

    @abstractmethod
    def make_score(self, spec: TaskSpec) -> Score:
        """Return the unfitted score of a task."""

    @abstractmethod
    def make_rule(
        self, spec: TaskSpec, score: Score, range_: TaskRange, acceleration: float
    ) -> StoppingRule:
        """Return the stopping rule of one task in one round, given the fitted score."""

    @abstractmethod
    def thresholds(self, statistics: StoppingStatistics, calibrator: Calibrator) -> FloatArray:
        """Return thresholds; the first axis has one entry per round, or one for all rounds."""

    @abstractmethod
    def statement(self, goal: Goal | Goals, guarantee: str) -> str:
        """Return the guarantee as a sentence."""

    def tuning_fraction(self, spec: PolicySpec) -> float:
        """Return the fraction of units to hold out for :meth:`fit`."""
        return 0.0

    def fit(self, spec: PolicySpec, rules: Rules, x: FloatArray, z: FloatArray) -> Rules:
        """Return the rules fitted to outputs ``x`` and targets ``z`` of held-out units."""
        return rules


class NestedPolicy(PolicyKind):
    """Base class of policies that report the intervals of a score."""

    options: ClassVar[tuple[str, ...]] = ("score",)
    rule_class: ClassVar[type[StoppingRule]] = IntervalRule

    def make_score(self, spec: TaskSpec) -> Score:
        return resolve_score(spec.score, spec.alpha, spec.goal.side)

    def make_rule(
        self, spec: TaskSpec, score: Score, range_: TaskRange, acceleration: float
    ) -> StoppingRule:
        return IntervalRule(score, spec.goal, range_)


POLICIES: Registry[type[PolicyKind]] = Registry(
    "policy",
    {
        "fixed-width": "taskuq.policy._kinds:FixedWidthPolicy",
        "adaptive": "taskuq.policy._kinds:AdaptivePolicy",
        "anytime": "taskuq.policy._kinds:AnytimePolicy",
        "paper": "taskuq.policy._kinds:PaperPolicy",
    },
)


@final
class AdaptivePolicy(NestedPolicy):
    """Policy with one threshold, calibrated on the intervals reported when scans stop."""

    is_guaranteed: ClassVar[bool] = True
    stops_whole_groups: ClassVar[bool] = True
    supports_early: ClassVar[bool] = True

    def thresholds(self, statistics: StoppingStatistics, calibrator: Calibrator) -> FloatArray:
        return calibrator.stopping_threshold(statistics)

    def statement(self, goal: Goal | Goals, guarantee: str) -> str:
        return guarantee_at_stop(goal, guarantee)


@final
class AnytimePolicy(NestedPolicy):
    """Policy with one threshold, calibrated on the maximum of the score over the rounds."""

    is_guaranteed: ClassVar[bool] = True
    stops_whole_groups: ClassVar[bool] = False
    holds_at_any_stop: ClassVar[bool] = True

    def thresholds(self, statistics: StoppingStatistics, calibrator: Calibrator) -> FloatArray:
        return calibrator.quantiles(statistics.score.max(axis=0)[None])

    def statement(self, goal: Goal | Goals, guarantee: str) -> str:
        what = guarantee.removeprefix("Guaranteed: ")
        return f"Guaranteed for all rounds at once and any stopping rule: {what}"


@final
class PaperPolicy(NestedPolicy):
    """Policy of the paper: one threshold per round, without a guarantee when a scan stops."""

    is_guaranteed: ClassVar[bool] = False
    stops_whole_groups: ClassVar[bool] = False

    def thresholds(self, statistics: StoppingStatistics, calibrator: Calibrator) -> FloatArray:
        return calibrator.quantiles(statistics.score)

    def statement(self, goal: Goal | Goals, guarantee: str) -> str:
        return (
            "Measured, not guaranteed: the intervals of each single round keep the error rate, but "
            "a scan reports the one that is narrow enough, which may miss more often."
        )


def _fit_residual_law(residuals: FloatArray) -> ResidualDistribution:
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
    # A few odd samples hardly change the risk.
    return MLWR(side=goal.side, floor=0.25, is_shifted=is_shifted, is_robust=True)


# The score of each risk statistic.
STATISTICS: dict[str, Callable[[Goal], Score]] = {
    "spread": _spread_score,
    "learned": lambda goal: LearnedScore(goal.side),
}


@final
class FixedWidthPolicy(PolicyKind):
    """Policy that reports an interval of fixed width and stops once the risk of a miss is low."""

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
    """Return the distribution that places fixed-width intervals; None if they are centred."""
    # Near the ends of a range the centre is rarely the best place; without a range it is.
    if not isinstance(score, LearnedScore) or score.side != "two" or score.link.is_identity:
        return None
    family = score.family(outputs)
    return _fit_residual_law((score.link(targets) - family.high) / family.scale)


def _fit_shrinkage(
    spec: PolicySpec, rules: Rules, outputs: FloatArray, targets: FloatArray
) -> Rules:
    """Fit the field ``narrowing`` of rules: the largest risk of a stop, and a residual scale."""
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
