"""Imaging systems built from callables or deepinv physics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.measure._coils import to_channels
from taskuq.measure._fourier import image_seed, round_at


@dataclass(frozen=True)
class CallableMeasure:
    """Imaging system built from one callable per acceleration."""

    systems: Mapping[float, Callable[[Any], Any]]

    def __post_init__(self) -> None:
        if not self.systems or list(self.systems) != sorted(self.systems, reverse=True):
            text = f"accelerations: {list(self.systems)}; pass decreasing accelerations"
            raise InputError(text, code="rounds.invalid")

    @property
    def accelerations(self) -> tuple[float, ...]:
        """R of each round, decreasing."""
        return tuple(self.systems)

    def __call__(self, image: Any, acceleration: float) -> Any:
        """Measure one image with the callable of one acceleration."""
        return self.systems[self.accelerations[round_at(acceleration, self.accelerations)]](image)


@dataclass(frozen=True, eq=False)
class DeepinvMeasurement:
    y: Any
    physics: Any
    acceleration: float


@dataclass(frozen=True, eq=False)
class DeepinvMeasure:
    """Imaging system built from one deepinv physics per acceleration."""

    physics: Mapping[float, Any]
    seed: int | None = None

    def __post_init__(self) -> None:
        CallableMeasure(self.physics)

    @property
    def accelerations(self) -> tuple[float, ...]:
        """R of each round, decreasing."""
        return tuple(self.physics)

    def __call__(self, image: Tensor, acceleration: float) -> DeepinvMeasurement:
        """Measure one image: (height, width), or (channel, height, width)."""
        if image.ndim not in (2, 3):
            text = f"the image has shape {tuple(image.shape)}; pass 2 or 3 axes"
            raise InputError(text, code="shape.axes")
        channels = image if image.ndim == 3 else image[None]
        batch = (to_channels(channels) if torch.is_complex(channels) else channels)[None]
        keywords = {} if self.seed is None else {"seed": image_seed(image, self.seed)}
        physics = self.physics[self.accelerations[round_at(acceleration, self.accelerations)]]
        return DeepinvMeasurement(physics(batch, **keywords), physics, float(acceleration))
