"""Conformal ranks and quantiles, e-processes for losses, and the law of coverage."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray

FEW = 10_000


def exact_alpha(alpha: float | Fraction, name: str = "alpha") -> Fraction:
    """Return an error rate, or another number in (0, 1), as an exact Fraction."""
    if isinstance(alpha, Fraction) and 0 < alpha < 1:
        return alpha
    try:
        # Text is refused: it may hide an exponent that takes for ever to write out.
        level = Fraction(str(alpha)) if isinstance(alpha, Real) else Fraction(0)
    except ValueError:
        level = Fraction(0)
    if not 0 < level < 1:
        is_rate = name.endswith("alpha") or name == "delta"
        message = f"{name} must be in (0, 1), got {alpha}; pass e.g. {name}=0.05"
        raise InputError(message, code="alpha.invalid" if is_rate else "value.invalid")
    return level


def bound_text(value: float | Fraction, digits: int, *, is_upper: bool = False) -> str:
    """Format a bound with few digits, rounded up for an upper bound, else down."""
    exact = value if isinstance(value, Fraction) else Fraction(str(value))
    rounded = Context(digits, ROUND_CEILING if is_upper else ROUND_FLOOR)
    found = rounded.divide(Decimal(exact.numerator), Decimal(exact.denominator))
    return f"{float(found):.{digits}g}"


def coverage_rank(n_cal: int, alpha: float | Fraction) -> int:
    r"""Return the rank of the calibration score used as the conformal quantile.

    .. math:: k = \lceil (1 - \alpha)(n + 1) \rceil

    A new exchangeable score is at most the :math:`k`-th smallest of :math:`n` calibration scores
    with probability at least :math:`1 - \alpha`. If :math:`k > n`, no finite bound exists.

    References:
        Lei et al., Distribution-Free Predictive Inference for Regression, JASA 2018.

    Args:
        n_cal: Number of calibration cases :math:`n`.
        alpha: Error rate :math:`\alpha` in (0, 1).

    Example:
        >>> coverage_rank(1531, alpha=0.05)
        1456
    """
    # Exact: in floats (1 - 0.45) * 100 exceeds 55 and the ceiling would be 56.
    return math.ceil((1 - exact_alpha(alpha)) * (n_cal + 1))


def min_calibration_size(alpha: float | Fraction) -> int:
    """Return the smallest number of calibration cases that gives a finite quantile."""
    return math.ceil(1 / exact_alpha(alpha)) - 1


def _pac_rank(n_cal: int, alpha: float | Fraction, delta: float | Fraction) -> int:
    """Return the rank that gives coverage 1 - alpha with probability 1 - delta."""
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
    """Return the rank of the calibration score that yields coverage of at least 1 - alpha.

    This holds on average over calibration sets or, with delta, for all but a fraction delta.
    """
    return coverage_rank(units, alpha) if delta is None else _pac_rank(units, alpha, delta)


def order_statistic(scores: ArrayLike, rank: int) -> float:
    """Return the ``rank``-th smallest score, or infinity if there are fewer."""
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

    Args:
        scores: Calibration scores (case,).
        alpha: Error rate in (0, 1).

    Example:
        >>> conformal_quantile(range(1, 20), alpha=0.05)
        19.0
    """
    values = np.asarray(scores, dtype=float).ravel()
    return order_statistic(values, coverage_rank(values.size, alpha))


# The capital aimed at lies above the one needed by this share, which absorbs rounding.
SLACK = 1e-9
# Losses held in memory at a time.
NUMBERS = 4_000_000


@dataclass(frozen=True)
class BettingEProcess:
    """Test, by an e-process, that the mean of losses in [0, 1] is at most alpha."""

    alpha: float | Fraction
    delta: float | Fraction

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", float(exact_alpha(self.alpha)))
        object.__setattr__(self, "delta", float(exact_alpha(self.delta, "delta")))

    def can_certify(self, groups: int) -> bool:
        return (1 - self.alpha) ** groups <= self.delta

    def certify(self, losses: FloatArray, counted: BoolArray | None = None) -> BoolArray:
        alpha, delta = float(self.alpha), float(self.delta)
        takes_part = np.ones(losses.shape) if counted is None else counted.astype(float)
        left = takes_part.sum(axis=0)
        capital = np.ones(left.shape)
        square, seen = np.full(left.shape, 1 - alpha), np.full(left.shape, 1 / alpha)
        goal = (1 + SLACK) / delta
        with np.errstate(divide="ignore", over="ignore"):
            for v in betting_order(len(losses)):
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


def betting_order(units: int) -> NDArray[np.int64]:
    """Return a random order of units that depends only on their number."""
    return np.random.default_rng(units).permutation(units)


def random_order(
    contents: Sequence[bytes], seed: int | np.random.Generator = 0
) -> NDArray[np.int64]:
    """Return a random order of units that does not depend on their names or input order.

    Units are sorted by a digest of their contents, then permuted with a generator whose seed is
    derived from ``seed`` and all digests.
    """
    digests = [hashlib.blake2b(content, digest_size=16).digest() for content in contents]
    ranked = np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)
    key = hashlib.blake2b(b"".join(sorted(digests)), digest_size=16).digest()
    number = int(seed.integers(2**63)) if isinstance(seed, np.random.Generator) else int(seed)
    rng = np.random.default_rng([number, int.from_bytes(key, "little")])
    return np.asarray(ranked[rng.permutation(len(ranked))])


def smallest_certified(
    scores: FloatArray, unit: NDArray[np.int64], weight: FloatArray, bets: BettingEProcess
) -> float:
    """Return the smallest score certified as a quantile, or infinity if there is none."""
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
    r"""Exact (beta-binomial) distribution of empirical coverage.

    With :math:`n` calibration cases, rank :math:`k` and :math:`m` test cases, all exchangeable,

    .. math:: \#\text{covered} \sim \mathrm{BetaBin}(m,\, k,\, n + 1 - k)

    The same law holds over random splits of *any* fixed set of distinct scores. Agreement of random
    splits with it shows that the code is correct, not that future cases are exchangeable.

    References:
        Marques F., On the Universal Distribution of the Coverage in Split Conformal Prediction,
        2023.

    Args:
        n_calibration: Number of calibration cases :math:`n`.
        rank: Rank :math:`k` of the quantile among the calibration scores.
        n_test: Number of test cases :math:`m`.

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
        """Standard deviation of the coverage over the test cases."""
        n, k, m = self.n_calibration, self.rank, self.n_test
        if k > n:
            return 0.0
        return math.sqrt(k * (n + 1 - k) * (n + 1 + m) / (m * (n + 1) ** 2 * (n + 2)))

    @property
    def pmf(self) -> FloatArray:
        """Probabilities of 0, 1, ..., m covered test cases."""
        from scipy.special import betaln, gammaln

        n, k, m = self.n_calibration, self.rank, self.n_test
        if k > n:
            return np.append(np.zeros(m), 1.0)
        j = np.arange(m + 1)
        choose = gammaln(m + 1) - gammaln(j + 1) - gammaln(m - j + 1)
        return np.asarray(np.exp(choose + betaln(k + j, n + 1 - k + m - j) - betaln(k, n + 1 - k)))

    def central(self, probability: float) -> tuple[float, float]:
        """Return the central interval that contains the coverage with the given probability."""
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
    r"""Return the number of calibration cases needed to keep coverage close to 1 - alpha.

    The coverage over all future cases is :math:`B_n \sim \mathrm{Beta}(k, n + 1 - k)`, with rank
    :math:`k` from :func:`coverage_rank`. The result is the smallest :math:`n` such that, for
    :math:`n` and all larger sizes,

    .. math:: \mathbb P\{|B_n - (1 - \alpha)| \le \varepsilon\} \ge 1 - \delta

    or, if ``two_sided`` is False,
    :math:`\mathbb P\{B_n \ge 1 - \alpha - \varepsilon\} \ge 1 - \delta`. For grouped cases, which
    carry less information, this size is multiplied by the design effect
    :math:`1 + (g - 1)\,\mathrm{ICC}`, an approximation.

    Args:
        alpha: Error rate :math:`\alpha`.
        epsilon: Acceptable deviation :math:`\varepsilon`.
        delta: Allowed probability :math:`\delta` of a larger deviation.
        two_sided: True if over-coverage counts as a deviation too.
        group_size: Mean number :math:`g` of cases in a group.
        icc: Intraclass correlation of misses within a group.

    Example:
        >>> calibration_size(0.05, epsilon=0.02, delta=0.05, group_size=21.9, icc=0.05)
        904
    """
    from scipy.special import betainc, ndtri

    level, unlucky = exact_alpha(alpha), float(exact_alpha(delta, "delta"))
    if not 1e-9 <= epsilon < 1:
        raise InputError(f"epsilon must be in [1e-9, 1), got {epsilon}", code="value.invalid")
    if not (1 <= group_size < math.inf and 0 <= icc <= 1):
        message = f"group_size must be at least 1, icc in [0, 1], got {group_size} and {icc}"
        raise InputError(message, code="value.invalid")
    a = float(level)
    z = -float(ndtri(unlucky / (2 if two_sided else 1)))
    # Twice the normal approximation, and enough lattice steps of size 1/alpha on top.
    largest = 2 * z**2 * a * (1 - a) / epsilon**2 + 20 / max(min(epsilon, a, 1 - a), 1e-300) + 100
    if largest > LARGEST_SIZE:
        message = f"epsilon={epsilon:g} at alpha={a:g} needs over {LARGEST_SIZE} cases"
        raise InputError(f"{message}; choose larger values", code="value.invalid")
    n = np.arange(1, int(largest) + 1)
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
