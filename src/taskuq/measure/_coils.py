"""Coil combination, coil compression and sensitivities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional as F

from taskuq._seeds import per_case_random
from taskuq.errors import InputError


def rss(images: Tensor, axis: int = -3) -> Tensor:
    """Return the root sum of squares over coils."""
    if images.is_complex() and images.device.type == "cpu" and not images.requires_grad:
        # A norm of complex numbers takes 16 times as long there. Its gradient is defined where an
        # image is 0, which this one's is not.
        squares = images.real.square().sum(axis) + images.imag.square().sum(axis)
        return squares.sqrt()
    combined: Tensor = torch.linalg.vector_norm(images, dim=axis)
    return combined


def magnitude(image: Tensor) -> Tensor:
    """Return the magnitude image, float32 (height, width), of a real or multi-coil image."""
    return (rss(image) if image.ndim == 3 else image).to(torch.float32)


def compression_matrix(coil_images: Tensor, coils: int) -> Tensor:
    """Return the orthonormal matrix (..., coil, virtual coil) that retains the most energy."""
    if coil_images.ndim < 3 or not 1 <= coils <= coil_images.shape[-3]:
        raise InputError(f"coils is {coils}; pass 1 to the number of images", code="value.invalid")
    # The Gram matrix has the same V and is as small as the number of coils. In double precision
    # squaring the singular values loses nothing that single precision had.
    X = coil_images.flatten(-2).to(torch.complex128)
    V: Tensor = torch.linalg.eigh((X @ X.mH).conj()).eigenvectors.flip(-1)[..., :coils]
    # Eigenvectors have no phase of their own; a real, positive largest entry makes them repeat.
    pivot = torch.take_along_dim(V, V.abs().argmax(-2, keepdim=True), dim=-2)
    return (V * (pivot.abs() / pivot)).to(coil_images.dtype)


def compress_coils(coil_images: Tensor, matrix: Tensor) -> Tensor:
    """Mix coils into virtual coils, complex (..., virtual coil, height, width)."""
    # One matrix product over all pixels; einsum would move the coil axis first.
    mixed = matrix.mT @ coil_images.flatten(-2)
    return mixed.reshape(*mixed.shape[:-1], *coil_images.shape[-2:])


def to_channels(images: Tensor) -> Tensor:
    """Convert complex coil images to real channels (..., 2 * coil, height, width), interleaved."""
    if not images.is_complex():
        text = f"coil images have type {images.dtype}; pass complex coil images"
        raise InputError(text, code="dtype.invalid")
    return torch.view_as_real(images.resolve_conj()).movedim(-1, -3).flatten(-4, -3)


def to_complex(channels: Tensor) -> Tensor:
    """Convert channels back to complex images; the inverse of :func:`to_channels`."""
    if channels.is_complex() or channels.ndim < 3 or channels.shape[-3] % 2:
        given = f"channels have shape {tuple(channels.shape)} and type {channels.dtype}"
        raise InputError(f"{given}; pass real (..., 2 * coil, height, width)", code="shape.axes")
    *batch, count, height, width = channels.shape
    pairs = channels.reshape(*batch, count // 2, 2, height, width).movedim(-3, -1)
    return torch.view_as_complex(pairs.contiguous())


def _spline_basis(positions: ArrayLike, knots: int) -> NDArray[np.float64]:
    """Return the values (position, knot) of uniform cubic B-splines at given positions."""
    t = np.abs(np.asarray(positions, dtype=float)[:, None] + 1 - np.arange(knots))
    near = 2 / 3 - t**2 + t**3 / 2
    far = (2 - t) ** 3 / 6
    return np.where(t < 1, near, np.where(t < 2, far, 0.0))


def smooth_field(
    axes: Sequence[ArrayLike | int], spacing: Sequence[float], *, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw a smooth random field of mean 0, standard deviation 1 and given correlation length."""
    bases = []
    for axis, step in zip(axes, spacing, strict=True):
        p = np.arange(axis, dtype=float) if isinstance(axis, int) else np.asarray(axis, dtype=float)
        # A random origin, so that no pixel is closer to the lattice than others on average.
        p = (p - p[0]) / step + rng.uniform()
        basis = _spline_basis(p, int(np.floor(p[-1])) + 4)
        bases.append(basis / np.sqrt((basis**2).sum(axis=1, keepdims=True)))
    field = rng.normal(size=[basis.shape[1] for basis in bases])
    for k, basis in enumerate(bases):
        field = np.moveaxis(np.tensordot(basis, field, axes=(1, k)), 0, k)
    return np.asarray(field)


_SEGMENTS = 48
_COARSE = 20
# Of a smooth phase: two spacings from side to side.
_KNOTS = 5


def coil_sensitivities(coils: int, height: int, width: int, *, rng: np.random.Generator) -> Tensor:
    """Draw sensitivities (coil, height, width) of loop coils on a ring around the image."""
    if coils < 1:
        raise InputError(f"coils is {coils}; pass at least 1", code="value.invalid")
    jitter = 0.1
    angle = (np.arange(coils) + jitter * rng.normal(size=coils)) * 2 * np.pi / coils
    angle = angle + rng.uniform(0, 2 * np.pi)
    # In units of half the field of view, whose corners are at 1.41: no wire crosses the image.
    distance = 1.6 * (1 + 0.3 * jitter * rng.normal(size=coils))
    radius = 0.6 * (1 + jitter * rng.normal(size=coils)).clip(0.5)
    phase = np.exp(1j * rng.uniform(0, 2 * np.pi, size=coils))
    a, d, r, p = (torch.as_tensor(x) for x in (angle, distance, radius, phase))
    return _ring_sensitivities(a, d, r, p, height, width).to(torch.complex64)


def _ring_sensitivities(
    angle: Tensor, distance: Tensor, radius: Tensor, phase: Tensor, height: int, width: int
) -> Tensor:
    field = phase[..., None, None] * _loop_field(angle, distance, radius, _COARSE)
    # The field varies over centimetres; a coarse grid and cubic splines carry it exactly enough.
    rows, columns = (_upsampling(size, field.dtype, field.device) for size in (height, width))
    fine = rows @ field @ columns.mT
    unit: Tensor = fine / torch.linalg.vector_norm(fine, dim=-3, keepdim=True)
    return unit


def random_sensitivities(
    cases: int, coils: int, height: int, width: int, generator: torch.Generator
) -> Tensor:
    """Draw coil sensitivities (case, coil, height, width), for a random ring of loops per case."""
    device = generator.device

    def between(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * per_case_random(torch.rand, shape, generator, device=device)

    def stray() -> Tensor:
        return jitter * per_case_random(torch.randn, (cases, coils), generator, device=device)

    jitter = between(0.0, 0.2, cases, 1)
    place = torch.arange(coils, device=device) + stray() + between(0.0, coils, cases, 1)
    distance = between(1.5, 2.2, cases, 1) * (1 + 0.3 * stray())
    radius = between(0.4, 0.9, cases, 1) * (1 + stray()).clamp_min(0.5)
    phase = between(0.0, 2 * math.pi, cases, coils)
    turn, factor = place * 2 * math.pi / coils, torch.polar(torch.ones_like(phase), phase)
    return _ring_sensitivities(turn, distance.clamp_min(1.45), radius, factor, height, width)


def smooth_phase(height: int, width: int, *, rng: np.random.Generator) -> Tensor:
    """Draw a smooth complex phase factor (height, width) of magnitude 1."""
    phase = smooth_field((height, width), (height / 2, width / 2), rng=rng)
    return torch.as_tensor(np.exp(1j * phase).astype(np.complex64))


def random_phases(cases: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw smooth phase factors (case, height, width); phases have a standard deviation below 2."""
    device = generator.device
    knots = per_case_random(torch.randn, (cases, _KNOTS, _KNOTS), generator, device=device)
    strength = 2 * per_case_random(torch.rand, (cases, 1, 1), generator, device=device)
    rows, columns = (_splines(size, device) for size in (height, width))
    angle = strength * (rows @ knots @ columns.mT)
    return torch.polar(torch.ones_like(angle), angle)


def simulate_coils(image: Tensor, sensitivities: Tensor, phase: Tensor | None = None) -> Tensor:
    """Return complex coil images whose root sum of squares is the given magnitude image."""
    signal = image if phase is None else image * phase
    return signal.unsqueeze(-3) * sensitivities


def _loop_field(angle: Tensor, distance: Tensor, radius: Tensor, size: int) -> Tensor:
    # A loop is its own mirror image below the plane, and so is its field there: half of it does.
    t = (torch.arange(_SEGMENTS // 2, device=angle.device) + 0.5) * 2 * math.pi / _SEGMENTS
    sine, cosine = torch.sin(t).to(angle), torch.cos(t).to(angle)
    x, y = torch.cos(angle)[..., None], torch.sin(angle)[..., None]
    out, along = distance[..., None], radius[..., None] * cosine
    axis = torch.linspace(-1, 1, size, device=angle.device, dtype=angle.dtype)
    to_x = axis[None, :, None] - (out * x - along * y)[..., None, None, :]
    to_y = axis[:, None, None] - (out * y + along * x)[..., None, None, :]
    to_z = (-radius[..., None] * sine)[..., None, None, :]
    near = 2 / (to_x.square() + to_y.square() + to_z.square()).pow(1.5)
    step_x, step_y = ((part * sine)[..., None, None, :] for part in (y, -x))
    field_x = ((step_y * to_z - cosine * to_y) * near).sum(-1)
    field_y = ((cosine * to_x - step_x * to_z) * near).sum(-1)
    return torch.complex(field_x, -field_y)


@lru_cache(maxsize=32)
def _upsampling(fine: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the matrix (fine, coarse) of spline upsampling, exact for linear functions."""
    # Splines with one phantom knot at each end, fitted so that they pass through the values;
    # the phantom knots continue the curve straight.
    knots = _COARSE + 2
    collocation = np.zeros((knots, knots))
    collocation[1:-1] = _spline_basis(np.arange(_COARSE), knots)
    collocation[0, :3] = collocation[-1, -3:] = (1, -2, 1)
    coefficients = np.linalg.solve(collocation, np.eye(knots)[:, 1:-1])
    matrix = _spline_basis(np.linspace(0, _COARSE - 1, fine), knots) @ coefficients
    return torch.as_tensor(matrix).to(device, dtype)


@lru_cache(maxsize=32)
def _splines(size: int, device: torch.device) -> Tensor:
    """Return splines (pixel, knot) normalised to turn white noise into a field of unit variance."""
    basis = _spline_basis(np.linspace(0, _KNOTS - 3, size), _KNOTS)
    basis /= np.sqrt((basis**2).sum(axis=1, keepdims=True))
    return torch.as_tensor(basis.astype(np.float32)).to(device)


# As in fastMRI.
_WINDOW, _K1, _K2 = 7, 0.01, 0.03


def ssim(images: Tensor, targets: Tensor, data_range: Tensor) -> Tensor:
    """Return the mean structural similarity of each image to its target, (case,); 1 if equal."""
    x, y = images[:, None], targets[:, None]
    scale = _WINDOW**2 / (_WINDOW**2 - 1)
    mean_x, mean_y = F.avg_pool2d(x, _WINDOW, 1), F.avg_pool2d(y, _WINDOW, 1)
    var_x = scale * (F.avg_pool2d(x * x, _WINDOW, 1) - mean_x**2)
    var_y = scale * (F.avg_pool2d(y * y, _WINDOW, 1) - mean_y**2)
    cov = scale * (F.avg_pool2d(x * y, _WINDOW, 1) - mean_x * mean_y)
    c1, c2 = ((k * data_range.view(-1, 1, 1, 1)) ** 2 for k in (_K1, _K2))
    ratio = ((2 * mean_x * mean_y + c1) * (2 * cov + c2)) / (
        (mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2)
    )
    return torch.mean(ratio, dim=(1, 2, 3))
