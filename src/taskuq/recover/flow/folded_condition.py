"""The conditioning networks rearranged for drawing: weights alone, channels last."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

from taskuq.recover.flow.condition import SLOPE as STAGE_SLOPE
from taskuq.recover.flow.condition import ConditionStage
from taskuq.recover.flow.size import LARGEST, SizeNet
from taskuq.recover.flow.size import SLOPE as SIZE_SLOPE
from taskuq.recover.folded_unet import convolution_of


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
