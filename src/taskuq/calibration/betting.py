"""Bets against a mean loss above alpha: the bound behind promises given the calibration set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.rank import exact_level
from taskuq.interval import BoolArray, FloatArray

# The capital aimed at lies above the one needed by this share, which absorbs rounding.
SLACK = 1e-9
# Losses held in memory at a time.
NUMBERS = 4_000_000
# Steps of the golden section through the groups leave no order among their names.
GOLDEN = (math.sqrt(5) - 1) / 2


@final
@dataclass(frozen=True)
class Bets:
    r"""Evidence that independent losses in [0, 1] have a mean of at most alpha.

    Somebody with capital 1 bets on each group in turn that it loses less than :math:`\alpha`:

    .. math:: K_v = K_{v-1} \, (1 + \lambda_v (\alpha - L_v)), \qquad
        0 \le \lambda_v \le \frac{1}{1 - \alpha}

    If the mean loss is :math:`\alpha` or more, the capital does not grow in expectation, however
    the bets depend on the groups before, and reaches :math:`1/\delta` with probability at most
    :math:`\delta`. The bet is the one that takes the present capital to :math:`1/\delta` in the
    groups that remain, were they like those before; to begin with, like :math:`1/\alpha` groups of
    which one lost everything.

    References:
        Waudby-Smith and Ramdas, Estimating Means of Bounded Random Variables by Betting, JRSS B
        2024; Voracek and Orabona, STaR-Bets, NeurIPS 2025.

    Arguments:
        alpha: The error rate.
        delta: The probability :math:`\delta` of an unlucky calibration set.

    Example:
        >>> bets = Bets(alpha=0.1, delta=0.1)
        >>> bets.certify(np.zeros((21, 1))), bets.certify(np.zeros((22, 1)))
        (array([False]), array([ True]))
        >>> bets.certify(np.full((70, 3), [0.05, 0.07, 0.09]))
        array([ True, False, False])
    """

    alpha: float | Fraction
    delta: float | Fraction

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", float(exact_level(self.alpha)))
        object.__setattr__(self, "delta", float(exact_level(self.delta, "delta")))

    def can_certify(self, groups: int) -> bool:
        """Whether so many groups that lose nothing would be enough."""
        return (1 - self.alpha) ** groups <= self.delta

    def certify(self, losses: FloatArray, counted: BoolArray | None = None) -> BoolArray:
        """Say where losses (group, ...) are evidence enough; a mean of alpha or more never is.

        Arguments:
            losses: The loss of each group from 0 to 1, at each of several thresholds.
            counted: Which groups are bet on at each of them; all where None.
        """
        alpha, delta = float(self.alpha), float(self.delta)
        takes_part = np.ones(losses.shape) if counted is None else counted.astype(float)
        left = takes_part.sum(axis=0)
        capital = np.ones(left.shape)
        square, seen = np.full(left.shape, 1 - alpha), np.full(left.shape, 1 / alpha)
        goal = (1 + SLACK) / delta
        with np.errstate(divide="ignore", over="ignore"):
            for v in golden_order(len(losses)):
                growth = np.log(np.maximum(goal / capital, 1.0)) / np.maximum(left, 1.0)
                bet = np.sqrt(2 * growth * seen / square)
                # Never less than what reaches the goal if no group loses anything any more.
                bet = np.minimum(np.maximum(bet, np.expm1(growth) / alpha), 1 / (1 - alpha))
                gain = takes_part[v] * (alpha - losses[v])
                capital *= 1 + bet * gain
                square += gain**2
                seen += takes_part[v]
                left -= takes_part[v]
        is_less = (takes_part * (alpha - losses)).sum(axis=0) > 0
        return np.asarray((capital >= 1 / delta) & is_less)


def golden_order(groups: int) -> NDArray[np.int64]:
    """Return the order in which groups are bet on, whatever order they were numbered in.

    Example:
        >>> golden_order(5)
        array([0, 2, 4, 1, 3])
    """
    return np.argsort(np.arange(groups) * GOLDEN % 1, kind="stable")


def lowest_certified(
    scores: FloatArray, unit: NDArray[np.int64], weight: FloatArray, bets: Bets
) -> float:
    r"""Return the smallest score from which on all larger ones leave a certified loss.

    The loss of a group at :math:`q` is the weight of its scores above :math:`q`.

    Arguments:
        scores: Calibration scores (case,).
        unit: The group of each, numbered from 0.
        weight: What each weighs in the loss of its group.
        bets: What certifies losses.

    Example:
        >>> scores, unit = np.arange(1.0, 301.0), np.arange(300) % 30
        >>> lowest_certified(scores, unit, np.full(300, 0.1), Bets(alpha=0.1, delta=0.1))
        292.0
    """
    groups = int(unit.max()) + 1
    if not bets.can_certify(groups):
        return math.inf
    order = np.argsort(scores, kind="stable")[::-1]
    # Equal scores share a column, and are above the scores of the columns after it only.
    distinct, column = np.unique(-np.asarray(scores)[order], return_inverse=True)
    above = np.cumsum(np.bincount(column, weights=weight[order])) / groups
    columns = 1 + int(np.searchsorted(above, float(bets.alpha)))
    step = max(1, NUMBERS // groups)
    losses, lowest = np.zeros((groups, 1)), math.inf
    for start in range(0, min(columns, len(distinct)), step):
        stop = min(start + step, columns, len(distinct))
        block = np.zeros((groups, stop - start))
        here = (column >= start) & (column < stop - 1)
        np.add.at(block, (unit[order[here]], column[here] + 1 - start), weight[order[here]])
        block = losses + np.cumsum(block, axis=1)
        certified = bets.certify(block)
        passed = int(certified.argmin()) if not certified.all() else len(certified)
        lowest = -float(distinct[start + passed - 1]) if passed else lowest
        if passed < len(certified):
            break
        losses = block[:, -1:].copy()
        last = column == stop - 1
        np.add.at(losses[:, 0], unit[order[last]], weight[order[last]])
    return lowest
