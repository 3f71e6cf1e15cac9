"""Registry of tasks, image functionals and combinations of tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from taskuq._config import Count, NonNegative, Unit, check_ranges
from taskuq.data._chest import THRESHOLD, air_fraction
from taskuq.errors import InputError
from taskuq.interval import TaskRange
from taskuq.protocols import FullReferenceTask, Task, declared_range
from taskuq.task._cases import require_images
from taskuq.task._classifier import eval_mode
from taskuq.training._networks import MethodConfig, MethodRegistry


@dataclass(frozen=True)
class AirFraction:
    """Air fraction of the body, in [0, 1]."""

    threshold: float = THRESHOLD  #: Intensity below which a pixel is air.

    names = ("air share",)
    range = (0.0, 1.0)

    def __call__(self, images: Any) -> Tensor:
        """Map images (image, height, width) to air fractions (image,)."""
        images = require_images(images)
        shares = air_fraction(images.detach().float().cpu().numpy(), self.threshold)
        return torch.as_tensor(shares, dtype=torch.float32, device=images.device)

    def open(self, device: torch.device | str) -> AirFraction:
        return self


@dataclass(frozen=True)
class Area:
    """Total area of the pixels with intensity above (or below) a threshold."""

    threshold: float  #: Intensity above (or below) which pixels are counted.
    pixel_area: NonNegative = 1.0  #: Area of a pixel; 0 returns the fraction of the image.
    unit: str = "px"  #: Unit of the area, appended to the task's name.
    below: bool = False  #: Count pixels below the threshold instead of above it.

    def __post_init__(self) -> None:
        if not (math.isfinite(self.threshold) and 0 <= self.pixel_area < math.inf):
            text = f"threshold must be finite and pixel_area >= 0, got {self}"
            raise InputError(text, code="value.invalid")

    @property
    def names(self) -> tuple[str]:
        return (f"area ({self.unit})" if self.pixel_area else "share of the image",)

    @property
    def range(self) -> tuple[float, float]:
        return (0.0, math.inf if self.pixel_area else 1.0)

    def __call__(self, images: Any) -> Tensor:
        """Map images (image, height, width) to areas (image,)."""
        images = require_images(images)
        inside = images < self.threshold if self.below else images > self.threshold
        fraction: Tensor = inside.float().mean((-2, -1))
        return fraction * (self.pixel_area * inside[0].numel() if self.pixel_area else 1.0)

    def open(self, device: torch.device | str) -> Area:
        return self


TASKS = MethodRegistry(
    "task",
    "task",
    {
        "air-fraction": "taskuq.task._methods:AirFraction",
        "area": "taskuq.task._methods:Area",
        "dists": "taskuq.task._quality:DISTS",
        "lpips": "taskuq.task._quality:LPIPS",
        "mean-intensity": "taskuq.task._methods:MeanIntensityMethod",
        "multi": "taskuq.task._methods:MultiTaskMethod",
        "nmse": "taskuq.task._quality:NMSE",
        "psnr": "taskuq.task._quality:PSNR",
        "ssim": "taskuq.task._quality:SSIM",
    },
)


@dataclass(frozen=True, eq=False)
class TorchTask:
    """Task that calls a torch module or a function of images.

    A module is called in evaluation mode, without gradients, on its device. Images are not scaled.

    Args:
        function: Maps images (image, height, width) to (image,), (image, 1) or (image, task).
        batch: Number of images in one call.

    Example:
        >>> task = TorchTask(nn.Sequential(nn.Flatten(), nn.Linear(16, 1), nn.Sigmoid()))
        >>> task(np.ones((5, 4, 4))).shape
        torch.Size([5])
    """

    function: Callable[[Tensor], Any]
    batch: Count = 256

    def __post_init__(self) -> None:
        check_ranges(self)

    @torch.no_grad()
    def __call__(self, images: Any) -> Tensor:
        """Map images (image, height, width) to outputs (image,) or (image, task)."""
        images = require_images(images)
        module = self.function if isinstance(self.function, nn.Module) else None
        device = (next(module.parameters(), images) if module is not None else images).device
        with nullcontext() if module is None else eval_mode(module):
            batches = images.split(self.batch)
            parts = [self._outputs(batch.to(device, torch.float32)) for batch in batches]
        return torch.cat(parts).to(images.device)

    def _outputs(self, images: Tensor) -> Tensor:
        outputs = torch.as_tensor(self.function(images))
        if outputs.ndim == 2 and outputs.shape[1] == 1:
            outputs = outputs[:, 0]
        if outputs.ndim not in (1, 2) or len(outputs) != len(images):
            message = f"the task returned {tuple(outputs.shape)}; return (image,) or (image, task)"
            raise InputError(message, code="component.invalid")
        return outputs.float()


@dataclass(frozen=True)
class MeanIntensity:
    """Mean intensity within a rectangle of the image.

    Args:
        rows: First and last edge of the rectangle, as fractions of the height.
        columns: First and last edge, as fractions of the width.

    Example:
        >>> task = MeanIntensity(rows=(0.0, 0.5))  # the upper half
        >>> task(torch.tensor([[[1.0, 3.0], [9.0, 9.0]]]))
        tensor([2.])
    """

    rows: tuple[float, float] = (0.0, 1.0)
    columns: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            first, last = getattr(self, name)
            if not 0 <= first < last <= 1:
                text = f"{name} must be two increasing fractions, got {first} and {last}"
                raise InputError(text, code="value.invalid")

    def __call__(self, images: Any) -> Tensor:
        """Map images (image, height, width) to means (image,)."""
        images = require_images(images)
        rows, columns = [
            slice(int(first * size), max(round(last * size), int(first * size) + 1))
            for (first, last), size in zip((self.rows, self.columns), images.shape[1:], strict=True)
        ]
        means: Tensor = images[:, rows, columns].float().mean((-2, -1))
        return means


@dataclass(frozen=True)
class MeanIntensityMethod:
    """Settings of [task] for the mean intensity of a rectangle."""

    rows: tuple[Unit, Unit] = (0.25, 0.75)  #: Upper and lower edge, as fractions of the height.
    columns: tuple[Unit, Unit] = (0.25, 0.75)  #: Left and right edge, as fractions of the width.

    def open(self, device: torch.device | str) -> MeanIntensity:
        return MeanIntensity(self.rows, self.columns)


@dataclass(frozen=True, eq=False)
class _MultiTask:
    tasks: Mapping[str, Task]

    def __post_init__(self) -> None:
        if not self.tasks:
            raise InputError("task.tasks has no task; add one", code="config.missing")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tasks)

    @property
    def range(self) -> list[TaskRange]:
        return [declared_range(t) for t in self.tasks.values()]

    def __call__(self, images: Any) -> Tensor:
        return self._columns({name: task(images) for name, task in self.tasks.items()})

    def _columns(self, outputs: Mapping[str, Any]) -> Tensor:
        columns = []
        for name, output in outputs.items():
            column = torch.as_tensor(output)
            column = column if column.dtype == torch.float64 else column.float()
            if column.ndim == 2 and column.shape[1] == 1:
                column = column[:, 0]
            if column.ndim != 1:
                message = f"task {name} returned {tuple(column.shape)}; return (image,)"
                raise InputError(message, code="component.invalid")
            columns.append(column.cpu())
        return torch.stack(columns, dim=1)


@dataclass(frozen=True, eq=False)
class _MultiQuality(_MultiTask):
    tasks: Mapping[str, Any]

    def compare(self, reported: Any, images: Any) -> Tensor:
        found = {name: task.compare(reported, images) for name, task in self.tasks.items()}
        return self._columns(found)


@dataclass(frozen=True)
class MultiTaskMethod:
    """Settings of [task] for several tasks."""

    #: One table [task.tasks.NAME] per task.
    tasks: dict[str, Annotated[MethodConfig, TASKS]] = field(default_factory=dict)

    def open(self, device: torch.device | str) -> _MultiTask:
        tasks = {name: method.open(device) for name, method in self.tasks.items()}
        kinds = {isinstance(task, FullReferenceTask) for task in tasks.values()}
        if len(kinds) > 1:
            text = "task.tasks mixes image quality with tasks of one image; use a run for each"
            raise InputError(text, code="option.conflict")
        return _MultiQuality(tasks) if kinds == {True} else _MultiTask(tasks)
