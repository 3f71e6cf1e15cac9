"""Adaptive stopping: report the score's own interval as soon as it achieves the goal."""

from __future__ import annotations

from typing import ClassVar, final

from taskuq.decide.goal import Goal
from taskuq.decide.kinds import NestedPolicy
from taskuq.decide.rules import Examination
from taskuq.decide.stopping import Calibrator, stopped_promise
from taskuq.interval import FloatArray


@final
class Adaptive(NestedPolicy):
    """One threshold for all rounds, calibrated so that the interval at the stop is covered."""

    is_guaranteed: ClassVar[bool] = True
    stops_whole_groups: ClassVar[bool] = True

    def thresholds(self, seen: Examination, calibrator: Calibrator) -> FloatArray:
        """Return the threshold at which stopped reports keep the promise."""
        return calibrator.stopping(seen)

    def sentence(self, goal: Goal, promise: str) -> str:
        """Say what is promised at the stop."""
        return stopped_promise(goal, promise)
