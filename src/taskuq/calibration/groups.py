"""Quantiles for cases that come in groups: a random case, or most cases, of a new group."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from taskuq.calibration.betting import Bets, lowest_certified
from taskuq.calibration.rank import exact_level
from taskuq.interval import FloatArray


def group_index(group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the groups 0, 1, ... and count the cases of each.

    Example:
        >>> group_index(np.array(["b", "a", "b"]))
        (array([1, 0, 1]), array([1, 2]))
    """
    _, index, sizes = np.unique(group, return_inverse=True, return_counts=True)
    return index, sizes


def hierarchical_quantile(
    scores: FloatArray,
    group: np.ndarray,
    alpha: float | Fraction,
    delta: float | Fraction | None = None,
) -> float:
    r"""Return the score that a random case of a new group exceeds with probability at most alpha.

    With :math:`V` groups of :math:`n_v` cases, the smallest calibration score :math:`q` with

    .. math:: \frac{1 + \sum_v L_v(q)}{V + 1} \le \alpha, \qquad
        L_v(q) = \frac1{n_v} \#\{i : s_{vi} > q\}

    or infinity when :math:`\alpha (V + 1) < 1`. Groups must be exchangeable, and cases within a
    group; every group counts the same, whatever its size. With :math:`\delta` it is the smallest
    score from which on the losses are certified by :class:`~taskuq.calibration.betting.Bets`.

    References:
        Lee, Barber and Willett, Distribution-Free Inference with Hierarchical Data, 2023.

    Arguments:
        scores: Calibration scores (case,).
        group: The group of each case.
        alpha: The error rate.
        delta: For a promise given the calibration set.

    Example:
        >>> scores, group = np.arange(1.0, 41.0), np.repeat(np.arange(20), 2)
        >>> hierarchical_quantile(scores, group, alpha=0.1)
        38.0
        >>> hierarchical_quantile(scores, group, alpha=0.04)  # 20 groups are too few
        inf
    """
    index, sizes = group_index(group)
    if delta is not None:
        return lowest_certified(scores, index, 1 / sizes[index], Bets(alpha, delta))
    allowed = mean_loss_allowed(len(sizes), alpha, delta)
    return math.inf if allowed < 0 else quantile_of_mean_loss(scores, index, sizes, allowed)


def mean_loss_allowed(
    groups: int, alpha: float | Fraction, delta: float | Fraction | None
) -> Fraction:
    """Return how much loss so many groups may add up to; negative where none would do.

    With delta this is a limit only: :class:`~taskuq.calibration.betting.Bets` looks at each loss.
    """
    if delta is None:
        return exact_level(alpha) * (groups + 1) - 1
    return exact_level(alpha) * groups if Bets(alpha, delta).can_certify(groups) else Fraction(-1)


def quantile_of_mean_loss(
    scores: FloatArray, index: np.ndarray, sizes: np.ndarray, allowed: Fraction
) -> float:
    r"""Return the smallest score :math:`q` with :math:`\sum_v L_v(q) \le` ``allowed``, exactly.

    .. math:: L_v(q) = \frac1{n_v} \#\{i : s_{vi} > q\}

    Arguments:
        scores: Calibration scores (case,), of all cases of the groups or of some.
        index: The number of each case's group, from 0.
        sizes: The number :math:`n_v` of cases in each group, those without a score included.
        allowed: The largest sum of losses.

    Example:
        >>> quantile_of_mean_loss(np.array([1.0, 2, 3, 4]), np.array([0, 0, 1, 1]),
        ...                       np.array([2, 2]), Fraction(1, 2))
        3.0
    """
    # Counting in units of 1/lcm keeps the comparison free of rounding.
    common = math.lcm(*(int(n) for n in np.unique(sizes)))
    weight = np.array([common // int(n) for n in sizes], dtype=object)
    if common * len(sizes) < 2**62:
        weight = weight.astype(np.int64)
    order = np.argsort(scores, kind="stable")
    ordered = np.asarray(scores)[order]
    at_most = np.cumsum(weight[index[order]])
    # Tied scores are all at most q: read the cumulative weight at the last of them.
    last = np.searchsorted(ordered, ordered, side="right") - 1
    good = np.nonzero(at_most[-1] - at_most[last] <= math.floor(allowed * common))[0]
    return float(ordered[good[0]]) if good.size else math.inf


def worst_scores(scores: FloatArray, group: np.ndarray, share: float | Fraction) -> FloatArray:
    r"""Return for each group the score that the given share of its cases does not exceed.

    .. math:: S_v = s_{v(k)}, \qquad k = \lceil \mathrm{share} \cdot n_v \rceil

    The conformal quantile of :math:`S_1, \dots, S_V` covers at least that share of the cases of a
    new group with probability at least :math:`1 - \alpha`; share 1 is all of them.

    References:
        Dunn, Wasserman and Ramdas, Distribution-Free Prediction Sets for Two-Layer Hierarchical
        Models, JASA 2022.

    Arguments:
        scores: Calibration scores (case,).
        group: The group of each case.
        share: The share of cases, in (0, 1].

    Example:
        >>> worst_scores(np.array([1.0, 2, 3, 9, 4]), np.array([0, 0, 0, 1, 1]), share=0.6)
        array([2., 9.])
    """
    index, sizes = group_index(group)
    exact = Fraction(str(share))
    ordered = np.lexsort((scores, index))
    starts = np.cumsum(sizes) - sizes
    rank = np.array([math.ceil(exact * int(n)) for n in sizes])
    return np.asarray(np.asarray(scores)[ordered[starts + rank - 1]])
