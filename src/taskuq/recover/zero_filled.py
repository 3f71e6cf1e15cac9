"""The baseline recovery: zeros in the lines that were not measured."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from taskuq.measure.coils import rss
from taskuq.recover.scan import Scan, checked


class ZeroFilled:
    """The baseline: zeros in the lines that were not measured, coils combined.

    Example:
        >>> import torch
        >>> from taskuq.measure.mri import Measurement
        >>> scan = Measurement(torch.ones(4, 8, 8) + 0j, torch.ones(8, dtype=torch.bool), 1.0)
        >>> ZeroFilled()(scan, samples=32, seed=0).shape  # a point estimate has one sample
        torch.Size([1, 8, 8])
    """

    def __call__(self, measurement: Scan, *, samples: int, seed: int) -> Tensor:
        """Return the zero-filled magnitude image, (1, height, width)."""
        return rss(checked(measurement).zero_filled)[None]

    def batch(self, measurements: Sequence[Scan], *, samples: int, seeds: Sequence[int]) -> Tensor:
        """Return the zero-filled magnitude images of several cases, (case, 1, height, width)."""
        return rss(torch.stack([checked(scan).zero_filled for scan in measurements]))[:, None]
