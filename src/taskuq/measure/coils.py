"""Coil images: combined into one, compressed to fewer, written as channels for networks."""

from __future__ import annotations

import torch
from torch import Tensor

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
