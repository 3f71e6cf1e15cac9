"""The paper's policy: each round calibrated by itself, with no guarantee at the stop."""

from __future__ import annotations

from typing import ClassVar, final

from taskuq.decide.goal import Goal
from taskuq.decide.kinds import NestedPolicy
from taskuq.decide.rules import Examination
from taskuq.decide.stopping import Calibrator
from taskuq.interval import FloatArray


@final
class Paper(NestedPolicy):
    """One threshold for each round, as if the scan always stopped there."""

    is_guaranteed: ClassVar[bool] = False
    stops_whole_groups: ClassVar[bool] = False

    def thresholds(self, seen: Examination, calibrator: Calibrator) -> FloatArray:
        """Return the quantile of each round's scores."""
        return calibrator.quantiles(seen.score)

    def sentence(self, goal: Goal, promise: str) -> str:
        """Say that nothing is promised at the stop."""
        return (
            "Measured, not guaranteed: each round by itself keeps its error rate, but the "
            "interval reported at the stop is chosen by its width and may miss more often."
        )
