"""Coils turned at every pixel, so that the first of them holds the combined image."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Sensitivities are smooth: an image smoothed over this share of its side shows their ratios.
SMOOTHING = 2.5 / 128
TINY = 1e-6


class Turn(NamedTuple):
    r"""A unitary map of the coils of each pixel, of which the first becomes the combined image.

    .. math:: T x = -\bar p\, (I - 2 v v^{\mathsf H} / \lVert v \rVert^2)\, x, \qquad
              v = \bar p\, a + e_1, \quad p = a_1 / |a_1|

    :math:`a` are the coils of a smooth image, of unit norm at each pixel: :math:`T a = e_1`, so
    that an image with the same sensitivities lies in the first coil, with the phase it has beside
    the smooth one. Errors of coils that are drawn independently of each other would add up to a
    bias of the root of the sum of squares and hardly change it from draw to draw; an error of the
    first coil changes it by as much. The root of the sum of squares does not see the turn.

    Attributes:
        phase: :math:`p`, complex (case, 1, height, width).
        mirror: :math:`v \sqrt 2 / \lVert v \rVert`, complex (case, coil, height, width).
    """

    phase: Tensor
    mirror: Tensor

    @classmethod
    def of(cls, measured: Tensor) -> Turn:
        """The turn that zero-filled images ask for.

        Arguments:
            measured: Zero-filled coil images, complex (case, coil, height, width).

        Example:
            >>> a = torch.tensor([0.6, 0.8j]).view(1, 2, 1, 1)
            >>> turn = Turn.of(a * torch.ones(1, 2, 8, 8))
            >>> [round(x, 3) for x in turn(a)[0, :, 4, 4].abs().tolist()]
            [1.0, 0.0]
            >>> x = torch.randn(1, 2, 8, 8) + 0j
            >>> torch.allclose(turn.back(turn(x)), x, atol=1e-5)
            True
        """
        low = smoothed(measured, SMOOTHING * measured.shape[-1])
        size = low.abs().square().sum(1, keepdim=True).sqrt()
        along = low / size.clamp_min(TINY)
        first = along[:, :1]
        phase = torch.where(first.abs() > TINY, first / first.abs().clamp_min(TINY), 1)
        mirror = along * phase.conj()
        mirror = torch.cat([mirror[:, :1] + 1, mirror[:, 1:]], dim=1)
        norm = mirror.abs().square().sum(1, keepdim=True).sqrt()
        return cls(phase, mirror * (math.sqrt(2) / norm))

    def __call__(self, images: Tensor) -> Tensor:
        """Turn coil images, complex (case, coil, height, width)."""
        return -self.phase.conj() * self._reflected(images)

    def back(self, turned: Tensor) -> Tensor:
        """Undo the turn."""
        return -self.phase * self._reflected(turned)

    def with_samples(self) -> Turn:
        """The same turn for images (case, sample, coil, height, width)."""
        return Turn(self.phase[:, None], self.mirror[:, None])

    def _reflected(self, images: Tensor) -> Tensor:
        return images - self.mirror * (self.mirror.conj() * images).sum(-3, keepdim=True)


def smoothed(x: Tensor, width: float) -> Tensor:
    """Blur images by a Gaussian, round and round at the edges.

    Arguments:
        x: Real or complex (..., height, width).
        width: The standard deviation of the Gaussian, in pixels.

    Example:
        >>> smoothed(torch.ones(1, 4, 4), 1.0)[0, 0, 0].item()
        1.0
    """
    for axis in (-1, -2):
        frequency = torch.fft.fftfreq(x.shape[axis], device=x.device)
        window = torch.exp(-2 * (math.pi * width * frequency) ** 2).to(x.real.dtype)
        window = window if axis == -1 else window[:, None]
        blurred = torch.fft.ifft(torch.fft.fft(x, dim=axis) * window, dim=axis)
        x = blurred if x.is_complex() else blurred.real
    return x
