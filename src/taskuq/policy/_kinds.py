"""Registry of policies; nested policies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final, get_args

import numpy as np

from taskuq._registry import Registry
from taskuq.conformal._quantiles import exact_alpha
from taskuq.conformal.scores import resolve_score
from taskuq.errors import InputError
from taskuq.interval import FloatArray, TaskRange
from taskuq.policy._goal import Goal, Goals
from taskuq.policy._rules import IntervalRule, Rules, StoppingRule, StoppingStatistics
from taskuq.policy._stopping import (
    EARLY_TUNING_SHARE,
    Calibrator,
    TuningCases,
    guarantee_at_stop,
    last_certified,
    threshold_grid,
)
from taskuq.protocols import Score

Statistic = Literal["spread", "learned"]
Given = Literal["early"]


@dataclass(frozen=True)
class PolicySpec:
    """Policy kind, score, goal and error rate; everything but the data.

    Arguments:
        kind: A name in :data:`POLICIES`: 'fixed-width', 'adaptive', 'anytime', 'paper' or yours.
        alpha: The error rate.
        goal: What the report has to achieve, of all tasks or of each.
        score: For 'adaptive', 'anytime' and 'paper': the score of the nested intervals.
        statistic: For 'fixed-width': 'spread' or 'learned'.
        budget: For 'fixed-width': the share of the error rate spent on stopping early; the rest
            is spent on reports narrower than the window. 1 reports the window.
        lateness: The exponent of the acceleration in the risk statistic; larger values are more
            tolerant in later rounds.
        given: 'early' for a promise about the scans that stop before everything is measured.
    """

    kind: str
    alpha: float
    goal: Goal | Goals
    score: str | Score = "mlwr"
    statistic: Statistic = "spread"
    budget: float = 1.0
    lateness: float = 0.25
    given: Given | None = None

    def __post_init__(self) -> None:
        exact_alpha(self.alpha)
        POLICIES[self.kind]
        if self.statistic not in get_args(Statistic):
            raise InputError(f"statistic must be 'spread' or 'learned', got {self.statistic!r}")
        if not 0 < self.budget <= 1:
            raise InputError(f"budget must lie in (0, 1], got {self.budget}")
        if not -10 <= self.lateness <= 10:
            raise InputError(f"lateness must lie in [-10, 10], got {self.lateness}; 0.25 is usual")
        if self.given not in (None, *get_args(Given)):
            raise InputError(f"given must be 'early' or left out, got {self.given!r}")
        if self.given and not self.policy.promises_early:
            raise InputError(
                f"policy {self.kind!r} promises nothing about early stops; use 'fixed-width' or "
                "'adaptive', or leave given out"
            )

    @property
    def policy(self) -> PolicyKind:
        """What the kind knows."""
        return POLICIES[self.kind]()

    @property
    def base(self) -> Score:
        """The score behind the rules of the first task, before any tuning."""
        return self.policy.base(self.of(0))

    def of(self, task: int) -> TaskSpec:
        """Return what is planned for one task."""
        return TaskSpec(**vars(replace(self, goal=self.goal.of(task))))

    @property
    def tuning_share(self) -> float:
        """The share of units that something beside the score learns from; 0 where nothing does."""
        return max(self.policy.tuning_share(self), EARLY_TUNING_SHARE if self.given else 0.0)

    def thresholds(
        self, seen: StoppingStatistics, calibrator: Calibrator, tuning: TuningCases | None = None
    ) -> FloatArray:
        """Return the calibrated threshold of each round, (round,) or (round, trial).

        Arguments:
            seen: The calibration cases in the light of the rules.
            calibrator: What finds thresholds that keep the promise.
            tuning: The cases set aside, where the promise is about early stops.
        """
        if calibrator.unit.stops_together and not self.policy.stops_whole_groups:
            raise InputError(f"a {self.kind} policy has no threshold for whole groups; use 'group'")
        if calibrator.unit.stops_together and not seen.is_always_open:
            raise InputError("intervals that can be empty (cqr) cannot stop whole groups; use mlwr")
        if self.given:
            assert tuning is not None
            found = last_certified(seen, calibrator, threshold_grid(tuning, calibrator))
        else:
            found = self.policy.thresholds(seen, calibrator)
        return np.broadcast_to(found, (len(seen.score), *found.shape[1:]))


@dataclass(frozen=True)
class TaskSpec(PolicySpec):
    """Policy specification of one task."""

    goal: Goal


class PolicyKind(ABC):
    """Base class of policies: statistic, calibration and guarantee."""

    # Which fields of a plan it reads, and so which of them tell two plans of the kind apart.
    options: ClassVar[tuple[str, ...]]
    # How a round is examined.
    rules: ClassVar[type[StoppingRule]]
    # Whether the report at the stop has a finite-sample guarantee.
    is_guaranteed: ClassVar[bool]
    # Whether it has a threshold for one decision about all cases of a group.
    stops_whole_groups: ClassVar[bool]
    # Whether its intervals hold for any way of stopping, also where a round could not be decided.
    holds_at_any_stop: ClassVar[bool] = False
    # Whether one threshold decides its stops, so that a promise about the early ones can be tested.
    promises_early: ClassVar[bool] = False

    @abstractmethod
    def base(self, plan: TaskSpec) -> Score:
        """Return the score behind the rules of a task, before any tuning."""

    @abstractmethod
    def rule(
        self, plan: TaskSpec, score: Score, range_: TaskRange, acceleration: float
    ) -> StoppingRule:
        """Return the rule of a task in a round, given its tuned score."""

    @abstractmethod
    def tuning_share(self, plan: PolicySpec) -> float:
        """Return the share of units that the rules themselves learn from; 0 where they do not."""

    @abstractmethod
    def learned(self, plan: PolicySpec, rules: Rules, x: FloatArray, z: FloatArray) -> Rules:
        """Return the rules after learning from the units set aside, where there is a share."""

    @abstractmethod
    def thresholds(self, seen: StoppingStatistics, calibrator: Calibrator) -> FloatArray:
        """Return one calibrated threshold for all rounds, or one for each; along the first axis."""

    @abstractmethod
    def sentence(self, goal: Goal | Goals, promise: str) -> str: ...


class NestedPolicy(PolicyKind):
    """Policy that reports a score's nested intervals."""

    options: ClassVar[tuple[str, ...]] = ("score",)
    rules: ClassVar[type[StoppingRule]] = IntervalRule

    def base(self, plan: TaskSpec) -> Score:
        """Return the score of the nested intervals."""
        return resolve_score(plan.score, plan.alpha, plan.goal.side)

    def rule(
        self, plan: TaskSpec, score: Score, range_: TaskRange, acceleration: float
    ) -> StoppingRule:
        """Return the same rule in every round."""
        return IntervalRule(score, plan.goal, range_)

    def tuning_share(self, plan: PolicySpec) -> float:
        """Return that nothing but the score learns."""
        return 0.0

    def learned(self, plan: PolicySpec, rules: Rules, x: FloatArray, z: FloatArray) -> Rules:
        """Return the rules as they are."""
        return rules


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
    """One threshold for all rounds, calibrated at the stop."""

    is_guaranteed: ClassVar[bool] = True
    stops_whole_groups: ClassVar[bool] = True
    promises_early: ClassVar[bool] = True

    def thresholds(self, seen: StoppingStatistics, calibrator: Calibrator) -> FloatArray:
        """Return the threshold at which stopped reports keep the promise."""
        return calibrator.stopping(seen)

    def sentence(self, goal: Goal | Goals, promise: str) -> str:
        return guarantee_at_stop(goal, promise)


@final
class AnytimePolicy(NestedPolicy):
    """One threshold for all rounds, calibrated on the maximum score over rounds."""

    is_guaranteed: ClassVar[bool] = True
    stops_whole_groups: ClassVar[bool] = False
    holds_at_any_stop: ClassVar[bool] = True

    def thresholds(self, seen: StoppingStatistics, calibrator: Calibrator) -> FloatArray:
        """Return the quantile of the largest scores."""
        return calibrator.quantiles(seen.score.max(axis=0)[None])

    def sentence(self, goal: Goal | Goals, promise: str) -> str:
        what = promise.removeprefix("Guaranteed: ")
        return f"Guaranteed at every round at once, whatever makes you stop: {what}"


@final
class PaperPolicy(NestedPolicy):
    """One threshold per round, as in the paper; no guarantee at the stop."""

    is_guaranteed: ClassVar[bool] = False
    stops_whole_groups: ClassVar[bool] = False

    def thresholds(self, seen: StoppingStatistics, calibrator: Calibrator) -> FloatArray:
        """Return the quantile of each round's scores."""
        return calibrator.quantiles(seen.score)

    def sentence(self, goal: Goal | Goals, promise: str) -> str:
        return (
            "Measured, not guaranteed: each round by itself keeps its error rate, but the "
            "interval reported at the stop is chosen by its width and may miss more often."
        )
