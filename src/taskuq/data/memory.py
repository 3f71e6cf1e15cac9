"""Work on cases by several processes, and data sets whose cases were all read, once for all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from taskuq.data.dataset import Dataset, Item, Subset, precision_of
from taskuq.disk import writing
from taskuq.errors import MachineError
from taskuq.fingerprints import fingerprint
from taskuq.locks import locked

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
# With fewer cases, starting processes takes longer than reading.
FEW = 256


# How many cases are looked at to see that they are those that another process has read.
LOOKED_AT = 3
# Images begin where any type of number may.
STEP = 64


@dataclass(frozen=True, eq=False)
class InMemory:
    """A data set whose cases have all been read.

    Arguments:
        items: The cases.
        labels: The label of each case.
        groups: The group of each case.
        precision: How exact the images are, where their source says.
    """

    items: tuple[Item, ...]
    labels: NDArray[np.int64]
    groups: NDArray[np.str_]
    precision: str | None = None

    @classmethod
    def of(cls, source: Dataset, processes: int = 1) -> InMemory:
        """Read every case of another data set, in order or by several processes.

        The processes of one training that read the same cases on one machine share one copy: the
        first reads, the others map its memory into theirs. The same are data sets that pickle to
        the same bytes; one that cannot be pickled is read by every process.

        Cases of a patient share what was drawn for it, and eight threads held each other up: 80 s
        for what takes 4 s in order. Processes take whole stretches of cases; the result is the
        same for any number of them.

        Arguments:
            source: The data set.
            processes: The number of processes; a few cases are read by this one.
        """
        name = _name(source)
        place = _meeting_place() / name
        with locked(place, wait=True):
            file = _opened(place, name, source)
            is_ours = file is None
            if file is None:
                file = _filled(source, processes, name)
                with writing(place):
                    place.write_text(f"/proc/{os.getpid()}/fd/{file}", encoding="utf-8")
        items = _items(file)
        labels = np.array([item.label for item in items], dtype=np.int64)
        found = cls(items, labels, source.groups, precision_of(source))
        # Until then others find the memory by this process and its file.
        weakref.finalize(found, _let_go, file, place if is_ours else None)
        return found

    @property
    def cases(self) -> NDArray[np.str_]:
        """The name of each case, (case,)."""
        return np.array([item.case for item in self.items])

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Item:
        return self.items[index]


def whole_images(
    cases: Dataset,
    change: Callable[[torch.Tensor], torch.Tensor],
    device: torch.device,
    most: float,
) -> torch.Tensor | None:
    """All images of cases in memory as one tensor (case, ...); None where they are not for that.

    Arguments:
        cases: The cases; all of them, or some, of those in memory.
        change: What is made of each image.
        device: Where the tensor lies.
        most: How many bytes it may take.
    """
    import torch

    source = cases.source if isinstance(cases, Subset) else cases
    if not isinstance(source, InMemory):
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


def shared_out(function: Callable[..., T], *arguments: Iterable[Any], workers: int) -> Iterator[T]:
    """What :func:`map` gives, in the same order, computed by several processes.

    Arguments:
        function: What is done; a function that other processes can import.
        arguments: One iterable for each of its arguments.
        workers: The number of processes; 1 is this one.

    Example:
        >>> list(shared_out(pow, [2, 3], [5, 2], workers=1))
        [32, 9]
    """
    if workers <= 1:
        yield from map(function, *arguments)
        return
    # Fork would copy torch's thread pools in an unknown state; and threads of many processes hold
    # each other up.
    with _one_thread(), ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(function, *arguments)


def worth_starting(processes: int, cases: int) -> int:
    """How many of some processes are worth starting for so many cases on this machine.

    Arguments:
        processes: The most that are wanted.
        cases: How many cases they share.

    Example:
        >>> worth_starting(8, cases=20)
        1
    """
    return min(processes, os.cpu_count() or 1) if cases >= FEW else 1


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes started here compute with one thread each."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _read(source: Dataset, indices: NDArray[np.int64]) -> list[tuple[Item, NDArray[Any]]]:
    # Images cross over as arrays: a tensor would hold a file descriptor each.
    items = [source[int(index)] for index in indices]
    return [(item._replace(image=None), item.image.numpy()) for item in items]  # type: ignore[arg-type]


class _Sum:
    """A file that remembers nothing of what is written to it but the SHA-256."""

    def __init__(self) -> None:
        self.sum = hashlib.sha256()

    def write(self, part: Any) -> int:
        self.sum.update(part)
        return memoryview(part).nbytes


def _name(source: Dataset) -> str:
    """What the processes of a training call the same cases.

    All that a data set is made of decides, and some of its images: files may have changed.
    """
    whole = _Sum()
    try:
        pickle.dump(source, whole, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError):
        # Nobody can tell whether another process has the same one: it is read here.
        whole.write(os.urandom(32))
    chosen = np.unique(np.linspace(0, max(0, len(source) - 1), LOOKED_AT).astype(int))
    images = [source[int(index)].image.numpy() for index in chosen if len(source)]
    marks = [hashlib.sha256(np.ascontiguousarray(image).data).hexdigest() for image in images]
    # Not by labels: the atlas knows them when all of its patients are drawn.
    return fingerprint([_job(), whole.sum.hexdigest(), marks, source.groups.tolist()])[:32]


def _job() -> list[str]:
    """What all processes of a training have in common: a step of SLURM's, a run, or their group."""
    for names in (("SLURM_JOB_ID", "SLURM_STEP_ID"), ("TORCHELASTIC_RUN_ID",)):
        if all(name in os.environ for name in names):
            return [os.environ[name] for name in names]
    return [str(os.getpgrp())]


def _meeting_place() -> Path:
    """A folder of this user alone, in which processes tell each other where images lie."""
    folder = Path(tempfile.gettempdir()) / f"taskuq-{os.getuid()}"
    with writing(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise MachineError(f"{folder} belongs to somebody else; remove it, or set TMPDIR")
    return folder


def _opened(place: Path, name: str, source: Dataset) -> int | None:
    """The memory that another process has filled with these cases, where one has."""
    with suppress(OSError, ValueError):
        path = place.read_text(encoding="utf-8")
        # Whoever was there may have ended, and its number be another's.
        if f"/memfd:{name} " in os.readlink(path):
            file = os.open(path, os.O_RDONLY)
            if [known[0] for known, *_ in _about(file)] == source.labels.tolist():
                return file
            os.close(file)  # the same images with other labels
    return None


def _filled(source: Dataset, processes: int, name: str) -> int:
    """Memory with the images of all cases, then what else is known of them, then how long that is.

    It goes when the last process that has it ends, however that ends.
    """
    workers = worth_starting(processes, len(source))
    stretches = np.array_split(np.arange(len(source)), max(1, min(4 * workers, len(source))))
    parts = shared_out(_read, [source] * len(stretches), stretches, workers=workers)
    file, items = _nameless(name), []
    with writing("images into memory"), os.fdopen(os.dup(file), "wb") as out:
        for item, image in (pair for part in parts for pair in part):
            out.write(bytes(-out.tell() % STEP))
            known = (int(item.label), str(item.group), str(item.case), float(item.scale))
            items.append([known, out.tell(), image.shape, image.dtype.str])
            out.write(np.ascontiguousarray(image).data)
        about = json.dumps(items).encode()
        out.write(about)
        out.write(len(about).to_bytes(8, "little"))
    return file


def _nameless(name: str) -> int:
    """A file that is in memory and in no folder; the name tells what it is for."""
    if hasattr(os, "memfd_create"):  # Linux
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:  # others cannot find it there, and read for themselves
        return os.dup(file.fileno())


def _items(file: int) -> tuple[Item, ...]:
    """All cases, their images where they lie."""
    import torch

    with os.fdopen(os.dup(file), "rb") as opened:
        # Copy on write: who changes an image changes it for himself.
        memory = np.memmap(opened, dtype=np.uint8, mode="c")
    items = []
    for known, begin, shape, kind in _about(file):
        size = math.prod(shape) * np.dtype(kind).itemsize
        image = np.asarray(memory[begin : begin + size]).view(kind).reshape(shape)
        items.append(Item(torch.from_numpy(image), *known))
    return tuple(items)


def _about(file: int) -> list[Any]:
    """What is known of each case: label, group, name and scale; and where its image lies."""
    end = os.fstat(file).st_size - 8
    length = int.from_bytes(os.pread(file, 8, end), "little")
    about: list[Any] = json.loads(os.pread(file, length, end - length))
    return about


def _let_go(file: int, place: Path | None) -> None:
    os.close(file)
    if place is not None:
        place.unlink(missing_ok=True)
