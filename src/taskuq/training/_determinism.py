"""Seeded data order, data loading and batch-dependent layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import Sampler

from taskuq._seeds import BatchShard, ShardedGenerator
from taskuq.errors import InputError

Place = tuple[int, int]


class EpochSampler(Sampler[Place]):
    def __init__(
        self, length: int, seed: int | None, *, batch: int = 1, most: int | None = None
    ) -> None:
        self.cases = np.arange(length)
        if most is not None and most < length:
            self.cases = np.linspace(0, length - 1, most).astype(int)
        self.seed, self.batch, self.epoch = seed, batch, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch  # Lightning calls this before each epoch

    def share(self, index: int) -> BatchShard:
        total = min(self.batch, len(self.cases) - index * self.batch)
        return BatchShard.of(total, *_process())

    def __iter__(self) -> Iterator[Place]:
        order = self.cases
        if self.seed is not None:
            order = np.random.default_rng([self.seed, self.epoch]).permutation(order)
        for index in range(self.batches):
            whole = order[index * self.batch : (index + 1) * self.batch]
            for case in whole[self.share(index).rows]:
                yield self.epoch, int(case)

    @property
    def batches(self) -> int:
        return -(-len(self.cases) // self.batch)

    def __len__(self) -> int:
        rows = (self.share(index).rows for index in range(self.batches))
        return sum(own.stop - own.start for own in rows)


def _process() -> tuple[int, int]:
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


# Limits of dataloader = 'auto' on a GPU: bytes, and a share of the free memory.
SMALL, SHARE = 8 * 2**30, 1 / 4


@dataclass(frozen=True, eq=False)
class DeviceDataset:
    by_case: Mapping[str, Tensor]
    by_draw: Mapping[str, Tensor] = field(default_factory=dict)
    drawn: Callable[[int, int], int] | None = None
    known: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def batches(self, places: Sequence[Place], size: int) -> Iterator[dict[str, Any]]:
        cases = [case for _, case in places]
        draws = cases if self.drawn is None else [self.drawn(*place) for place in places]
        whole = next(iter([*self.by_case.values(), *self.by_draw.values()]))
        # All rows of an epoch go to the device at once: no batch has to.
        rows, drawn = torch.tensor([cases, draws]).to(whole.device)
        for start in range(0, len(cases), size):
            here = slice(start, start + size)
            yield {
                **{name: x.index_select(0, rows[here]) for name, x in self.by_case.items()},
                **{name: x.index_select(0, drawn[here]) for name, x in self.by_draw.items()},
                **{name: tuple(x[cases[here]].tolist()) for name, x in self.known.items()},
            }


@dataclass(frozen=True, eq=False)
class DeviceLoader:
    stock: DeviceDataset
    sampler: EpochSampler
    batch: int
    # Lightning reads this attribute of every loader with a sampler.
    batch_sampler: ClassVar[None] = None

    def __len__(self) -> int:
        return -(-len(self.sampler) // self.batch)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # Not before the first batch: a resumed trainer sets the epoch in between.
        yield from self.stock.batches(list(self.sampler), self.batch)


def preload(
    cases: Any, feed: Literal["auto", "device", "loader"], *, on_gpu: bool, is_alone: bool
) -> DeviceDataset | None:
    is_asked, found = feed == "device", None
    if feed == "loader" or not (is_asked or on_gpu):
        return None
    if is_alone and hasattr(cases, "stock"):
        most = math.inf if is_asked else min(SMALL, SHARE * torch.cuda.mem_get_info()[0])
        # All cases, or None unless they are of one size and at most so many bytes.
        found = cases.stock(torch.device("cuda" if on_gpu else "cpu"), most)
    if is_asked and found is None:
        needed = "one process, data.in_memory = true and images of one size"
        raise InputError(f"training.dataloader = 'device' needs {needed}", code="option.conflict")
    return found


class CaseGenerator(ShardedGenerator, torch.Generator):
    """Torch random number generator with a separate stream for each case of a batch."""


def gaussian_rows(out: Tensor, seeds: Sequence[int]) -> Tensor:
    """Fill each row in place with normal random numbers from its own seed."""
    generator = torch.Generator(out.device)
    for row, seed in zip(out, seeds, strict=True):
        row.normal_(generator=generator.manual_seed(seed))
    return out


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


class SyncLayers:
    """Batch normalisation and dropout synchronised over processes."""

    def __init__(self) -> None:
        self.share = BatchShard(0, 1, 1)
        self.generator: torch.Generator | None = None

    def begin(self, share: BatchShard, draws: CaseGenerator) -> None:
        self.share = share
        if draws.whole is not None:
            # One process drops by torch's own generator, which has this seed then.
            seed = draws.whole.initial_seed()
            self.generator = torch.Generator(draws.device).manual_seed(seed)

    @contextmanager
    def of(self, network: nn.Module) -> Iterator[None]:
        kinds = (_BatchNorm, nn.Dropout)
        found: list[nn.Module] = [m for m in network.modules() if isinstance(m, kinds)]
        for layer in found:
            shared: Any = self.normalised if isinstance(layer, _BatchNorm) else self.dropped
            # Nothing compiles talk between processes.
            layer.forward = torch.compiler.disable(partial(shared, layer))  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for layer in found:
                del layer.forward

    def normalised(self, norm: _BatchNorm, x: Tensor) -> Tensor:
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
        if norm.running_mean is not None and norm.running_var is not None:
            # As torch does.
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked.add_(1)
            share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
            unbiased = variance.detach() * count / (count - 1).clamp_min(1)
            norm.running_mean.lerp_(mean.detach().to(norm.running_mean.dtype), share)
            norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), share)
        return y.to(x.dtype)

    def dropped(self, dropout: nn.Dropout, x: Tensor) -> Tensor:
        rows = self.share.rows
        if not dropout.training or len(x) != rows.stop - rows.start:
            return type(dropout).forward(dropout, x)
        kept = x.new_empty((self.share.total, *x.shape[1:]))
        kept.bernoulli_(1 - dropout.p, generator=self.generator).div_(1 - dropout.p)
        return x * kept[rows]


class _Sum(torch.autograd.Function):
    """Differentiable sum over processes; its gradient is also summed over processes."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        total = own.contiguous().clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradient)


def _summed(own: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(own)  # type: ignore[no-untyped-call]
    return total
