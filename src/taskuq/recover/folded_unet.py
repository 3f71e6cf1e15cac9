"""A U-Net rearranged for speed: weights alone, on rows of pixels, channels last.

Images are (image, pixel, channel). Fused kernels take over on a GPU; the functions here define what
they compute, and are what runs on a CPU.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

from taskuq.recover import compiled, unet_kernels
from taskuq.recover.unet import EPS, SLOPE, UNet

# Tensor cores read channels by eights; others are copied to such a number in every convolution.
ALIGNED = 8


def weight_of(weight: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A convolution's weight on another device, in another precision, channels last."""
    moved = weight.detach().to(device, dtype)
    return moved.contiguous(memory_format=torch.channels_last)


def convolution_of(
    module: nn.Module, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """A convolution's weight and bias, on another device and in another precision."""
    assert isinstance(module, nn.Conv2d)
    assert module.bias is not None
    return weight_of(module.weight, device, dtype), module.bias.detach().to(device, dtype)


def convolve(x: Tensor, weight: Tensor, height: int, width: int) -> Tensor:
    """Convolve rows of pixels without bias, keeping the size: (image, pixel, outputs).

    Arguments:
        x: (image, pixel, channel).
        weight: (outputs, inputs, kernel, kernel), kernel 1 or 3.
        height: Rows of the image.
        width: Columns of the image.

    Example:
        >>> convolve(torch.ones(1, 6, 2), torch.ones(3, 2, 3, 3), 2, 3)[0, :, 0].tolist()
        [8.0, 12.0, 8.0, 8.0, 12.0, 8.0]
    """
    if weight.shape[-1] == 1:
        return x @ weight[:, :, 0, 0].T
    image = to_image(x, height, width)
    return to_rows(F.conv2d(image, weight, padding=weight.shape[-1] // 2))


def to_rows(image: Tensor) -> Tensor:
    """(image, channel, height, width) as (image, pixel, channel); no copy when channels last."""
    return image.permute(0, 2, 3, 1).contiguous().flatten(1, 2)


def to_image(x: Tensor, height: int, width: int) -> Tensor:
    """(image, pixel, channel) as (image, channel, height, width), channels last; no copy."""
    return x.view(len(x), height, width, -1).permute(0, 3, 1, 2)


def normalise_leaky(
    x: Tensor, slope: float, *, eps: float = EPS, out: Tensor | None = None, coarse: int = 0
) -> Tensor:
    """Instance normalisation and a leaky ReLU.

    Arguments:
        x: (image, pixel, channel); its memory may be used for the result.
        slope: The slope for negative values.
        eps: What is added to variances.
        out: Where the result goes, (image, pixel, channel); a part of the channels of something
            larger may be given.
        coarse: For pixels that come as 2×2 blocks, how many blocks a row of the image has; they
            are put in order. 0 where they are in order already.

    Example:
        >>> x = torch.tensor([[[1.0], [3.0]]])
        >>> [round(v, 4) for v in normalise_leaky(x, slope=0.2).flatten().tolist()]
        [-0.2, 1.0]
    """
    if fused := _kernels(x):
        if out is None:
            out = torch.empty_like(x) if coarse else x
        result: Tensor = fused.normalise_leaky(x, slope, eps, out, coarse)
        return result
    wide = x if x.dtype == torch.float64 else x.float()
    var, mean = torch.var_mean(wide, dim=1, keepdim=True, correction=0)
    y = F.leaky_relu((wide - mean) * torch.rsqrt(var + eps), slope).to(x.dtype)
    if coarse:
        y = y.view(len(y), -1, coarse, 2, 2, y.shape[-1]).transpose(2, 3).flatten(1, 4)
    return y if out is None else out.copy_(y)


def pool(x: Tensor, height: int, width: int) -> Tensor:
    """Average 2×2 blocks of pixels; a last row or column that is alone is dropped.

    Arguments:
        x: (image, pixel, channel).
        height: Rows of the image.
        width: Columns of the image.

    Example:
        >>> pool(torch.arange(8.0).view(1, 8, 1), 2, 4).flatten().tolist()
        [2.5, 4.5]
    """
    if fused := _kernels(x):
        result: Tensor = fused.pool(x, height, width)
        return result
    return to_rows(F.avg_pool2d(to_image(x, height, width), 2))


class Normed(NamedTuple):
    """What comes before an instance normalisation, and the latter's smallest variance."""

    weight: Tensor
    eps: float

    @classmethod
    def of(cls, weight: Tensor, *inputs: int) -> Normed:
        """Divide by a power of 2, which the normalisation undoes, so that float16 cannot overflow.

        With filters of unit norm at most, no result exceeds the norm of the whole input, and the
        inputs are normalised.

        Arguments:
            weight: In float32 or float64.
            inputs: The axes over which a filter extends.
        """
        largest = torch.linalg.vector_norm(weight, dim=inputs).max().item()
        scale = 2.0 ** math.ceil(math.log2(largest)) if largest > 0 else 1.0
        return cls(weight / scale, EPS / scale**2)

    def to(self, device: torch.device, dtype: torch.dtype) -> Normed:
        """On another device, in another precision, channels last."""
        moved = self.weight.to(device, dtype)
        form = torch.channels_last if moved.ndim == 4 else torch.contiguous_format
        return Normed(moved.contiguous(memory_format=form), self.eps)


class FoldedUNet(NamedTuple):
    """The weights of a U-Net: pairs of 3×3 convolutions, the upsamplings, the last convolution.

    Numbers of channels are filled up to what tensor cores like. What fills them is 0 and stays 0.
    """

    down: tuple[tuple[Normed, Normed], ...]
    bottom: tuple[Normed, Normed]
    up: tuple[Normed, ...]
    joined: tuple[tuple[Normed, Normed], ...]
    output: tuple[Tensor, Tensor]
    width: int

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the convolutions."""
        return self.bottom[0].weight.dtype

    def features(self, x: Tensor) -> Tensor:
        """The features of real channels (case, channel, height, width), channels last."""
        height, width = x.shape[-2:]
        found = to_image(self.rows(to_rows(x), height, width), height, width)
        return found[:, : self.width]

    def rows(self, x: Tensor, height: int, width: int) -> Tensor:
        """The features of rows (case, pixel, channel), filled up: (case, pixel, width or more)."""
        if missing := self.down[0][0].weight.shape[1] - x.shape[-1]:
            x = F.pad(x, (0, missing))
        skips = []
        for pair in self.down:
            # Where features go on they lie beside those that come back, in one piece of memory.
            outputs = len(pair[1].weight)
            both = x.new_empty((len(x), x.shape[1], 2 * outputs))
            skip = _block(x, pair, height, width, out=both[..., outputs:])
            skips.append((both, height, width))
            x, height, width = pool(skip, height, width), height // 2, width // 2
        x = _block(x, self.bottom, height, width)
        for upsample, pair in zip(self.up, self.joined, strict=True):
            both, *size = skips.pop()
            _upsample(x, upsample, height, width, size, out=both[..., : both.shape[-1] // 2])
            height, width = size
            x = _block(both, pair, height, width)
        return x

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The features of real channels, and what the U-Net says, in the precision of ``x``."""
        weight, bias = self.output
        told = x.to(self.dtype, memory_format=torch.channels_last)
        features = self.features(told)
        return features, F.conv2d(features.to(weight.dtype), weight[:, : self.width], bias)


def fold_unet(
    unet: UNet, device: torch.device, dtype: torch.dtype, *, aligned: int | None = None
) -> FoldedUNet:
    """Take the weights of a U-Net.

    Arguments:
        unet: The network; it is not changed.
        device: Where it shall run.
        dtype: The precision of its convolutions; the last one is in float32 (float64 where this
            is float64).
        aligned: Channels are filled up to a multiple of this; by default of 8 on a GPU.

    Example:
        >>> unet, x = UNet(2, 2, width=4, pools=2).eval(), torch.randn(1, 2, 16, 18)
        >>> folded = fold_unet(unet, torch.device("cpu"), torch.float32)
        >>> torch.allclose(folded.features(x), unet.features(x), atol=1e-5)
        True
    """
    if aligned is None:
        aligned = ALIGNED if device.type == "cuda" else 1

    def pair(block: nn.Module, parts: int = 1) -> tuple[Normed, Normed]:
        first, second = (m for m in block.modules() if isinstance(m, nn.Conv2d) and m.bias is None)
        # What is joined is filled up part by part.
        chunks = first.weight.detach().chunk(parts, dim=1)
        filled = torch.cat([filled_up(chunk, aligned, 0, 1) for chunk in chunks], dim=1)
        return (
            Normed.of(filled, 1, 2, 3).to(device, dtype),
            Normed.of(filled_up(second.weight.detach(), aligned, 0, 1), 1, 2, 3).to(device, dtype),
        )

    up = []
    for block in unet.up_transpose_conv:
        (transposed,) = (m for m in block.modules() if isinstance(m, nn.ConvTranspose2d))
        # (in, out, dy, dx) as one matrix (in, dy * dx * out): each pixel becomes a 2×2 block.
        filled = filled_up(transposed.weight.detach(), aligned, 0, 1)
        up.append(Normed.of(filled.permute(0, 2, 3, 1).flatten(1), 0).to(device, dtype))
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    weight, bias = convolution_of(unet.output, device, exact)
    return FoldedUNet(
        down=tuple(pair(block) for block in unet.down_sample_layers),
        bottom=pair(unet.conv),
        up=tuple(up),
        joined=tuple(pair(block, parts=2) for block in unet.up_conv),
        output=(filled_up(weight, aligned, 1), bias),
        width=weight.shape[1],
    )


def filled_up(weight: Tensor, multiple: int, *axes: int) -> Tensor:
    """Zeros after the end of some axes, up to a multiple."""
    for axis in axes:
        shape = list(weight.shape)
        shape[axis] = -shape[axis] % multiple
        weight = torch.cat([weight, weight.new_zeros(shape)], dim=axis)
    return weight


def _block(
    x: Tensor, pair: tuple[Normed, Normed], height: int, width: int, out: Tensor | None = None
) -> Tensor:
    first, second = pair
    x = normalise_leaky(convolve(x, first.weight, height, width), SLOPE, eps=first.eps)
    raw = convolve(x, second.weight, height, width)
    return normalise_leaky(raw, SLOPE, eps=second.eps, out=out)


def _upsample(x: Tensor, by: Normed, height: int, width: int, size: list[int], out: Tensor) -> None:
    blocks = (x @ by.weight).view(len(x), 4 * x.shape[1], -1)
    if size == [2 * height, 2 * width]:
        normalise_leaky(blocks, SLOPE, eps=by.eps, out=out, coarse=width)
        return
    # Pooling drops the last row or column of an odd size; reflection gives it back.
    doubled = normalise_leaky(blocks, SLOPE, eps=by.eps, coarse=width)
    image = to_image(doubled, 2 * height, 2 * width)
    missing = (0, size[1] - 2 * width, 0, size[0] - 2 * height)
    out.copy_(to_rows(F.pad(image, missing, mode="reflect")))


def _kernels(x: Tensor) -> Any:
    return unet_kernels if x.is_cuda and compiled.is_available() else None
