"""Work on cases by several processes, and data sets whose cases have all been read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from taskuq.data.dataset import Dataset, Item

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
# With fewer cases, starting processes takes longer than reading.
FEW = 256


@dataclass(frozen=True, eq=False)
class InMemory:
    """A data set whose cases have all been read.

    Arguments:
        items: The cases.
        labels: The label of each case.
        groups: The group of each case.
    """

    items: tuple[Item, ...]
    labels: NDArray[np.int64]
    groups: NDArray[np.str_]

    @classmethod
    def of(cls, source: Dataset, processes: int = 1) -> InMemory:
        """Read every case of another data set, in order or by several processes.

        Cases of a patient share what was drawn for it, and eight threads held each other up: 80 s
        for what takes 4 s in order. Processes take whole stretches of cases; the result is the
        same for any number of them.

        Arguments:
            source: The data set.
            processes: The number of processes; a few cases are read by this one.
        """
        import torch

        workers = min(processes, os.cpu_count() or 1) if len(source) >= FEW else 1
        stretches = np.array_split(np.arange(len(source)), max(1, min(4 * workers, len(source))))
        parts = shared_out(_read, [source] * len(stretches), stretches, workers=workers)
        items = tuple(
            item._replace(image=torch.from_numpy(image)) for part in parts for item, image in part
        )
        labels = np.array([item.label for item in items], dtype=np.int64)
        return cls(items, labels, np.array([item.group for item in items]))

    @property
    def cases(self) -> NDArray[np.str_]:
        """The name of each case, (case,)."""
        return np.array([item.case for item in self.items])

    def to(self, device: torch.device | str) -> InMemory:
        """The same with every image on a device: batches then need no loading at all.

        Arguments:
            device: The device; images must fit into its memory.
        """
        items = tuple(item._replace(image=item.image.to(device)) for item in self.items)
        return replace(self, items=items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Item:
        return self.items[index]


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
