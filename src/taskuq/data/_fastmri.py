"""fastMRI data set and its prepared slices."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from taskuq._config import Count, Size
from taskuq._io import (
    atomic_write,
    complete_record,
    content_fingerprint,
    file_lock,
    read_json,
    reading,
    write_json,
)
from taskuq.data._dataset import Case, LabelledSubset
from taskuq.data._readers import DataCheck, DataConfig, FileCheck, as_size, require_path
from taskuq.data._volume import (
    AnnotationLabels,
    FastMRIPreprocessing,
    Slices,
    VirtualCoils,
    Volume,
    cached_coils,
    cropped_coils,
    open_volume,
    read_annotations,
    read_file_list,
)
from taskuq.errors import InputError, MachineError
from taskuq.measure._coils import magnitude

SCHEMA, SKIPPED = "taskuq.slices/1", "taskuq.skipped/1"
REMEDY = "delete it and run 'taskuq data prepare' again"
Precision = Literal["half", "single"]
TYPES: dict[Precision, tuple[Any, torch.dtype]] = {
    "half": (np.float16, torch.float16),
    "single": (np.float32, torch.float32),
}
ARRAYS = ("coils", "magnitude")
_ANNOTATED = 320


@dataclass(frozen=True, eq=False)
class _StoredSlices:
    record: Path
    scale: float
    precision: Precision
    sums: dict[str, list[str]]
    # A slice is verified by the process that first reads it.
    _verified: set[tuple[str, int]] = field(init=False, repr=False, default_factory=set)

    def coils(self, index: int) -> Tensor:
        return torch.view_as_complex(self._slice("coils", index))

    def magnitude(self, index: int) -> Tensor:
        return self._slice("magnitude", index)

    def _slice(self, name: str, index: int) -> Tensor:
        path = _array(self.record, name)
        with reading(path, "prepared slices", REMEDY):
            # Copy on write: torch needs writable memory, though no one writes.
            values = np.load(path, mmap_mode="c", allow_pickle=False)[index]
            if (name, index) not in self._verified:
                # The type is in the header of the file, which no checksum of a slice covers.
                is_typed = values.dtype == np.dtype(TYPES[self.precision][0])
                if not is_typed or hashlib.sha256(values).hexdigest() != self.sums[name][index]:
                    text = f"{path} is damaged in slice {index}; {REMEDY}"
                    raise InputError(text, code="file.damaged")
                self._verified.add((name, index))
            # A copy, because a map holds a file open as long as it is used.
            return torch.from_numpy(np.asarray(values)).to(torch.float32, copy=True)


def _stored_slices(volume: Volume, preparation: FastMRIPreprocessing, cache: Path) -> _StoredSlices:
    path = _record(volume, preparation, cache)
    if not path.exists():
        raise InputError(f"{volume.name} is not in {cache}", code="file.missing")
    record = read_json(path, SCHEMA, remedy=REMEDY)
    with complete_record(path, "record of prepared slices", REMEDY):
        if not _is_of(volume, record["source"]):
            raise InputError(f"{path} was prepared from another file", code="resume.mismatch")
        for name in ARRAYS:
            size, array = record["bytes"][name], _array(path, name)
            if not array.is_file() or array.stat().st_size != size:
                raise InputError(f"{array} is missing or truncated; {REMEDY}", code="file.damaged")
        return _StoredSlices(path, float(record["scale"]), record["precision"], record["sums"])


def prepare_slices(
    volume: Volume, preparation: FastMRIPreprocessing, cache: Path, precision: Precision = "half"
) -> _StoredSlices:
    path = _record(volume, preparation, cache)
    with file_lock(path.with_suffix(".lock"), wait=True):
        try:
            stored = _stored_slices(volume, preparation, cache)
            if stored.precision in (precision, "single"):
                return stored
        except InputError:
            pass  # missing or unusable: prepared again
        # Remains of a killed process; no other process writes this volume.
        for left in path.parent.glob(f".{volume.name}.*.partial"):
            left.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        # Before it is read: a file that changes meanwhile is another one afterwards.
        stat, content = volume.path.stat(), content_fingerprint(volume.path)
        source = {"bytes": stat.st_size, "modified": stat.st_mtime_ns, "content": content}
        try:
            virtual = cached_coils(volume, preparation, cache)
        except InputError as error:
            write_json(_skipped(path), {"schema": SKIPPED, "source": source, "reason": str(error)})
            raise
        _skipped(path).unlink(missing_ok=True)
        sums = _write(path, volume, preparation.size, virtual, precision)
        sizes = {name: _array(path, name).stat().st_size for name in ARRAYS}
        record = {"schema": SCHEMA, "source": source, "precision": precision}
        write_json(path, record | {"scale": virtual.scale, "bytes": sizes, "sums": sums})
    return _stored_slices(volume, preparation, cache)


def prepared_bytes(volume: Volume, preparation: FastMRIPreprocessing, precision: Precision) -> int:
    numbers = volume.slices * preparation.size**2 * (2 * preparation.coils + 1)
    return numbers * int(np.dtype(TYPES[precision][0]).itemsize)


def require_disk_space(cache: Path, needed: int) -> int:
    place = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        sizes = f"{needed / 1e9:.4g} GB, and {free / 1e9:.4g} GB are free"
        raise MachineError(f"{cache} needs {sizes}; free some, or choose another --cache")
    return free


def is_prepared(
    volume: Volume, preparation: FastMRIPreprocessing, cache: Path, precision: Precision
) -> bool:
    try:
        return _stored_slices(volume, preparation, cache).precision in (precision, "single")
    except InputError:
        return False


def _find_prepared(
    volumes: Sequence[Volume], preparation: FastMRIPreprocessing, cache: Path | None, *, exact: bool
) -> tuple[dict[str, _StoredSlices], dict[str, str], str]:
    """Return cached slices, unreadable volumes and, if raw files must be read, the reason."""
    if cache is None:
        return {}, {}, "no cache is named"
    prepared, missing = {}, {}
    for volume in volumes:
        try:
            slices = _stored_slices(volume, preparation, cache)
            if exact and slices.precision != "single":
                text = f"{volume.name}, a test case, has half precision"
                raise InputError(text, code="option.conflict")
            prepared[volume.name] = slices
        except InputError as error:
            missing[volume.name] = str(error).split(";")[0]
    unreadable: dict[str, str] = {}
    if not missing:
        return prepared, {}, ""
    if prepared:
        # Up to the first volume that can be read: without it the store is incomplete.
        for volume in volumes:
            if volume.name in missing:
                if (reason := _unreadable(volume, preparation, cache)) is None:
                    break
                unreadable[volume.name] = reason
        if len(unreadable) == len(missing):
            return prepared, unreadable, ""
    others = any(f.is_dir() and f.name != preparation.key for f in cache.glob("*"))
    settings = ", which has some prepared with other settings" if others else ""
    left = [reason for name, reason in missing.items() if name not in unreadable]
    count = f"{len(left)} of {len(volumes)} volumes are not available in {cache}{settings}"
    return {}, unreadable, f"{count}: {left[0]}"


def _unreadable(volume: Volume, preparation: FastMRIPreprocessing, cache: Path) -> str | None:
    """Return the reason why a volume cannot be read, from the cache or by reading it, or None."""
    path = _skipped(_record(volume, preparation, cache))
    with suppress(InputError), complete_record(path, "record of a skipped volume"):
        record = read_json(path, SKIPPED, remedy=REMEDY)
        if _is_of(volume, record["source"]):
            return str(record["reason"]).split(";")[0]
    try:
        for index in range(volume.slices):
            volume.kspace(index)
    except InputError as error:
        return str(error).split(";")[0]
    return None


def _skipped(record: Path) -> Path:
    return record.with_suffix(".skipped.json")


def _record(volume: Volume, preparation: FastMRIPreprocessing, cache: Path) -> Path:
    return Path(cache) / preparation.key / f"{volume.name}.json"


def _array(record: Path, name: str) -> Path:
    return record.with_name(f"{record.stem}.{name}.npy")


def _is_of(volume: Volume, source: dict[str, Any]) -> bool:
    stat = volume.path.stat()
    return bool(stat.st_size == source["bytes"]) and (
        stat.st_mtime_ns == source["modified"]
        or content_fingerprint(volume.path) == str(source["content"])
    )


def _write(
    path: Path, volume: Volume, size: int, virtual: VirtualCoils, precision: Precision
) -> dict[str, list[str]]:
    kind, dtype = TYPES[precision]
    shapes = {"coils": (virtual.matrices.shape[-1], size, size, 2), "magnitude": (size, size)}
    sums: dict[str, list[str]] = {name: [] for name in ARRAYS}
    # Not through a map: a full disk would kill the process without a message.
    with ExitStack() as whole, ExitStack() as opened:
        files = {}
        for name in ARRAYS:
            partial = whole.enter_context(atomic_write(_array(path, name)))
            files[name] = opened.enter_context(partial.open("wb"))
            head = {"descr": npy.dtype_to_descr(np.dtype(kind)), "fortran_order": False}
            shape = (volume.slices, *shapes[name])
            npy.write_array_header_1_0(files[name], head | {"shape": shape})
        for index in range(volume.slices):
            images = cropped_coils(volume, index, size, virtual.matrices[index]) / virtual.scale
            arrays = {"coils": torch.view_as_real(images), "magnitude": magnitude(images)}
            for name, array in arrays.items():
                values: NDArray[Any] = array.to(dtype).contiguous().numpy()
                if not np.isfinite(values).all():
                    where = f"{volume.path} overflows {precision} precision in slice {index}"
                    raise InputError(f"{where}; use --precision single", code="value.nonfinite")
                files[name].write(values.data)
                sums[name].append(hashlib.sha256(values.data).hexdigest())
    return sums


@dataclass(frozen=True)
class _VolumeSurvey:
    file: Path
    volume: Volume | None
    reason: str
    slices: int = 0
    positives: int = 0


def _survey(
    folder: Path | str,
    preparation: FastMRIPreprocessing,
    labels: AnnotationLabels | None = None,
    *,
    strict: bool = False,
    thorough: bool = False,
) -> list[_VolumeSurvey]:
    """Inspect every .h5 file of a folder, sorted by path; note why a file is skipped."""
    files = sorted(Path(folder).rglob("*.h5"))
    if not files:
        raise InputError(f"{folder} has no .h5 file; use a folder of volumes", code="file.missing")
    surveyed = []
    for file in files:
        row = _survey_file(file, preparation, labels, thorough)
        is_choice = row.reason.startswith(("acquisition is", "not annotated"))
        if strict and row.reason and not is_choice:
            raise InputError(
                f"{file}: {row.reason}; remove the file or drop --strict", code="file.format"
            )
        surveyed.append(row)
    return surveyed


Grouping = Literal["patient", "volume"]


class FastMRIDataset:
    """Slices of fastMRI volumes; a group is a patient or a volume.

    Unreadable volumes and those of patients in ``without`` are left out and noted in ``notes``.
    """

    def __init__(
        self,
        folder: Path | str,
        preparation: FastMRIPreprocessing | None = None,
        labels: AnnotationLabels | None = None,
        *,
        cache: Path | str | None = None,
        combined: bool = False,
        exact: bool = False,
        strict: bool = False,
        group: Grouping = "patient",
        without: frozenset[str] = frozenset(),
    ) -> None:
        self.combined = combined
        self.preparation = preparation or FastMRIPreprocessing()
        self.cache = None if cache is None else Path(cache)
        self.surveyed = _survey(folder, self.preparation, labels, strict=strict)
        found = [f.volume for f in self.surveyed if f.volume is not None and not f.reason]
        if not found:
            reasons = "; ".join(sorted({f.reason for f in self.surveyed})[:3])
            raise InputError(f"no file of {folder} can be used ({reasons})", code="file.format")
        names = [volume.name for volume in found]
        if len(set(names)) != len(names):
            raise InputError(f"{folder} has files of equal name; keep one", code="table.duplicate")
        shared = {v.name for v in found if v.patient and v.patient in without}
        found = [volume for volume in found if volume.name not in shared]
        self._stored, unreadable, self.raw_because = _find_prepared(
            found, self.preparation, self.cache, exact=exact
        )
        self.volumes = [volume for volume in found if volume.name not in unreadable]
        if not self.volumes:
            text = f"every volume of {folder} is left out (patients of the validation folder, or "
            raise InputError(f"{text}unreadable files); add others", code="file.format")
        broken = [f"{f.file} {f.reason}" for f in self.surveyed if f.volume is None]
        self.notes = [f"left out: {reason}" for reason in (*broken, *unreadable.values())]
        if shared:
            count = f"{len(shared)} volume{'s' * (len(shared) > 1)}"
            text = f"left out of training: {count} of patients in validation_path"
            self.notes.append(f"{text}, such as {min(shared)}")
        self.notes += _volume_notes(self.volumes, self.preparation, group)
        rounds = any(slices.precision == "half" for slices in self._stored.values())
        self.precision: Precision = "half" if rounds else "single"
        self._cases = [
            (number, index)
            for number, volume in enumerate(self.volumes)
            for index in self.preparation.chosen_slices(volume.slices)
        ]
        self.labels = np.zeros(len(self._cases), dtype=np.int64)
        if labels is not None:
            chosen = [(v.name, self.preparation.chosen_slices(v.slices)) for v in self.volumes]
            self.labels = np.concatenate([labels.of(*each) for each in chosen])
        self._groups = [_group(volume, group) for volume in self.volumes]
        self.groups: NDArray[np.str_] = np.array([self._groups[n] for n, _ in self._cases])

    @property
    def sites(self) -> NDArray[np.str_] | None:
        """Institution or system of each case, if all headers name it; otherwise None."""
        if not all(volume.site for volume in self.volumes):
            return None
        sites: dict[str, set[str]] = {}
        for group, volume in zip(self._groups, self.volumes, strict=True):
            sites.setdefault(group, set()).add(volume.site)
        # A patient scanned at several sites is not divided among them.
        return np.array([" / ".join(sorted(sites[group])) for group in self.groups.tolist()])

    @property
    def cases(self) -> NDArray[np.str_]:
        return np.array([self._name(number, slice_) for number, slice_ in self._cases])

    def __len__(self) -> int:
        return len(self._cases)

    def __getitem__(self, index: int) -> Case:
        number, slice_ = self._cases[index]
        image, scale = self._read(number, slice_)
        group, case = self._groups[number], self._name(number, slice_)
        return Case(image, int(self.labels[index]), group, case, scale)

    def _read(self, number: int, slice_: int) -> tuple[Tensor, float]:
        if self._stored:
            stored = self._stored[self.volumes[number].name]
            return (stored.magnitude if self.combined else stored.coils)(slice_), stored.scale
        virtual = _coils(self.volumes[number], self.preparation, self.cache)
        size, matrix = self.preparation.size, virtual.matrices[slice_]
        image = cropped_coils(self.volumes[number], slice_, size, matrix) / virtual.scale
        return (magnitude(image) if self.combined else image), virtual.scale

    def _name(self, number: int, slice_: int) -> str:
        return f"{self.volumes[number].name}-{slice_}"


def _group(volume: Volume, group: Grouping) -> str:
    return volume.patient if group == "patient" and volume.patient else volume.name


def _volume_notes(
    volumes: Sequence[Volume], preparation: FastMRIPreprocessing, group: Grouping
) -> list[str]:
    of_group = Counter(_group(volume, group) for volume in volumes)
    notes = []
    if several := [name for name, count in of_group.items() if count > 1]:
        files = sum(of_group[name] for name in several)
        joined = f"{len(several)} group{'s' * (len(several) > 1)}"
        text = f"{files} volumes were joined into {joined} by patient_id"
        notes.append(f'{text}; set group = "volume" for one group per file')
    crops = Counter(filter(None, map(preparation.crop_note, volumes)))
    of = f"of {len(volumes)} volumes; set size to change the crop"
    notes += [f"{text} in {n} {of}" for text, n in crops.items()]
    return notes


@dataclass(frozen=True, kw_only=True)
class FastMRIData(DataConfig):
    """Settings of [data] for fastMRI volumes; ``coils`` is the number of virtual coils."""

    path: Path | None = None  #: Folder of training volumes (.h5); all slices are used.
    #: Folder of validation volumes; default: a fraction of the training volumes.
    validation_path: Path | None = None
    labels: Path | None = None  #: fastMRI+ annotation file; without it, all labels are 0.
    file_list: Path | None = None  #: Text file of annotated volumes; others are skipped.
    pathology: str = "Meniscus Tear"  #: fastMRI+ annotation that counts as label 1.
    cache: Path | None = None  #: Folder of prepared slices (taskuq data prepare).
    acquisition: str = "CORPD_FBK"  #: fastMRI acquisition type to use; "" uses all.
    min_coils: Count = 9  #: Skip volumes with fewer receive coils.
    min_lines: Count = 320  #: Skip volumes with fewer phase-encoding lines.
    size: Size = 320  #: Rows and columns of the central crop.
    #: Lines that determine the virtual coils: "measured" (in the first round) or "full" (all).
    compression: Literal["measured", "full"] = "measured"
    slices: Slices = "central-60"  #: Slices of validation volumes to use.
    #: "patient" groups files with the same patient_id; "volume" makes each file a group.
    group: Grouping = "patient"
    processes: ClassVar[int] = 8

    @property
    def has_test_set(self) -> bool:
        return self.validation_path is not None

    def open(self) -> FastMRIDataset:
        return self._volumes(self._training_folder, "all", without=self._test_patients)

    def open_test(self) -> FastMRIDataset:
        """Open the test slices of the validation volumes, ignoring a half-precision cache."""
        folder = require_path(self.validation_path, "validation_path", "the validation folder")
        return self._volumes(folder, self.slices, exact=True)

    def open_targets(self) -> LabelledSubset:
        """Open the training volumes as magnitude images; labels are required."""
        require_path(self.labels, "labels", "the fastMRI+ annotations (knee.csv)")
        return LabelledSubset.of(
            self._volumes(self._training_folder, "all", combined=True, without=self._test_patients)
        )

    @property
    def _test_patients(self) -> frozenset[str]:
        if self.validation_path is None or self.group == "volume":
            return frozenset()
        surveyed = _survey(self.validation_path, self._preparation(self.slices))
        return frozenset(f.volume.patient for f in surveyed if f.volume is not None) - {""}

    def boxes(self, cases: Sequence[str]) -> dict[str, tuple[slice, slice]]:
        found: dict[str, tuple[slice, slice]] = {}
        labels = self._labels
        for row in () if labels is None else labels.annotations.of(self.pathology):
            case = f"{row.file}-{row.slice_index}"
            if row.box is not None and case in cases:
                # Boxes refer to the central 320×320 pixels.
                rows, columns = row.rows_and_columns(_ANNOTATED)
                shift = (self.size - _ANNOTATED) // 2
                box = tuple(
                    slice(max(0, side.start + shift), min(self.size, side.stop + shift))
                    for side in (rows, columns)
                )
                if all(side.stop > side.start for side in box):
                    found.setdefault(case, (box[0], box[1]))
        return found

    def check(self, *, strict: bool = False, quick: bool = False) -> DataCheck:
        notes = self._labels
        unreadable = () if notes is None else notes.annotations.unreadable
        if strict and unreadable:
            text = f"labels, {unreadable[0]}; fix it or drop --strict"
            raise InputError(text, code="file.format")
        folders: list[tuple[Path, Slices]] = []
        if self.path is not None or self.validation_path is None:
            folders.append((self._training_folder, "all"))
        if self.validation_path is not None:
            folders.append((self.validation_path, self.slices))
        rows: list[FileCheck] = []
        used: list[Volume] = []
        remarks: list[str] = []
        for folder, slices in folders:
            plan = self._preparation(slices)
            surveyed = _survey(folder, plan, notes, strict=strict, thorough=not quick)
            own = [f.volume for f in surveyed if f.volume is not None and not f.reason]
            remarks += _volume_notes(own, plan, self.group)
            used += own
            for found in surveyed:
                kind, size = "", ""
                if (volume := found.volume) is not None:
                    kind = volume.acquisition
                    size = as_size((volume.coils, volume.height, volume.width))
                file = str(found.file.relative_to(folder))
                counts = (found.slices, found.positives, found.reason)
                rows.append(FileCheck(file, kind, size, *counts))
        skipped = tuple(f"label row skipped: {reason}" for reason in unreadable)
        groups = len({_group(volume, self.group) for volume in used})
        return DataCheck(tuple(rows), groups, (*dict.fromkeys(remarks), *skipped))

    @property
    def _training_folder(self) -> Path:
        return require_path(self.path, "path", "the folder of training volumes")

    @property
    def _labels(self) -> AnnotationLabels | None:
        listed = None if self.file_list is None else read_file_list(self.file_list)
        if self.labels is not None:
            return AnnotationLabels(read_annotations(self.labels), self.pathology, listed)
        if listed is not None:
            text = f"file_list is {self.file_list} without labels; set the fastMRI+ CSV too"
            raise InputError(text, code="option.missing")
        return None

    def _preparation(self, slices: Slices) -> FastMRIPreprocessing:
        return FastMRIPreprocessing(
            acquisition=self.acquisition, min_coils=self.min_coils, size=self.size,
            min_lines=self.min_lines, coils=self.coils, compression=self.compression,
            slices=slices,
        )  # fmt: skip

    def _volumes(
        self, folder: Path, slices: Slices, *, combined: bool = False, exact: bool = False,
        without: frozenset[str] = frozenset(),
    ) -> FastMRIDataset:  # fmt: skip
        data = FastMRIDataset(
            folder, self._preparation(slices), self._labels, cache=self.cache, combined=combined,
            exact=exact, group=self.group, without=without,
        )  # fmt: skip
        _warn(folder, data, "single" if exact else "half")
        return data


def _survey_file(
    file: Path, preparation: FastMRIPreprocessing, labels: AnnotationLabels | None, thorough: bool
) -> _VolumeSurvey:
    try:
        volume = open_volume(file)
        if thorough and preparation.refusal(volume) is None:
            for index in range(volume.slices):
                volume.kspace(index)
    except InputError as error:
        # The table already names the file.
        return _VolumeSurvey(file, None, str(error).removeprefix(f"{file} ").split(";")[0])
    reason = preparation.refusal(volume)
    if reason is None and labels is not None and labels.files is not None:
        reason = None if volume.name in labels.files else "not annotated in fastMRI+"
    if reason is not None:
        return _VolumeSurvey(file, volume, reason)
    slices = preparation.chosen_slices(volume.slices)
    if len(slices) == 0:
        return _VolumeSurvey(file, volume, f"no slice is left of {volume.slices}")
    positives = 0 if labels is None else int(labels.of(volume.name, slices).sum())
    return _VolumeSurvey(file, volume, "", len(slices), positives)


def _warn(folder: Path, data: FastMRIDataset, precision: Precision) -> None:
    """Print each note, and the reason for reading raw files, in the first process only."""
    if any(os.environ.get(name, "0") != "0" for name in _RANKS):
        return
    notes = [f"{folder}: {note}\n" for note in data.notes]
    sys.stderr.write("".join(note for note in notes if note not in _warned))
    _warned.update(notes)
    if not data.raw_because or str(folder) in _warned:
        return
    _warned.add(str(folder))
    per_pass = sum(volume.bytes_of_slice * volume.slices for volume in data.volumes)
    sys.stderr.write(
        f"{folder}: raw k-space is read, {per_pass / 1e9:.3g} GB for all slices, because "
        f"{data.raw_because}; to read prepared slices, run 'taskuq data prepare {folder} "
        f"--cache {data.cache or 'FOLDER'} --precision {precision}'\n"
    )


# Process numbers set by launchers.
_RANKS = ("LOCAL_RANK", "SLURM_PROCID")
_warned: set[str] = set()
_coils = lru_cache(maxsize=2048)(cached_coils)
