"""A contact sheet: many small pictures of a data set on one page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from taskuq.data.dataset import Dataset
from taskuq.errors import InputError
from taskuq.files import picture_format, whole_file
from taskuq.interval import BoolArray


def contact_sheet(
    dataset: Dataset,
    path: Path | str,
    *,
    indices: Sequence[int] | None = None,
    columns: int = 8,
    outline: Callable[[int], BoolArray] | None = None,
) -> Path:
    """Draw cases of a data set side by side, with their label and group.

    All pictures share one grey scale, from 0 to 1.25 times the 99.5 % quantile.
    """
    from matplotlib.figure import Figure

    from taskuq.measure.coils import magnitude

    chosen = list(range(min(48, len(dataset))) if indices is None else indices)
    if not chosen:
        raise InputError("no cases are asked for; give at least one", code="value.invalid")
    rows = -(-len(chosen) // columns)
    items = [dataset[index] for index in chosen]
    images = [magnitude(item.image).numpy() for item in items]
    top = 1.25 * float(np.quantile(np.concatenate([image.ravel() for image in images]), 0.995))
    figure = Figure(figsize=(1.6 * columns, 1.78 * rows), facecolor="black", layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes:
        ax.axis("off")
    for ax, index, item, image in zip(axes, chosen, items, images, strict=False):
        ax.imshow(image, cmap="gray", vmin=0, vmax=top or 1)
        ax.set_title(
            f"{item.case}: {item.label}", fontsize=5, pad=1, color="#ffd166" if item.label else "w"
        )
        if outline is not None and (mask := outline(index)).any():
            ax.contour(mask, [0.5], colors="#ef476f", linewidths=0.6)
    with whole_file(path) as partial:
        figure.savefig(partial, dpi=120, format=picture_format(path))
    return Path(path)
