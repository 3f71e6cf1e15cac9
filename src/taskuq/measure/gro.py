"""Golden-ratio offset (GRO) sampling: the lines of the first round."""

from __future__ import annotations

import math

import numpy as np

from taskuq.errors import InputError
from taskuq.interval import BoolArray

_GOLDEN_STEP = 2 / (1 + math.sqrt(5))


def gro_lines(
    width: int, lines: int, *, density: float = 15.0, sharpness: float = 8.0, frame: int = 0
) -> list[int]:
    r"""Sorted columns of a GRO frame as the formula gives them, fewer where several round to one.

    Equispaced positions on a compressed grid are stretched to the whole of k-space, most of all
    at its edge, which leaves the centre dense:

    .. math:: w_i = u_i + \kappa \operatorname{sign}(u_i) |u_i|^{\alpha}, \qquad
        u_i = -\tfrac P2 + \tfrac Pn \big((i + t g) \bmod n\big), \qquad
        \kappa = \frac{(N - P) / 2}{(P / 2)^{\alpha}}

    :math:`N` is the width, :math:`n` the number of lines, :math:`P = \lceil N / s \rceil` the
    compressed width, :math:`s` the density, :math:`\alpha` the sharpness, :math:`t` the frame and
    :math:`g` the golden-ratio step.

    References:
        Joshi et al., Technical Report (v1.0): Pseudo-random Cartesian Sampling for Dynamic MRI,
        2022.

    Arguments:
        width: The number of k-space columns.
        lines: The number of lines :math:`n` to place.
        density: How dense the centre is, at least 1.
        sharpness: How sharp the transition from the centre to the edge is, at least 1.
        frame: The frame; frame 0 is the one that the nested masks use.

    Example:
        >>> gro_lines(320, 20)
        [0, 86, 126, 144, 151, 154, 156, 157, 158, 159, 160, 161, 162, 163, 164, 166, 169, 176,
         194, 234]
        >>> len(gro_lines(320, 40))  # 8 of the 40 positions round to a column already taken
        32
    """
    if not 0 < lines <= width:
        raise InputError(f"{lines} lines of {width} are asked for; ask for 1 to {width} lines")
    if density < 1 or sharpness < 1:
        raise InputError(f"density is {density} and sharpness {sharpness}; both must be at least 1")

    N, P = width, math.ceil(width / density)
    kappa = (N - P) / 2 / (P / 2) ** sharpness
    i = np.arange(lines)
    # The tiny shift decides positions that fall exactly between two columns.
    u = -P / 2 + np.mod(i + frame * _GOLDEN_STEP, lines) * (P / lines) + 1e-10
    w = u + kappa * np.sign(u) * np.abs(u) ** sharpness
    x = w + (N / 2 if N % 2 == 0 else (N - 1) / 2)
    columns = np.floor(np.where(x >= N - 0.5, x - N, x) + 0.5).astype(int)
    return sorted({int(c) for c in np.maximum(columns, 0)})


def gro_mask(
    width: int, lines: int, *, density: float = 15.0, sharpness: float = 8.0, frame: int = 0
) -> BoolArray:
    """A GRO mask (width,) with exactly the asked number of lines, the central line among them.

    Where the formula misses the centre (it can for odd numbers of lines) its nearest line is
    moved there; where positions coincide, the free lines nearest to the centre are added.

    Arguments:
        width: The number of k-space columns.
        lines: The number of lines.
        density: How dense the centre is, at least 1.
        sharpness: How sharp the transition from the centre to the edge is, at least 1.
        frame: The frame.

    Example:
        >>> mask = gro_mask(128, 8)
        >>> np.flatnonzero(mask)
        array([ 0, 55, 62, 63, 64, 65, 66, 73])
    """
    mask = np.zeros(width, dtype=bool)
    mask[gro_lines(width, lines, density=density, sharpness=sharpness, frame=frame)] = True
    center_out = np.argsort(np.abs(np.arange(width) - width // 2), kind="stable")
    if not mask[width // 2] and mask.sum() == lines:
        mask[center_out[mask[center_out]][0]] = False
    # The central line is the first of the free ones when it is free.
    mask[center_out[~mask[center_out]][: lines - mask.sum()]] = True
    return mask
