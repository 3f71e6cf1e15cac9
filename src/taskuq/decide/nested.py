"""Policies that report a score's own intervals: adaptive, anytime, and the paper's."""

from __future__ import annotations

from typing import ClassVar, final

from taskuq.decide.goal import Goal, Goals
from taskuq.decide.kinds import NestedPolicy
from taskuq.decide.rules import Examination
from taskuq.decide.stopping import Calibrator, stopped_promise
from taskuq.interval import FloatArray


@final
class Adaptive(NestedPolicy):
    """One threshold for all rounds, calibrated so that the interval at the stop is covered."""

    is_guaranteed: ClassVar[bool] = True
    stops_whole_groups: ClassVar[bool] = True
    promises_early: ClassVar[bool] = True

    def thresholds(self, seen: Examination, calibrator: Calibrator) -> FloatArray:
        """Return the threshold at which stopped reports keep the promise."""
        return calibrator.stopping(seen)

    def sentence(self, goal: Goal | Goals, promise: str) -> str:
        """Say what is promised at the stop."""
        return stopped_promise(goal, promise)


@final
class Anytime(NestedPolicy):
    """One threshold for all rounds, calibrated on each case's largest score over the rounds.

    Its intervals hold in all rounds at once, for any way of stopping.
    """

    is_guaranteed: ClassVar[bool] = True
    stops_whole_groups: ClassVar[bool] = False
    holds_at_any_stop: ClassVar[bool] = True

    def thresholds(self, seen: Examination, calibrator: Calibrator) -> FloatArray:
        """Return the quantile of the largest scores."""
        return calibrator.quantiles(seen.score.max(axis=0)[None])

    def sentence(self, goal: Goal | Goals, promise: str) -> str:
        """Say what is promised in every round."""
        what = promise.removeprefix("Guaranteed: ")
        return f"Guaranteed at every round at once, whatever makes you stop: {what}"


@final
class Paper(NestedPolicy):
    """One threshold for each round, as if the scan always stopped there."""

    is_guaranteed: ClassVar[bool] = False
    stops_whole_groups: ClassVar[bool] = False

    def thresholds(self, seen: Examination, calibrator: Calibrator) -> FloatArray:
        """Return the quantile of each round's scores."""
        return calibrator.quantiles(seen.score)

    def sentence(self, goal: Goal | Goals, promise: str) -> str:
        """Say that nothing is promised at the stop."""
        return (
            "Measured, not guaranteed: each round by itself keeps its error rate, but the "
            "interval reported at the stop is chosen by its width and may miss more often."
        )
