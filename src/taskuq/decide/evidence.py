"""Evidence against exchangeability: bets on the rank of each new unit among all units so far."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from taskuq.interval import FloatArray

# A bet pays as this power of the rank, counted from below or from above: the first two for ranks
# near an end, the others for most ranks in one half. The first two also bet on both ends at once.
POWERS = np.array([-0.75, -0.5, 1.0, 3.0])
ENDS = 2
BETS = 2 * len(POWERS) + ENDS
# More is never said: beyond it floats would end before the evidence does.
MOST = 1e100
# Evidence has to pass what is needed by this share, which absorbs rounding.
SLACK = 1e-9


def payoffs(low: Any, high: Any, units: int) -> FloatArray:
    r"""Return what each bet pays for the rank of a new unit among all units so far.

    .. math:: f_a(r) = \frac{(r - \frac12)^a}{\frac1m \sum_{j \le m} (j - \frac12)^a}

    Over the ranks 1 to m each bet pays 1 on average. A unit that ties with others has any of their
    ranks, and is paid for the worst of them.

    Arguments:
        low: The smallest rank of the new unit, of any shape: one more than the units below it.
        high: The largest: the units that are not above it, itself included.
        units: How many units there are, :math:`m`, the new one included.

    Returns:
        One number for each bet, along a last axis.

    Example:
        >>> ranks = np.arange(1, 11)
        >>> payoffs(ranks, ranks, 10).mean(axis=0).round(12)
        array([1., 1., 1., 1., 1., 1., 1., 1., 1., 1.])
        >>> bool((payoffs(4, 6, 10) <= payoffs(5, 5, 10)).all())
        True
    """
    first, last = np.asarray(low)[..., None], np.asarray(high)[..., None]

    def paid(first: np.ndarray, last: np.ndarray) -> FloatArray:
        worst = np.where(POWERS < 0, last, first)
        return np.asarray((worst - 0.5) ** POWERS / _means(units))

    below, above = paid(first, last), paid(units + 1 - last, units + 1 - first)
    both = (below[..., :ENDS] + above[..., :ENDS]) / 2
    return np.concatenate([below, above, both], axis=-1)


def asleep(bet_on: int) -> float:
    """Return the share of the capital that has not been bet after so many units.

    Half of it is bet on the first unit, and some of the rest begins with each later one, so that a
    change is seen whenever it comes: after ten thousand units 7 % are still kept for it.

    Arguments:
        bet_on: How many units were bet on.

    Example:
        >>> [round(asleep(n), 3) for n in (0, 1, 3, 10_000)]
        [1.0, 0.5, 0.333, 0.07]
    """
    return 1 / (1 + math.log2(bet_on + 1))


def after_unit(capital: FloatArray, bet_on: int, low: Any, high: Any, units: int) -> FloatArray:
    """Return the capital in each bet after one more unit.

    Arguments:
        capital: In each bet before, (..., bet); zeros to begin with.
        bet_on: How many units were bet on before.
        low: The smallest rank of the new unit among all.
        high: The largest, where it ties.
        units: How many units there are, calibration units and the new one included.
    """
    woken = (asleep(bet_on) - asleep(bet_on + 1)) / BETS
    return np.asarray(np.minimum((capital + woken) * payoffs(low, high, units), MOST))


def evidence(capital: FloatArray, bet_on: int) -> FloatArray:
    r"""Return all that has come of a capital of 1, in bets or not.

    If the units are exchangeable, it reaches :math:`1/\delta` at any time with probability at most
    :math:`\delta`: see docs/guarantees.md.

    Arguments:
        capital: In each bet, (..., bet).
        bet_on: How many units were bet on.

    Example:
        >>> capital = np.zeros(BETS)
        >>> for n in range(6):  # 20 calibration units, and each new unit is larger than all so far
        ...     capital = after_unit(capital, n, 21 + n, 21 + n, 21 + n)
        >>> round(float(evidence(capital, 6)))
        3053
    """
    return np.asarray(capital.sum(axis=-1) + asleep(bet_on))


def _means(units: int) -> FloatArray:
    """The mean of each power over the ranks 1 to so many."""
    size = 1 << max(6, (units - 1).bit_length())
    return np.asarray(_sums(size)[units - 1] / units)


@lru_cache(maxsize=32)
def _sums(size: int) -> FloatArray:
    return np.cumsum((np.arange(size)[:, None] + 0.5) ** POWERS, axis=0)
