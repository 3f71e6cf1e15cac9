"""One-step posterior sampling around a point estimate, and the fit of the noise scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from taskuq._seeds import mix_seeds
from taskuq.recover._compiled import CudaGraph, compile_methods, compile_region
from taskuq.recover._methods import BatchRecovery, check_samples
from taskuq.recover.sampler._network import (
    ACCELERATIONS,
    Condition,
    SamplerNet,
    nearest_acceleration,
    unflatten_samples,
)

# Pixels that are sampled together: a GPU wants many, a CPU's cache holds few.
CHUNK_PIXELS = {"cuda": 2**22, "cpu": 2**16}
# Cases that are estimated and encoded together on a GPU.
GROUP = 16
# Samples of each case, and candidates of the noise scale.
SAMPLES, NOISE_SCALES = 8, (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5)
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


@torch.no_grad()
def fit_noise_scale(
    net: SamplerNet, batches: Iterable[tuple[ConditionedBatch, Tensor]]
) -> tuple[float, ...]:
    """Fit the noise scale of each acceleration such that the sample spread matches the error."""
    sums = torch.zeros(len(NOISE_SCALES), len(ACCELERATIONS), 2, dtype=torch.float64)
    for number, (batch, truth) in enumerate(batches):
        inputs, fraction = batch.inputs(), batch.sampled_fraction()
        places, scale = nearest_acceleration(fraction).cpu(), batch.scale.view(-1, 1, 1)
        rows = [mix_seeds(number, case) for case in range(len(inputs) * SAMPLES)]
        size = net.noise_size(*inputs.shape[-2:])
        noise = counter_normal(torch.tensor(rows, device=inputs.device), size)
        noise = noise.view(len(inputs), SAMPLES, size)
        condition = net.encode(inputs, fraction)
        for k, factor in enumerate(NOISE_SCALES):
            scaled = condition._replace(noise_scale=factor * condition.noise_scale)
            images = batch.images(net.decode(scaled, noise)) / scale[:, None]
            error = (images.mean(1) - truth / scale).square().mean((1, 2))
            spread = images.var(1).mean((1, 2)) * (1 + 1 / SAMPLES)
            both = torch.stack([spread, error], dim=1).double().cpu()
            sums[k].index_add_(0, places, both)
    spreads, errors = sums.numpy().transpose(2, 0, 1)
    observed = np.flatnonzero(errors[0] > 0)
    if len(observed) == 0:
        return (1.0,) * len(ACCELERATIONS)
    # Spread grows with the noise scale; where a network does not follow, the largest so far counts.
    rising = np.maximum.accumulate(np.sqrt(spreads / np.maximum(errors, 1e-300)), axis=0)
    factors = [np.interp(1.0, rising[:, place], NOISE_SCALES) for place in observed]
    fitted = np.interp(np.arange(len(ACCELERATIONS)), observed, factors)
    return tuple(round(float(factor), 4) for factor in fitted)


def _noise_scale_at(noise_scale: Tensor, sampled_fraction: Tensor) -> Tensor:
    place = -torch.log2(sampled_fraction.clamp_min(1 / ACCELERATIONS[-1]))
    low = place.floor().long().clamp(0, len(noise_scale) - 2)
    part = place - low
    return noise_scale[low] * (1 - part) + noise_scale[low + 1] * part


def _mixed_precision(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


class SamplerRecovery(BatchRecovery):
    """One-step posterior sampler of residuals around a point estimate.

    Args:
        net: Sampler, on the device to use.
        estimator: Function of measurements that returns estimates, on the same device.
        dtype: Precision of the sampler; default: bfloat16 on a GPU, float32 elsewhere.
        noise_scale: Factor of the random part of residuals at each acceleration; default: 1.
    """

    def __init__(
        self,
        net: SamplerNet,
        estimator: Estimator,
        *,
        dtype: torch.dtype | None = None,
        noise_scale: Sequence[float] | None = None,
    ) -> None:
        self.net, self.estimator, self.noise_scale = net.eval(), estimator, noise_scale
        device = next(net.parameters()).device
        on_gpu = device.type == "cuda"
        self.dtype = dtype or (torch.bfloat16 if on_gpu else torch.float32)
        self._factors = None if noise_scale is None else torch.tensor(noise_scale, device=device)
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
        inputs, fraction = batch.inputs(), batch.sampled_fraction()
        with _mixed_precision(inputs.device, self.dtype):
            condition = self._quick.encode(inputs, fraction)
        if self._factors is None:
            return condition
        factor = _noise_scale_at(self._factors, fraction).view(-1, 1, 1, 1)
        return condition._replace(noise_scale=factor * condition.noise_scale)

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
        again = partial(SamplerRecovery, dtype=self.dtype, noise_scale=self.noise_scale)
        return again, (self.net, self.estimator)
