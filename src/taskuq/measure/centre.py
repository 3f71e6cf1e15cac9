"""The middle of k-space, which every mask should hold."""

from __future__ import annotations

import numpy as np

from taskuq.interval import BoolArray


def center_lines(width: int, lines: int) -> BoolArray:
    """The central columns of k-space, as a mask (width,).

    Arguments:
        width: The number of k-space columns.
        lines: How many of them, around column ``width // 2``.

    Example:
        >>> np.flatnonzero(center_lines(320, 9))
        array([156, 157, 158, 159, 160, 161, 162, 163, 164])
        >>> np.flatnonzero(center_lines(320, 4))
        array([158, 159, 160, 161])
    """
    mask = np.zeros(width, dtype=bool)
    start = width // 2 - lines // 2
    mask[start : start + lines] = True
    return mask


def acs_width(mask: BoolArray) -> int:
    """The length of the unbroken run of lines through the middle of a mask, 0 where it is missing.

    Arguments:
        mask: Booleans (width,); True is measured.

    Example:
        >>> acs_width(center_lines(320, 9))
        9
    """
    center = len(mask) // 2
    if not mask[center]:
        return 0
    missing = np.flatnonzero(~np.asarray(mask))
    left = missing[missing < center].max(initial=-1)
    right = missing[missing > center].min(initial=len(mask))
    return int(right - left - 1)
