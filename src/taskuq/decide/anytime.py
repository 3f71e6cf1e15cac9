"""Anytime intervals: they hold in all rounds at once, for any way of stopping."""

from __future__ import annotations

from typing import ClassVar, final

from taskuq.decide.goal import Goal
from taskuq.decide.kinds import NestedPolicy
from taskuq.decide.rules import Examination
from taskuq.decide.stopping import Calibrator
from taskuq.interval import FloatArray


@final
class Anytime(NestedPolicy):
    """One threshold for all rounds, calibrated on each case's largest score over the rounds."""

    is_guaranteed: ClassVar[bool] = True
    stops_whole_groups: ClassVar[bool] = False

    def thresholds(self, seen: Examination, calibrator: Calibrator) -> FloatArray:
        """Return the quantile of the largest scores."""
        return calibrator.quantiles(seen.score.max(axis=0)[None])

    def sentence(self, goal: Goal, promise: str) -> str:
        """Say what is promised in every round."""
        what = promise.removeprefix("Guaranteed: ")
        return f"Guaranteed at every round at once, whatever makes you stop: {what}"
