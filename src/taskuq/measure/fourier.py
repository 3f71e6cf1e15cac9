"""The centred, orthonormal two-dimensional Fourier transform."""

from __future__ import annotations

import torch
from torch import Tensor

_SPACE = (-2, -1)


def fft2c(image: Tensor) -> Tensor:
    r"""Take images to k-space of the same shape, with the zero frequency in the middle.

    .. math:: k = F x, \qquad F^{\mathsf H} F = I

    :math:`F` is the unitary discrete Fourier transform with both origins at index ``size // 2``.

    Arguments:
        image: A real or complex tensor (..., height, width).

    Example:
        >>> import torch
        >>> k = fft2c(torch.ones(4, 4))
        >>> k.abs().nonzero().tolist(), k[2, 2].item()
        ([[2, 2]], (4+0j))
    """
    shifted = torch.fft.ifftshift(image, dim=_SPACE)
    kspace: Tensor = torch.fft.fftshift(torch.fft.fft2(shifted, norm="ortho"), dim=_SPACE)
    return kspace


def ifft2c(kspace: Tensor) -> Tensor:
    r"""Take k-space to complex images: the inverse, and the adjoint, of :func:`fft2c`.

    .. math:: x = F^{\mathsf H} k

    Arguments:
        kspace: A complex tensor (..., height, width), the zero frequency in the middle.

    Example:
        >>> import torch
        >>> image = torch.arange(6.0).reshape(2, 3)
        >>> ifft2c(fft2c(image)).real.round().tolist()
        [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    """
    shifted = torch.fft.ifftshift(kspace, dim=_SPACE)
    image: Tensor = torch.fft.fftshift(torch.fft.ifft2(shifted, norm="ortho"), dim=_SPACE)
    return image
