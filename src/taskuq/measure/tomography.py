"""Parallel-beam CT as a Measure: an image to its projections, at nested sets of views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq.errors import InputError
from taskuq.measure.masks import round_at
from taskuq.measure.noise import noise_for, require_seed


@dataclass(frozen=True, eq=False)
class Sinogram:
    """What a CT scanner has collected so far.

    Attributes:
        projections: Line integrals (..., view, detector).
        angles: The angle of each view, in radians, (view,).
        size: Rows and columns of the image.
        acceleration: R.
    """

    projections: Tensor
    angles: Tensor
    size: int
    acceleration: float


def nested_views(views: int, accelerations: Sequence[float]) -> list[NDArray[np.int64]]:
    """Sorted sets of views, each spread evenly over the half turn and part of the next.

    Views are taken in the order of van der Corput: each new one falls into the widest gap.

    Arguments:
        views: The number of views of a full scan.
        accelerations: R, decreasing; round k has views / R views.

    Example:
        >>> [list(map(int, chosen)) for chosen in nested_views(16, (8, 4))]
        [[0, 8], [0, 4, 8, 12]]
    """
    counts = [round(views / R) for R in accelerations]
    if not counts or counts[0] < 1 or counts[-1] > views or counts != sorted(set(counts)):
        raise InputError(
            f"accelerations {list(accelerations)} of {views} views take {counts} views; give "
            "decreasing accelerations that each add a view"
        )
    bits = max(1, (views - 1).bit_length())
    order = [int(f"{k:0{bits}b}"[::-1], 2) for k in range(2**bits)]
    order = [v for v in order if v < views]
    return [np.sort(np.array(order[:count])) for count in counts]


def project(images: Tensor, angles: Tensor) -> Tensor:
    r"""Line integrals (..., view, detector) of images along parallel rays.

    .. math:: (A x)_{\theta, s} = \sum_{u} x_u \,
        \Lambda\big(s - \langle u, (\cos\theta, \sin\theta) \rangle\big)

    Each pixel :math:`u` falls on the detector at its projected place and is shared between the two
    nearest bins (:math:`\Lambda` is the hat function), so that no mass is lost. The
    detector is as long as the image's diagonal.

    Arguments:
        images: (..., size, size).
        angles: Angles :math:`\theta`, in radians, (view,).

    Example:
        >>> image = torch.zeros(8, 8)
        >>> image[2, 5] = 3.0
        >>> project(image, torch.tensor([0.0, 1.0])).sum(-1)
        tensor([3., 3.])
    """
    place, weight = _shares(images.shape[-1], angles, images)
    flat = images.reshape(*images.shape[:-2], 1, -1)
    detectors = _detectors(images.shape[-1])
    out = images.new_zeros(*images.shape[:-2], len(angles), detectors)
    for offset, share in ((0, 1 - weight), (1, weight)):
        values = flat * share
        out = out.scatter_add(-1, (place + offset).expand(values.shape), values)
    return out


def back_project(projections: Tensor, angles: Tensor, size: int) -> Tensor:
    """Smear projections back over images (..., size, size): the adjoint of :func:`project`.

    Arguments:
        projections: (..., view, detector).
        angles: In radians, (view,).
        size: Rows and columns of the image.

    Example:
        >>> back_project(torch.ones(2, 13), torch.tensor([0.0, 1.0]), size=8)[4, 4].item()
        2.0
    """
    place, weight = _shares(size, angles, projections)
    image = projections.new_zeros(*projections.shape[:-2], size * size)
    for offset, share in ((0, 1 - weight), (1, weight)):
        index = (place + offset).expand(*projections.shape[:-1], size * size)
        image = image + (torch.gather(projections, -1, index) * share).sum(-2)
    return image.reshape(*image.shape[:-1], size, size)


def filtered_back_projection(sinogram: Sinogram) -> Tensor:
    """The classical recovery (..., size, size): a ramp filter, then back-projection.

    References:
        Kak and Slaney, Principles of Computerized Tomographic Imaging, 1988.

    Arguments:
        sinogram: The measurement.

    Example:
        >>> scanner = ParallelBeamCT(size=32, views=64, accelerations=(2,))
        >>> image = torch.zeros(32, 32)
        >>> image[8:24, 8:24] = 1.0
        >>> recovery = filtered_back_projection(scanner(image, acceleration=1))
        >>> round(float(recovery[12:20, 12:20].mean()), 1)
        1.0
    """
    p = sinogram.projections
    detectors = p.shape[-1]
    # Twice the length keeps the ends of the detector from wrapping into each other. The ramp is
    # sampled in space: sampling it in frequency would lose the mean.
    length = 2 * detectors
    n = torch.fft.fftfreq(length, d=1 / length).round()
    odd = (n.abs() % 2) == 1
    ramp = torch.where(odd, -1 / (torch.pi * n).square().clamp(min=1.0), torch.zeros_like(n))
    ramp[0] = 0.25
    response = torch.fft.rfft(ramp.to(p)).real
    filtered = torch.fft.irfft(torch.fft.rfft(p, n=length) * response, n=length)[..., :detectors]
    summed = back_project(filtered, sinogram.angles, sinogram.size)
    return summed * torch.pi / len(sinogram.angles)


@dataclass(frozen=True)
class ParallelBeamCT:
    r"""A CT scanner that takes views one after another.

    .. math:: y = A x + \epsilon

    Arguments:
        size: Rows and columns of the image.
        views: Views of a full scan, evenly over half a turn.
        accelerations: R of each round, decreasing.
        noise: Standard deviation of the noise on each line integral.
        seed: Together with the image it decides the noise; required where ``noise`` is not 0.

    Example:
        >>> scanner = ParallelBeamCT(size=32, views=64, accelerations=(16, 8))
        >>> scanner(torch.ones(32, 32), acceleration=8).projections.shape
        torch.Size([8, 47])
    """

    size: int
    views: int
    accelerations: tuple[float, ...]
    noise: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        nested_views(self.views, self.accelerations)
        require_seed(self.noise, self.seed)

    def __call__(self, image: Tensor, acceleration: float) -> Sinogram:
        """Measure images (..., size, size)."""
        if image.ndim < 2 or image.shape[-2:] != (self.size, self.size) or image.is_complex():
            raise InputError(
                f"the image has shape {tuple(image.shape)} and type {image.dtype}; give real "
                f"images (..., {self.size}, {self.size})"
            )
        views = self._views(acceleration)
        angles = torch.as_tensor(views * (np.pi / self.views), dtype=image.dtype).to(image.device)
        projections = project(image, angles)
        if self.noise > 0:
            projections = projections + self.noise * self._noise(image, views)
        return Sinogram(projections, angles, self.size, float(acceleration))

    def _views(self, acceleration: float) -> NDArray[np.int64]:
        rounds = [*nested_views(self.views, self.accelerations), np.arange(self.views)]
        return rounds[round_at(acceleration, [*self.accelerations, 1])]

    def _noise(self, images: Tensor, views: NDArray[np.int64]) -> Tensor:
        """Noise of the chosen views; a view keeps its noise in later rounds."""
        flat = images.reshape(-1, self.size, self.size)
        shape = (self.views, _detectors(self.size))
        noise = torch.stack([noise_for(image, shape, self.seed) for image in flat])
        noise = noise[:, torch.as_tensor(views)].to(images)
        return noise.reshape(*images.shape[:-2], len(views), shape[1])


def _detectors(size: int) -> int:
    return int(np.ceil(size * np.sqrt(2))) + 1


def _shares(size: int, angles: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """The lower detector bin of each pixel and the share of the upper one, (view, pixel)."""
    axis = torch.arange(size, device=like.device, dtype=like.dtype) - (size - 1) / 2
    y, x = torch.meshgrid(-axis, axis, indexing="ij")
    theta = angles.to(like)[:, None]
    s = x.flatten() * theta.cos() + y.flatten() * theta.sin() + (_detectors(size) - 1) / 2
    place = s.floor().clamp(0, _detectors(size) - 2)
    return place.long(), s - place
