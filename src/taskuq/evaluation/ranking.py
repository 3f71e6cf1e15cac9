"""Ordered scores in which the quantile of a calibration fold is found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.guarantee import Guarantee
from taskuq.interval import BoolArray, FloatArray


@dataclass(frozen=True)
class Ranking:
    """Ordered scores, of cases or of groups, in which the quantile of a calibration fold is found.

    The quantile is the smallest calibration score with at most ``allowed`` weight of calibration
    scores strictly above it.

    Arguments:
        scores: In rising order.
        unit: The unit of each score.
        weight: The weight of each score.
        allowed: The weight that may lie above; negative where no finite quantile exists.
    """

    scores: FloatArray
    unit: NDArray[np.int64]
    weight: FloatArray
    allowed: float

    @property
    def ends_tie(self) -> BoolArray:
        """Whether each score is the last of its equals."""
        return np.append(self.scores[1:] != self.scores[:-1], True)

    def quantiles(self, position: NDArray[np.int64]) -> FloatArray:
        """Return the score at each position; infinity at -1."""
        return np.append(self.scores, np.inf)[position]


def promised_ranking(
    scores: FloatArray, promise: Guarantee, n_calibration: int, unit_of_case: NDArray[np.int64]
) -> Ranking:
    """Order scores so that the quantile that keeps a promise can be found in any calibration fold.

    Arguments:
        scores: The scores of all cases (case,).
        promise: What is promised.
        n_calibration: The number of units in a calibration fold.
        unit_of_case: The unit of each case, numbered from 0.

    Example:
        >>> promise = Guarantee(alpha=0.2, unit="case", n_cases=5)
        >>> ranking = promised_ranking(np.array([3.0, 1, 2]), promise, 4, np.arange(3))
        >>> ranking.scores, ranking.unit, ranking.allowed
        (array([1., 2., 3.]), array([1, 2, 0]), 0.0)
    """
    each, unit, weight = promise.whom.entries(scores, unit_of_case)
    order = np.argsort(each, kind="stable")
    return Ranking(each[order], unit[order], weight[order], promise.allowed(n_calibration))
