"""Trade pixels for channels, and channels for latents."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses


def squeeze(x: Tensor) -> Tensor:
    r"""Fold each 2×2 block of pixels into channels: channel :math:`4c + 2\,dy + dx`.

    Arguments:
        x: Real channels (case, channel, height, width), both sides even.

    Example:
        >>> import torch
        >>> squeeze(torch.arange(4.0).reshape(1, 1, 2, 2)).flatten().tolist()
        [0.0, 1.0, 2.0, 3.0]
    """
    return F.pixel_unshuffle(x, 2)


def unsqueeze(x: Tensor) -> Tensor:
    """Unfold channels into 2×2 blocks of pixels: the inverse of :func:`squeeze`.

    Arguments:
        x: Real channels (case, 4 * channel, height, width).

    Example:
        >>> import torch
        >>> unsqueeze(torch.arange(4.0).reshape(1, 4, 1, 1)).tolist()
        [[[[0.0, 1.0], [2.0, 3.0]]]]
    """
    return F.pixel_shuffle(x, 2)


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Cut channels in halves: the first goes on, the last leaves as latents.

    Arguments:
        x: Real channels (case, channel, height, width), an even number of channels.

    Example:
        >>> import torch
        >>> on, latents = split(torch.zeros(1, 64, 4, 4))
        >>> on.shape[1], latents.shape[1]
        (32, 32)
    """
    on, latents = torch.chunk(x, 2, dim=1)
    return on, latents
