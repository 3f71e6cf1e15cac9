"""The conditioning networks rearranged for drawing: weights alone, channels last."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

from taskuq.recover.flow import rows
from taskuq.recover.flow.condition import SLOPE as STAGE_SLOPE
from taskuq.recover.flow.condition import ConditionStage
from taskuq.recover.flow.size import LARGEST, SizeNet
from taskuq.recover.flow.size import SLOPE as SIZE_SLOPE
from taskuq.recover.unet import SLOPE as UNET_SLOPE
from taskuq.recover.unet import UNet


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


class FoldedUNet(NamedTuple):
    """The weights of a U-Net's features: pairs of 3×3 convolutions and the upsamplings."""

    down: tuple[tuple[Tensor, Tensor], ...]
    bottom: tuple[Tensor, Tensor]
    up: tuple[Tensor, ...]
    joined: tuple[tuple[Tensor, Tensor], ...]
    output: tuple[Tensor, Tensor]

    def features(self, x: Tensor) -> Tensor:
        """The features of real channels (case, channel, height, width), channels last."""
        height, width = x.shape[-2:]
        pixels, skips = to_rows(x), []
        for pair in self.down:
            pixels = _block(pixels, pair, height, width)
            skips.append((pixels, height, width))
            pixels, height, width = _pool(pixels, height, width)
        pixels = _block(pixels, self.bottom, height, width)
        for upsample, pair in zip(self.up, self.joined, strict=True):
            skip, rows_of_skip, columns_of_skip = skips.pop()
            pixels = _upsample(pixels, upsample, height, width)
            pixels = _reflect(pixels, 2 * height, 2 * width, rows_of_skip, columns_of_skip)
            height, width = rows_of_skip, columns_of_skip
            pixels = _block(torch.cat([pixels, skip], dim=-1), pair, height, width)
        return to_image(pixels, height, width)

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The features of real channels, and what the U-Net says, in the precision of ``x``."""
        weight, bias = self.output
        told = x.to(self.bottom[0].dtype, memory_format=torch.channels_last)
        features = self.features(told)
        return features, F.conv2d(features.to(weight.dtype), weight, bias)


class FoldedSize(NamedTuple):
    """The network that says how large residuals are."""

    convolutions: tuple[tuple[Tensor, Tensor], ...]

    def __call__(self, x: Tensor) -> Tensor:
        """Map (case, told, height, width) to sizes of real channels, in float32 or float64."""
        for i, (weight, bias) in enumerate(self.convolutions):
            if i:
                x = F.leaky_relu(x, SIZE_SLOPE, inplace=True)
            x = F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2)
        exact = x if x.dtype == torch.float64 else x.float()
        return (LARGEST * torch.tanh(exact / LARGEST)).exp()


class FoldedStage(NamedTuple):
    """One stage of the condition; the batch normalisation is a scale and a shift."""

    down: tuple[Tensor, Tensor]
    residual: tuple[tuple[Tensor, Tensor], ...]
    scale: Tensor
    shift: Tensor
    mix: tuple[Tensor, Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        """Map (case, inputs, height, width) to half the size."""
        x = F.conv2d(x, *self.down, stride=2, padding=1)
        residual = x
        for i, (weight, bias) in enumerate(self.residual):
            if i:
                residual = F.leaky_relu(residual, STAGE_SLOPE, inplace=True)
            residual = F.conv2d(residual, weight, bias, padding=weight.shape[-1] // 2)
        x = F.leaky_relu((x + residual) * self.scale + self.shift, STAGE_SLOPE)
        return F.conv2d(x, *self.mix)


def fold_unet(unet: UNet, device: torch.device, dtype: torch.dtype) -> FoldedUNet:
    """Take the weights of a U-Net's features."""

    def pair(block: nn.Module) -> tuple[Tensor, Tensor]:
        first, second = (m for m in block.modules() if isinstance(m, nn.Conv2d) and m.bias is None)
        return weight_of(first.weight, device, dtype), weight_of(second.weight, device, dtype)

    up = []
    for block in unet.up_transpose_conv:
        (transposed,) = (m for m in block.modules() if isinstance(m, nn.ConvTranspose2d))
        # (in, out, dy, dx) as one matrix (in, dy * dx * out): each pixel becomes a 2×2 block.
        matrix = transposed.weight.detach().permute(0, 2, 3, 1).flatten(1)
        up.append(matrix.to(device, dtype).contiguous())
    return FoldedUNet(
        down=tuple(pair(block) for block in unet.down_sample_layers),
        bottom=pair(unet.conv),
        up=tuple(up),
        joined=tuple(pair(block) for block in unet.up_conv),
        output=convolution_of(
            unet.output, device, torch.float64 if dtype == torch.float64 else torch.float32
        ),
    )


def fold_size(size: SizeNet, device: torch.device, dtype: torch.dtype) -> FoldedSize:
    """Take the weights of the network that says how large residuals are."""
    layers = (size.first, size.second, size.third)
    return FoldedSize(tuple(convolution_of(layer, device, dtype) for layer in layers))


def fold_stage(stage: ConditionStage, device: torch.device, dtype: torch.dtype) -> FoldedStage:
    """Take the weights of one condition stage, as it is in evaluation."""

    def conv(module: nn.Module) -> tuple[Tensor, Tensor]:
        return convolution_of(module, device, dtype)

    norm = stage.norm
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight.detach() * torch.rsqrt(norm.running_var + norm.eps)
    shift = norm.bias.detach() - norm.running_mean * scale
    return FoldedStage(
        down=conv(stage.down),
        residual=tuple(conv(m) for m in stage.residual if isinstance(m, nn.Conv2d)),
        scale=scale.view(-1, 1, 1).to(device, dtype),
        shift=shift.view(-1, 1, 1).to(device, dtype),
        mix=conv(stage.mix),
    )


def _block(x: Tensor, pair: tuple[Tensor, Tensor], height: int, width: int) -> Tensor:
    for weight in pair:
        x = rows.normalise_leaky(convolve(x, weight, height, width), UNET_SLOPE)
    return x


def _pool(x: Tensor, height: int, width: int) -> tuple[Tensor, int, int]:
    pooled = F.avg_pool2d(to_image(x, height, width), 2)
    return to_rows(pooled), height // 2, width // 2


def _upsample(x: Tensor, matrix: Tensor, height: int, width: int) -> Tensor:
    blocks = (x @ matrix).view(len(x), height, width, 2, 2, -1)
    doubled = blocks.permute(0, 1, 3, 2, 4, 5).flatten(1, 4)
    return rows.normalise_leaky(doubled, UNET_SLOPE)


def _reflect(x: Tensor, height: int, width: int, to_height: int, to_width: int) -> Tensor:
    if (height, width) == (to_height, to_width):
        return x
    image = to_image(x, height, width)
    return to_rows(F.pad(image, (0, to_width - width, 0, to_height - height), mode="reflect"))
