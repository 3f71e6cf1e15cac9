"""Random splits by counting: the split of trial t depends on the seed and t alone.

Each trial hashes its number into random bytes. A unit is a test unit where its byte is small; then
uniformly chosen units are moved until the test fold has its size. Given its size such a fold is
uniform among all folds of that size. Two engines, NumPy here and compiled loops in
:mod:`taskuq.evaluation.kernels`, give the same splits bit for bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.rank import exact_level
from taskuq.errors import InputError

GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
FULL = 0xFFFFFFFFFFFFFFFF


def fold_sizes(units: int, share: float = 0.7) -> tuple[int, int]:
    r"""Return the sizes of calibration and test fold, :math:`\lfloor 0.7 n \rfloor` and the rest.

    Arguments:
        units: The number of cases, or of groups.
        share: The share that is used for calibration.

    Example:
        >>> fold_sizes(2188)
        (1531, 657)
    """
    exact = exact_level(share, "share")
    calibration = int(exact * units)
    if not 1 <= calibration < units:
        raise InputError(
            f"{units} units cannot be split into a calibration share of {share:g} and a test fold; "
            "more are needed"
        )
    return calibration, units - calibration


def hash_word(state: int) -> int:
    """Return 64 well-mixed bits of a counter (the finaliser of SplitMix64).

    Example:
        >>> hex(hash_word(GOLDEN))
        '0xe220a8397b1dcdaf'
    """
    z = state & FULL
    z = ((z ^ (z >> 30)) * MIX_1) & FULL
    z = ((z ^ (z >> 27)) * MIX_2) & FULL
    return z ^ (z >> 31)


def trial_state(seed: int, trial: int) -> int:
    """Return the counter at which a trial's random words start."""
    return hash_word(hash_word(seed & FULL) + (trial + 1) * GOLDEN)


def test_folds(
    seed: int, first_trial: int, trials: int, units: int, n_test: int
) -> NDArray[np.uint8]:
    """Return which units are in the test fold of each trial, (trial, unit).

    Arguments:
        seed: The seed of all trials.
        first_trial: The number of the first trial wanted.
        trials: How many.
        units: The number of units to split.
        n_test: The size of each test fold.

    Example:
        >>> folds = test_folds(seed=7, first_trial=0, trials=4, units=10, n_test=3)
        >>> folds.sum(axis=1)
        array([3, 3, 3, 3], dtype=uint64)
        >>> bool((folds[2:] == test_folds(7, 2, 2, 10, 3)).all())  # each trial by itself
        True
    """
    words = -(-units // 8)
    starts = np.array([trial_state(seed, first_trial + t) for t in range(trials)], dtype=np.uint64)
    counter = np.arange(1, words + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    z = starts[:, None] + counter
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
    z = z ^ (z >> np.uint64(31))
    random_bytes = z.astype("<u8").view(np.uint8).reshape(trials, words * 8)[:, :units]
    folds = (random_bytes < byte_threshold(units, n_test)).astype(np.uint8)
    for fold, start in zip(folds, starts, strict=True):
        _settle(fold, int(start), words, n_test)
    return np.asarray(folds)


def byte_threshold(units: int, n_test: int) -> int:
    """Return the byte below which a unit starts in the test fold."""
    return min(255, max(1, (256 * n_test + units // 2) // units))


def _settle(fold: NDArray[np.uint8], start: int, words: int, n_test: int) -> None:
    """Move uniformly chosen units until the test fold has its size."""
    units, count = len(fold), int(fold.sum())
    wanted = 1 if count < n_test else 0
    number = words
    # Products below this remainder would favour some units; such words are skipped.
    unfair = 2**32 % units
    while count != n_test:
        number += 1
        product = (hash_word(start + number * GOLDEN) >> 32) * units
        if (product & 0xFFFFFFFF) < unfair:
            continue
        unit = product >> 32
        if fold[unit] != wanted:
            fold[unit] = wanted
            count += 1 if wanted else -1
