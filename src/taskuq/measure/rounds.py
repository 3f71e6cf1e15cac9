"""Which round an acceleration is."""

from __future__ import annotations

from collections.abc import Sequence

from taskuq.errors import InputError


def round_at(acceleration: float, accelerations: Sequence[float]) -> int:
    """The number of the round of an acceleration, counted from 0; refuse one that is not there.

    Example:
        >>> round_at(4, (8, 4, 2))
        1
    """
    if acceleration not in accelerations:
        raise InputError(
            f"acceleration {acceleration} is not measured here; choose from {list(accelerations)}"
        )
    return list(accelerations).index(acceleration)
