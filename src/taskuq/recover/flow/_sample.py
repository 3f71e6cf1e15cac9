"""Posterior sampling with the flow: whole images, or residuals around an estimate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from taskuq._seeds import mix_seeds
from taskuq.errors import InputError
from taskuq.measure._coils import rss, to_channels, to_complex
from taskuq.measure._fourier import data_consistency_1d
from taskuq.recover._compiled import (
    capture_graphs,
    compile_methods,
    half_convolutions,
    half_unet,
    inference_varnet,
)
from taskuq.recover._estimate import case_scale, noise_scale_of, varnet_estimate
from taskuq.recover._methods import (
    BatchRecovery,
    MeasurementLike,
    check_samples,
    stack_measurements,
)
from taskuq.recover._varnet import UNet, VarNet
from taskuq.recover.flow._model import (
    ConditionalFlow,
    ConditionStage,
    FlowCondition,
    FlowConfig,
    FlowStep,
    inflation_at,
)
from taskuq.training._determinism import gaussian_rows

# Sensitivities are smooth: an image blurred over this fraction of its side shows their ratios.
SMOOTHING = 2.5 / 128
TINY = 1e-6
# Draws of a sample before it is an error; a residual flow then halves its latents so often.
ATTEMPTS, COOLER = 11, 6
# Residuals that are sampled together; more would not be quicker, and need more memory.
CHUNK = 64

# The U-Net: real channels to its features and its output.
Predict = Callable[[Tensor], tuple[Tensor, Tensor]]
# An acceleration and the temperature there, for some accelerations.
Temperatures = Sequence[tuple[float, float]]


class _CoilRotation(NamedTuple):
    """Unitary transform of the coil values of each pixel; channel 0 becomes the combined image."""

    phase: Tensor
    mirror: Tensor

    @classmethod
    def from_measurement(cls, zero_filled: Tensor) -> _CoilRotation:
        low = gaussian_blur(zero_filled, SMOOTHING * zero_filled.shape[-1])
        size = low.abs().square().sum(1, keepdim=True).sqrt()
        along = low / size.clamp_min(TINY)
        first = along[:, :1]
        phase = torch.where(first.abs() > TINY, first / first.abs().clamp_min(TINY), 1)
        mirror = along * phase.conj()
        mirror = torch.cat([mirror[:, :1] + 1, mirror[:, 1:]], dim=1)
        norm = mirror.abs().square().sum(1, keepdim=True).sqrt()
        return cls(phase, mirror * (math.sqrt(2) / norm))

    def __call__(self, images: Tensor) -> Tensor:
        return -self.phase.conj() * self._reflect(images)

    def inverse(self, rotated: Tensor) -> Tensor:
        return -self.phase * self._reflect(rotated)

    def _reflect(self, images: Tensor) -> Tensor:
        return images - self.mirror * (self.mirror.conj() * images).sum(-3, keepdim=True)


def gaussian_blur(x: Tensor, width: float) -> Tensor:
    for axis in (-1, -2):
        frequency = torch.fft.fftfreq(x.shape[axis], device=x.device)
        window = torch.exp(-2 * (math.pi * width * frequency) ** 2).to(x.real.dtype)
        window = window if axis == -1 else window[:, None]
        blurred = torch.fft.ifft(torch.fft.fft(x, dim=axis) * window, dim=axis)
        x = blurred if x.is_complex() else blurred.real
    return x


class PosteriorMean(NamedTuple):
    rotation: _CoilRotation | None
    images: tuple[Tensor, ...]
    condition: Tensor

    def rotate(self, images: Tensor) -> Tensor:
        return images if self.rotation is None else self.rotation(images)

    def unrotate(self, rotated: Tensor) -> Tensor:
        return rotated if self.rotation is None else self.rotation.inverse(rotated)


def posterior_mean(
    config: FlowConfig, measured: Tensor, mask: Tensor, predict: Predict
) -> PosteriorMean:
    rotation = _CoilRotation.from_measurement(measured) if config.rotate_coils else None
    rotated = measured if rotation is None else rotation(measured)
    start = PosteriorMean(rotation, (), to_channels(rotated))
    if not config.mean_passes:
        return start
    zero_filled, lines = start.condition, mask[:, None, None]
    image, images = measured, []
    features = output = current = zero_filled
    for _ in range(config.mean_passes):
        features, output = predict(torch.cat([zero_filled, current], dim=1))
        image = image + start.unrotate(to_complex(output))
        image = data_consistency_1d(image, measured, lines)
        images.append(image)
        current = to_channels(start.rotate(image))
    fraction = mask.to(output.dtype).mean(1).view(-1, 1, 1, 1).expand(-1, 1, *output.shape[-2:])
    parts = [features.to(output.dtype), zero_filled, current, output, fraction]
    return PosteriorMean(rotation, tuple(images), torch.cat(parts, dim=1))


def _redraw_rejected(
    rejected: Tensor, redraw: Callable[[int, Tensor], Tensor], *, attempts: int, limit: float
) -> Tensor:
    """Redraw the samples marked in ``rejected`` (case, sample); return redraw counts by case."""
    counts = torch.zeros(len(rejected), dtype=torch.long)
    for attempt in range(1, attempts + 1):
        if not bool(rejected.any()):
            break
        if attempt == attempts:
            text = f"a sample exceeds the limit {limit} after {attempts} draws; train the flow "
            raise InputError(f"{text}longer or lower the temperature", code="value.nonfinite")
        counts += rejected.sum(1).cpu()
        rejected = redraw(attempt, rejected)
    return counts


def split_latents(latents: Tensor, shapes: Sequence[tuple[int, int, int]]) -> list[Tensor]:
    """Split rows of latents, flattened with channels last, into the tensors of each layer."""
    parts = torch.split(latents, [math.prod(shape) for shape in shapes], dim=1)
    return [
        part.view(-1, height, width, channels).movedim(-1, 1)
        for part, (channels, height, width) in zip(parts, shapes, strict=True)
    ]


def inference_flow(
    flow: ConditionalFlow, device: torch.device, dtype: torch.dtype
) -> ConditionalFlow:
    """Return a copy for inference, with convolutions in lower precision, compiled on a GPU."""
    quick = deepcopy(flow).requires_grad_(False).eval()
    if dtype != torch.float32:
        for part in filter(None, (quick.conditioner, quick.layers, quick.size)):
            half_convolutions(part, dtype)
        quick.unet = half_unet(quick.unet, dtype, aligned=1)
    if device.type == "cuda":
        methods = (UNet.features, ConditionStage.forward, ConditionalFlow.join, FlowStep.inverse)
        compile_methods(quick, *methods)
    return quick.to(device)


class FlowSamples(NamedTuple):
    """Posterior samples and rejection counts of a batch."""

    images: Tensor  # complex (case, sample, coil, height, width), or the results of ``finish``
    rejected: Tensor  # rejected draws of each case, (case,)


class FlowSampler:
    """Posterior sampler based on a conditional flow.

    A sample depends on the measurement, the seed of the case and the sample's index, not on the
    number of samples or cases drawn together.

    Args:
        flow: Flow; it is not modified.
        device: Device to sample on; default: that of the flow.
        dtype: Precision of the convolutions; default: bfloat16 on a GPU, float32 elsewhere.
        memory: Memory for the samples of one chunk, in bytes, in addition to the weights.
        graphs: Capture CUDA graphs for each input shape on a GPU.
        finish: Function applied to complex coil images (image, coil, height, width), e.g.
            :func:`taskuq.measure._coils.rss`.

    Example:
        >>> from taskuq.recover.flow._model import FlowConfig
        >>> flow = ConditionalFlow(FlowConfig(coils=1, unet_width=4, unet_pools=2,
        ...     condition_channels=4, steps_per_layer=2, max_value=1e9))
        >>> y, mask = torch.randn(1, 1, 16, 16) + 0j, torch.ones(1, 16, dtype=torch.bool)
        >>> two = FlowSampler(flow)(y, mask, samples=2, seeds=[7], temperature=0.01)
        >>> torch.allclose(two.images[:, 0], y, atol=1e-5)  # everything is measured
        True
    """

    def __init__(
        self,
        flow: ConditionalFlow,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        memory: float = 2.5 * 2**30,
        graphs: bool = True,
        finish: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.device = torch.device(device or next(flow.parameters()).device)
        on_gpu = self.device.type == "cuda"
        self.config, self.latent_shapes = flow.config, flow.latent_shapes
        self.inflation = flow.widening.to(self.device) if flow.config.mean_passes else None
        dtype = dtype or (torch.bfloat16 if on_gpu else torch.float32)
        self.flow, self.dtype = inference_flow(flow, self.device, dtype), dtype
        self.memory, self.graphs = memory, graphs and on_gpu
        self.finish = finish or (lambda images: images)
        self._graphs: dict[tuple[int, ...], _FlowGraph] = {}

    @torch.no_grad()
    def __call__(
        self,
        measured: Tensor,
        mask: Tensor,
        *,
        samples: int,
        seeds: Sequence[int],
        temperature: float = 1.0,
    ) -> FlowSamples:
        """Draw posterior samples for a batch of cases.

        Args:
            measured: Zero-filled images, complex (case, coil, height, width).
            mask: Booleans (case, width); True is measured.
            samples: Number of samples per case.
            seeds: Seed of each case.
            temperature: Standard deviation of the latents.
        """
        self._check(measured, mask, samples, seeds)
        y = measured.to(self.device, torch.complex64)
        scale = case_scale(y) if self.config.normalise else y.real.new_ones(len(y))
        y = y / scale.view(-1, 1, 1, 1)
        # Chunks of equally many samples, so that one graph serves.
        chunk = math.ceil(samples / math.ceil(samples / self.chunk_limit(*y.shape[-2:])))
        images, rejected = [], []
        for batch in self._batches(len(y), samples, *y.shape[-2:]):
            key = (len(batch), chunk, *y.shape[-2:])
            if key not in self._graphs:
                # A graph holds its memory; keep that of one shape at a time.
                self._graphs.clear()
                self._graphs[key] = _FlowGraph(self, *key)
            graph = self._graphs[key]
            graph.encode(y[batch], scale[batch], mask.to(self.device)[batch])
            own = [seeds[i] for i in batch]
            part, counts = self._sample(graph, own, samples, temperature)
            images.append(part)
            rejected.append(counts)
        return FlowSamples(torch.cat(images)[: len(y)], torch.cat(rejected)[: len(y)])

    def chunk_limit(self, height: int, width: int) -> int:
        """Return the number of samples that fit into the memory budget."""
        c = self.config
        bytes_each = 2 if self.dtype == torch.bfloat16 else 4
        hidden = 4 * c.channels + 2 * c.condition_channels
        # Three hidden maps and three states of the finest layer, then the images' transforms.
        layer = height * width / 4 * (3 * hidden * bytes_each + 3 * 4 * c.channels * 4)
        finish = 6 * height * width * c.channels * 4
        return max(1, int(self.memory / max(layer, finish)))

    def _batches(self, cases: int, samples: int, height: int, width: int) -> list[list[int]]:
        most = max(1, self.chunk_limit(height, width) // samples)
        size = math.ceil(cases / math.ceil(cases / most))
        places = [min(i, cases - 1) for i in range(size * math.ceil(cases / size))]
        return [places[i : i + size] for i in range(0, len(places), size)]

    def _sample(
        self, graph: _FlowGraph, seeds: Sequence[int], samples: int, temperature: float
    ) -> tuple[Tensor, Tensor]:
        chunk = graph.samples

        def draw(start: int, attempt: int) -> tuple[Tensor, Tensor]:
            rows = [mix_seeds(seed, start + j, attempt) for seed in seeds for j in range(chunk)]
            images, invalid = graph.decode(rows, temperature)
            return images.reshape(graph.cases, chunk, *images.shape[1:]), invalid.view(-1, chunk)

        def redraw(attempt: int, rejected: Tensor) -> Tensor:
            for start in range(0, samples, chunk):
                part = rejected[:, start : start + chunk]
                if not bool(part.any()):
                    continue
                images, flags = draw(start, attempt)
                result[:, start : start + chunk][part] = images[:, : part.shape[1]][part]
                part &= flags[:, : part.shape[1]]
            return rejected

        parts, invalid = [], []
        for start in range(0, samples, chunk):
            # The graph overwrites its output.
            images, flags = draw(start, 0)
            parts.append(images.clone())
            invalid.append(flags.clone())
        result = torch.cat(parts, 1)[:, :samples]

        rejected = torch.cat(invalid, 1)[:, :samples]
        counts = _redraw_rejected(rejected, redraw, attempts=ATTEMPTS, limit=self.config.max_value)
        return result, counts

    def _check(self, y: Tensor, mask: Tensor, samples: int, seeds: Sequence[int]) -> None:
        c = self.config
        if not y.is_complex() or y.ndim != 4 or y.shape[1] != c.coils:
            text = f"zero-filled images must be complex (case, {c.coils} coils, height, width), "
            raise InputError(f"{text}got {tuple(y.shape)} of {y.dtype}", code="shape.axes")
        if any(side % c.size_multiple for side in y.shape[-2:]):
            text = f"sides must be divisible by {c.size_multiple}, got {y.shape[-2]}×{y.shape[-1]}"
            raise InputError(text, code="shape.mismatch")
        if not bool(torch.isfinite(torch.view_as_real(y)).all()):
            raise InputError("zero-filled images are not finite", code="value.nonfinite")
        if mask.shape != (len(y), y.shape[-1]) or len(seeds) != len(y):
            text = f"pass a mask and a seed for each of {len(y)} cases, got masks "
            text += f"{tuple(mask.shape)} and {len(seeds)} seeds"
            raise InputError(text, code="shape.mismatch")
        check_samples(samples)


class _FlowGraph:
    def __init__(
        self, sampler: FlowSampler, cases: int, samples: int, height: int, width: int
    ) -> None:
        self.sampler, self.cases, self.samples = sampler, cases, samples
        c, device = sampler.config, sampler.device
        self.shapes = sampler.latent_shapes(height, width)
        self.y = torch.zeros(cases, c.coils, height, width, dtype=torch.complex64, device=device)
        self.scale = torch.ones(cases, 1, 1, 1, 1, device=device)
        self.mask = torch.zeros(cases, 1, 1, 1, width, dtype=torch.bool, device=device)
        numbers = sum(math.prod(shape) for shape in self.shapes)
        self.latents = torch.zeros(cases * samples, numbers, device=device)
        self.temperature = torch.ones((), device=device)
        self.condition = FlowCondition([], None)
        self.rotation: _CoilRotation | None = None
        self.mean: Tensor | None = None
        self.steps = capture_graphs(self._encode, self._decode) if sampler.graphs else []

    def encode(self, y: Tensor, scale: Tensor, mask: Tensor) -> None:
        self.y.copy_(y)
        self.scale.copy_(scale.view(-1, 1, 1, 1, 1))
        self.mask.copy_(mask.view(self.mask.shape))
        if self.steps:
            self.steps[0][0].replay()
        else:
            self._encode()

    def decode(self, seeds: Sequence[int], temperature: float) -> tuple[Tensor, Tensor]:
        """Return a chunk of images and a mask of invalid ones; the next call overwrites both."""
        gaussian_rows(self.latents, seeds)
        self.temperature.fill_(temperature)
        if not self.steps:
            return self._decode()
        graph, (images, invalid) = self.steps[1]
        graph.replay()
        return images, invalid

    def _encode(self) -> None:
        flow, mask = self.sampler.flow, self.mask[:, 0, 0, 0]
        prior = posterior_mean(self.sampler.config, self.y, mask, flow.predict)
        condition = flow.encode(prior.condition)
        if prior.rotation is not None:
            self.rotation = _CoilRotation(*(part[:, None] for part in prior.rotation))
        self.mean = prior.images[-1][:, None] if prior.images else None
        if condition.log_scale is not None and self.sampler.inflation is not None:
            inflation = inflation_at(self.sampler.inflation, mask).log()
            log_scale = condition.log_scale + inflation[:, :, None, None]
            condition = condition._replace(log_scale=log_scale)
        self.condition = condition

    def _decode(self) -> tuple[Tensor, Tensor]:
        c = self.sampler.config
        latents = split_latents(self.latents * self.temperature, self.shapes)
        x = to_complex(self.sampler.flow.inverse(latents, self.condition))
        # Not "above the limit": NaN must be invalid too.
        largest = torch.linalg.vector_norm(torch.view_as_real(x).flatten(1), math.inf, dim=1)
        invalid = ~(largest <= c.max_value)
        images = x.view(self.cases, self.samples, *x.shape[1:])
        if self.rotation is not None:
            images = self.rotation.inverse(images)
        if self.mean is not None:
            images = self.mean + images
        images = data_consistency_1d(images, self.y[:, None], self.mask)
        if c.normalise:
            images = images * self.scale
        return self.sampler.finish(images.flatten(0, 1)), invalid


def _temperature_pairs(temperature: float | Temperatures) -> list[tuple[float, float]]:
    return [(1.0, temperature)] if isinstance(temperature, int | float) else list(temperature)


def check_temperature(temperature: float | Temperatures) -> None:
    pairs = _temperature_pairs(temperature)
    if not pairs or not all(len(p) == 2 and p[0] >= 1 and 0 <= p[1] < math.inf for p in pairs):
        text = f"temperature must be at least 0, or (acceleration, temperature) pairs, got {pairs}"
        raise InputError(text, code="value.invalid")


def temperature_at(temperature: float | Temperatures, mask: Tensor) -> float:
    accelerations, values = zip(*sorted(_temperature_pairs(temperature)), strict=True)
    acceleration = len(mask) / max(float(mask.sum()), 1.0)
    return float(np.interp(math.log(acceleration), np.log(accelerations), values))


class ResidualFlowSampler(BatchRecovery):
    """Posterior sampler that adds residuals drawn by a flow to a data-consistent estimate."""

    def __init__(
        self,
        flow: ConditionalFlow,
        net: VarNet,
        *,
        device: torch.device | str | None = None,
        temperature: float | Temperatures = 1.0,
        dtype: torch.dtype = torch.float16,
    ) -> None:
        if flow.config.coils != 1 or flow.config.in_channels != 6:
            given = f"got {flow.config.coils} and {flow.config.in_channels}"
            text = f"a residual flow has coils = 1 and in_channels = 6, {given}"
            raise InputError(text, code="weights.mismatch")
        self.device = torch.device(device or next(flow.parameters()).device)
        self.flow, self.net = flow, inference_varnet(net.to(self.device).eval(), dtype)
        self.quick = inference_flow(flow, self.device, torch.float32)
        check_temperature(temperature)
        self.temperature = temperature
        self.rejected = self.cooled = 0

    @torch.no_grad()
    def batch(
        self, measurements: Sequence[MeasurementLike], *, samples: int, seeds: Sequence[int]
    ) -> Tensor:
        check_samples(samples)
        zero_filled, mask = (part.to(self.device) for part in stack_measurements(measurements))
        estimate = varnet_estimate(self.net, zero_filled.to(torch.complex64), mask)
        inputs = estimate.inputs()
        if not bool(torch.isfinite(inputs).all()):
            text = "the point estimate is not finite; try precision = 'float32'"
            raise InputError(text, code="value.nonfinite")
        images, shapes = [], self.flow.latent_shapes(*inputs.shape[-2:])
        for case, seed in enumerate(seeds):
            one = estimate.of(slice(case, case + 1))
            condition = self.quick.encode(inputs[case : case + 1])
            deviation = temperature_at(self.temperature, mask[case]) * noise_scale_of(mask[case])
            for start in range(0, samples, CHUNK):
                indices = range(start, min(start + CHUNK, samples))
                errors = self._errors(shapes, condition, indices, seed, deviation)
                images.append(rss(one.coil_images(errors[None, :, 0]))[0])
        result = torch.cat(images)
        return result.view(len(seeds), samples, *result.shape[1:])

    def _errors(
        self,
        shapes: Sequence[tuple[int, int, int]],
        condition: FlowCondition,
        indices: range,
        seed: int,
        deviation: float,
    ) -> Tensor:
        """Draw image errors (sample, 1, height, width); redraw any that exceed ``max_value``."""
        numbers, limit = sum(math.prod(shape) for shape in shapes), self.flow.config.max_value

        def draw(chosen: Iterable[int], attempt: int, deviation: float) -> Tensor:
            rows = [mix_seeds(seed, j, attempt) for j in chosen]
            # Two numbers for each pixel: drawn on the CPU, they are the same on every device.
            latents = gaussian_rows(torch.empty(len(rows), numbers), rows).to(self.device)
            latents *= deviation
            return to_complex(self.quick.inverse(split_latents(latents, shapes), condition))

        def invalid() -> Tensor:
            # Not "above the limit": NaN must be invalid too.
            return ~(errors.abs().amax((1, 2, 3)) <= limit)[None]

        def redraw(attempt: int, rejected: Tensor) -> Tensor:
            again = rejected[0].nonzero()[:, 0].tolist()
            self.cooled += len(again) if attempt == ATTEMPTS else 0
            cooled = deviation * 0.5 ** max(0, attempt - ATTEMPTS + 1)
            # On a GPU always as many samples: code would be compiled for each number.
            drawn = list(range(len(indices))) if self.device.type == "cuda" else again
            new = draw((indices[k] for k in drawn), attempt, cooled)
            errors[again] = new[[drawn.index(k) for k in again]]
            return invalid()

        errors = draw(indices, 0, deviation)
        counts = _redraw_rejected(invalid(), redraw, attempts=ATTEMPTS + COOLER, limit=limit)
        self.rejected += int(counts)
        return errors
