"""fastMRI files: volumes, preprocessing and annotations."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Literal, get_args
from xml.etree import ElementTree

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq._io import atomic_write, open_npz, reading, require_plausible_size
from taskuq.errors import InputError, MachineError, first_line
from taskuq.measure._coils import compress_coils, compression_matrix
from taskuq.measure._fourier import fft2c, ifft2c
from taskuq.measure._masks import gro_mask, mask_fingerprint, published_masks

_BOX = ("x", "y", "width", "height")
COLUMNS = ("file", "slice", "study_level", *_BOX, "label")


@dataclass(frozen=True)
class _Annotation:
    file: str
    slice_index: int
    is_study_level: bool
    box: tuple[int, int, int, int] | None
    label: str

    def rows_and_columns(self, image_height: int) -> tuple[slice, slice]:
        """Return the box in the stored image; fastMRI+ boxes are flipped vertically."""
        if self.box is None:
            text = f"{self.file}, slice {self.slice_index} has no box"
            raise InputError(text, code="value.invalid")
        x, y, width, height = self.box
        bottom = min(image_height - y, image_height)
        return slice(max(image_height - y - height, 0), bottom), slice(max(x, 0), x + width)


@dataclass(frozen=True)
class _Annotations:
    rows: tuple[_Annotation, ...]
    unreadable: tuple[str, ...] = ()

    def positive_slices(self, pathology: str) -> dict[str, set[int]]:
        positive: dict[str, set[int]] = {}
        for row in self.of(pathology):
            if not row.is_study_level:
                positive.setdefault(row.file, set()).add(row.slice_index)
        return positive

    def of(self, pathology: str) -> list[_Annotation]:
        name = pathology.strip().lower()
        chosen = [row for row in self.rows if row.label.lower() == name]
        if not chosen:
            known = ", ".join(sorted({row.label for row in self.rows}))
            raise InputError(f"label is {pathology!r}; choose from {known}", code="choice.unknown")
        return chosen


def read_annotations(path: Path | str) -> _Annotations:
    """Read a fastMRI+ file such as knee.csv or brain.csv; list invalid rows without raising."""
    path = Path(path)
    rows, unreadable = [], []
    with reading(path, "a fastMRI+ CSV file"), path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if missing := set(COLUMNS) - set(reader.fieldnames or ()):
            names = ", ".join(sorted(missing))
            raise InputError(f"{path}, a fastMRI+ file, needs {names}", code="table.column")
        for row in reader:
            try:
                rows.append(_annotation(row))
            except ValueError as error:
                unreadable.append(f"line {reader.line_num}: {error}")
    return _Annotations(tuple(rows), tuple(unreadable))


def read_file_list(path: Path | str) -> frozenset[str]:
    """Read the list of annotated volumes, one name per line."""
    with reading(path, "a list of file names"):
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    return frozenset(line.strip().strip(",").removesuffix(".h5") for line in lines if line.strip())


@dataclass(frozen=True, eq=False)
class AnnotationLabels:
    annotations: _Annotations
    pathology: str = "Meniscus Tear"
    files: frozenset[str] | None = None

    def of(self, name: str, slices: range) -> NDArray[np.int64]:
        positive = self._positive_slices.get(name, set())
        return np.array([index in positive for index in slices], dtype=np.int64)

    @cached_property
    def _positive_slices(self) -> dict[str, set[int]]:
        return self.annotations.positive_slices(self.pathology)


def _annotation(row: dict[str, str | None]) -> _Annotation:
    text = {name: (row.get(name) or "").strip() for name in COLUMNS}
    if not text["file"] or not text["label"]:
        raise ValueError("file or label is empty")
    if text["study_level"].lower() not in ("yes", "no"):
        raise ValueError(f"study_level is {text['study_level']!r}, not Yes or No")
    box: Any = None
    if any(text[name] for name in _BOX):
        box = tuple(_whole(text[name], name) for name in _BOX)
    index = _whole(text["slice"], "slice")
    if index < 0:
        raise ValueError(f"slice is {index}, below 0")
    is_study_level = text["study_level"].lower() == "yes"
    return _Annotation(text["file"].removesuffix(".h5"), index, is_study_level, box, text["label"])


def _whole(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, not a number") from None


@dataclass(frozen=True)
class Volume:
    """fastMRI volume, read slice by slice; the file is opened for each read."""

    path: Path
    slices: int
    coils: int
    height: int
    width: int
    acquisition: str
    encoded_lines: int | None
    patient: str = ""
    site: str = ""
    recon_size: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def bytes_of_slice(self) -> int:
        return 8 * self.coils * self.height * self.width

    def kspace(self, index: int) -> NDArray[np.complex64]:
        """Read the k-space of one slice, (coil, height, width)."""
        if not 0 <= index < self.slices:
            raise IndexError(f"slice {index} of {self.slices} in {self.path}")
        # A handle for each read keeps workers independent of each other.
        with _opened(self.path, f"breaks off in slice {index}") as file:
            kspace = np.asarray(file["kspace"][index])
        kspace = kspace.reshape(self.coils, *kspace.shape[-2:])
        if not np.isfinite(kspace).all():
            text = f"{self.path} has NaN in slice {index}; fetch it again"
            raise InputError(text, code="value.nonfinite")
        return kspace


def open_volume(path: Path | str) -> Volume:
    """Open a fastMRI file (knee or brain, one coil or several) without reading its k-space."""
    path = Path(path)
    with _opened(path, "cannot be opened as HDF5", has_text=True) as file:
        kspace = file.get("kspace")
        if not isinstance(kspace, h5py.Dataset):
            text = f"{path} has no dataset kspace; use fastMRI k-space files"
            raise InputError(text, code="file.format")
        if kspace.ndim not in (3, 4) or kspace.dtype.kind != "c" or 0 in kspace.shape:
            given = f"{path} has kspace of shape {kspace.shape} and type {kspace.dtype}"
            raise InputError(f"{given}; use complex fastMRI files", code="file.format")
        require_plausible_size(path, math.prod(kspace.shape) * kspace.dtype.itemsize)
        header = _Header.read(file["ismrmrd_header"][()] if "ismrmrd_header" in file else None)
        height, width = kspace.shape[-2:]
        slices, coils = kspace.shape[0], 1 if kspace.ndim == 3 else kspace.shape[1]
        acquisition, patient = (_attribute(file, name) for name in ("acquisition", "patient_id"))
        return Volume(
            path, slices, coils, height, width, acquisition, header.encoded_lines,
            patient, header.site, header.recon_size,
        )  # fmt: skip


def _attribute(file: Any, name: str) -> str:
    value = file.attrs.get(name, "")
    return (value.decode() if isinstance(value, bytes) else str(value)).strip()


@dataclass(frozen=True)
class _Header:
    encoded_lines: int | None = None
    recon_size: tuple[int, int] | None = None
    site: str = ""

    @classmethod
    def read(cls, xml: bytes | str | None) -> _Header:
        if xml is None:
            return cls()
        try:
            header = ElementTree.fromstring(xml)
        except ElementTree.ParseError as error:
            text = f"the ISMRMRD header is not XML ({error}); fetch the file again"
            raise InputError(text, code="file.format") from error

        def text_of(path: str) -> str:
            return header.findtext("/".join(f"{{*}}{tag}" for tag in path.split("/")), "").strip()

        def number(path: str) -> int | None:
            return int(found) if (found := text_of(path)).isdecimal() else None

        rows, columns = (number(f"encoding/reconSpace/matrixSize/{axis}") for axis in "xy")
        system = "acquisitionSystemInformation"
        named = (text_of(f"{system}/{tag}") for tag in ("institutionName", "systemModel"))
        return cls(
            number("encoding/encodedSpace/matrixSize/y"),
            None if rows is None or columns is None else (rows, columns),
            ", ".join(filter(None, named)),
        )


# The beginning of a global heap in an HDF5 file.
_HEAP = b"GCOL\x01\0\0\0"


def _check_heap(content: Any, start: int = 0) -> None:
    """Refuse an HDF5 global heap with a zero-size entry, on which HDF5 2.0 would hang."""
    place = start + 16
    end = min(start + int.from_bytes(content[place - 8 : place], "little"), len(content))
    while place + 16 <= end:
        index, size = struct.unpack_from("<H6xQ", content, place)
        if (step := 16 + -(-size // 8) * 8 if index else size) == 0:
            raise OSError("an entry of its global heap has no size")
        place += step


class _CheckedFile(io.FileIO):
    """File whose HDF5 global heaps are checked when they are read."""

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        if (content := bytes(buffer[:count]))[: len(_HEAP)] == _HEAP:
            _check_heap(content)
        return count


def check_heaps(path: Path) -> None:
    """Check all global heaps of an HDF5 file, for libraries that open files themselves."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        start = content.find(_HEAP)
        while start >= 0:
            _check_heap(content, start)
            start = content.find(_HEAP, start + len(_HEAP))


@contextmanager
def _opened(path: Path, trouble: str, *, has_text: bool = False) -> Iterator[Any]:
    """Open an HDF5 file; the error for a damaged file contains its path and ``trouble``."""
    try:
        source: Any = _CheckedFile(path) if has_text else nullcontext(path)
        with source as place, h5py.File(place, "r") as file:
            yield file
    except InputError:
        raise
    except MemoryError:
        raise MachineError(f"memory ran out while {path} was read; free some") from None
    except Exception as error:  # OSError, RuntimeError, KeyError and others, all for broken bytes
        reason = " ".join(first_line(error).split())
        text = f"{path} {trouble} ({reason}); fetch the file again"
        raise InputError(text, code="file.format") from error


Slices = Literal["central-60", "central-80", "all"]
# Change this when the same configuration would give other numbers: old caches are then not used.
_VERSION = 1


@dataclass(frozen=True)
class FastMRIPreprocessing:
    """Coil compression, crop and scaling of volumes."""

    acquisition: str = "CORPD_FBK"
    min_coils: int = 9
    min_lines: int = 320
    size: int = 320
    coils: int = 8
    compression: Literal["measured", "full"] = "measured"
    first_acceleration: float = 16
    slices: Slices = "central-60"

    def __post_init__(self) -> None:
        allowed = {"compression": ("measured", "full"), "slices": get_args(Slices)}
        for name, choices in allowed.items():
            if (value := getattr(self, name)) not in choices:
                known = ", ".join(choices)
                raise InputError(f"{name} is {value!r}; choose from {known}", code="choice.unknown")
        if self.min_coils < self.coils:
            given = f"min_coils is {self.min_coils} for {self.coils} virtual coils"
            raise InputError(f"{given}; use at least as many", code="value.invalid")

    @property
    def key(self) -> str:
        """Digest of these settings: the name of the cache folder of slices prepared with them."""
        # Which slices and volumes are used does not change how one is prepared.
        kept = ("size", "coils", "compression", "first_acceleration")
        settings = {name: asdict(self)[name] for name in kept}
        first = mask_fingerprint(self.first_mask)
        text = json.dumps([_VERSION, settings, first], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def first_mask(self) -> NDArray[np.bool_]:
        """Lines of the first round: the published mask for 320 lines at R = 16, else a GRO mask."""
        if self.size == 320 and self.first_acceleration == 16:
            return np.asarray(published_masks((16,))[0])
        density = max(1.0, 15 / 16 * self.first_acceleration)
        return gro_mask(self.size, round(self.size / self.first_acceleration), density=density)

    def refusal(self, volume: Volume) -> str | None:
        """Return the reason for skipping a volume, or None."""
        lines = volume.encoded_lines or volume.width
        if self.acquisition and volume.acquisition != self.acquisition:
            return f"acquisition is {volume.acquisition or 'not stated'}, not {self.acquisition}"
        if volume.coils < self.min_coils:
            coils = f"{volume.coils} coil{'s' * (volume.coils != 1)}"
            return f"{coils}, at least {self.min_coils} are needed"
        if lines < self.min_lines:
            return f"{lines} encoded lines, at least {self.min_lines} are needed"
        if min(volume.height, volume.width) < self.size:
            return f"k-space is {volume.height}×{volume.width}, smaller than the crop {self.size}"
        return None

    def crop_note(self, volume: Volume) -> str | None:
        """Return a note if the crop size differs from the scanner's image size, otherwise None."""
        if volume.recon_size is None or volume.recon_size == (self.size, self.size):
            return None
        rows, columns = volume.recon_size
        is_cut = max(rows, columns) > self.size
        verb = "are cropped to" if is_cut else "are smaller than the crop,"
        return f"images of {rows}×{columns} (reconSpace) {verb} {self.size}×{self.size}"

    def chosen_slices(self, count: int) -> range:
        if self.slices == "all":
            return range(count)
        if self.slices == "central-80":
            return range(int(count * 0.1), int(count * 0.9))
        # In floats 1 - 0.8 is a little less than 0.2, so 35 slices start at 6 and not at 7, as in
        # the published counts.
        return range(int(count * (1 - 0.8)), int(count * 0.8))


@dataclass(frozen=True, eq=False)
class VirtualCoils:
    matrices: NDArray[np.complex64]
    scale: float


def cropped_coils(
    volume: Volume, index: int, size: int, matrix: NDArray[np.complex64] | None = None
) -> Tensor:
    """Return fully sampled coil images of one slice, cropped, complex (coil, size, size)."""
    kspace = torch.as_tensor(volume.kspace(index))
    if matrix is not None:
        # Mixing coils commutes with everything else; doing it first leaves fewer to transform.
        kspace = compress_coils(kspace, torch.as_tensor(matrix))
    images = _center(_inverse(kspace, axis=-2), size, axis=-2)
    return _center(_inverse(images, axis=-1), size, axis=-1).contiguous()


def _inverse(kspace: Tensor, axis: int) -> Tensor:
    images = torch.fft.ifft(torch.fft.ifftshift(kspace, dim=axis), dim=axis, norm="ortho")
    shifted: Tensor = torch.fft.fftshift(images, dim=axis)
    return shifted


def _center(images: Tensor, size: int, axis: int) -> Tensor:
    return images.narrow(axis, (images.shape[axis] - size) // 2, size)


def _prepare_volume(volume: Volume, preparation: FastMRIPreprocessing) -> VirtualCoils:
    mask = torch.as_tensor(preparation.first_mask)
    matrices, magnitudes = [], []
    for index in range(volume.slices):
        images = cropped_coils(volume, index, preparation.size)
        # The transform is unitary and mixing coils commutes with masking lines, so the few lines
        # of the first round represent the zero-filled images.
        lines = fft2c(images)[..., mask]
        source = lines if preparation.compression == "measured" else images
        matrix = compression_matrix(source, preparation.coils)
        matrices.append(matrix.numpy())
        virtual = images.new_zeros(preparation.coils, *images.shape[-2:])
        virtual[..., mask] = compress_coils(lines, matrix)
        magnitudes.append(ifft2c(virtual).abs().numpy().ravel())
    scale = float(np.quantile(np.concatenate(magnitudes), 0.95))
    if not np.isfinite(scale) or scale <= 0:
        text = f"{volume.path} has no signal in the first lines; fetch it again"
        raise InputError(text, code="value.invalid")
    return VirtualCoils(np.stack(matrices), scale)


def cached_coils(
    volume: Volume, preparation: FastMRIPreprocessing, cache: Path | None
) -> VirtualCoils:
    """Return the virtual coils of a volume from the cache; compute and store them if missing."""
    if cache is None:
        return _prepare_volume(volume, preparation)
    stat = volume.path.stat()
    # A file that was fetched again under the same name is another file.
    name = f"{volume.name}-{stat.st_size}-{stat.st_mtime_ns}.npz"
    path = Path(cache) / preparation.key / name
    if path.exists():
        with open_npz(path, "a prepared volume") as file:
            return VirtualCoils(file["matrices"], float(file["scale"]))
    coils = _prepare_volume(volume, preparation)
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez(file, matrices=coils.matrices, scale=coils.scale)
    return coils
