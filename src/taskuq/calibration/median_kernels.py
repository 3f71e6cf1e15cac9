"""Compiled medians over units; :mod:`taskuq.calibration.medians` has the same in NumPy."""

from __future__ import annotations

import numpy as np
from numba import njit

from taskuq.calibration.medians import SLACK


@njit(cache=True, nogil=True)
def unit_medians(order, unit, sizes, fold, value, low, high):  # type: ignore[no-untyped-def]  # compiled
    """Fill the medians over the units outside a fold, each as the number of the case it is at.

    Minus and plus infinity are the numbers after the last case.

    Arguments:
        order: What sorts the cases (row, case).
        unit: The unit of each case.
        sizes: The number of cases of each unit.
        fold: Which units are left out.
        value: To be filled: the median of each row.
        low: To be filled: the least median without each unit (row, unit).
        high: To be filled: the largest.
    """
    rows, cases = order.shape
    ordered = np.empty(cases + 2, np.int64)
    share = 1 / sizes
    units = 0
    for v in range(sizes.size):
        units += 1 - fold[v]
    for row in range(rows):
        ordered[0] = cases
        m = 0
        for e in range(cases):
            # Without a branch: a case of the fold is written over by the next one.
            ordered[m + 1] = order[row, e]
            m += 1 - fold[unit[order[row, e]]]
        ordered[m + 1] = cases + 1
        if m == units:
            value[row] = _of_cases(ordered, m, unit, low[row], high[row])
        else:
            value[row] = _of_units(ordered, m, unit, share, fold, units, low[row], high[row])


@njit(cache=True, nogil=True)
def _of_cases(ordered, m, unit, low, high):  # type: ignore[no-untyped-def]  # compiled
    half = (m + 1) // 2
    for place in range(1, m + 1):
        v = unit[ordered[place]]
        low[v] = ordered[0 if half == 1 else half - 1 if place > half - 1 else half]
        high[v] = ordered[half if place > half else half + 1]
    return ordered[half]


@njit(cache=True, nogil=True)
def _of_units(ordered, m, unit, share, fold, units, low, high):  # type: ignore[no-untyped-def]  # compiled
    total = np.empty(m)
    own = np.zeros(share.size)
    added = 0.0
    for e in range(m):
        added += share[unit[ordered[e + 1]]]
        total[e] = added
    half = units / 2
    least, most = half - 1 - SLACK, half + SLACK
    start = np.searchsorted(total, least)
    # A unit's own share is at most 1, so both levels are reached before this.
    stop = min(m, np.searchsorted(total, most + 1 + SLACK) + 1)
    for e in range(start):
        v = unit[ordered[e + 1]]
        own[v] += share[v]
    for v in range(share.size):
        if fold[v]:
            continue
        low[v] = high[v] = ordered[m + 1]
        mine = 0.0
        is_reached = False
        for e in range(start, stop):
            if unit[ordered[e + 1]] == v:
                mine += share[v]
            others = total[e] - own[v] - mine
            if others >= least and not is_reached:
                is_reached = True
                low[v] = ordered[e + 1]
            if others >= most:
                high[v] = ordered[e + 1]
                break
        if half <= 1:
            low[v] = ordered[0]
    return ordered[np.searchsorted(total, half - SLACK) + 1]
