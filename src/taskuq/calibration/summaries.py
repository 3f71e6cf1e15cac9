"""What the scores need of the samples of each case: mean, spread and quantiles."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Sequence

import numpy as np

from taskuq.interval import FloatArray

# Below this many numbers NumPy is quicker than loading the compiled loops.
WORTH_COMPILING = 2_000_000
# Cases summarised at a time by NumPy, so that temporary arrays stay in cache and memory.
BLOCK = 16_384


def compiled(work: int) -> bool:
    """Whether the compiled loops should do ``work`` numbers: numba is there and it pays."""
    return work >= WORTH_COMPILING and importlib.util.find_spec("numba") is not None


def mean_and_variance(outputs: FloatArray, ddof: int = 0) -> tuple[FloatArray, FloatArray]:
    r"""Mean and variance over the samples of each case.

    .. math:: \bar z = \frac1p \sum_j \hat z^{(j)}, \qquad
        \sigma_z^2 = \frac1{p - \mathrm{ddof}} \sum_j (\hat z^{(j)} - \bar z)^2

    Deviations are taken from the first sample, so that identical samples have variance exactly 0.

    Arguments:
        outputs: Task outputs (case, sample).
        ddof: 0 for the paper's population variance, 1 for the unbiased one (0 when :math:`p = 1`).

    Example:
        >>> mean, variance = mean_and_variance(np.array([[0.1, 0.1, 0.1], [0.0, 0.5, 1.0]]))
        >>> mean, variance
        (array([0.1, 0.5]), array([0.        , 0.16666667]))
    """
    cases, p = outputs.shape
    mean, variance = np.empty(cases), np.empty(cases)
    if compiled(outputs.size):
        from taskuq.calibration import kernels

        kernels.mean_and_variance(outputs, ddof, mean, variance)
        return mean, variance
    for block in _blocks(cases):
        deviations = outputs[block].astype(float)
        first = deviations[:, :1].copy()
        deviations -= first
        center = deviations.mean(axis=1, keepdims=True)
        deviations -= center
        mean[block] = (first + center)[:, 0]
        variance[block] = np.einsum("ij,ij->i", deviations, deviations) / max(p - ddof, 1)
    return mean, variance


def sample_quantiles(outputs: FloatArray, levels: Sequence[float]) -> tuple[FloatArray, ...]:
    r"""Empirical quantiles :math:`\hat z(\omega)` of each case, an array (case,) for each level.

    The convention is linear interpolation between order statistics, at position
    :math:`(p - 1)\omega` counted from 0, as the paper's authors compute it.

    Arguments:
        outputs: Task outputs (case, sample).
        levels: The levels :math:`\omega`, each in [0, 1].

    Example:
        >>> sample_quantiles(np.array([[0.0, 1.0, 2.0, 10.0]]), [0.0, 0.5, 0.75])
        (array([0.]), array([1.5]), array([4.]))
    """
    cases, p = outputs.shape
    positions = [level * (p - 1) for level in levels]
    from_below = [math.floor(position) + 2 for position in positions]
    from_above = [p - math.floor(position) for position in positions]
    low = max((b for b, a in zip(from_below, from_above, strict=True) if b <= a), default=0)
    high = max((a for b, a in zip(from_below, from_above, strict=True) if b > a), default=0)
    # Keeping the few smallest and largest in order beats sorting only while they are few.
    if p > 2 and max(low, high) <= 16 and compiled(outputs.size):
        return _quantiles_from_extremes(outputs, positions, min(low, p), min(high, p))
    results = tuple(np.empty(cases) for _ in levels)
    for block in _blocks(cases):
        # Sorting whole rows is vectorised in NumPy and beats its own quantile function.
        ordered = np.sort(outputs[block], axis=1).astype(float)
        for result, position in zip(results, positions, strict=True):
            index = math.floor(position)
            below, above = ordered[:, index], ordered[:, min(index + 1, p - 1)]
            result[block] = _between(below, above, position - index)
    return results


def _quantiles_from_extremes(
    outputs: FloatArray, positions: list[float], low: int, high: int
) -> tuple[FloatArray, ...]:
    from taskuq.calibration import kernels

    cases, p = outputs.shape
    results = tuple(np.empty(cases) for _ in positions)
    for block in _blocks(cases):
        some = outputs[block]
        smallest = np.empty((len(some), low))
        largest = np.empty((len(some), high))
        keep = kernels.two_extremes if low == high == 2 else kernels.extremes
        keep(some, smallest, largest)
        for result, position in zip(results, positions, strict=True):
            index = math.floor(position)
            if index + 2 <= low:
                below, above = smallest[:, index], smallest[:, index + 1]
            else:
                below = largest[:, p - 1 - index]
                above = largest[:, max(p - 2 - index, 0)]
            result[block] = _between(below, above, position - index)
    return results


def _between(below: FloatArray, above: FloatArray, share: float) -> FloatArray:
    """Interpolate with NumPy's own two formulas, so that it and we agree to the last bit."""
    step = above - below
    return np.asarray(below + step * share if share < 0.5 else above - step * (1 - share))


def _blocks(cases: int) -> Iterator[slice]:
    for start in range(0, cases, BLOCK):
        yield slice(start, min(start + BLOCK, cases))
