"""Pictures for the page: one compressed sheet of tiles for each slice and round."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np

from taskuq.interval import FloatArray
from taskuq.report.explorer import Explorer

QUALITY = 84
# JPEG works on blocks of 8 x 8; tiles that start on a block do not bleed into each other.
BLOCK = 8


@dataclass(frozen=True)
class Pictures:
    """Compressed pictures of the shown slices.

    Arguments:
        tiles: What each tile of a sheet shows, from the left.
        height: Of a picture.
        width: Of a picture.
        stride: From one tile to the next.
        truth: One picture for each slice.
        rounds: One sheet for each slice and round.
    """

    tiles: list[str]
    height: int
    width: int
    stride: int
    truth: list[str]
    rounds: list[list[str]]


def slice_pictures(explorer: Explorer) -> Pictures:
    """Compress the pictures of an explorer.

    Images are shown between 0 and the truth's maximum. Standard deviation and error have a scale
    of their own, the same for both and for all rounds of a slice, so that they can be compared.

    Arguments:
        explorer: The stored slices.
    """
    S, H, W = explorer.truth.shape
    samples = explorer.samples
    J = 0 if samples is None else samples.shape[2]
    tiles = ["zero-filled", "mean", "sd", "error"]
    tiles += ["point"] if explorer.point is not None else []
    tiles += [f"sample-{j + 1}" for j in range(J)]
    truth, rounds = [], []
    for s in range(S):
        true = explorer.truth[s].astype(np.float32)
        top = float(true.max()) or 1.0
        mean = explorer.mean[s].astype(np.float32)
        error, sd = np.abs(mean - true), explorer.sd[s].astype(np.float32)
        doubt = float(np.quantile(np.concatenate([sd.ravel(), error.ravel()]), 0.999)) or 1.0
        truth.append(_encoded([_grey(true, top)]))
        sheets = []
        for k in range(explorer.rounds):
            row = [_grey(explorer.zero_filled[s, k], top), _grey(mean[k], top)]
            row += [_grey(sd[k], doubt), _grey(error[k], doubt)]
            if explorer.point is not None:
                row.append(_grey(explorer.point[s, k], top))
            if samples is not None:
                row += [_grey(samples[s, k, j], top) for j in range(J)]
            sheets.append(_encoded(row))
        rounds.append(sheets)
    return Pictures(tiles, H, W, -(-W // BLOCK) * BLOCK, truth, rounds)


def _grey(image: FloatArray, top: float) -> np.ndarray:
    scaled = np.asarray(image, dtype=np.float32) * (255 / top)
    return np.asarray(np.clip(np.rint(scaled), 0, 255).astype(np.uint8))


def _encoded(tiles: list[np.ndarray]) -> str:
    from PIL import Image

    H, W = tiles[0].shape
    pad = ((0, -H % BLOCK), (0, -W % BLOCK))
    sheet = np.concatenate([np.pad(tile, pad, mode="edge") for tile in tiles], axis=1)
    file = io.BytesIO()
    Image.fromarray(sheet).save(file, "JPEG", quality=QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
