"""Readers of data sets, whose settings are the table ``[data]``.

A reader is a small frozen dataclass: its fields are the keys of the table, and ``open`` gives a
data set. Your own, after ``READERS.register("mine", Mine)``, works wherever the others do: in
``run``, both trainings, ``quality`` and ``data check``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Protocol, runtime_checkable

import numpy as np

from taskuq.data.dataset import Dataset, split_by_group
from taskuq.data.memory import InMemory
from taskuq.data.simulate import simulated_coils
from taskuq.data.splits import Part
from taskuq.errors import InputError
from taskuq.kinds import Kinds
from taskuq.settings import from_kinds, read_toml


@dataclass(frozen=True, kw_only=True)
class Reader(ABC):
    """Settings of every table ``[data]``; each kind adds its own.

    Arguments:
        coils: How many coils see magnitude images, by simulation; 0 leaves such images as they
            are. Coil images stay as they are, and so do all images of task networks.
        validation: The share of groups kept for validation.
        seed: Where coils and the split come from.
        in_memory: Whether to read every case once and keep it; the processes of a training share
            one copy.
    """

    coils: int = 8
    validation: float = 0.1
    seed: int = 0
    in_memory: bool = False

    # By how many processes cases are read into memory: more where a case takes a processor. Not
    # more than 8: a container often sees all processors of its host and may use a few.
    processes: ClassVar[int] = 1

    @abstractmethod
    def open(self) -> Dataset:
        """All cases, of all groups."""


READERS: Kinds[type[Reader]] = Kinds(
    "data reader",
    {
        "fastmri": "taskuq.data.fastmri:FastMRIData",
        "npz": "taskuq.data.arrays:NpzData",
        "folder": "taskuq.data.folder:FolderData",
        "atlas": "taskuq.data.atlas:AtlasData",
        "chest": "taskuq.data.chest:ChestData",
    },
)
# A field of settings whose table is one of them.
Data = Annotated[Reader, READERS]


def paper_data() -> Reader:
    """The reader of the paper's data, where a configuration names no other."""
    return READERS["fastmri"]()


def read_data(config: Path | str) -> Reader:
    """Read the table ``[data]`` of a configuration as the reader that it names."""
    table = read_toml(config).get("data")
    if not isinstance(table, dict):
        raise InputError(
            f"{config} has no table data; name a configuration that has one", code="config.missing"
        )
    return from_kinds(READERS, {"kind": "fastmri"} | table, "data")


@runtime_checkable
class JudgesApart(Protocol):
    """A reader whose judged cases may have a place of their own."""

    @property
    def is_judged_apart(self) -> bool:
        """True if that place is known."""
        ...

    def open_judged(self) -> Dataset:
        """The cases that are judged; those of ``open`` are for training."""
        ...


@runtime_checkable
class ReadsTargets(Protocol):
    """A reader that knows what a task network should say about its cases, or refuses to."""

    def open_targets(self) -> Part:
        """All cases as a task network sees them, with their targets."""
        ...


def open_data(reader: Reader) -> tuple[Dataset, Dataset]:
    """Open training and validation data, which share no group.

    Arguments:
        reader: Where they come from.

    Example:
        >>> from taskuq.data.arrays import ArrayDataset, NpzData, save_npz
        >>> import tempfile
        >>> data = ArrayDataset(np.ones((4, 8, 8)), label=[0, 1, 0, 1], group=["a", "a", "b", "b"])
        >>> path = save_npz(data, Path(tempfile.mkdtemp()) / "mine.npz")
        >>> train, tune = open_data(NpzData(path=path, coils=2, validation=0.5))
        >>> len(train), len(tune), train[0].image.shape
        (2, 2, torch.Size([2, 8, 8]))
    """
    training = _with_coils(reader.open(), reader)
    if isinstance(reader, JudgesApart) and reader.is_judged_apart:
        validation: Dataset = _with_coils(reader.open_judged(), reader)
    else:
        rng = np.random.default_rng([reader.seed, 1])
        shares = (1 - reader.validation, reader.validation)
        training, validation = split_by_group(training, shares, rng=rng)
    return _as_kept(training, reader), _as_kept(validation, reader)


def open_all(reader: Reader) -> Dataset:
    """Open all cases that may be judged, without a split: of fastMRI, the validation folder.

    Arguments:
        reader: Where they come from.

    Example:
        >>> from taskuq.data.atlas import AtlasData
        >>> len(open_all(AtlasData(patients=2, slices=3)))
        6
    """
    cases = reader.open_judged() if isinstance(reader, JudgesApart) else reader.open()
    return _as_kept(_with_coils(cases, reader), reader)


def open_task_data(reader: Reader) -> Part:
    """Open all cases with the targets of a task network: labels, unless the reader has others."""
    return reader.open_targets() if isinstance(reader, ReadsTargets) else Part.of(reader.open())


def given(path: Path | None, key: str, what: str) -> Path:
    """A path that a reader cannot do without."""
    if path is None:
        raise InputError(f"data.{key} is missing; name {what}", code="config.missing")
    return path


def _with_coils(cases: Dataset, reader: Reader) -> Dataset:
    return simulated_coils(cases, reader.coils, seed=reader.seed) if reader.coils else cases


def _as_kept(cases: Dataset, reader: Reader) -> Dataset:
    return InMemory.of(cases, reader.processes) if reader.in_memory else cases
