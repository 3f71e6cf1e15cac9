"""The elementwise parts of a draw on rows of pixels; fused kernels take over on a GPU.

Images are (image, pixel, channel), channels last. Every function here defines what its twin in
``kernels`` computes, and is what runs on a CPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

from taskuq.recover import compiled
from taskuq.recover.flow import kernels
from taskuq.recover.flow.coupling import log_scale
from taskuq.recover.flow.imap import FLOOR


class Fold(NamedTuple):
    """What follows a subnet: the bias of its last convolution, then one affine map of channels.

    The map is rotation and ActNorm undone at once, ``y @ matrix + bias``; ``pair`` is the matrix
    as a sum of two bfloat16 ones.
    """

    raw_bias: Tensor
    matrix: Tensor
    bias: Tensor
    pair: Tensor

    @classmethod
    def of(cls, raw_bias: Tensor, matrix: Tensor, bias: Tensor) -> Fold:
        """Split the matrix into its pair."""
        high = matrix.bfloat16()
        rest = (matrix - high.to(matrix.dtype)).bfloat16()
        return cls(raw_bias, matrix.contiguous(), bias, torch.stack([high, rest]).contiguous())


class Subnet(NamedTuple):
    """The three convolutions of a coupling, without the condition's share and the last bias.

    Weights of 1×1 convolutions are matrices (inputs, outputs), others (outputs, inputs, 3, 3).
    """

    first: Tensor
    second: Tensor
    second_bias: Tensor
    third: Tensor


class Attend(NamedTuple):
    """An iMAP to be undone: its filter, one over its gates, its offset."""

    filter: Tensor
    inverse_gate: Tensor
    offset: Tensor


def leaky(y: Tensor, add: Tensor, slope: float, samples: int = 1) -> Tensor:
    """Add a bias or a map, then a leaky ReLU, in place where that is possible.

    Arguments:
        y: (case * sample, pixel, channel).
        add: A bias (channel,) or a map (case, pixel, channel) shared by the samples of a case.
        slope: The slope for negative values.
        samples: How many images of ``y`` follow each other for one case.

    Example:
        >>> leaky(torch.zeros(2, 1, 2), torch.tensor([[[1.0, -1.0]]]), 0.1, samples=2).tolist()
        [[[1.0, -0.1...]], [[1.0, -0.1...]]]
    """
    if fused := _kernels(y):
        result: Tensor = fused.leaky(y, add, slope, samples)
        return result
    if add.ndim > 1:
        add = add.repeat_interleave(samples, dim=0)
    return F.leaky_relu(y.add_(add.to(y.dtype)), slope, inplace=True)


def between(
    x: Tensor, raw: Tensor | None, fold: Fold | None, attend: Attend | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Finish one step (coupling, rotation, ActNorm) and undo the attention of the next.

    Returns the state and, where an attention is undone, half of its channels for the next subnet.

    Arguments:
        x: The state, (image, pixel, channel), float32.
        raw: The subnet's raw scale and shift without its last bias, or None to finish nothing.
        fold: What follows the subnet; None with ``raw``.
        attend: The attention to undo, or None.
        dtype: The precision of the next subnet.

    Example:
        >>> half = Attend(torch.zeros(2), torch.tensor([2.0, 2.0]), torch.tensor(50.0))
        >>> between(torch.ones(1, 2, 2), None, None, half, torch.float32)[0].round().tolist()
        [[[1.0, 2.0], [2.0, 1.0]]]
    """
    fused = _kernels(x)
    if fused and fused.supports(x.shape[-1]):
        kept = x.new_empty((*x.shape[:-1], x.shape[-1] // 2), dtype=dtype)
        fused.between(x, raw, fold, attend, kept)
        return x, kept if attend is not None else None
    if raw is not None:
        assert fold is not None
        scale, shift = (raw.to(x.dtype) + fold.raw_bias).chunk(2, dim=-1)
        first, second = x.chunk(2, dim=-1)
        second = (second - shift) * torch.exp(-log_scale(scale))
        x = torch.cat([first, second], dim=-1) @ fold.matrix + fold.bias
    if attend is None:
        return x, None
    channel = torch.arange(x.shape[-1], device=x.device)
    pixel = torch.arange(x.shape[1], device=x.device)
    decides = (channel + pixel[:, None]) % 2 == 1
    opened = x * attend.inverse_gate
    weighted = torch.where(decides, opened * attend.filter, 0).sum(-1, keepdim=True)
    x = torch.where(decides, opened, x / (torch.sigmoid(weighted + attend.offset) + FLOOR))
    return x, x[..., : x.shape[-1] // 2].to(dtype)


def pixelwise(x: Tensor, share: Tensor, subnet: Subnet, slope: float, samples: int) -> Tensor:
    """Run 1×1 convolutions: scale and shift (case * sample, pixel, 2 * channel), no last bias.

    Arguments:
        x: The first half of the channels, (case * sample, pixel, channel).
        share: What the condition adds, (case, pixel, hidden).
        subnet: Its weights, as matrices.
        slope: The slope of the leaky ReLUs.
        samples: How many images follow each other for one case.

    Example:
        >>> eye = torch.eye(2)
        >>> pixelwise(torch.ones(1, 3, 2), torch.zeros(1, 3, 2),
        ...           Subnet(eye, eye, torch.zeros(2), torch.ones(2, 4)), 0.01, 1)[0, 0].tolist()
        [2.0, 2.0, 2.0, 2.0]
    """
    fused = _kernels(x)
    if fused and fused.supports_pixelwise(x, len(subnet.second)):
        result: Tensor = fused.pixelwise(x, share, subnet, slope, samples)
        return result
    hidden = leaky(x @ subnet.first, share, slope, samples)
    return leaky(hidden @ subnet.second, subnet.second_bias, slope) @ subnet.third


def _kernels(x: Tensor) -> Any:
    return kernels if x.is_cuda and compiled.is_available() else None
