"""Exact conformal ranks, betting bounds, coverage law."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray

FEW = 10_000


def exact_alpha(alpha: float | Fraction, name: str = "alpha") -> Fraction:
    """Read an error rate as the decimal number that was written, not as its nearest float.

    Arguments:
        alpha: A rate strictly between 0 and 1.
        name: What to call it in the error.

    Example:
        >>> exact_alpha(0.05)
        Fraction(1, 20)
    """
    if isinstance(alpha, Fraction) and 0 < alpha < 1:
        return alpha
    try:
        # Text is refused: it may hide an exponent that takes for ever to write out.
        level = Fraction(str(alpha)) if isinstance(alpha, Real) else Fraction(0)
    except ValueError:
        level = Fraction(0)
    if not 0 < level < 1:
        raise InputError(f"{name} must lie strictly between 0 and 1, got {alpha}")
    return level


def coverage_rank(n_cal: int, alpha: float | Fraction) -> int:
    r"""Rank of the calibration score that bounds a new score with probability 1 - alpha.

    .. math:: k = \lceil (1 - \alpha)(n + 1) \rceil

    A new exchangeable score is at most the :math:`k`-th smallest of :math:`n` with
    probability at least :math:`1 - \alpha`. If :math:`k > n` no finite bound exists.

    References:
        Lei et al., Distribution-Free Predictive Inference for Regression, JASA 2018.

    Arguments:
        n_cal: The number of calibration cases :math:`n`.
        alpha: The error rate :math:`\alpha`, strictly between 0 and 1.

    Example:
        >>> coverage_rank(1531, alpha=0.05)
        1456
        >>> coverage_rank(18, alpha=0.05)  # 19 > 18: too few cases for a finite bound
        19
    """
    # Exact: in floats (1 - 0.45) * 100 exceeds 55 and the ceiling would be 56.
    return math.ceil((1 - exact_alpha(alpha)) * (n_cal + 1))


def min_calibration_size(alpha: float | Fraction) -> int:
    r"""Return the fewest calibration cases for which a finite bound exists.

    .. math:: n \ge 1/\alpha - 1

    Arguments:
        alpha: The error rate, strictly between 0 and 1.

    Example:
        >>> min_calibration_size(0.01), min_calibration_size(0.05)
        (99, 19)
    """
    return math.ceil(1 / exact_alpha(alpha)) - 1


def _pac_rank(n_cal: int, alpha: float | Fraction, delta: float | Fraction) -> int:
    r"""Rank whose bound covers 1 - alpha of all new cases for all but delta of calibration sets.

    Given the calibration set, the coverage of its :math:`k`-th smallest score is at least a
    :math:`\mathrm{Beta}(k, n + 1 - k)` variable. The rank is the smallest with

    .. math:: \mathbb P\{\mathrm{Beta}(k, n + 1 - k) < 1 - \alpha\} \le \delta

    which exists when :math:`n \ge \log\delta / \log(1 - \alpha)`; otherwise the result is
    :math:`n + 1` and no finite bound exists. It needs independent cases, not only exchangeable.

    References:
        Vovk, Conditional Validity of Inductive Conformal Predictors, ACML 2012.

    Arguments:
        n_cal: The number of calibration cases :math:`n`.
        alpha: The error rate, strictly between 0 and 1.
        delta: The probability :math:`\delta` of an unlucky calibration set.

    Example:
        >>> _pac_rank(1531, alpha=0.05, delta=0.1)
        1466
        >>> _pac_rank(44, alpha=0.05, delta=0.1), _pac_rank(45, alpha=0.05, delta=0.1)
        (45, 45)
    """
    from scipy.special import betainc

    level, allowed = float(exact_alpha(alpha)), float(exact_alpha(delta, "delta"))
    # P(Beta < 1 - alpha) falls as k grows, so the smallest k is found by bisection.
    low, high = 1, n_cal + 1
    while low < high:
        k = (low + high) // 2
        if betainc(k, n_cal + 1 - k, 1 - level) <= allowed:
            high = k
        else:
            low = k + 1
    return low


def guaranteed_rank(units: int, alpha: float | Fraction, delta: float | Fraction | None) -> int:
    """Return the rank of the quantile among so many scores, given the calibration set or not.

    Example:
        >>> guaranteed_rank(1531, alpha=0.05, delta=None), guaranteed_rank(1531, alpha=0.05, delta=0.1)
        (1456, 1466)
    """
    return coverage_rank(units, alpha) if delta is None else _pac_rank(units, alpha, delta)


def order_statistic(scores: ArrayLike, rank: int) -> float:
    r"""Return the ``rank``-th smallest score, or infinity when there are fewer scores than that.

    Arguments:
        scores: The calibration scores.
        rank: Counted from 1.

    Example:
        >>> order_statistic([3, 1, 2], 2), order_statistic([3, 1, 2], 4)
        (2.0, inf)
    """
    values = np.asarray(scores, dtype=float).ravel()
    if rank > values.size:
        return math.inf
    if rank < 1:
        return -math.inf
    # Among few, sorting is quicker than selecting, and much so where many tie.
    found = np.sort(values) if values.size < FEW else np.partition(values, rank - 1)
    return float(found[rank - 1])


def conformal_quantile(scores: ArrayLike, alpha: float | Fraction) -> float:
    r"""Return the calibration score that a new score exceeds with probability at most alpha.

    .. math:: \hat q = s_{(k)}, \qquad k = \lceil (1 - \alpha)(n + 1) \rceil

    :math:`\hat q = \infty` when :math:`k > n`. It is an order statistic, never interpolated.

    Arguments:
        scores: The calibration scores (case,).
        alpha: The error rate, strictly between 0 and 1.

    Example:
        >>> conformal_quantile(range(1, 20), alpha=0.05)
        19.0
        >>> conformal_quantile(range(1, 19), alpha=0.05)
        inf
    """
    values = np.asarray(scores, dtype=float).ravel()
    return order_statistic(values, coverage_rank(values.size, alpha))


# The capital aimed at lies above the one needed by this share, which absorbs rounding.
SLACK = 1e-9
# Losses held in memory at a time.
NUMBERS = 4_000_000
# Steps of the golden section through the groups leave no order among their names.
GOLDEN = (math.sqrt(5) - 1) / 2


@final
@dataclass(frozen=True)
class BettingEProcess:
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
        2024; Voracek and Orabona, STaR-BettingEProcess, NeurIPS 2025.

    Arguments:
        alpha: The error rate.
        delta: The probability :math:`\delta` of an unlucky calibration set.

    Example:
        >>> bets = BettingEProcess(alpha=0.1, delta=0.1)
        >>> bets.certify(np.zeros((21, 1))), bets.certify(np.zeros((22, 1)))
        (array([False]), array([ True]))
        >>> bets.certify(np.full((70, 3), [0.05, 0.07, 0.09]))
        array([ True, False, False])
    """

    alpha: float | Fraction
    delta: float | Fraction

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", float(exact_alpha(self.alpha)))
        object.__setattr__(self, "delta", float(exact_alpha(self.delta, "delta")))

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
            for v in _low_discrepancy_order(len(losses)):
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


def _low_discrepancy_order(groups: int) -> NDArray[np.int64]:
    """Return the order in which groups are bet on, whatever order they were numbered in.

    Example:
        >>> _low_discrepancy_order(5)
        array([0, 2, 4, 1, 3])
    """
    return np.argsort(np.arange(groups) * GOLDEN % 1, kind="stable")


def smallest_certified(
    scores: FloatArray, unit: NDArray[np.int64], weight: FloatArray, bets: BettingEProcess
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
        >>> smallest_certified(scores, unit, np.full(300, 0.1), BettingEProcess(alpha=0.1, delta=0.1))
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


# Sizes beyond this are no plan for a calibration set.
LARGEST_SIZE = 50_000_000


@dataclass(frozen=True)
class CoverageLaw:
    r"""The law of the number of covered cases in a test fold, for scores without ties.

    With :math:`n` calibration cases, rank :math:`k` and :math:`m` test cases, all exchangeable,

    .. math:: \#\text{covered} \sim \mathrm{BetaBin}(m,\, k,\, n + 1 - k)

    The same law holds over random splits of *any* fixed set of distinct scores, whatever the data
    are: agreement with it shows that the code is right, not that future cases are exchangeable.

    References:
        Marques F., On the Universal Distribution of the Coverage in Split Conformal Prediction,
        2023.

    Arguments:
        n_calibration: The number of calibration cases :math:`n`.
        rank: The rank :math:`k` of the quantile among the calibration scores.
        n_test: The number of test cases :math:`m`.

    Example:
        >>> law = CoverageLaw(n_calibration=1531, rank=1456, n_test=657)
        >>> f"{law.mean:.5f} {law.sd:.5f}"
        '0.95039 0.01012'
        >>> low, high = law.central(0.99)
        >>> f"{low:.3f} {high:.3f}"
        '0.922 0.974'
    """

    n_calibration: int
    rank: int
    n_test: int

    @property
    def mean(self) -> float:
        """Expected coverage."""
        return min(1.0, self.rank / (self.n_calibration + 1))

    @property
    def sd(self) -> float:
        """Standard deviation of the coverage of one test fold."""
        n, k, m = self.n_calibration, self.rank, self.n_test
        if k > n:
            return 0.0
        return math.sqrt(k * (n + 1 - k) * (n + 1 + m) / (m * (n + 1) ** 2 * (n + 2)))

    @property
    def pmf(self) -> FloatArray:
        """Probability of 0, 1, ..., m covered test cases."""
        from scipy.special import betaln, gammaln

        n, k, m = self.n_calibration, self.rank, self.n_test
        if k > n:
            return np.append(np.zeros(m), 1.0)
        j = np.arange(m + 1)
        choose = gammaln(m + 1) - gammaln(j + 1) - gammaln(m - j + 1)
        return np.asarray(np.exp(choose + betaln(k + j, n + 1 - k + m - j) - betaln(k, n + 1 - k)))

    def central(self, probability: float) -> tuple[float, float]:
        """Return the coverages between which a test fold's coverage lies with that probability."""
        cdf = np.cumsum(self.pmf)
        tail = (1 - probability) / 2
        low = int(np.searchsorted(cdf, tail))
        high = min(int(np.searchsorted(cdf, 1 - tail)), self.n_test)
        return low / self.n_test, high / self.n_test


def calibration_size(
    alpha: float | Fraction,
    epsilon: float,
    delta: float | Fraction,
    *,
    two_sided: bool = True,
    group_size: float = 1.0,
    icc: float = 0.0,
) -> int:
    r"""Return how many calibration cases keep the coverage of one calibration set near its target.

    The coverage of a calibrated bound over all future cases is
    :math:`B_n \sim \mathrm{Beta}(k, n + 1 - k)`. The answer is the smallest :math:`n` from which
    on, for every larger one,

    .. math:: \mathbb P\{|B_n - (1 - \alpha)| \le \varepsilon\} \ge 1 - \delta

    or :math:`\mathbb P\{B_n \ge 1 - \alpha - \varepsilon\} \ge 1 - \delta` if one side matters.
    Cases that come in groups carry less information: the size is multiplied by the design effect
    :math:`1 + (g - 1)\,\mathrm{ICC}`, an approximation.

    Arguments:
        alpha: The error rate.
        epsilon: The deviation :math:`\varepsilon` that is still acceptable.
        delta: The probability :math:`\delta` of a larger one.
        two_sided: Whether too much coverage counts as a deviation.
        group_size: The mean number :math:`g` of cases in a group.
        icc: The correlation of misses within a group.

    Example:
        >>> calibration_size(0.05, epsilon=0.02, delta=0.05)
        442
        >>> calibration_size(0.05, epsilon=0.02, delta=0.05, two_sided=False)
        360
        >>> calibration_size(0.05, epsilon=0.02, delta=0.05, group_size=21.9, icc=0.05)
        904
    """
    from scipy.special import betainc, ndtri

    level, unlucky = exact_alpha(alpha), float(exact_alpha(delta, "delta"))
    if not 0 < epsilon < 1:
        raise InputError(f"epsilon must lie strictly between 0 and 1, got {epsilon}")
    if not (1 <= group_size < math.inf and 0 <= icc <= 1):
        raise InputError(
            f"group_size must be finite, at least 1, and icc in [0, 1], got {group_size} and {icc}"
        )

    a = float(level)
    z = float(ndtri(1 - unlucky / (2 if two_sided else 1)))
    # Twice the normal approximation, and enough lattice steps of size 1/alpha beside it.
    largest = int(2 * z**2 * a * (1 - a) / epsilon**2 + 20 / min(epsilon, a, 1 - a) + 100)
    if largest > LARGEST_SIZE:
        raise InputError(
            f"epsilon={epsilon:g} at alpha={a:g} asks for tens of millions of calibration cases; "
            "choose a larger epsilon"
        )
    n = np.arange(1, largest + 1)
    # Sixteen decimals of alpha times n do not fit 64 bits; Python's integers hold anything.
    fits = level.numerator * (largest + 1) < 2**62
    misses = level.numerator * (n + 1 if fits else (n + 1).astype(object)) // level.denominator
    k = n + 1 - misses.astype(np.int64)
    finite = k <= n
    beta = np.where(finite, n + 1 - k, 1)
    too_low = np.where(finite, betainc(k, beta, max(0.0, 1 - a - epsilon)), 0.0)
    too_high = np.where(finite, 1 - betainc(k, beta, min(1.0, 1 - a + epsilon)), 1.0)
    failing = too_low + (too_high if two_sided else 0.0) > unlucky
    failing |= n < min_calibration_size(level)
    size = int(n[failing][-1]) + 1 if failing.any() else 1
    return math.ceil(size * (1 + (group_size - 1) * icc))


# Where the logit hands over to its tangent: a soft output of 1e-4 is as sure as it gets.
TAIL = 1e-4
