"""Registry of readers, folder checks, previews and simulated coils."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from taskuq._config import Coils, Seed, Unit, from_registry, read_toml
from taskuq._io import atomic_write, image_format
from taskuq._registry import Registry
from taskuq._seeds import as_seed
from taskuq.data._dataset import (
    Case,
    Dataset,
    InMemoryDataset,
    LabelledSubset,
    Subset,
    split_by_group,
    transform_dataset,
)
from taskuq.errors import InputError
from taskuq.interval import BoolArray

if TYPE_CHECKING:
    from torch import Tensor


def simulate_coil_dataset(
    dataset: Dataset, coils: int, *, seed: int | np.random.Generator
) -> Subset:
    """Return the data set with simulated coil images in place of magnitude images."""
    return transform_dataset(dataset, _CoilSimulation(coils, as_seed(seed)))


@dataclass(frozen=True)
class _CoilSimulation:
    coils: int
    seed: int

    def __call__(self, item: Case) -> Case:
        from taskuq.measure._coils import simulate_coils, smooth_phase

        image = item.image
        if image.ndim == 3 and image.is_complex():
            return item
        if image.ndim != 2 or image.is_complex():
            given = f"case {item.case} has shape {tuple(image.shape)} and type {image.dtype}"
            raise InputError(f"{given}; coils need magnitude images", code="shape.axes")
        height, width = image.shape
        maps = _group_maps(self.coils, height, width, self.seed, item.group)
        # Python's hash of a string differs from run to run.
        rng = np.random.default_rng([self.seed, 1, zlib.crc32(item.case.encode())])
        phase = smooth_phase(height, width, rng=rng)
        return item._replace(image=simulate_coils(image, maps, phase))


@lru_cache(maxsize=64)
def _group_maps(coils: int, height: int, width: int, seed: int, group: str) -> Tensor:
    from taskuq.measure._coils import coil_sensitivities

    rng = np.random.default_rng([seed, 0, zlib.crc32(group.encode())])
    return coil_sensitivities(coils, height, width, rng=rng)


@dataclass(frozen=True, kw_only=True)
class DataConfig(ABC):
    """Settings of [data] shared by all readers, and methods that a reader overrides.

    Args:
        coils: Number of simulated or virtual coils; 0 keeps magnitude images.
        validation_fraction: Fraction of groups used for validation.
        seed: Seed of the split and of simulated coils.
        in_memory: Read all cases once and keep them in memory.
    """

    coils: Coils = 8
    validation_fraction: Unit = 0.1
    seed: Seed = 0
    in_memory: bool = False
    # That read cases into memory. At most 8: containers see all processors and may use few.
    processes: ClassVar[int] = 1

    @abstractmethod
    def open(self) -> Dataset:
        """Open all cases."""

    @property
    def has_test_set(self) -> bool:
        """True if test cases are stored apart from training cases."""
        return False

    def open_test(self) -> Dataset:
        """Open the cases for calibration and testing."""
        return self.open()

    def open_targets(self) -> LabelledSubset:
        """Open all cases with the targets of a task network, by default the labels."""
        return LabelledSubset.of(self.open())

    def boxes(self, cases: Sequence[str]) -> dict[str, tuple[slice, slice]]:
        """Return the rows and columns of the annotated finding of each case that has one."""
        return {}

    def check(self, *, strict: bool = False, quick: bool = False) -> DataCheck:
        """Return a summary of each group or, for readers of files, of each file."""
        cases, rows = self.open(), []
        labels, groups = cases.labels, cases.groups
        for group in dict.fromkeys(groups.tolist()):
            indices = np.flatnonzero(groups == group)
            images = [cases[int(index)].image for index in indices]
            kinds = sorted({str(image.dtype).removeprefix("torch.") for image in images})
            sizes = sorted({as_size(image.shape) for image in images})
            positives = int((labels[indices] > 0).sum())
            kind, size = " or ".join(kinds), " or ".join(sizes)
            rows.append(FileCheck(group, kind, size, len(indices), positives))
        return DataCheck(tuple(rows), groups=len(rows))


READERS: Registry[type[DataConfig]] = Registry(
    "data reader",
    {
        "fastmri": "taskuq.data._fastmri:FastMRIData",
        "npz": "taskuq.data._arrays:NpzData",
        "folder": "taskuq.data._folder:FolderData",
        "atlas": "taskuq.data._atlas:AtlasData",
        "chest": "taskuq.data._chest:ChestData",
    },
)
Data = Annotated[DataConfig, READERS]


def paper_data() -> DataConfig:
    return READERS["fastmri"]()


def read_data(config: Path | str) -> DataConfig:
    table = read_toml(config).get("data")
    if not isinstance(table, dict):
        text = f"{config} has no table data; name a configuration that has one"
        raise InputError(text, code="config.missing")
    return from_registry(READERS, {"kind": "fastmri"} | table, "data")


def open_data(reader: DataConfig) -> tuple[Dataset, Dataset]:
    """Open training and validation data with disjoint groups."""
    training = _with_coils(reader.open(), reader)
    if reader.has_test_set:
        validation: Dataset = _with_coils(reader.open_test(), reader)
    else:
        fractions = (1 - reader.validation_fraction, reader.validation_fraction)
        training, validation = split_by_group(training, fractions, seed=[reader.seed, 1])
    return _in_memory(training, reader), _in_memory(validation, reader)


def open_all(reader: DataConfig) -> Dataset:
    """Open all test cases, unsplit; for fastMRI, these are the cases of the validation folder."""
    return _in_memory(_with_coils(reader.open_test(), reader), reader)


def require_path(path: Path | None, key: str, what: str) -> Path:
    if path is None:
        raise InputError(f"data.{key} is missing; set {what}", code="config.missing")
    return path


def _with_coils(cases: Dataset, reader: DataConfig) -> Dataset:
    return simulate_coil_dataset(cases, reader.coils, seed=reader.seed) if reader.coils else cases


def _in_memory(cases: Dataset, reader: DataConfig) -> Dataset:
    return InMemoryDataset.of(cases, reader.processes) if reader.in_memory else cases


@dataclass(frozen=True)
class FileCheck:
    file: str
    kind: str
    size: str
    slices: int
    positives: int
    reason: str = ""

    @property
    def used(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class DataCheck:
    rows: tuple[FileCheck, ...]
    groups: int
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> dict[str, Any]:
        skipped = Counter(row.reason for row in self.rows if not row.used)
        return {
            "files": len(self.rows),
            "used": sum(row.used for row in self.rows),
            "skipped": dict(skipped.most_common()),
            "groups": self.groups,
            "slices": sum(row.slices for row in self.rows),
            "positives": sum(row.positives for row in self.rows),
        }

    def as_record(self) -> dict[str, Any]:
        return {
            "schema": "taskuq.data-check/1",
            "summary": self.summary,
            "notes": list(self.notes),
            "files": [asdict(row) | {"used": row.used} for row in self.rows],
        }


def as_size(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def plot_contact_sheet(
    dataset: Dataset,
    path: Path | str,
    *,
    indices: Sequence[int],
    outline: Callable[[int], BoolArray] | None = None,
) -> Path:
    from matplotlib.figure import Figure

    from taskuq.measure._coils import magnitude

    if not indices:
        raise InputError("no cases are chosen; pass at least one", code="value.invalid")
    columns, items = 8, [dataset[index] for index in indices]
    rows = -(-len(items) // columns)
    images = [magnitude(item.image).numpy() for item in items]
    top = 1.25 * float(np.quantile(np.concatenate([image.ravel() for image in images]), 0.995))
    figure = Figure(figsize=(1.6 * columns, 1.78 * rows), facecolor="black", layout="constrained")
    hidden = {"frame_on": False, "xticks": (), "yticks": ()}
    axes = figure.subplots(rows, columns, squeeze=False, subplot_kw=hidden).ravel()
    for ax, index, item, image in zip(axes, indices, items, images, strict=False):
        ax.imshow(image, cmap="gray", vmin=0, vmax=top or 1)
        colour = "#ffd166" if item.label else "w"
        ax.set_title(f"{item.case}: {item.label}", fontsize=5, pad=1, color=colour)
        if outline is not None and (mask := outline(index)).any():
            ax.contour(mask, [0.5], colors="#ef476f", linewidths=0.6)
    with atomic_write(path) as partial:
        figure.savefig(partial, dpi=120, format=image_format(path))
    return Path(path)
