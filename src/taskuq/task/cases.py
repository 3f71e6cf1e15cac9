"""Cases as task networks see them: magnitude images on a common scale, and targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq.data.dataset import Dataset, precision_of
from taskuq.data.memory import whole_images
from taskuq.data.readers import Data, open_task_data, paper_data
from taskuq.data.splits import Part, SplitConfig
from taskuq.errors import InputError
from taskuq.measure.coils import magnitude
from taskuq.task.augment import AugmentConfig
from taskuq.task.backbone import StartConfig
from taskuq.training.config import TrainingConfig
from taskuq.training.feed import Stock
from taskuq.training.fit import Machine


def unit_scale(images: Tensor) -> Tensor:
    r"""Shift and stretch each image to the range from 0 to 1, in at least float32.

    .. math:: \tilde x = \frac{x - \min x}{\max x - \min x}

    A task on :math:`\tilde x` says the same about :math:`x` and about :math:`a x + b`, for
    :math:`a > 0`: the scale of a recovery does not matter. A constant image becomes 0.

    Arguments:
        images: Real images (..., height, width).

    Example:
        >>> unit_scale(torch.tensor([[[2.0, 4.0], [3.0, 6.0]]]))
        tensor([[[0.0000, 0.5000], [0.2500, 1.0000]]])
        >>> unit_scale(torch.full((1, 2, 2), 7.0)).max()  # no 0 / 0
        tensor(0.)
    """
    if images.dtype not in (torch.float32, torch.float64):
        images = images.float()
    low = images.amin((-2, -1), keepdim=True)
    span = images.amax((-2, -1), keepdim=True) - low
    # The smallest normal number keeps 0 / 0 away; where the span is 0 so is the numerator.
    return ((images - low) / span.clamp_min(torch.finfo(span.dtype).tiny)).clamp(0, 1)


def require_images(images: Tensor) -> None:
    """Refuse what is not a stack of magnitude images.

    Arguments:
        images: What was handed in.

    Example:
        >>> require_images(torch.ones(8, 8))
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: images have shape (8, 8) and type torch.float32; give ...
    """
    if images.ndim != 3 or images.is_complex() or 0 in images.shape:
        raise InputError(
            f"images have shape {tuple(images.shape)} and type {images.dtype}; give real "
            "magnitude images (image, height, width)"
        )


@dataclass(frozen=True, eq=False)
class TaskCases:
    """A data set by (epoch, index), with the target of each case.

    Views are drawn later, on the device: a case is the same in every epoch.

    Arguments:
        source: The data set.
        targets: What the network should say, (case, task).

    Example:
        >>> from taskuq.data.arrays import ArrayDataset
        >>> data = ArrayDataset(np.ones((2, 8, 8)), label=[0, 1], group="each")
        >>> case = TaskCases(data, np.array([[0.0], [1.0]]))[0, 1]
        >>> case["image"].shape, case["target"]
        (torch.Size([8, 8]), tensor([1.]))
    """

    source: Dataset
    targets: NDArray[np.floating]

    @property
    def precision(self) -> str | None:
        """How exact the images are, where their source says."""
        return precision_of(self.source)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, place: tuple[int, int]) -> dict[str, Tensor]:
        item = self.source[place[1]]
        image = magnitude(item.image)
        if not bool(torch.isfinite(image).all()):
            raise InputError(f"case {item.case} holds NaN or infinite values; leave it out")
        target = torch.as_tensor(self.targets[place[1]], dtype=torch.float32)
        return {"image": image, "target": target}

    def stock(self, device: torch.device, most: float) -> Stock | None:
        """All magnitude images and targets on a device."""
        images = whole_images(self.source, magnitude, device, most)
        if images is None:
            return None
        bad = (~torch.isfinite(images).all(-1).all(-1)).nonzero()
        if len(bad):
            self[0, int(bad[0])]  # says which
        targets = torch.as_tensor(self.targets, dtype=torch.float32)
        return Stock({"image": images, "target": targets.to(device)})


def collate(cases: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Make a batch: images (case, height, width) of one size and targets (case, task).

    Arguments:
        cases: What :class:`TaskCases` gives.

    Example:
        >>> some = [{"image": torch.ones(n, 8), "target": torch.ones(1)} for n in (8, 9)]
        >>> collate(some)
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: images are of size 8×8 and 9×8; give images of one size, ...
    """
    sizes = sorted({tuple(case["image"].shape) for case in cases})
    if len(sizes) > 1:
        raise InputError(
            f"images are of size {' and '.join('×'.join(map(str, s)) for s in sizes[:2])}; give "
            "images of one size, or cut them (data.cut for a folder of images)"
        )
    return {name: torch.stack([case[name] for case in cases]) for name in ("image", "target")}


@dataclass(frozen=True)
class TaskTraining:
    """What the TOML file of a task network's training says, whatever the network.

    Arguments:
        network: The size of the network.
        training: Optimiser, epochs, batch.
        data: Where images come from, with their labels.
        split: Who is trained on, tuned on, judged: the same file for all networks.
        views: How far a view is from its image.
        start: What the network starts from.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from taskuq.data.arrays import NpzData
        >>> path = Path(tempfile.mkdtemp()) / "mine.npz"
        >>> np.savez(path, images=np.ones((10, 8, 8)), label=[0, 1] * 5, group=np.arange(10))
        >>> [len(part.cases) for part in TaskTraining(data=NpzData(path=path)).open_parts()]
        [6, 1, 3]
    """

    network: Any = None
    training: TrainingConfig = field(default_factory=TrainingConfig)
    data: Data = field(default_factory=paper_data)
    split: SplitConfig = field(default_factory=SplitConfig)
    views: AugmentConfig = field(default_factory=AugmentConfig)
    start: StartConfig = field(default_factory=StartConfig)

    def open_parts(self, *, is_stored: bool = True) -> tuple[Part, Part, Part]:
        """Open the data in three parts that share no patient: to train on, to tune on, to judge.

        Arguments:
            is_stored: Whether the split is written where the settings say, if it is new.
        """
        whole = open_task_data(self.data)
        split = self.split.split(whole.cases.groups, is_stored=is_stored)
        train, tune, judge = whole.split(split)
        if self.data.in_memory:
            processes = self.data.processes
            return train.in_memory(processes), tune.in_memory(processes), judge
        return train, tune, judge

    def open_unstored(self) -> tuple[Part, Part, Part]:
        """The same parts, and a new split is not written."""
        return self.open_parts(is_stored=False)

    def prepare(
        self, machine: Machine, data: Sequence[Part] | None = None
    ) -> tuple[TaskCases, ...]:
        """Cases of the parts by (epoch, index): of those the settings name, or of others."""
        return tuple(TaskCases(part.cases, part.targets) for part in data or self.open_parts())
