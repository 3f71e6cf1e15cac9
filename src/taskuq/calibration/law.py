"""The exact law of empirical coverage on a test fold, and how large a calibration set must be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from taskuq.calibration.rank import cases_needed, exact_level
from taskuq.errors import InputError
from taskuq.interval import FloatArray

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

    level, unlucky = exact_level(alpha), float(exact_level(delta, "delta"))
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
    failing |= n < cases_needed(level)
    size = int(n[failing][-1]) + 1 if failing.any() else 1
    return math.ceil(size * (1 + (group_size - 1) * icc))
