"""A flow rearranged for drawing: the same function, with everything constant computed once.

ActNorm and rotation become one affine map of channels, the attention one filter, and the
condition's share of every subnet's first convolution is separated, so that it is computed once
for all samples of a case. Nothing here computes a log-determinant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

from taskuq.recover.flow import rows
from taskuq.recover.flow.coupling import SLOPE, Subnet
from taskuq.recover.flow.folded_condition import FoldedSize, FoldedStage, fold_size, fold_stage
from taskuq.recover.flow.layer import Layer, Step
from taskuq.recover.flow.model import ConditionalFlow
from taskuq.recover.flow.rows import Attend, Fold
from taskuq.recover.folded_unet import FoldedUNet, convolve, fold_unet, to_rows, weight_of


class FoldedStep(NamedTuple):
    """One step: a subnet, what follows it, and the attention before it."""

    kernel: int
    subnet: rows.Subnet
    fold: Fold
    attend: Attend


class FoldedLayer(NamedTuple):
    """The steps of one layer and its share of the condition, for all steps of a kernel size."""

    steps: tuple[FoldedStep, ...]
    shares: dict[int, tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class FoldedFlow:
    """A flow that can only draw, on one device and in one precision.

    Convolutions run in ``dtype``; couplings, rotations and attention stay in float32 (float64
    where ``dtype`` is float64).

    Example:
        >>> from taskuq.measure.coils import to_complex
        >>> from taskuq.recover.flow import ConditionalFlow, FlowConfig
        >>> flow = ConditionalFlow(FlowConfig(coils=1, unet_width=4, unet_pools=2,
        ...                                   condition_channels=4, steps=2)).eval()
        >>> folded = fold(flow, device="cpu", dtype=torch.float32)
        >>> y, z = torch.randn(1, 2, 16, 16), [torch.randn(3, c, h, w)
        ...                                    for c, h, w in flow.latent_shapes(16, 16)]
        >>> with torch.no_grad():
        ...     plain = flow.inverse(z, [c.expand(3, -1, -1, -1) for c in flow.condition(y)])
        ...     quick = folded.inverse([latent.movedim(1, -1) for latent in z], folded.shares(y))
        >>> torch.allclose(to_complex(plain), quick, atol=1e-5)
        True
    """

    unet: FoldedUNet
    stages: tuple[FoldedStage, ...]
    layers: tuple[FoldedLayer, ...]
    size: FoldedSize | None
    direct: bool
    dtype: torch.dtype
    device: torch.device

    def shares(self, told: Tensor) -> list[list[Tensor]]:
        """Return what the condition adds to first convolutions: layers, finest first, of steps.

        Arguments:
            told: What the flow is told, as real channels, (case, told, height, width).
        """
        told = self._moved(told)
        x = told if self.size is not None else self.unet.features(told)
        if self.direct:
            x = torch.cat([x, told], dim=1)
        shares = []
        for stage, layer in zip(self.stages, self.layers, strict=True):
            x = stage(x)
            by_kernel = {
                kernel: to_rows(F.conv2d(x, weight, bias, padding=kernel // 2)).chunk(
                    sum(step.kernel == kernel for step in layer.steps), dim=-1
                )
                for kernel, (weight, bias) in layer.shares.items()
            }
            parts = {kernel: iter(chunks) for kernel, chunks in by_kernel.items()}
            shares.append([next(parts[step.kernel]).contiguous() for step in layer.steps])
        return shares

    def sizes(self, told: Tensor) -> Tensor | None:
        """How large residuals are, (case, 2 * coil, height, width), where the flow says it."""
        return None if self.size is None else self.size(self._moved(told))

    def _moved(self, told: Tensor) -> Tensor:
        return told.to(self.device, self.dtype, memory_format=torch.channels_last)

    def inverse(self, latents: Sequence[Tensor], shares: Sequence[Sequence[Tensor]]) -> Tensor:
        """Turn latents into complex null-space images (case * sample, coil, height, width).

        Arguments:
            latents: (case * sample, height, width, channel) for each level, channels last.
            shares: What :meth:`shares` made of the measurement.
        """
        *factored, on = latents
        height, width = on.shape[1:3]
        x = on.flatten(1, 2)
        for layer, z, maps in zip(
            reversed(self.layers), reversed(factored), reversed(shares), strict=True
        ):
            x = torch.cat([x, z.flatten(1, 2)], dim=-1)
            x = self._layer(x, layer, maps, height, width)
            if layer is self.layers[0]:
                break
            x = _unsqueeze(x, height, width)
            height, width = 2 * height, 2 * width
        return _to_images(x, height, width)

    def _layer(
        self, x: Tensor, layer: FoldedLayer, maps: Sequence[Tensor], height: int, width: int
    ) -> Tensor:
        samples = len(x) // len(maps[0])
        steps = layer.steps
        x, kept = rows.between(x, None, None, steps[-1].attend, self.dtype)
        for k in reversed(range(len(steps))):
            step = steps[k]
            assert kept is not None, "every step begins with its attention undone"
            raw = _raw(kept, step, maps[k], samples, height, width)
            x, kept = rows.between(
                x, raw, step.fold, steps[k - 1].attend if k else None, self.dtype
            )
        return x


def fold(flow: ConditionalFlow, *, device: torch.device | str, dtype: torch.dtype) -> FoldedFlow:
    """Rearrange a flow to draw the same samples on one device, in one precision.

    Arguments:
        flow: The flow; it is not changed and can stay on the CPU.
        device: Where to draw.
        dtype: The precision of the convolutions: float32, or bfloat16 on a GPU.

    Example:
        >>> from taskuq.recover.flow import FlowConfig
        >>> small = FlowConfig(coils=1, unet_width=4, unet_pools=2, condition_channels=4, steps=2)
        >>> len(fold(ConditionalFlow(small), device="cpu", dtype=torch.float32).layers)
        2
    """
    device = torch.device(device)
    with torch.no_grad():
        return FoldedFlow(
            unet=fold_unet(flow.unet, device, dtype),
            stages=tuple(fold_stage(s, device, dtype) for s in flow.conditioner.stages),  # type: ignore[arg-type]
            layers=tuple(_fold_layer(layer, device, dtype) for layer in flow.layers),  # type: ignore[arg-type]
            size=None if flow.size is None else fold_size(flow.size, device, dtype),
            direct=flow.config.direct and flow.size is None,
            dtype=dtype,
            device=device,
        )


def _fold_layer(layer: Layer, device: torch.device, dtype: torch.dtype) -> FoldedLayer:
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    steps = []
    for k, step in enumerate(layer.steps):
        assert isinstance(step, Step)
        matrix, bias = _undo(step)
        if k == 0:
            # The transition follows the first step in this direction: one map does both.
            after, after_bias = _undo(layer)
            matrix, bias = matrix @ after, bias @ after + after_bias
        subnet, attention = step.coupling.subnet, step.attention
        assert subnet.third.bias is not None
        steps.append(
            FoldedStep(
                kernel=subnet.kernel,
                subnet=_subnet(subnet, device, dtype, exact),
                fold=Fold.of(
                    subnet.third.bias.to(device, exact),
                    matrix.to(device, exact),
                    bias.to(device, exact),
                ),
                attend=Attend(
                    attention.filter.to(device, exact),
                    (1 / attention.gates()).to(device, exact),
                    attention.offset.to(device, exact),
                ),
            )
        )
    shares = {}
    for kernel in sorted({step.kernel for step in steps}):
        nets = [s.coupling.subnet for s in layer.steps if s.coupling.subnet.kernel == kernel]  # type: ignore[union-attr]
        shares[kernel] = _share(nets, device, dtype)  # type: ignore[arg-type]
    return FoldedLayer(tuple(steps), shares)


def _subnet(
    subnet: Subnet, device: torch.device, dtype: torch.dtype, exact: torch.dtype
) -> rows.Subnet:
    assert subnet.second.bias is not None
    weights = [subnet.first.weight[:, : subnet.inputs], subnet.second.weight, subnet.third.weight]
    if subnet.kernel == 1:
        weights = [w.detach()[:, :, 0, 0].T.to(device, dtype).contiguous() for w in weights]
    else:
        weights = [weight_of(w, device, dtype) for w in weights]
    first, second, third = weights
    return rows.Subnet(first, second, subnet.second.bias.detach().to(device, exact), third)


def _raw(
    kept: Tensor, step: FoldedStep, share: Tensor, samples: int, height: int, width: int
) -> Tensor:
    """The raw scale and shift of one step, without the last bias."""
    subnet = step.subnet
    if step.kernel == 1:
        return rows.pixelwise(kept, share, subnet, SLOPE, samples)
    hidden = rows.leaky(convolve(kept, subnet.first, height, width), share, SLOPE, samples)
    hidden = convolve(hidden, subnet.second, height, width)
    hidden = rows.leaky(hidden, subnet.second_bias, SLOPE)
    return convolve(hidden, subnet.third, height, width)


def _undo(part: Step | Layer) -> tuple[Tensor, Tensor]:
    """Rotation and ActNorm undone, as rows: ``y @ matrix + bias``; computed in float64."""
    shrink = torch.exp(-part.norm.scale.detach().double())
    # Row vectors: y R undoes the rotation of column vectors, R x.
    return part.rotation.exact() * shrink, -part.norm.bias.detach().double() * shrink


def _share(
    nets: Sequence[Subnet], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    weight = torch.cat([net.first.weight[:, net.inputs :] for net in nets])
    bias = torch.cat([net.first.bias for net in nets if net.first.bias is not None])
    return weight_of(weight, device, dtype), bias.detach().to(device, dtype)


def _to_images(x: Tensor, height: int, width: int) -> Tensor:
    """The last unsqueezing and the complex layout in one copy."""
    # Channel 4 (2 b + i) + 2 dy + dx: coil b, real or imaginary part i, place (dy, dx) in a block.
    blocks = x.view(len(x), height, width, -1, 2, 2, 2)
    image = blocks.permute(0, 3, 1, 5, 2, 6, 4).contiguous()
    return torch.view_as_complex(image.view(len(x), -1, 2 * height, 2 * width, 2))


def _unsqueeze(x: Tensor, height: int, width: int) -> Tensor:
    """Unfold channels into 2×2 blocks of pixels: (image, pixel, channel) to 4 times the pixels."""
    blocks = x.view(len(x), height, width, -1, 2, 2)
    return blocks.permute(0, 1, 4, 2, 5, 3).flatten(1, 4)
