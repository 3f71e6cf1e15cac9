"""Fourier transform, mask projections, columns, noise."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taskuq._seeds import per_case_random
from taskuq.errors import InputError

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


def require_seed(noise: float, seed: int | None) -> None:
    """Refuse a noise level below 0, and noise that nothing decides.

    Arguments:
        noise: A standard deviation.
        seed: Together with an image it decides the noise.
    """
    if noise < 0 or (noise > 0 and seed is None):
        raise InputError(
            f"noise is {noise} and seed {seed}; give a noise level of at least 0, and a seed with "
            "it"
        )


def noise_for(image: Tensor, shape: tuple[int, ...], seed: int | None) -> Tensor:
    """Standard normal noise, on the CPU, that depends on a seed and on the bytes of one image.

    Rounds of a scan share the samples they share: noise that belongs to the image, not to the
    call, stays on a line that later rounds keep. An operator called twice gives the same answer.

    Arguments:
        image: The image; its bytes tell cases apart.
        shape: The shape of the noise.
        seed: The seed.

    Example:
        >>> image = torch.ones(4, 4)
        >>> torch.equal(noise_for(image, (3,), seed=0), noise_for(image, (3,), seed=0))
        True
        >>> torch.equal(noise_for(image, (3,), seed=0), noise_for(2 * image, (3,), seed=0))
        False
    """
    assert seed is not None, "checked when the operator is made"
    rng = np.random.default_rng(image_seed(image, seed))
    return torch.as_tensor(rng.standard_normal(shape, dtype=np.float32))


def image_seed(image: Tensor, seed: int) -> int:
    """A seed below 2**63 for one image: another image or another seed gives another number.

    Arguments:
        image: The image; its bytes tell cases apart.
        seed: The seed.

    Example:
        >>> image_seed(torch.ones(2), seed=0) == image_seed(torch.ones(2), seed=1)
        False
    """
    name = zlib.crc32(image.detach().cpu().contiguous().numpy().tobytes())
    return int(np.random.SeedSequence([seed, name]).generate_state(1, np.uint64)[0] >> 1)


def complex_noise(images: Tensor, generator: torch.Generator) -> Tensor:
    """Complex white noise like some images, its real and imaginary parts of unit variance.

    Arguments:
        images: Complex images; their shape, precision and device are the noise's.
        generator: Where it comes from, on that device.

    Example:
        >>> complex_noise(torch.zeros(2, 3) + 0j, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3])
    """
    shape, dtype = (*images.shape, 2), images.real.dtype
    pairs = per_case_random(torch.randn, shape, generator, device=images.device, dtype=dtype)
    return torch.view_as_complex(pairs)


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


def project_measured(images: Tensor, mask: Any) -> Tensor:
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
        >>> torch.equal(project_measured(x, np.zeros(16, dtype=bool)), torch.zeros_like(x))
        True
    """
    kspace = fft2c(images)
    return ifft2c(torch.where(broadcast_mask(mask, kspace), kspace, 0))


def project_null_space(images: Tensor, mask: Any) -> Tensor:
    r"""Keep what the measurement cannot see; with :func:`project_measured` it sums to the images.

    .. math:: (I - A) x = F^{\mathsf H} (I - M) F x

    Arguments:
        images: Complex images (..., height, width).
        mask: Booleans (width,) or (case, width); True is measured.

    Example:
        >>> import torch
        >>> x = torch.randn(8, 16, 16, dtype=torch.complex64)
        >>> mask = np.arange(16) % 4 == 0
        >>> torch.allclose(project_measured(x, mask) + project_null_space(x, mask), x, atol=1e-6)
        True
    """
    kspace = fft2c(images)
    return ifft2c(torch.where(broadcast_mask(mask, kspace), 0, kspace))


def _data_consistency(images: Tensor, measured: Tensor, mask: Any) -> Tensor:
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
        >>> y = project_measured(truth, mask)
        >>> x = _data_consistency(torch.zeros_like(truth), y, mask)
        >>> torch.allclose(x, y, atol=1e-6)
        True
    """
    recovered, known = fft2c(images), fft2c(measured)
    return ifft2c(torch.where(broadcast_mask(mask, recovered), known, recovered))


def round_at(acceleration: float, accelerations: Sequence[float]) -> int:
    """The number of the round of an acceleration, counted from 0; refuse one that is not there.

    Example:
        >>> round_at(4, (8, 4, 2))
        1
    """
    if acceleration not in accelerations:
        raise InputError(
            f"acceleration {acceleration} is not measured here; choose from {list(accelerations)}"
        )
    return list(accelerations).index(acceleration)


def _central_window(count: Tensor, width: int) -> Tensor:
    """Mark the ``count`` columns around the zero frequency, booleans (case, width).

    On an even grid an even count takes one column more on the left of the centre than on its
    right, where the centred Fourier transform has its extra frequency.

    Arguments:
        count: How many columns for each case, integers (case,).
        width: The number of k-space columns.

    Example:
        >>> _central_window(torch.tensor([2, 3]), width=6).int().tolist()
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
    return _central_window(count, width) | (count == 0)[:, None]


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


def data_consistency_1d(x: Tensor, measured: Tensor, mask: Tensor) -> Tensor:
    r"""Replace the measured columns of a recovery by what was measured, with half of the work.

    .. math:: (I - A) x + y, \qquad A = F_w^{\mathsf H} M F_w

    :math:`A` keeps whole columns, so that the transform along the height cancels and the one
    along the width, :math:`F_w`, suffices; a circular filter needs no centring of the image
    either. Equal to :func:`taskuq.measure._fourier._data_consistency` when :math:`y` is a
    zero-filled image of the same mask, :math:`A y = y`.

    Arguments:
        x: A recovery, complex (..., height, width).
        measured: The zero-filled image :math:`y`; broadcasts against ``x``.
        mask: Booleans that broadcast against ``x``, the last axis the column; True is measured.

    Example:
        >>> x = torch.randn(8, 16, 16, dtype=torch.complex64)
        >>> full = torch.ones(16, dtype=torch.bool)
        >>> torch.allclose(data_consistency_1d(x, 2 * x, full), 2 * x, atol=1e-5)
        True
    """
    lost = torch.fft.ifftshift(~mask, dim=-1)
    unseen: Tensor = torch.fft.ifft(torch.fft.fft(x) * lost)
    return unseen + measured
