"""Nested sampling masks: each round keeps the lines of the rounds before it and adds some."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from taskuq.errors import InputError
from taskuq.interval import BoolArray
from taskuq.measure.centre import center_lines
from taskuq.measure.mask_files import read_masks
from taskuq.measure.random_lines import Rule, with_random_lines
from taskuq.protocols import Measure
from taskuq.words import MRI, Words

# The paper's k-space has so many columns; for those its later rounds widen the centre by so much.
_SIZE, _ACS_STEP = 320, 8

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


def nested_masks(
    width: int,
    accelerations: Sequence[float],
    *,
    rng: np.random.Generator,
    rule: Rule = "inverse-distance",
    acs: Sequence[int] | None = None,
    density: float | None = None,
    sharpness: float = 8.0,
) -> BoolArray:
    r"""Nested masks (round, width) for any decreasing accelerations; True is measured.

    The first round is a GRO mask. Each later round adds the lines of a wider centre and then
    random lines, until :math:`N / R` lines are measured:

    .. math:: M_k = M_{k-1} \cup \text{centre}(w_k) \cup S_k, \qquad |M_k| = N / R_k

    :math:`N` is the width, :math:`R_k` the acceleration, :math:`w_k` the width of the centre
    (autocalibration signal, ACS). The lines of :math:`S_k` are drawn without replacement from
    those left, with weights :math:`1 / |\ell - N/2|` (``"inverse-distance"``, as the paper says)
    or equal ones (``"uniform"``, as its published masks look).

    Arguments:
        width: The number of k-space columns :math:`N`.
        accelerations: :math:`R`, decreasing, larger than or equal to 1.
        rng: Where the random lines come from.
        rule: How the random lines are drawn.
        acs: The width of the centre in each round; 0 asks for none. By default the first round
            has what GRO gives and round :math:`k = 2, 3, \dots` has :math:`8 k` lines for each 320
            columns (16, 24, 32 in the paper), or as many as fit.
        density: The GRO density :math:`s`; by default 15/16 of the first acceleration, the paper's
            15 at R = 16.
        sharpness: The GRO sharpness :math:`\alpha`.

    Example:
        >>> masks = nested_masks(320, (16, 8, 4, 2), rng=rng)
        >>> masks.sum(axis=1)
        array([ 20,  40,  80, 160])
        >>> bool((masks[1:] >= masks[:-1]).all())
        True
    """
    lines = line_counts(width, accelerations)
    if rule not in ("inverse-distance", "uniform"):
        raise InputError(f"the rule is {rule!r}; choose 'inverse-distance' or 'uniform'")
    widths = _acs_widths(width, lines, acs)
    if density is None:
        density = max(1.0, 15 / 16 * accelerations[0])

    mask = gro_mask(width, lines[0], density=density, sharpness=sharpness)
    masks = [_with_center(mask, widths[0], lines[0])]
    for count, center in zip(lines[1:], widths[1:], strict=True):
        if acs is None:
            center = _widest_center(masks[-1], center, count)
        mask = masks[-1] | center_lines(width, center)
        if mask.sum() > count:
            raise InputError(
                f"{count} of {width} lines cannot hold a centre of {center} lines beside those "
                "already measured; give a narrower acs or a lower acceleration"
            )
        masks.append(with_random_lines(mask, count, rule, rng))
    return np.stack(masks)


def published_masks(accelerations: Sequence[float] = (16, 8, 4, 2)) -> BoolArray:
    """The masks (round, 320) the paper used, at R = 16, 8, 4 and 2; True is measured.

    References:
        Wen, Ahmad, Schniter, Task-Driven Uncertainty Quantification in Inverse Problems via
        Conformal Prediction, ECCV 2024.

    Arguments:
        accelerations: Which of 16, 8, 4, 2 (and 1, everything measured), in decreasing order.

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


@dataclass(frozen=True)
class MaskConfig:
    """The masks of the rounds; training draws one of them for each case and epoch.

    Arguments:
        accelerations: R of the rounds, decreasing.
        published: Whether to take the paper's masks (320 columns; 16, 8, 4, 2).
        rule: How random lines are drawn where masks are made.
        seed: Where they come from.
        file: What ``taskuq masks`` wrote, e.g. an order that was learned; its masks are taken.

    Example:
        >>> MaskConfig().masks(320).sum(axis=1)
        array([ 20,  40,  80, 160])
    """

    accelerations: tuple[float, ...] = (16.0, 8.0, 4.0, 2.0)
    published: bool = False
    rule: Rule = "inverse-distance"
    seed: int = 0
    file: Path | None = None

    def __post_init__(self) -> None:
        if self.published and self.file is not None:
            raise InputError("published masks and masks of a file are asked for; choose one")

    @property
    def round_names(self) -> None:
        """R says all."""
        return None

    @property
    def words(self) -> Words:
        """What cases, groups, pictures and measurements are called."""
        return MRI

    def masks(self, width: int) -> BoolArray:
        """The masks, booleans (round, width)."""
        if self.file is not None:
            return read_masks(self.file, self.accelerations, width)
        if self.published:
            if width != 320:
                raise InputError(f"images have {width} columns; the published masks have 320")
            return published_masks(self.accelerations)
        rng = np.random.default_rng(self.seed)
        return nested_masks(width, self.accelerations, rng=rng, rule=self.rule)

    def scanner(self, width: int, *, noise: float, seed: int) -> Measure:
        """The scanner of coil images of a width."""
        from taskuq.measure.mri import MultiCoilMRI  # masks need NumPy alone

        return MultiCoilMRI(self.masks(width), self.accelerations, noise=noise, seed=seed)


def line_counts(width: int, accelerations: Sequence[float]) -> list[int]:
    """How many lines each round measures; refuse accelerations that do not each add one.

    Example:
        >>> line_counts(128, (16, 8))
        [8, 16]
    """
    if len(accelerations) == 0 or min(accelerations) < 1:
        raise InputError(f"accelerations are {list(accelerations)}; give numbers of at least 1")
    lines = [round(width / R) for R in accelerations]
    if lines[0] < 1 or any(b <= a for a, b in pairwise(lines)):
        raise InputError(
            f"accelerations {list(accelerations)} of {width} lines measure {lines} lines; give "
            "decreasing accelerations that each add a line"
        )
    return lines


def _acs_widths(width: int, lines: list[int], acs: Sequence[int] | None) -> list[int]:
    if acs is None:
        scaled = [round(_ACS_STEP * (k + 1) * width / _SIZE) for k in range(len(lines))]
        return [0, *(min(w, n // 2) for w, n in zip(scaled[1:], lines[1:], strict=True))]
    if len(acs) != len(lines) or any(not 0 <= w <= n for w, n in zip(acs, lines, strict=False)):
        raise InputError(
            f"acs is {list(acs)} for rounds of {lines} lines; give one width for each round, no "
            "larger than its number of lines"
        )
    return list(acs)


def _widest_center(mask: BoolArray, center: int, count: int) -> int:
    while (mask | center_lines(len(mask), center)).sum() > count:
        center -= 1
    return center


def _with_center(mask: BoolArray, center: int, count: int) -> BoolArray:
    """Widen the centre of the first mask; its lines just outside the centre make room."""
    box = center_lines(len(mask), center)
    outside = np.flatnonzero(mask & ~box)
    inside_out = outside[np.argsort(np.abs(outside - len(mask) // 2), kind="stable")]
    mask = mask | box
    mask[inside_out[: mask.sum() - count]] = False
    return mask
