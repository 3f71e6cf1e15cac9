"""Data sets, splits, cases in memory-mapped arrays."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations, count
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from taskuq._io import file_lock, fingerprint, read_json, write_json, writing
from taskuq.errors import InputError, MachineError
from taskuq.interval import BoolArray, FloatArray
from taskuq.protocols import HasCases, HasPrecision

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Case(NamedTuple):
    """Image of a case with label, group and name."""

    image: Tensor
    label: int
    group: str
    case: str
    scale: float


@runtime_checkable
class Dataset(Protocol):
    """Cases that are read when they are asked for."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of each case, (case,)."""

    @property
    def groups(self) -> NDArray[np.str_]:
        """The group of each case, (case,)."""

    def __len__(self) -> int:
        """The number of cases."""

    def __getitem__(self, index: int) -> Case:
        """Read one case."""


@dataclass(frozen=True)
class Subset:
    """Some cases of a data set, in the given order; itself a data set."""

    source: Dataset
    indices: Sequence[int]

    @classmethod
    def where(cls, source: Dataset, chosen: BoolArray) -> Subset:
        """The cases of a data set for which ``chosen`` (case,) is True."""
        return cls(source, tuple(int(i) for i in np.flatnonzero(chosen)))

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of each case, (case,)."""
        return np.asarray(self.source.labels[np.asarray(self.indices, dtype=int)])

    @property
    def groups(self) -> NDArray[np.str_]:
        """The group of each case, (case,)."""
        return np.asarray(self.source.groups[np.asarray(self.indices, dtype=int)])

    @property
    def cases(self) -> NDArray[np.str_] | None:
        """The name of each case, (case,), where the source knows them without reading images."""
        names = _case_names(self.source)
        return None if names is None else np.asarray(names[np.asarray(self.indices, dtype=int)])

    @property
    def precision(self) -> str | None:
        """Return how exact the source's images are, where it says."""
        return precision_of(self.source)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Case:
        return self.source[self.indices[index]]


@dataclass(frozen=True)
class MappedDataset:
    """Data set with a transform applied on read."""

    source: Dataset
    change: Callable[[Case], Case]

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of each case, (case,)."""
        return self.source.labels

    @property
    def groups(self) -> NDArray[np.str_]:
        """The group of each case, (case,)."""
        return self.source.groups

    @property
    def cases(self) -> NDArray[np.str_] | None:
        """The name of each case, (case,), where the source knows them without reading images."""
        return _case_names(self.source)

    @property
    def precision(self) -> str | None:
        """Return how exact the source's images are, where it says."""
        return precision_of(self.source)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Case:
        return self.change(self.source[index])


def _case_names(dataset: Dataset) -> NDArray[np.str_] | None:
    """Return case names, or None if they need reading."""
    return dataset.cases if isinstance(dataset, HasCases) else None


def precision_of(dataset: Dataset) -> str | None:
    """Return the precision of images, ``"half"`` or ``"single"``; None if unknown."""
    return dataset.precision if isinstance(dataset, HasPrecision) else None


def split_by_group(
    dataset: Dataset, fractions: Sequence[float], *, rng: np.random.Generator
) -> tuple[Subset, ...]:
    """Split a data set into parts that share no group; within each, cases keep their order."""
    if min(fractions, default=0) <= 0 or abs(sum(fractions) - 1) > 1e-9:
        raise InputError(
            f"fractions are {list(fractions)}; give positive numbers that sum to 1",
            code="value.invalid",
        )
    groups = dataset.groups
    names = rng.permutation(np.unique(groups))
    # Two thirds of three groups is 1.9999... in floats.
    ends = np.floor(np.cumsum(fractions) * len(names) + 1e-9).astype(int)
    ends[-1] = len(names)
    parts = np.split(names, ends[:-1])
    if any(len(part) == 0 for part in parts):
        raise InputError(
            f"{len(names)} groups cannot be split {list(fractions)} without an empty part; give "
            "more groups or fewer parts",
            code="units.few",
        )
    return tuple(Subset.where(dataset, np.isin(groups, part)) for part in parts)


T = TypeVar("T")
# With fewer cases, starting processes takes longer than reading.
FEW = 256
# Images begin where any type of number may.
_STEP = 64
_made = count()


@dataclass(frozen=True, eq=False)
class InMemoryDataset:
    """Data set read into memory once."""

    items: tuple[Case, ...]
    labels: NDArray[np.int64]
    groups: NDArray[np.str_]
    precision: str | None = None

    @classmethod
    def of(cls, source: Dataset, processes: int = 1) -> InMemoryDataset:
        """Read every case by some processes; the processes of one training share one file."""
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
        found = cls(items, labels, source.groups, precision_of(source))
        if is_owner:
            # Until then other processes find it; what is mapped stays.
            for left in (own, lock):
                weakref.finalize(found, left.unlink, missing_ok=True)
        return found

    @property
    def cases(self) -> NDArray[np.str_]:
        """The name of each case, (case,)."""
        return np.array([item.case for item in self.items])

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Case:
        return self.items[index]


def load_all_images(
    cases: Dataset,
    change: Callable[[torch.Tensor], torch.Tensor],
    device: torch.device,
    most: float,
) -> torch.Tensor | None:
    """Load all images as one tensor, or None."""
    import torch

    source = cases.source if isinstance(cases, Subset) else cases
    if not isinstance(source, InMemoryDataset):
        return None
    images = [cases[k].image for k in range(len(cases))]
    first = change(images[0])
    is_fit = len(images) * first.nbytes <= most
    if not is_fit or len({(image.shape, image.dtype) for image in images}) > 1:
        return None
    whole = torch.empty((len(images), *first.shape), dtype=first.dtype, device=device)
    for place, image in zip(whole, images, strict=True):
        place.copy_(change(image))
    return whole


def parallel_map(
    function: Callable[..., T], *arguments: Iterable[Any], workers: int
) -> Iterator[T]:
    """Map over processes in order."""
    if workers <= 1:
        yield from map(function, *arguments)
        return
    # Fork would copy torch's thread pools in an unknown state; and threads of many processes hold
    # each other up.
    with _one_thread(), ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(function, *arguments)


def useful_workers(processes: int, cases: int) -> int:
    """Return a sensible number of processes."""
    return min(processes, os.cpu_count() or 1) if cases >= FEW else 1


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit processes that are started here to one thread each."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        os.environ.update(before)


def _name(source: Dataset) -> str:
    """Return the same name in all processes of a training, which open data in the same order."""
    keys = ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID")
    job = [os.environ.get(key, "") for key in keys]
    chosen = np.unique(np.linspace(0, len(source) - 1, 3).astype(int)) if len(source) else ()
    images = [np.ascontiguousarray(source[int(index)].image.numpy()) for index in chosen]
    marks = [hashlib.sha256(image.data).hexdigest() for image in images]
    # Not by labels: the atlas has them when all of its patients are drawn.
    made_of = [job if any(job) else os.getpgrp(), next(_made), source.groups.tolist(), marks]
    return fingerprint(made_of)[:32]


def _folder() -> Path:
    """Return a temporary folder of this user, without the files of processes that were killed."""
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
    # Images cross over as arrays: a tensor would hold a file descriptor each.
    items = [source[int(index)] for index in indices]
    return [(item._replace(image=None), item.image.numpy()) for item in items]  # type: ignore[arg-type]


def _write(source: Dataset, processes: int, path: Path) -> None:
    """Write the images of all cases, then the rest of them as JSON, then the length of that."""
    workers = useful_workers(processes, len(source))
    stretches = np.array_split(np.arange(len(source)), max(1, min(4 * workers, len(source))))
    parts = parallel_map(_read, [source] * len(stretches), stretches, workers=workers)
    # Not through a map: where the disk is full that ends the process without a word.
    with writing(path), path.open("wb") as out:
        items = []
        for item, image in (pair for part in parts for pair in part):
            out.write(bytes(-out.tell() % _STEP))
            known = (int(item.label), str(item.group), str(item.case), float(item.scale))
            items.append([known, out.tell(), image.shape, image.dtype.str])
            out.write(np.ascontiguousarray(image).data)
        about = json.dumps(items).encode()
        out.write(about + len(about).to_bytes(8, "little"))


def _mapped(path: Path) -> tuple[Case, ...] | None:
    """Return all cases, their images as views of the file; None where its owner has just ended."""
    import torch

    try:
        # Copy on write: a process that changes an image changes its own alone.
        memory = np.memmap(path, dtype=np.uint8, mode="c")
    except FileNotFoundError:
        return None
    length = int.from_bytes(memory[-8:].tobytes(), "little")
    items = []
    for known, begin, shape, kind in json.loads(memory[-8 - length : -8].tobytes()):
        size = math.prod(shape) * np.dtype(kind).itemsize
        image = np.asarray(memory[begin : begin + size]).view(kind).reshape(shape)
        items.append(Case(torch.from_numpy(image), *known))
    return tuple(items)


SCHEMA = "taskuq.split/1"
PARTS = ("train", "tune", "judge")


@dataclass(frozen=True)
class Split:
    """Disjoint groups for training, tuning and testing (`judge` -> `test`)."""

    train: tuple[str, ...]
    tune: tuple[str, ...]
    judge: tuple[str, ...]

    def __post_init__(self) -> None:
        for one, other in combinations(PARTS, 2):
            common = sorted(set(getattr(self, one)) & set(getattr(self, other)))
            if common:
                raise InputError(
                    f"{_groups(len(common))} both in {one} and in {other}, first {common[0]}; let "
                    "each patient be in one part only",
                    code="data.leak",
                )
        for part in PARTS:
            names = getattr(self, part)
            if len(set(names)) != len(names):
                raise InputError(
                    f"{part} names a group twice; name each group once", code="table.duplicate"
                )

    def of(self, dataset: Dataset) -> tuple[Subset, Subset, Subset]:
        """The three parts of a data set; every group of it must have a part."""
        return _part(dataset, self.train), _part(dataset, self.tune), self.judged(dataset)

    def judged(self, dataset: Dataset) -> Subset:
        """The cases of the groups that may calibrate and test."""
        known = {*self.train, *self.tune, *self.judge}
        unknown = sorted(set(map(str, dataset.groups)) - known)
        if unknown:
            raise InputError(
                f"{_groups(len(unknown))} in no part of the split, first {unknown[0]}; use the "
                "data the split was made for, or make a split of its own",
                code="resume.mismatch",
            )
        return _part(dataset, self.judge)


@dataclass(frozen=True, eq=False)
class LabelledSubset:
    """Cases of a subset with their targets."""

    cases: Dataset
    targets: FloatArray
    is_read: bool = False

    @classmethod
    def of(cls, cases: Dataset) -> LabelledSubset:
        """Cases with their labels as targets."""
        return cls(cases, np.asarray(cases.labels, dtype=np.float64)[:, None])

    def in_memory(self, processes: int = 1) -> LabelledSubset:
        """The same with every image read, as a magnitude image: a task network sees nothing else."""
        if self.is_read:
            return self
        # Of eight coils a sixteenth of the memory.
        combined = MappedDataset(self.cases, _combined)
        return replace(self, cases=InMemoryDataset.of(combined, processes), is_read=True)

    def split(self, split: Split) -> tuple[LabelledSubset, LabelledSubset, LabelledSubset]:
        """The three parts that a split names: to train on, to tune on, to judge."""
        train, tune, judge = (
            replace(self, cases=part, targets=self.targets[list(part.indices)])
            for part in split.of(self.cases)
        )
        return train, tune, judge


@dataclass(frozen=True)
class SplitConfig:
    """Shares of groups for training and tuning; the rest calibrates and tests."""

    path: Path | None = None
    train: float = 0.6
    tune: float = 0.1
    seed: int = 0

    def split(self, groups: NDArray[np.str_], *, is_stored: bool = True) -> Split:
        """The stored split, or a new one, which is stored; shares and seed must agree with it."""
        new = split_groups(groups, self.train, self.tune, seed=self.seed)
        if self.path is None or not (is_stored or self.path.exists()):
            return new
        return load_split(save_split(new, self.path))


def split_groups(groups: Iterable[str], train: float, tune: float, *, seed: int) -> Split:
    """Split the set of groups by a seed; what is not for training or tuning is judged."""
    if min(train, tune) <= 0 or train + tune > 1 + 1e-9:
        raise InputError(
            f"shares are {train} to train and {tune} to tune; give positive shares that sum to at "
            "most 1",
            code="value.invalid",
        )
    names = np.random.default_rng(seed).permutation(sorted({str(group) for group in groups}))
    # Half of four groups must be two even where 0.5 came out of arithmetic.
    ends = np.floor(np.cumsum([train, tune]) * len(names) + 1e-9).astype(int)
    parts = [tuple(str(n) for n in part) for part in np.split(names, ends)]
    if not (parts[0] and parts[1]):
        raise InputError(
            f"{_groups(len(names))} too few for shares {train} and {tune}; give more groups or "
            "larger shares",
            code="units.few",
        )
    return Split(*parts)


def _group_folds(groups: Iterable[str], count: int, tune: float, *, seed: int) -> list[Split]:
    """Cross-validation splits by group."""
    names = np.random.default_rng(seed).permutation(sorted({str(group) for group in groups}))
    if not 2 <= count <= len(names):
        raise InputError(
            f"{count} folds of {len(names)} groups; give 2 to {len(names)} folds",
            code="value.invalid",
        )
    splits = []
    for k, judged in enumerate(np.array_split(names, count)):
        others = [str(name) for name in names if name not in set(judged)]
        rest = split_groups(others, 1 - tune, tune, seed=seed + k + 1)
        # Shares are rounded down; no group is left out.
        splits.append(Split(rest.train + rest.judge, rest.tune, tuple(map(str, judged))))
    return splits


def save_split(split: Split, path: Path | str) -> Path:
    """Store a split; a file that holds another one is refused, not overwritten."""
    path = Path(path)
    if path.exists():
        if _as_sets(load_split(path)) != _as_sets(split):
            raise InputError(
                f"{path} holds another split (other patients, shares or seed); give another file, "
                "or delete it together with everything that was trained or calibrated with it",
                code="resume.mismatch",
            )
        return path
    record: dict[str, Any] = {"schema": SCHEMA}
    record |= {part: list(getattr(split, part)) for part in PARTS}
    return write_json(path, record)


def load_split(path: Path | str) -> Split:
    """Read what :func:`save_split` wrote; a split in which a group has two parts is refused."""
    record = read_json(path, SCHEMA, is_sealed=False)
    parts = [record.get(part) for part in PARTS]
    if not all(isinstance(p, list) and all(isinstance(n, str) for n in p) for p in parts):
        raise InputError(
            f"{path} lacks lists of names {', '.join(PARTS)}; write it again", code="file.format"
        )
    try:
        return Split(*(tuple(part) for part in parts))  # type: ignore[arg-type]  # checked above
    except InputError as error:
        raise InputError(f"{path}: {error}", code=error.code) from None


def _part(dataset: Dataset, names: Sequence[str]) -> Subset:
    return Subset.where(dataset, np.isin(dataset.groups, list(names)))


def _combined(item: Case) -> Case:
    from taskuq.measure._coils import magnitude

    return item._replace(image=magnitude(item.image))


def _as_sets(split: Split) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(getattr(split, part)) for part in PARTS)


def _groups(count: int) -> str:
    return "1 group is" if count == 1 else f"{count} groups are"
