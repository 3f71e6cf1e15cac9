"""Coil combination, compression, sensitivities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from taskuq._seeds import per_case_random
from taskuq.errors import InputError


def rss(images: Tensor, axis: int = -3) -> Tensor:
    r"""Combine coil images into one real image by the root of the sum of squares.

    .. math:: |\hat w| = \sqrt{\textstyle\sum_{b=1}^B |x_b|^2}

    :math:`x_b` is the image of coil :math:`b`. The result does not change when the coils are
    mixed by a unitary matrix.

    References:
        Roemer et al., The NMR Phased Array, Magnetic Resonance in Medicine 1990.

    Arguments:
        images: Real or complex coil images (..., coil, height, width).
        axis: The coil axis.

    Example:
        >>> import torch
        >>> rss(torch.tensor([3.0, 4.0j]).reshape(2, 1, 1)).item()
        5.0
    """
    if images.is_complex() and images.device.type == "cpu" and not images.requires_grad:
        # A norm of complex numbers takes 16 times as long there. Its gradient is defined where an
        # image is 0, which this one's is not.
        squares = images.real.square().sum(axis) + images.imag.square().sum(axis)
        return squares.sqrt()
    combined: Tensor = torch.linalg.vector_norm(images, dim=axis)
    return combined


def magnitude(image: Tensor) -> Tensor:
    """The magnitude image, float32 (height, width), of anything a data set gives.

    Arguments:
        image: Complex coil images (coil, height, width), or a magnitude image (height, width).

    Example:
        >>> magnitude(torch.tensor([3.0, 4.0j]).reshape(2, 1, 1))
        tensor([[5.]])
    """
    return (rss(image) if image.ndim == 3 else image).to(torch.float32)


def compression_matrix(coil_images: Tensor, coils: int) -> Tensor:
    r"""The orthonormal mixing (..., coil, virtual coil) that keeps the most energy in a few coils.

    .. math:: X = U \Sigma V^{\mathsf H}, \qquad C = V_{1:B}

    The rows of :math:`X` are pixels (or samples of k-space, which give the same :math:`V`), its
    columns coils. No other :math:`B` combinations of unit norm hold more energy of what they were
    computed from. Compute the matrix from lines that have been measured, for instance from
    zero-filled images; computing it from fully sampled data, as the paper's code does, uses lines
    that are not there yet.

    References:
        Buehrer et al., Array Compression for MRI with Large Coil Arrays, Magnetic Resonance in
        Medicine 2007.

    Arguments:
        coil_images: Images or k-space, complex (..., coil, height, width).
        coils: The number of virtual coils :math:`B`.

    Example:
        >>> x = torch.randn(15, 8, 8, dtype=torch.complex64)
        >>> C = compression_matrix(x, coils=8)
        >>> torch.allclose(C.mH @ C, torch.eye(8, dtype=C.dtype), atol=1e-5)
        True
    """
    if coil_images.ndim < 3 or not 1 <= coils <= coil_images.shape[-3]:
        raise InputError(
            f"{coils} virtual coils are asked for from images of shape "
            f"{tuple(coil_images.shape)}; ask for at least 1 and at most the number of coils"
        )
    # The Gram matrix has the same V and is as small as the number of coils. In double precision
    # squaring the singular values loses nothing that single precision had.
    X = coil_images.flatten(-2).to(torch.complex128)
    # Energies come sorted upwards.
    V: Tensor = torch.linalg.eigh((X @ X.mH).conj()).eigenvectors.flip(-1)[..., :coils]
    # Eigenvectors have no phase of their own; a real, positive largest entry makes them repeat.
    pivot = torch.take_along_dim(V, V.abs().argmax(-2, keepdim=True), dim=-2)
    V = V * (pivot.abs() / pivot)
    return V.to(coil_images.dtype)


def compress_coils(coil_images: Tensor, matrix: Tensor) -> Tensor:
    r"""Mix coils into virtual coils, complex (..., virtual coil, height, width).

    .. math:: \tilde x = C^{\mathsf T} x \quad \text{over the coil axis}

    Arguments:
        coil_images: Images or k-space, complex (..., coil, height, width).
        matrix: :math:`C` from :func:`compression_matrix`, (..., coil, virtual coil).

    Example:
        >>> x = torch.randn(15, 8, 8, dtype=torch.complex64)
        >>> y = compress_coils(x, compression_matrix(x, coils=15))  # nothing is dropped
        >>> torch.allclose(y.norm(dim=0), x.norm(dim=0), atol=1e-4)
        True
    """
    # One matrix product over all pixels; einsum would move the coil axis first.
    mixed = matrix.mT @ coil_images.flatten(-2)
    return mixed.reshape(*mixed.shape[:-1], *coil_images.shape[-2:])


def to_channels(images: Tensor) -> Tensor:
    r"""Write complex coil images as real channels (..., 2 * coil, height, width), interleaved.

    Coil :math:`b` becomes channel :math:`2b` (real part) and channel :math:`2b + 1` (imaginary
    part).

    Arguments:
        images: A complex tensor (..., coil, height, width).

    Example:
        >>> import torch
        >>> to_channels(torch.full((8, 4, 4), 1 - 2j))[:2, 0, 0].tolist()
        [1.0, -2.0]
    """
    if not images.is_complex():
        raise InputError(f"coil images have type {images.dtype}; give complex coil images")
    return torch.view_as_real(images.resolve_conj()).movedim(-1, -3).flatten(-4, -3)


def to_complex(channels: Tensor) -> Tensor:
    r"""Read complex images (..., coil, height, width) back: the inverse of :func:`to_channels`.

    Arguments:
        channels: A real tensor (..., 2 * coil, height, width).

    Example:
        >>> import torch
        >>> to_complex(torch.ones(16, 4, 4)).shape
        torch.Size([8, 4, 4])
    """
    if channels.is_complex() or channels.ndim < 3 or channels.shape[-3] % 2:
        raise InputError(
            f"channels have shape {tuple(channels.shape)} and type {channels.dtype}; give real "
            "channels (..., 2 * coil, height, width), as to_channels writes them"
        )
    *batch, count, height, width = channels.shape
    pairs = channels.reshape(*batch, count // 2, 2, height, width).movedim(-3, -1)
    return torch.view_as_complex(pairs.contiguous())


def _spline_basis(positions: ArrayLike, knots: int) -> NDArray[np.float64]:
    r"""Values (position, knot) of uniform cubic B-splines at given positions.

    .. math:: B_{ij} = \beta^3(p_i - j + 1)

    Row :math:`i` sums to 1 for positions :math:`p_i` in [0, knots - 3].

    Arguments:
        positions: Positions :math:`p`, in knot spacings from the first inner knot.
        knots: The number of splines.

    Example:
        >>> _spline_basis([0.0, 0.5], knots=4).round(3)
        array([[0.167, 0.667, 0.167, 0.   ],
               [0.021, 0.479, 0.479, 0.021]])
    """
    t = np.abs(np.asarray(positions, dtype=float)[:, None] + 1 - np.arange(knots))
    near = 2 / 3 - t**2 + t**3 / 2
    far = (2 - t) ** 3 / 6
    return np.where(t < 1, near, np.where(t < 2, far, 0.0))


@lru_cache(maxsize=32)
def _upsampling(coarse: int, fine: int) -> NDArray[np.float64]:
    """The matrix (fine, coarse) from a coarse grid to a fine one; it reproduces straight lines.

    Arguments:
        coarse: The number of coarse values, the first and last at the ends.
        fine: The number of fine values.

    Example:
        >>> (_upsampling(5, 3) @ [0.0, 1.0, 2.0, 3.0, 4.0]).round(6)
        array([0., 2., 4.])
    """
    # Splines with one phantom knot at each end, fitted so that they pass through the values;
    # the phantom knots continue the curve straight.
    knots = coarse + 2
    collocation = np.zeros((knots, knots))
    collocation[1:-1] = _spline_basis(np.arange(coarse), knots)
    collocation[0, :3] = collocation[-1, -3:] = (1, -2, 1)
    values = np.zeros((knots, coarse))
    values[1:-1] = np.eye(coarse)
    coefficients = np.linalg.solve(collocation, values)
    return _spline_basis(np.linspace(0, coarse - 1, fine), knots) @ coefficients


def smooth_field(
    axes: Sequence[ArrayLike | int], spacing: Sequence[float], *, rng: np.random.Generator
) -> NDArray[np.float64]:
    """A random field of mean 0 and standard deviation 1 that varies over the given distance.

    Random numbers sit on a lattice; cubic splines carry them to the points. Points are a product
    of axes, so the work is a few small matrix products whatever the number of axes.

    Arguments:
        axes: For each axis its sorted coordinates, or a number n for 0, 1, ..., n - 1.
        spacing: For each axis the spacing of the lattice, in the units of its coordinates.
        rng: Where the numbers come from.

    Example:
        >>> field = smooth_field((200, 200), (10, 10), rng=rng)
        >>> field.shape, bool(abs(field.std() - 1) < 0.15)
        ((200, 200), True)
        >>> bool(np.abs(np.diff(field, axis=0)).max() < 0.6)
        True
    """
    bases = []
    for axis, step in zip(axes, spacing, strict=True):
        p = np.arange(axis, dtype=float) if isinstance(axis, int) else np.asarray(axis, dtype=float)
        # A random origin, so that no pixel is closer to the lattice than others on average.
        p = (p - p[0]) / step + rng.uniform()
        basis = _spline_basis(p, int(np.floor(p[-1])) + 4)
        # The square of the weights sums to the variance of the field at each point.
        bases.append(basis / np.sqrt((basis**2).sum(axis=1, keepdims=True)))
    field = rng.normal(size=[basis.shape[1] for basis in bases])
    for k, basis in enumerate(bases):
        field = np.moveaxis(np.tensordot(basis, field, axes=(1, k)), 0, k)
    return np.asarray(field)


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
    return _ring_sensitivities(a, d, r, p, height, width).to(torch.complex64)


def _ring_sensitivities(
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
        >>> _ring_sensitivities(angle, 1.6 * ones, 0.6 * ones, ones + 0j, 16, 24).shape
        torch.Size([1, 3, 16, 24])
    """
    field = phase[..., None, None] * _loop_field(angle, distance, radius, _COARSE)
    # The field varies over centimetres; a coarse grid and cubic splines carry it exactly enough.
    rows, columns = (
        _upsampling_tensor(size, field.dtype, field.device) for size in (height, width)
    )
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
        return low + (high - low) * per_case_random(torch.rand, shape, generator, device=device)

    def stray() -> Tensor:
        return jitter * per_case_random(torch.randn, (cases, coils), generator, device=device)

    jitter = between(0.0, 0.2, cases, 1)
    place = torch.arange(coils, device=device) + stray() + between(0.0, coils, cases, 1)
    distance = between(1.5, 2.2, cases, 1) * (1 + 0.3 * stray())
    radius = between(0.4, 0.9, cases, 1) * (1 + stray()).clamp_min(0.5)
    phase = between(0.0, 2 * math.pi, cases, coils)
    return _ring_sensitivities(
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
    knots = per_case_random(torch.randn, (cases, _KNOTS, _KNOTS), generator, device=device)
    strength = 2 * per_case_random(torch.rand, (cases, 1, 1), generator, device=device)
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
        >>> from taskuq.measure._coils import rss
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
def _upsampling_tensor(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.as_tensor(_upsampling(_COARSE, size)).to(device, dtype)


@lru_cache(maxsize=32)
def _splines(size: int, device: torch.device) -> Tensor:
    """Splines (pixel, knot) whose squares sum to 1: white knots become a field of deviation 1."""
    basis = _spline_basis(np.linspace(0, _KNOTS - 3, size), _KNOTS)
    basis /= np.sqrt((basis**2).sum(axis=1, keepdims=True))
    return torch.as_tensor(basis.astype(np.float32)).to(device)
