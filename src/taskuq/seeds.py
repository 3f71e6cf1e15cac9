"""Seeds by counting: what a case is given depends on its name and round, not on when it runs."""

from __future__ import annotations

import hashlib


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
