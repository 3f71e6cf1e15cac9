"""Compiled loops over random splits; :mod:`taskuq.evaluation.trials` has the same in NumPy."""

from __future__ import annotations

import numpy as np
from numba import njit

from taskuq.calibration.kernels import REORDER
from taskuq.evaluation import splits

GOLDEN = np.uint64(splits.GOLDEN)
MIX_1 = np.uint64(splits.MIX_1)
MIX_2 = np.uint64(splits.MIX_2)
LOW = np.uint64(0xFFFFFFFF)


@njit(inline="always")
def _hash(state):  # type: ignore[no-untyped-def]  # compiled
    z = (state ^ (state >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def fill_test_fold(seed, trial, units, n_test, threshold, words, fold):  # type: ignore[no-untyped-def]  # compiled
    """Fill the test fold of one trial, as ``splits.test_folds`` does."""
    start = _hash(_hash(np.uint64(seed)) + np.uint64(trial + 1) * GOLDEN)
    for i in range(words.size):
        words[i] = _hash(start + np.uint64(i + 1) * GOLDEN)
    random_bytes = words.view(np.uint8)
    count = 0
    for i in range(units):
        fold[i] = random_bytes[i] < threshold
        count += fold[i]
    wanted = np.uint8(1) if count < n_test else np.uint8(0)
    number = np.uint64(words.size)
    size = np.uint64(units)
    unfair = (np.uint64(1) << np.uint64(32)) % size
    while count != n_test:
        number += np.uint64(1)
        product = (_hash(start + number * GOLDEN) >> np.uint64(32)) * size
        if (product & LOW) < unfair:
            continue
        unit = np.int64(product >> np.uint64(32))
        if fold[unit] != wanted:
            fold[unit] = wanted
            count += 1 if wanted else -1


@njit(cache=True, nogil=True)
def _scan(entry_unit, entry_weight, ends_tie, fold, allowed):  # type: ignore[no-untyped-def]  # compiled
    """Walk down the ordered scores to the quantile and return its position."""
    above = 0.0
    pending = 0.0
    position = -1
    for e in range(entry_unit.size - 1, -1, -1):
        if ends_tie[e]:
            above += pending
            pending = 0.0
            if above > allowed:
                break
        if not fold[entry_unit[e]]:
            position = e
            pending += entry_weight[e]
    return position


@njit(cache=True, nogil=True)
def _not_covered(test_unit, test_weight, covered, fold):  # type: ignore[no-untyped-def]  # compiled
    """Weigh what of a test fold is not among the first so many that are covered."""
    total = 0.0
    for e in range(test_unit.size - 1, covered - 1, -1):
        if fold[test_unit[e]]:
            total += test_weight[e]
    return total


@njit(cache=True, nogil=True, fastmath=REORDER)
def _masked_sum(chosen, values):  # type: ignore[no-untyped-def]  # compiled
    total = 0.0
    for i in range(values.size):
        total += chosen[i] * values[i]
    return total


@njit(cache=True, nogil=True)
def _fill_chosen(fold, unit_of_case, chosen):  # type: ignore[no-untyped-def]  # compiled
    """Mark the test cases with ones, as floats: converted once, multiplied many times."""
    if unit_of_case.size > 0:
        for i in range(chosen.size):
            chosen[i] = fold[unit_of_case[i]]
    else:
        for i in range(chosen.size):
            chosen[i] = fold[i]


@njit(cache=True, nogil=True)
def _workspace(units, cases):  # type: ignore[no-untyped-def]  # compiled
    """Room for the random words of a trial, its test fold of units, and that of cases."""
    return np.empty(-(-units // 8), np.uint64), np.empty(units, np.uint8), np.empty(cases)


@njit(cache=True, nogil=True)
def run_trials(  # type: ignore[no-untyped-def]  # compiled
    seed,
    trial_numbers,
    units,
    n_test,
    threshold,
    unit_of_case,
    entry_unit,
    entry_weight,
    ends_tie,
    allowed,
    test_unit,
    test_weight,
    covered,
    features,
    position,
    test_above,
    sums,
):
    """Split, find the quantile of each score, and add features over the test cases."""
    words, fold, chosen = _workspace(units, features.shape[1])
    for t in range(trial_numbers.size):
        fill_test_fold(seed, trial_numbers[t], units, n_test, threshold, words, fold)
        _fill_chosen(fold, unit_of_case, chosen)
        for s in range(entry_unit.shape[0]):
            found = _scan(entry_unit[s], entry_weight[s], ends_tie[s], fold, allowed[s, t])
            position[s, t] = found
            test_above[s, t] = 0.0
            if found >= 0:
                test_above[s, t] = _not_covered(
                    test_unit[s], test_weight[s], covered[s, found], fold
                )
        for f in range(features.shape[0]):
            sums[f, t] = _masked_sum(chosen, features[f])


@njit(cache=True, nogil=True)
def sum_table_rows(  # type: ignore[no-untyped-def]  # compiled
    seed, trial_numbers, units, n_test, threshold, rows, tables, sums
):
    """Add, over the test units of each trial, the row of each table that belongs to the trial."""
    words, fold, chosen = _workspace(units, units)
    for t in range(trial_numbers.size):
        fill_test_fold(seed, trial_numbers[t], units, n_test, threshold, words, fold)
        chosen[:] = fold
        for k in range(tables.shape[0]):
            sums[k, t] = _masked_sum(chosen, tables[k, rows[t]])
