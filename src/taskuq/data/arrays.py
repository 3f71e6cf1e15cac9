"""Images that are already in memory or in one .npz file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq.data.dataset import Dataset, Item
from taskuq.errors import InputError

# Above this quantile of a group's magnitudes lie a few bright pixels that must not set the scale.
SCALE_QUANTILE = 0.995


@dataclass(frozen=True, eq=False)
class ArrayDataset:
    """A data set from arrays.

    Arguments:
        images: Magnitude images (case, height, width), any real type, or complex coil images
            (case, coil, height, width).
        label: The label of each case, (case,).
        group: The group of each case, (case,): patient or volume. Neighbouring slices are not
            independent, so this is never guessed; where each image really is its own group, say
            so with ``group="each"``.
        case: The name of each case; by default its number.
        normalise: Divide each group by the 99.5 % quantile of its magnitudes.

    Example:
        >>> images = np.full((2, 4, 4), 50, dtype=np.uint8)
        >>> data = ArrayDataset(images, label=[0, 1], group="each")
        >>> item = data[1]
        >>> item.label, item.group, item.scale, float(item.image.max())
        (1, '1', 50.0, 1.0)
    """

    images: NDArray[Any]
    labels: NDArray[np.int64]
    groups: NDArray[np.str_]
    cases: NDArray[np.str_]
    scales: NDArray[np.float64] = field(repr=False)

    def __init__(
        self,
        images: NDArray[Any],
        label: ArrayLike,
        group: ArrayLike | str,
        case: ArrayLike | None = None,
        normalise: bool = True,
    ) -> None:
        images = np.asarray(images)
        _check_images(images)
        names = np.arange(len(images)) if case is None else np.asarray(case)
        groups = np.arange(len(images)) if isinstance(group, str) and group == "each" else group
        columns = {"label": np.asarray(label), "group": np.asarray(groups), "case": names}
        for name, column in columns.items():
            if column.shape != (len(images),):
                raise InputError(
                    f"{name} has shape {column.shape} for {len(images)} images; give one entry for "
                    "each image" + (" (or group='each')" if name == "group" else "")
                )
        labels = columns["label"]
        if labels.dtype.kind not in "biuf" or not np.array_equal(labels, labels.astype(int)):
            raise InputError(f"labels have type {labels.dtype}; give integers such as 0 and 1")

        object.__setattr__(self, "images", images)
        object.__setattr__(self, "labels", labels.astype(np.int64))
        object.__setattr__(self, "groups", columns["group"].astype(str))
        object.__setattr__(self, "cases", names.astype(str))
        if len(np.unique(self.cases)) != len(images):
            raise InputError("case names repeat; give each image a name of its own")
        scales = group_scales(images, self.groups) if normalise else np.ones(len(images))
        object.__setattr__(self, "scales", scales)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Item:
        import torch

        scale = float(self.scales[index])
        image = torch.as_tensor(self.images[index])
        image = image / scale if image.is_complex() else image.to(torch.float32) / scale
        return Item(
            image=image,
            label=int(self.labels[index]),
            group=str(self.groups[index]),
            case=str(self.cases[index]),
            scale=scale,
        )


def group_scales(images: NDArray[Any], groups: NDArray[np.str_]) -> NDArray[np.float64]:
    """The scale of each case: the 99.5 % quantile of the magnitudes of its whole group.

    Scanners differ a lot in their units; slices of one patient share them.

    Arguments:
        images: Images (case, ...), real or complex.
        groups: The group of each case, (case,).

    Returns:
        Positive numbers (case,), the same within a group; 1 for a group that is black.

    Example:
        >>> images = np.array([[[1.0]], [[3.0]], [[8.0]]])
        >>> group_scales(images, np.array(["a", "a", "b"]))
        array([2.99, 2.99, 8.  ])
    """
    scales = np.ones(len(images))
    for name in np.unique(groups):
        chosen = groups == name
        quantile = float(np.quantile(np.abs(images[chosen]), SCALE_QUANTILE))
        scales[chosen] = quantile if quantile > 0 else 1.0
    return scales


def read_npz(path: Path | str, *, group: str | None = None, normalise: bool = True) -> ArrayDataset:
    """Read a data set from one .npz file.

    Arguments:
        path: A file with the arrays ``images`` (case, height, width) or (case, coil, height,
            width), ``label`` (case,) and ``group`` (case,), and optionally ``case``; other arrays
            are left alone.
        group: ``"each"`` when each image is its own group and the file has no groups.
        normalise: Divide each group by the 99.5 % quantile of its magnitudes.

    Returns:
        The data set, in memory.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "mine.npz"
        >>> np.savez(path, images=np.ones((4, 8, 8)), label=[0, 0, 1, 1], group=[7, 7, 9, 9])
        >>> read_npz(path).groups
        array(['7', '7', '9', '9'], dtype='<U21')
    """
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {
                name: file[name] for name in ("images", "label", "group", "case") if name in file
            }
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as .npz ({error}); give an .npz file") from error
    missing = {"images", "label"} - set(arrays)
    if "group" not in arrays and group != "each":
        missing |= {"group"}
    if missing:
        raise InputError(
            f"{path} has no {', '.join(sorted(missing))}; save images, label and group (or say "
            "that each image is its own group)"
        )
    return ArrayDataset(
        arrays["images"],
        label=arrays["label"],
        group=arrays["group"] if group is None else group,
        case=arrays.get("case"),
        normalise=normalise,
    )


def save_npz(dataset: Dataset, path: Path | str, indices: Sequence[int] | None = None) -> Path:
    """Write cases of any data set into one .npz file that :func:`read_npz` reads.

    Images are written as they are delivered, divided by their scale; read them with
    ``normalise=False`` to get the same items back.

    Arguments:
        dataset: The data set.
        path: The file to write; it appears only when it is complete.
        indices: Which cases; all by default.

    Returns:
        The path.

    Example:
        >>> import tempfile
        >>> data = ArrayDataset(np.ones((2, 8, 8)), label=[0, 1], group="each")
        >>> path = save_npz(data, Path(tempfile.mkdtemp()) / "copy.npz")
        >>> len(read_npz(path, normalise=False))
        2
    """
    from taskuq.files import whole_file

    items = [dataset[i] for i in (range(len(dataset)) if indices is None else indices)]
    if not items:
        raise InputError("no cases are asked for; give at least one index")
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez(
            file,
            images=np.stack([np.asarray(item.image) for item in items]),
            label=np.array([item.label for item in items]),
            group=np.array([item.group for item in items]),
            case=np.array([item.case for item in items]),
            scale=np.array([item.scale for item in items]),
        )
    return Path(path)


def _check_images(images: NDArray[Any]) -> None:
    is_magnitude = images.ndim == 3 and images.dtype.kind in "biuf"
    is_coils = images.ndim == 4 and images.dtype.kind == "c"
    if not (is_magnitude or is_coils):
        raise InputError(
            f"images have shape {images.shape} and type {images.dtype}; give magnitude images "
            "(case, height, width) or complex coil images (case, coil, height, width)"
        )
    if images.size == 0:
        raise InputError(f"images have shape {images.shape}; give at least one image")
    if images.dtype.kind in "fc" and not np.isfinite(images).all():
        raise InputError("images hold NaN or infinite values; replace them")
