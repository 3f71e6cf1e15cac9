"""Other heads in other places: coil images flipped, turned, stretched and shifted before measuring.

Interpolation between neighbours blurs, and what is blurred lacks what late rounds still miss. All
moves here go through the Fourier transform: turning is three shears, each of which keeps every
frequency of a row, and a stretched image has the frequencies that fit into it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.seeds import numbers_of_cases


@dataclass(frozen=True)
class CoilViews:
    """How far coil images are moved in training, each case and epoch anew.

    Coils move with the head, and the phase of the whole image is turned.

    Arguments:
        rotation: Degrees, up to which images are turned either way.
        shift: Share of the sides, up to which images are shifted.
        stretch: Share, up to which each side is made longer or shorter.
        flip: How often left and right are exchanged.

    Example:
        >>> x = torch.randn(2, 4, 16, 16, dtype=torch.complex64)
        >>> moved = CoilViews(stretch=0.0)(x, torch.Generator().manual_seed(0))
        >>> torch.allclose(moved.norm(), x.norm(), rtol=0.2)
        True
    """

    rotation: float = 10.0
    shift: float = 0.1
    stretch: float = 0.1
    flip: float = 0.5

    def __post_init__(self) -> None:
        values = (self.rotation, self.shift, self.stretch, self.flip)
        if min(values) < 0 or self.rotation > 45 or max(values[1:]) > 0.5:
            raise InputError(
                f"rotation is {self.rotation}, shift {self.shift}, stretch {self.stretch} and flip "
                f"{self.flip}; give at most 45 degrees and shares between 0 and 0.5"
            )

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return moved coil images, complex (case, coil, height, width).

        Arguments:
            images: Coil images of cases.
            generator: Where the moves come from.
        """
        cases, device = len(images), images.device

        def within(limit: float, *count: int) -> Tensor:
            drawn = numbers_of_cases(
                torch.rand, (*count, cases), generator, axis=len(count), device=device
            )
            return limit * (2 * drawn - 1)

        is_flipped = numbers_of_cases(torch.rand, (cases,), generator, device=device) < self.flip
        images = torch.where(is_flipped.view(-1, 1, 1, 1), images.flip(-1), images)
        for axis, by, scale in zip(
            (-2, -1), within(self.shift, 2), 1 + within(self.stretch, 2), strict=True
        ):
            images = _resampled(images, axis, scale, by * images.shape[axis])
        angle = within(math.radians(self.rotation))
        across, along = -torch.tan(angle / 2), torch.sin(angle)
        for axis, slope in ((-1, across), (-2, along), (-1, across)):
            images = sheared(images, slope, axis)
        phase = within(math.pi)
        return images * torch.polar(torch.ones_like(phase), phase).view(-1, 1, 1, 1)


def sheared(images: Tensor, slope: Tensor, axis: int) -> Tensor:
    """Shift each row (or column) by its distance from the centre times a slope, round and round.

    Arguments:
        images: Complex (case, coil, height, width).
        slope: Pixels for each row's distance, (case,).
        axis: Along which is shifted: -1 shifts rows, -2 columns.

    Example:
        >>> x = torch.randn(1, 1, 8, 8, dtype=torch.complex64)
        >>> back = sheared(sheared(x, torch.tensor([0.3]), -1), torch.tensor([-0.3]), -1)
        >>> torch.allclose(back, x, atol=1e-5)
        True
    """
    size, other = images.shape[axis], images.shape[-3 - axis]
    distance = torch.arange(other, device=images.device) - (other - 1) / 2
    frequency = torch.fft.fftfreq(size, device=images.device)
    angle = -2 * math.pi * slope.view(-1, 1, 1) * distance[:, None] * frequency
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    turn = turn if axis == -1 else turn.mT
    moved: Tensor = torch.fft.ifft(torch.fft.fft(images, dim=axis) * turn, dim=axis)
    return moved


def _resampled(images: Tensor, axis: int, scale: Tensor, shift: Tensor) -> Tensor:
    """Stretch along an axis and shift, by the trigonometric polynomial through the pixels."""
    size = images.shape[axis]
    pixel = torch.arange(size, device=images.device)
    centre = (size - 1) / 2
    place = (pixel - centre - shift[:, None]) / scale[:, None] + centre
    # Frequencies that do not fit into a shorter image are left out.
    frequency = torch.fft.fftfreq(size, device=images.device) * size
    fits = frequency.abs() <= size / 2 * scale.clamp_max(1)[:, None]
    angle = 2 * math.pi * place[:, :, None] * frequency / size
    waves = torch.polar(torch.ones_like(angle), angle) * fits[:, None]
    inside = (place > -0.5) & (place < size - 0.5)
    waves = (waves * inside[:, :, None] / size)[:, None]
    spectrum: Tensor = torch.fft.fft(images, dim=axis)
    moved: Tensor = spectrum @ waves.mT if axis == -1 else waves @ spectrum
    return moved
