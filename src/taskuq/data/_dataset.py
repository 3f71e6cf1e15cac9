"""Data sets, splits and memory-mapped cases."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations, count
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from taskuq._config import Seed, Unit
from taskuq._io import file_lock, fingerprint, read_json, write_json, writing
from taskuq.errors import InputError, MachineError
from taskuq.interval import BoolArray, FloatArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Case(NamedTuple):
    """Image of a case with its label, group, name and normalisation scale."""

    image: Tensor
    label: int
    group: str
    case: str
    scale: float


@runtime_checkable
class Dataset(Protocol):
    """Data set of cases, read on access."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """Label of each case, (case,)."""

    @property
    def groups(self) -> NDArray[np.str_]:
        """Group of each case, (case,)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Case: ...


@dataclass(frozen=True)
class Subset:
    """Selected cases of a data set in the given order, each transformed when it is read."""

    source: Dataset
    indices: Sequence[int]
    transform: Callable[[Case], Case] | None = None

    @classmethod
    def where(cls, source: Dataset, chosen: BoolArray) -> Subset:
        return cls(source, tuple(np.flatnonzero(chosen).tolist()))

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.asarray(self.source.labels[np.asarray(self.indices, dtype=int)])

    @property
    def groups(self) -> NDArray[np.str_]:
        return np.asarray(self.source.groups[np.asarray(self.indices, dtype=int)])

    @property
    def cases(self) -> NDArray[np.str_] | None:
        return self._of_source("cases")

    @property
    def sites(self) -> NDArray[np.str_] | None:
        return self._of_source("sites")

    def _of_source(self, name: str) -> NDArray[np.str_] | None:
        ids = getattr(self.source, name, None)
        return None if ids is None else np.asarray(ids[np.asarray(self.indices, dtype=int)])

    @property
    def precision(self) -> str | None:
        return precision_of(self.source)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Case:
        case = self.source[self.indices[index]]
        return case if self.transform is None else self.transform(case)


def transform_dataset(dataset: Dataset, transform: Callable[[Case], Case]) -> Subset:
    return Subset(dataset, range(len(dataset)), transform)


class PatientDataset(ABC):
    patients: int
    first: int

    @property
    @abstractmethod
    def _slices(self) -> int: ...

    @property
    def groups(self) -> NDArray[np.str_]:
        names = [f"patient-{self.first + k}" for k in range(self.patients)]
        return np.repeat(np.array(names), self._slices)

    @property
    def cases(self) -> NDArray[np.str_]:
        slices = np.tile(np.arange(self._slices), self.patients)
        return np.array([f"{g}-slice-{k}" for g, k in zip(self.groups, slices, strict=True)])

    def __len__(self) -> int:
        return self.patients * self._slices

    def _number(self, index: int) -> int:
        if not 0 <= index < self.patients:
            raise IndexError(f"patient {index} of {self.patients}")
        return self.first + index

    def _case(self, image: Tensor, label: bool, patient: int, slice_: int) -> Case:
        group = f"patient-{self.first + patient}"
        return Case(image, int(label), group, f"{group}-slice-{slice_}", scale=1.0)


def precision_of(dataset: Dataset) -> str | None:
    return getattr(dataset, "precision", None)


def split_by_group(
    dataset: Dataset, fractions: Sequence[float], *, seed: int | Sequence[int] | np.random.Generator
) -> tuple[Subset, ...]:
    """Split a data set at random into subsets with given fractions of its groups."""
    if min(fractions, default=0) <= 0 or abs(sum(fractions) - 1) > 1e-9:
        text = f"fractions are {list(fractions)}; pass positive fractions that add up to 1"
        raise InputError(text, code="value.invalid")
    groups = dataset.groups
    names = np.random.default_rng(seed).permutation(np.unique(groups))
    # Two thirds of three groups is 1.9999... in floats.
    ends = np.floor(np.cumsum(fractions)[:-1] * len(names) + 1e-9).astype(int)
    subsets = np.split(names, ends)
    if any(len(subset) == 0 for subset in subsets):
        text = f"{len(names)} groups are too few for {list(fractions)}; pass more"
        raise InputError(text, code="units.few")
    return tuple(Subset.where(dataset, np.isin(groups, subset)) for subset in subsets)


T = TypeVar("T")
# With fewer cases, starting processes takes longer than reading.
FEW = 256
_STEP = 64
_made = count()


@dataclass(frozen=True, eq=False)
class InMemoryDataset:
    items: tuple[Case, ...]
    labels: NDArray[np.int64]
    groups: NDArray[np.str_]
    precision: str | None = None
    sites: NDArray[np.str_] | None = None

    @classmethod
    def of(cls, source: Dataset, processes: int = 1) -> InMemoryDataset:
        """Read all cases into a memory-mapped file, shared by the processes of a training run."""
        name, folder = _name(source), _folder()
        own, lock = folder / f"{name}.images.{os.getpid()}", folder / f"{name}.lock"
        with file_lock(lock, wait=True):
            items = next(filter(None, map(_mapped, folder.glob(f"{name}.images.*"))), None)
            is_owner = items is None
            if items is None:
                partial = own.with_name(f"{name}.partial.{os.getpid()}")
                _write(source, processes, partial)
                items = _mapped(partial.replace(own)) or ()
        labels = np.array([item.label for item in items], dtype=np.int64)
        sites = getattr(source, "sites", None)
        dataset = cls(items, labels, source.groups, precision_of(source), sites)
        if is_owner:
            # Until then other processes find it; mapped images stay.
            for path in (own, lock):
                weakref.finalize(dataset, path.unlink, missing_ok=True)
        return dataset

    @property
    def cases(self) -> NDArray[np.str_]:
        return np.array([item.case for item in self.items])

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Case:
        return self.items[index]


def load_all_images(
    cases: Dataset, change: Callable[[Tensor], Tensor], device: torch.device, most: float
) -> Tensor | None:
    import torch

    source = cases.source if isinstance(cases, Subset) and cases.transform is None else cases
    if not isinstance(source, InMemoryDataset):
        return None
    images = [cases[k].image for k in range(len(cases))]
    first, kinds = change(images[0]), {(image.shape, image.dtype) for image in images}
    if len(images) * first.nbytes > most or len(kinds) > 1:
        return None
    whole = torch.empty((len(images), *first.shape), dtype=first.dtype, device=device)
    for place, image in zip(whole, images, strict=True):
        place.copy_(change(image))
    return whole


def parallel_map(function: Callable[..., T], *args: Iterable[Any], workers: int) -> Iterator[T]:
    if workers <= 1:
        yield from map(function, *args)
        return
    # Fork would copy torch's thread pools in an unknown state; threads of many processes compete.
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    with (
        patch.dict(os.environ, dict.fromkeys(names, "1")),
        ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
    ):
        yield from pool.map(function, *args)


def useful_workers(processes: int, cases: int) -> int:
    return min(processes, os.cpu_count() or 1) if cases >= FEW else 1


def _name(source: Dataset) -> str:
    """Return the name of the shared file, equal in all processes of a training run."""
    keys = ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID")
    job = [os.environ.get(key, "") for key in keys]
    chosen = np.unique(np.linspace(0, len(source) - 1, 3).astype(int)) if len(source) else ()
    images = [np.ascontiguousarray(source[int(index)].image.numpy()) for index in chosen]
    digests = [hashlib.sha256(image.data).hexdigest() for image in images]
    # Not by labels: the atlas would have to draw all of its patients.
    content = [job if any(job) else os.getpgrp(), next(_made), source.groups.tolist(), digests]
    return fingerprint(content)[:32]


def _folder() -> Path:
    """Return this user's temporary folder, after deleting the files of killed processes."""
    folder = Path(tempfile.gettempdir()) / f"taskuq-{os.getuid()}"
    with writing(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise MachineError(f"{folder} belongs to another user; remove it, or set TMPDIR")
        for path in folder.glob("*.*.[0-9]*"):
            try:
                os.kill(int(path.suffix[1:]), 0)
            except ProcessLookupError:
                path.unlink(missing_ok=True)
    return folder


def _read(source: Dataset, indices: NDArray[np.int64]) -> list[tuple[Case, NDArray[Any]]]:
    # Images are sent as arrays: a tensor would hold a file descriptor each.
    items = [source[int(index)] for index in indices]
    return [(item._replace(image=None), item.image.numpy()) for item in items]  # type: ignore[arg-type]


def _write(source: Dataset, processes: int, path: Path) -> None:
    """Write the images of all cases, then their other fields as JSON, then the JSON's length."""
    workers = useful_workers(processes, len(source))
    chunks = np.array_split(np.arange(len(source)), max(1, min(4 * workers, len(source))))
    read = parallel_map(_read, [source] * len(chunks), chunks, workers=workers)
    # Not through a map: a full disk would kill the process without a message.
    with writing(path), path.open("wb") as out:
        items = []
        for item, image in (pair for chunk in read for pair in chunk):
            out.write(bytes(-out.tell() % _STEP))
            fields = (int(item.label), str(item.group), str(item.case), float(item.scale))
            items.append([fields, out.tell(), image.shape, image.dtype.str])
            out.write(np.ascontiguousarray(image).data)
        footer = json.dumps(items).encode()
        out.write(footer + len(footer).to_bytes(8, "little"))


def _mapped(path: Path) -> tuple[Case, ...] | None:
    import torch

    try:
        # Copy on write: a process that changes an image changes only its own.
        memory = np.memmap(path, dtype=np.uint8, mode="c")
    except FileNotFoundError:
        return None
    length = int.from_bytes(memory[-8:].tobytes(), "little")
    items = []
    for fields, start, shape, kind in json.loads(memory[-8 - length : -8].tobytes()):
        size = math.prod(shape) * np.dtype(kind).itemsize
        image = np.asarray(memory[start : start + size]).view(kind).reshape(shape)
        items.append(Case(torch.from_numpy(image), *fields))
    return tuple(items)


SCHEMA = "taskuq.split/1"
PARTS = ("train", "tune", "judge")


@dataclass(frozen=True)
class Split:
    """Disjoint groups for training, for tuning, and for calibration and testing (``judge``)."""

    train: tuple[str, ...]
    tune: tuple[str, ...]
    judge: tuple[str, ...]

    def __post_init__(self) -> None:
        for one, other in combinations(PARTS, 2):
            common = sorted(set(getattr(self, one)) & set(getattr(self, other)))
            if common:
                where = f"{common[0]} is in {one} and in {other}, with {len(common) - 1} others"
                raise InputError(f"{where}; put each group into one part", code="data.leak")
        for part in PARTS:
            names = getattr(self, part)
            if len(set(names)) != len(names):
                text = f"{part} names a group twice; name it once"
                raise InputError(text, code="table.duplicate")

    def of(self, dataset: Dataset) -> tuple[Subset, Subset, Subset]:
        """Return the cases of the three sets; raise InputError if ``dataset`` has other groups."""
        return _subset(dataset, self.train), _subset(dataset, self.tune), self.judged(dataset)

    def judged(self, dataset: Dataset) -> Subset:
        """Return the cases of the groups for calibration and testing."""
        groups = {*self.train, *self.tune, *self.judge}
        unknown = sorted(set(map(str, dataset.groups)) - groups)
        if unknown:
            which = f"{len(unknown)} groups are not in the split, first {unknown[0]}"
            raise InputError(f"{which}; make another split", code="resume.mismatch")
        return _subset(dataset, self.judge)


@dataclass(frozen=True, eq=False)
class LabelledSubset:
    cases: Dataset
    targets: FloatArray
    is_read: bool = False

    @classmethod
    def of(cls, cases: Dataset) -> LabelledSubset:
        return cls(cases, np.asarray(cases.labels, dtype=np.float64)[:, None])

    def in_memory(self, processes: int = 1) -> LabelledSubset:
        if self.is_read:
            return self
        combined = transform_dataset(self.cases, _combined)
        return replace(self, cases=InMemoryDataset.of(combined, processes), is_read=True)

    def split(self, split: Split) -> tuple[LabelledSubset, LabelledSubset, LabelledSubset]:
        train, tune, judge = (
            replace(self, cases=part, targets=self.targets[list(part.indices)])
            for part in split.of(self.cases)
        )
        return train, tune, judge


@dataclass(frozen=True)
class SplitConfig:
    """Settings of [split]: fractions of groups for training and tuning, and the seed."""

    path: Path | None = None  #: JSON file of the split, written once and then reused.
    train: Unit = 0.6  #: Fraction of groups for training.
    tune: Unit = 0.1  #: Fraction of groups for early stopping.
    seed: Seed = 0  #: Seed of the split.

    def split(self, groups: NDArray[np.str_], *, is_stored: bool = True) -> Split:
        """Return the split and store it in ``path``; refuse a ``path`` with a different split."""
        new = split_groups(groups, self.train, self.tune, seed=self.seed)
        if self.path is None or not (is_stored or self.path.exists()):
            return new
        return load_split(save_split(new, self.path))


def split_groups(
    groups: Iterable[str], train: float, tune: float, *, seed: int | np.random.Generator
) -> Split:
    """Split groups into three sets: training, tuning, and calibration and testing.

    Args:
        groups: Names of groups; duplicates are ignored.
        train: Fraction for training.
        tune: Fraction for tuning; the other groups are for calibration and testing (``judge``).
        seed: Integer or Generator for the split.

    Example:
        >>> split_groups("abcdefghij", 0.6, 0.2, seed=0).judge
        ('i', 'b')
    """
    if min(train, tune) <= 0 or train + tune > 1 + 1e-9:
        given = f"train is {train} and tune {tune}"
        raise InputError(f"{given}; set fractions that add up to at most 1", code="value.invalid")
    names = np.random.default_rng(seed).permutation(sorted({str(group) for group in groups}))
    # Half of four groups must be two even if 0.5 came out of arithmetic.
    ends = np.floor(np.cumsum([train, tune]) * len(names) + 1e-9).astype(int)
    parts = [tuple(str(n) for n in part) for part in np.split(names, ends)]
    if not (parts[0] and parts[1]):
        text = f"{len(names)} groups are too few for {train} and {tune}; use more"
        raise InputError(text, code="units.few")
    return Split(*parts)


def save_split(split: Split, path: Path | str) -> Path:
    """Store a split; raise InputError if the file holds a different split."""
    path = Path(path)
    if path.exists():
        stored = load_split(path)
        if any(set(getattr(stored, part)) != set(getattr(split, part)) for part in PARTS):
            advice = "use another path, or delete it with all that was trained with it"
            raise InputError(f"{path} holds another split; {advice}", code="resume.mismatch")
        return path
    parts = {part: list(getattr(split, part)) for part in PARTS}
    return write_json(path, {"schema": SCHEMA, **parts})


def load_split(path: Path | str) -> Split:
    """Read a split written by :func:`save_split`; raise InputError if its sets overlap."""
    record = read_json(path, SCHEMA, is_sealed=False)
    parts = [record.get(part) for part in PARTS]
    if not all(isinstance(p, list) and all(isinstance(n, str) for n in p) for p in parts):
        text = f"{path} has no lists of names {', '.join(PARTS)}; write it again"
        raise InputError(text, code="file.format")
    try:
        return Split(*(tuple(part) for part in parts))  # type: ignore[arg-type]  # checked above
    except InputError as error:
        raise InputError(f"{path}: {error}", code=error.code) from None


def _subset(dataset: Dataset, names: Sequence[str]) -> Subset:
    return Subset.where(dataset, np.isin(dataset.groups, list(names)))


def _combined(item: Case) -> Case:
    from taskuq.measure._coils import magnitude

    return item._replace(image=magnitude(item.image))
