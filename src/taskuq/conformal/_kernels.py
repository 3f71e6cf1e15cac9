"""Compiled loops (Numba) over splits."""

from __future__ import annotations

import numpy as np
from numba import njit

from taskuq.conformal import _splits as splits

# Sums may be reordered so that they run in vector registers; NaN and infinity never get here.
REORDER = {"reassoc", "contract", "nsz"}
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
    """Write a mask of the test units of one trial into ``fold``; compiled form of ``test_sets``."""
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
    """Return the position of the quantile among the sorted scores, or -1 if there is none."""
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
    """Return the total weight of the test cases from position ``covered`` on."""
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
def run_trials(  # type: ignore[no-untyped-def]  # compiled
    seed, trial_numbers, sizes, unit_of_case, entries, allowed, tested, features, results
):
    """Write the results of all trials into ``results``; compiled form of ``run_splits``."""
    units, n_test, threshold = sizes
    entry_unit, entry_weight, ends_tie = entries
    test_unit, test_weight, covered = tested
    position, test_above, sums = results
    words, fold = np.empty(-(-units // 8), np.uint64), np.empty(units, np.uint8)
    # Test cases as floats: converted once, multiplied many times.
    chosen = np.empty(features.shape[1])
    for t in range(trial_numbers.size):
        fill_test_fold(seed, trial_numbers[t], units, n_test, threshold, words, fold)
        for i in range(chosen.size):
            chosen[i] = fold[unit_of_case[i]] if unit_of_case.size > 0 else fold[i]
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
def sum_table_rows(seed, trial_numbers, sizes, rows, tables, sums):  # type: ignore[no-untyped-def]  # compiled
    """Write the sums of ``tables[k, rows[t]]`` over the test units of trials t into ``sums``."""
    units, n_test, threshold = sizes
    words, fold = np.empty(-(-units // 8), np.uint64), np.empty(units, np.uint8)
    chosen = np.empty(units)
    for t in range(trial_numbers.size):
        fill_test_fold(seed, trial_numbers[t], units, n_test, threshold, words, fold)
        chosen[:] = fold
        for k in range(tables.shape[0]):
            sums[k, t] = _masked_sum(chosen, tables[k, rows[t]])
