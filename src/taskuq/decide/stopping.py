"""Thresholds at which stopped reports keep their promise, for each case and for whole groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.betting import Bets
from taskuq.calibration.guarantee import Guarantee
from taskuq.calibration.units import Unit
from taskuq.decide.goal import Goal, Goals
from taskuq.decide.rules import Examination
from taskuq.interval import BoolArray, FloatArray

# The loss of each group at thresholds in rising order (group, threshold).
Losses: TypeAlias = Callable[[FloatArray], FloatArray]
# Losses computed at a time, so that they stay in cache.
BLOCK = 200_000
# Thresholds looked at in each step of a search.
STEP = 64


@dataclass(frozen=True)
class Calibrator(ABC):
    """What finds thresholds that keep a promise: on one calibration set, or in many at once.

    A threshold is a number for one set, and one for each trial, (trial,), for many.

    Arguments:
        promise: What is promised.
        unit: Whom it is for, and what stops together.
        index: The unit of each case, numbered from 0.
    """

    promise: Guarantee
    unit: Unit
    index: NDArray[np.int64]

    @abstractmethod
    def quantiles(self, scores: FloatArray) -> FloatArray:
        """Return the quantile of each row of scores (row, case) that keeps the promise."""

    @property
    @abstractmethod
    def units(self) -> int:
        """The number of units in a calibration set."""

    @abstractmethod
    def found(self, find: Callable[[BoolArray], float]) -> FloatArray:
        """Return what is found in a calibration set, or in each, told its units (unit,)."""

    @abstractmethod
    def smallest(self, thresholds: FloatArray, losses: Losses) -> FloatArray:
        """Return the smallest threshold at which the groups lose no more than is allowed.

        Arguments:
            thresholds: Thresholds in rising order.
            losses: The loss of each group at some of them (group, threshold), nonincreasing.
        """

    def stopping(self, seen: Examination) -> FloatArray:
        """Return the threshold, along a first axis, at which stopped reports keep the promise."""
        if self.unit.stops_together:
            allowance = seen.allowance(self.index)
            # Losses change only where a group starts to stop or a case starts to be covered.
            sure = seen.sure_allowance(self.index)
            ends = [allowance if sure is None else sure, allowance, seen.score]
            grid = np.unique(np.concatenate([*(end.ravel() for end in ends), [-np.inf]]))

            def losses(some: FloatArray) -> FloatArray:
                return group_losses(allowance, seen.score, self.index, some, self.unit, sure)

            least = self.smallest(grid, losses)[None]
            return np.asarray(np.maximum(least, seen.lowest.max()))
        Lambda = stopping_score(seen.lowest, seen.largest, seen.score, seen.surely)
        # A larger threshold keeps the promise too, and below every opening no case could stop.
        return np.asarray(np.maximum(self.quantiles(Lambda[None]), seen.lowest.min()))


def stopping_score(
    lowest: FloatArray,
    largest: FloatArray,
    score: FloatArray,
    surely: FloatArray | None = None,
) -> FloatArray:
    r"""Return the supremum of the thresholds at which the policy stops with a miss.

    At threshold :math:`\lambda` the policy stops in the first round :math:`k` with
    :math:`\lambda \in [\ell_k, \lambda_k^*)` and misses there when :math:`s_k > \lambda`.
    Without lower limits (:math:`\ell_k = -\infty`) and with
    :math:`M_k = \max_{j \le k} \lambda_j^*` this is

    .. math:: \Lambda = \max\{\min(\lambda_k^*, s_k) : \lambda_k^* > M_{k-1},\; s_k > M_{k-1}\}

    or minus infinity where the policy misses at no threshold. A policy run at a threshold
    :math:`\hat\lambda` misses only if :math:`\Lambda > \hat\lambda`: so a conformal quantile of
    :math:`\Lambda` is a threshold that keeps the stopped report's promise.

    Where :math:`\lambda_k^*` and :math:`s_k` are only known to lie in ranges, their upper ends and
    the lower ends of :math:`\lambda_k^*` give the largest :math:`\Lambda` possible.

    Arguments:
        lowest: :math:`\ell_k` (round, case).
        largest: :math:`\lambda_k^*` (round, case), or its upper ends.
        score: :math:`s_k`, the smallest threshold at which the report contains the target.
        surely: The lower ends of :math:`\lambda_k^*`, where it is known within a range only.

    Example:
        >>> lowest = np.full((2, 3), -np.inf)
        >>> largest = np.array([[2.0, 1.0, 1.0], [5.0, 5.0, 5.0]])
        >>> score = np.array([[1.5, 0.5, 0.5], [1.0, 3.0, 0.5]])
        >>> stopping_score(lowest, largest, score)
        array([1.5, 3. , 0.5])
    """
    sure = largest if surely is None else surely
    result = np.full(largest.shape[1], -np.inf)
    for k in range(len(largest)):
        top = np.minimum(largest[k], score[k])
        # Thresholds just below `top` may stop earlier; go down to where no earlier round stops.
        for _ in range(k):
            for j in range(k):
                taken = (lowest[j] < top) & (top <= sure[j])
                top = np.where(taken, lowest[j], top)
        result = np.where(top > lowest[k], np.maximum(result, top), result)
    return np.asarray(result)


def group_losses(
    allowance: FloatArray,
    score: FloatArray,
    index: NDArray[np.int64],
    thresholds: FloatArray,
    unit: Unit,
    surely: FloatArray | None = None,
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
        thresholds: Thresholds :math:`\lambda`, in rising order.
        unit: Whom the promise is for, which says what a missed case loses.
        surely: The lower ends of the allowances, where they are known within a range only.

    Example:
        >>> from taskuq.calibration.units import RandomCase
        >>> allowance, index = np.array([[2.0]]), np.array([0, 0])
        >>> score, thresholds = np.array([[1.0, 3.0]]), np.array([0.5, 1.5, 2.5])
        >>> group_losses(allowance, score, index, thresholds, RandomCase())
        array([[1. , 0.5, 0. ]])
    """
    step = max(1, BLOCK // allowance.shape[1])
    blocks = [thresholds[start : start + step] for start in range(0, len(thresholds), step)]
    sure = allowance if surely is None else surely
    return np.hstack([_losses(allowance, score, index, block, unit, sure) for block in blocks])


def _losses(
    allowance: FloatArray,
    score: FloatArray,
    index: NDArray[np.int64],
    thresholds: FloatArray,
    unit: Unit,
    sure: FloatArray,
) -> FloatArray:
    groups, count = allowance.shape[1], len(thresholds)
    sizes = np.bincount(index, minlength=groups)[:, None]
    losses = np.zeros((groups, count))
    before = np.full((groups, 1), -np.inf)
    for k in range(len(allowance)):
        # A case is missed at all thresholds below its score; where an earlier round stops below
        # `before`, only what is missed there counts.
        place = index * (count + 1) + np.searchsorted(thresholds, score[k])
        found = np.bincount(place, minlength=groups * (count + 1)).reshape(groups, count + 1)
        missed = sizes - np.cumsum(found[:, :-1], axis=1)
        at_before = np.bincount(index[score[k] > before[index, 0]], minlength=groups)[:, None]
        loss = unit.loss(np.where(thresholds < before, at_before, missed), sizes)
        stops = np.maximum(thresholds, before) < allowance[k][:, None]
        losses = np.maximum(losses, np.where(stops, loss, 0.0))
        before = np.maximum(before, sure[k][:, None])
    return losses


def smallest_allowed(thresholds: FloatArray, totals: FloatArray, allowed: float) -> FloatArray:
    """Return the smallest threshold at which a total loss is allowed; infinity where none is.

    Arguments:
        thresholds: Thresholds in rising order.
        totals: The total loss at each of them (..., threshold).
        allowed: The largest total; negative where not even no loss would do.

    Example:
        >>> smallest_allowed(np.array([1.0, 2, 3]), np.array([[5.0, 2, 0], [5, 4, 3]]), allowed=2)
        array([ 2., inf])
    """
    # Shares of cases are not exact in floats; a meeting of sums counts as allowed.
    good = (totals <= allowed + 1e-9) & (allowed >= 0)
    first = np.where(good.any(axis=-1), good.argmax(axis=-1), len(thresholds))
    return np.asarray(np.append(thresholds, np.inf)[first])


def search_allowed(thresholds: FloatArray, losses: Losses, allowed: float) -> FloatArray:
    """Return the smallest threshold at which the groups' total is allowed, looking at few of them.

    Arguments:
        thresholds: Thresholds in rising order.
        losses: The loss of each group at some of them, nonincreasing.
        allowed: The largest total; negative where not even no loss would do.

    Example:
        >>> def losses(some):
        ...     return np.maximum(5.0 - some, 0.0)[None]
        >>> search_allowed(np.arange(1000.0), losses, allowed=2)
        array(3.)
    """
    while len(thresholds) > STEP:
        step = -(-len(thresholds) // STEP)
        # The first part whose last threshold is allowed has the smallest one; else the last part.
        ends = thresholds[step - 1 : -1 : step]
        numbers, totals = np.arange(float(len(ends))), losses(ends).sum(axis=0)
        part = int(np.minimum(smallest_allowed(numbers, totals, allowed), len(ends)))
        thresholds = thresholds[part * step : (part + 1) * step]
    return smallest_allowed(thresholds, losses(thresholds).sum(axis=0), allowed)


def smallest_certified(thresholds: FloatArray, losses: FloatArray, bets: Bets) -> float:
    """Return the smallest threshold from which on all losses are certified; infinity for none.

    Arguments:
        thresholds: Thresholds in rising order.
        losses: The loss of each group at each of them (group, threshold), nonincreasing.
        bets: What certifies losses.

    Example:
        >>> losses = np.linspace(0.2, 0.0, 5) * np.ones((30, 1))
        >>> smallest_certified(np.arange(5.0), losses, Bets(alpha=0.1, delta=0.1))
        4.0
    """
    totals = losses.sum(axis=0)
    # Losses that add up to the same are the same: each is looked at once, where it begins.
    begins = np.flatnonzero(np.append(True, totals[1:] < totals[:-1]))
    failed = np.flatnonzero(~bets.certify(losses[:, begins]))
    first = failed[-1] + 1 if failed.size else 0
    return float(thresholds[begins[first]]) if first < len(begins) else np.inf


def stopped_promise(goal: Goal | Goals, promise: str) -> str:
    """Return what is promised about the report at the stop, as a kind's ``sentence`` says it."""
    what = promise.removeprefix("Guaranteed: ")
    stopped = f"Guaranteed for the report at the stop, where {goal.sentence}: {what}"
    return f"{stopped} A scan that measures everything knows the target."
