"""The law of coverage and width over all random splits at once, without simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq.interval import FloatArray

# Ranks less likely than this change no digit of a double.
NEGLIGIBLE = 1e-16
# Bins of the chi-square test are pooled until each expects this many trials.
EXPECTED = 10.0
HONESTLY = (
    "A random split of a fixed set obeys this law whatever the data are: agreement shows that the "
    "code is right, not that new cases are exchangeable with these."
)


@dataclass(frozen=True)
class QuantilePosition:
    r"""Where the quantile of a random calibration fold lies among all :math:`N` ordered scores.

    If the quantile is the :math:`k`-th smallest of :math:`n` calibration scores, its position
    :math:`J` among the :math:`N = n + m` ordered scores has the negative hypergeometric law

    .. math:: \mathbb P(J = j) = \binom{j - 1}{k - 1} \binom{N - j}{n - k} \Big/ \binom{N}{n}

    Given :math:`J = j` exactly :math:`j - k` test scores lie below, and the test fold is a uniform
    choice of that many of the :math:`j - 1` scores below and of the rest above.

    Arguments:
        position: The positions :math:`j` that are not negligible, from 1.
        probability: Their probabilities.
        n_calibration: :math:`n`.
        n_test: :math:`m`.
        rank: :math:`k`.

    Example:
        >>> law = quantile_position(n_calibration=3, n_test=2, rank=2)
        >>> law.position, law.probability.round(12)
        (array([2, 3, 4]), array([0.3, 0.4, 0.3]))
    """

    position: NDArray[np.int64]
    probability: FloatArray
    n_calibration: int
    n_test: int
    rank: int

    @property
    def test_below(self) -> NDArray[np.int64]:
        """How many test scores lie before the position."""
        return self.position - self.rank

    @property
    def test_above(self) -> NDArray[np.int64]:
        """How many test scores lie after the position."""
        return self.n_test - self.test_below

    def coverage(self, ordered: FloatArray, covered_from: FloatArray | None = None) -> Moments:
        """Return mean and sd of the coverage of a test fold, ties included.

        Arguments:
            ordered: All scores in rising order.
            covered_from: The score from which on each case is covered, in rising order; no larger
                than its own score. That score itself where None.

        Example:
            >>> law = quantile_position(n_calibration=3, n_test=2, rank=2)
            >>> law.coverage(np.array([1.0, 2, 3, 4, 5])).mean  # rank / (n + 1)
            0.5
            >>> round(law.coverage(np.array([1.0, 1, 1, 1, 1])).mean, 12)
            1.0
        """
        tied, beyond = self._tied_above(ordered, covered_from)
        above = self.test_above
        share = tied / np.maximum(beyond, 1)
        mean = self.test_below + above * share
        # Of the cases beyond, `tied` are covered; the test fold holds a hypergeometric number of
        # them.
        spread = above * share * (1 - share) * (beyond - above) / np.maximum(beyond - 1, 1)
        return self.total(mean / self.n_test, spread / self.n_test**2)

    def coverage_pmf(
        self, ordered: FloatArray, covered_from: FloatArray | None = None
    ) -> FloatArray:
        """Return the probability that 0, 1, ..., m test cases are covered, ties included.

        Arguments:
            ordered: All scores in rising order.
            covered_from: As for :meth:`coverage`.

        Example:
            >>> law = quantile_position(n_calibration=3, n_test=2, rank=2)
            >>> law.coverage_pmf(np.array([1.0, 2, 3, 4, 5])).round(12)
            array([0.3, 0.4, 0.3])
        """
        tied, beyond = self._tied_above(ordered, covered_from)
        pmf = np.zeros(self.n_test + 1)
        if not tied.any():
            pmf[self.test_below] = self.probability
            return pmf
        for below, above, t, M, probability in zip(
            self.test_below, self.test_above, tied, beyond, self.probability, strict=True
        ):
            extra = np.arange(max(0, above - (M - t)), min(t, above) + 1)
            chance = _log_choose(t, extra) + _log_choose(M - t, above - extra)
            pmf[below + extra] += probability * np.exp(chance - _log_choose(M, above))
        return pmf

    def mean_over_test(self, first: FloatArray, second: FloatArray) -> Moments:
        """Return mean and sd of the test-fold mean of numbers that depend on the position.

        Arguments:
            first: Sums of the numbers at each position: over the cases before it, up to it, and
                over all, (3, position).
            second: The same sums of their squares.

        Example:
            >>> law = quantile_position(n_calibration=3, n_test=2, rank=2)
            >>> of_ones = np.stack([law.position - 1, law.position, np.full(3, 5)]).astype(float)
            >>> law.mean_over_test(2 * of_ones, 4 * of_ones).mean  # a number that is always 2
            2.0
        """
        mean = np.zeros(len(self.position))
        variance = np.zeros(len(self.position))
        N = self.n_calibration + self.n_test
        for total, square, size, taken in (
            (first[0], second[0], self.position - 1, self.test_below),
            (first[2] - first[1], second[2] - second[1], N - self.position, self.test_above),
        ):
            M = np.maximum(size, 1)
            mean += taken * total / M
            deviation = np.maximum(square - total**2 / M, 0.0)
            # A uniform choice of `taken` out of M without replacement.
            variance += taken * (M - taken) / (M * np.maximum(M - 1, 1)) * deviation
        return self.total(mean / self.n_test, variance / self.n_test**2)

    def total(self, mean: FloatArray, variance: FloatArray) -> Moments:
        """Return moments over all positions from those given each of them."""
        p = self.probability
        if not np.isfinite(mean).all():
            return Moments(float("inf"), float("nan"))
        center = float(p @ mean)
        spread = float(p @ (variance + (mean - center) ** 2))
        return Moments(center, math.sqrt(max(spread, 0.0)))

    def _tied_above(
        self, ordered: FloatArray, covered_from: FloatArray | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How many cases beyond the position are covered at it, and how many are beyond in all."""
        at = ordered[self.position - 1]
        starts = ordered if covered_from is None else covered_from
        tied = np.searchsorted(starts, at, side="right") - self.position
        return tied, len(ordered) - self.position


def quantile_position(n_calibration: int, n_test: int, rank: int) -> QuantilePosition:
    """Return the law of the quantile's position; ``rank`` must not exceed ``n_calibration``."""
    n, m, k = n_calibration, n_test, rank
    assert 1 <= k <= n
    j = np.arange(k, k + m + 1)
    ways = _log_choose(j - 1, k - 1) + _log_choose(n + m - j, n - k)
    probability = np.exp(ways - _log_choose(n + m, n))
    kept = probability > NEGLIGIBLE
    # Rounding in the log-gammas is common to all terms; dividing by the sum removes it.
    return QuantilePosition(j[kept], probability[kept] / probability[kept].sum(), n, m, k)


def _log_choose(total: ArrayLike, part: ArrayLike) -> FloatArray:
    from scipy.special import gammaln

    n, k = np.asarray(total, dtype=float), np.asarray(part, dtype=float)
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


@dataclass(frozen=True)
class Moments:
    """A mean and a standard deviation over all splits."""

    mean: float
    sd: float


@dataclass(frozen=True)
class Histogram:
    """How often each number of test cases was covered, against its exact law.

    Arguments:
        covered: Numbers of covered test cases.
        trials: How often each occurred.
        expected: How often each should occur.
        p_value: Of a chi-square test of the two.
    """

    covered: tuple[int, ...]
    trials: tuple[int, ...]
    expected: tuple[float, ...]
    p_value: float
    reading: str = HONESTLY


def coverage_histogram(covered: NDArray[np.int64], pmf: FloatArray) -> Histogram:
    r"""Compare how often each number of test cases was covered with its exact law.

    Neighbouring numbers are pooled until at least 10 trials are expected in each bin; then

    .. math:: \chi^2 = \sum_b (O_b - E_b)^2 / E_b

    has one degree of freedom less than there are bins.

    Arguments:
        covered: The number of covered test cases in each trial.
        pmf: The probability of 0, 1, ..., m covered.

    Example:
        >>> histogram = coverage_histogram(np.array([0] * 30 + [1] * 70), np.array([0.3, 0.7]))
        >>> histogram.p_value
        1.0
    """
    from scipy.special import gammaincc

    trials = len(covered)
    observed = np.bincount(covered, minlength=len(pmf))
    expected = trials * pmf
    bins: list[tuple[float, float]] = []
    count, mass = 0.0, 0.0
    for o, e in zip(observed, expected, strict=True):
        count, mass = count + o, mass + e
        if mass >= EXPECTED:
            bins.append((count, mass))
            count, mass = 0.0, 0.0
    if bins:
        bins[-1] = (bins[-1][0] + count, bins[-1][1] + mass)
    p_value = 1.0
    if len(bins) > 1:
        seen, due = np.array(bins).T
        chi_square = float((np.square(seen - due) / due).sum())
        p_value = float(gammaincc((len(bins) - 1) / 2, chi_square / 2))
    elif not bins and (observed[pmf <= 0] > 0).any():
        p_value = 0.0
    shown = np.nonzero((observed > 0) | (expected >= 0.5))[0]
    low, high = int(shown.min()), int(shown.max())
    return Histogram(
        covered=tuple(range(low, high + 1)),
        trials=tuple(map(int, observed[low : high + 1])),
        expected=tuple(float(e) for e in expected[low : high + 1]),
        p_value=p_value,
    )
