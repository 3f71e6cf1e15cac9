"""Posterior samples of the flow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from taskuq._seeds import mix_seeds
from taskuq.errors import InputError
from taskuq.measure._coils import to_channels, to_complex
from taskuq.measure._fourier import data_consistency_1d
from taskuq.recover._compiled import capture_graphs
from taskuq.recover.flow._folded import FusedFlow, fold
from taskuq.recover.flow._model import ConditionalFlow, FlowConfig, inflation_at
from taskuq.training._determinism import gaussian_rows

# Sensitivities are smooth: an image smoothed over this share of its side shows their ratios.
SMOOTHING = 2.5 / 128
TINY = 1e-6


class _CoilRotation(NamedTuple):
    """Per-pixel unitary coil combination; the first channel is the combined image."""

    phase: Tensor
    mirror: Tensor

    @classmethod
    def of(cls, measured: Tensor) -> _CoilRotation:
        """The turn that zero-filled images ask for."""
        low = gaussian_blur(measured, SMOOTHING * measured.shape[-1])
        size = low.abs().square().sum(1, keepdim=True).sqrt()
        along = low / size.clamp_min(TINY)
        first = along[:, :1]
        phase = torch.where(first.abs() > TINY, first / first.abs().clamp_min(TINY), 1)
        mirror = along * phase.conj()
        mirror = torch.cat([mirror[:, :1] + 1, mirror[:, 1:]], dim=1)
        norm = mirror.abs().square().sum(1, keepdim=True).sqrt()
        return cls(phase, mirror * (math.sqrt(2) / norm))

    def __call__(self, images: Tensor) -> Tensor:
        """_CoilRotation coil images, complex (case, coil, height, width)."""
        return -self.phase.conj() * self._reflected(images)

    def back(self, turned: Tensor) -> Tensor:
        """Undo the turn."""
        return -self.phase * self._reflected(turned)

    def with_samples(self) -> _CoilRotation:
        """The same turn for images (case, sample, coil, height, width)."""
        return _CoilRotation(self.phase[:, None], self.mirror[:, None])

    def _reflected(self, images: Tensor) -> Tensor:
        return images - self.mirror * (self.mirror.conj() * images).sum(-3, keepdim=True)


def gaussian_blur(x: Tensor, width: float) -> Tensor:
    """Blur with periodic boundaries."""
    for axis in (-1, -2):
        frequency = torch.fft.fftfreq(x.shape[axis], device=x.device)
        window = torch.exp(-2 * (math.pi * width * frequency) ** 2).to(x.real.dtype)
        window = window if axis == -1 else window[:, None]
        blurred = torch.fft.ifft(torch.fft.fft(x, dim=axis) * window, dim=axis)
        x = blurred if x.is_complex() else blurred.real
    return x


# The U-Net: real channels to its features and what it makes of them.
Predict = Callable[[Tensor], tuple[Tensor, Tensor]]


class PosteriorMean(NamedTuple):
    """Posterior mean and condition of a measurement."""

    turn: _CoilRotation | None
    images: tuple[Tensor, ...]
    told: Tensor

    def turned(self, images: Tensor) -> Tensor:
        """Coil images as the flow sees them."""
        return images if self.turn is None else self.turn(images)

    def back(self, turned: Tensor) -> Tensor:
        return turned if self.turn is None else self.turn.back(turned)


def posterior_mean(
    config: FlowConfig, measured: Tensor, mask: Tensor, predict: Predict
) -> PosteriorMean:
    """Predict the posterior mean with the conditioning U-Net."""
    turn = _CoilRotation.of(measured) if config.turned else None
    start = PosteriorMean(turn, (), to_channels(measured if turn is None else turn(measured)))
    if not config.passes:
        return start
    zero_filled, lines = start.told, mask[:, None, None]
    image, images = measured, []
    features = said = seen = zero_filled
    for _ in range(config.passes):
        features, said = predict(torch.cat([zero_filled, seen], dim=1))
        image = image + start.back(to_complex(said))
        image = data_consistency_1d(image, measured, lines)
        images.append(image)
        seen = to_channels(start.turned(image))
    share = mask.to(said.dtype).mean(1).view(-1, 1, 1, 1).expand(-1, 1, *said.shape[-2:])
    told = torch.cat([features.to(said.dtype), zero_filled, seen, said, share], dim=1)
    return PosteriorMean(turn, tuple(images), told)


ATTEMPTS = 11


class FlowSamples(NamedTuple):
    """Posterior samples of a batch and rejection counts.

    Attributes:
        images: Complex coil images (case, sample, coil, height, width), or what ``finish`` made.
        rejected: How many draws of each case were beyond the limit and drawn again, (case,).
    """

    images: Tensor
    rejected: Tensor


class FlowSampler:
    """Sample the posterior of a conditional flow.

    A sample depends on its case's measurement, the case's seed and its own index, not on how
    many samples or cases are drawn together.

    Arguments:
        flow: The flow; it is not changed, and can stay on the CPU while the draws run elsewhere.
        device: Where to draw; by default where the flow is.
        dtype: The precision of the convolutions; by default bfloat16 on a GPU, float32 elsewhere.
        memory: Bytes that the samples of one chunk may take beside the weights.
        graphs: Whether to record GPU work once and replay it, which saves the launches.
        finish: Applied to complex coil images (image, coil, height, width) of each chunk, for
            instance :func:`taskuq.measure._coils.rss`; part of the recorded work.

    Example:
        >>> from taskuq.recover.flow._model import FlowConfig
        >>> flow = ConditionalFlow(FlowConfig(coils=1, unet_width=4, unet_pools=2,
        ...                                   condition_channels=4, steps=2, limit=1e9))
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
        self.config = flow.config
        self.shapes = flow.latent_shapes
        self.widening = flow.widening.to(self.device) if flow.config.passes else None
        self.folded: FusedFlow = fold(
            flow, device=self.device, dtype=dtype or (torch.bfloat16 if on_gpu else torch.float32)
        )
        self.memory, self.graphs = memory, graphs and on_gpu
        self.finish = finish or (lambda images: images)
        self._recorded: dict[tuple[int, ...], _FlowGraph] = {}

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
        """Draw samples for a batch of cases."""
        self._check(measured, mask, samples, seeds)
        y = measured.to(self.device, torch.complex64)
        scale = case_scale(y) if self.config.normalise else y.real.new_ones(len(y))
        y = y / scale.view(-1, 1, 1, 1)
        # Chunks of equally many samples, so that one graph serves.
        count = math.ceil(samples / self.chunk_limit(*y.shape[-2:]))
        chunk = math.ceil(samples / count)
        images, rejected = [], []
        for batch in self._batches(len(y), samples, *y.shape[-2:]):
            recording = self._recording(len(batch), chunk, *y.shape[-2:])
            recording.measure(y[batch], scale[batch], mask.to(self.device)[batch])
            of_batch = [seeds[i] for i in batch]
            drawn, counts = self._draw(recording, of_batch, samples, count, temperature)
            images.append(drawn)
            rejected.append(counts)
        return FlowSamples(torch.cat(images)[: len(y)], torch.cat(rejected)[: len(y)])

    def chunk_limit(self, height: int, width: int) -> int:
        """How many samples fit into the memory budget at one time."""
        c = self.config
        bytes_each = 2 if self.folded.dtype == torch.bfloat16 else 4
        hidden = self.folded.layers[0].steps[0].subnet.second_bias.shape[0]
        # Three hidden maps and three states of the finest layer, then the images' transforms.
        layer = height * width / 4 * (3 * hidden * bytes_each + 3 * 4 * c.channels * 4)
        finish = 6 * height * width * c.channels * 4
        return max(1, int(self.memory / max(layer, finish)))

    def _batches(self, cases: int, samples: int, height: int, width: int) -> list[list[int]]:
        """Cases that are drawn together, equally many each time, so that one graph serves."""
        most = max(1, self.chunk_limit(height, width) // samples)
        size = math.ceil(cases / math.ceil(cases / most))
        places = [min(i, cases - 1) for i in range(size * math.ceil(cases / size))]
        return [places[i : i + size] for i in range(0, len(places), size)]

    def _draw(
        self,
        recording: _FlowGraph,
        seeds: Sequence[int],
        samples: int,
        count: int,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        cases, chunk = recording.cases, recording.samples
        images, bad = [], []
        for i in range(count):
            rows = [mix_seeds(seed, i * chunk + j, 0) for seed in seeds for j in range(chunk)]
            drawn, beyond = recording.draw(rows, temperature)
            images.append(drawn.reshape(cases, chunk, *drawn.shape[1:]).clone())
            bad.append(beyond.view(cases, chunk).clone())
        result = torch.cat(images, 1)[:, :samples]
        beyond = torch.cat(bad, 1)[:, :samples]
        rejected = torch.zeros(cases, dtype=torch.long)
        attempt = 0
        while bool(beyond.any()):
            attempt += 1
            if attempt == ATTEMPTS:
                raise InputError(
                    f"a sample is not finite or beyond {self.config.limit} after {ATTEMPTS} draws; "
                    "train the flow longer, or give a lower temperature or a higher limit"
                )
            rejected += beyond.sum(1).cpu()
            self._redraw(recording, result, beyond, seeds, attempt, temperature)
        return result, rejected

    @staticmethod
    def _redraw(
        recording: _FlowGraph,
        result: Tensor,
        beyond: Tensor,
        seeds: Sequence[int],
        attempt: int,
        temperature: float,
    ) -> None:
        cases, chunk = recording.cases, recording.samples
        for column in range(0, beyond.shape[1], chunk):
            part = beyond[:, column : column + chunk]
            if not bool(part.any()):
                continue
            rows = [mix_seeds(s, column + j, attempt) for s in seeds for j in range(chunk)]
            drawn, again = recording.draw(rows, temperature)
            drawn = drawn.reshape(cases, chunk, *drawn.shape[1:])[:, : part.shape[1]]
            result[:, column : column + chunk][part] = drawn[part]
            part &= again.view(cases, chunk)[:, : part.shape[1]]

    def _recording(self, cases: int, samples: int, height: int, width: int) -> _FlowGraph:
        key = (cases, samples, height, width)
        if key not in self._recorded:
            # Recorded work holds its memory; keep that of one shape at a time.
            self._recorded.clear()
            self._recorded[key] = _FlowGraph(self, *key)
        return self._recorded[key]

    def _check(self, y: Tensor, mask: Tensor, samples: int, seeds: Sequence[int]) -> None:
        c = self.config
        if not y.is_complex() or y.ndim != 4 or y.shape[1] != c.coils:
            raise InputError(
                f"zero-filled images have shape {tuple(y.shape)} and type {y.dtype}; give complex "
                f"images (case, {c.coils} coils, height, width)"
            )
        if any(side % c.size_multiple for side in y.shape[-2:]):
            raise InputError(
                f"images of {y.shape[-2]}×{y.shape[-1]} do not fit; this flow needs sides "
                f"divisible by {c.size_multiple}"
            )
        if not bool(torch.isfinite(torch.view_as_real(y)).all()):
            raise InputError(
                "zero-filled images are not finite; look for NaN or overflow in the k-space"
            )
        if mask.shape != (len(y), y.shape[-1]):
            raise InputError(
                f"masks have shape {tuple(mask.shape)}; give one for each case, "
                f"{(len(y), y.shape[-1])}"
            )
        if samples < 1 or len(seeds) != len(y):
            raise InputError(
                f"got {samples} samples and {len(seeds)} seeds for {len(y)} cases; give at least "
                "one sample and one seed for each case"
            )


def case_scale(y: Tensor) -> Tensor:
    """Return the 95 % quantile of each case's magnitudes, at least a hundredth of the largest."""
    magnitudes = y.abs().flatten(1)
    rank = max(1, math.ceil(0.95 * magnitudes.shape[1]))
    if y.is_cuda:
        # Selection would use one multiprocessor for a case; sorting uses all of them.
        quantile = magnitudes.sort(dim=1).values[:, rank - 1]
    else:
        quantile = magnitudes.kthvalue(rank, dim=1).values
    return torch.maximum(quantile, magnitudes.amax(1) / 100).clamp_min(
        torch.finfo(torch.float32).tiny
    )


def _times(x: Tensor, sizes: Tensor) -> Tensor:
    """Complex images (case * sample, coil, ...) times sizes of their real channels, by case."""
    samples = len(x) // len(sizes)
    pairs = torch.view_as_real(x).view(len(sizes), samples, *x.shape[1:], 2)
    sizes = sizes.view(len(sizes), -1, 2, *sizes.shape[2:]).movedim(2, -1)[:, None]
    return torch.view_as_complex((pairs * sizes).flatten(0, 1))


class _FlowGraph:
    """CUDA graphs and buffers of one input shape."""

    def __init__(
        self, sampler: FlowSampler, cases: int, samples: int, height: int, width: int
    ) -> None:
        self.sampler, self.cases, self.samples = sampler, cases, samples
        c, device = sampler.config, sampler.device
        self.shapes = sampler.shapes(height, width)
        self.y = torch.zeros(cases, c.coils, height, width, dtype=torch.complex64, device=device)
        self.scale = torch.ones(cases, 1, 1, 1, 1, device=device)
        self.mask = torch.zeros(cases, 1, 1, 1, width, dtype=torch.bool, device=device)
        numbers = sum(math.prod(shape) for shape in self.shapes)
        self.z = torch.zeros(cases * samples, numbers, device=device)
        self.temperature = torch.ones((), device=device)
        self.shares: list[list[Tensor]] = []
        # What a flow with a mean, or of turned coils, also knows of a case.
        self.sizes: Tensor | None = None
        self.turn: _CoilRotation | None = None
        self.mean: Tensor | None = None
        # What is the same for all samples of a case, and a chunk of samples.
        self.steps = capture_graphs(self._share, self._images) if sampler.graphs else []

    def measure(self, y: Tensor, scale: Tensor, mask: Tensor) -> None:
        """Take a measurement and compute what all of its samples share."""
        self.y.copy_(y)
        self.scale.copy_(scale.view(-1, 1, 1, 1, 1))
        self.mask.copy_(mask.view(self.mask.shape))
        if self.steps:
            self.steps[0][0].replay()
        else:
            self._share()

    def draw(self, seeds: Sequence[int], temperature: float) -> tuple[Tensor, Tensor]:
        """Draw one chunk; the result is overwritten by the next one."""
        gaussian_rows(self.z, seeds)
        self.temperature.fill_(temperature)
        if not self.steps:
            return self._images()
        graph, drawn = self.steps[1]
        graph.replay()
        images, beyond = drawn
        return images, beyond

    def _share(self) -> None:
        folded, c, mask = self.sampler.folded, self.sampler.config, self.mask[:, 0, 0, 0]
        found = posterior_mean(c, self.y, mask, folded.unet.predict)
        self.shares = folded.shares(found.told)
        self.turn = None if found.turn is None else found.turn.with_samples()
        self.mean = found.images[-1][:, None] if found.images else None
        sizes = folded.sizes(found.told)
        if sizes is not None and self.sampler.widening is not None:
            self.sizes = sizes * inflation_at(self.sampler.widening, mask)[:, :, None, None]

    def _images(self) -> tuple[Tensor, Tensor]:
        c = self.sampler.config
        latents, start = [], 0
        for channels, height, width in self.shapes:
            stop = start + channels * height * width
            latents.append(self.z[:, start:stop].view(-1, height, width, channels))
            start = stop
        x = self.sampler.folded.inverse([z * self.temperature for z in latents], self.shares)
        if self.sizes is not None:
            x = _times(x, self.sizes)
        # Not "above the limit": NaN must count as beyond it too.
        largest = torch.linalg.vector_norm(torch.view_as_real(x).flatten(1), math.inf, dim=1)
        beyond = ~(largest <= c.limit)
        images = x.view(self.cases, self.samples, *x.shape[1:])
        if self.turn is not None:
            images = self.turn.back(images)
        if self.mean is not None:
            images = self.mean + images
        images = data_consistency_1d(images, self.y[:, None], self.mask)
        if c.normalise:
            images = images * self.scale
        return self.sampler.finish(images.flatten(0, 1)), beyond
