"""Does simulated coverage follow its exact law?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taskuq.evaluation.result import Histogram
from taskuq.interval import FloatArray

# Bins of the chi-square test are pooled until each expects this many trials.
EXPECTED = 10.0


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
