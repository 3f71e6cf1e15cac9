"""Fourier transform, mask projections, column masks and noise."""

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
    """Transform images to k-space of the same shape, with the zero frequency at the centre."""
    shifted = torch.fft.ifftshift(image, dim=_SPACE)
    kspace: Tensor = torch.fft.fftshift(torch.fft.fft2(shifted, norm="ortho"), dim=_SPACE)
    return kspace


def ifft2c(kspace: Tensor) -> Tensor:
    """Transform k-space to complex images; the inverse and adjoint of :func:`fft2c`."""
    shifted = torch.fft.ifftshift(kspace, dim=_SPACE)
    image: Tensor = torch.fft.fftshift(torch.fft.ifft2(shifted, norm="ortho"), dim=_SPACE)
    return image


def require_seed(noise: float, seed: int | None) -> None:
    if noise < 0 or (noise > 0 and seed is None):
        text = f"noise is {noise} and seed {seed}; pass noise >= 0, and a seed for noise"
        raise InputError(text, code="value.invalid")


def noise_for(image: Tensor, shape: tuple[int, ...], seed: int | None) -> Tensor:
    """Return standard normal noise on the CPU that depends on ``seed`` and the image's bytes."""
    assert seed is not None, "checked when the operator is made"
    rng = np.random.default_rng(image_seed(image, seed))
    return torch.as_tensor(rng.standard_normal(shape, dtype=np.float32))


def image_seed(image: Tensor, seed: int) -> int:
    """Return a seed below 2**63 that depends on ``seed`` and the image's bytes."""
    name = zlib.crc32(image.detach().cpu().contiguous().numpy().tobytes())
    return int(np.random.SeedSequence([seed, name]).generate_state(1, np.uint64)[0] >> 1)


def complex_noise(images: Tensor, generator: torch.Generator) -> Tensor:
    """Draw complex white noise shaped like images, with real and imaginary parts of variance 1."""
    shape, dtype = (*images.shape, 2), images.real.dtype
    pairs = per_case_random(torch.randn, shape, generator, device=images.device, dtype=dtype)
    return torch.view_as_complex(pairs)


def broadcast_mask(mask: Any, like: Tensor) -> Tensor:
    """Return a mask of columns on the device of ``like``, reshaped to broadcast to ``like``."""
    tensor = torch.as_tensor(mask, device=like.device).bool()
    if 1 < tensor.ndim < like.ndim:
        batch, width = tensor.shape[:-1], tensor.shape[-1]
        tensor = tensor.reshape(*batch, *(1,) * (like.ndim - tensor.ndim), width)
    pairs = zip(tensor.shape[::-1], like.shape[::-1], strict=False)
    if not 1 <= tensor.ndim <= like.ndim or any(m not in (1, x) for m, x in pairs):
        given = f"the mask has shape {tuple(tensor.shape)}, the images {tuple(like.shape)}"
        raise InputError(f"{given}; pass (width,) or (case, width)", code="shape.mismatch")
    return tensor


def project_measured(images: Tensor, mask: Any) -> Tensor:
    """Project images onto the measured subspace, which gives zero-filled images."""
    kspace = fft2c(images)
    return ifft2c(torch.where(broadcast_mask(mask, kspace), kspace, 0))


def project_null_space(images: Tensor, mask: Any) -> Tensor:
    """Project images onto the null space of the measurement."""
    kspace = fft2c(images)
    return ifft2c(torch.where(broadcast_mask(mask, kspace), 0, kspace))


def round_at(acceleration: float, accelerations: Sequence[float]) -> int:
    if acceleration not in accelerations:
        text = f"acceleration is {acceleration}; choose from {accelerations}"
        raise InputError(text, code="choice.unknown")
    return list(accelerations).index(acceleration)


def _central_window(count: Tensor, width: int) -> Tensor:
    start = (width - count + 1) // 2
    column = torch.arange(width, device=count.device)
    return (column >= start[:, None]) & (column < (start + count)[:, None])


def sensitivity_window(count: Tensor, width: int) -> Tensor:
    """Return a boolean mask (case, width) of the columns used to estimate coil sensitivities."""
    return _central_window(count, width) | (count == 0)[:, None]


def central_lines(mask: Tensor) -> Tensor:
    """Count the contiguous measured lines around the zero frequency, integers (case,).

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
    """Replace the measured k-space columns of images ``x`` by those of zero-filled ``measured``."""
    missing = torch.fft.ifftshift(~mask, dim=-1)
    unmeasured: Tensor = torch.fft.ifft(torch.fft.fft(x) * missing)
    return unmeasured + measured
