"""Tasks by name: the one list, and those that need no network of ours."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from taskuq.errors import InputError
from taskuq.task.cases import require_images
from taskuq.task.classifier import evaluating
from taskuq.training.networks import Methods

TASKS = Methods(
    "task",
    "task",
    {
        "air-share": "taskuq.task.air:AirShare",
        "area": "taskuq.task.area:Area",
        "mean-intensity": "taskuq.task.methods:MeanIntensityMethod",
        "several": "taskuq.task.several:SeveralMethod",
    },
)


@dataclass(frozen=True, eq=False)
class AsTask:
    """A task from a torch module or any function of images.

    A module is asked in evaluation mode, without gradients, on the device it is on; its mode is
    put back afterwards. Nothing is scaled: the function sees the images as they are.

    Arguments:
        function: Takes images (image, height, width) and returns (image,), (image, 1) or (image,
            task).
        batch: Images handed over at a time.

    Example:
        >>> task = AsTask(nn.Sequential(nn.Flatten(), nn.Linear(16, 1), nn.Sigmoid()))
        >>> task(np.ones((5, 4, 4))).shape
        torch.Size([5])
    """

    function: Callable[[Tensor], Any]
    batch: int = 256

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"batch is {self.batch}; give a whole number above 0")

    @torch.no_grad()
    def __call__(self, images: Any) -> Tensor:
        """Images (image, height, width) to outputs (image,) or (image, task), on their device."""
        images = torch.as_tensor(images)
        require_images(images)
        module = self.function if isinstance(self.function, nn.Module) else None
        where = next(module.parameters(), images) if module is not None else images
        with nullcontext() if module is None else evaluating(module):
            parts = [
                self._outputs(part.to(where.device, torch.float32))
                for part in images.split(self.batch)
            ]
        return torch.cat(parts).to(images.device)

    def _outputs(self, images: Tensor) -> Tensor:
        outputs = torch.as_tensor(self.function(images))
        if outputs.ndim == 2 and outputs.shape[1] == 1:
            outputs = outputs[:, 0]
        if outputs.ndim not in (1, 2) or len(outputs) != len(images):
            raise InputError(
                f"the task gave shape {tuple(outputs.shape)} for {len(images)} images; let it "
                "return (image,) or (image, task)"
            )
        return outputs.float()


@dataclass(frozen=True)
class MeanIntensity:
    """The mean of a rectangle of the image.

    Arguments:
        rows: First and last edge of the rectangle, as shares of the height.
        columns: The same for the width.

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
                raise InputError(
                    f"{name} are {first} to {last}; give two increasing numbers between 0 and 1"
                )

    def __call__(self, images: Any) -> Tensor:
        """Images (image, height, width) to their means (image,)."""
        images = torch.as_tensor(images)
        require_images(images)
        rows, columns = (
            slice(int(first * size), max(round(last * size), int(first * size) + 1))
            for (first, last), size in zip((self.rows, self.columns), images.shape[1:], strict=True)
        )
        means: Tensor = images[:, rows, columns].float().mean((-2, -1))
        return means


@dataclass(frozen=True)
class MeanIntensityMethod:
    """The table ``[task]`` of the mean intensity of a rectangle, for whoever has no network.

    Arguments:
        rows: The rectangle's first and last edge, as shares of the height.
        columns: The same for the width.
    """

    rows: tuple[float, float] = (0.25, 0.75)
    columns: tuple[float, float] = (0.25, 0.75)

    def open(self, device: torch.device | str) -> MeanIntensity:
        """Return the task; it runs where its images are."""
        return MeanIntensity(self.rows, self.columns)
