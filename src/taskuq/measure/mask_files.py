"""Masks as a file and as a picture: what rounds measure, and in which order it was chosen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.errors import InputError
from taskuq.files import open_npz, picture_format, plain, whole_file
from taskuq.interval import BoolArray


def save_masks(
    path: Path,
    masks: BoolArray,
    accelerations: Sequence[float],
    *,
    order: Sequence[int] = (),
    gains: Sequence[float] = (),
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write masks as an .npz file, whole or not at all.

    Arguments:
        path: The file, ending in .npz.
        masks: Booleans (round, line).
        accelerations: R of each round.
        order: Lines in the order in which they were chosen, where they were.
        gains: By how much each was expected to reduce the variance.
        provenance: How they were made, as values that JSON can hold.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "masks.npz"
        >>> _ = save_masks(path, np.eye(2, 8, dtype=bool) | (np.arange(8) == 4), (4, 3))
        >>> read_masks(path, (4, 3), 8).sum(axis=1)
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: ...masks.npz holds masks that are not nested; make them anew
    """
    if path.suffix != ".npz":
        raise InputError(f"the output is {path}; give a name that ends in .npz")
    arrays: dict[str, Any] = {
        "masks": np.asarray(masks, dtype=bool),
        "accelerations": np.asarray(accelerations, dtype=float),
    }
    if len(order):
        arrays |= {"order": np.asarray(order, dtype=np.int64), "gains": np.asarray(gains, float)}
    if provenance is not None:
        arrays["provenance"] = np.array(json.dumps(plain(dict(provenance))))
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    return path


def read_masks(path: Path, accelerations: Sequence[float], width: int | None = None) -> BoolArray:
    """Read the masks (round, line) of some accelerations; others in the file are left out.

    Arguments:
        path: What :func:`save_masks` wrote.
        accelerations: R of the rounds.
        width: How many lines or views there have to be; any number where None.
    """
    with open_npz(path, "masks") as arrays:
        if not {"masks", "accelerations"} <= set(arrays):
            raise InputError(f"{path} holds no masks; make them with taskuq masks")
        masks = np.asarray(arrays["masks"])
        rates = np.atleast_1d(arrays["accelerations"]).astype(float).tolist()
    if masks.dtype != bool or masks.ndim != 2 or len(masks) != len(rates):
        raise InputError(f"{path} holds masks of shape {masks.shape} for {len(rates)} rounds")
    if width not in (None, masks.shape[1]):
        raise InputError(f"{path} has masks of {masks.shape[1]} lines, and {width} are needed")
    if missing := [R for R in accelerations if float(R) not in rates]:
        raise InputError(
            f"{path} is for R = {', '.join(f'{R:g}' for R in rates)}, and R = {missing[0]:g} is "
            "asked for; change the accelerations, or make masks for them"
        )
    found = masks[[rates.index(float(R)) for R in accelerations]]
    if (found[1:] < found[:-1]).any():
        raise InputError(f"{path} holds masks that are not nested; make them anew")
    return found


def mask_mark(masks: BoolArray) -> str:
    """Return a text that is another one for other masks, as tables and policies keep it.

    Example:
        >>> mask_mark(np.eye(2, 8, dtype=bool))
        '89063da2926620b0'
    """
    plain_masks = np.ascontiguousarray(np.asarray(masks, dtype=bool))
    return hashlib.sha256(plain_masks.tobytes()).hexdigest()[:16]


def how_made(path: Path) -> dict[str, Any]:
    """Return how the masks of a file were made; nothing where it does not say.

    Arguments:
        path: What :func:`save_masks` wrote.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "masks.npz"
        >>> _ = save_masks(path, np.eye(1, 8, dtype=bool), (8,), provenance={"seed": 3})
        >>> how_made(path)
        {'seed': 3}
    """
    with open_npz(path, "masks") as arrays:
        text = str(arrays["provenance"]) if "provenance" in arrays else "{}"
    return dict(json.loads(text))


def draw_masks(
    masks: BoolArray,
    accelerations: Sequence[float],
    path: Path | str,
    order: Sequence[int] = (),
    *,
    what: str = "lines",
) -> Path:
    """Draw nested masks, one strip for each round; lines new in a round stand out.

    Arguments:
        masks: Booleans (round, width); True is measured.
        accelerations: R of each round.
        path: The picture to write, .png or .svg.
        order: Lines in the order in which they were chosen, for a strip of its own.
        what: What is measured: lines, or views.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "masks.png"
        >>> draw_masks(np.eye(3, 32, dtype=bool), (32, 16, 8), path).exists()
        True
    """
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
    said = f"{what} (grey: measured before, yellow: new in this round)"
    if len(order):
        place = np.full(masks.shape[1], np.nan)
        place[list(order)] = np.arange(len(order))
        axes[-1].imshow(place[None], cmap="viridis_r", aspect="auto", interpolation="none")
        axes[-1].set_yticks([])
        axes[-1].set_ylabel("order", rotation=0, ha="right", va="center")
        said += "; order: light first, dark last"
    axes[-1].set_xlabel(said)
    with whole_file(path) as partial:
        figure.savefig(partial, dpi=150, format=picture_format(path))
    return Path(path)
