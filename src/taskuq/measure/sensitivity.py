"""Coil sensitivities for simulation: loops around the head, by the law of Biot and Savart."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq.errors import InputError
from taskuq.measure.smooth import smooth_field, upsampling

_SEGMENTS = 48
_COARSE = 20


def coil_sensitivities(
    coils: int, height: int, width: int, *, rng: np.random.Generator, jitter: float = 0.1
) -> Tensor:
    r"""Complex sensitivities (coil, height, width) of circular loops on a ring around the image.

    .. math:: S_b \propto B_x - i B_y, \qquad
        B(r) = \oint \frac{d\ell \times (r - \ell)}{|r - \ell|^3}, \qquad
        \sum_b |S_b|^2 = 1

    The receive field of loop :math:`b` is its transverse magnetic field :math:`B`; its phase turns
    smoothly across the image. Dividing by the root of the sum of squares makes the RSS of the
    simulated coil images equal to the image they were made from.

    References:
        Roemer et al., The NMR Phased Array, Magnetic Resonance in Medicine 1990.

    Arguments:
        coils: The number of loops.
        height: Rows of the image.
        width: Columns of the image.
        rng: Where the positions of the loops come from.
        jitter: How far loops stray from an even ring, relative to their spacing and radius.

    Example:
        >>> maps = coil_sensitivities(8, 64, 64, rng=rng)
        >>> maps.shape, maps.dtype
        (torch.Size([8, 64, 64]), torch.complex64)
        >>> float(maps.abs().square().sum(0).std()) < 1e-6
        True
    """
    if coils < 1:
        raise InputError(f"{coils} coils are asked for; ask for at least 1")
    angle = (np.arange(coils) + jitter * rng.normal(size=coils)) * 2 * np.pi / coils
    angle = angle + rng.uniform(0, 2 * np.pi)
    # In units of half the field of view, whose corners are at 1.41: no wire crosses the image.
    distance = 1.6 * (1 + 0.3 * jitter * rng.normal(size=coils))
    radius = 0.6 * (1 + jitter * rng.normal(size=coils)).clip(0.5)
    phase = np.exp(1j * rng.uniform(0, 2 * np.pi, size=coils))
    loops = zip(angle, distance, radius, phase, strict=True)
    field = np.stack([p * _loop_field(a, d, r, _COARSE) for a, d, r, p in loops])
    # The field varies over centimetres; a coarse grid and cubic splines carry it exactly enough.
    rows, columns = upsampling(_COARSE, height), upsampling(_COARSE, width)
    fine = rows @ field @ columns.T
    fine /= np.sqrt((np.abs(fine) ** 2).sum(axis=0))
    return torch.as_tensor(fine.astype(np.complex64))


def smooth_phase(
    height: int, width: int, *, rng: np.random.Generator, strength: float = 1.0
) -> Tensor:
    r"""A complex phase factor (height, width) of magnitude 1 that varies smoothly over the image.

    .. math:: e^{i \varphi(r)}

    Field inhomogeneity and flow give real MR images such a phase.

    Arguments:
        height: Rows of the image.
        width: Columns of the image.
        rng: Where the phase comes from.
        strength: Standard deviation of :math:`\varphi`, in radians.

    Example:
        >>> smooth_phase(32, 32, rng=rng).abs().round().unique().tolist()
        [1.0]
    """
    phase = strength * smooth_field((height, width), (height / 2, width / 2), rng=rng)
    return torch.as_tensor(np.exp(1j * phase).astype(np.complex64))


def simulate_coils(image: Tensor, sensitivities: Tensor, phase: Tensor | None = None) -> Tensor:
    r"""Turn a magnitude image into the complex images that coils would see; their RSS is the image.

    .. math:: x_b = S_b \, e^{i \varphi} \, |w|

    Arguments:
        image: Magnitude :math:`|w|`, (..., height, width).
        sensitivities: :math:`S_b`, complex (coil, height, width).
        phase: :math:`e^{i \varphi}`, complex (height, width); none by default.

    Example:
        >>> from taskuq.measure.coils import rss
        >>> image = torch.ones(32, 32)
        >>> images = simulate_coils(image, coil_sensitivities(4, 32, 32, rng=rng))
        >>> images.shape, torch.allclose(rss(images), image)
        (torch.Size([4, 32, 32]), True)
    """
    signal = image if phase is None else image * phase
    return signal.unsqueeze(-3) * sensitivities


def _loop_field(angle: float, distance: float, radius: float, size: int) -> NDArray[np.complex128]:
    """The transverse field of one loop that faces the centre, on a size × size grid."""
    t = (np.arange(_SEGMENTS) + 0.5) * 2 * np.pi / _SEGMENTS
    outward = np.array([np.cos(angle), np.sin(angle), 0.0])
    along = np.array([-np.sin(angle), np.cos(angle), 0.0])
    upward = np.array([0.0, 0.0, 1.0])
    wire = (
        distance * outward
        + radius * np.cos(t)[:, None] * along
        + radius * np.sin(t)[:, None] * upward
    )
    step = -np.sin(t)[:, None] * along + np.cos(t)[:, None] * upward
    toward = _plane(size)[:, None, :] - wire
    field = (np.cross(step, toward) / (toward**2).sum(-1, keepdims=True) ** 1.5).sum(axis=1)
    return np.asarray((field[:, 0] - 1j * field[:, 1]).reshape(size, size))


@lru_cache(maxsize=4)
def _plane(size: int) -> NDArray[np.float64]:
    """Points of the image plane, (size², 3)."""
    y, x = np.meshgrid(np.linspace(-1, 1, size), np.linspace(-1, 1, size), indexing="ij")
    return np.stack([x.ravel(), y.ravel(), np.zeros(size * size)], axis=1)
