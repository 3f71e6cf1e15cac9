"""Magnitude images on a common scale: each from 0 to 1, whatever the scanner's units."""

from __future__ import annotations

import torch
from torch import Tensor

from taskuq.errors import InputError


def unit_scale(images: Tensor) -> Tensor:
    r"""Shift and stretch each image to the range from 0 to 1.

    .. math:: \tilde x = \frac{x - \min x}{\max x - \min x}

    A task on :math:`\tilde x` says the same about :math:`x` and about :math:`a x + b`, for
    :math:`a > 0`: the scale of a recovery does not matter. A constant image becomes 0.

    Arguments:
        images: Real images (..., height, width).

    Returns:
        The same shape, at least float32, in [0, 1].

    Example:
        >>> unit_scale(torch.tensor([[[2.0, 4.0], [3.0, 6.0]]]))
        tensor([[[0.0000, 0.5000], [0.2500, 1.0000]]])
        >>> unit_scale(torch.full((1, 2, 2), 7.0)).max()  # no 0 / 0
        tensor(0.)
    """
    if images.dtype not in (torch.float32, torch.float64):
        images = images.float()
    low = images.amin((-2, -1), keepdim=True)
    span = images.amax((-2, -1), keepdim=True) - low
    # The smallest normal number keeps 0 / 0 away; where the span is 0 so is the numerator.
    return ((images - low) / span.clamp_min(torch.finfo(span.dtype).tiny)).clamp(0, 1)


def require_images(images: Tensor) -> None:
    """Refuse what is not a stack of magnitude images.

    Arguments:
        images: What was handed in.

    Example:
        >>> require_images(torch.ones(8, 8))
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: images have shape (8, 8) and type torch.float32; give ...
    """
    if images.ndim != 3 or images.is_complex() or 0 in images.shape:
        raise InputError(
            f"images have shape {tuple(images.shape)} and type {images.dtype}; give real "
            "magnitude images (image, height, width)"
        )
