"""Ordered scores in which the quantile of a calibration fold is found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.groups import pac_mean_loss, worst_scores
from taskuq.calibration.guarantee import Guarantee
from taskuq.calibration.rank import exact_level
from taskuq.calibration.threshold import exact_share
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


def allowed_loss(promise: Guarantee, n_calibration: int) -> float:
    """Return how much loss the calibration groups may add up to; negative where none suffices.

    Arguments:
        promise: A promise about a random case of a new group.
        n_calibration: The number of calibration groups.

    Example:
        >>> allowed_loss(Guarantee(alpha=0.1, unit="group", n_cases=40), n_calibration=29)
        2.0
    """
    if promise.delta is not None:
        return float(pac_mean_loss(n_calibration, promise.alpha, promise.delta))
    return float(exact_level(promise.alpha) * (n_calibration + 1) - 1)


def promised_ranking(
    scores: FloatArray,
    promise: Guarantee,
    n_calibration: int,
    unit_of_case: NDArray[np.int64],
    weight: FloatArray,
) -> Ranking:
    """Order scores so that the quantile that keeps a promise can be found in any calibration fold.

    Arguments:
        scores: The scores of all cases (case,).
        promise: What is promised.
        n_calibration: The number of units in a calibration fold.
        unit_of_case: The unit of each case, numbered from 0.
        weight: The weight of each case.

    Example:
        >>> promise = Guarantee(alpha=0.2, unit="case", n_cases=5)
        >>> ranking = promised_ranking(np.array([3.0, 1, 2]), promise, 4, np.arange(3), np.ones(3))
        >>> ranking.scores, ranking.unit, ranking.allowed
        (array([1., 2., 3.]), array([1, 2, 0]), 0.0)
    """
    if promise.unit == "group" and promise.cases == "random":
        order = np.argsort(scores, kind="stable")
        allowed = allowed_loss(promise, n_calibration)
        return Ranking(scores[order], unit_of_case[order], weight[order], allowed)
    unit = unit_of_case
    if promise.unit == "group":
        scores = worst_scores(scores, unit_of_case, exact_share(promise.cases))
        unit = np.arange(len(scores))
    order = np.argsort(scores, kind="stable")
    allowed = float(n_calibration - promise.rank(n_calibration))
    return Ranking(scores[order], unit[order], np.ones(len(order)), allowed)
