"""Training data of task networks, and their augmentation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from taskuq._config import NonNegative, Unit, check_ranges
from taskuq._seeds import per_case_random
from taskuq.data._dataset import Dataset, LabelledSubset, SplitConfig, load_all_images, precision_of
from taskuq.data._readers import Data, paper_data
from taskuq.errors import InputError
from taskuq.measure._coils import magnitude
from taskuq.task._backbone import InitConfig
from taskuq.training._config import TrainingConfig
from taskuq.training._determinism import DeviceDataset
from taskuq.training._fit import TrainerOptions


@dataclass(frozen=True)
class AugmentConfig:
    """Settings of [augment]: random image augmentation for task networks."""

    flip: Unit = 0.5  #: Probability of a left-right flip.
    rotation: NonNegative = 15.0  #: Maximum rotation in degrees.
    shift: Unit = 0.1  #: Maximum shift, as a fraction of the image.
    crop: Unit = 0.8  #: Smallest fraction of the area that a random crop keeps.
    #: Strength c of a random gamma correction, with exponents between 1/(1 + c) and 1 + c.
    contrast: NonNegative = 0.0
    blur: NonNegative = 0.0  #: Maximum standard deviation of a Gaussian blur, in pixels.
    contrast_probability: Unit = 0.8  #: Probability of a random contrast change.

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.crop == 0:
            raise InputError("augment.crop must be above 0, got 0", code="value.invalid")


def augment(images: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """Augment each image in [0, 1] at random; pixels outside the image are black."""

    def uniform(low: float, high: float) -> Tensor:
        draws = per_case_random(torch.rand, (len(images),), generator, device=images.device)
        return low + (high - low) * draws

    flips = uniform(0, 1) < config.flip
    angles = uniform(-config.rotation, config.rotation) * (math.pi / 180)
    shifts = uniform(-config.shift, config.shift), uniform(-config.shift, config.shift)
    side = uniform(config.crop, 1).sqrt()
    corners = uniform(-1, 1), uniform(-1, 1)
    offset = [2 * s + (1 - side) * c for s, c in zip(shifts, corners, strict=True)]
    views = _resample(images, flips, angles, side, offset[0], offset[1])
    if config.contrast:
        exponent = (1 + config.contrast) ** uniform(-1, 1)
        exponent = torch.where(uniform(0, 1) < config.contrast_probability, exponent, 1.0)
        views = views.clamp(0, 1) ** exponent[:, None, None]
    if config.blur:
        widest = max(config.blur, 0.1)
        views = _blur(views, uniform(0.1, widest), widest=widest)
    return views.clamp(0, 1)


def _blur(images: Tensor, sigma: Tensor, *, widest: float | None = None) -> Tensor:
    # Passing it avoids a GPU synchronisation and a dependence on the other images.
    widest = float(sigma.max()) if widest is None else widest
    reach = min(max(math.ceil(3 * widest), 1), min(images.shape[-2:]) - 1)
    t = torch.arange(-reach, reach + 1, device=images.device)
    kernel = torch.exp(-(t**2) / (2 * sigma[:, None] ** 2))
    kernel = (kernel / kernel.sum(1, keepdim=True)).to(images.dtype)
    padded = functional.pad(images[None], (reach,) * 4, mode="reflect")
    count = len(images)
    rows = functional.conv2d(padded, kernel[:, None, :, None], groups=count)
    return functional.conv2d(rows, kernel[:, None, None, :], groups=count)[0]


def _resample(
    images: Tensor, flips: Tensor, angles: Tensor, side: Tensor, right: Tensor, down: Tensor
) -> Tensor:
    height, width = images.shape[-2:]
    cos, sin, ratio = angles.cos() * side, angles.sin() * side, width / height
    mirror = 1 - 2 * flips.to(images.dtype)
    # Angles are in pixels, the grid in fractions of each axis.
    across = torch.stack([cos * mirror, -sin / ratio, right], -1)
    matrix = torch.stack([across, torch.stack([sin * ratio * mirror, cos, down], -1)], dim=1)
    grid = functional.affine_grid(matrix, [len(images), 1, height, width], align_corners=False)
    return functional.grid_sample(images[:, None], grid, align_corners=False)[:, 0]


def unit_scale(images: Tensor) -> Tensor:
    """Scale each image to [0, 1], in float32 or higher precision."""
    if images.dtype not in (torch.float32, torch.float64):
        images = images.float()
    low = images.amin((-2, -1), keepdim=True)
    span = images.amax((-2, -1), keepdim=True) - low
    # Avoids 0 / 0: where the span is 0, so is the numerator.
    return ((images - low) / span.clamp_min(torch.finfo(span.dtype).tiny)).clamp(0, 1)


def require_images(given: Any) -> Tensor:
    """Return images (image, height, width) as a tensor; raise InputError if they are not real."""
    images = torch.as_tensor(given)
    if images.ndim != 3 or images.is_complex() or 0 in images.shape:
        message = f"images must be real (image, height, width), got {tuple(images.shape)}"
        raise InputError(message, code="shape.axes")
    return images


@dataclass(frozen=True, eq=False)
class TaskDataset:
    """Training data indexed by (epoch, index); with ``balance_seed``, classes are balanced."""

    source: Dataset
    targets: NDArray[np.floating]
    balance_seed: int | None = None

    @property
    def precision(self) -> str | None:
        return precision_of(self.source)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, place: tuple[int, int]) -> dict[str, Tensor]:
        index = self._drawn(*place)
        item = self.source[index]
        image = magnitude(item.image)
        if not bool(torch.isfinite(image).all()):
            raise InputError(f"case {item.case} has NaN or inf; remove it", code="value.nonfinite")
        target = torch.as_tensor(self.targets[index], dtype=torch.float32)
        return {"image": image, "target": target}

    def _drawn(self, epoch: int, index: int) -> int:
        if self.balance_seed is None:
            return index
        rng = np.random.default_rng([self.balance_seed, epoch, index])
        return int(rng.choice(self._classes[rng.integers(2)]))

    @cached_property
    def _classes(self) -> list[NDArray[np.intp]]:
        return [np.flatnonzero(self.targets[:, 0] == y) for y in (0, 1)]

    def stock(self, device: torch.device, most: float) -> DeviceDataset | None:
        if self.balance_seed is not None:
            return None
        images = load_all_images(self.source, magnitude, device, most)
        if images is None:
            return None
        bad = (~torch.isfinite(images).all(-1).all(-1)).nonzero()
        if len(bad):
            self[0, int(bad[0])]  # raises with the name of the case
        targets = torch.as_tensor(self.targets, dtype=torch.float32)
        return DeviceDataset({"image": images, "target": targets.to(device)})


def collate(cases: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    sizes = sorted({tuple(case["image"].shape) for case in cases})
    if len(sizes) > 1:
        shown = " and ".join("×".join(map(str, size)) for size in sizes[:2])
        message = f"images have sizes {shown}; crop them (data.size for a folder)"
        raise InputError(message, code="shape.mismatch")
    return {name: torch.stack([case[name] for case in cases]) for name in ("image", "target")}


@dataclass(frozen=True)
class TaskTraining:
    network: Any = None  #: Size of the network.
    training: TrainingConfig = field(default_factory=TrainingConfig)  #: Optimiser and schedule.
    data: Data = field(default_factory=paper_data)  #: Images with labels.
    #: Groups for training, tuning and testing.
    split: SplitConfig = field(default_factory=SplitConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)  #: Augmentation of images.
    init_from: InitConfig = field(default_factory=InitConfig)  #: Initial weights; default: random.

    def open_parts(self, *, is_stored: bool = True) -> tuple[LabelledSubset, ...]:
        whole = self.data.open_targets()
        split = self.split.split(whole.cases.groups, is_stored=is_stored)
        train, tune, test = whole.split(split)
        if self.data.in_memory:
            train, tune = (part.in_memory(self.data.processes) for part in (train, tune))
        return train, tune, test

    def prepare(
        self, machine: TrainerOptions, data: Sequence[LabelledSubset] | None = None
    ) -> tuple[TaskDataset, ...]:
        return tuple(TaskDataset(part.cases, part.targets) for part in data or self.open_parts())
