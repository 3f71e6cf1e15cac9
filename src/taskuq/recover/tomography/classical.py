"""Filtered back-projection as a recovery: the baseline, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from taskuq.measure.sinograms import Sinogram, Window, filtered_back_projection, stacked


@dataclass(frozen=True)
class BackProjection:
    """The baseline of tomography: filtered back-projection of the measured views.

    It is its own table ``[recover]``.

    Arguments:
        window: ``"ram-lak"`` leaves the ramp, ``"hann"`` fades high frequencies out.

    Example:
        >>> from taskuq.measure.tomography import ParallelBeamCT
        >>> scan = ParallelBeamCT(32, 64, accelerations=(8,))(torch.ones(32, 32), acceleration=8)
        >>> BackProjection()(scan, samples=32, seed=0).shape  # a point estimate has one sample
        torch.Size([1, 32, 32])
    """

    window: Window = "ram-lak"

    def __call__(self, measurement: Sinogram, *, samples: int, seed: int) -> Tensor:
        """Return the recovered image, (1, height, width)."""
        return self.batch([measurement], samples=samples, seeds=[seed])[0]

    def batch(
        self, measurements: Sequence[Sinogram], *, samples: int, seeds: Sequence[int]
    ) -> Tensor:
        """Return the recovered images of several cases, (case, 1, height, width)."""
        views = stacked(measurements, measurements[0].projections.device)
        return filtered_back_projection(views, self.window)[:, None]

    def open(self, device: torch.device | str) -> BackProjection:
        """Return itself: it runs where its measurements are."""
        return self
