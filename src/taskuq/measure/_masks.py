"""Nested sampling masks and mask files."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from taskuq._io import atomic_write, image_format, open_npz, parse_json, to_json_value
from taskuq.errors import InputError
from taskuq.interval import BoolArray


def center_lines(width: int, lines: int) -> BoolArray:
    """Return the central columns of k-space as a mask (width,)."""
    mask = np.zeros(width, dtype=bool)
    start = width // 2 - lines // 2
    mask[start : start + lines] = True
    return mask


def acs_width(mask: BoolArray) -> int:
    """Return the length of the run of lines through the centre of a mask, or 0."""
    center = len(mask) // 2
    if not mask[center]:
        return 0
    missing = np.flatnonzero(~np.asarray(mask))
    left = missing[missing < center].max(initial=-1)
    right = missing[missing > center].min(initial=len(mask))
    return int(right - left - 1)


def save_masks(
    path: Path,
    masks: BoolArray,
    accelerations: Sequence[float],
    *,
    order: Sequence[int] = (),
    gains: Sequence[float] = (),
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write masks atomically as an .npz file."""
    if path.suffix != ".npz":
        raise InputError(f"the output is {path}; use a name that ends in .npz", code="file.format")
    arrays: dict[str, Any] = {
        "masks": np.asarray(masks, dtype=bool),
        "accelerations": np.asarray(accelerations, dtype=float),
    }
    if len(order):
        arrays |= {"order": np.asarray(order, dtype=np.int64), "gains": np.asarray(gains, float)}
    if provenance is not None:
        arrays["provenance"] = np.array(json.dumps(to_json_value(dict(provenance))))
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    return path


def read_masks(path: Path, accelerations: Sequence[float], width: int | None = None) -> BoolArray:
    """Read the masks (round, line) of the given accelerations from a file."""
    with open_npz(path, "masks") as arrays:
        if not {"masks", "accelerations"} <= set(arrays):
            raise InputError(f"{path} holds no masks; run taskuq masks", code="file.format")
        masks = np.asarray(arrays["masks"])
        rates = np.atleast_1d(arrays["accelerations"]).astype(float).tolist()
    if masks.dtype != bool or masks.ndim != 2 or len(masks) != len(rates):
        text = f"{path} has masks {masks.shape} for {len(rates)} rounds; remake it"
        raise InputError(text, code="file.format")
    if width not in (None, masks.shape[1]):
        raise InputError(f"{path} has {masks.shape[1]} lines, not {width}", code="shape.mismatch")
    if missing := [R for R in accelerations if float(R) not in rates]:
        known = ", ".join(f"{R:g}" for R in rates)
        raise InputError(f"{path} is for R = {known}, not {missing[0]:g}", code="rounds.invalid")
    chosen = masks[[rates.index(float(R)) for R in accelerations]]
    if (chosen[1:] < chosen[:-1]).any():
        raise InputError(f"{path} has masks that do not nest; remake it", code="rounds.invalid")
    return chosen


def mask_fingerprint(masks: BoolArray) -> str:
    return hashlib.sha256(np.asarray(masks, dtype=bool).tobytes()).hexdigest()[:16]


def mask_provenance(path: Path) -> dict[str, Any]:
    with open_npz(path, "masks") as arrays:
        text = str(arrays["provenance"]) if "provenance" in arrays else "{}"
    return dict(parse_json(text))


def plot_masks(
    masks: BoolArray,
    accelerations: Sequence[float],
    path: Path | str,
    order: Sequence[int] = (),
    *,
    what: str = "lines",
) -> Path:
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    strips = len(masks) + (len(order) > 0)
    figure = Figure(figsize=(8, 0.55 * strips + 0.7), layout="constrained")
    axes = figure.subplots(strips, 1, sharex=True, squeeze=False)[:, 0]
    colours = ListedColormap(["#1b1b1b", "#9aa5b1", "#ffd166"])
    before = np.zeros_like(masks[0])
    for ax, mask, R in zip(axes, masks, accelerations, strict=False):
        # 0 not measured, 1 measured in an earlier round, 2 new in this one.
        state = mask.astype(int) + (mask & ~before)
        ax.imshow(state[None], cmap=colours, vmin=0, vmax=2, aspect="auto", interpolation="none")
        ax.set_yticks([])
        ax.set_ylabel(f"R = {R:g}", rotation=0, ha="right", va="center")
        ax.set_title(f"{mask.sum()} {what}", loc="right", fontsize=8, pad=1)
        before = mask
    caption = f"{what} (grey: measured before, yellow: new in this round)"
    if len(order):
        place = np.full(masks.shape[1], np.nan)
        place[list(order)] = np.arange(len(order))
        axes[-1].imshow(place[None], cmap="viridis_r", aspect="auto", interpolation="none")
        axes[-1].set_yticks([])
        axes[-1].set_ylabel("order", rotation=0, ha="right", va="center")
        caption += "; order: light first, dark last"
    axes[-1].set_xlabel(caption)
    with atomic_write(path) as partial:
        figure.savefig(partial, dpi=150, format=image_format(path))
    return Path(path)


Rule = Literal["inverse-distance", "uniform"]


def with_random_lines(mask: BoolArray, n: int, rule: Rule, rng: np.random.Generator) -> BoolArray:
    """Add random lines to a mask until it has ``n`` lines."""
    free = np.flatnonzero(~mask)
    # The central line is always measured, so no distance is 0.
    weight = np.ones(len(free)) if rule == "uniform" else 1 / np.abs(free - len(mask) / 2).clip(0.5)
    mask = mask.copy()
    mask[rng.choice(free, n - mask.sum(), replace=False, p=weight / weight.sum())] = True
    return mask


# Columns of the paper's k-space, and by how many of them its later rounds widen the centre.
_SIZE, _ACS_STEP = 320, 8

# Exponent by which lines of a GRO mask thin out away from the centre.
_SHARPNESS = 8.0


def _gro_lines(width: int, lines: int, *, density: float = 15.0) -> list[int]:
    """Return the sorted columns of a GRO frame; duplicates after rounding are dropped."""
    if not 0 < lines <= width:
        raise InputError(f"lines is {lines}; pass 1 to {width}", code="value.invalid")
    if density < 1:
        raise InputError(f"density is {density}; pass at least 1", code="value.invalid")
    N, P = width, math.ceil(width / density)
    kappa = (N - P) / 2 / (P / 2) ** _SHARPNESS
    i = np.arange(lines)
    # The tiny shift decides positions that fall exactly between two columns.
    u = -P / 2 + i * (P / lines) + 1e-10
    w = u + kappa * np.sign(u) * np.abs(u) ** _SHARPNESS
    x = w + (N / 2 if N % 2 == 0 else (N - 1) / 2)
    columns = np.floor(np.where(x >= N - 0.5, x - N, x) + 0.5).astype(int)
    return sorted({int(c) for c in np.maximum(columns, 0)})


def gro_mask(width: int, lines: int, *, density: float = 15.0) -> BoolArray:
    """Make a golden-ratio offset (GRO) mask with this number of lines, including the central one.

    Args:
        width: Number of columns of k-space.
        lines: Number of sampled columns.
        density: Ratio of the density at the centre to the average density, at least 1.

    Example:
        >>> gro_mask(16, 4, density=2).nonzero()[0]
        array([ 0,  6,  8, 10])
    """
    mask = np.zeros(width, dtype=bool)
    mask[_gro_lines(width, lines, density=density)] = True
    center_out = np.argsort(np.abs(np.arange(width) - width // 2), kind="stable")
    if not mask[width // 2] and mask.sum() == lines:
        mask[center_out[mask[center_out]][0]] = False
    # The central line is the first of the free ones when it is free.
    mask[center_out[~mask[center_out]][: lines - mask.sum()]] = True
    return mask


# No generator and no seed of the later rounds exist: the lines each round adds are data.
_NEW_LINES = {
    16: _gro_lines(_SIZE, 20),
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
) -> BoolArray:
    """Make nested masks (round, width) for decreasing accelerations; True is sampled.

    The first round is a GRO mask; later rounds widen its centre and add random lines.

    Args:
        width: Number of columns of k-space.
        accelerations: R of each round, decreasing.
        rng: Generator for the random lines.
        rule: Density of random lines.
        acs: Number of fully sampled central columns of each round; default: increasing with the
            rounds.
        density: Density of the GRO mask; default: the paper's.

    Example:
        >>> nested_masks(32, (8, 4), rng=np.random.default_rng(0)).sum(axis=1)
        array([4, 8])
    """
    lines = line_counts(width, accelerations)
    if rule not in ("inverse-distance", "uniform"):
        text = f"the rule is {rule!r}; choose 'inverse-distance' or 'uniform'"
        raise InputError(text, code="choice.unknown")
    if acs is None:
        scaled = [round(_ACS_STEP * (k + 1) * width / _SIZE) for k in range(len(lines))]
        widths = [0, *(min(w, n // 2) for w, n in zip(scaled[1:], lines[1:], strict=True))]
    else:
        widths = list(acs)
    if len(widths) != len(lines) or any(
        not 0 <= w <= n for w, n in zip(widths, lines, strict=True)
    ):
        given = f"acs is {widths} for rounds of {lines} lines"
        raise InputError(f"{given}; pass as many or fewer for each", code="rounds.invalid")
    if density is None:
        density = max(1.0, 15 / 16 * accelerations[0])

    first, box = gro_mask(width, lines[0], density=density), center_lines(width, widths[0])
    # Widening its centre removes its lines just outside the centre.
    outside = np.flatnonzero(first & ~box)
    inside_out = outside[np.argsort(np.abs(outside - width // 2), kind="stable")]
    first |= box
    first[inside_out[: first.sum() - lines[0]]] = False
    masks = [first]
    for count, center in zip(lines[1:], widths[1:], strict=True):
        mask = masks[-1] | center_lines(width, center)
        while acs is None and mask.sum() > count:
            center -= 1
            mask = masks[-1] | center_lines(width, center)
        if mask.sum() > count:
            given = f"{count} lines cannot hold earlier ones and a centre of {center}"
            raise InputError(f"{given}; use a narrower acs", code="rounds.invalid")
        masks.append(with_random_lines(mask, count, rule, rng))
    return np.stack(masks)


def published_masks(accelerations: Sequence[float] = (16, 8, 4, 2)) -> BoolArray:
    """Return the masks (round, 320) of the paper, at R = 16, 8, 4 and 2; True is sampled.

    Example:
        >>> published_masks((16, 8)).sum(axis=1)
        array([20, 40])
    """
    unknown = [R for R in accelerations if R not in (*_NEW_LINES, 1)]
    if unknown or list(accelerations) != sorted(set(accelerations), reverse=True):
        given = f"accelerations are {list(accelerations)}"
        raise InputError(f"{given}; choose of 16, 8, 4, 2, 1 in this order", code="rounds.invalid")
    masks = np.zeros((len(accelerations), _SIZE), dtype=bool)
    for mask, R in zip(masks, accelerations, strict=True):
        for rate, lines in _NEW_LINES.items():
            mask[lines] |= rate >= R
    masks[np.asarray(accelerations) == 1] = True
    return masks


def line_counts(width: int, accelerations: Sequence[float]) -> list[int]:
    """Return the number of lines of each round."""
    if len(accelerations) == 0 or min(accelerations) < 1:
        text = f"accelerations are {list(accelerations)}; pass at least 1"
        raise InputError(text, code="rounds.invalid")
    lines = [round(width / R) for R in accelerations]
    if lines[0] < 1 or any(b <= a for a, b in pairwise(lines)):
        given = f"accelerations {list(accelerations)} measure {lines} of {width} lines"
        raise InputError(f"{given}; each must add a line", code="rounds.invalid")
    return lines
