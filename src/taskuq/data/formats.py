"""Pictures from files: PNG, TIFF, NIfTI and DICOM, one frame at a time."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskuq.disk import reading, require_room
from taskuq.errors import InputError

FloatArray = NDArray[np.float32]


def count_frames(path: Path) -> int:
    """Return how many frames a file (or a folder with a DICOM series) has, without reading them."""
    return int(_guarded(path, lambda p: _format(p)[0](p)))


def read_frame(path: Path, index: int) -> FloatArray:
    """Read one frame as a magnitude image (height, width).

    Slices of a NIfTI volume are taken along its last axis and turned so that the first axis runs
    from left to right. Files of a DICOM series are ordered by their instance number, and stored
    values are converted by the file's rescale slope and intercept.
    """
    image = np.asarray(_guarded(path, lambda p: _format(p)[1](p, index)), dtype=np.float32)
    if image.ndim != 2:
        raise InputError(
            f"{path} has frames of shape {image.shape}; convert it to one grey value per pixel",
            code="shape.axes",
        )
    if not np.isfinite(image).all():
        raise InputError(
            f"{path} holds NaN or infinite values in frame {index}; replace them",
            code="value.nonfinite",
        )
    return image


def _format(path: Path) -> tuple[Callable[[Path], int], Callable[[Path, int], Any]]:
    name = path.name.lower()
    if path.is_dir():
        return _series_frames, _series_frame
    if name.endswith((".png", ".tif", ".tiff")):
        return _picture_frames, _picture_frame
    if name.endswith((".nii", ".nii.gz")):
        return _nifti_frames, _nifti_frame
    if name.endswith((".dcm", ".dicom", ".ima")):
        return _dicom_frames, _dicom_frame
    raise InputError(
        f"{path} is in no format we read; give .png, .tif, .nii, .nii.gz, .dcm or a folder of "
        "DICOM files",
        code="file.format",
    )


def _guarded(path: Path, read: Callable[[Path], Any]) -> Any:
    with reading(path, "an image", "check the file"):
        if not path.exists():
            raise InputError(f"{path} does not exist; correct the file name", code="file.missing")
        return read(path)


def _picture_frames(path: Path) -> int:
    from PIL import Image

    with Image.open(path) as picture:
        return int(getattr(picture, "n_frames", 1))


def _picture_frame(path: Path, index: int) -> Any:
    from PIL import Image

    with Image.open(path) as picture:
        if picture.mode not in ("1", "L", "I", "F", "I;16", "I;16B", "I;16L"):
            raise InputError(
                f"{path} is a colour picture (mode {picture.mode}); convert it to grey values",
                code="file.format",
            )
        picture.seek(index)
        return np.asarray(picture)


def _nifti_frames(path: Path) -> int:
    shape = _nifti(path).shape
    if len(shape) != 3:
        raise InputError(
            f"{path} has shape {shape}; give three-dimensional NIfTI volumes", code="shape.axes"
        )
    return int(shape[2])


def _nifti_frame(path: Path, index: int) -> Any:
    if not 0 <= index < _nifti_frames(path):
        raise IndexError(f"slice {index} of {path}")
    return np.rot90(np.asarray(_nifti(path).dataobj[:, :, index]))


def _nifti(path: Path) -> Any:
    try:
        import nibabel
    except ImportError as error:
        raise InputError(
            f"{path} needs nibabel, which is not installed; pip install 'taskuq[nifti]'",
            code="dependency.missing",
        ) from error
    volume: Any = nibabel.load(path)
    require_room(path, math.prod(map(int, volume.shape)) * volume.get_data_dtype().itemsize)
    return volume


def _dicom(path: Path, *, pixels: bool) -> Any:
    try:
        import pydicom
    except ImportError as error:
        raise InputError(
            f"{path} needs pydicom, which is not installed; pip install 'taskuq[dicom]'",
            code="dependency.missing",
        ) from error
    # From memory, which gives no more than there is: of a file, a damaged length of gigabytes would
    # be set aside before it is read.
    content = io.BytesIO(path.read_bytes())
    return pydicom.dcmread(content, stop_before_pixels=not pixels)


def _dicom_frames(path: Path) -> int:
    return _frames_of(path, _dicom(path, pixels=False))


def _frames_of(path: Path, file: Any) -> int:
    """Return how many frames a DICOM file holds; each takes a few bytes, whatever the file says."""
    frames = int(file.get("NumberOfFrames") or 1)
    sizes = (int(file.get(name) or 1) for name in ("Rows", "Columns", "SamplesPerPixel"))
    # Four bytes, as numbers and not as they are stored.
    require_room(path, frames * math.prod(sizes) * 4)
    if not 1 <= frames <= path.stat().st_size:
        raise InputError(
            f"{path} claims to hold {frames} frames, more than its bytes; check it",
            code="file.damaged",
        )
    return frames


def _dicom_frame(path: Path, index: int) -> Any:
    file = _dicom(path, pixels=True)
    frames = _frames_of(path, file)
    if not 0 <= index < frames:
        raise IndexError(f"frame {index} of {path}")
    values = np.asarray(file.pixel_array, dtype=np.float32)
    values = values[index] if frames > 1 else values
    slope, intercept = file.get("RescaleSlope", 1), file.get("RescaleIntercept", 0)
    return values * np.float32(slope) + np.float32(intercept)


@lru_cache(maxsize=256)
def _series(folder: Path) -> tuple[Path, ...]:
    files = [file for file in sorted(folder.iterdir()) if file.is_file()]
    if not files:
        raise InputError(f"{folder} is empty; give a folder of DICOM files", code="file.missing")
    headers = [(file, _guarded(file, lambda p: _dicom(p, pixels=False))) for file in files]
    series = {str(header.get("SeriesInstanceUID", "")) for _, header in headers}
    if len(series) > 1:
        raise InputError(
            f"{folder} holds {len(series)} DICOM series; give each series a folder of its own",
            code="file.format",
        )
    return tuple(f for f, h in sorted(headers, key=lambda p: int(p[1].get("InstanceNumber", 0))))


def _series_frames(folder: Path) -> int:
    return len(_series(folder))


def _series_frame(folder: Path, index: int) -> Any:
    return _dicom_frame(_series(folder)[index], 0)
