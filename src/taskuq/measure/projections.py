"""What a mask keeps, what it loses, and how a recovery is made to agree with the measurement."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.measure.fourier import fft2c, ifft2c


def broadcast_mask(mask: Any, like: Tensor) -> Tensor:
    """Bring a column mask to the device of images (..., height, width), to broadcast with them.

    The last axis of a mask is the k-space column. Its other axes, if any, are the *leading* axes
    of the images, so that a batch can have one mask for each case; a mask with as many axes as
    the images is used as it is.

    Arguments:
        mask: Booleans (width,), (case, width) or as many axes as ``like``; True is measured.
        like: The images or k-space to be masked.

    Example:
        >>> import torch
        >>> broadcast_mask(torch.ones(5, 128, dtype=bool), like=torch.ones(5, 8, 96, 128)).shape
        torch.Size([5, 1, 1, 128])
    """
    tensor = torch.as_tensor(mask, device=like.device).bool()
    if tensor.ndim == 0 or tensor.shape[-1] not in (1, like.shape[-1]) or tensor.ndim > like.ndim:
        raise InputError(
            f"the mask has shape {tuple(tensor.shape)}, the images {tuple(like.shape)}; give a "
            f"mask whose last axis has length {like.shape[-1]}"
        )
    if 1 < tensor.ndim < like.ndim:
        batch, width = tensor.shape[:-1], tensor.shape[-1]
        tensor = tensor.reshape(*batch, *(1,) * (like.ndim - tensor.ndim), width)
    if any(m not in (1, x) for m, x in zip(tensor.shape[::-1], like.shape[::-1], strict=False)):
        raise InputError(
            f"a mask of shape {tuple(tensor.shape)} does not fit images of shape "
            f"{tuple(like.shape)}; give one mask (width,) or one for each case (case, width)"
        )
    return tensor


def keep_measured(images: Tensor, mask: Any) -> Tensor:
    r"""Keep the measured columns of k-space: the zero-filled image.

    .. math:: A x = F^{\mathsf H} M F x

    :math:`M` is 1 on measured columns and 0 elsewhere; :math:`A` is an orthogonal projection,
    block-diagonal over coils.

    Arguments:
        images: Complex images (..., height, width).
        mask: Booleans (width,) or (case, width); True is measured.

    Example:
        >>> import torch
        >>> x = torch.randn(2, 8, 16, 16, dtype=torch.complex64)
        >>> torch.equal(keep_measured(x, np.zeros(16, dtype=bool)), torch.zeros_like(x))
        True
    """
    kspace = fft2c(images)
    return ifft2c(torch.where(broadcast_mask(mask, kspace), kspace, 0))


def null_space(images: Tensor, mask: Any) -> Tensor:
    r"""Keep what the measurement cannot see; with :func:`keep_measured` it sums to the images.

    .. math:: (I - A) x = F^{\mathsf H} (I - M) F x

    Arguments:
        images: Complex images (..., height, width).
        mask: Booleans (width,) or (case, width); True is measured.

    Example:
        >>> import torch
        >>> x = torch.randn(8, 16, 16, dtype=torch.complex64)
        >>> mask = np.arange(16) % 4 == 0
        >>> torch.allclose(keep_measured(x, mask) + null_space(x, mask), x, atol=1e-6)
        True
    """
    kspace = fft2c(images)
    return ifft2c(torch.where(broadcast_mask(mask, kspace), 0, kspace))


def data_consistent(images: Tensor, measured: Tensor, mask: Any) -> Tensor:
    r"""Replace the measured columns of a recovery by what was measured.

    .. math:: F^{\mathsf H} \big( (I - M) F x + M F y \big)

    Arguments:
        images: A recovery :math:`x`, complex (..., height, width).
        measured: The zero-filled images :math:`y`; broadcasts against ``images``.
        mask: Booleans (width,) or (case, width); True is measured.

    Example:
        >>> import torch
        >>> truth = torch.randn(8, 16, 16, dtype=torch.complex64)
        >>> mask = np.arange(16) % 4 == 0
        >>> y = keep_measured(truth, mask)
        >>> x = data_consistent(torch.zeros_like(truth), y, mask)
        >>> torch.allclose(x, y, atol=1e-6)
        True
    """
    recovered, known = fft2c(images), fft2c(measured)
    return ifft2c(torch.where(broadcast_mask(mask, recovered), known, recovered))
