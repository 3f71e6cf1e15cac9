"""Compiled scales of calibration folds; :mod:`taskuq.decide.learning` has the same in NumPy."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(inline="always")
def _scale(level, growth, own, typical, degrees, all_degrees):  # type: ignore[no-untyped-def]  # compiled
    return np.sqrt((degrees * (level * growth) + own) / all_degrees) + typical


@njit(cache=True, nogil=True, error_model="numpy")
def learnt(  # type: ignore[no-untyped-def]  # compiled
    value, level, typical, growth, own, degrees, all_degrees, base, base_score, divides, is_risk,
    scale, largest, score,
):  # fmt: skip
    """Fill scales (round, task, case), largest thresholds and scores (round, case) of new cases.

    Where medians are comes as numbers of cases (round, task, 2), and cases as they would be at
    scale 1 (round, task, case).
    """
    rounds, tasks, cases = base.shape
    for k in range(rounds):
        largest[k] = np.inf
        score[k] = -np.inf
        for task in range(tasks):
            a = level[k, task, value[k, task, 0]]
            t = typical[k, task, value[k, task, 1]]
            for i in range(cases):
                u = _scale(a, growth[k, task, i], own[k, task, i], t, degrees, all_degrees)
                scale[k, task, i] = u
                whole, s = base[k, task, i], base_score[k, task, i]
                largest[k, i] = min(largest[k, i], whole / u if divides else whole * u)
                score[k, i] = max(score[k, i], s if is_risk else s / u)


@njit(cache=True, nogil=True, error_model="numpy")
def bracketed(  # type: ignore[no-untyped-def]  # compiled
    kept, unit, low, high, level, typical, growth, own, degrees, all_degrees, base, base_score,
    divides, is_risk, surely, largest, score,
):  # fmt: skip
    """Fill least and largest thresholds, and largest scores, of calibration cases (round, kept).

    Where the ends of medians are comes as numbers of cases (round, task, 2, unit).
    """
    rounds, tasks, _ = base.shape
    for k in range(rounds):
        surely[k] = np.inf
        largest[k] = np.inf
        score[k] = -np.inf
        for task in range(tasks):
            for j in range(kept.size):
                i = kept[j]
                v = unit[i]
                g, w = growth[k, task, i], own[k, task, i]
                a, t = level[k, task, low[k, task, 0, v]], typical[k, task, low[k, task, 1, v]]
                narrow = _scale(a, g, w, t, degrees, all_degrees)
                a, t = level[k, task, high[k, task, 0, v]], typical[k, task, high[k, task, 1, v]]
                wide = _scale(a, g, w, t, degrees, all_degrees)
                whole, s = base[k, task, i], base_score[k, task, i]
                surely[k, j] = min(surely[k, j], whole / narrow if divides else whole * narrow)
                largest[k, j] = min(largest[k, j], whole / wide if divides else whole * wide)
                if is_risk:
                    score[k, j] = max(score[k, j], s)
                else:
                    score[k, j] = max(score[k, j], max(s / narrow, s / wide))
        for j in range(kept.size):
            one, other = surely[k, j], largest[k, j]
            surely[k, j], largest[k, j] = min(one, other), max(one, other)
