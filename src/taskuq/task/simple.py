"""A task without a network: for teaching, for tests, and for whoever has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.task.scaling import require_images


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
