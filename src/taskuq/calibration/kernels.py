"""Compiled loops for the two places where NumPy would read the samples several times.

numba is optional. Without it the functions in :mod:`taskuq.calibration.summaries` compute the same
summaries with NumPy, some ten times slower on a million cases.
"""

from __future__ import annotations

import numpy as np
from numba import njit

# Sums may be reordered so that they run in vector registers; NaN and infinity never get here.
REORDER = {"reassoc", "contract", "nsz"}


@njit(cache=True, fastmath=REORDER, nogil=True)
def mean_and_variance(outputs, ddof, mean, variance):  # type: ignore[no-untyped-def]  # compiled
    """Fill mean and variance of each row, measured from its first sample."""
    cases, p = outputs.shape
    for i in range(cases):
        first = np.float64(outputs[i, 0])
        total = 0.0
        for j in range(p):
            total += outputs[i, j] - first
        center = total / p
        squares = 0.0
        for j in range(p):
            deviation = (outputs[i, j] - first) - center
            squares += deviation * deviation
        mean[i] = first + center
        variance[i] = squares / max(p - ddof, 1)


@njit(cache=True, nogil=True)
def extremes(outputs, smallest, largest):  # type: ignore[no-untyped-def]  # compiled
    """Fill the smallest values of each row in rising order and the largest in falling order."""
    cases, p = outputs.shape
    low_count, high_count = smallest.shape[1], largest.shape[1]
    for i in range(cases):
        smallest[i, :] = np.inf
        largest[i, :] = -np.inf
        for j in range(p):
            # Each value sinks through the slots by minimum and maximum, without a branch.
            value = np.float64(outputs[i, j])
            for slot in range(low_count):
                kept = min(smallest[i, slot], value)
                value = max(smallest[i, slot], value)
                smallest[i, slot] = kept
            value = np.float64(outputs[i, j])
            for slot in range(high_count):
                kept = max(largest[i, slot], value)
                value = min(largest[i, slot], value)
                largest[i, slot] = kept


@njit(cache=True, nogil=True)
def two_extremes(outputs, smallest, largest):  # type: ignore[no-untyped-def]  # compiled
    """Do as ``extremes`` for two at each end, the case of 95 % intervals from 32 outputs."""
    cases, p = outputs.shape
    for i in range(cases):
        low, next_low = np.inf, np.inf
        high, next_high = -np.inf, -np.inf
        for j in range(p):
            value = np.float64(outputs[i, j])
            next_low = min(next_low, max(low, value))
            low = min(low, value)
            next_high = max(next_high, min(high, value))
            high = max(high, value)
        smallest[i, 0], smallest[i, 1] = low, next_low
        largest[i, 0], largest[i, 1] = high, next_high
