"""Policy specifications and the registry of policy kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, final, get_args

import numpy as np

from taskuq._registry import Registry
from taskuq.conformal._quantiles import exact_alpha
from taskuq.conformal.scores import resolve_score, score_name
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray, TaskRange
from taskuq.policy._goal import Goal, Goals
from taskuq.policy._rules import IntervalRule, Rules, StoppingRule, StoppingStatistics
from taskuq.policy._stopping import (
    EARLY_FRACTION,
    ROUND_FRACTION,
    Calibrator,
    TuningCases,
    certified_rounds,
    guarantee_at_stop,
    last_certified,
    threshold_grid,
)
from taskuq.protocols import Score

Statistic = Literal["spread", "learned"]
Given = Literal["early", "round"]


@dataclass(frozen=True)
class PolicySpec:
    """Specification of a policy: everything but the calibration data.

    Args:
        kind: A name in :data:`POLICIES`: 'fixed-width', 'adaptive', 'anytime', 'paper' or yours.
        alpha: Error rate in (0, 1).
        goal: Goal of the report, one for all tasks or one per task.
        score: For 'adaptive', 'anytime' and 'paper': score of the nested intervals.
        statistic: For 'fixed-width': 'spread' or 'learned'.
        budget: For 'fixed-width': fraction of the error rate used for stopping early; the rest
            is used for intervals narrower than the window.
        round_tolerance: For 'fixed-width': exponent of the acceleration in the risk statistic.
        given: 'early' for a guarantee among the scans that stop before the full measurement,
            'round' for one among those that stop in each round.

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
        """Short name, e.g. fixed-width:spread."""
        first, *others = self.policy.options
        main = getattr(self, first)
        words = [main if isinstance(main, str) else score_name(main)]
        others = [name for name in others if getattr(self, name) != getattr(PolicySpec, name)]
        return ":".join([self.kind, *words, *(f"{n}={getattr(self, n):g}" for n in others)])

    @property
    def base_score(self) -> Score:
        """Score of the first task before tuning."""
        return self.policy.make_score(self.for_task(0))

    def for_task(self, task: int) -> TaskSpec:
        return TaskSpec(**vars(replace(self, goal=self.goal.for_task(task))))

    @property
    def tuning_fraction(self) -> float:
        """Fraction of units held out to fit the policy, in addition to its score."""
        own = {None: 0.0, "early": EARLY_FRACTION, "round": ROUND_FRACTION}[self.given]
        return max(self.policy.tuning_fraction(self), own)

    def thresholds(
        self,
        statistics: StoppingStatistics,
        calibrator: Calibrator,
        tuning: TuningCases | None = None,
        within: np.ndarray | None = None,
    ) -> FloatArray:
        """Return the threshold of each round, (round,), (round, split) or (round, stratum).

        ``within`` holds the classes or strata of the calibration cases, then of the tuning cases.
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
    """Parse a policy name such as adaptive:mlwr; omitted parts keep their defaults."""
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
    """Base class of policies, with statistic, calibration and guarantee."""

    # The fields of a specification that it reads, the main one first.
    options: ClassVar[tuple[str, ...]]
    rule_class: ClassVar[type[StoppingRule]]
    # The report at the stop has a finite-sample guarantee.
    is_guaranteed: ClassVar[bool]
    # One decision about all cases of a group is possible.
    stops_whole_groups: ClassVar[bool]
    # Intervals hold for any way of stopping, also where a round could not be decided.
    holds_at_any_stop: ClassVar[bool] = False
    # One threshold decides all stops, so that a guarantee about the early ones can be tested.
    supports_early: ClassVar[bool] = False

    @abstractmethod
    def make_score(self, spec: TaskSpec) -> Score:
        """Return the score of a task before tuning."""

    @abstractmethod
    def make_rule(
        self, spec: TaskSpec, score: Score, range_: TaskRange, acceleration: float
    ) -> StoppingRule:
        """Return the stopping rule of a task and round, given the tuned score."""

    @abstractmethod
    def thresholds(self, statistics: StoppingStatistics, calibrator: Calibrator) -> FloatArray:
        """Return calibrated thresholds; the first axis has length 1 or one entry per round."""

    @abstractmethod
    def statement(self, goal: Goal | Goals, guarantee: str) -> str:
        """Return the guarantee at the stop as a sentence."""

    def tuning_fraction(self, spec: PolicySpec) -> float:
        """Return the fraction of units to hold out for :meth:`fit`."""
        return 0.0

    def fit(self, spec: PolicySpec, rules: Rules, x: FloatArray, z: FloatArray) -> Rules:
        """Return rules fitted to held-out outputs and targets."""
        return rules


class NestedPolicy(PolicyKind):
    """Base class of policies that report a score's nested intervals."""

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
        "fixed-width": "taskuq.policy._fixed_width:FixedWidthPolicy",
        "adaptive": "taskuq.policy._kinds:AdaptivePolicy",
        "anytime": "taskuq.policy._kinds:AnytimePolicy",
        "paper": "taskuq.policy._kinds:PaperPolicy",
    },
)


@final
class AdaptivePolicy(NestedPolicy):
    """Policy with one threshold for all rounds, calibrated on the reports at the stop."""

    is_guaranteed: ClassVar[bool] = True
    stops_whole_groups: ClassVar[bool] = True
    supports_early: ClassVar[bool] = True

    def thresholds(self, statistics: StoppingStatistics, calibrator: Calibrator) -> FloatArray:
        return calibrator.stopping_threshold(statistics)

    def statement(self, goal: Goal | Goals, guarantee: str) -> str:
        return guarantee_at_stop(goal, guarantee)


@final
class AnytimePolicy(NestedPolicy):
    """Policy with one threshold for all rounds, calibrated on the maximum score over rounds."""

    is_guaranteed: ClassVar[bool] = True
    stops_whole_groups: ClassVar[bool] = False
    holds_at_any_stop: ClassVar[bool] = True

    def thresholds(self, statistics: StoppingStatistics, calibrator: Calibrator) -> FloatArray:
        return calibrator.quantiles(statistics.score.max(axis=0)[None])

    def statement(self, goal: Goal | Goals, guarantee: str) -> str:
        what = guarantee.removeprefix("Guaranteed: ")
        return f"Guaranteed at every round at once, whatever makes you stop: {what}"


@final
class PaperPolicy(NestedPolicy):
    """Policy with one threshold per round, as in the paper; no guarantee at the stop."""

    is_guaranteed: ClassVar[bool] = False
    stops_whole_groups: ClassVar[bool] = False

    def thresholds(self, statistics: StoppingStatistics, calibrator: Calibrator) -> FloatArray:
        return calibrator.quantiles(statistics.score)

    def statement(self, goal: Goal | Goals, guarantee: str) -> str:
        return (
            "Measured, not guaranteed: each round by itself keeps its error rate, but the "
            "interval reported at the stop is chosen by its width and may miss more often."
        )
