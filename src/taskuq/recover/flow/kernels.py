"""Fused GPU kernels for drawing samples; each has the same meaning as its twin in ``rows``."""

# mypy: ignore-errors
# Kernels are compiled from this text by Triton, in a language of its own.

from __future__ import annotations

import torch
from torch import Tensor

from taskuq.recover.flow.coupling import ATAN_SCALE, CLAMP
from taskuq.recover.flow.imap import FLOOR

try:
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice
except ImportError:  # a CPU build of torch: nothing here is called, `rows` runs instead
    triton = None

BLOCK = 2048


def is_available() -> bool:
    """Whether kernels can be compiled here."""
    return triton is not None


def jit(function):
    """Compile by Triton where there is one."""
    return triton.jit(function) if triton else function


@jit
def _leaky(y, add, size, samples, channels: tl.constexpr, per_pixel: tl.constexpr,
           slope: tl.constexpr, block: tl.constexpr):  # fmt: skip
    image = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * block + tl.arange(0, block)
    live = e < size
    where = (image // samples) * size + e if per_pixel else e % channels
    value = tl.load(y + image * size + e, live).to(tl.float32)
    value += tl.load(add + where, live).to(tl.float32)
    value = tl.where(value > 0, value, value * slope)
    tl.store(y + image * size + e, value.to(y.dtype.element_ty), live)


def leaky(y: Tensor, add: Tensor, slope: float, samples: int = 1) -> Tensor:
    """Add a bias (channel,) or a map (case, pixel, channel) and apply a leaky ReLU, in place."""
    images, pixels, channels = y.shape
    size = pixels * channels
    _leaky[triton.cdiv(size, BLOCK), images](
        y, add, size, samples, channels, add.ndim > 1, slope, BLOCK, num_warps=8
    )
    return y


@jit
def _moments(x, sums, pixels, rows_each, channels: tl.constexpr, rows: tl.constexpr,
             columns: tl.constexpr):  # fmt: skip
    image, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    c = tl.program_id(0) * columns + tl.arange(0, columns)
    total = tl.zeros([columns], tl.float32)
    square = tl.zeros([columns], tl.float32)
    for start in range(part * rows_each, (part + 1) * rows_each, rows):
        r = start + tl.arange(0, rows)
        live = (
            (r[:, None] < pixels) & (r[:, None] < (part + 1) * rows_each) & (c[None, :] < channels)
        )
        value = tl.load(x + (image * pixels + r[:, None]) * channels + c[None, :], live, 0.0)
        value = value.to(tl.float32)
        total += tl.sum(value, 0)
        square += tl.sum(value * value, 0)
    out = sums + ((part * tl.num_programs(1) + image) * 2) * channels + c
    tl.store(out, total, c < channels)
    tl.store(out + channels, square, c < channels)


@jit
def _normalise(x, mean_rstd, size, channels: tl.constexpr, slope: tl.constexpr,
               block: tl.constexpr):  # fmt: skip
    image = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * block + tl.arange(0, block)
    live = e < size
    c = e % channels
    value = tl.load(x + image * size + e, live).to(tl.float32)
    mean = tl.load(mean_rstd + image * 2 * channels + c, live)
    rstd = tl.load(mean_rstd + (image * 2 + 1) * channels + c, live)
    value = (value - mean) * rstd
    value = tl.where(value > 0, value, value * slope)
    tl.store(x + image * size + e, value.to(x.dtype.element_ty), live)


def normalise_leaky(x: Tensor, slope: float, eps: float = 1e-5) -> Tensor:
    """Instance normalisation of (image, pixel, channel) and a leaky ReLU, in place."""
    images, pixels, channels = x.shape
    columns = min(64, triton.next_power_of_2(channels))
    blocks = triton.cdiv(channels, columns) * images
    # Partial sums in a fixed order, enough of them to fill the GPU: atomics would be faster by
    # nothing that matters and would make two runs differ.
    parts = max(1, min(triton.cdiv(pixels, 256), 528 // blocks))
    rows_each = triton.cdiv(pixels, parts)
    sums = x.new_empty((parts, images, 2, channels), dtype=torch.float32)
    _moments[triton.cdiv(channels, columns), images, parts](
        x, sums, pixels, rows_each, channels, 64, columns, num_warps=8
    )
    mean, square = (sums.sum(0) / pixels).unbind(1)
    rstd = torch.rsqrt((square - mean * mean).clamp_min(0) + eps)
    size = pixels * channels
    _normalise[triton.cdiv(size, BLOCK), images](
        x, torch.stack([mean, rstd], 1), size, channels, slope, BLOCK, num_warps=8
    )
    return x


@jit
def _between(x, raw, raw_bias, matrix, bias, filters, inverse_gate, offset, kept, rows, pixels,
             couple: tl.constexpr, attend: tl.constexpr, strength: tl.constexpr,
             floor: tl.constexpr, channels: tl.constexpr, half: tl.constexpr,
             precision: tl.constexpr, block: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    live = (row < rows)[:, None]
    h, c = tl.arange(0, half), tl.arange(0, channels)
    base = x + row[:, None] * channels
    if couple:
        first = tl.load(base + h[None, :], live, 0.0)
        second = tl.load(base + half + h[None, :], live, 0.0)
        source = raw + row[:, None] * channels
        scale = tl.load(source + h[None, :], live, 0.0).to(tl.float32)
        shift = tl.load(source + half + h[None, :], live, 0.0).to(tl.float32)
        scale += tl.load(raw_bias + h)[None, :]
        shift += tl.load(raw_bias + half + h)[None, :]
        second = (second - shift) * tl.exp(-strength * libdevice.atan(scale))
        upper = tl.load(matrix + h[:, None] * channels + c[None, :])
        lower = tl.load(matrix + (half + h[:, None]) * channels + c[None, :])
        out = tl.dot(first, upper, input_precision=precision)
        out = tl.dot(second, lower, out, input_precision=precision)
        out += tl.load(bias + c)[None, :]
    else:
        out = tl.load(base + c[None, :], live, 0.0)
    if attend:
        decides = ((row % pixels)[:, None] + c[None, :]) % 2 == 1
        opened = out * tl.load(inverse_gate + c)[None, :]
        weighted = tl.where(decides, opened * tl.load(filters + c)[None, :], 0.0)
        attention = tl.sigmoid(tl.sum(weighted, 1) + tl.load(offset)) + floor
        out = tl.where(decides, opened, out / attention[:, None])
        target = kept + row[:, None] * half + c[None, :]
        tl.store(target, out.to(kept.dtype.element_ty), live & (c[None, :] < half))
    tl.store(base + c[None, :], out, live)


def supports(channels: int) -> bool:
    """Whether :func:`between` can take this number of channels (a limit of matrix tiles)."""
    return 32 <= channels <= 256 and channels & (channels - 1) == 0


def between(x: Tensor, raw: Tensor | None, fold, attend, kept: Tensor, precision: str) -> None:
    """Finish one step and open the next, in place (see ``rows.between``)."""
    images, pixels, channels = x.shape
    rows = images * pixels
    block = 128 if channels <= 64 else 64
    _between[(triton.cdiv(rows, block),)](
        x, raw, *(fold or (None, None, None)), *(attend or (None, None, None)), kept, rows, pixels,
        raw is not None, attend is not None, CLAMP * ATAN_SCALE, FLOOR, channels, channels // 2,
        precision, block, num_warps=8 if channels > 64 else 4,
    )  # fmt: skip
