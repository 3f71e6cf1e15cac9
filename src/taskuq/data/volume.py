"""One fastMRI volume as distributed: an HDF5 file with k-space, a header and attributes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import h5py
import numpy as np
from numpy.typing import NDArray

from taskuq.disk import require_room
from taskuq.errors import InputError, MachineError, first_line

_NAMESPACE = "{http://www.ismrm.org/ISMRMRD}"


@dataclass(frozen=True)
class Header:
    """Geometry of k-space from the ISMRMRD header; None where it is missing.

    Attributes:
        encoded_size: Columns (readout), rows (phase encode) and partitions of k-space.
        recon_size: The same of the image the scanner shows.
        padding: First and one past the last phase-encode line that was acquired; the others are
            zeros.
    """

    encoded_size: tuple[int, int, int] | None = None
    recon_size: tuple[int, int, int] | None = None
    padding: tuple[int, int] | None = None


@dataclass(frozen=True)
class Volume:
    """A volume that can be read slice by slice; the file is opened for each read.

    Attributes:
        path: The file.
        slices: Number of slices.
        coils: Number of receive coils.
        height: Rows of k-space (readout).
        width: Columns of k-space (phase encode).
        acquisition: Such as CORPD_FBK; empty where the file does not say.
        patient: Identifier of the patient; empty where the file does not say.
        header: The ISMRMRD header.
        has_rss: Whether the file holds the reference image.
    """

    path: Path
    slices: int
    coils: int
    height: int
    width: int
    acquisition: str
    patient: str
    header: Header
    has_rss: bool

    @property
    def name(self) -> str:
        """The file name without its ending, as fastMRI+ has it."""
        return self.path.stem

    @property
    def bytes_of_slice(self) -> int:
        """Return what the k-space of one slice takes, in complex64."""
        return 8 * self.coils * self.height * self.width

    def kspace(self, index: int) -> NDArray[np.complex64]:
        """k-space of one slice, (coil, height, width), bit for bit as stored."""
        kspace = np.asarray(self._read("kspace", index))
        if not np.isfinite(kspace).all():
            raise InputError(
                f"{self.path} holds NaN or infinite values in slice {index}; fetch it again",
                code="value.nonfinite",
            )
        return kspace

    def reconstruction_rss(self, index: int) -> NDArray[np.float32]:
        """The reference image of one slice, (height, width)."""
        if not self.has_rss:
            raise InputError(
                f"{self.path} has no reconstruction_rss; compute it from k-space",
                code="file.format",
            )
        return np.asarray(self._read("reconstruction_rss", index))

    def _read(self, dataset: str, index: int) -> Any:
        if not 0 <= index < self.slices:
            raise IndexError(f"slice {index} of {self.slices} in {self.path}")
        # Reading a slice through its own handle keeps workers independent of each other.
        with _opened(self.path, f"breaks off in slice {index}") as file:
            return file[dataset][index]


def open_volume(path: Path | str) -> Volume:
    """Look into a fastMRI multi-coil file, knee or brain, without reading its k-space.

    References:
        Zbontar et al., fastMRI: An Open Dataset and Benchmarks for Accelerated MRI, 2018.
    """
    path = Path(path)
    with _opened(path, "cannot be opened as HDF5") as file:
        return _volume(path, file)


def read_header(xml: bytes | str) -> Header:
    """Read the fields we use from an ISMRMRD header; those it lacks are None."""
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise InputError(
            f"the ISMRMRD header is not XML ({error}); fetch the file again", code="file.format"
        ) from error
    encoded = _size(root, "encodedSpace")
    center = _number(root, ("encoding", "encodingLimits", "kspace_encoding_step_1", "center"))
    last = _number(root, ("encoding", "encodingLimits", "kspace_encoding_step_1", "maximum"))
    padding = None
    if encoded is not None and center is not None and last is not None:
        left = encoded[1] // 2 - center
        padding = (left, left + last + 1)
    return Header(encoded, _size(root, "reconSpace"), padding)


@contextmanager
def _opened(path: Path, trouble: str) -> Iterator[Any]:
    """A file that is open; what the library says of a broken one follows the trouble with it."""
    try:
        with h5py.File(path, "r") as file:
            yield file
    except InputError:
        raise
    except MemoryError:
        raise MachineError(f"memory ran out while {path} was read; free some") from None
    except Exception as error:  # OSError, RuntimeError, KeyError and others, all for broken bytes
        reason = " ".join(first_line(error).split())
        raise InputError(
            f"{path} {trouble} ({reason}); fetch the file again", code="file.format"
        ) from error


def _volume(path: Path, file: Any) -> Volume:
    kspace = file.get("kspace")
    if not isinstance(kspace, h5py.Dataset):
        raise InputError(
            f"{path} has no dataset kspace; give fastMRI multi-coil files", code="file.format"
        )
    if kspace.ndim != 4 or kspace.dtype.kind != "c" or 0 in kspace.shape:
        raise InputError(
            f"{path} has kspace of shape {kspace.shape} and type {kspace.dtype}; give multi-coil "
            "files, complex (slice, coil, height, width)",
            code="file.format",
        )
    require_room(path, math.prod(kspace.shape) * kspace.dtype.itemsize)
    slices, coils, height, width = kspace.shape
    xml = file["ismrmrd_header"][()] if "ismrmrd_header" in file else None
    rss = file.get("reconstruction_rss")
    rss = rss if isinstance(rss, h5py.Dataset) else None
    return Volume(
        path=path,
        slices=slices,
        coils=coils,
        height=height,
        width=width,
        acquisition=_text(file.attrs.get("acquisition")),
        patient=_text(file.attrs.get("patient_id")),
        header=Header() if xml is None else read_header(xml),
        has_rss=rss is not None and rss.ndim == 3 and len(rss) == slices,
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value.decode() if isinstance(value, bytes) else str(value)


def _size(root: ElementTree.Element, space: str) -> tuple[int, int, int] | None:
    numbers = [_number(root, ("encoding", space, "matrixSize", axis)) for axis in "xyz"]
    x, y, z = numbers
    return None if x is None or y is None or z is None else (x, y, z)


def _number(root: ElementTree.Element, steps: tuple[str, ...]) -> int | None:
    node: ElementTree.Element | None = root
    for step in steps:
        if node is None:
            return None
        found = node.find(_NAMESPACE + step)
        node = found if found is not None else node.find(step)
    try:
        return None if node is None or node.text is None else int(node.text)
    except ValueError:
        return None
