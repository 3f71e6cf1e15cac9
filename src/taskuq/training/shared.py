"""Layers that look at a whole batch, where processes share it: they see what one process would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from taskuq.seeds import Share
from taskuq.training.seeds import CaseDraws


class SharedLayers:
    """Batch normalisation and dropout of a network, over the batch of all processes.

    Left alone, batch normalisation looks at the cases of one process, and dropout draws for them.
    """

    def __init__(self) -> None:
        self.share = Share(0, 1, 1)
        self.generator: torch.Generator | None = None

    def begin(self, share: Share, draws: CaseDraws) -> None:
        """Take the batch at hand."""
        self.share = share
        if draws.whole is not None:
            # One process drops by torch's own generator, which has this seed then.
            seed = draws.whole.initial_seed()
            self.generator = torch.Generator(draws.device).manual_seed(seed)

    @contextmanager
    def of(self, network: nn.Module) -> Iterator[None]:
        """Apply the layers of a network to the whole batch for a while."""
        found: list[nn.Module] = []
        kinds: tuple[tuple[type[nn.Module], Callable[..., Tensor]], ...] = (
            (_BatchNorm, self.normalised),
            (nn.Dropout, self.dropped),
        )
        for layer in network.modules():
            for kind, shared in kinds:
                if isinstance(layer, kind):
                    # Nothing compiles talk between processes.
                    whole = torch.compiler.disable(partial(shared, layer))  # type: ignore[no-untyped-call]
                    layer.forward = whole
                    found.append(layer)
        try:
            yield
        finally:
            for layer in found:
                del layer.forward

    def normalised(self, norm: _BatchNorm, x: Tensor) -> Tensor:
        """Standardise channels by mean and variance of all cases, as torch's batch norm does."""
        if not norm.training:
            return type(norm).forward(norm, x)
        axes = [0, *range(2, x.ndim)]
        shape = [1, -1, *[1] * (x.ndim - 2)]
        values = x.float()
        counted = float(self.share.counts)
        count = values.new_tensor(counted * x.numel() / x.shape[1])
        distributed.all_reduce(count)
        mean = _summed(counted * values.sum(axes)) / count
        centred = values - mean.view(shape)
        variance = _summed(counted * centred.square().sum(axes)) / count
        y = centred * (variance + norm.eps).rsqrt().view(shape)
        if norm.affine:
            y = y * norm.weight.view(shape) + norm.bias.view(shape)
        _remember(norm, mean.detach(), variance.detach() * count / (count - 1).clamp_min(1))
        return y.to(x.dtype)

    def dropped(self, dropout: nn.Dropout, x: Tensor) -> Tensor:
        """Drop features of each case, drawn for all cases."""
        rows = self.share.rows
        if not dropout.training or len(x) != rows.stop - rows.start:
            return type(dropout).forward(dropout, x)
        kept = x.new_empty((self.share.total, *x.shape[1:]))
        kept.bernoulli_(1 - dropout.p, generator=self.generator).div_(1 - dropout.p)
        return x * kept[rows]


def _remember(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Update a layer's running moments, as torch does."""
    if norm.running_mean is None or norm.running_var is None:
        return
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    share = norm.momentum if norm.momentum is not None else 1 / float(norm.num_batches_tracked)
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
    norm.running_var.lerp_(variance.to(norm.running_var.dtype), share)


class _Sum(torch.autograd.Function):
    """Sum over processes, whose gradient is the sum over processes, too."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        total = own.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        distributed.all_reduce(total)
        return total


def _summed(own: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(own)  # type: ignore[no-untyped-call]
    return total
