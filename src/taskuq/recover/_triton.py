"""Triton kernels for the flow and the U-Net."""

# mypy: ignore-errors
# Kernels are compiled from this text by Triton, in a language of its own.

from __future__ import annotations

import sys
from functools import lru_cache

import torch
from torch import Tensor

from taskuq.recover.flow._model import ATAN_SCALE, CLAMP, FLOOR

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch, which runs the reference functions
    triton = tl = None


def is_available() -> bool:
    return triton is not None


def kernels_for(x: Tensor):
    """Return this module if its kernels can run on a tensor, else None."""
    return sys.modules[__name__] if x.is_cuda and is_available() else None


def jit(function):
    return triton.jit(function) if triton else function


@lru_cache
def multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


BLOCK = 2048


@jit
def _bias_leaky_relu(y, add, size, samples, channels: tl.constexpr, per_pixel: tl.constexpr,
           slope: tl.constexpr, block: tl.constexpr):  # fmt: skip
    image = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * block + tl.arange(0, block)
    live = e < size
    where = (image // samples) * size + e if per_pixel else e % channels
    value = tl.load(y + image * size + e, live).to(tl.float32)
    value += tl.load(add + where, live).to(tl.float32)
    value = tl.where(value > 0, value, value * slope)
    tl.store(y + image * size + e, value.to(y.dtype.element_ty), live)


def bias_leaky_relu(y: Tensor, add: Tensor, slope: float, samples: int = 1) -> Tensor:
    images, pixels, channels = y.shape
    size = pixels * channels
    _bias_leaky_relu[triton.cdiv(size, BLOCK), images](
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
def _fused_step(x, raw, raw_bias, pair, bias, filters, inverse_gate, offset, kept, rows, pixels,
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
STEP_TILES = {64: (64, 4, 4, 2), 128: (64, 4, 4, 1)}


def supports_channels(channels: int) -> bool:
    return 32 <= channels <= 128 and channels & (channels - 1) == 0


def fused_step(x: Tensor, raw: Tensor | None, affine, attend, kept: Tensor) -> None:
    """Finish one flow step and start the next, in place."""
    images, pixels, channels = x.shape
    rows = images * pixels
    block, warps, each, stages = STEP_TILES.get(channels, (64, 4, 4, 1))
    grid = min(triton.cdiv(rows, block), each * multiprocessors(x.device.index))
    raw_bias, _, bias, pair = affine or (None, None, None, None)
    _fused_step[(grid,)](
        x, raw, raw_bias, pair, bias, *(attend or (None, None, None)), kept, rows, pixels,
        raw is not None, attend is not None, pixels % 2 == 0, CLAMP * ATAN_SCALE, FLOOR, channels,
        channels // 2, block, num_warps=warps, num_stages=stages,
    )  # fmt: skip


@jit
def _pixelwise(x, condition, first, second, second_bias, third, raw, rows, pixels, samples,
               slope: tl.constexpr, half: tl.constexpr, hidden: tl.constexpr,
               wide: tl.constexpr, rest: tl.constexpr, chunk: tl.constexpr,
               block: tl.constexpr):  # fmt: skip
    row = tl.program_id(0) * block + tl.arange(0, block)
    live = (row < rows)[:, None]
    image = row // pixels
    offset = ((image // samples) * pixels + row - image * pixels)[:, None] * hidden
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
        value += tl.load(condition + offset + k[None, :], live, 0.0).to(tl.float32)
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
    return x.dtype == torch.bfloat16 and x.shape[-1] in (16, 32, 64) and hidden in PIXELWISE


def pixelwise(x: Tensor, condition: Tensor, step, slope: float, samples: int) -> Tensor:
    """Run a whole subnet of 1×1 convolutions without its last bias."""
    images, pixels, half = x.shape
    hidden, rows = step.second.shape[0], images * pixels
    raw = x.new_empty((images, pixels, 2 * half))
    block, warps = PIXELWISE[hidden]
    _pixelwise[(triton.cdiv(rows, block),)](
        x, condition, step.first, step.second, step.second_bias, step.third, raw, rows, pixels,
        samples, slope, half, hidden, 128, hidden - 128, 64, block, num_warps=warps,
    )  # fmt: skip
    return raw


# Elements of a block and of a tile; the most channels of a tile and partial sums of a program.
BLOCK_ELEMENTS, TILE, COLUMNS, PARTS = 1024, 4096, 64, 128


@jit
def _moments(x, sums, pixels, rows_each, channels: tl.constexpr, rows: tl.constexpr,
             columns: tl.constexpr):  # fmt: skip
    image, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    c = tl.program_id(0) * columns + tl.arange(0, columns)
    own = x + image * pixels * channels  # offsets within an image need no 64 bits
    # Sums of tiles, added up at the end alone: threads would wait for each other in every tile.
    total = tl.zeros([rows, columns], tl.float32)
    square = tl.zeros([rows, columns], tl.float32)
    stop = tl.minimum((part + 1) * rows_each, pixels)
    for start in range(part * rows_each, stop, rows):
        r = start + tl.arange(0, rows)
        live = (r[:, None] < stop) & (c[None, :] < channels)
        value = tl.load(own + r[:, None] * channels + c[None, :], live, 0.0)
        value = value.to(tl.float32)
        total += value
        square += value * value
    out = sums + ((image * tl.num_programs(2) + part) * 2) * channels + c
    tl.store(out, tl.sum(total, 0), c < channels)
    tl.store(out + channels, tl.sum(square, 0), c < channels)


@jit
def _normalise(x, sums, out, pixels, rows_each, parts, coarse, stride, eps,
               channels: tl.constexpr, slope: tl.constexpr, blocks: tl.constexpr,
               rows: tl.constexpr, columns: tl.constexpr, most: tl.constexpr):  # fmt: skip
    image, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    c = tl.program_id(0) * columns + tl.arange(0, columns)
    own = x + image * pixels * channels  # offsets within an image need no 64 bits
    p = tl.arange(0, most)
    of = sums + ((image * parts + p[:, None]) * 2) * channels + c[None, :]
    valid = (p[:, None] < parts) & (c[None, :] < channels)
    # Always in the same order: two runs give the same bits.
    mean = tl.sum(tl.load(of, valid, 0.0), 0) / pixels
    square = tl.sum(tl.load(of + channels, valid, 0.0), 0) / pixels
    scale = 1 / tl.sqrt(tl.maximum(square - mean * mean, 0.0) + eps)
    stop = tl.minimum((part + 1) * rows_each, pixels)
    for start in range(part * rows_each, stop, rows):
        r = start + tl.arange(0, rows)
        live = (r[:, None] < stop) & (c[None, :] < channels)
        value = tl.load(own + r[:, None] * channels + c[None, :], live, 0.0)
        value = (value.to(tl.float32) - mean[None, :]) * scale[None, :]
        value = tl.where(value > 0, value, value * slope)
        place = r
        if blocks:
            # Row 4 (i coarse + j) + 2 dy + dx is the pixel (2 i + dy, 2 j + dx).
            i, j = (r // 4) // coarse, (r // 4) % coarse
            place = (2 * i + (r % 4) // 2) * (2 * coarse) + 2 * j + r % 2
        target = out + image * pixels * stride + place[:, None] * stride + c[None, :]
        tl.store(target, value.to(out.dtype.element_ty), live)


def normalise_leaky(x: Tensor, slope: float, eps: float, out: Tensor, coarse: int) -> Tensor:
    images, pixels, channels = x.shape
    columns = min(COLUMNS, triton.next_power_of_2(channels))
    groups, rows = triton.cdiv(channels, columns), TILE // columns
    # Partial sums, enough of them to fill the GPU: atomics would make two runs differ.
    wanted = triton.cdiv(8 * multiprocessors(x.device.index), groups * images)
    parts = max(1, min(triton.cdiv(pixels, rows), wanted, PARTS))
    rows_each = triton.cdiv(pixels, parts)
    sums = x.new_empty((images, parts, 2, channels), dtype=torch.float32)
    grid = groups, images, parts
    _moments[grid](x, sums, pixels, rows_each, channels, rows, columns, num_warps=4)
    _normalise[grid](
        x, sums, out, pixels, rows_each, parts, max(coarse, 1), out.stride(1), eps, channels,
        slope, coarse > 0, rows, columns, triton.next_power_of_2(parts), num_warps=4,
    )  # fmt: skip
    return out


@jit
def _pool(x, y, size, pixels, width, stride, channels: tl.constexpr,
          block: tl.constexpr):  # fmt: skip
    image = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * block + tl.arange(0, block)
    live = e < size
    c, pixel, half = e % channels, e // channels, width // 2
    first = 2 * (pixel // half) * width + 2 * (pixel % half)
    corner = x + image * pixels * stride + first * stride + c
    value = tl.load(corner, live, 0.0).to(tl.float32)
    value += tl.load(corner + stride, live, 0.0).to(tl.float32)
    value += tl.load(corner + width * stride, live, 0.0).to(tl.float32)
    value += tl.load(corner + (width + 1) * stride, live, 0.0).to(tl.float32)
    tl.store(y + image * size + e, (value / 4).to(y.dtype.element_ty), live)


def pool(x: Tensor, height: int, width: int) -> Tensor:
    images, pixels, channels = x.shape
    y = x.new_empty((images, (height // 2) * (width // 2), channels))
    size = y.shape[1] * channels
    _pool[triton.cdiv(size, BLOCK_ELEMENTS), images](
        x, y, size, pixels, width, x.stride(1), channels, BLOCK_ELEMENTS, num_warps=4
    )
    return y
