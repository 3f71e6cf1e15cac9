"""One-step posterior samples around a point estimate, and their noise scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq._seeds import mix_seeds
from taskuq.recover._compiled import capture_graphs
from taskuq.recover._methods import BatchRecovery, check_samples
from taskuq.recover.sampler._network import (
    ACCELERATIONS,
    SamplerNet,
    nearest_acceleration,
    unflatten_samples,
)

# Pixels that are sampled together: a GPU wants many, a CPU's cache holds few.
CHUNK_PIXELS = {"cuda": 2**22, "cpu": 2**17}
# Samples of each case, and candidates of the noise scale.
SAMPLES, NOISE_SCALES = 8, (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5)
# Constants of the SplitMix64 generator, as signed integers of 64 bits.
_STEP, _FIRST, _SECOND = (
    number - (1 << 64) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


class ConditionedBatch(Protocol):
    """Batch of estimates with their condition channels."""

    @property
    def scale(self) -> Tensor:
        """Unit of each case's images, above 0, (case,)."""

    def inputs(self) -> Tensor: ...

    def sampled_fraction(self) -> Tensor: ...

    def images(self, residuals: Tensor) -> Tensor:
        """Return data-consistent images (case, sample, height, width), differentiably."""


@runtime_checkable
class _TensorEstimator(Protocol):
    """Estimator of tensors only, for CUDA graphs."""

    def tensors(self, measurements: Sequence[Any]) -> tuple[Tensor, ...]:
        """Return measurements of one size as tensors (case, ...), on the device."""

    def estimate(self, *tensors: Tensor) -> ConditionedBatch: ...


def _shift_right(x: Tensor, by: int) -> Tensor:
    # torch shifts the sign along; it is masked out again.
    return (x >> by) & ((1 << (64 - by)) - 1)


def counter_normal(seeds: Tensor, count: int) -> Tensor:
    """Return counter-based standard normal numbers, (seed, count)."""
    half = (count + 1) // 2
    x = seeds[:, None] + torch.arange(1, half + 1, device=seeds.device) * _STEP
    x = (x ^ _shift_right(x, 30)) * _FIRST
    x = (x ^ _shift_right(x, 27)) * _SECOND
    x = x ^ _shift_right(x, 31)
    halves = (_shift_right(x, 32), x & 0xFFFFFFFF)
    first, second = ((part.float() + 0.5) * 2**-32 for part in halves)
    radius = (-2 * torch.log(first)).clamp_min(0).sqrt()
    angle = 2 * math.pi * second
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)[:, :count]


class _GraphedSampler:
    """Sampling as CUDA graphs for one input shape."""

    def __init__(
        self,
        net: SamplerNet | _ScaledNoise,
        estimator: _TensorEstimator,
        dtype: torch.dtype,
        *,
        chunk_pixels: int = CHUNK_PIXELS["cuda"],
        graphs: bool = True,
    ) -> None:
        self.net, self.estimator, self.dtype = net, estimator, dtype
        self.chunk_pixels, self.graphs = chunk_pixels, graphs
        self._key: tuple[Any, ...] = ()
        self._graph: _SamplerGraph | None = None

    @torch.no_grad()
    def __call__(
        self, measurements: Sequence[Any], *, samples: int, seeds: Sequence[int]
    ) -> Tensor:
        cases, tensors = len(seeds), self.estimator.tensors(measurements)
        captured = 0 if self._graph is None else self._graph.cases
        if cases < captured <= 2 * cases:
            # A smaller last batch, padded with its last case, needs no graph of its own.
            more = captured - cases
            tensors = tuple(torch.cat([x, x[-1:].expand(more, *x.shape[1:])]) for x in tensors)
            seeds = [*seeds, *[seeds[-1]] * more]
        pixels = math.prod(tensors[0].shape[-2:]) * len(seeds)
        # Chunks of equally many samples, so that one graph serves.
        count = math.ceil(samples / max(1, self.chunk_pixels // pixels))
        chunk = math.ceil(samples / count)
        shapes = tuple((x.shape, x.dtype) for x in tensors)
        if count == 1 and self._key[1:] == shapes:
            # A fully sampled scan needs one sample: capturing it, and the next scan's first round
            # after it, would take far longer than samples that are not used.
            chunk = max(chunk, int(self._key[0]))
        key = (chunk, *shapes)
        if self._graph is None or key != self._key:
            self._graph = None  # frees its memory for the next one
            self._graph, self._key = _SamplerGraph(self, tensors, chunk), key
        self._graph.encode(tensors)
        images = []
        for first in range(0, count * chunk, chunk):
            indices = range(first, first + chunk)
            images.append(
                self._graph.decode([mix_seeds(seed, j, 0) for seed in seeds for j in indices])
            )
        return torch.cat(images, dim=1)[:cases, :samples]


class _SamplerGraph:
    """CUDA graphs and buffers of one input shape."""

    batch: ConditionedBatch
    condition: Any
    size: tuple[int, int]

    def __init__(self, owner: _GraphedSampler, tensors: Sequence[Tensor], samples: int) -> None:
        self.owner = owner
        self.inputs = [x.clone() for x in tensors]
        self.cases = cases = len(tensors[0])
        self.seeds = torch.zeros(cases * samples, dtype=torch.int64, device=tensors[0].device)
        self.steps = capture_graphs(self._encode, self._decode) if owner.graphs else []

    def encode(self, tensors: Sequence[Tensor]) -> None:
        """Compute estimates and conditions of measurements."""
        for buffer, x in zip(self.inputs, tensors, strict=True):
            buffer.copy_(x)
        if self.steps:
            self.steps[0][0].replay()
        else:
            self._encode()

    def decode(self, seeds: Sequence[int]) -> Tensor:
        """Return one chunk, (case, sample, height, width)."""
        self.seeds.copy_(torch.tensor(seeds))
        if not self.steps:
            return self._decode()
        graph, output = self.steps[1]
        graph.replay()
        images: Tensor = output.clone()
        return images

    def _encode(self) -> None:
        self.batch = self.owner.estimator.estimate(*self.inputs)
        inputs = self.batch.inputs()
        self.size = (inputs.shape[-2], inputs.shape[-1])
        with _mixed_precision(inputs.device, self.owner.dtype):
            self.condition = self.owner.net.encode(inputs, self.batch.sampled_fraction())

    def _decode(self) -> Tensor:
        noise = counter_normal(self.seeds, self.owner.net.noise_size(*self.size))
        with _mixed_precision(noise.device, self.owner.dtype):
            residuals = self.owner.net.decode(self.condition, unflatten_samples(noise, self.cases))
        return self.batch.images(residuals.float())


def _mixed_precision(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


@torch.no_grad()
def fit_noise_scale(
    net: SamplerNet, batches: Iterable[tuple[ConditionedBatch, Tensor]]
) -> tuple[float, ...]:
    """Fit the noise scale so that sample spread matches the error, for each acceleration."""
    sums = torch.zeros(len(NOISE_SCALES), len(ACCELERATIONS), 2, dtype=torch.float64)
    for number, (batch, truth) in enumerate(batches):
        inputs, fraction = batch.inputs(), batch.sampled_fraction()
        places = nearest_acceleration(fraction).cpu()
        scale = batch.scale.view(-1, 1, 1)
        rows = [mix_seeds(number, case) for case in range(len(inputs) * SAMPLES)]
        size = net.noise_size(*inputs.shape[-2:])
        noise = counter_normal(torch.tensor(rows, device=inputs.device), size)
        noise = noise.view(len(inputs), SAMPLES, size)
        condition = net.encode(inputs, fraction)
        for k, factor in enumerate(NOISE_SCALES):
            images = batch.images(net.decode(condition, factor * noise)) / scale[:, None]
            error = (images.mean(1) - truth / scale).square().mean((1, 2))
            spread = images.var(1).mean((1, 2)) * (1 + 1 / SAMPLES)
            both = torch.stack([spread, error], dim=1).double().cpu()
            sums[k].index_add_(0, places, both)
    return tuple(round(float(factor), 4) for factor in _matching_scales(sums.numpy()))


def _matching_scales(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the scale of each acceleration at which spread equals error."""
    observed = np.flatnonzero(sums[0, :, 1] > 0)
    if len(observed) == 0:
        return np.ones(sums.shape[1])
    ratio = np.sqrt(sums[..., 0] / np.maximum(sums[..., 1], 1e-300))
    # Spread grows with the noise scale; where a network does not follow, the largest so far counts.
    rising = np.maximum.accumulate(ratio, axis=0)
    factors = [np.interp(1.0, rising[:, place], NOISE_SCALES) for place in observed]
    return np.interp(np.arange(sums.shape[1]), observed, factors)


def _noise_scale_at(noise_scale: Tensor, sampled_fraction: Tensor) -> Tensor:
    """Interpolate the noise scale at a sampled fraction."""
    place = -torch.log2(sampled_fraction.clamp_min(1 / ACCELERATIONS[-1]))
    low = place.floor().long().clamp(0, len(noise_scale) - 2)
    part = place - low
    return noise_scale[low] * (1 - part) + noise_scale[low + 1] * part


class _ScaledNoise:
    """Sampler with rescaled noise."""

    def __init__(self, net: Any, noise_scale: Tensor) -> None:
        self.net, self.noise_scale = net, noise_scale

    def noise_size(self, height: int, width: int) -> int:
        size: int = self.net.noise_size(height, width)
        return size

    def encode(self, estimate: Tensor, sampled_fraction: Tensor) -> tuple[Any, Tensor]:
        factor = _noise_scale_at(self.noise_scale, sampled_fraction)
        return self.net.encode(estimate, sampled_fraction), factor

    def decode(self, condition: tuple[Any, Tensor], noise: Tensor) -> Tensor:
        plain, factor = condition
        residuals: Tensor = self.net.decode(plain, noise * factor.view(-1, 1, 1))
        return residuals


@torch.no_grad()
def _sample_images(
    net: SamplerNet | _ScaledNoise,
    batch: ConditionedBatch,
    *,
    samples: int,
    seeds: Sequence[int],
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Sample images around estimates."""
    check_samples(samples)
    inputs = batch.inputs()
    device = inputs.device
    height, width = inputs.shape[-2:]
    chunk = max(1, CHUNK_PIXELS.get(device.type, 2**17) // (len(inputs) * height * width))
    count = net.noise_size(height, width)
    images = []
    with _mixed_precision(device, dtype):
        condition: Any = net.encode(inputs, batch.sampled_fraction())
    for start in range(0, samples, chunk):
        indices = range(start, min(start + chunk, samples))
        rows = torch.tensor([[mix_seeds(seed, j, 0) for j in indices] for seed in seeds])
        noise = counter_normal(rows.flatten().to(device), count)
        with _mixed_precision(device, dtype):
            residuals = net.decode(condition, unflatten_samples(noise, len(seeds)))
        images.append(batch.images(residuals.float()))
    return torch.cat(images, dim=1)


class SamplerRecovery(BatchRecovery):
    """One-step posterior sampler of residuals around a point estimate.

    Args:
        net: The sampler, on the device where it runs.
        estimator: Function of measurements that returns estimates, on the same device.
        dtype: Precision of the sampler; by default bfloat16 on a GPU, float32 elsewhere.
        noise_scale: Factor of the noise at each acceleration
            (:func:`taskuq.recover.sampler._sample.fit_noise_scale`); 1 by default.
    """

    def __init__(
        self,
        net: SamplerNet,
        estimator: Callable[[Sequence[Any]], ConditionedBatch],
        *,
        dtype: torch.dtype | None = None,
        noise_scale: Sequence[float] | None = None,
    ) -> None:
        self.net, self.estimator, self.noise_scale = net.eval(), estimator, noise_scale
        device = next(net.parameters()).device
        on_gpu = device.type == "cuda"
        self.dtype = dtype or (torch.bfloat16 if on_gpu else torch.float32)
        self.inference_net: SamplerNet | _ScaledNoise = net
        if noise_scale is not None:
            self.inference_net = _ScaledNoise(net, torch.tensor(noise_scale, device=device))
        self._graphed: _GraphedSampler | None = None
        if on_gpu and isinstance(estimator, _TensorEstimator):
            self._graphed = _GraphedSampler(self.inference_net, estimator, self.dtype)
        self.rejected = 0  # every draw is valid

    def batch(self, measurements: Sequence[Any], *, samples: int, seeds: Sequence[int]) -> Tensor:
        """Return posterior samples of several cases, (case, sample, height, width)."""
        check_samples(samples)
        if self._graphed is not None:
            return self._graphed(measurements, samples=samples, seeds=seeds)
        batch = self.estimator(measurements)
        return _sample_images(
            self.inference_net, batch, samples=samples, seeds=seeds, dtype=self.dtype
        )

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        # CUDA graphs cannot be pickled; they are captured again in another process.
        again = partial(SamplerRecovery, dtype=self.dtype, noise_scale=self.noise_scale)
        return again, (self.net, self.estimator)
