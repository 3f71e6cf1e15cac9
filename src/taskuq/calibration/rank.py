"""Which calibration score bounds a new one: exact ranks, never interpolated."""

from __future__ import annotations

import math
from fractions import Fraction
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike

from taskuq.errors import InputError

FEW = 10_000


def exact_level(alpha: float | Fraction, name: str = "alpha") -> Fraction:
    """Read an error rate as the decimal number that was written, not as its nearest float.

    Arguments:
        alpha: A rate strictly between 0 and 1.
        name: What to call it in the error.

    Example:
        >>> exact_level(0.05)
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
    return math.ceil((1 - exact_level(alpha)) * (n_cal + 1))


def cases_needed(alpha: float | Fraction) -> int:
    r"""Return the fewest calibration cases for which a finite bound exists.

    .. math:: n \ge 1/\alpha - 1

    Arguments:
        alpha: The error rate, strictly between 0 and 1.

    Example:
        >>> cases_needed(0.01), cases_needed(0.05)
        (99, 19)
    """
    return math.ceil(1 / exact_level(alpha)) - 1


def pac_rank(n_cal: int, alpha: float | Fraction, delta: float | Fraction) -> int:
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
        >>> pac_rank(1531, alpha=0.05, delta=0.1)
        1466
        >>> pac_rank(44, alpha=0.05, delta=0.1), pac_rank(45, alpha=0.05, delta=0.1)
        (45, 45)
    """
    from scipy.special import betainc

    level, allowed = float(exact_level(alpha)), float(exact_level(delta, "delta"))
    # P(Beta < 1 - alpha) falls as k grows, so the smallest k is found by bisection.
    low, high = 1, n_cal + 1
    while low < high:
        k = (low + high) // 2
        if betainc(k, n_cal + 1 - k, 1 - level) <= allowed:
            high = k
        else:
            low = k + 1
    return low


def promised_rank(units: int, alpha: float | Fraction, delta: float | Fraction | None) -> int:
    """Return the rank of the quantile among so many scores, given the calibration set or not.

    Example:
        >>> promised_rank(1531, alpha=0.05, delta=None), promised_rank(1531, alpha=0.05, delta=0.1)
        (1456, 1466)
    """
    return coverage_rank(units, alpha) if delta is None else pac_rank(units, alpha, delta)


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
