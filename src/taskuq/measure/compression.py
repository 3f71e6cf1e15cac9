"""Coil compression: many receive coils become a few virtual ones with nearly all of the signal."""

from __future__ import annotations

import torch
from torch import Tensor

from taskuq.errors import InputError


def compression_matrix(coil_images: Tensor, coils: int) -> Tensor:
    r"""The unitary mixing of coils that keeps the most energy in a few virtual coils.

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

    Returns:
        Orthonormal columns, complex (..., coil, virtual coil).

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
    r"""Mix coils into virtual coils.

    .. math:: \tilde x = C^{\mathsf T} x \quad \text{over the coil axis}

    Arguments:
        coil_images: Images or k-space, complex (..., coil, height, width).
        matrix: :math:`C` from :func:`compression_matrix`, (..., coil, virtual coil).

    Returns:
        Complex images (..., virtual coil, height, width).

    Example:
        >>> x = torch.randn(15, 8, 8, dtype=torch.complex64)
        >>> y = compress_coils(x, compression_matrix(x, coils=15))  # nothing is dropped
        >>> torch.allclose(y.norm(dim=0), x.norm(dim=0), atol=1e-4)
        True
    """
    # One matrix product over all pixels; einsum would move the coil axis first.
    mixed = matrix.mT @ coil_images.flatten(-2)
    return mixed.reshape(*mixed.shape[:-1], *coil_images.shape[-2:])
