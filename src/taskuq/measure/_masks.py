"""Nested sampling masks and mask files."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from operator import ge, gt
from pathlib import Path
from typing import Any, Literal

import numpy as np

from taskuq._io import atomic_write, open_npz, parse_json, to_json_value
from taskuq.errors import InputError
from taskuq.interval import BoolArray


def center_lines(width: int, lines: int) -> BoolArray:
    """Return the central columns of k-space as a mask (width,)."""
    mask = np.zeros(width, dtype=bool)
    start = width // 2 - lines // 2
    mask[start : start + lines] = True
    return mask


def acs_width(mask: BoolArray) -> int:
    """Count the contiguous lines around a mask's centre; return 0 if the centre is not sampled."""
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
        text = f"{path} has masks {masks.shape} for {len(rates)} rounds; write it again"
        raise InputError(text, code="file.format")
    if width not in (None, masks.shape[1]):
        raise InputError(f"{path} has {masks.shape[1]} lines, not {width}", code="shape.mismatch")
    if missing := [R for R in accelerations if float(R) not in rates]:
        known = ", ".join(f"{R:g}" for R in rates)
        raise InputError(f"{path} is for R = {known}, not {missing[0]:g}", code="rounds.invalid")
    chosen = masks[[rates.index(float(R)) for R in accelerations]]
    if (chosen[1:] < chosen[:-1]).any():
        raise InputError(f"{path}: masks are not nested; write it again", code="rounds.invalid")
    return chosen


def mask_fingerprint(masks: BoolArray) -> str:
    return hashlib.sha256(np.asarray(masks, dtype=bool).tobytes()).hexdigest()[:16]


def masks_to_text(masks: BoolArray) -> dict[str, Any]:
    """Return the number of lines and each mask as a hexadecimal string, for provenance."""
    return {"lines": masks.shape[1], "bits": [np.packbits(m).tobytes().hex() for m in masks]}


def masks_from_text(stored: Mapping[str, Any]) -> BoolArray:
    bits = [np.frombuffer(bytes.fromhex(text), np.uint8) for text in stored["bits"]]
    return np.unpackbits(np.stack(bits), axis=1, count=int(stored["lines"])).astype(bool)


def mask_provenance(path: Path) -> dict[str, Any]:
    with open_npz(path, "masks") as arrays:
        text = str(arrays["provenance"]) if "provenance" in arrays else "{}"
    return dict(parse_json(text))


Rule = Literal["inverse-distance", "uniform"]


def with_random_lines(mask: BoolArray, n: int, rule: Rule, rng: np.random.Generator) -> BoolArray:
    free = np.flatnonzero(~mask)
    # The central line is always measured, so no distance is 0.
    weight = np.ones(len(free)) if rule == "uniform" else 1 / np.abs(free - len(mask) / 2).clip(0.5)
    mask = mask.copy()
    mask[rng.choice(free, n - mask.sum(), replace=False, p=weight / weight.sum())] = True
    return mask


# Columns of the paper's k-space; accelerations and fully sampled centres of its rounds.
_SIZE, _RATES, _CENTERS = 320, (16, 8, 4, 2), (9, 16, 24, 32)
_SHARPNESS = 8.0


def _gro_lines(width: int, lines: int, *, density: float, sharpness: float) -> list[int]:
    """Return the sorted columns of a GRO mask, without duplicates after rounding."""
    if not 0 < lines <= width:
        raise InputError(f"lines is {lines}; pass 1 to {width}", code="value.invalid")
    for name, value in (("density", density), ("sharpness", sharpness)):
        if not 1 <= value < math.inf:
            raise InputError(f"{name} is {value}; pass at least 1", code="value.invalid")
    N, P = width, math.ceil(width / density)
    # Half a step more for an odd number of lines puts one of them at the zero frequency.
    u = -P / 2 + (np.arange(lines) + lines % 2 / 2) * (P / lines)
    # The tiny shift decides positions that fall exactly between two columns.
    u += 1e-10
    w = u + (N - P) / 2 * np.sign(u) * np.abs(u / (P / 2)) ** sharpness
    x = w + N // 2
    columns = np.floor(np.where(x >= N - 0.5, x - N, x) + 0.5).astype(int)
    return sorted({int(c) for c in np.maximum(columns, 0)})


def gro_mask(
    width: int,
    lines: int,
    *,
    density: float = 15.0,
    sharpness: float = _SHARPNESS,
    acs: int | None = None,
) -> BoolArray:
    """Make a golden-ratio offset (GRO) mask with a fully sampled centre.

    Args:
        width: Number of columns of k-space.
        lines: Number of sampled columns.
        density: Ratio of the density at the centre to the average density, at least 1.
        sharpness: Exponent, at least 1; larger values make the line density fall more steeply.
        acs: Minimum number of contiguous central columns; default: the paper's 9/20 of ``lines``.

    Example:
        >>> gro_mask(16, 4, density=2).nonzero()[0]
        array([ 0,  7,  8, 10])
    """
    mask = np.zeros(width, dtype=bool)
    mask[_gro_lines(width, lines, density=density, sharpness=sharpness)] = True
    acs = max(1, round(lines * _CENTERS[0] * _RATES[0] / _SIZE)) if acs is None else acs
    if acs > lines:
        raise InputError(f"a centre of {acs} needs more than {lines} lines", code="rounds.invalid")
    box = center_lines(width, max(1, acs))
    center_out = np.argsort(np.abs(np.arange(width) - width // 2), kind="stable")
    # The centre takes the place of the lines next to it; free lines near it take that of others.
    outside = center_out[(mask & ~box)[center_out]]
    mask |= box
    mask[outside[: max(0, mask.sum() - lines)]] = False
    mask[center_out[~mask[center_out]][: lines - mask.sum()]] = True
    return mask


def acs_widths(width: int, accelerations: Sequence[float], lines: Sequence[int]) -> list[int]:
    """Return the number of central lines of each round: the paper's, interpolated in log R."""
    rates = np.log2([*_RATES, 1])
    scaled = np.interp(np.log2(accelerations), rates[::-1], [40, *_CENTERS[::-1]]) * width / _SIZE
    # The first round: 9 of 20 lines; no other has more.
    most = np.asarray(lines) * _CENTERS[0] * _RATES[0] / _SIZE
    scaled = np.minimum([most[0], *scaled[1:]], most).clip(1)
    return [round(c) for c in np.maximum.accumulate(scaled)]


# No generator and no seed of the later rounds exist: the lines each round adds are data.
_NEW_LINES = {
    16: _gro_lines(_SIZE, 20, density=15, sharpness=_SHARPNESS),
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
    seed: int | np.random.Generator,
    rule: Rule = "inverse-distance",
    acs: Sequence[int] | None = None,
    density: float | None = None,
    sharpness: float = _SHARPNESS,
) -> BoolArray:
    """Make nested masks (round, width) for decreasing accelerations; True is sampled.

    The first round is a GRO mask; later rounds widen its centre and add random lines.

    Args:
        width: Number of columns of k-space.
        accelerations: R of each round, decreasing.
        seed: Integer or Generator for the random lines.
        rule: Density of random lines: 'inverse-distance' from the centre, or 'uniform'.
        acs: Number of contiguous central columns of each round; default: 9/20 of the lines in the
            first round, then the paper's 16, 24 and 32 of 320 columns at R = 8, 4 and 2,
            interpolated for other R.
        density: Ratio of central to mean line density in the first mask; default: 15/16 of its R.
        sharpness: Exponent for the first mask; larger values make its density fall more steeply.

    Example:
        >>> nested_masks(32, (8, 4), seed=0).sum(axis=1)
        array([4, 8])
    """
    lines = line_counts(width, accelerations)
    if rule not in ("inverse-distance", "uniform"):
        text = f"the rule is {rule!r}; choose 'inverse-distance' or 'uniform'"
        raise InputError(text, code="choice.unknown")
    widths = acs_widths(width, accelerations, lines) if acs is None else list(acs)
    if len(widths) != len(lines) or min(widths) < 0 or any(map(gt, widths, lines)):
        given = f"acs is {widths} for rounds of {lines} lines"
        raise InputError(f"{given}; pass at most as many per round", code="rounds.invalid")
    if density is None:
        density = max(1.0, 15 / 16 * accelerations[0])
    rng = np.random.default_rng(seed)
    masks = [gro_mask(width, lines[0], density=density, sharpness=sharpness, acs=widths[0])]
    for count, center in zip(lines[1:], widths[1:], strict=True):
        mask = masks[-1] | center_lines(width, center)
        if mask.sum() > count:
            given = f"{count} lines cannot hold the earlier lines and a centre of {center}"
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
        raise InputError(f"{given}; use 16, 8, 4, 2, 1 in this order", code="rounds.invalid")
    masks = np.zeros((len(accelerations), _SIZE), dtype=bool)
    for mask, R in zip(masks, accelerations, strict=True):
        for rate, lines in _NEW_LINES.items():
            mask[lines] |= rate >= R
    masks[np.asarray(accelerations) == 1] = True
    return masks


def line_counts(width: int, accelerations: Sequence[float]) -> list[int]:
    if len(accelerations) == 0 or not all(R >= 1 for R in accelerations):
        text = f"accelerations are {list(accelerations)}; pass at least 1"
        raise InputError(text, code="rounds.invalid")
    lines = [round(width / R) for R in accelerations]
    if lines[0] < 1 or any(map(ge, lines, lines[1:])):
        given = f"accelerations {list(accelerations)} measure {lines} of {width} lines"
        raise InputError(f"{given}; each must add a line", code="rounds.invalid")
    return lines
