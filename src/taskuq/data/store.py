"""Prepared slices on disk: written once, mapped into memory by all who read them, and checked.

A volume has three files below the cache, in the folder of its preparation: coil images, magnitude
images, and a record that names the file they came from and the SHA-256 of every slice. The record
is written last; without it there is nothing.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from taskuq.data.preparation import Preparation, VirtualCoils, cached_coils, cropped_coils
from taskuq.data.volume import Volume
from taskuq.disk import reading
from taskuq.errors import InputError, MachineError
from taskuq.files import complete, read_json, whole_file, write_json
from taskuq.fingerprints import content_fingerprint
from taskuq.locks import locked
from taskuq.measure.coils import magnitude

SCHEMA = "taskuq.slices/1"
REMEDY = "delete it and run 'taskuq data prepare' again"
Precision = Literal["half", "single"]
TYPES: dict[Precision, tuple[Any, torch.dtype]] = {
    "half": (np.float16, torch.float16),
    "single": (np.float32, torch.float32),
}
ARRAYS = ("coils", "magnitude")


@dataclass(frozen=True, eq=False)
class StoredSlices:
    """The prepared slices of one volume.

    They are mapped while one is read: what one process has read lies in the memory of the
    machine once, and comes from there for all others.

    Attributes:
        record: The file that describes them; the arrays lie next to it.
        scale: What they were divided by.
        precision: Half precision rounds; single precision is what the raw file gives, to the bit.
        sums: The SHA-256 of each slice of both arrays.
    """

    record: Path
    scale: float
    precision: Precision
    sums: dict[str, list[str]]
    # A slice is verified by the process that first reads it.
    _verified: set[tuple[str, int]] = field(init=False, repr=False, default_factory=set)

    def coils(self, index: int) -> Tensor:
        """Coil images of one slice, complex (coil, size, size), divided by the scale."""
        return torch.view_as_complex(self._slice("coils", index))

    def magnitude(self, index: int) -> Tensor:
        """The RSS of the coil images of one slice, (size, size)."""
        return self._slice("magnitude", index)

    def _slice(self, name: str, index: int) -> Tensor:
        path = _array(self.record, name)
        with reading(path, "prepared slices", REMEDY):
            # Copy on write: torch needs writable memory, though no one writes.
            values = np.load(path, mmap_mode="c", allow_pickle=False)[index]
            if (name, index) not in self._verified:
                # The type stands in the file's head, which no slice's sum covers.
                is_typed = values.dtype == np.dtype(TYPES[self.precision][0])
                if not is_typed or hashlib.sha256(values).hexdigest() != self.sums[name][index]:
                    raise InputError(
                        f"{path} is not as it was written: slice {index} and its sha256 differ, so "
                        f"it was damaged; {REMEDY}",
                        code="file.damaged",
                    )
                self._verified.add((name, index))
            # A copy, because a map holds a file open as long as it is used.
            return torch.from_numpy(np.asarray(values)).to(torch.float32, copy=True)


def stored_slices(volume: Volume, preparation: Preparation, cache: Path) -> StoredSlices:
    """Find the slices of a volume in the store; an error says why they cannot be used."""
    path = _record(volume, preparation, cache)
    if not path.exists():
        raise InputError(f"{volume.name} is not in {cache}", code="file.missing")
    record = read_json(path, SCHEMA, remedy=REMEDY)
    with complete(path, "record of prepared slices", REMEDY):
        if not _is_of(volume, record["source"]):
            raise InputError(
                f"{path} was made from another file than {volume.path}", code="resume.mismatch"
            )
        for name in ARRAYS:
            size, array = record["bytes"][name], _array(path, name)
            if not array.is_file() or array.stat().st_size != size:
                raise InputError(f"{array} is missing or breaks off; {REMEDY}", code="file.damaged")
        return StoredSlices(path, float(record["scale"]), record["precision"], record["sums"])


def keep_slices(
    volume: Volume, preparation: Preparation, cache: Path, precision: Precision = "half"
) -> StoredSlices:
    """Prepare a volume and keep its slices, unless they are there already.

    Slices in single precision serve wherever half precision would, and stay. Two processes that
    prepare one volume do so one after the other, and the second has nothing left to do.
    """
    path = _record(volume, preparation, cache)
    with locked(path.with_suffix(".lock"), wait=True):
        try:
            found = stored_slices(volume, preparation, cache)
            if found.precision in (precision, "single"):
                return found
        except InputError:
            pass  # not there, or not to be used: it is made again
        # What a killed process left; no other process writes this volume.
        for left in path.parent.glob(f".{volume.name}.*.partial"):
            left.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        # Looked at before it is read: a file that changes meanwhile is another one afterwards.
        source = _source(volume)
        virtual = cached_coils(volume, preparation, cache)
        sums = _write(path, volume, preparation.size, virtual, precision)
        sizes = {name: _array(path, name).stat().st_size for name in ARRAYS}
        record = {"schema": SCHEMA, "source": source, "precision": precision}
        write_json(path, record | {"scale": virtual.scale, "bytes": sizes, "sums": sums})
    return stored_slices(volume, preparation, cache)


def bytes_of(volume: Volume, preparation: Preparation, precision: Precision) -> int:
    """Return what the slices of a volume take on disk."""
    numbers = volume.slices * preparation.size**2 * (2 * preparation.coils + 1)
    return numbers * int(np.dtype(TYPES[precision][0]).itemsize)


def require_space(cache: Path, needed: int) -> int:
    """Refuse to begin what the disk cannot hold; return the bytes that are free."""
    place = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise MachineError(
            f"the store needs {needed / 1e9:.4g} GB at {cache} and the disk has "
            f"{free / 1e9:.4g} GB free; make room, or choose another --cache"
        )
    return free


def is_stored(volume: Volume, preparation: Preparation, cache: Path, precision: Precision) -> bool:
    """Return True if nothing is left to do for a volume."""
    try:
        return stored_slices(volume, preparation, cache).precision in (precision, "single")
    except InputError:
        return False


def find_all(
    volumes: Sequence[Volume], preparation: Preparation, cache: Path | None, *, exact: bool
) -> tuple[list[StoredSlices], str]:
    """Find the slices of all volumes: those of all, or none and the reason.

    Some from the store and some from raw files would be images of two kinds in one data set.
    """
    if cache is None:
        return [], "no cache is named"
    found, lacking = [], []
    for volume in volumes:
        try:
            slices = stored_slices(volume, preparation, cache)
            if exact and slices.precision != "single":
                raise InputError(
                    f"{volume.name} is kept in half precision, and is judged here",
                    code="option.conflict",
                )
            found.append(slices)
        except InputError as error:
            lacking.append(str(error).split(";")[0])
    if not lacking:
        return found, ""
    others = cache.is_dir() and any(
        folder.is_dir() and folder.name != preparation.key for folder in cache.iterdir()
    )
    otherwise = ", which holds some that were prepared with other settings" if others else ""
    count = f"{len(lacking)} of {len(volumes)} volumes cannot be taken from {cache}{otherwise}"
    return [], f"{count}: {lacking[0]}"


def _record(volume: Volume, preparation: Preparation, cache: Path) -> Path:
    return Path(cache) / preparation.key / f"{volume.name}.json"


def _array(record: Path, name: str) -> Path:
    return record.with_name(f"{record.stem}.{name}.npy")


def _source(volume: Volume) -> dict[str, Any]:
    stat = volume.path.stat()
    content = content_fingerprint(volume.path)
    return {"bytes": stat.st_size, "modified": stat.st_mtime_ns, "content": content}


def _is_of(volume: Volume, source: dict[str, Any]) -> bool:
    """Return True if slices came from this file, or a copy of it, which has another time."""
    stat = volume.path.stat()
    if stat.st_size != source["bytes"]:
        return False
    if stat.st_mtime_ns == source["modified"]:
        return True
    return content_fingerprint(volume.path) == str(source["content"])


def _write(
    path: Path, volume: Volume, size: int, virtual: VirtualCoils, precision: Precision
) -> dict[str, list[str]]:
    """Write both arrays, slice by slice, and return the SHA-256 of each slice."""
    kind, dtype = TYPES[precision]
    shapes = {"coils": (virtual.matrices.shape[-1], size, size, 2), "magnitude": (size, size)}
    sums: dict[str, list[str]] = {name: [] for name in ARRAYS}
    # Not through a map: where the disk is full that ends the process without a word.
    with ExitStack() as whole, ExitStack() as opened:
        files = {}
        for name in ARRAYS:
            partial = whole.enter_context(whole_file(_array(path, name)))
            files[name] = opened.enter_context(partial.open("wb"))
            head = {"descr": npy.dtype_to_descr(np.dtype(kind)), "fortran_order": False}
            shape = (volume.slices, *shapes[name])
            npy.write_array_header_1_0(files[name], head | {"shape": shape})
        for index in range(volume.slices):
            # The very arithmetic that reads a raw file.
            images = cropped_coils(volume, index, size, virtual.matrices[index]) / virtual.scale
            parts = {"coils": torch.view_as_real(images), "magnitude": magnitude(images)}
            for name, part in parts.items():
                values: NDArray[Any] = part.to(dtype).contiguous().numpy()
                if not np.isfinite(values).all():
                    raise InputError(
                        f"{volume.path} has values in slice {index} that {precision} precision "
                        "cannot hold; prepare it with --precision single, or fetch it again",
                        code="value.nonfinite",
                    )
                files[name].write(values.data)
                sums[name].append(hashlib.sha256(values.data).hexdigest())
    return sums
