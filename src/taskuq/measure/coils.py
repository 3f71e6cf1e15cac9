"""From coil images to one magnitude image."""

from __future__ import annotations

import torch
from torch import Tensor


def rss(images: Tensor, axis: int = -3) -> Tensor:
    r"""Combine coil images by the root of the sum of squares.

    .. math:: |\hat w| = \sqrt{\textstyle\sum_{b=1}^B |x_b|^2}

    :math:`x_b` is the image of coil :math:`b`. The result does not change when the coils are
    mixed by a unitary matrix.

    References:
        Roemer et al., The NMR Phased Array, Magnetic Resonance in Medicine 1990.

    Arguments:
        images: Real or complex coil images (..., coil, height, width).
        axis: The coil axis.

    Returns:
        A real tensor without the coil axis.

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
    """The magnitude image of anything a data set gives.

    Arguments:
        image: Complex coil images (coil, height, width), or a magnitude image (height, width).

    Returns:
        A float32 image (height, width).

    Example:
        >>> magnitude(torch.tensor([3.0, 4.0j]).reshape(2, 1, 1))
        tensor([[5.]])
    """
    return (rss(image) if image.ndim == 3 else image).to(torch.float32)
