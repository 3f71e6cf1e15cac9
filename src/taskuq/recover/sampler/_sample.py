"""One-step posterior samples, noise scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from taskuq._seeds import mix_seeds
from taskuq.errors import InputError
from taskuq.recover import _triton as compiled
from taskuq.recover import _triton as kernels
from taskuq.recover._compiled import (
    ALIGNED,
    capture_graphs,
    convolve,
    pad_to_multiple,
    to_rows,
    weight_of,
)
from taskuq.recover.sampler._network import (
    ACCELERATIONS,
    Condition,
    NoiseLevel,
    SamplerNet,
    encode_fraction,
    nearest_acceleration,
    unflatten_samples,
)


class ConditionedBatch(Protocol):
    """Batch of estimates with their condition channels."""

    @property
    def scale(self) -> Tensor:
        """The unit of each case's images, above 0, (case,)."""

    def inputs(self) -> Tensor: ...

    def share(self) -> Tensor: ...

    def images(self, residuals: Tensor) -> Tensor:
        """Consistent real images (case, sample, height, width); gradients flow through it."""


@runtime_checkable
class _TensorEstimator(Protocol):
    """Estimator of tensors only, for CUDA graphs."""

    def tensors(self, measurements: Sequence[Any]) -> tuple[Tensor, ...]:
        """Measurements of one size as tensors (case, ...), where estimates are made."""

    def of(self, *tensors: Tensor) -> ConditionedBatch:
        """Estimate the cases."""


EPS = 1e-5


class _FusedLevel(NamedTuple):
    """Decoder level for inference."""

    coarser: tuple[Tensor, Tensor] | None
    first: Tensor
    second: Tensor
    second_bias: Tensor
    norms: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
    film: tuple[Tensor, Tensor]
    groups: int


class _FusedCondition(NamedTuple):
    """Condition in (pixel, channel) layout."""

    levels: list[tuple[Tensor, Tensor, Tensor]]
    mean: Tensor
    amplitude: Tensor
    about: Tensor
    size: tuple[int, int]


@dataclass(frozen=True, eq=False)
class _FusedSampler:
    """Sampler for inference on one device and precision."""

    net: SamplerNet
    knowing: SamplerNet
    levels: tuple[_FusedLevel, ...]
    out: tuple[Tensor, Tensor]
    dtype: torch.dtype

    def noise_size(self, height: int, width: int) -> int:
        return self.net.noise_size(height, width)

    def know(self, told: Tensor, share: Tensor) -> _FusedCondition:
        """All that does not depend on noise; arguments as the sampler's."""
        mixed = self.dtype in (torch.bfloat16, torch.float16)
        with torch.autocast(told.device.type, self.dtype if mixed else None, enabled=mixed):
            return self.rows(self.knowing.know(told, share))

    def rows(self, known: Condition) -> _FusedCondition:
        levels = [
            tuple(to_rows(part.to(self.dtype)) for part in (level.first, level.last, level.loud))
            for level in known.levels
        ]
        mean, amplitude = (to_rows(x.float()) for x in (known.mean, known.amplitude))
        about = encode_fraction(known.share)
        return _FusedCondition(levels, mean, amplitude, about, known.size)  # type: ignore[arg-type]

    def draw(self, known: _FusedCondition, noise: Tensor) -> Tensor:
        """Residuals (case, sample, outputs, height, width) of what is known and noise."""
        with torch.autocast(noise.device.type, enabled=False):
            return self._draw(known, noise)

    def _draw(self, known: _FusedCondition, noise: Tensor) -> Tensor:
        cases, samples = noise.shape[:2]
        c = self.net.config
        shapes = self.net.noise_shapes(*known.size)
        of_case = known.about[:, None].expand(-1, samples, -1)
        numbers = torch.cat([of_case, noise[:, :, : c.numbers]], dim=2).flatten(0, 1)
        inner = self.net.embed_noise(numbers)
        noise, end = noise.flatten(0, 1), noise.shape[-1]
        x: Tensor | None = None
        for level, maps, shape in reversed(
            list(zip(self.levels, known.levels, shapes, strict=True))
        ):
            start = end - math.prod(shape)
            x = _level(level, x, maps, noise[:, start:end], inner, *shape[1:])
            end = start
        assert x is not None
        height, width = shapes[0][1:]
        weight, bias = self.out
        said = convolve(x, weight, height, width)[..., : c.outputs].float() + bias
        residuals = torch.addcmul(
            known.mean[:, None], unflatten_samples(said, cases), known.amplitude[:, None]
        )
        residuals = residuals.view(cases, samples, height, width, c.outputs).movedim(-1, 2)
        return residuals[..., : known.size[0], : known.size[1]] * c.scale


def _fold_sampler(
    net: SamplerNet, *, device: torch.device | str, dtype: torch.dtype
) -> _FusedSampler:
    """Rearrange a sampler to draw the same samples."""
    device = torch.device(device)
    levels = tuple(_fold_level(level, device, dtype) for level in net.levels)  # type: ignore[arg-type]
    assert net.out.bias is not None
    weight = weight_of(pad_to_multiple(net.out.weight.detach(), ALIGNED, 0), device, dtype)
    # Convolutions of this size run on tensor cores, which read channels last.
    knowing = deepcopy(net).to(dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    bias = net.out.bias.detach().float().to(device)
    return _FusedSampler(net, knowing, levels, (weight, bias), dtype)


def _fold_level(level: NoiseLevel, device: torch.device, dtype: torch.dtype) -> _FusedLevel:
    def plain(*tensors: Tensor | None) -> tuple[Any, ...]:
        return tuple(t.detach().float().to(device) for t in tensors if t is not None)

    coarser = None
    if level.coarser is not None:
        matrix = level.coarser.weight.detach()[:, :, 0, 0].T.to(device, dtype).contiguous()
        assert level.coarser.bias is not None
        coarser = matrix, level.coarser.bias.detach().to(device, dtype)
    first = pad_to_multiple(level.first.weight.detach(), ALIGNED, 1)
    norms = tuple(plain(norm.weight, norm.bias) for norm in level.norms)  # type: ignore[arg-type]
    return _FusedLevel(
        coarser=coarser,
        first=weight_of(first, device, dtype),
        second=weight_of(level.second.weight, device, dtype),
        second_bias=plain(level.second.bias)[0],
        norms=norms,  # type: ignore[arg-type]
        film=plain(level.film.weight, level.film.bias),
        groups=level.norms[0].groups,  # type: ignore[arg-type]
    )


def _level(
    level: _FusedLevel,
    x: Tensor | None,
    maps: tuple[Tensor, Tensor, Tensor],
    noise: Tensor,
    inner: Tensor,
    height: int,
    width: int,
) -> Tensor:
    first, last, loud = maps
    below = None
    if x is not None:
        assert level.coarser is not None
        matrix, bias = level.coarser
        below = torch.addmm(bias, x.flatten(0, 1), matrix).view(len(x), x.shape[1], -1)
    inputs = _mix_noise(below, noise, loud, level.first.shape[1], width)
    stretch, shift = F.linear(inner.float(), *level.film).chunk(2, dim=1)
    (weight, bias), last_norm = level.norms
    # The normalisation's own factor and offset, stretched and shifted.
    factor, offset = weight * (1 + stretch), torch.addcmul(shift, bias, 1 + stretch)
    raw = convolve(inputs, level.first, height, width)
    hidden = _norm_film_silu(raw, first, factor, offset, groups=level.groups, width=width)
    raw = convolve(hidden, level.second, height, width)
    return _norm_film_silu(
        raw, level.second_bias, *last_norm, groups=level.groups, width=width, after=last,
        below=below,
    )  # fmt: skip


def _mix_noise(
    below: Tensor | None, noise: Tensor, loud: Tensor, filled: int, width: int
) -> Tensor:
    """Combine coarser features and noise."""
    if fused := _kernels(noise):
        result: Tensor = fused.blend(below, noise, loud, filled, width)
        return result
    cases, pixels, count = loud.shape
    maps = unflatten_samples(noise.view(len(noise), count, pixels), cases).mT * loud[:, None]
    parts = [maps.flatten(0, 1).to(loud.dtype)]
    if below is not None:
        parts.insert(0, _doubled(below, width))
    joined = torch.cat(parts, dim=-1)
    return F.pad(joined, (0, filled - joined.shape[-1]))


def _norm_film_silu(
    x: Tensor,
    add: Tensor,
    stretch: Tensor,
    shift: Tensor,
    *,
    groups: int,
    width: int,
    after: Tensor | None = None,
    below: Tensor | None = None,
) -> Tensor:
    """Group normalisation, FiLM, SiLU and residual."""
    if fused := _kernels(x):
        result: Tensor = fused.finish(x, add, stretch, shift, after, below, groups, width, EPS)
        return result
    wide = _beside(x.float(), add) if add.ndim == 3 else x.float() + add
    grouped = wide.view(len(x), x.shape[1], groups, -1)
    var, mean = torch.var_mean(grouped, dim=(1, 3), keepdim=True, correction=0)
    normed = ((grouped - mean) * torch.rsqrt(var + EPS)).view(x.shape)
    y = F.silu(normed * stretch.unsqueeze(-2) + shift.unsqueeze(-2))
    if after is not None:
        y = _beside(y, after)
    if below is not None:
        y = y + _doubled(below, width)
    return y.to(x.dtype)


def _beside(samples: Tensor, cases: Tensor) -> Tensor:
    return (unflatten_samples(samples, len(cases)) + cases[:, None]).flatten(0, 1)


def _doubled(below: Tensor, width: int) -> Tensor:
    """Each pixel as a 2×2 block: (image, pixel / 4, channel) to (image, pixel, channel)."""
    image = below.view(len(below), -1, width // 2, below.shape[-1])
    return image.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2).flatten(1, 2)


def _kernels(x: Tensor) -> Any:
    return kernels if x.is_cuda and compiled.is_available() else None


_STEP = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(number: int) -> int:
    """The same 64 bits as torch's whole numbers have them."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _shifted(x: Tensor, by: int) -> Tensor:
    # torch shifts the sign along; it is taken away again.
    return (x >> by) & ((1 << (64 - by)) - 1)


def counter_normal(seeds: Tensor, count: int) -> Tensor:
    """Counter-based standard normal numbers."""
    if seeds.is_cuda and compiled.is_available():
        filled: Tensor = kernels.normal_numbers(
            seeds, count, *map(_signed, (_STEP, _FIRST, _SECOND))
        )
        return filled
    half = (count + 1) // 2
    place = torch.arange(1, half + 1, device=seeds.device)
    x = seeds[:, None] + place * _signed(_STEP)
    x = (x ^ _shifted(x, 30)) * _signed(_FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(_SECOND)
    x = x ^ _shifted(x, 31)
    first, second = ((part.float() + 0.5) * 2**-32 for part in (_shifted(x, 32), x & 0xFFFFFFFF))
    radius = (-2 * torch.log(first)).clamp_min(0).sqrt()
    angle = 2 * math.pi * second
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)[:, :count]


class _GraphedSampler:
    """Sampling as CUDA graphs for one input shape."""

    def __init__(
        self, net: Any, estimating: _TensorEstimator, *, together: int, graphs: bool = True
    ) -> None:
        self.net, self.estimating = net, estimating
        self.together, self.graphs = together, graphs
        self._key: tuple[Any, ...] = ()
        self._recording: _SamplerGraph | None = None

    @torch.no_grad()
    def __call__(
        self, measurements: Sequence[Any], *, samples: int, seeds: Sequence[int]
    ) -> Tensor:
        """Return posterior samples, (case, sample, height, width)."""
        given, tensors = len(seeds), self.estimating.tensors(measurements)
        if given < self._cases <= 2 * given:
            # A last batch that is smaller: filled up with its last case, it needs no recording.
            more = self._cases - given
            tensors = tuple(torch.cat([x, x[-1:].expand(more, *x.shape[1:])]) for x in tensors)
            seeds = [*seeds, *[seeds[-1]] * more]
        pixels = math.prod(tensors[0].shape[-2:]) * len(seeds)
        # Chunks of equally many samples, so that one graph serves.
        count = math.ceil(samples / max(1, self.together // pixels))
        chunk = math.ceil(samples / count)
        shapes = tuple((x.shape, x.dtype) for x in tensors)
        if count == 1 and chunk < self._chunk(shapes):
            # A scan that is measured in full asks for one sample: recording it, and the next scan's
            # first round after it, would take far longer than samples that nobody looks at.
            chunk = self._chunk(shapes)
        key = (chunk, *shapes)
        if self._recording is None or key != self._key:
            self._recording = None  # its memory is free for the next one
            self._recording, self._key = _SamplerGraph(self, tensors, chunk), key
        self._recording.know(tensors)
        images = []
        for first in range(0, count * chunk, chunk):
            numbers = range(first, first + chunk)
            rows = [mix_seeds(seed, j, 0) for seed in seeds for j in numbers]
            images.append(self._recording.draw(rows))
        return torch.cat(images, dim=1)[:given, :samples]

    def _chunk(self, shapes: tuple[object, ...]) -> int:
        return int(self._key[0]) if self._key[1:] == shapes else 0

    @property
    def _cases(self) -> int:
        return 0 if self._recording is None else self._recording.cases


class _SamplerGraph:
    """CUDA graphs and buffers of one input shape."""

    found: ConditionedBatch
    known: Any
    size: tuple[int, int]

    def __init__(self, owner: _GraphedSampler, tensors: Sequence[Tensor], samples: int) -> None:
        self.owner = owner
        self.inputs = [x.clone() for x in tensors]
        self.cases = cases = len(tensors[0])
        self.seeds = torch.zeros(cases * samples, dtype=torch.int64, device=tensors[0].device)
        self.steps = capture_graphs(self._know, self._draw) if owner.graphs else []

    def know(self, tensors: Sequence[Tensor]) -> None:
        """Take measurements, estimate them and compute what all of their samples share."""
        for buffer, x in zip(self.inputs, tensors, strict=True):
            buffer.copy_(x)
        if self.steps:
            self.steps[0][0].replay()
        else:
            self._know()

    def draw(self, seeds: Sequence[int]) -> Tensor:
        """Draw one chunk, (case, sample, height, width)."""
        self.seeds.copy_(torch.tensor(seeds))
        if not self.steps:
            return self._draw()
        graph, images = self.steps[1]
        graph.replay()
        drawn: Tensor = images.clone()
        return drawn

    def _know(self) -> None:
        self.found = self.owner.estimating.of(*self.inputs)
        told = self.found.inputs()
        self.size = (told.shape[-2], told.shape[-1])
        self.known = self.owner.net.know(told, self.found.share())

    def _draw(self) -> Tensor:
        noise = counter_normal(self.seeds, self.owner.net.noise_size(*self.size))
        return self.found.images(
            self.owner.net.draw(self.known, unflatten_samples(noise, self.cases))
        )


# Samples of each case, and how loud the noise is tried.
SAMPLES, TRIED = 8, (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5)


@torch.no_grad()
def fit_noise_scale(
    net: SamplerNet, cases: Iterable[tuple[ConditionedBatch, Tensor]]
) -> tuple[float, ...]:
    """Fit the noise scale so that spread matches error."""
    sums = torch.zeros(len(TRIED), len(ACCELERATIONS), 2, dtype=torch.float64)
    for number, (found, truth) in enumerate(cases):
        told, share = found.inputs(), found.share()
        places = nearest_acceleration(share).cpu()
        scale = found.scale.view(-1, 1, 1)
        rows = [mix_seeds(number, case) for case in range(len(told) * SAMPLES)]
        size = net.noise_size(*told.shape[-2:])
        noise = counter_normal(torch.tensor(rows, device=told.device), size)
        noise = noise.view(len(told), SAMPLES, size)
        known = net.know(told, share)
        for k, factor in enumerate(TRIED):
            images = found.images(net.draw(known, factor * noise)) / scale[:, None]
            error = (images.mean(1) - truth / scale).square().mean((1, 2))
            spread = images.var(1).mean((1, 2)) * (1 + 1 / SAMPLES)
            both = torch.stack([spread, error], dim=1).double().cpu()
            sums[k].index_add_(0, places, both)
    return tuple(round(float(factor), 4) for factor in _levelled(sums.numpy()))


def _levelled(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    seen = np.flatnonzero(sums[0, :, 1] > 0)
    if len(seen) == 0:
        return np.ones(sums.shape[1])
    ratio = np.sqrt(sums[..., 0] / np.maximum(sums[..., 1], 1e-300))
    # Louder noise spreads more; where a network does not follow, the loudest so far counts.
    rising = np.maximum.accumulate(ratio, axis=0)
    factors = [np.interp(1.0, rising[:, place], TRIED) for place in seen]
    return np.interp(np.arange(sums.shape[1]), seen, factors)


def _noise_scale_at(loudness: Tensor, share: Tensor) -> Tensor:
    """Interpolate the noise scale at a sampled fraction."""
    place = -torch.log2(share.clamp_min(1 / ACCELERATIONS[-1]))
    low = place.floor().long().clamp(0, len(loudness) - 2)
    part = place - low
    return loudness[low] * (1 - part) + loudness[low + 1] * part


class _ScaledNoise:
    """Sampler with rescaled noise."""

    def __init__(self, net: Any, loudness: Tensor) -> None:
        self.net, self.loudness = net, loudness

    def noise_size(self, height: int, width: int) -> int:
        size: int = self.net.noise_size(height, width)
        return size

    def know(self, told: Tensor, share: Tensor) -> tuple[Any, Tensor]:
        """All that does not depend on noise, and how loud it is for each case."""
        return self.net.know(told, share), _noise_scale_at(self.loudness, share)

    def draw(self, known: tuple[Any, Tensor], noise: Tensor) -> Tensor:
        """Residuals (case, sample, outputs, height, width) of what is known and noise."""
        known_here, factor = known
        residuals: Tensor = self.net.draw(known_here, noise * factor.view(-1, 1, 1))
        return residuals


# Pixels that are drawn together: a GPU wants many, a CPU's cache holds few.
TOGETHER = {"cuda": 2**22, "cpu": 2**17}


@torch.no_grad()
def _sample_images(
    net: SamplerNet | _FusedSampler | _ScaledNoise,
    found: ConditionedBatch,
    *,
    samples: int,
    seeds: Sequence[int],
    dtype: torch.dtype = torch.float32,
    compose: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Sample images around estimates."""
    if samples < 1:
        raise InputError(f"{samples} samples are asked for; ask for at least 1")
    told = found.inputs()
    kind = told.device.type
    height, width = told.shape[-2:]
    chunk = max(1, TOGETHER.get(kind, 2**17) // (len(told) * height * width))
    count = net.noise_size(height, width)
    images = []
    with torch.autocast(kind, dtype, enabled=dtype != torch.float32):
        known: Any = net.know(told, found.share())
    for start in range(0, samples, chunk):
        numbers = range(start, min(start + chunk, samples))
        rows = torch.tensor([[mix_seeds(seed, j, 0) for j in numbers] for seed in seeds])
        noise = counter_normal(rows.flatten().to(told.device), count)
        with torch.autocast(kind, dtype, enabled=dtype != torch.float32):
            residuals = net.draw(known, unflatten_samples(noise, len(seeds)))
        images.append((compose or found.images)(residuals.float()))
    return torch.cat(images, dim=1)


class SamplerRecovery:
    """Posterior samples by a sampler around estimates.

    Arguments:
        net: The sampler, on the device where it shall run.
        estimating: What makes estimated cases of measurements, on the same device.
        dtype: The precision of the sampler; by default bfloat16 on a GPU, float32 elsewhere.
        loudness: How loud noise is at each acceleration
            (:func:`taskuq.recover.sampler._sample.fit_noise_scale`); as it was learned by default.
    """

    def __init__(
        self,
        net: SamplerNet,
        estimating: Callable[[Sequence[Any]], ConditionedBatch],
        *,
        dtype: torch.dtype | None = None,
        loudness: Sequence[float] | None = None,
    ) -> None:
        self.loudness = loudness
        self.net, self.estimating = net.eval(), estimating
        device = next(net.parameters()).device
        on_gpu = device.type == "cuda"
        self.dtype = dtype or (torch.bfloat16 if on_gpu else torch.float32)
        self._drawing: Any = net
        self._replayed: _GraphedSampler | None = None
        if on_gpu and isinstance(net, SamplerNet):
            self._drawing = _fold_sampler(net, device=device, dtype=self.dtype)
        if loudness is not None:
            self._drawing = _ScaledNoise(self._drawing, torch.tensor(loudness, device=device))
        if on_gpu and isinstance(net, SamplerNet):
            of_tensors: Any = estimating
            if isinstance(of_tensors, _TensorEstimator):
                together = TOGETHER["cuda"]
                self._replayed = _GraphedSampler(self._drawing, of_tensors, together=together)
        # No draw is ever refused.
        self.rejected = 0

    def __call__(self, measurement: Any, *, samples: int, seed: int) -> Tensor:
        """Return posterior samples, (sample, height, width)."""
        return self.batch([measurement], samples=samples, seeds=[seed])[0]

    def batch(self, measurements: Sequence[Any], *, samples: int, seeds: Sequence[int]) -> Tensor:
        """Return posterior samples of several cases, (case, sample, height, width)."""
        if self._replayed is not None and samples > 0:
            return self._replayed(measurements, samples=samples, seeds=seeds)
        found = self.estimating(measurements)
        return _sample_images(self._drawing, found, samples=samples, seeds=seeds, dtype=self.dtype)

    def coil_images(self, measurement: Any, *, samples: int, seed: int) -> Tensor:
        """Return posterior samples before coils are combined, (sample, coil, height, width)."""
        found: Any = self.estimating([measurement])
        if not hasattr(found, "coils"):
            raise InputError("the estimates have no coils; ask for images")
        with_coils = _sample_images(
            self._drawing,
            found,
            samples=samples,
            seeds=[seed],
            dtype=self.dtype,
            compose=found.coils,
        )
        return with_coils[0]

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        # Recorded GPU work cannot travel to another process; it is recorded there again.
        again = partial(SamplerRecovery, dtype=self.dtype, loudness=self.loudness)
        return again, (self.net, self.estimating)
