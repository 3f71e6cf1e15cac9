"""Data sets from arrays and .npz files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq._config import NonNegative
from taskuq._io import open_npz
from taskuq.data._dataset import Case, Dataset, LabelledSubset, Subset
from taskuq.data._readers import DataCheck, DataConfig, FileCheck, as_size, require_path
from taskuq.errors import InputError
from taskuq.interval import BoolArray


class ArrayDataset:
    """Data set of images in memory.

    Args:
        images: Magnitude images (case, height, width), or complex coil images (case, coil, height,
            width).
        label: Integer class of each case.
        group: Volume or patient of each case; ``"image"`` for one group per case.
        case: Names of the cases; default: their indices.
        site: Hospital or scanner of each case.
        normalise: True to divide each group by its :func:`group_scale`; a number divides all.

    Example:
        >>> data = ArrayDataset(np.ones((2, 8, 8)), label=[0, 1], group="image")
        >>> data[1].label, data[1].group, tuple(data[1].image.shape)
        (1, '1', (8, 8))
    """

    def __init__(
        self,
        images: NDArray[Any],
        label: ArrayLike,
        group: ArrayLike | str,
        case: ArrayLike | None = None,
        normalise: bool | float = True,
        site: ArrayLike | None = None,
    ) -> None:
        images = np.asarray(images)
        _check_images(images)
        names = np.arange(len(images)) if case is None else np.asarray(case)
        groups = np.arange(len(images)) if isinstance(group, str) and group == "image" else group
        columns = {"label": np.asarray(label), "group": np.asarray(groups), "case": names}
        columns |= {} if site is None else {"site": np.asarray(site)}
        for name, column in columns.items():
            if column.shape != (len(images),):
                text = f"{name} has shape {column.shape}; pass one per image"
                raise InputError(text, code="shape.mismatch")
        labels = columns["label"]
        if labels.dtype.kind not in "biuf" or not np.array_equal(labels, labels.astype(int)):
            text = f"labels have type {labels.dtype}; pass integers, e.g. 0, 1"
            raise InputError(text, code="dtype.invalid")
        if len(np.unique(names.astype(str))) != len(images):
            raise InputError("case names are not unique; pass unique names", code="table.duplicate")
        group_names = columns["group"].astype(str)
        scales = np.full(len(images), float(normalise) or 1.0)
        for name in np.unique(group_names) if normalise is True else ():
            scales[group_names == name] = group_scale(images[group_names == name])
        self.images, self.labels, self.scales = images, labels.astype(np.int64), scales
        self.groups, self.cases = group_names, names.astype(str)
        self.sites = None if site is None else columns["site"].astype(str)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Case:
        import torch

        scale = float(self.scales[index])
        image = torch.as_tensor(self.images[index])
        image = image / scale if image.is_complex() else image.to(torch.float32) / scale
        label, group, case = self.labels[index], self.groups[index], self.cases[index]
        return Case(image, int(label), str(group), str(case), scale)


def group_scale(values: NDArray[Any]) -> float:
    """Return the scale of a group: the 99.5 % quantile of its magnitudes, or 1 if all are 0."""
    # A few bright pixels above this quantile must not set the scale.
    quantile = float(np.quantile(np.abs(values), 0.995))
    return quantile if quantile > 0 else 1.0


def read_npz(
    path: Path | str, *, group: str | None = None, normalise: bool | float = True
) -> ArrayDataset:
    """Read a data set from one .npz file into memory.

    Args:
        path: File with ``images``, ``label``, ``group`` and, optionally, ``case`` and ``site``.
        group: ``"image"`` for one group per image, if the file has no groups.
        normalise: As in :class:`ArrayDataset`.
    """
    with open_npz(path, "images") as file:
        names = ("images", "label", "group", "case", "site")
        arrays = {name: file[name] for name in names if name in file}
    needed = {"images", "label"} if group == "image" else {"images", "label", "group"}
    if missing := needed - set(arrays):
        text = f"{path} has no array {', '.join(sorted(missing))}; add it"
        raise InputError(text, code="table.column")
    groups = arrays["group"] if group is None else group
    return ArrayDataset(
        arrays["images"], arrays["label"], groups, arrays.get("case"), normalise, arrays.get("site")
    )


@dataclass(frozen=True, kw_only=True)
class NpzData(DataConfig):
    """Settings of [data] for one .npz file, read by :func:`read_npz`."""

    path: Path | None = None  #: .npz file with images, label and group.
    #: Set to "image" for one group per image, if the file has no groups.
    group: Literal["image"] | None = None
    select: str | None = None  #: Name of a boolean array; only cases marked True are used.
    target: str = "label"  #: Array of training targets, (case,) or (case, task).
    #: Divide all images by this value; 0 divides each group by its 99.5 % quantile.
    scale: NonNegative = 0.0

    def open(self) -> Dataset:
        whole = read_npz(self._file, group=self.group, normalise=self.scale or True)
        return Subset.where(whole, self._chosen(whole))

    def open_targets(self) -> LabelledSubset:
        whole = read_npz(self._file, group=self.group, normalise=self.scale or True)
        chosen = self._chosen(whole)
        labelled = LabelledSubset.of(Subset.where(whole, chosen))
        if self.target == "label":
            return labelled
        values = np.asarray(self._array(self.target), dtype=np.float64)
        if len(values) != len(whole):
            text = f"{self.target} has {len(values)} values; save one per image"
            raise InputError(text, code="shape.mismatch")
        targets = values.reshape(len(values), -1)[chosen]
        if not np.isfinite(targets).all():
            text = f"{self.target} holds NaN or infinity; remove those cases"
            raise InputError(text, code="value.nonfinite")
        return LabelledSubset(labelled.cases, targets)

    def check(self, *, strict: bool = False, quick: bool = False) -> DataCheck:
        data = read_npz(self._file, group=self.group, normalise=False)
        chosen = self._chosen(data)
        counts = int(chosen.sum()), int((data.labels[chosen] > 0).sum())
        size = as_size(data.images.shape[1:])
        row = FileCheck(self._file.name, str(data.images.dtype), size, *counts)
        return DataCheck((row,), groups=len(np.unique(data.groups[chosen])))

    @property
    def _file(self) -> Path:
        return require_path(self.path, "path", "the .npz file")

    def _array(self, name: str) -> NDArray[Any]:
        with open_npz(self._file, "images") as file:
            if name not in file:
                text = f"{self.path} has no {name}; choose from {', '.join(file)}"
                raise InputError(text, code="table.column")
            return file[name]

    def _chosen(self, whole: ArrayDataset) -> BoolArray:
        if self.select is None:
            return np.full(len(whole), True)
        chosen = self._array(self.select)
        if chosen.dtype != bool or chosen.shape != (len(whole),):
            text = f"data.select has type {chosen.dtype}; save one boolean per image"
            raise InputError(text, code="dtype.invalid")
        return chosen


def _check_images(images: NDArray[Any]) -> None:
    is_magnitude = images.ndim == 3 and images.dtype.kind in "biuf"
    is_coils = images.ndim == 4 and images.dtype.kind == "c"
    if not (is_magnitude or is_coils):
        given = f"images have shape {images.shape} and type {images.dtype}"
        raise InputError(f"{given}; pass magnitudes or complex coil images", code="shape.axes")
    if images.size == 0:
        text = f"images have shape {images.shape}; pass at least one image"
        raise InputError(text, code="table.incomplete")
    if images.dtype.kind in "fc" and not np.isfinite(images).all():
        raise InputError("images hold NaN or infinite values; replace them", code="value.nonfinite")
