"""Columns of k-space: the central ones of a mask, and consistency with those that were measured."""

from __future__ import annotations

import torch
from torch import Tensor


def central_window(count: Tensor, width: int) -> Tensor:
    """Mark the ``count`` columns around the zero frequency, booleans (case, width).

    On an even grid an even count takes one column more on the left of the centre than on its
    right, where the centred Fourier transform has its extra frequency.

    Arguments:
        count: How many columns for each case, integers (case,).
        width: The number of k-space columns.

    Example:
        >>> central_window(torch.tensor([2, 3]), width=6).int().tolist()
        [[0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0]]
    """
    start = (width - count + 1) // 2
    column = torch.arange(width, device=count.device)
    return (column >= start[:, None]) & (column < (start + count)[:, None])


def sensitivity_window(count: Tensor, width: int) -> Tensor:
    """Mark the columns that sensitivities are estimated from, booleans (case, width).

    They are the central ones; where there are none, every column that was measured has to do.

    Arguments:
        count: The number of central columns of each case, integers (case,).
        width: The number of k-space columns.

    Example:
        >>> sensitivity_window(torch.tensor([0, 3]), width=6).int().tolist()
        [[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0]]
    """
    return central_window(count, width) | (count == 0)[:, None]


def central_lines(mask: Tensor) -> Tensor:
    """Count the measured lines around the zero frequency without a gap, integers (case,).

    The count is that of the largest centred window in which every column is measured, so that a
    sensitivity estimate never sees a line that was not acquired. A full mask gives ``width``, one
    that leaves the zero frequency out 0.

    Arguments:
        mask: Booleans (case, width); True is measured.

    Example:
        >>> mask = torch.zeros(1, 320, dtype=torch.bool)
        >>> mask[0, 156:165] = True  # the nine central lines of the published mask for R = 16
        >>> central_lines(mask).item()
        9
    """
    width = mask.shape[-1]
    centre = width // 2
    # Runs of True from the centre outwards; cumprod stops at the first gap.
    left = mask[:, :centre].flip(-1).long().cumprod(-1).sum(-1)
    right = mask[:, centre:].long().cumprod(-1).sum(-1)
    even, odd = 2 * torch.minimum(left, right), 2 * torch.minimum(left, right - 1) + 1
    if width % 2:
        # On an odd grid an even window is shifted to the right instead of to the left.
        even = 2 * torch.minimum(left + 1, right - 1)
    return torch.maximum(even, odd).clamp_min(0)


def consistent_columns(x: Tensor, measured: Tensor, mask: Tensor) -> Tensor:
    r"""Replace the measured columns of a recovery by what was measured, with half of the work.

    .. math:: (I - A) x + y, \qquad A = F_w^{\mathsf H} M F_w

    :math:`A` keeps whole columns, so that the transform along the height cancels and the one
    along the width, :math:`F_w`, suffices; a circular filter needs no centring of the image
    either. Equal to :func:`taskuq.measure.projections.data_consistent` when :math:`y` is a
    zero-filled image of the same mask, :math:`A y = y`.

    Arguments:
        x: A recovery, complex (..., height, width).
        measured: The zero-filled image :math:`y`; broadcasts against ``x``.
        mask: Booleans that broadcast against ``x``, the last axis the column; True is measured.

    Example:
        >>> x = torch.randn(8, 16, 16, dtype=torch.complex64)
        >>> full = torch.ones(16, dtype=torch.bool)
        >>> torch.allclose(consistent_columns(x, 2 * x, full), 2 * x, atol=1e-5)
        True
    """
    lost = torch.fft.ifftshift(~mask, dim=-1)
    unseen: Tensor = torch.fft.ifft(torch.fft.fft(x) * lost)
    return unseen + measured
