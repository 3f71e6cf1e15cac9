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
    """

    tiles: list[str]
    height: int
    width: int
    shrink: int
    truth: list[str]
    rounds: list[list[str]]


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
    return {
        **numbers,
        "words": words.to_dict(),
        "round_names": explorer.labels,
        "tiles": made.tiles,
        "size": [made.height, made.width],
        "shrink": made.shrink,
        "slices": [
            {
                "case": str(explorer.case[s]),
                "group": str(explorer.group[s]),
                "label": None if explorer.label is None else str(explorer.label[s]),
                "target": float(explorer.targets[s]),
                "outputs": [[float(v) for v in row] for row in explorer.outputs[s]],
                "point": None
                if explorer.point_outputs is None
                else [float(v) for v in explorer.point_outputs[s]],
                "truth": made.truth[s],
                "rounds": made.rounds[s],
            }
            for s in range(explorer.slices)
        ],
    }


def slice_pictures(explorer: Explorer, budget: int = BUDGET) -> Pictures:
    """Compress the pictures of an explorer.

    Images are shown between 0 and the truth's maximum. Standard deviation and error have a scale
    of their own, the same for both and for all rounds of a slice, so that they can be compared.

    Arguments:
        explorer: The stored slices.
        budget: How many characters all pictures may take; quality gives way first, then size.
    """
    S, H, W = explorer.truth.shape
    J = 0 if explorer.samples is None else explorer.samples.shape[2]
    tiles = ["estimate", "mean", "sd", "error"]
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
    return Pictures(tiles, height, width, shrink, [t for t, _ in encoded], [r for _, r in encoded])


def thumbnail(image: FloatArray, top: float, side: int = 96, quality: int = 70) -> str:
    """Return a small picture as a page embeds it.

    Arguments:
        image: The image.
        top: Which value is white.
        side: About how large it should be.
        quality: Of the JPEG.
    """
    return _encoded([_grey(image, top, max(1, min(image.shape) // side))], quality)


def _length(encoded: list[tuple[str, list[str]]]) -> int:
    return sum(len(truth) + sum(map(len, sheets)) for truth, sheets in encoded)


def _encoded_slice(
    explorer: Explorer, s: int, quality: int, shrink: int, rounds: Sequence[int] | None = None
) -> tuple[str, list[str]]:
    true = explorer.truth[s].astype(np.float32)
    top = float(true.max()) or 1.0
    mean = explorer.mean[s].astype(np.float32)
    error, sd = np.abs(mean - true), explorer.sd[s].astype(np.float32)
    doubt = float(np.quantile(np.concatenate([sd.ravel(), error.ravel()]), 0.999)) or 1.0
    sheets = []
    for k in range(explorer.rounds) if rounds is None else rounds:
        row = [_grey(explorer.estimate[s, k], top, shrink), _grey(mean[k], top, shrink)]
        row += [_grey(sd[k], doubt, shrink), _grey(error[k], doubt, shrink)]
        if explorer.point is not None:
            row.append(_grey(explorer.point[s, k], top, shrink))
        if explorer.samples is not None:
            row += [_grey(image, top, shrink) for image in explorer.samples[s, k]]
        sheets.append(_encoded(row, quality))
    return _encoded([_grey(true, top, shrink)], quality), sheets


def _grey(image: FloatArray, top: float, shrink: int) -> np.ndarray:
    scaled = np.asarray(image, dtype=np.float32) * (255 / top)
    if shrink > 1:
        H, W = scaled.shape
        scaled = np.pad(scaled, ((0, -H % shrink), (0, -W % shrink)), mode="edge")
        parts = [scaled[i::shrink, j::shrink] for i in range(shrink) for j in range(shrink)]
        scaled = sum(parts[1:], parts[0]) / shrink**2
    return np.asarray(np.clip(np.rint(scaled), 0, 255).astype(np.uint8))


def _encoded(tiles: list[np.ndarray], quality: int) -> str:
    from PIL import Image

    H, W = tiles[0].shape
    pad = ((0, -H % BLOCK), (0, -W % BLOCK))
    sheet = np.concatenate([np.pad(tile, pad, mode="edge") for tile in tiles], axis=1)
    file = io.BytesIO()
    Image.fromarray(sheet).save(file, "JPEG", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
