"""What the page's explorer is given: numbers, and one sheet of pictures for each round."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskuq.interval import FloatArray
from taskuq.report.explorer import Explorer
from taskuq.words import Words

# The first of these (quality, shrinking) at which all pictures fit into the budget is taken.
STEPS = ((84, 1), (72, 1), (60, 1), (48, 1), (80, 2), (64, 2), (48, 2), (64, 4))
BUDGET = 12_000_000
# JPEG works on blocks of 8 x 8; tiles that start on a block do not bleed into each other.
BLOCK = 8
# Pictures of at most so many pixels a side are kept exactly, and shown pixel by pixel.
SMALL = 64


@dataclass(frozen=True)
class Pictures:
    """Compressed pictures of the shown slices.

    Arguments:
        tiles: What each tile of a sheet shows, from the left.
        height: Of a picture.
        width: Of a picture.
        shrink: How many times smaller than the stored pictures these are.
        truth: One picture for each slice.
        rounds: One sheet for each slice and round.
        doubt: The error or spread of each slice that is shown brightest.
    """

    tiles: list[str]
    height: int
    width: int
    shrink: int
    truth: list[str]
    rounds: list[list[str]]
    doubt: list[float]


def explorer_payload(
    explorer: Explorer, numbers: Mapping[str, Any], words: Words
) -> dict[str, Any]:
    """Return all that the explorer needs, as values that JSON can hold.

    Arguments:
        explorer: The stored slices and calibration set.
        numbers: What it computes with: settings, calibration set and families of intervals.
        words: What cases, groups, rounds and pictures are called.
    """
    made = slice_pictures(explorer)
    tasks = [explorer.of(task) for task in range(explorer.tasks)]
    return {
        **numbers,
        "words": words.to_dict()
        | {f"{name}s": words.many(name) for name in ("case", "group", "measurement")},
        "round_names": explorer.labels,
        "lines": _lines(explorer.masks),
        "tiles": made.tiles,
        "size": [made.height, made.width],
        "shrink": made.shrink,
        "is_small": max(made.height, made.width) <= SMALL,
        "slices": [
            {
                "case": str(explorer.case[s]),
                "group": str(explorer.group[s]),
                "label": None if explorer.label is None else str(explorer.label[s]),
                "targets": [float(task.targets[s]) for task in tasks],
                "outputs": [task.outputs[s].astype(float).tolist() for task in tasks],
                "point": None
                if explorer.point_outputs is None
                else [np.asarray(task.point_outputs)[s].astype(float).tolist() for task in tasks],
                "doubt": made.doubt[s],
                "truth": made.truth[s],
                "rounds": made.rounds[s],
                "lines": _lines(explorer.masks, s),
            }
            for s in range(explorer.slices)
        ],
    }


def slice_pictures(explorer: Explorer, budget: int = BUDGET) -> Pictures:
    """Compress the pictures of an explorer.

    Images are shown between 0 (or the truth's minimum, if that is below) and the truth's maximum;
    small ones without loss. Standard deviation and error have a scale
    of their own, the same for both and for all rounds of a slice, so that they can be compared.

    Arguments:
        explorer: The stored slices.
        budget: How many characters all pictures may take; quality gives way first, then size.
    """
    S, H, W = explorer.truth.shape[:3]
    J = 0 if explorer.samples is None else explorer.samples.shape[2]
    tiles = ["estimate"] if explorer.estimate is not None else []
    tiles += ["mean", "sd", "error"]
    tiles += ["point"] if explorer.point is not None else []
    tiles += [f"sample-{j + 1}" for j in range(J)]
    for quality, shrink in STEPS:
        # A few sheets tell what all of them will take, and spare encoding them in vain.
        some = [(s, s % explorer.rounds) for s in range(0, S, max(1, S // 5))]
        probes = [_encoded_slice(explorer, s, quality, shrink, (k,)) for s, k in some]
        if _length(probes) * S * explorer.rounds > budget * len(probes):
            continue
        encoded = [_encoded_slice(explorer, s, quality, shrink) for s in range(S)]
        if _length(encoded) <= budget:
            break
    else:
        encoded = [_encoded_slice(explorer, s, quality, shrink) for s in range(S)]
    height, width = -(-H // shrink), -(-W // shrink)
    pictures = [t for t, _ in encoded], [r for _, r in encoded]
    doubt = [_doubt(explorer, s) for s in range(S)]
    return Pictures(tiles, height, width, shrink, *pictures, doubt)


def _lines(masks: np.ndarray | None, s: int | None = None) -> dict[str, Any] | None:
    """Which lines each round adds, and how many there are: of all slices, or of one by itself."""
    if masks is None or (masks.ndim == 3) != (s is not None):
        return None
    masks = masks if s is None else masks[s]
    before = np.vstack([np.zeros_like(masks[:1]), np.logical_or.accumulate(masks)[:-1]])
    new = [np.flatnonzero(row).tolist() for row in masks & ~before]
    return {"all": masks.shape[1], "new": new}


def _doubt(explorer: Explorer, s: int) -> float:
    """The scale that spread and error of a slice share, over all rounds."""
    both = np.concatenate([explorer.sd[s].astype(np.float32), _error(explorer, s)])
    return float(np.quantile(both, 0.999)) or 1.0


def _error(explorer: Explorer, s: int) -> FloatArray:
    """The errors of the means of a slice (round, height, width), over colours their mean."""
    true = explorer.truth[s].astype(np.float32)
    error = np.abs(explorer.mean[s].astype(np.float32) - true)
    return np.asarray(error.mean(-1) if true.ndim == 3 else error)


def thumbnail(image: FloatArray, low: float, top: float, side: int = 96, quality: int = 70) -> str:
    """Return a small picture as a page embeds it.

    Arguments:
        image: The image.
        low: Which value is black.
        top: Which value is white.
        side: About how large it should be.
        quality: Of the JPEG.
    """
    return _encoded([_grey(image, top, max(1, min(image.shape[:2]) // side), low)], quality)


def _length(encoded: list[tuple[str, list[str]]]) -> int:
    return sum(len(truth) + sum(map(len, sheets)) for truth, sheets in encoded)


def _encoded_slice(
    explorer: Explorer, s: int, quality: int, shrink: int, rounds: Sequence[int] | None = None
) -> tuple[str, list[str]]:
    true = explorer.truth[s].astype(np.float32)
    low, top = brightness(true)
    error, doubt = _error(explorer, s), _doubt(explorer, s)
    sheets = []
    for k in range(explorer.rounds) if rounds is None else rounds:
        images = [] if explorer.estimate is None else [explorer.estimate[s, k]]
        row = [_grey(image, top, shrink, low) for image in (*images, explorer.mean[s, k])]
        row += [_grey(explorer.sd[s, k], doubt, shrink), _grey(error[k], doubt, shrink)]
        images = [] if explorer.point is None else [explorer.point[s, k]]
        images += [] if explorer.samples is None else list(explorer.samples[s, k])
        row += [_grey(image, top, shrink, low) for image in images]
        sheets.append(_encoded(row, quality))
    return _encoded([_grey(true, top, shrink, low)], quality), sheets


def brightness(image: FloatArray) -> tuple[float, float]:
    """Return which values are black and white where an image is shown.

    Example:
        >>> brightness(np.array([0.2, 0.9])), brightness(np.array([-1000.0, -200.0]))
        ((0.0, 0.9), (-1000.0, -200.0))
    """
    low, top = min(0.0, float(image.min())), float(image.max())
    return low, top if top > low else low + 1.0


def _grey(image: FloatArray, top: float, shrink: int, low: float = 0.0) -> np.ndarray:
    """An image in 256 steps, each colour by itself, and smaller."""
    scaled = (np.asarray(image, dtype=np.float32) - low) * (255 / (top - low))
    if shrink > 1:
        H, W = scaled.shape[:2]
        rest = ((0, -H % shrink), (0, -W % shrink), *((0, 0),) * (scaled.ndim - 2))
        scaled = np.pad(scaled, rest, mode="edge")
        parts = [scaled[i::shrink, j::shrink] for i in range(shrink) for j in range(shrink)]
        scaled = sum(parts[1:], parts[0]) / shrink**2
    return np.asarray(np.clip(np.rint(scaled), 0, 255).astype(np.uint8))


def _encoded(tiles: list[np.ndarray], quality: int) -> str:
    from PIL import Image

    H, W = tiles[0].shape[:2]
    if any(tile.ndim == 3 for tile in tiles):
        # What has no colour is grey among what has.
        tiles = [tile if tile.ndim == 3 else np.stack([tile] * 3, axis=-1) for tile in tiles]
    # A picture by itself has nobody to bleed into, and its edge is seen as it is.
    block = BLOCK if len(tiles) > 1 else 1
    pad = ((0, -H % block), (0, -W % block), *((0, 0),) * (tiles[0].ndim - 2))
    sheet = Image.fromarray(np.concatenate([np.pad(t, pad, mode="edge") for t in tiles], axis=1))
    file, kind = io.BytesIO(), "png" if max(H, W) <= SMALL else "jpeg"
    # Colours at full resolution: at half of it tiles would bleed into each other.
    how = {} if kind == "png" else {"quality": quality, "subsampling": 0}
    sheet.save(file, kind, optimize=True, **how)
    return f"data:image/{kind};base64," + base64.b64encode(file.getvalue()).decode("ascii")
