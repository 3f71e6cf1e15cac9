"""deepinv's Radon transform in the place of ours: the same views on the same detector."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.measure.radon import Radon


@dataclass(frozen=True)
class DeepinvRadon:
    r"""Line integrals of images by ``deepinv.physics.Tomography``, which turns the image.

    Its detector has another number of bins, and where the image is padded by an odd number of
    pixels it turns about a place half a pixel off the centre. Both are undone by shifting each
    view by the phase of its Fourier transform, which keeps all of its frequencies.

    Arguments:
        size: Rows and columns of the image.
        angles: In radians.

    Example:
        >>> DeepinvRadon(8, (0.0,)).detectors == Radon(8, (0.0,)).detectors
        True
    """

    size: int
    angles: tuple[float, ...]

    @property
    def detectors(self) -> int:
        """Bins of the detector, as many as ours has."""
        return Radon(self.size, self.angles).detectors

    def __call__(self, images: Tensor) -> Tensor:
        """Images (..., size, size) to projections (..., view, detector)."""
        physics = _physics(self, images.device)
        flat = images.reshape(-1, 1, self.size, self.size).float()
        theirs = physics.A(flat)[:, 0].mT  # (image, view, bin)
        bins, theta = theirs.shape[-1], torch.tensor(self.angles, device=images.device)
        # Their centre in our coordinates, and half a bin where the numbers of bins differ by one.
        off = bins // 2 - self.size // 2 + (self.size - bins) / 2
        moved = off * (theta.cos() - theta.sin())
        first = (bins - 1) / 2 - (self.detectors - 1) / 2  # our first bin, counted in theirs
        length = 2 * self.detectors
        frequency = torch.fft.rfftfreq(length, device=images.device)
        turn = torch.exp(2j * torch.pi * frequency * (first + moved)[:, None])
        ours = torch.fft.irfft(torch.fft.rfft(theirs, n=length) * turn, n=length)
        shape = (*images.shape[:-2], len(self.angles), self.detectors)
        kept: Tensor = ours[..., : self.detectors].reshape(shape).to(images.dtype)
        return kept


@lru_cache(maxsize=12)
def _physics(radon: DeepinvRadon, device: torch.device) -> Any:
    try:
        from deepinv.physics import Tomography
    except ImportError as error:
        raise InputError(
            f"deepinv cannot be imported ({error}); install taskuq[deepinv], or leave "
            "measure.operator"
        ) from None
    degrees = torch.tensor(np.rad2deg(radon.angles), dtype=torch.float32, device=device)
    return Tomography(degrees, radon.size, circle=False, normalize=False, device=device)
