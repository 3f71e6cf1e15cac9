"""The central lines of k-space: how many are there, and which they are."""

from __future__ import annotations

import torch
from torch import Tensor

from taskuq.errors import InputError


def central_window(count: Tensor, width: int) -> Tensor:
    """Mark the ``count`` columns around the zero frequency.

    On an even grid an even count takes one column more on the left of the centre than on its
    right, where the centred Fourier transform has its extra frequency.

    Arguments:
        count: How many columns for each case, integers (case,).
        width: The number of k-space columns.

    Returns:
        Booleans (case, width).

    Example:
        >>> import torch
        >>> central_window(torch.tensor([2, 3]), width=6).int().tolist()
        [[0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0]]
    """
    start = (width - count + 1) // 2
    column = torch.arange(width, device=count.device)
    return (column >= start[:, None]) & (column < (start + count)[:, None])


def central_lines(mask: Tensor) -> Tensor:
    """Count the measured lines around the zero frequency that have no gap between them.

    The count is that of the largest centred window in which every column is measured, so that a
    sensitivity estimate never sees a line that was not acquired. A full mask gives ``width``.

    Arguments:
        mask: Booleans (case, width); True is measured.

    Returns:
        Integers (case,).

    Example:
        >>> import torch
        >>> mask = torch.zeros(1, 320, dtype=torch.bool)
        >>> mask[0, 156:165] = True  # the nine central lines of the published mask for R = 16
        >>> central_lines(mask).item()
        9
    """
    width = mask.shape[-1]
    centre = width // 2
    if not bool(mask[:, centre].all()):
        raise InputError(
            f"the mask does not measure the zero frequency, column {centre}; sensitivities need "
            "at least that line, so use a mask with a sampled centre"
        )
    # Runs of True from the centre outwards; cumprod stops at the first gap.
    left = mask[:, :centre].flip(-1).long().cumprod(-1).sum(-1)
    right = mask[:, centre:].long().cumprod(-1).sum(-1)
    even, odd = 2 * torch.minimum(left, right), 2 * torch.minimum(left, right - 1) + 1
    if width % 2:
        # On an odd grid an even window is shifted to the right instead of to the left.
        even = 2 * torch.minimum(left + 1, right - 1)
    return torch.maximum(even, odd)
