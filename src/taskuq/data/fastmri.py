"""A folder of fastMRI volumes as a data set: filtered, cropped, compressed, scaled, labelled."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from taskuq.data.annotations import Labels, read_labels
from taskuq.data.check import Check, Row, as_size
from taskuq.data.dataset import Item
from taskuq.data.preparation import Preparation, Slices, VirtualCoils, cached_coils, cropped_coils
from taskuq.data.readers import Reader, given
from taskuq.data.splits import Part
from taskuq.data.store import Precision, find_all
from taskuq.data.volume import Volume, open_volume
from taskuq.errors import InputError
from taskuq.measure.coils import magnitude


@dataclass(frozen=True)
class Surveyed:
    """Finding about one file.

    Attributes:
        file: The file.
        volume: The volume, where it could be opened.
        reason: Why it is not used; empty where it is.
        slices: How many slices are used.
        positives: How many of these carry the pathology.
    """

    file: Path
    volume: Volume | None
    reason: str
    slices: int = 0
    positives: int = 0


def survey(
    folder: Path | str,
    preparation: Preparation,
    labels: Labels | None = None,
    *,
    strict: bool = False,
    thorough: bool = False,
) -> list[Surveyed]:
    """Look at every .h5 file of a folder, sorted by path: what is used, what is skipped and why."""
    files = sorted(Path(folder).rglob("*.h5"))
    if not files:
        raise InputError(
            f"{folder} holds no .h5 file; give the folder of fastMRI volumes", code="file.missing"
        )
    surveyed = []
    for file in files:
        found = _surveyed(file, preparation, labels, thorough)
        is_choice = found.reason.startswith(("acquisition is", "not annotated"))
        if strict and found.reason and not is_choice:
            raise InputError(
                f"{file}: {found.reason}; remove the file or leave out --strict", code="file.format"
            )
        surveyed.append(found)
    return surveyed


class FastMRI:
    """Slices of fastMRI multi-coil volumes, complex (coil, size, size), divided by their scale.

    A volume is a group. Slices come from the store where it holds those of all volumes, else from
    raw files. Then the first slice read from a volume prepares it, which reads it whole; a cache
    keeps virtual coils and scale for later runs and other workers.

    Arguments:
        folder: A folder with .h5 files as fastMRI distributes them.
        preparation: Filter, crop, compression and slices; the paper's by default.
        labels: Where labels come from; without, all labels are 0.
        cache: A folder for prepared volumes; None keeps nothing on disk.
        combined: Give the RSS of the virtual coils, (size, size), and not the coils.
        exact: Leave a store alone that rounds, as cases must not be that are judged.
        strict: Stop at the first unusable file instead of skipping it.

    Attributes:
        precision: ``"half"`` where slices come from a store that rounds.
        raw_because: Why raw files are read; empty where the store is.

    Example:
        >>> import tempfile, h5py
        >>> folder = Path(tempfile.mkdtemp())
        >>> with h5py.File(folder / "file1000001.h5", "w") as file:
        ...     values = rng.normal(size=(3, 10, 40, 36)).astype(np.complex64)
        ...     file["kspace"] = values
        ...     file.attrs["acquisition"] = "CORPD_FBK"
        >>> small = Preparation(size=32, minimum_width=32, slices="all")
        >>> data = FastMRI(folder, small)
        >>> len(data), data[0].image.shape, data[0].case
        (3, torch.Size([8, 32, 32]), 'file1000001-0')
    """

    def __init__(
        self,
        folder: Path | str,
        preparation: Preparation | None = None,
        labels: Labels | None = None,
        *,
        cache: Path | str | None = None,
        combined: bool = False,
        exact: bool = False,
        strict: bool = False,
    ) -> None:
        self.combined = combined
        self.preparation = preparation or Preparation()
        self.cache = None if cache is None else Path(cache)
        self.surveyed = survey(folder, self.preparation, labels, strict=strict)
        self.volumes = [f.volume for f in self.surveyed if f.volume is not None and not f.reason]
        if not self.volumes:
            reasons = sorted({f.reason for f in self.surveyed})
            raise InputError(
                f"none of the {len(self.surveyed)} files in {folder} can be used "
                f"({'; '.join(reasons[:3])}); run 'taskuq data check {folder}'",
                code="file.format",
            )
        names = [volume.name for volume in self.volumes]
        if len(set(names)) != len(names):
            raise InputError(
                f"file names repeat below {folder}; give one copy of each volume",
                code="table.duplicate",
            )
        self._stored, self.raw_because = find_all(
            self.volumes, self.preparation, self.cache, exact=exact
        )
        rounds = any(slices.precision == "half" for slices in self._stored)
        self.precision: Precision = "half" if rounds else "single"
        self._cases = [
            (number, index)
            for number, volume in enumerate(self.volumes)
            for index in self.preparation.chosen_slices(volume.slices)
        ]
        self.labels = np.concatenate(list(self._labels(labels)))
        self.groups: NDArray[np.str_] = np.array([names[number] for number, _ in self._cases])

    @property
    def cases(self) -> NDArray[np.str_]:
        """The name of each case: volume and slice, (case,)."""
        return np.array([self._name(number, slice_) for number, slice_ in self._cases])

    def __len__(self) -> int:
        return len(self._cases)

    def __getitem__(self, index: int) -> Item:
        number, slice_ = self._cases[index]
        image, scale = self._read(number, slice_)
        return Item(
            image=image,
            label=int(self.labels[index]),
            group=self.volumes[number].name,
            case=self._name(number, slice_),
            scale=scale,
        )

    def virtual_coils(self, number: int) -> VirtualCoils:
        """Virtual coils and scale of one volume."""
        return _coils(self.volumes[number], self.preparation, self.cache)

    def _read(self, number: int, slice_: int) -> tuple[Tensor, float]:
        if self._stored:
            stored = self._stored[number]
            return (stored.magnitude if self.combined else stored.coils)(slice_), stored.scale
        virtual = self.virtual_coils(number)
        size, matrix = self.preparation.size, virtual.matrices[slice_]
        image = cropped_coils(self.volumes[number], slice_, size, matrix) / virtual.scale
        return (magnitude(image) if self.combined else image), virtual.scale

    def _name(self, number: int, slice_: int) -> str:
        return f"{self.volumes[number].name}-{slice_}"

    def _labels(self, labels: Labels | None) -> Iterator[NDArray[np.int64]]:
        for volume in self.volumes:
            slices = self.preparation.chosen_slices(volume.slices)
            none = np.zeros(len(slices), dtype=np.int64)
            yield none if labels is None else labels.of(volume.name, slices)


@dataclass(frozen=True, kw_only=True)
class FastMRIData(Reader):
    """Folders of fastMRI volumes; ``coils`` are virtual ones.

    Arguments:
        path: The folder of training volumes, of which all slices are used.
        validation_path: The folder of validation volumes. Without it a share of the training
            volumes validates.
        labels: fastMRI+ annotations; without them every label is 0.
        files: The list of volumes that annotators looked at; others are left out.
        finding: Which pathology is 1.
        cache: A folder for prepared volumes.
        acquisition: Which acquisition to keep; empty keeps all.
        minimum_coils: Volumes with fewer receive coils are skipped.
        minimum_width: Volumes with fewer encoded phase-encode lines are skipped.
        size: Rows and columns of the central crop.
        compression: Virtual coils from the lines of the first round (``"measured"``), or from all
            (``"full"``), as the paper's code made them.
        slices: Which slices of validation volumes are used.

    Example:
        >>> FastMRIData(validation_path=Path("knee_multicoil_val")).slices
        'central-60'
    """

    path: Path | None = None
    validation_path: Path | None = None
    labels: Path | None = None
    files: Path | None = None
    finding: str = "Meniscus Tear"
    cache: Path | None = None
    acquisition: str = "CORPD_FBK"
    minimum_coils: int = 9
    minimum_width: int = 320
    size: int = 320
    compression: Literal["measured", "full"] = "measured"
    slices: Slices = "central-60"

    # A volume takes a processor to transform.
    processes: ClassVar[int] = 8

    @property
    def is_judged_apart(self) -> bool:
        """True if there is a folder of validation volumes."""
        return self.validation_path is not None

    def open(self) -> FastMRI:
        """All slices of the training volumes; the paper's 17286 training images are those."""
        return self._volumes(given(self.path, "path", "the folder of training volumes"), "all")

    def open_judged(self) -> FastMRI:
        """The central slices of the validation volumes, never rounded to half precision."""
        folder = given(self.validation_path, "validation_path", "the folder of validation volumes")
        return self._volumes(folder, self.slices, exact=True)

    def open_targets(self) -> Part:
        """The training volumes as magnitude images; labels are needed."""
        given(self.labels, "labels", "the fastMRI+ annotations (knee.csv)")
        folder = given(self.path, "path", "the folder of training volumes")
        return Part.of(self._volumes(folder, "all", combined=True))

    def check(self, *, strict: bool, thorough: bool) -> Check:
        """One row for each file of both folders."""
        notes = self._labels
        unreadable = () if notes is None else notes.annotations.unreadable
        if strict and unreadable:
            raise InputError(
                f"labels, {unreadable[0]}; correct the row or leave out --strict",
                code="file.format",
            )
        if not self.is_judged_apart:
            given(self.path, "path", "the folder of training volumes")
        rows: list[Row] = []
        for folder, slices in ((self.path, "all"), (self.validation_path, self.slices)):
            if folder is not None:
                plan = self._preparation(slices)  # type: ignore[arg-type]  # a Literal in a tuple
                found = survey(folder, plan, notes, strict=strict, thorough=thorough)
                rows += [_row(folder, file) for file in found]
        skipped = tuple(f"label row skipped: {reason}" for reason in unreadable)
        return Check(tuple(rows), groups=sum(row.used for row in rows), notes=skipped)

    @property
    def _labels(self) -> Labels | None:
        return read_labels(self.labels, self.files, self.finding)

    def _preparation(self, slices: Slices) -> Preparation:
        return Preparation(
            acquisition=self.acquisition, minimum_coils=self.minimum_coils, size=self.size,
            minimum_width=self.minimum_width, coils=self.coils, compression=self.compression,
            slices=slices,
        )  # fmt: skip

    def _volumes(
        self, folder: Path, slices: Slices, *, combined: bool = False, exact: bool = False
    ) -> FastMRI:
        data = FastMRI(
            folder, self._preparation(slices), self._labels, cache=self.cache, combined=combined,
            exact=exact,
        )  # fmt: skip
        if data.raw_because:
            _say_raw(folder, data, "single" if exact else "half")
        return data


def _row(folder: Path, found: Surveyed) -> Row:
    volume = found.volume
    return Row(
        file=str(found.file.relative_to(folder)),
        kind="" if volume is None else volume.acquisition,
        size="" if volume is None else as_size((volume.coils, volume.height, volume.width)),
        slices=found.slices,
        positives=found.positives,
        reason=found.reason,
    )


def _surveyed(
    file: Path, preparation: Preparation, labels: Labels | None, thorough: bool
) -> Surveyed:
    try:
        volume = open_volume(file)
        if thorough and preparation.refusal(volume) is None:
            for index in range(volume.slices):
                if not np.isfinite(volume.kspace(index)).all():
                    raise InputError(
                        f"{file} holds NaN or infinity in slice {index}", code="value.nonfinite"
                    )
    except InputError as error:
        # The table already names the file.
        return Surveyed(file, None, str(error).removeprefix(f"{file} ").split(";")[0])
    reason = preparation.refusal(volume)
    if reason is None and labels is not None and labels.files is not None:
        reason = None if volume.name in labels.files else "not annotated in fastMRI+"
    if reason is not None:
        return Surveyed(file, volume, reason)
    slices = preparation.chosen_slices(volume.slices)
    if len(slices) == 0:
        return Surveyed(file, volume, f"no slice is left of {volume.slices}")
    positives = 0 if labels is None else int(labels.of(volume.name, slices).sum())
    return Surveyed(file, volume, "", len(slices), positives)


def _say_raw(folder: Path, data: FastMRI, precision: Precision) -> None:
    """Warn once, for all processes of a training, that raw files are read, and how fast."""
    if folder in _said or any(os.environ.get(name, "0") != "0" for name in _RANKS):
        return
    _said.add(folder)
    per_pass = sum(volume.bytes_of_slice * volume.slices for volume in data.volumes)
    sys.stderr.write(
        f"{folder}: raw k-space is read, {per_pass / 1e9:.3g} GB for all slices and "
        f"{_rate(data.volumes[0], data.preparation):.0f} slices a second in one process, because "
        f"{data.raw_because}; to read prepared slices, run 'taskuq data prepare {folder} --cache "
        f"{data.cache or 'FOLDER'} --precision {precision}'\n"
    )


def _rate(volume: Volume, preparation: Preparation) -> float:
    """Slices that this process reads in a second, from one."""
    matrix = np.eye(volume.coils, preparation.coils, dtype=np.complex64)
    started = time.perf_counter()
    with suppress(InputError):  # reading that slice will raise it
        cropped_coils(volume, volume.slices // 2, preparation.size, matrix)
    return 1 / (time.perf_counter() - started)


# What launchers number the processes of a training by.
_RANKS = ("LOCAL_RANK", "SLURM_PROCID")
_said: set[Path] = set()
_coils = lru_cache(maxsize=2048)(cached_coils)
