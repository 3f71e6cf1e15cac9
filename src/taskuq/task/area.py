"""The area of what is bright (or dark) as a task: a number that is counted, without a network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.task.cases import require_images


@dataclass(frozen=True)
class Area:
    r"""The area of an image above a level, in units of one's own.

    .. math:: z = a \, \#\{i : x_i > t\}

    It is its own table ``[task]``. Summed over the slices of a patient (``taskuq table
    --sum-groups``) it is a volume.

    Arguments:
        threshold: The level :math:`t`, in units of the images.
        pixel: The area :math:`a` of a pixel; 0 for the share of the image instead.
        unit: What that is measured in, for the task's name.
        below: Whether to count what is below the level.

    Example:
        >>> image = torch.zeros(1, 10, 10)
        >>> image[:, :3, :4] = 1
        >>> Area(0.5, pixel=0.25, unit="mm²")(image), Area(0.5, pixel=0)(image)
        (tensor([3.]), tensor([0.1200]))
        >>> Area(0.5, pixel=0.25, unit="mm²").names
        ('area (mm²)',)
    """

    threshold: float
    pixel: float = 1.0
    unit: str = "px"
    below: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.threshold) and 0 <= self.pixel < math.inf):
            raise InputError(
                f"threshold is {self.threshold} and pixel {self.pixel}; give a level of the images "
                "and the area of a pixel, or 0 for the share of the image"
            )

    @property
    def names(self) -> tuple[str]:
        """What the task is called, with its unit."""
        return (f"area ({self.unit})" if self.pixel else "share of the image",)

    @property
    def range(self) -> tuple[float, float]:
        """A share is at most 1; how large an image may be is not known."""
        return (0.0, math.inf if self.pixel else 1.0)

    def __call__(self, images: Any) -> Tensor:
        """Images (image, height, width) to areas (image,)."""
        images = torch.as_tensor(images)
        require_images(images)
        inside = images < self.threshold if self.below else images > self.threshold
        found: Tensor = inside.float().mean((-2, -1))
        return found * (self.pixel * inside[0].numel() if self.pixel else 1.0)

    def open(self, device: torch.device | str) -> Area:
        """Return itself: it runs where its images are."""
        return self
