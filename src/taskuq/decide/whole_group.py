"""One decision for all cases of a group: the scan of a patient stops as a whole."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.groups import group_index
from taskuq.calibration.guarantee import Guarantee
from taskuq.calibration.units import Unit
from taskuq.interval import FloatArray


def group_allowance(largest: FloatArray, index: NDArray[np.int64], is_risk: bool) -> FloatArray:
    r"""Return the threshold below which each group stops, (group,).

    Risk statistics are averaged as root mean square, so that one doubtful slice weighs but does
    not rule; intervals all have to achieve the goal.

    Arguments:
        largest: :math:`\lambda^*` of each case (case,).
        index: The group of each case, numbered from 0.
        is_risk: Whether :math:`-\lambda^*` is a risk statistic.

    Example:
        >>> group_allowance(np.array([-3.0, -4.0, -1.0]), np.array([0, 0, 1]), is_risk=True)
        array([-3.53553391, -1.        ])
    """
    groups = int(index.max()) + 1
    if is_risk:
        sizes = np.bincount(index, minlength=groups)
        return -np.sqrt(np.bincount(index, weights=largest**2, minlength=groups) / sizes)
    result = np.full(groups, np.inf)
    np.minimum.at(result, index, largest)
    return result


def group_losses(
    allowance: FloatArray,
    score: FloatArray,
    index: NDArray[np.int64],
    thresholds: FloatArray,
    unit: Unit,
) -> FloatArray:
    r"""Return the loss of each group at each threshold, made monotone, (group, threshold).

    The loss is the share of cases missed at the round where the group stops, or, for a promise
    about a share of the cases, whether too few are covered. Made monotone,

    .. math:: \tilde L_v(\lambda) = \sup_{\lambda' \ge \lambda} L_v(\lambda') =
        \max_k L_{vk}(\max(\lambda, M_{v,k-1}))

    over the rounds :math:`k` with :math:`\lambda_{vk}^* > \max(\lambda, M_{v,k-1})`, where
    :math:`M_{vk} = \max_{j \le k} \lambda_{vj}^*`.

    Arguments:
        allowance: :math:`\lambda_{vk}^*` (round, group).
        score: The smallest threshold at which each case's report contains its target (round, case).
        index: The group of each case.
        thresholds: Thresholds :math:`\lambda`.
        unit: Whom the promise is for, which says what a missed case loses.

    Example:
        >>> from taskuq.calibration.units import RandomCase
        >>> allowance, index = np.array([[2.0]]), np.array([0, 0])
        >>> score, thresholds = np.array([[1.0, 3.0]]), np.array([0.5, 1.5, 2.5])
        >>> group_losses(allowance, score, index, thresholds, RandomCase())
        array([[1. , 0.5, 0. ]])
    """
    rounds, groups = allowance.shape
    losses = np.zeros((groups, len(thresholds)))
    before = np.full(groups, -np.inf)
    for k in range(rounds):
        for v in range(groups):
            if allowance[k, v] <= before[v]:
                continue
            at = np.maximum(thresholds, before[v])
            ordered = np.sort(score[k, index == v])
            missed = len(ordered) - np.searchsorted(ordered, at, side="right")
            loss = unit.loss(missed, len(ordered))
            losses[v] = np.maximum(losses[v], np.where(at < allowance[k, v], loss, 0.0))
        before = np.maximum(before, allowance[k])
    return losses


def whole_group_threshold(
    allowance: FloatArray, score: FloatArray, group: np.ndarray, promise: Guarantee
) -> float:
    """Return the smallest threshold at which the groups' losses keep the promise.

    Arguments:
        allowance: The threshold below which each group stops (round, group).
        score: Scores of the cases (round, case).
        group: The group of each case.
        promise: What is promised, with groups as the unit.
    """
    index, sizes = group_index(group)
    # The losses change only where a group starts to stop or a case starts to be covered.
    thresholds = np.unique(np.concatenate([allowance.ravel(), score.ravel(), [-np.inf]]))
    losses = group_losses(allowance, score, index, thresholds, promise.whom)
    allowed = promise.allowed(len(sizes))
    # Shares of cases are not exact in floats; a meeting of sums counts as allowed.
    good = np.nonzero(losses.sum(axis=0) <= allowed + 1e-9)[0]
    return float(thresholds[good[0]]) if allowed >= 0 and good.size else math.inf
