"""Two layouts of coil images: complex coils, and real channels for networks."""

from __future__ import annotations

import torch
from torch import Tensor

from taskuq.errors import InputError


def to_channels(images: Tensor) -> Tensor:
    r"""Write complex coil images as real channels, interleaved.

    Coil :math:`b` becomes channel :math:`2b` (real part) and channel :math:`2b + 1` (imaginary
    part).

    Arguments:
        images: A complex tensor (..., coil, height, width).

    Returns:
        A real tensor (..., 2 * coil, height, width).

    Example:
        >>> import torch
        >>> to_channels(torch.full((8, 4, 4), 1 - 2j))[:2, 0, 0].tolist()
        [1.0, -2.0]
    """
    if not images.is_complex():
        raise InputError(f"coil images have type {images.dtype}; give complex coil images")
    return torch.view_as_real(images.resolve_conj()).movedim(-1, -3).flatten(-4, -3)


def to_complex(channels: Tensor) -> Tensor:
    r"""Read complex coil images back from real channels: the inverse of :func:`to_channels`.

    Arguments:
        channels: A real tensor (..., 2 * coil, height, width).

    Returns:
        A complex tensor (..., coil, height, width).

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
