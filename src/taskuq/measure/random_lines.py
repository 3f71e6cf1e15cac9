"""Lines at random beside those that are there."""

from __future__ import annotations

from typing import Literal

import numpy as np

from taskuq.interval import BoolArray

Rule = Literal["inverse-distance", "uniform"]


def with_random_lines(
    mask: BoolArray, count: int, rule: Rule, rng: np.random.Generator
) -> BoolArray:
    """Return a mask with lines at random beside its own.

    Arguments:
        mask: The lines that are there, booleans (line,).
        count: How many there are to be in all.
        rule: How likely a line is: by the inverse of its distance from the centre, or as any other.
        rng: The source of randomness.

    Example:
        >>> int(with_random_lines(np.arange(8) == 4, 3, "inverse-distance", rng).sum())
        3
    """
    free = np.flatnonzero(~mask)
    # The central line is always measured, so no distance is 0.
    weight = np.ones(len(free)) if rule == "uniform" else 1 / np.abs(free - len(mask) / 2).clip(0.5)
    mask = mask.copy()
    mask[rng.choice(free, count - mask.sum(), replace=False, p=weight / weight.sum())] = True
    return mask
