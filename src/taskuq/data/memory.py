"""Cases that were all read, once for the processes of a training, and work shared by processes."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
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
# Images begin where any type of number may.
_STEP = 64
_made = count()


@dataclass(frozen=True, eq=False)
class InMemory:
    """Data set whose images lie in one temporary file that is mapped into memory."""

    items: tuple[Item, ...]
    labels: NDArray[np.int64]
    groups: NDArray[np.str_]
    precision: str | None = None

    @classmethod
    def of(cls, source: Dataset, processes: int = 1) -> InMemory:
        """Read every case by some processes; the processes of one training share one file."""
        name, folder = _name(source), _folder()
        own, lock = folder / f"{name}.images.{os.getpid()}", folder / f"{name}.lock"
        with locked(lock, wait=True):
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

    def __getitem__(self, index: int) -> Item:
        return self.items[index]


def whole_images(
    cases: Dataset,
    change: Callable[[torch.Tensor], torch.Tensor],
    device: torch.device,
    most: float,
) -> torch.Tensor | None:
    """Return all changed images of cases in memory as one tensor of at most ``most`` bytes.

    None where cases are not in memory, of several shapes, or too large.
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
    """Map a function over arguments, in order, by several processes; 1 is this one."""
    if workers <= 1:
        yield from map(function, *arguments)
        return
    # Fork would copy torch's thread pools in an unknown state; and threads of many processes hold
    # each other up.
    with _one_thread(), ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(function, *arguments)


def worth_starting(processes: int, cases: int) -> int:
    """Return how many processes are worth starting for so many cases on this machine."""
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


def _read(source: Dataset, indices: NDArray[np.int64]) -> list[tuple[Item, NDArray[Any]]]:
    # Images cross over as arrays: a tensor would hold a file descriptor each.
    items = [source[int(index)] for index in indices]
    return [(item._replace(image=None), item.image.numpy()) for item in items]  # type: ignore[arg-type]


def _write(source: Dataset, processes: int, path: Path) -> None:
    """Write the images of all cases, then the rest of them as JSON, then the length of that."""
    workers = worth_starting(processes, len(source))
    stretches = np.array_split(np.arange(len(source)), max(1, min(4 * workers, len(source))))
    parts = shared_out(_read, [source] * len(stretches), stretches, workers=workers)
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


def _mapped(path: Path) -> tuple[Item, ...] | None:
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
        items.append(Item(torch.from_numpy(image), *known))
    return tuple(items)
