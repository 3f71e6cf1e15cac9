"""The data of a training, as a table of its configuration names them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from taskuq.data.dataset import Dataset, Item, split_by_group
from taskuq.errors import InputError
from taskuq.interval import BoolArray

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DataConfig:
    """Where training and validation cases come from; groups never fall into both.

    Arguments:
        kind: ``"fastmri"`` (folders of volumes), ``"npz"`` (one file, split by group) or
            ``"atlas"`` (the embedded atlas, drawn).
        path: The folder of training volumes, or the .npz file.
        validation_path: The folder of validation volumes (fastmri), of which the central slices
            are used. Without it a share of the training volumes validates.
        labels: fastMRI+ annotations (fastmri); without them every label is 0.
        files: The list of volumes that annotators looked at (fastmri); others are left out.
        finding: Which pathology is 1 (fastmri); Meniscus Tear by default.
        cache: A folder for prepared volumes (fastmri).
        coils: Virtual coils (fastmri), or simulated ones for magnitude images (npz, atlas); 0
            leaves magnitude images as they are.
        patients: Patients to draw (atlas).
        size: Rows and columns of a slice (atlas).
        slices: Slices for each patient (atlas).
        validation: The share of groups kept for validation.
        seed: Where patients, coils and the split come from.
        in_memory: Whether to read every case once and keep it.

    Example:
        >>> DataConfig(kind="atlas", patients=10).size
        128
    """

    kind: Literal["fastmri", "npz", "atlas"] = "fastmri"
    path: Path | None = None
    validation_path: Path | None = None
    labels: Path | None = None
    files: Path | None = None
    finding: str | None = None
    cache: Path | None = None
    coils: int = 8
    patients: int = 200
    size: int = 128
    slices: int = 8
    validation: float = 0.1
    seed: int = 0
    in_memory: bool = False


@dataclass(frozen=True)
class MaskConfig:
    """The masks of the rounds; training draws one of them for each case and epoch.

    Arguments:
        accelerations: R of the rounds, decreasing.
        published: Whether to take the paper's masks (320 columns; 16, 8, 4, 2).
        rule: How random lines are drawn where masks are made.
        seed: Where they come from.

    Example:
        >>> MaskConfig().masks(320).sum(axis=1)
        array([ 20,  40,  80, 160])
    """

    accelerations: tuple[float, ...] = (16.0, 8.0, 4.0, 2.0)
    published: bool = False
    rule: Literal["inverse-distance", "uniform"] = "inverse-distance"
    seed: int = 0

    def masks(self, width: int) -> BoolArray:
        """The masks, booleans (round, width)."""
        from taskuq.measure.masks import nested_masks
        from taskuq.measure.published import published_masks

        if self.published:
            if width != 320:
                raise InputError(f"images have {width} columns; the published masks have 320")
            return published_masks(self.accelerations)
        rng = np.random.default_rng(self.seed)
        return nested_masks(width, self.accelerations, rng=rng, rule=self.rule)


def open_data(config: DataConfig) -> tuple[Dataset, Dataset]:
    """Open training and validation data.

    Arguments:
        config: Where they come from.

    Returns:
        Two data sets that share no group.

    Example:
        >>> from taskuq.data.arrays import ArrayDataset, save_npz
        >>> import tempfile
        >>> data = ArrayDataset(np.ones((4, 8, 8)), label=[0, 1, 0, 1], group=["a", "a", "b", "b"])
        >>> path = save_npz(data, Path(tempfile.mkdtemp()) / "mine.npz")
        >>> train, tune = open_data(DataConfig(kind="npz", path=path, coils=2, validation=0.5))
        >>> len(train), len(tune), train[0].image.shape
        (2, 2, torch.Size([2, 8, 8]))
    """
    training, validation = _OPEN[config.kind](config)
    if config.in_memory:
        workers = _readers(config)
        return InMemory.of(training, workers), InMemory.of(validation, workers)
    return training, validation


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
    def of(cls, source: Dataset, workers: int = 1) -> InMemory:
        """Read every case of another data set, in order or by several processes.

        Cases of a patient share what was drawn for it, and eight threads held each other up: 80 s
        for what takes 4 s in order. Processes take whole stretches of cases; the result is the
        same for any number of them.

        Arguments:
            source: The data set.
            workers: The number of processes.
        """
        import torch

        stretches = np.array_split(np.arange(len(source)), max(1, min(4 * workers, len(source))))
        if workers <= 1:
            parts = [_read(source, part) for part in stretches]
        else:
            # Fork would copy torch's thread pools in an unknown state; and threads of many
            # processes hold each other up.
            spawn = get_context("spawn")
            with one_thread(), ProcessPoolExecutor(workers, mp_context=spawn) as pool:
                parts = list(pool.map(_read, [source] * len(stretches), stretches))
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


@contextmanager
def one_thread() -> Iterator[None]:
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


def _fastmri(config: DataConfig) -> tuple[Dataset, Dataset]:
    if config.path is None:
        raise InputError("data.path is missing; name the folder of training volumes")
    training = _volumes(config, config.path, "all")
    if config.validation_path is None:
        return _split(training, config)
    return training, _judged(config)


def _judged(config: DataConfig) -> Dataset:
    if config.validation_path is None:
        raise InputError("data.validation_path is missing; name the folder of validation volumes")
    return _volumes(config, config.validation_path, "central-60")


def _volumes(config: DataConfig, folder: Path, slices: Literal["all", "central-60"]) -> Dataset:
    from taskuq.data.fastmri import FastMRI, read_labels
    from taskuq.data.preparation import Preparation

    preparation = Preparation(coils=config.coils, slices=slices)
    labels = read_labels(config.labels, config.files, config.finding or "Meniscus Tear")
    return FastMRI(folder, preparation, labels, cache=config.cache)


def open_all(config: DataConfig) -> Dataset:
    """Open all cases that may be judged, without a split: of fastMRI, the validation folder.

    Arguments:
        config: Where they come from.

    Returns:
        One data set.

    Example:
        >>> len(open_all(DataConfig(kind="atlas", patients=2, slices=3)))
        6
    """
    if config.kind == "fastmri":
        judged = _judged(config)
        return InMemory.of(judged) if config.in_memory else judged
    data = _all_npz(config) if config.kind == "npz" else _all_atlas(config)
    return InMemory.of(data, _readers(config)) if config.in_memory else data


def _npz(config: DataConfig) -> tuple[Dataset, Dataset]:
    return _split(_all_npz(config), config)


def _all_npz(config: DataConfig) -> Dataset:
    from taskuq.data.arrays import read_npz
    from taskuq.data.simulate import SimulatedCoils

    if config.path is None:
        raise InputError("data.path is missing; name the .npz file")
    data: Dataset = read_npz(config.path)
    if config.coils and not data[0].image.is_complex():
        data = SimulatedCoils(data, coils=config.coils, seed=config.seed)
    return data


def _atlas(config: DataConfig) -> tuple[Dataset, Dataset]:
    return _split(_all_atlas(config), config)


def _all_atlas(config: DataConfig) -> Dataset:
    from taskuq.data.atlas import Atlas
    from taskuq.data.patient import PatientPlan

    plan = PatientPlan(size=config.size, slices=config.slices)
    return Atlas(config.patients, config.seed, coils=config.coils, plan=plan)


def _readers(config: DataConfig) -> int:
    # Drawing patients takes a processor; reading arrays does not, and would only copy them about.
    # No more than 8: a container often sees all processors of its host and may use a few.
    return min(8, os.cpu_count() or 1) if config.kind == "atlas" and config.patients >= 32 else 1


def _split(data: Dataset, config: DataConfig) -> tuple[Dataset, Dataset]:
    rng = np.random.default_rng([config.seed, 1])
    fractions = (1 - config.validation, config.validation)
    training, validation = split_by_group(data, fractions, rng=rng)
    return training, validation


_OPEN = {"fastmri": _fastmri, "npz": _npz, "atlas": _atlas}
