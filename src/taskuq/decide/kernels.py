"""Compiled replay of stopped scans; :mod:`taskuq.decide.replay` has the same in NumPy."""

from __future__ import annotations

import numpy as np
from numba import njit

from taskuq.calibration.link import TAIL
from taskuq.evaluation.kernels import fill_test_fold

EDGE = float(np.log((1 - TAIL) / TAIL))


@njit(inline="always")
def _inverse(w, is_logit, low, high):  # type: ignore[no-untyped-def]  # compiled
    if not is_logit:
        return w
    inner = min(max(w, -EDGE), EDGE)
    t = 1 / (1 + np.exp(-inner)) + (w - inner) * (TAIL * (1 - TAIL))
    return low + (high - low) * t


@njit(cache=True, nogil=True)
def _report(  # type: ignore[no-untyped-def]  # compiled
    k, i, q, targets, low, high, scale, floor, ceiling, window_from, is_logit, link_low, link_high,
):  # fmt: skip
    """Width, and distance of the target from the centre; the largest over tasks."""
    width = 0.0
    error = 0.0
    for task in range(low.shape[1]):
        bottom = floor[k, task, i]
        top = ceiling[k, task, i]
        if q < window_from[k, task]:
            a = low[k, task, i] - q * scale[k, task, i]
            b = high[k, task, i] + q * scale[k, task, i]
            logit = is_logit[k, task]
            lower = _inverse(a, logit, link_low[k, task], link_high[k, task])
            upper = _inverse(b, logit, link_low[k, task], link_high[k, task])
            # Beyond the window the report is its nearest end.
            bottom, top = min(max(bottom, lower), top), max(min(top, upper), bottom)
        width = max(width, top - bottom)
        if np.isinf(bottom):
            off = abs(targets[k, task, i] - top)
        elif np.isinf(top):
            off = abs(targets[k, task, i] - bottom)
        else:
            off = abs(targets[k, task, i] - (bottom + top) / 2)
        error = max(error, off)
    return width, error


@njit(cache=True, nogil=True)
def _kept(fold, covered, enough):  # type: ignore[no-untyped-def]  # compiled
    """Count the test units of which enough cases are covered."""
    total = 0.0
    for unit in range(fold.size):
        if fold[unit] and covered[unit] >= enough[unit]:
            total += 1.0
    return total


@njit(cache=True, nogil=True)
def replay(  # type: ignore[no-untyped-def]  # compiled
    seed, trial_numbers, units, n_test, byte_threshold, unit_of_case, group_of_case, groups, weight,
    thresholds, lowest, largest, covered_from, targets, low, high, scale, floor, ceiling,
    window_from, is_logit, link_low, link_high, allowance, cost, enough, sums,
):  # fmt: skip
    """Replay every test case of every trial and add up what happened."""
    rounds, _, cases = low.shape
    words = np.empty(-(-units // 8), np.uint64)
    fold = np.empty(units, np.uint8)
    worst = np.empty(groups)
    covered = np.empty(units)
    by_unit = unit_of_case.size > 0
    whole_group = allowance.size > 0
    for t in range(trial_numbers.size):
        fill_test_fold(seed, trial_numbers[t], units, n_test, byte_threshold, words, fold)
        worst[:] = -1.0
        covered[:] = 0.0
        for i in range(cases):
            unit = unit_of_case[i] if by_unit else i
            if not fold[unit]:
                continue
            w = weight[i]
            stopped = rounds
            for k in range(rounds):
                q = thresholds[k, t]
                if whole_group:
                    if q < allowance[k, unit]:
                        stopped = k
                        break
                elif lowest[k, i] <= q and q < largest[k, i]:
                    stopped = k
                    break
            hit = 1.0
            if stopped < rounds:
                k = stopped
                q = thresholds[k, t]
                hit = 1.0 if covered_from[k, i] <= q else 0.0
                width, error = _report(
                    k, i, q, targets, low, high, scale, floor, ceiling, window_from, is_logit,
                    link_low, link_high,
                )  # fmt: skip
                sums[2, t] += w
                sums[3, t] += w * hit
                sums[4, t] += w * width
                sums[5, t] += w * error
                sums[11 + k, t] += w
                sums[11 + rounds + k, t] += w * hit
                worst[group_of_case[i]] = max(worst[group_of_case[i]], error)
            sums[0, t] += w * cost[stopped]
            sums[1, t] += w * hit
            sums[9, t] += cost[stopped]
            sums[10, t] += 1.0
            covered[unit] += hit
        for g in range(groups):
            if worst[g] >= 0:
                sums[6, t] += worst[g]
                sums[7, t] += 1.0
        sums[8, t] = _kept(fold, covered, enough) if enough.size > 0 else sums[1, t]
