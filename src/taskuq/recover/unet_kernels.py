"""Fused GPU kernels of a U-Net on rows of pixels; their twins are in ``folded_unet``."""

# mypy: ignore-errors
# Kernels are compiled from this text by Triton, in a language of its own.

from __future__ import annotations

import torch
from torch import Tensor

from taskuq.recover.compiled import jit, multiprocessors, tl, triton

BLOCK = 1024
# Numbers of a tile; the most channels of one; the most partial sums that one program adds up.
TILE, COLUMNS, PARTS = 4096, 64, 128


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
    known = (p[:, None] < parts) & (c[None, :] < channels)
    # Always in the same order: two runs give the same bits.
    mean = tl.sum(tl.load(of, known, 0.0), 0) / pixels
    square = tl.sum(tl.load(of + channels, known, 0.0), 0) / pixels
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
    """Instance normalisation and a leaky ReLU (see ``folded_unet.normalise_leaky``)."""
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
    """Average 2×2 blocks of pixels (see ``folded_unet.pool``)."""
    images, pixels, channels = x.shape
    y = x.new_empty((images, (height // 2) * (width // 2), channels))
    size = y.shape[1] * channels
    _pool[triton.cdiv(size, BLOCK), images](
        x, y, size, pixels, width, x.stride(1), channels, BLOCK, num_warps=4
    )
    return y
