"""One-step posterior sampling around a point estimate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from taskuq._seeds import mix_seeds
from taskuq.recover._compiled import CudaGraph, compile_methods, compile_region
from taskuq.recover._methods import BatchRecovery, check_samples
from taskuq.recover.sampler._network import (
    Condition,
    SamplerNet,
    unflatten_samples,
)

# Pixels that are sampled together: a GPU wants many, a CPU's cache holds few.
CHUNK_PIXELS = {"cuda": 2**22, "cpu": 2**16}
# Cases that are estimated and encoded together on a GPU.
GROUP = 16
# Constants of the SplitMix64 generator, as signed integers of 64 bits.
_STEP, _FIRST, _SECOND = (
    number - (1 << 64) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


class ConditionedBatch(Protocol):
    @property
    def scale(self) -> Tensor: ...  # unit of each case's images, above 0, (case,)

    def inputs(self) -> Tensor: ...

    def sampled_fraction(self) -> Tensor: ...

    def images(self, residuals: Tensor) -> Tensor: ...  # data-consistent, differentiable


class SlicedBatch(ConditionedBatch, Protocol):
    def __getitem__(self, cases: slice) -> ConditionedBatch: ...


class Estimator(Protocol):
    def __call__(self, measurements: Sequence[Any]) -> ConditionedBatch: ...


@runtime_checkable
class TensorEstimator(Estimator, Protocol):
    """Estimator that takes tensors only, as CUDA graphs require."""

    def tensors(self, measurements: Sequence[Any]) -> tuple[Tensor, ...]: ...

    def estimate(self, *tensors: Tensor) -> SlicedBatch: ...


def _shift_right(x: Tensor, by: int) -> Tensor:
    # torch shifts the sign along; it is masked out again.
    return (x >> by) & ((1 << (64 - by)) - 1)


def counter_normal(seeds: Tensor, count: int) -> Tensor:
    """Return counter-based standard normal numbers, (seed, count)."""
    counter = torch.arange(1, (count + 1) // 2 + 1, device=seeds.device) * _STEP
    normal = compile_region(_hash_normal) if seeds.is_cuda else _hash_normal
    return normal(seeds, counter)[:, :count]


def _hash_normal(seeds: Tensor, counter: Tensor) -> Tensor:
    x = seeds[:, None] + counter
    x = (x ^ _shift_right(x, 30)) * _FIRST
    x = (x ^ _shift_right(x, 27)) * _SECOND
    x = x ^ _shift_right(x, 31)
    halves = (_shift_right(x, 32), x & 0xFFFFFFFF)
    first, second = ((part.float() + 0.5) * 2**-32 for part in halves)
    radius = (-2 * torch.log(first)).clamp_min(0).sqrt()
    angle = 2 * math.pi * second
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)


def _mixed_precision(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


class SamplerRecovery(BatchRecovery):
    """One-step posterior sampler of residuals around a point estimate.

    Args:
        net: Sampler, on the device to use.
        estimator: Function of measurements that returns estimates, on the same device.
        dtype: Precision of the sampler; default: bfloat16 on a GPU, float32 elsewhere.
    """

    def __init__(
        self,
        net: SamplerNet,
        estimator: Estimator,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.net, self.estimator = net.eval(), estimator
        device = next(net.parameters()).device
        on_gpu = device.type == "cuda"
        self.dtype = dtype or (torch.bfloat16 if on_gpu else torch.float32)
        self._quick = net
        if on_gpu:
            self._quick = deepcopy(net).requires_grad_(False)
            compile_methods(self._quick, SamplerNet.encode, SamplerNet.decode)
        self._graph: CudaGraph[Tensor] = CudaGraph(self.from_seeds, most=2)
        self._captured: dict[torch.Size, int] = {}
        self._uses_graphs = on_gpu and isinstance(estimator, TensorEstimator)
        self.rejected = 0  # every draw is valid

    def batch(self, measurements: Sequence[Any], *, samples: int, seeds: Sequence[int]) -> Tensor:
        check_samples(samples)
        if self._uses_graphs:
            return self._replay(measurements, samples, seeds)
        with torch.no_grad():
            return self._sample(self.estimator(measurements), samples, seeds)

    def _sample(self, batch: ConditionedBatch, samples: int, seeds: Sequence[int]) -> Tensor:
        condition = self._encode(batch)
        height, width = condition.size
        device, pixels = condition.mean.device, len(seeds) * height * width
        chunk = max(1, CHUNK_PIXELS.get(device.type, 2**16) // pixels)
        images = []
        for start in range(0, samples, chunk):
            indices = range(start, min(start + chunk, samples))
            rows = torch.tensor([[mix_seeds(seed, j, 0) for j in indices] for seed in seeds])
            images.append(self._decode(batch, condition, rows.flatten().to(device)))
        return torch.cat(images, dim=1)

    def _encode(self, batch: ConditionedBatch) -> Condition:
        inputs = batch.inputs()
        with _mixed_precision(inputs.device, self.dtype):
            return self._quick.encode(inputs, batch.sampled_fraction())

    def _decode(self, batch: ConditionedBatch, condition: Condition, seeds: Tensor) -> Tensor:
        noise = counter_normal(seeds, self.net.noise_size(*condition.size))
        noise = unflatten_samples(noise, len(condition.sampled_fraction))
        with _mixed_precision(seeds.device, self.dtype):
            residuals = self._quick.decode(condition, noise)
        return batch.images(residuals.float())

    @torch.no_grad()
    def from_seeds(self, *tensors: Tensor) -> Tensor:
        """Draw one sample per seed; the last tensor holds the seeds (case * sample,)."""
        *measurement, seeds = tensors
        batch = cast(TensorEstimator, self.estimator).estimate(*measurement)
        condition, images = self._encode(batch), []
        # Networks that run once for a case want many cases, those of each sample need memory.
        for case, rows in enumerate(seeds.chunk(len(measurement[0]))):
            own = slice(case, case + 1)
            images.append(self._decode(batch[own], condition.of(own), rows)[0])
        return torch.cat(images)

    def _replay(self, measurements: Sequence[Any], samples: int, seeds: Sequence[int]) -> Tensor:
        """Sample full groups of cases with one CUDA graph, then single cases with another."""
        tensors = cast(TensorEstimator, self.estimator).tensors(measurements)
        shape, device = tensors[0].shape[1:], tensors[0].device
        chunk = min(samples, max(1, CHUNK_PIXELS["cuda"] // math.prod(shape[-2:])))
        # A fully sampled scan needs one sample: capturing it, and the next scan's first round after
        # it, would take far longer than samples that are not used.
        chunk = self._captured[shape] = max(chunk, self._captured.get(shape, 0))
        images, start = [], 0
        while start < len(seeds):
            count = GROUP if len(seeds) - start >= GROUP else 1
            own, parts = slice(start, start + count), []
            for first in range(0, samples, chunk):
                rows = [mix_seeds(seed, first + j, 0) for seed in seeds[own] for j in range(chunk)]
                part = self._graph(*(x[own] for x in tensors), torch.tensor(rows, device=device))
                parts.append(unflatten_samples(part, count)[:, : samples - first])
            images.append(torch.cat(parts, dim=1))
            start += count
        return torch.cat(images)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        # CUDA graphs cannot be pickled; they are captured again in another process.
        return partial(SamplerRecovery, dtype=self.dtype), (self.net, self.estimator)
