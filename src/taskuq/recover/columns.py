"""Data consistency by one-dimensional transforms, for masks of whole columns."""

from __future__ import annotations

import torch
from torch import Tensor


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

    Returns:
        Complex images that agree with the measurement and are otherwise the recovery.

    Example:
        >>> import torch
        >>> x = torch.randn(8, 16, 16, dtype=torch.complex64)
        >>> full = torch.ones(16, dtype=torch.bool)
        >>> torch.allclose(consistent_columns(x, 2 * x, full), 2 * x, atol=1e-5)
        True
    """
    lost = torch.fft.ifftshift(~mask, dim=-1)
    unseen: Tensor = torch.fft.ifft(torch.fft.fft(x) * lost)
    return unseen + measured
