"""From which threshold on an interval exists: an empty one is no report."""

from __future__ import annotations

import numpy as np

from taskuq.calibration.family import AnchoredFamily
from taskuq.interval import FloatArray
from taskuq.protocols import Family

# Every finite threshold is above this; minus infinity is not, where every interval is empty.
LEAST = -float(np.finfo(float).max)
BISECTIONS = 60


def opening(family: Family, cases: int) -> FloatArray:
    r"""Return for each case the threshold below which its interval is empty.

    .. math:: \ell = \inf\{\lambda : \mathcal C_\lambda \ne \emptyset\} = \frac{a - b}{2u}

    for intervals :math:`[a - \lambda u, b + \lambda u]`; others are searched.

    Arguments:
        family: Nested intervals of the cases.
        cases: How many there are.

    Example:
        >>> family = AnchoredFamily(np.array([0.2, 0.5]), np.array([0.6, 0.5]), np.ones(2))
        >>> opening(family, cases=2)
        array([-0.2,  0. ])
    """
    if not isinstance(family, AnchoredFamily):
        return _search(family, cases)
    lowest = np.full(cases, LEAST)
    if family.side == "two":
        np.divide(family.low - family.high, 2 * family.scale, out=lowest, where=family.scale > 0)
    return lowest


def _search(family: Family, cases: int) -> FloatArray:
    """Bisect; the result is a threshold at which the interval is open."""
    low, high = np.full(cases, -1.0), np.full(cases, 1.0)
    for _ in range(BISECTIONS):
        is_open = ~family.interval(low).is_empty
        closed = family.interval(high).is_empty
        if not is_open.any() and not closed.any():
            break
        low, high = np.where(is_open, low * 2, low), np.where(closed, high * 2, high)
    always, never = ~family.interval(low).is_empty, family.interval(high).is_empty
    for _ in range(BISECTIONS):
        middle = low / 2 + high / 2
        closed = family.interval(middle).is_empty
        low, high = np.where(closed, middle, low), np.where(closed, high, middle)
    return np.where(always, LEAST, np.where(never, np.inf, high))
