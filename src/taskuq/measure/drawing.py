"""A picture of masks: which lines of k-space each round measures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from taskuq.interval import BoolArray


def draw_masks(masks: BoolArray, accelerations: Sequence[float], path: Path | str) -> Path:
    """Draw nested masks, one strip for each round; lines new in a round stand out.

    Arguments:
        masks: Booleans (round, width); True is measured.
        accelerations: R of each round.
        path: The picture to write, .png or .svg.

    Example:
        >>> import tempfile
        >>> from taskuq.measure.masks import published_masks
        >>> path = Path(tempfile.mkdtemp()) / "masks.png"
        >>> draw_masks(published_masks(), (16, 8, 4, 2), path).exists()
        True
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.55 * len(masks) + 0.7), layout="constrained")
    axes = figure.subplots(len(masks), 1, sharex=True, squeeze=False)[:, 0]
    colours = ListedColormap(["#1b1b1b", "#9aa5b1", "#ffd166"])
    before = np.zeros_like(masks[0])
    for ax, mask, R in zip(axes, masks, accelerations, strict=True):
        # 0 not measured, 1 measured in an earlier round, 2 new in this one.
        state = mask.astype(int) + (mask & ~before)
        ax.imshow(state[None], cmap=colours, vmin=0, vmax=2, aspect="auto", interpolation="none")
        ax.set_yticks([])
        ax.set_ylabel(f"R = {R:g}", rotation=0, ha="right", va="center")
        ax.set_title(f"{mask.sum()} lines", loc="right", fontsize=8, pad=1)
        before = mask
    axes[-1].set_xlabel("column of k-space (grey: measured before, yellow: new in this round)")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return Path(path)
