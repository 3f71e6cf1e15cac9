"""The four masks of the paper, from their published lists of lines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taskuq.errors import InputError
from taskuq.interval import BoolArray
from taskuq.measure.gro import gro_lines

_SIZE = 320

# No generator and no seed of the later rounds exist: the lines each round adds are data.
_NEW_LINES = {
    16: gro_lines(_SIZE, 20),
    8: [
        *(32, 39, 55, 72, 88, 103, 111, 118, 132, 148, 152, 153, 155, 165, 167, 173, 186),
        *(225, 269, 311),
    ],
    4: [
        *(9, 31, 35, 38, 47, 56, 61, 75, 82, 101, 116, 147, 149, 150, 168, 170, 171, 182, 184),
        *(193, 199, 212, 213, 215, 218, 228, 239, 244, 247, 249, 259, 268, 276, 286, 287, 298),
        *(307, 312, 313, 315),
    ],
    2: [
        *(3, 4, 7, 10, 15, 21, 22, 24, 28, 29, 34, 36, 42, 46, 63, 65, 69, 74, 76, 77, 83, 87),
        *(90, 91, 92, 95, 98, 106, 109, 113, 114, 117, 121, 129, 134, 139, 143, 145, 146, 172),
        *(174, 175, 178, 189, 190, 191, 192, 200, 206, 208, 210, 216, 219, 229, 240, 241, 242),
        *(243, 245, 246, 250, 253, 258, 260, 261, 267, 270, 272, 275, 283, 290, 291, 292, 295),
        *(297, 299, 308, 314, 318, 319),
    ],
}


def published_masks(accelerations: Sequence[float] = (16, 8, 4, 2)) -> BoolArray:
    """The masks the paper used, 320 columns wide, at R = 16, 8, 4 and 2.

    References:
        Wen, Ahmad, Schniter, Task-Driven Uncertainty Quantification in Inverse Problems via
        Conformal Prediction, ECCV 2024.

    Arguments:
        accelerations: Which of 16, 8, 4, 2 (and 1, everything measured), in decreasing order.

    Returns:
        Booleans (round, 320); True is measured.

    Example:
        >>> published_masks().sum(axis=1)
        array([ 20,  40,  80, 160])
    """
    unknown = [R for R in accelerations if R not in (*_NEW_LINES, 1)]
    if unknown or list(accelerations) != sorted(set(accelerations), reverse=True):
        raise InputError(
            f"accelerations are {list(accelerations)}; the published masks are for 16, 8, 4, 2 "
            "(and 1), in this order"
        )
    masks = np.zeros((len(accelerations), _SIZE), dtype=bool)
    for mask, R in zip(masks, accelerations, strict=True):
        for rate, lines in _NEW_LINES.items():
            mask[lines] |= rate >= R
    masks[np.asarray(accelerations) == 1] = True
    return masks
