"""The share of air in the chest as a task: a number that is computed, without a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from taskuq.data.air import THRESHOLD, air_share
from taskuq.task.cases import require_images


@dataclass(frozen=True)
class AirShare:
    """The share of the body that is air, between 0 and 1 (:func:`taskuq.data.air.air_share`).

    It is its own table ``[task]``.

    Arguments:
        threshold: What is below it is air, in units of the images.

    Example:
        >>> chest = torch.zeros(2, 64, 64)
        >>> chest[:, 8:56, 8:56] = 0.7
        >>> chest[1, 20:44, 20:44] = 0.1
        >>> AirShare()(chest)
        tensor([0.0000, 0.2500])
    """

    threshold: float = THRESHOLD

    names = ("air share",)
    range = (0.0, 1.0)

    def __call__(self, images: Any) -> Tensor:
        """Images (image, height, width) to shares (image,)."""
        images = torch.as_tensor(images)
        require_images(images)
        shares = air_share(images.detach().float().cpu().numpy(), self.threshold)
        return torch.as_tensor(shares, dtype=torch.float32, device=images.device)

    def open(self, device: torch.device | str) -> AirShare:
        """Return itself: it runs on the CPU."""
        return self
