"""Seeds by counting: what a case is given depends on its name and round, not on when it runs."""

from __future__ import annotations

import hashlib

_MASK = (1 << 64) - 1


def case_seed(seed: int, case: str, acceleration: float) -> int:
    """Return the seed of the samples of one case in one round.

    It is a hash of the seed, the case and the acceleration, so that batches, workers and the
    order of cases change nothing, and so that a scan draws what a pipeline draws.

    Arguments:
        seed: The seed of the run, or of the scan.
        case: The identity of the case.
        acceleration: The round's acceleration.

    Example:
        >>> case_seed(0, "patient-3-slice-2", 8.0) == case_seed(0, "patient-3-slice-2", 8.0)
        True
        >>> case_seed(0, "patient-3-slice-2", 8.0) == case_seed(0, "patient-3-slice-2", 4.0)
        False
    """
    text = f"{seed}\x00{case}\x00{float(acceleration)!r}"
    # 63 bits: torch and NumPy both take it.
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def mixed_seed(*numbers: int) -> int:
    """Mix whole numbers into one seed of 63 bits; another order gives an unrelated one.

    Arguments:
        numbers: For instance a case's seed, the sample's index and the attempt.

    Example:
        >>> mixed_seed(0, 1) == mixed_seed(0, 1), mixed_seed(0, 1) == mixed_seed(1, 0)
        (True, False)
    """
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        # The finaliser of splitmix64 (Steele et al., OOPSLA 2014) after each number.
        state = (state ^ (number & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state = (state ^ (state >> 31)) + 0x9E3779B97F4A7C15 & _MASK
    return state >> 1
