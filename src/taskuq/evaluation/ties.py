"""Ties up to rounding: from which quantile on the reported interval contains the target."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from taskuq.interval import BoolArray, FloatArray


def covered_from(
    scores: FloatArray,
    quantiles: FloatArray,
    contains: Callable[[NDArray[np.int64], FloatArray], BoolArray],
) -> FloatArray:
    r"""Return the smallest of some quantiles at which the interval of each case has its target.

    .. math:: t_i = \min\{q : z_i \in \mathcal C_q(\hat z_i)\} \le s_i

    A target that scores at most :math:`q` is in the interval at :math:`q`. Intervals are rounded
    outwards, so that it is there, too, at quantiles a few units in the last place below its score:
    where scores tie but for their rounding, :math:`s_i \le q` would miss what the interval has.

    Arguments:
        scores: The scores of the targets (case,).
        quantiles: All the quantiles that occur, in rising order.
        contains: Says of some cases, each at a quantile of its own, whether the interval contains
            the target.

    Returns:
        :math:`t_i` of each case; infinity where no quantile is large enough.

    Example:
        >>> scores = np.array([0.1, 0.2, 0.30000000000000004, 0.9])
        >>> near = lambda cases, q: scores[cases] <= q + 1e-15
        >>> covered_from(scores, np.array([0.1, 0.3]), near)
        array([0.1, 0.3, 0.3, inf])
    """
    first = np.searchsorted(quantiles, scores)
    cases = np.flatnonzero(first)
    cases = cases[contains(cases, quantiles[first[cases] - 1])]
    low, high = np.zeros(len(cases), dtype=np.int64), first[cases] - 1
    while (low < high).any():
        middle = (low + high) // 2
        inside = contains(cases, quantiles[middle])
        low, high = np.where(inside, low, middle + 1), np.where(inside, middle, high)
    first[cases] = low
    return np.append(quantiles, np.inf)[first]
