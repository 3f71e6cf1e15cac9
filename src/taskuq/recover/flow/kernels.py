"""Fused GPU kernels for drawing samples; each has the same meaning as its twin in ``rows``."""

# mypy: ignore-errors
# Kernels are compiled from this text by Triton, in a language of its own.

from __future__ import annotations

import torch
from torch import Tensor

from taskuq.recover.compiled import jit, multiprocessors, tl, triton
from taskuq.recover.flow.coupling import ATAN_SCALE, CLAMP
from taskuq.recover.flow.imap import FLOOR

BLOCK = 2048


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
def _atan(x):
    # Abramowitz and Stegun 4.4.49, error below 2e-8 on [0, 1]; the library's is twice as long.
    size = tl.abs(x)
    t = tl.where(size > 1, 1 / size, size)
    q = t * t
    p = -0.0040540580 * q + 0.0218612288
    p = p * q - 0.0559098861
    p = p * q + 0.0964200441
    p = p * q - 0.1390853351
    p = p * q + 0.1994653599
    p = p * q - 0.3332985605
    p = (p * q + 0.9999993329) * t
    p = tl.where(size > 1, 1.5707963267948966 - p, p)
    return tl.where(x < 0, -p, p)


@jit
def _between(x, raw, raw_bias, pair, bias, filters, inverse_gate, offset, kept, rows, pixels,
             couple: tl.constexpr, attend: tl.constexpr, even: tl.constexpr,
             strength: tl.constexpr, floor: tl.constexpr, channels: tl.constexpr,
             half: tl.constexpr, block: tl.constexpr):  # fmt: skip
    h, c = tl.arange(0, half), tl.arange(0, channels)
    if couple:
        place = h[:, None] * channels + c[None, :]
        upper, upper_rest = tl.load(pair + place), tl.load(pair + channels * channels + place)
        place += half * channels
        lower, lower_rest = tl.load(pair + place), tl.load(pair + channels * channels + place)
    for tile in range(tl.program_id(0), tl.cdiv(rows, block), tl.num_programs(0)):
        # Offsets inside a tile are small; only the tile's own place needs 64 bits.
        begin, local = tile.to(tl.int64) * block, tl.arange(0, block)
        row = tile * block + local
        live = (row < rows)[:, None]
        base = x + begin * channels + local[:, None] * channels
        if couple:
            first = tl.load(base + h[None, :], live, 0.0)
            second = tl.load(base + half + h[None, :], live, 0.0)
            source = raw + begin * channels + local[:, None] * channels
            scale = tl.load(source + h[None, :], live, 0.0).to(tl.float32)
            shift = tl.load(source + half + h[None, :], live, 0.0).to(tl.float32)
            scale += tl.load(raw_bias + h)[None, :]
            shift += tl.load(raw_bias + half + h)[None, :]
            second = (second - shift) * tl.exp(-strength * _atan(scale))
            # A product of two sums of bfloat16 numbers without its smallest term: errors of 2e-5,
            # less than those of TF32, at the speed of bfloat16.
            high, other = first.to(tl.bfloat16), second.to(tl.bfloat16)
            out = tl.dot((first - high.to(tl.float32)).to(tl.bfloat16), upper)
            out = tl.dot((second - other.to(tl.float32)).to(tl.bfloat16), lower, out)
            out = tl.dot(high, upper_rest, out)
            out = tl.dot(other, lower_rest, out)
            out = tl.dot(high, upper, out)
            out = tl.dot(other, lower, out)
            out += tl.load(bias + c)[None, :]
        else:
            out = tl.load(base + c[None, :], live, 0.0)
        if attend:
            pixel = row if even else row % pixels
            decides = ((pixel[:, None] + c[None, :]) & 1) == 1
            opened = out * tl.load(inverse_gate + c)[None, :]
            weighted = tl.where(decides, opened * tl.load(filters + c)[None, :], 0.0)
            attention = tl.sigmoid(tl.sum(weighted, 1) + tl.load(offset)) + floor
            out = tl.where(decides, opened, out * (1 / attention)[:, None])
            target = kept + begin * half + local[:, None] * half + c[None, :]
            tl.store(target, out.to(kept.dtype.element_ty), live & (c[None, :] < half))
        tl.store(base + c[None, :], out, live)


# Rows of a tile, warps, programs for each multiprocessor, stages of loading: measured on an H200.
BETWEEN = {64: (64, 4, 4, 2), 128: (64, 4, 4, 1)}


def supports(channels: int) -> bool:
    """Whether :func:`between` can take this number of channels (a limit of matrix tiles)."""
    return 32 <= channels <= 128 and channels & (channels - 1) == 0


def between(x: Tensor, raw: Tensor | None, fold, attend, kept: Tensor) -> None:
    """Finish one step and open the next, in place (see ``rows.between``)."""
    images, pixels, channels = x.shape
    rows = images * pixels
    block, warps, each, stages = BETWEEN.get(channels, (64, 4, 4, 1))
    grid = min(triton.cdiv(rows, block), each * multiprocessors(x.device.index))
    raw_bias, pair, bias = (fold.raw_bias, fold.pair, fold.bias) if fold else (None, None, None)
    _between[(grid,)](
        x, raw, raw_bias, pair, bias, *(attend or (None, None, None)), kept, rows, pixels,
        raw is not None, attend is not None, pixels % 2 == 0, CLAMP * ATAN_SCALE, FLOOR, channels,
        channels // 2, block, num_warps=warps, num_stages=stages,
    )  # fmt: skip


@jit
def _pixelwise(x, share, first, second, second_bias, third, raw, rows, pixels, samples,
               slope: tl.constexpr, half: tl.constexpr, hidden: tl.constexpr,
               wide: tl.constexpr, rest: tl.constexpr, chunk: tl.constexpr,
               block: tl.constexpr):  # fmt: skip
    row = tl.program_id(0) * block + tl.arange(0, block)
    live = (row < rows)[:, None]
    image = row // pixels
    of_share = ((image // samples) * pixels + row - image * pixels)[:, None] * hidden
    h, w, r, o = tl.arange(0, half), tl.arange(0, wide), tl.arange(0, rest), tl.arange(0, 2 * half)
    begin = tl.program_id(0).to(tl.int64) * block
    local = tl.arange(0, block)[:, None]
    kept = tl.load(x + begin * half + local * half + h[None, :], live, 0.0)
    left = tl.zeros([block, wide], tl.float32)
    right = tl.zeros([block, rest], tl.float32)
    # The hidden layer in chunks: it never leaves the registers.
    for start in tl.static_range(0, hidden, chunk):
        k = start + tl.arange(0, chunk)
        value = tl.dot(kept, tl.load(first + h[:, None] * hidden + k[None, :]))
        value += tl.load(share + of_share + k[None, :], live, 0.0).to(tl.float32)
        value = tl.where(value > 0, value, value * slope).to(kept.dtype)
        left = tl.dot(value, tl.load(second + k[:, None] * hidden + w[None, :]), left)
        right = tl.dot(value, tl.load(second + k[:, None] * hidden + wide + r[None, :]), right)
    left += tl.load(second_bias + w)[None, :]
    right += tl.load(second_bias + wide + r)[None, :]
    left = tl.where(left > 0, left, left * slope).to(kept.dtype)
    right = tl.where(right > 0, right, right * slope).to(kept.dtype)
    out = tl.dot(left, tl.load(third + w[:, None] * 2 * half + o[None, :]))
    out = tl.dot(right, tl.load(third + (wide + r[:, None]) * 2 * half + o[None, :]), out)
    target = raw + begin * 2 * half + local * 2 * half + o[None, :]
    tl.store(target, out.to(raw.dtype.element_ty), live)


# Rows of a tile and warps, for each number of hidden channels: measured on an H200.
PIXELWISE = {192: (64, 4), 256: (128, 8)}


def supports_pixelwise(x: Tensor, hidden: int) -> bool:
    """Whether :func:`pixelwise` can take these channels: bfloat16, and the published widths."""
    return x.dtype == torch.bfloat16 and x.shape[-1] in (16, 32, 64) and hidden in PIXELWISE


def pixelwise(x: Tensor, share: Tensor, step, slope: float, samples: int) -> Tensor:
    """A whole subnet of 1×1 convolutions without its last bias (see ``rows.pixelwise``)."""
    images, pixels, half = x.shape
    hidden, rows = step.second.shape[0], images * pixels
    raw = x.new_empty((images, pixels, 2 * half))
    block, warps = PIXELWISE[hidden]
    _pixelwise[(triton.cdiv(rows, block),)](
        x, share, step.first, step.second, step.second_bias, step.third, raw, rows, pixels,
        samples, slope, half, hidden, 128, hidden - 128, 64, block, num_warps=warps,
    )  # fmt: skip
    return raw
