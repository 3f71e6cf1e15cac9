"""Fused flow for inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from taskuq.recover._compiled import (
    FusedUNet,
    convolution_of,
    convolve,
    fuse_unet,
    to_rows,
    weight_of,
)
from taskuq.recover._triton import kernels_for
from taskuq.recover.flow._model import (
    COUPLING_SLOPE,
    FLOOR,
    LARGEST,
    SIZE_SLOPE,
    STAGE_SLOPE,
    ConditionalFlow,
    ConditionStage,
    CouplingNet,
    FlowLayer,
    FlowStep,
    log_scale,
)


class _FusedAffine(NamedTuple):
    """Bias and affine channel map after a coupling network."""

    raw_bias: Tensor
    matrix: Tensor
    bias: Tensor
    pair: Tensor

    @classmethod
    def split(cls, raw_bias: Tensor, matrix: Tensor, bias: Tensor) -> _FusedAffine:
        high = matrix.bfloat16()
        rest = (matrix - high.to(matrix.dtype)).bfloat16()
        return cls(raw_bias, matrix.contiguous(), bias, torch.stack([high, rest]).contiguous())


class _FusedCouplingNet(NamedTuple):
    """Coupling network without the contribution of the condition."""

    first: Tensor
    second: Tensor
    second_bias: Tensor
    third: Tensor


class _FusedAttention(NamedTuple):
    """Inverse iMAP for inference."""

    filter: Tensor
    inverse_gate: Tensor
    offset: Tensor


def _leaky(y: Tensor, add: Tensor, slope: float, samples: int = 1) -> Tensor:
    """Add a bias or a map and apply a leaky ReLU, in place if possible."""
    if fused := kernels_for(y):
        result: Tensor = fused.bias_leaky_relu(y, add, slope, samples)
        return result
    if add.ndim > 1:
        add = add.repeat_interleave(samples, dim=0)
    return F.leaky_relu(y.add_(add.to(y.dtype)), slope, inplace=True)


def _fused_step(
    x: Tensor,
    raw: Tensor | None,
    affine: _FusedAffine | None,
    attend: _FusedAttention | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None]:
    fused = kernels_for(x)
    if fused and fused.supports_channels(x.shape[-1]):
        kept = x.new_empty((*x.shape[:-1], x.shape[-1] // 2), dtype=dtype)
        fused.fused_step(x, raw, affine, attend, kept)
        return x, kept if attend is not None else None
    if raw is not None:
        assert affine is not None
        scale, shift = (raw.to(x.dtype) + affine.raw_bias).chunk(2, dim=-1)
        first, second = x.chunk(2, dim=-1)
        second = (second - shift) * torch.exp(-log_scale(scale))
        x = torch.cat([first, second], dim=-1) @ affine.matrix + affine.bias
    if attend is None:
        return x, None
    channel = torch.arange(x.shape[-1], device=x.device)
    pixel = torch.arange(x.shape[1], device=x.device)
    decides = (channel + pixel[:, None]) % 2 == 1
    opened = x * attend.inverse_gate
    weighted = torch.where(decides, opened * attend.filter, 0).sum(-1, keepdim=True)
    x = torch.where(decides, opened, x / (torch.sigmoid(weighted + attend.offset) + FLOOR))
    return x, x[..., : x.shape[-1] // 2].to(dtype)


def _pixelwise(
    x: Tensor, condition: Tensor, subnet: _FusedCouplingNet, slope: float, samples: int
) -> Tensor:
    """Run 1×1 convolutions without the last bias; return (case * sample, pixel, 2 * channel)."""
    fused = kernels_for(x)
    if fused and fused.supports_pixelwise(x, len(subnet.second)):
        result: Tensor = fused.pixelwise(x, condition, subnet, slope, samples)
        return result
    hidden = _leaky(x @ subnet.first, condition, slope, samples)
    return _leaky(hidden @ subnet.second, subnet.second_bias, slope) @ subnet.third


Convolution = tuple[Tensor, Tensor]  # weight and bias


def _chain(x: Tensor, convolutions: Sequence[Convolution], slope: float) -> Tensor:
    """Run convolutions of one size with leaky ReLUs between them."""
    for i, (weight, bias) in enumerate(convolutions):
        if i:
            x = F.leaky_relu(x, slope, inplace=True)
        x = F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2)
    return x


class _FusedStage(NamedTuple):
    down: Convolution
    residual: tuple[Convolution, ...]
    scale: Tensor
    shift: Tensor
    mix: Convolution

    def __call__(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, *self.down, stride=2, padding=1)
        residual = _chain(x, self.residual, STAGE_SLOPE)
        x = F.leaky_relu((x + residual) * self.scale + self.shift, STAGE_SLOPE)
        return F.conv2d(x, *self.mix)


def _fuse_stage(stage: ConditionStage, device: torch.device, dtype: torch.dtype) -> _FusedStage:
    conv, norm = partial(convolution_of, device=device, dtype=dtype), stage.norm
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight.detach() * torch.rsqrt(norm.running_var + norm.eps)
    shift = norm.bias.detach() - norm.running_mean * scale
    return _FusedStage(
        down=conv(stage.down),
        residual=tuple(conv(m) for m in stage.residual if isinstance(m, nn.Conv2d)),
        scale=scale.view(-1, 1, 1).to(device, dtype),
        shift=shift.view(-1, 1, 1).to(device, dtype),
        mix=conv(stage.mix),
    )


class _FusedStep(NamedTuple):
    kernel: int
    subnet: _FusedCouplingNet
    affine: _FusedAffine
    attend: _FusedAttention


class _FusedLayer(NamedTuple):
    steps: tuple[_FusedStep, ...]
    condition: dict[int, tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class FusedFlow:
    """Flow for inference on one device in one precision."""

    unet: FusedUNet
    stages: tuple[_FusedStage, ...]
    layers: tuple[_FusedLayer, ...]
    size: tuple[Convolution, ...]  # of the residual scale, none without a mean
    direct: bool
    dtype: torch.dtype
    device: torch.device

    def encode(self, condition: Tensor) -> list[list[Tensor]]:
        """Return the condition's part of the first convolution of each step, finest layer first."""
        condition = self._to_device(condition)
        x = condition if self.size else self.unet.features(condition)
        if self.direct:
            x = torch.cat([x, condition], dim=1)
        encoded = []
        for stage, layer in zip(self.stages, self.layers, strict=True):
            x = stage(x)
            by_kernel = {
                kernel: to_rows(F.conv2d(x, weight, bias, padding=kernel // 2)).chunk(
                    sum(step.kernel == kernel for step in layer.steps), dim=-1
                )
                for kernel, (weight, bias) in layer.condition.items()
            }
            parts = {kernel: iter(chunks) for kernel, chunks in by_kernel.items()}
            encoded.append([next(parts[step.kernel]).contiguous() for step in layer.steps])
        return encoded

    def residual_scales(self, condition: Tensor) -> Tensor | None:
        if not self.size:
            return None
        x = _chain(self._to_device(condition), self.size, SIZE_SLOPE)
        exact = x if x.dtype == torch.float64 else x.float()
        return (LARGEST * torch.tanh(exact / LARGEST)).exp()

    def _to_device(self, condition: Tensor) -> Tensor:
        return condition.to(self.device, self.dtype, memory_format=torch.channels_last)

    def inverse(self, latents: Sequence[Tensor], condition: Sequence[Sequence[Tensor]]) -> Tensor:
        """Map latents to complex null-space images (case * sample, coil, height, width)."""
        *factored, coarsest = latents
        height, width = coarsest.shape[1:3]
        x = coarsest.flatten(1, 2)
        for layer, z, maps in zip(
            reversed(self.layers), reversed(factored), reversed(condition), strict=True
        ):
            x = torch.cat([x, z.flatten(1, 2)], dim=-1)
            x = self._layer(x, layer, maps, height, width)
            if layer is self.layers[0]:
                break
            # Channels become 2×2 blocks of pixels: (image, pixel, channel) to 4 times the pixels.
            blocks = x.view(len(x), height, width, -1, 2, 2)
            x = blocks.permute(0, 1, 4, 2, 5, 3).flatten(1, 4)
            height, width = 2 * height, 2 * width
        # Channel 4 (2 b + i) + 2 dy + dx: coil b, part i of a complex number, place in a block.
        blocks = x.view(len(x), height, width, -1, 2, 2, 2)
        image = blocks.permute(0, 3, 1, 5, 2, 6, 4).contiguous()
        return torch.view_as_complex(image.view(len(x), -1, 2 * height, 2 * width, 2))

    def _layer(
        self, x: Tensor, layer: _FusedLayer, maps: Sequence[Tensor], height: int, width: int
    ) -> Tensor:
        samples = len(x) // len(maps[0])
        steps = layer.steps
        x, kept = _fused_step(x, None, None, steps[-1].attend, self.dtype)
        for k in reversed(range(len(steps))):
            step = steps[k]
            assert kept is not None, "every step begins with its attention undone"
            raw = _raw(kept, step, maps[k], samples, height, width)
            attend = steps[k - 1].attend if k else None
            x, kept = _fused_step(x, raw, step.affine, attend, self.dtype)
        return x


def fuse_flow(
    flow: ConditionalFlow, *, device: torch.device | str, dtype: torch.dtype
) -> FusedFlow:
    """Rearrange a flow for inference on one device in one precision."""
    device, size = torch.device(device), flow.size
    scale = () if size is None else (size.first, size.second, size.third)
    with torch.no_grad():
        return FusedFlow(
            unet=fuse_unet(flow.unet, device, dtype),
            stages=tuple(_fuse_stage(s, device, dtype) for s in flow.conditioner.stages),  # type: ignore[arg-type]
            layers=tuple(_fuse_layer(layer, device, dtype) for layer in flow.layers),  # type: ignore[arg-type]
            size=tuple(convolution_of(layer, device, dtype) for layer in scale),
            direct=flow.config.condition_skip and flow.size is None,
            dtype=dtype,
            device=device,
        )


def _fuse_layer(layer: FlowLayer, device: torch.device, dtype: torch.dtype) -> _FusedLayer:
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    steps, nets = [], []
    for k, step in enumerate(layer.steps):
        assert isinstance(step, FlowStep)
        matrix, bias = _undo(step)
        if k == 0:
            # The transition follows the first step in this direction: one map does both.
            after, after_bias = _undo(layer)
            matrix, bias = matrix @ after, bias @ after + after_bias
        subnet, attention = step.coupling.subnet, step.attention
        assert subnet.third.bias is not None
        maps = (subnet.third.bias, matrix, bias)
        gates = (attention.filter, 1 / attention.gates(), attention.offset)
        nets.append(subnet)
        steps.append(
            _FusedStep(
                kernel=subnet.kernel,
                subnet=_subnet(subnet, device, dtype, exact),
                affine=_FusedAffine.split(*(x.to(device, exact) for x in maps)),
                attend=_FusedAttention(*(x.to(device, exact) for x in gates)),
            )
        )
    condition = {}
    for kernel in sorted({step.kernel for step in steps}):
        same = [net for net in nets if net.kernel == kernel]
        weight = torch.cat([net.first.weight[:, net.inputs :] for net in same])
        bias = torch.cat([net.first.bias for net in same if net.first.bias is not None])
        condition[kernel] = weight_of(weight, device, dtype), bias.detach().to(device, dtype)
    return _FusedLayer(tuple(steps), condition)


def _subnet(
    subnet: CouplingNet, device: torch.device, dtype: torch.dtype, exact: torch.dtype
) -> _FusedCouplingNet:
    assert subnet.second.bias is not None
    weights = [subnet.first.weight[:, : subnet.inputs], subnet.second.weight, subnet.third.weight]
    if subnet.kernel == 1:
        weights = [w.detach()[:, :, 0, 0].T.to(device, dtype).contiguous() for w in weights]
    else:
        weights = [weight_of(w, device, dtype) for w in weights]
    first, second, third = weights
    return _FusedCouplingNet(first, second, subnet.second.bias.detach().to(device, exact), third)


def _raw(
    kept: Tensor, step: _FusedStep, condition: Tensor, samples: int, height: int, width: int
) -> Tensor:
    """Return the raw scale and shift of one step, without the last bias."""
    subnet = step.subnet
    if step.kernel == 1:
        return _pixelwise(kept, condition, subnet, COUPLING_SLOPE, samples)
    hidden = _leaky(convolve(kept, subnet.first, height, width), condition, COUPLING_SLOPE, samples)
    hidden = convolve(hidden, subnet.second, height, width)
    hidden = _leaky(hidden, subnet.second_bias, COUPLING_SLOPE)
    return convolve(hidden, subnet.third, height, width)


def _undo(part: FlowStep | FlowLayer) -> tuple[Tensor, Tensor]:
    """Return the inverse of rotation and ActNorm on rows, ``y @ matrix + bias``, in float64."""
    shrink = torch.exp(-part.norm.scale.detach().double())
    # Row vectors: y R undoes the rotation of column vectors, R x.
    return part.rotation.exact() * shrink, -part.norm.bias.detach().double() * shrink
