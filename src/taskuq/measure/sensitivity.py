"""Coil sensitivities for simulation: loops around the head, by the law of Biot and Savart."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.measure.smooth import smooth_field, spline_basis, upsampling
from taskuq.seeds import numbers_of_cases

_SEGMENTS = 48
_COARSE = 20
# Of a smooth phase: two spacings from side to side.
_KNOTS = 5


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
    a, d, r, p = (torch.as_tensor(x) for x in (angle, distance, radius, phase))
    return ring_sensitivities(a, d, r, p, height, width).to(torch.complex64)


def ring_sensitivities(
    angle: Tensor, distance: Tensor, radius: Tensor, phase: Tensor, height: int, width: int
) -> Tensor:
    """Sensitivities (..., coil, height, width) of given loops, for many rings at once.

    Arguments:
        angle: Where each loop stands on its ring, in radians, (..., coil).
        distance: From the centre to each loop, in halves of the field of view.
        radius: Of each loop, in the same unit.
        phase: Complex factors of modulus 1.
        height: Rows of the image.
        width: Columns of the image.

    Example:
        >>> angle = torch.tensor([[0.0, 2.0, 4.0]])
        >>> ones = torch.ones_like(angle)
        >>> ring_sensitivities(angle, 1.6 * ones, 0.6 * ones, ones + 0j, 16, 24).shape
        torch.Size([1, 3, 16, 24])
    """
    field = phase[..., None, None] * _loop_field(angle, distance, radius, _COARSE)
    # The field varies over centimetres; a coarse grid and cubic splines carry it exactly enough.
    rows, columns = (_upsampling(size, field.dtype, field.device) for size in (height, width))
    fine = rows @ field @ columns.mT
    unit: Tensor = fine / torch.linalg.vector_norm(fine, dim=-3, keepdim=True)
    return unit


def random_sensitivities(
    cases: int, coils: int, height: int, width: int, generator: torch.Generator
) -> Tensor:
    """Sensitivities (case, coil, height, width) of a random ring for each case, drawn at once.

    Rings are wider or narrower, loops larger or smaller and more or less even than those of
    :func:`coil_sensitivities`.

    Arguments:
        cases: The number of rings.
        coils: The loops of each.
        height: Rows of the image.
        width: Columns of the image.
        generator: Where the rings come from; its device is theirs.

    Example:
        >>> maps = random_sensitivities(2, 5, 16, 24, torch.Generator().manual_seed(0))
        >>> maps.shape, bool((maps.abs().square().sum(1) - 1).abs().max() < 1e-5)
        (torch.Size([2, 5, 16, 24]), True)
    """
    device = generator.device

    def between(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * numbers_of_cases(torch.rand, shape, generator, device=device)

    def stray() -> Tensor:
        return jitter * numbers_of_cases(torch.randn, (cases, coils), generator, device=device)

    jitter = between(0.0, 0.2, cases, 1)
    place = torch.arange(coils, device=device) + stray() + between(0.0, coils, cases, 1)
    distance = between(1.5, 2.2, cases, 1) * (1 + 0.3 * stray())
    radius = between(0.4, 0.9, cases, 1) * (1 + stray()).clamp_min(0.5)
    phase = between(0.0, 2 * math.pi, cases, coils)
    return ring_sensitivities(
        place * 2 * math.pi / coils,
        distance.clamp_min(1.45),
        radius,
        torch.polar(torch.ones_like(phase), phase),
        height,
        width,
    )


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


def random_phases(cases: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Smooth phase factors (case, height, width), up to twice as strong as usual, drawn at once.

    Arguments:
        cases: How many.
        height: Rows of the image.
        width: Columns of the image.
        generator: Where they come from; its device is theirs.

    Example:
        >>> phase = random_phases(2, 16, 24, torch.Generator().manual_seed(0))
        >>> phase.shape, bool((phase.abs() - 1).abs().max() < 1e-5)
        (torch.Size([2, 16, 24]), True)
    """
    device = generator.device
    knots = numbers_of_cases(torch.randn, (cases, _KNOTS, _KNOTS), generator, device=device)
    strength = 2 * numbers_of_cases(torch.rand, (cases, 1, 1), generator, device=device)
    rows, columns = (_splines(size, device) for size in (height, width))
    angle = strength * (rows @ knots @ columns.mT)
    return torch.polar(torch.ones_like(angle), angle)


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


def _loop_field(angle: Tensor, distance: Tensor, radius: Tensor, size: int) -> Tensor:
    """The transverse field of loops that face the centre, complex (..., size, size)."""
    # A loop is its own mirror image below the plane, and so is its field there: half of it does.
    t = (torch.arange(_SEGMENTS // 2, device=angle.device) + 0.5) * 2 * math.pi / _SEGMENTS
    sine, cosine = torch.sin(t).to(angle), torch.cos(t).to(angle)
    x, y = torch.cos(angle)[..., None], torch.sin(angle)[..., None]
    out, along = distance[..., None], radius[..., None] * cosine
    axis = torch.linspace(-1, 1, size, device=angle.device, dtype=angle.dtype)
    # From each piece of wire to each point: (..., row, column, segment).
    to_x = axis[None, :, None] - (out * x - along * y)[..., None, None, :]
    to_y = axis[:, None, None] - (out * y + along * x)[..., None, None, :]
    to_z = (-radius[..., None] * sine)[..., None, None, :]
    near = 2 / (to_x.square() + to_y.square() + to_z.square()).pow(1.5)
    step_x, step_y = ((part * sine)[..., None, None, :] for part in (y, -x))
    field_x = ((step_y * to_z - cosine * to_y) * near).sum(-1)
    field_y = ((cosine * to_x - step_x * to_z) * near).sum(-1)
    return torch.complex(field_x, -field_y)


@lru_cache(maxsize=32)
def _upsampling(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.as_tensor(upsampling(_COARSE, size)).to(device, dtype)


@lru_cache(maxsize=32)
def _splines(size: int, device: torch.device) -> Tensor:
    """Splines (pixel, knot) whose squares sum to 1: white knots become a field of deviation 1."""
    basis = spline_basis(np.linspace(0, _KNOTS - 3, size), _KNOTS)
    basis /= np.sqrt((basis**2).sum(axis=1, keepdims=True))
    return torch.as_tensor(basis.astype(np.float32)).to(device)
