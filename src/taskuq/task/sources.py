"""The data of a task network, as a table of its configuration names them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from taskuq.data.dataset import Dataset, Item, Subset
from taskuq.data.splits import Split, load_split, save_split, split_groups
from taskuq.errors import InputError
from taskuq.interval import FloatArray
from taskuq.task.cases import magnitude
from taskuq.task.metrics import require_classes
from taskuq.training.sources import InMemory


@dataclass(frozen=True)
class TaskData:
    """Where labelled images come from.

    Arguments:
        kind: ``"fastmri"`` (a folder of volumes, with fastMRI+ labels), ``"npz"`` (one file),
            ``"folder"`` (image files and a CSV) or ``"atlas"`` (the embedded atlas, drawn).
        path: The folder, or the .npz file.
        labels: The CSV of labels: fastMRI+ annotations, or file, label and group of each image.
        files: The list of volumes that annotators looked at (fastmri).
        finding: Which pathology is 1 (fastmri); Meniscus Tear by default.
        cache: A folder for prepared volumes (fastmri).
        patients: Patients to draw (atlas).
        size: Rows and columns of a slice (atlas).
        cut: Cut or pad images to this many rows and columns (folder).
        slices: Slices for each patient (atlas).
        seed: Which patients are drawn (atlas).
        keep: The name of a boolean array in the .npz; only its cases are used.
        target: ``"label"``, or for regression the name of an array (case,) or (case, task) in the
            .npz; the atlas has ``"lesion_area"``.
        in_memory: Whether to read every case once and keep it.

    Example:
        >>> TaskData(kind="atlas", patients=10).target
        'label'
    """

    kind: Literal["fastmri", "npz", "folder", "atlas"] = "fastmri"
    path: Path | None = None
    labels: Path | None = None
    files: Path | None = None
    finding: str | None = None
    cache: Path | None = None
    patients: int = 600
    size: int = 128
    cut: int | None = None
    slices: int = 8
    seed: int = 0
    keep: str | None = None
    target: str = "label"
    in_memory: bool = False


@dataclass(frozen=True)
class SplitConfig:
    """Who is trained on and who is tuned on; the rest calibrates and tests.

    Arguments:
        path: The JSON file that holds the split: written by the first training, read by all others.
        train: The share of patients to train on.
        tune: The share of patients that decide when to stop.
        seed: Where the order comes from.

    Example:
        >>> SplitConfig().train, SplitConfig().tune
        (0.6, 0.1)
    """

    path: Path | None = None
    train: float = 0.6
    tune: float = 0.1
    seed: int = 0

    def split(self, groups: NDArray[np.str_]) -> Split:
        """The stored split, or a new one, which is stored; shares and seed must agree with it."""
        new = split_groups(groups, self.train, self.tune, seed=self.seed)
        if self.path is not None:
            save_split(new, self.path)
            return load_split(self.path)
        return new


@dataclass(frozen=True, eq=False)
class Part:
    """Some cases and what should be said about them.

    Arguments:
        cases: The images.
        targets: What the network should say, (case, task).
    """

    cases: Dataset
    targets: FloatArray

    def in_memory(self, workers: int = 1) -> Part:
        """The same with every image read, as a magnitude image: a task network sees nothing else.

        Arguments:
            workers: The number of processes that read.
        """
        return replace(self, cases=InMemory.of(_Magnitudes(self.cases), workers))


@dataclass(frozen=True, eq=False)
class _Magnitudes:
    """A data set whose coil images are combined: of eight coils a sixteenth of the memory."""

    source: Dataset

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.source.labels

    @property
    def groups(self) -> NDArray[np.str_]:
        return self.source.groups

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Item:
        item = self.source[index]
        return item._replace(image=magnitude(item.image))


def open_task_data(config: TaskData) -> Part:
    """Open all cases of a data set, of all patients.

    Arguments:
        config: Where they come from.

    Returns:
        Images and targets.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "mine.npz"
        >>> np.savez(path, images=np.ones((4, 8, 8)), label=[0, 0, 1, 1], group=[7, 7, 9, 9],
        ...          area=[0.0, 0.0, 2.5, 1.0])
        >>> open_task_data(TaskData(kind="npz", path=path, target="area")).targets.ravel()
        array([0. , 0. , 2.5, 1. ])
    """
    if config.kind != "atlas" and config.path is None:
        raise InputError(f"data.path is missing; name the {_WHAT[config.kind]}")
    part = _OPEN[config.kind](config)
    if not np.isfinite(part.targets).all():
        raise InputError(f"{config.target} holds NaN or infinite values; leave those cases out")
    return part


def parted(whole: Part, split: Split) -> tuple[Part, Part, Part]:
    """The three parts of a data set that a split names.

    Arguments:
        whole: All cases.
        split: Who is trained on, tuned on, judged.

    Returns:
        Cases to train on, to tune on, to judge.

    Example:
        >>> from taskuq.data.arrays import ArrayDataset
        >>> data = ArrayDataset(np.ones((3, 8, 8)), label=[0, 1, 0], group=["a", "b", "c"])
        >>> whole = Part(data, np.array([[0.0], [1.0], [0.0]]))
        >>> train, tune, judge = parted(whole, Split(("b",), ("a",), ("c",)))
        >>> train.targets
        array([[1.]])
    """
    train, tune, judge = (
        Part(part, whole.targets[list(part.indices)]) for part in split.of(whole.cases)
    )
    return train, tune, judge


def _labels(cases: Dataset) -> FloatArray:
    return np.asarray(cases.labels, dtype=np.float64)[:, None]


def _fastmri(config: TaskData) -> Part:
    from taskuq.data.fastmri import FastMRI, read_labels
    from taskuq.data.preparation import Preparation

    assert config.path is not None
    if config.labels is None or config.target != "label":
        raise InputError("data.labels is missing; name the fastMRI+ annotations (knee.csv)")
    labels = read_labels(config.labels, config.files, config.finding or "Meniscus Tear")
    # The paper's 17286 training images are all slices of their volumes.
    cases = FastMRI(config.path, Preparation(slices="all"), labels, cache=config.cache)
    return Part(cases, _labels(cases))


def _npz(config: TaskData) -> Part:
    from taskuq.data.arrays import read_npz

    assert config.path is not None
    whole = read_npz(config.path)
    targets = _labels(whole) if config.target == "label" else _array(config.path, config.target)
    targets = np.asarray(targets, dtype=np.float64).reshape(len(targets), -1)
    if len(targets) != len(whole):
        raise InputError(
            f"{config.target} has {len(targets)} entries for {len(whole)} images; give one for each"
        )
    if config.keep is None:
        return Part(whole, targets)
    kept = _array(config.path, config.keep)
    if kept.dtype != bool or kept.shape != (len(whole),):
        raise InputError(
            f"{config.keep} has type {kept.dtype} and shape {kept.shape}; data.keep needs one "
            "boolean for each image"
        )
    indices = tuple(int(i) for i in np.flatnonzero(kept))
    return Part(Subset(whole, indices), targets[kept])


def _folder(config: TaskData) -> Part:
    from taskuq.data.folder import ImageFolder

    assert config.path is not None
    if config.labels is None or config.target != "label":
        raise InputError("data.labels is missing; name the CSV with file, label and group")
    cases = ImageFolder(config.path, config.labels, size=config.cut)
    return Part(cases, _labels(cases))


def _atlas(config: TaskData) -> Part:
    from taskuq.data.arrays import ArrayDataset
    from taskuq.data.atlas import Atlas, draw_patients
    from taskuq.data.patient import PatientPlan

    plan = PatientPlan(size=config.size, slices=config.slices)
    atlas = Atlas(config.patients, config.seed, coils=0, plan=plan)
    if config.target not in ("label", "lesion_area"):
        raise InputError(f"the atlas has no {config.target}; choose label or lesion_area")
    cases: Dataset = atlas
    area = atlas.lesion_area if not config.in_memory else None
    if area is None:
        # Drawn once for images and areas; case by case every patient would be drawn many times.
        patients = draw_patients(atlas)
        area = np.concatenate([patient.area for patient in patients])
        images = np.concatenate([patient.images for patient in patients])
        label = (area >= plan.minimum_area).astype(int)
        cases = ArrayDataset(images, label, atlas.groups, normalise=False)
    return Part(cases, area[:, None] if config.target == "lesion_area" else _labels(cases))


def _array(path: Path, name: str) -> NDArray[np.generic]:
    with np.load(path, allow_pickle=False) as file:
        if name not in file:
            raise InputError(f"{path} has no {name}; choose from {', '.join(file)}")
        values: NDArray[np.generic] = file[name]
        return values


def require_both_classes(train: Part, tune: Part) -> None:
    """Refuse data from which no classifier can be trained or chosen.

    Arguments:
        train: Cases to train on.
        tune: Cases to tune on.

    Example:
        >>> from taskuq.data.arrays import ArrayDataset
        >>> data = ArrayDataset(np.ones((2, 8, 8)), label=[0, 2], group=["a", "b"])
        >>> require_both_classes(Part(data, np.array([[0.0], [2.0]])), Part(data, np.ones((2, 1))))
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: labels of the training patients hold 2; give 0 (absent) ...
    """
    require_classes(train.targets, "training patients")
    require_classes(tune.targets, "tuning patients")


_OPEN = {"fastmri": _fastmri, "npz": _npz, "folder": _folder, "atlas": _atlas}
_WHAT = {"fastmri": "folder of volumes", "npz": ".npz file", "folder": "folder of images"}
