"""Image folders: PNG, TIFF, NIfTI, DICOM."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taskuq._config import Size
from taskuq._io import reading, require_plausible_size
from taskuq.data._arrays import group_scale
from taskuq.data._dataset import Case, Dataset
from taskuq.data._readers import DataCheck, DataConfig, FileCheck, as_size, require_path
from taskuq.errors import InputError

FloatArray = NDArray[np.float32]


def _count_frames(path: Path) -> int:
    return int(_read(path, None))


def _read_frame(path: Path, index: int) -> FloatArray:
    image = np.asarray(_read(path, index), dtype=np.float32)
    if image.ndim != 2:
        raise InputError(f"{path} has shape {image.shape}; convert it to grey", code="shape.axes")
    if not np.isfinite(image).all():
        raise InputError(f"{path} has NaN or infinity in frame {index}", code="value.nonfinite")
    return image


def _read(path: Path, index: int | None) -> Any:
    """Read one frame, or count the frames if the index is None."""
    with reading(path, "an image", "check the file"):
        if not path.exists():
            raise InputError(f"{path} does not exist; correct the file name", code="file.missing")
        if path.is_dir():
            files = _series(path)
            return len(files) if index is None else _dicom(files[index], 0)
        name = path.name.lower()
        for read, endings in _FORMATS.items():
            if name.endswith(endings):
                return read(path, index)
    text = f"{path} is not a .png, .tif, .nii, .nii.gz or .dcm file or a DICOM folder"
    raise InputError(text, code="file.format")


def _pillow(path: Path, index: int | None) -> Any:
    from PIL import Image

    # From memory: a chunk that claims gigabytes is read from a file into room for all of them.
    with Image.open(io.BytesIO(path.read_bytes())) as image:
        if index is None:
            return getattr(image, "n_frames", 1)
        if image.mode not in ("1", "L", "I", "F", "I;16", "I;16B", "I;16L"):
            text = f"{path} is a colour image ({image.mode}); convert it to grey"
            raise InputError(text, code="file.format")
        image.seek(index)
        return np.asarray(image)


def _nifti(path: Path, index: int | None) -> Any:
    try:
        import nibabel
    except ImportError as error:
        text = f"{path} needs nibabel; pip install 'taskuq[nifti]'"
        raise InputError(text, code="dependency.missing") from error
    volume: Any = nibabel.load(path)
    shape = tuple(map(int, volume.shape))
    require_plausible_size(path, math.prod(shape) * volume.get_data_dtype().itemsize)
    if len(shape) != 3:
        raise InputError(f"{path} has shape {shape}; use 3D NIfTI volumes", code="shape.axes")
    if index is None:
        return shape[2]
    return np.rot90(np.asarray(volume.dataobj[:, :, range(shape[2])[index]]))


def _dicom_file(path: Path, *, pixels: bool) -> Any:
    try:
        import pydicom
    except ImportError as error:
        text = f"{path} needs pydicom; pip install 'taskuq[dicom]'"
        raise InputError(text, code="dependency.missing") from error
    # From memory, so that a damaged length of gigabytes is not allocated before it is read.
    return pydicom.dcmread(io.BytesIO(path.read_bytes()), stop_before_pixels=not pixels)


def _dicom(path: Path, index: int | None) -> Any:
    file = _dicom_file(path, pixels=index is not None)
    frames = int(file.get("NumberOfFrames") or 1)
    sizes = (int(file.get(name) or 1) for name in ("Rows", "Columns", "SamplesPerPixel"))
    require_plausible_size(path, frames * math.prod(sizes) * 4)
    # Each frame takes a few bytes, whatever the header.
    if not 1 <= frames <= path.stat().st_size:
        text = f"{path} claims {frames} frames, more than its bytes; check it"
        raise InputError(text, code="file.damaged")
    if index is None:
        return frames
    index = range(frames)[index]
    values = np.asarray(file.pixel_array, dtype=np.float32)
    values = values[index] if frames > 1 else values
    slope, intercept = file.get("RescaleSlope", 1), file.get("RescaleIntercept", 0)
    return values * np.float32(slope) + np.float32(intercept)


_FORMATS: dict[Callable[[Path, int | None], Any], tuple[str, ...]] = {
    _pillow: (".png", ".tif", ".tiff"),
    _nifti: (".nii", ".nii.gz"),
    _dicom: (".dcm", ".dicom", ".ima"),
}


@lru_cache(maxsize=256)
def _series(folder: Path) -> tuple[Path, ...]:
    files = [file for file in sorted(folder.iterdir()) if file.is_file()]
    if not files:
        raise InputError(f"{folder} is empty; use a folder of DICOM files", code="file.missing")
    headers = []
    for file in files:
        with reading(file, "an image", "check the file"):
            headers.append((file, _dicom_file(file, pixels=False)))
    series = {str(header.get("SeriesInstanceUID", "")) for _, header in headers}
    if len(series) > 1:
        text = f"{folder} holds {len(series)} DICOM series; use a folder for each"
        raise InputError(text, code="file.format")
    return tuple(f for f, h in sorted(headers, key=lambda p: int(p[1].get("InstanceNumber", 0))))


Grouping = Literal["file", "folder", "image"]


@dataclass(frozen=True)
class _ImageFrame:
    path: Path
    index: int
    label: int
    group: str
    case: str
    site: str


class ImageFolder:
    """Magnitude images from PNG, TIFF, NIfTI or DICOM files, read on access.

    Args:
        folder: Folder of the images.
        labels: CSV with the columns file, label and, optionally, group, slice and site.
        group: Grouping unit if the CSV has no groups: ``"file"``, ``"folder"`` or ``"image"``.
        size: Crop or pad images to this size.
        normalise: Divide each group by the 99.5 % quantile of its magnitudes.
    """

    def __init__(
        self,
        folder: Path | str,
        labels: Path | str,
        *,
        group: Grouping | None = None,
        size: int | None = None,
        normalise: bool = True,
    ) -> None:
        self.frames = _read_table(Path(folder), Path(labels), group)
        self.size, self.normalise = size, normalise
        self._scales: dict[str, float] = {}

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.array([frame.label for frame in self.frames], dtype=np.int64)

    @property
    def groups(self) -> NDArray[np.str_]:
        return np.array([frame.group for frame in self.frames])

    @property
    def cases(self) -> NDArray[np.str_]:
        return np.array([frame.case for frame in self.frames])

    @property
    def sites(self) -> NDArray[np.str_] | None:
        sites = np.array([frame.site for frame in self.frames])
        return sites if (sites != "").all() else None

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Case:
        import torch

        frame = self.frames[index]
        scale = self._scale(frame.group)
        image = torch.as_tensor(self._image(frame) / np.float32(scale))
        return Case(image, frame.label, frame.group, frame.case, scale)

    def _image(self, frame: _ImageFrame) -> FloatArray:
        image = _read_frame(frame.path, frame.index)
        return image if self.size is None else _center_fit(image, self.size, self.size)

    def _scale(self, group: str) -> float:
        if not self.normalise:
            return 1.0
        if group not in self._scales:
            values = [self._image(f).ravel() for f in self.frames if f.group == group]
            self._scales[group] = group_scale(np.concatenate(values))
        return self._scales[group]


@dataclass(frozen=True, kw_only=True)
class FolderData(DataConfig):
    """Settings of [data] for image files and a CSV, read by :class:`ImageFolder`."""

    path: Path | None = None  #: Folder of PNG, TIFF, NIfTI or DICOM images.
    labels: Path | None = None  #: CSV with columns file and label; optionally group, slice, site.
    group: Grouping | None = None  #: Grouping unit if the CSV has no column "group".
    size: Size | None = None  #: Crop or pad images to this many rows and columns.

    def open(self) -> Dataset:
        return self._images(normalise=True)

    def check(self, *, strict: bool = False, quick: bool = False) -> DataCheck:
        data = self._images(normalise=False)
        files: dict[Path, list[int]] = {}
        for index, frame in enumerate(data.frames):
            files.setdefault(frame.path, []).append(index)
        rows = []
        for path, indices in files.items():
            shapes = {tuple(data[index].image.shape) for index in indices}
            file = path.relative_to(self.path or "")
            size = " or ".join(map(as_size, sorted(shapes)))
            kind = "DICOM series" if path.is_dir() else path.suffix.lstrip(".")
            positives = int((data.labels[indices] > 0).sum())
            rows.append(FileCheck(str(file), kind, size, len(indices), positives))
        one_size = len({row.size for row in rows}) == 1
        notes = () if one_size else ("sizes differ: set a size in [data], e.g. size = 128",)
        return DataCheck(tuple(rows), groups=len(np.unique(data.groups)), notes=notes)

    def _images(self, *, normalise: bool) -> ImageFolder:
        folder = require_path(self.path, "path", "the folder of images")
        table = require_path(self.labels, "labels", "the CSV with file, label and group")
        return ImageFolder(folder, table, group=self.group, size=self.size, normalise=normalise)


def _center_fit(image: FloatArray, height: int, width: int) -> FloatArray:
    """Crop or zero-pad an image; the central pixel, at index size // 2, stays central."""
    for axis, size in enumerate((height, width)):
        have = image.shape[axis]
        if have > size:
            start = have // 2 - size // 2
            image = np.take(image, range(start, start + size), axis=axis)
        elif have < size:
            before = size // 2 - have // 2
            pads = [(0, 0), (0, 0)]
            pads[axis] = (before, size - have - before)
            image = np.pad(image, pads)
    return image


def _read_table(folder: Path, table: Path, group: Grouping | None) -> tuple[_ImageFrame, ...]:
    with reading(table, "a CSV file"), table.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        columns = set(reader.fieldnames or ())
        rows = [(reader.line_num, row) for row in reader]
    if missing := {"file", "label"} - columns:
        text = f"{table} has no {', '.join(sorted(missing))}; add it"
        raise InputError(text, code="table.column")
    if "group" not in columns and group is None:
        advice = "add it (patient or volume), or set data.group: file, folder or image"
        raise InputError(f"{table} has no column group; {advice}", code="groups.missing")
    if "group" in columns and group is not None:
        text = f"{table} has groups and data.group is {group!r}; remove one"
        raise InputError(text, code="option.conflict")
    frames = [frame for line, row in rows for frame in _frames(folder, table, line, row, group)]
    names = [frame.case for frame in frames]
    if not frames or len(set(names)) != len(names):
        again = [f"{name} twice" for name in names if names.count(name) > 1]
        text = f"{table} names {(*again, 'no image')[0]}; use one row each"
        raise InputError(text, code="table.duplicate")
    if len({frame.site == "" for frame in frames}) > 1:
        raise InputError(f"{table} has rows without a site; add it", code="groups.missing")
    return tuple(frames)


def _frames(
    folder: Path, table: Path, line: int, row: dict[str, str], group: Grouping | None
) -> list[_ImageFrame]:
    where = f"{table}, line {line}"
    if None in (row["file"], row["label"]) or not row["file"].strip():
        raise InputError(f"{where}: file or label is missing; add it", code="table.incomplete")
    name, path = row["file"].strip(), folder / row["file"].strip()
    if Path(name).is_absolute():
        text = f"{where}: file is {name!r:.80}; use its path relative to {folder}"
        raise InputError(text, code="file.missing")
    try:
        label = int(row["label"])
        chosen = None if not (row.get("slice") or "").strip() else int(row["slice"])
    except (ValueError, TypeError):
        given = f"label is {row['label']!r} and slice {row.get('slice')!r}"
        raise InputError(f"{where}: {given}; use integers", code="dtype.invalid") from None
    if group is None and not (row["group"] or "").strip():
        raise InputError(f"{where}: group is empty; name the patient", code="groups.missing")
    count = _count_frames(path)
    if chosen is not None and not 0 <= chosen < count:
        text = f"{where}: slice is {chosen}; {name} has slices 0 to {count - 1}"
        raise InputError(text, code="value.invalid")
    frames = []
    for index in range(count) if chosen is None else (chosen,):
        case = name if count == 1 else f"{name}#{index}"
        names = {None: row.get("group") or "", "file": name, "image": case}
        names["folder"] = str(path.parent.relative_to(folder))
        site = (row.get("site") or "").strip()
        frames.append(_ImageFrame(path, index, label, names[group].strip(), case, site))
    return frames
