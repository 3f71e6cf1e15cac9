"""Imaging systems from callables or deepinv physics."""

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
class _CallableMeasure:
    """A Measure put together from one callable for each acceleration.

    A function ``h(image, acceleration)`` is a Measure as it stands; this is for functions
    ``h(image)``.

    Arguments:
        systems: For each acceleration, largest first, a callable from image to measurement.

    Example:
        >>> measure = _CallableMeasure({4: lambda image: image[::4], 2: lambda image: image[::2]})
        >>> measure(np.arange(8), acceleration=2)
        array([0, 2, 4, 6])
    """

    systems: Mapping[float, Callable[[Any], Any]]

    def __post_init__(self) -> None:
        if not self.systems or list(self.systems) != sorted(self.systems, reverse=True):
            raise InputError(
                f"accelerations are {list(self.systems)}; give at least one, in decreasing order"
            )

    @property
    def accelerations(self) -> tuple[float, ...]:
        """R of each round, decreasing."""
        return tuple(self.systems)

    def __call__(self, image: Any, acceleration: float) -> Any:
        """Measure one image with the callable of one acceleration."""
        return self.systems[self.accelerations[round_at(acceleration, self.accelerations)]](image)


@dataclass(frozen=True, eq=False)
class _DeepinvMeasurement:
    """A measurement by a deepinv physics, with the physics that a recovery method asks for.

    Attributes:
        y: What ``physics(x)`` returned; its first axis is a batch of one.
        physics: The physics object: ``A``, ``A_adjoint``, ``A_dagger``.
        acceleration: R.
    """

    y: Any
    physics: Any
    acceleration: float


@dataclass(frozen=True, eq=False)
class _DeepinvMeasure:
    """Any deepinv physics as a Measure: one physics object for each acceleration.

    Images enter as deepinv wants them, (batch, channel, height, width): a magnitude image has one
    channel, a complex image a real and an imaginary one.

    Arguments:
        physics: For each acceleration, largest first, a deepinv physics object (or any object that
            is called on such a batch).
        seed: Together with the image it seeds the noise of the physics on each call, so that a
            measurement repeats; leave it out for physics without noise. deepinv wants its noise
            made with a generator for that: ``GaussianNoise(0.1, rng=torch.Generator())``. Whether
            rounds share the noise of what they share is up to the physics.

    Example:
        >>> class Halve:  # stands for deepinv.physics.Inpainting(...) and the like
        ...     def __call__(self, x): return x[..., ::2]
        >>> measure = _DeepinvMeasure({2: Halve()})
        >>> measure(torch.ones(4, 6), acceleration=2).y.shape
        torch.Size([1, 1, 4, 3])
    """

    physics: Mapping[float, Any]
    seed: int | None = None

    def __post_init__(self) -> None:
        _CallableMeasure(self.physics)

    @property
    def accelerations(self) -> tuple[float, ...]:
        """R of each round, decreasing."""
        return tuple(self.physics)

    def __call__(self, image: Tensor, acceleration: float) -> _DeepinvMeasurement:
        """Measure one image: (height, width), or (channel, height, width)."""
        batch = _as_batch(image)
        keywords = {} if self.seed is None else {"seed": image_seed(image, self.seed)}
        physics = self.physics[self.accelerations[round_at(acceleration, self.accelerations)]]
        return _DeepinvMeasurement(physics(batch, **keywords), physics, float(acceleration))


def _as_batch(image: Tensor) -> Tensor:
    if image.ndim not in (2, 3):
        raise InputError(
            f"the image has shape {tuple(image.shape)}; give one image (height, width) or "
            "(channel, height, width)"
        )
    channels = image if image.ndim == 3 else image[None]
    if torch.is_complex(channels):
        channels = to_channels(channels)
    return channels[None]
