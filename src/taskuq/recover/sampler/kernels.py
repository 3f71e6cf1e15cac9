"""Fused GPU kernels for drawing; each has the same meaning as its twin in ``folded``."""

# mypy: ignore-errors
# Kernels are compiled from this text by Triton, in a language of its own.

from __future__ import annotations

import torch
from torch import Tensor

from taskuq.recover.compiled import jit, multiprocessors, tl, triton

BLOCK = 1024
# Numbers of a tile, and the most partial sums that one program adds up.
TILE, PARTS = 4096, 64


@jit
def _sums(x, add, sums, pixels, rows_each, samples, channels: tl.constexpr,
          per_pixel: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):  # fmt: skip
    image, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.arange(0, columns)
    own = x + image * pixels * channels  # offsets within an image need no 64 bits
    shared = add + (image // samples) * pixels * channels
    # Sums of tiles, added up at the end alone: threads would wait for each other in every tile.
    total = tl.zeros([rows, columns], tl.float32)
    square = tl.zeros([rows, columns], tl.float32)
    stop = tl.minimum((part + 1) * rows_each, pixels)
    bias = tl.load(add + c, c < channels, 0.0).to(tl.float32)
    for start in range(part * rows_each, stop, rows):
        r = start + tl.arange(0, rows)
        live = (r[:, None] < stop) & (c[None, :] < channels)
        value = tl.load(own + r[:, None] * channels + c[None, :], live, 0.0)
        value = value.to(tl.float32)
        if per_pixel:
            value += tl.load(shared + r[:, None] * channels + c[None, :], live, 0.0).to(tl.float32)
        else:
            value += tl.where(live, bias[None, :], 0.0)
        total += value
        square += value * value
    out = sums + ((image * tl.num_programs(1) + part) * 2) * channels + c
    tl.store(out, tl.sum(total, 0), c < channels)
    tl.store(out + channels, tl.sum(square, 0), c < channels)


@jit
def _finish(x, add, sums, stretch, shift, after, below, out, pixels, rows_each, parts, samples,
            width, stride, eps, channels: tl.constexpr, each: tl.constexpr,
            per_pixel: tl.constexpr, has_after: tl.constexpr, has_below: tl.constexpr,
            rows: tl.constexpr, columns: tl.constexpr, most: tl.constexpr):  # fmt: skip
    image, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    # Offsets within an image need no 64 bits.
    own, of_case = image * pixels * channels, (image // samples) * pixels * channels
    c, p = tl.arange(0, columns), tl.arange(0, most)
    of = sums + ((image * parts + p[:, None]) * 2) * channels + c[None, :]
    known = (p[:, None] < parts) & (c[None, :] < channels)
    total = tl.sum(tl.load(of, known, 0.0), 0)
    square = tl.sum(tl.load(of + channels, known, 0.0), 0)
    # Channels of a group share mean and variance.
    same = (c[:, None] // each) == (c[None, :] // each)
    mean = tl.sum(tl.where(same, total[None, :], 0.0), 1) / (pixels * each)
    square = tl.sum(tl.where(same, square[None, :], 0.0), 1) / (pixels * each)
    scale = 1 / tl.sqrt(tl.maximum(square - mean * mean, 0.0) + eps)
    scale *= tl.load(stretch + image * stride + c, c < channels, 0.0).to(tl.float32)
    offset = tl.load(shift + image * stride + c, c < channels, 0.0).to(tl.float32) - mean * scale
    bias = tl.load(add + c, c < channels, 0.0).to(tl.float32)
    stop = tl.minimum((part + 1) * rows_each, pixels)
    for start in range(part * rows_each, stop, rows):
        r = start + tl.arange(0, rows)
        live = (r[:, None] < stop) & (c[None, :] < channels)
        place = r[:, None] * channels + c[None, :]
        value = tl.load(x + own + place, live, 0.0).to(tl.float32)
        if per_pixel:
            value += tl.load(add + of_case + place, live, 0.0).to(tl.float32)
        else:
            value += bias[None, :]
        value = value * scale[None, :] + offset[None, :]
        value = value * tl.sigmoid(value)
        if has_after:
            value += tl.load(after + of_case + place, live, 0.0).to(tl.float32)
        if has_below:
            coarse = (r // width // 2) * (width // 2) + (r % width) // 2
            source = below + own // 4 + coarse[:, None] * channels + c[None, :]
            value += tl.load(source, live, 0.0).to(tl.float32)
        tl.store(out + own + place, value.to(out.dtype.element_ty), live)


def finish(x: Tensor, add: Tensor, stretch: Tensor, shift: Tensor, after: Tensor | None,
           below: Tensor | None, groups: int, width: int, eps: float) -> Tensor:  # fmt: skip
    """Group normalisation, stretched and shifted, and what is added (see ``folded.finish``)."""
    images, pixels, channels = x.shape
    cases = next((len(part) for part in (add, after) if part is not None and part.ndim == 3), 1)
    columns = triton.next_power_of_2(channels)
    rows = max(8, TILE // columns)
    wanted = triton.cdiv(8 * multiprocessors(x.device.index), images)
    parts = max(1, min(triton.cdiv(pixels, rows), wanted, PARTS))
    rows_each = triton.cdiv(pixels, parts)
    sums = x.new_empty((images, parts, 2, channels), dtype=torch.float32)
    samples = images // cases
    _sums[images, parts](
        x, add, sums, pixels, rows_each, samples, channels, add.ndim == 3, rows, columns,
        num_warps=4,
    )  # fmt: skip
    _finish[images, parts](
        x, add, sums, stretch, shift, x if after is None else after, x if below is None else below,
        x, pixels, rows_each, parts, samples, width, channels if stretch.ndim == 2 else 0, eps,
        channels, channels // groups, add.ndim == 3, after is not None, below is not None, rows,
        columns, triton.next_power_of_2(parts), num_warps=4,
    )  # fmt: skip
    return x


@jit
def _blend(below, noise, loud, out, pixels, width, samples, stride, size,
           channels: tl.constexpr, maps: tl.constexpr, filled: tl.constexpr,
           block: tl.constexpr):  # fmt: skip
    image = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * block + tl.arange(0, block)
    live = e < size
    c, p = e % filled, e // filled
    m = c - channels
    is_noise = live & (m >= 0) & (m < maps)
    value = tl.load(noise + image * stride + (m * pixels + p), is_noise, 0.0).to(tl.float32)
    loudness = loud + (image // samples) * pixels * maps + (p * maps + m)
    value *= tl.load(loudness, is_noise, 0.0).to(tl.float32)
    if channels > 0:
        coarse = (p // width // 2) * (width // 2) + (p % width) // 2
        source = below + image * (pixels // 4) * channels + (coarse * channels + c)
        value += tl.load(source, live & (c < channels), 0.0).to(tl.float32)
    tl.store(out + image * size + e, value.to(out.dtype.element_ty), live)


def blend(below: Tensor | None, noise: Tensor, loud: Tensor, filled: int, width: int) -> Tensor:
    """What the first convolution of a level reads (see ``folded.blend``)."""
    cases, pixels, maps = loud.shape
    images = len(noise)
    out = loud.new_empty((images, pixels, filled))
    size = pixels * filled
    _blend[triton.cdiv(size, BLOCK), images](
        noise if below is None else below, noise, loud, out, pixels, width, images // cases,
        noise.stride(0), size, 0 if below is None else below.shape[-1], maps, filled, BLOCK,
        num_warps=4,
    )  # fmt: skip
    return out


@jit
def _normal(seeds, out, half, count, step, first, second, block: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0) * block + tl.arange(0, block)
    live = k < half
    x = tl.load(seeds + row) + (k + 1).to(tl.int64) * step
    # The shift takes the sign along; it is taken away again.
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * first
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * second
    x = x ^ ((x >> 31) & 0x1FFFFFFFF)
    one = (((x >> 32) & 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    two = ((x & 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    radius = tl.sqrt(tl.maximum(-2 * tl.log(one), 0.0))
    angle = 6.283185307179586 * two
    tl.store(out + row * count + k, radius * tl.cos(angle), live)
    tl.store(out + row * count + half + k, radius * tl.sin(angle), live & (half + k < count))


def normal_numbers(seeds: Tensor, count: int, step: int, first: int, second: int) -> Tensor:
    """Normal numbers (row, count) by counting (see ``noise.normal_numbers``)."""
    half = (count + 1) // 2
    out = torch.empty((len(seeds), count), device=seeds.device)
    _normal[triton.cdiv(half, BLOCK), len(seeds)](
        seeds, out, half, count, step, first, second, BLOCK, num_warps=4
    )
    return out
