"""Quantiles over units that count the same, and how far a median moves with one of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taskuq.interval import FloatArray

# Sums of shares are floats: where they may meet a half, the wider range is taken.
SLACK = 1e-9


class UnitMedian(NamedTuple):
    """A median over units, every unit counting the same.

    Arguments:
        value: The median over all of them.
        low: For each unit, the least median that the others can have with any unit beside them.
        high: The largest.
    """

    value: float
    low: FloatArray
    high: FloatArray


def unit_median(
    values: FloatArray, index: NDArray[np.int64], order: NDArray[np.int64] | None = None
) -> UnitMedian:
    r"""Return the median of values that come in units, and its range were one unit another.

    With :math:`F_v` the distribution function of the values of unit :math:`v`, the median of
    :math:`V` units is the smallest value at which their mean :math:`\frac1V \sum_v F_v` reaches
    one half. In place of unit :math:`i` any unit :math:`F'` lies between 0 and 1, so that

    .. math:: \inf\Big\{x : \sum_{v \ne i} F_v(x) + 1 \ge \frac V2 \Big\} \le
        \operatorname{median}_{v \ne i,\, F'} \le
        \inf\Big\{x : \sum_{v \ne i} F_v(x) \ge \frac V2 \Big\}

    Arguments:
        values: One for each case.
        index: The unit of each case, numbered from 0.
        order: What sorts the values, where it is known.

    Example:
        >>> median = unit_median(np.array([5.0, 1, 2, 4, 3]), np.arange(5))
        >>> median.value, median.low, median.high
        (3.0, array([2., 3., 3., 2., 2.]), array([3., 4., 4., 3., 4.]))
    """
    order = np.argsort(values, kind="stable") if order is None else order
    ordered = np.concatenate([[-np.inf], np.asarray(values, dtype=float)[order], [np.inf]])
    unit = index[order]
    sizes = np.bincount(index)
    if len(sizes) == len(values):
        return _of_cases(ordered, unit)
    share = 1 / sizes[unit]
    total = np.cumsum(share)
    half = len(sizes) / 2
    ends = _reached(total, share, unit, (half - 1 - SLACK, half + SLACK))
    middle = int(np.searchsorted(total, half - SLACK))
    low = np.where(half <= 1, -np.inf, ordered[ends[0] + 1])
    return UnitMedian(float(ordered[middle + 1]), low, ordered[ends[1] + 1])


def unit_quantile(values: FloatArray, index: NDArray[np.int64], level: float) -> float:
    """Return the smallest value at which the mean distribution function of units reaches a level.

    Arguments:
        values: One for each case.
        index: The unit of each case, numbered from 0.
        level: Beyond 0 and 1 the quantile is minus or plus infinity.

    Example:
        >>> unit_quantile(np.array([1.0, 2, 3, 4]), np.array([0, 0, 0, 1]), 0.5)
        3.0
        >>> unit_quantile(np.array([1.0, 2, 3, 4]), np.arange(4), 1.1)
        inf
    """
    if not 0 < level <= 1:
        return -np.inf if level <= 0 else np.inf
    order = np.argsort(values, kind="stable")
    total = np.cumsum(1 / np.bincount(index)[index[order]])
    return float(values[order][np.searchsorted(total, level * total[-1] - SLACK)])


def _of_cases(ordered: FloatArray, unit: NDArray[np.int64]) -> UnitMedian:
    """The median where every unit is one case: without a case, later ones move up by one."""
    units = len(unit)
    place = np.empty(units, dtype=np.int64)
    place[unit] = np.arange(1, units + 1)

    def without(count: int) -> FloatArray:
        after = ordered[min(count + 1, units + 1)]
        return np.asarray(np.where(place > count, ordered[count], after))

    half = -(-units // 2)
    low = without(half - 1) if half > 1 else np.full(units, -np.inf)
    return UnitMedian(float(ordered[half]), low, without(half))


def _reached(
    total: FloatArray, share: FloatArray, unit: NDArray[np.int64], levels: tuple[float, float]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where sums of shares reach two levels without the shares of each unit."""
    units = int(unit.max()) + 1
    # A unit's own share is at most 1, so both levels are reached within this window.
    start = int(np.searchsorted(total, levels[0]))
    window = slice(start, int(np.searchsorted(total, levels[1] + 1 + SLACK)) + 1)
    own = np.bincount(unit[:start], weights=share[:start], minlength=units)
    mine = np.where(unit[window] == np.arange(units)[:, None], share[window], 0.0)
    others = total[window] - own[:, None] - np.cumsum(mine, axis=1)
    found = [others >= level for level in levels]
    low, high = (
        np.where(there.any(axis=1), start + there.argmax(axis=1), len(total)) for there in found
    )
    return low, high
