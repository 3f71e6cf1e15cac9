"""Conditional generator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from taskuq.errors import InputError


@dataclass(frozen=True)
class SamplerConfig:
    """The size of a sampler: a large part that runs once for a case, a light one for each sample.

    The default is the preset ``paper``, for 320×320.

    Arguments:
        inputs: Channels that the network is told of an estimate: images of ``outputs`` channels,
            the estimate first.
        outputs: Channels of a residual: 2 for a complex image, 1 for a real one.
        width: Channels of the first level of the part that knows no noise. They double with each
            halving of the image.
        widest: How many times the width there is at most.
        drawn: Channels of the part that draws, for each level, the finest first.
        noise: Noise maps at each level; tensor cores want a multiple of 8.
        numbers: Noise numbers for the whole image.
        scale: A residual of this size, in units of the estimate's scale, is an output of 1.

    Example:
        >>> SamplerConfig().levels, SamplerConfig().widths
        (5, (48, 96, 192, 288, 288))
    """

    inputs: int = 6
    outputs: int = 2
    width: int = 48
    widest: int = 6
    drawn: tuple[int, ...] = (32, 48, 64, 96, 128)
    noise: int = 8
    numbers: int = 32
    scale: float = 0.3

    def __post_init__(self) -> None:
        sizes = (self.inputs, self.outputs, self.width, self.widest, *self.drawn, self.noise)
        if not self.drawn or min(sizes) < 1 or self.numbers < 0 or self.scale <= 0:
            raise InputError(
                f"the sampler has {self.inputs} inputs, {self.outputs} outputs, width "
                f"{self.width}, drawn {list(self.drawn)}, noise {self.noise}, numbers "
                f"{self.numbers} and scale {self.scale}; give positive numbers"
            )

        if self.inputs % self.outputs:
            raise InputError(
                f"the sampler has {self.inputs} inputs and {self.outputs} outputs; inputs are "
                "whole images of as many channels as outputs"
            )

    @property
    def levels(self) -> int:
        """How many sizes of the image there are, the image itself included."""
        return len(self.drawn)

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of the part that knows no noise, for each level, the finest first."""
        return tuple(self.width * min(2**level, self.widest) for level in range(self.levels))

    @property
    def size_multiple(self) -> int:
        """Sides are filled up to a multiple of this."""
        return int(2 ** (self.levels - 1))


EMBEDDED = 128
# Told values are in units of the case's own scale. Beyond this there is no image.
LARGEST = 100.0
# Logarithms of how loud noise is, and of how far residuals are from their mean.
QUIETEST, LOUDEST = -6.0, 2.0


class _GroupNorm(nn.Module):
    """Group normalisation in the input's precision."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.groups = math.gcd(8, channels)
        self.weight, self.bias = (
            nn.Parameter(torch.ones(channels)),
            nn.Parameter(torch.zeros(channels)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (image, channel, height, width)."""
        with torch.autocast(x.device.type, enabled=False):
            weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
            return F.group_norm(x, self.groups, weight, bias)


class _FiLMBlock(nn.Module):
    """Residual block conditioned on the sampled fraction (FiLM)."""

    def __init__(self, inputs: int, outputs: int, inner: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.norms = nn.ModuleList(_GroupNorm(outputs) for _ in range(2))
        self.film = nn.Linear(inner, 2 * outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, inner: Tensor) -> Tensor:
        """Map (case, inputs, height, width) to (case, outputs, height, width)."""
        hidden = _modulated(self.norms[0](self.first(x)), self.film(inner))
        hidden = F.silu(self.norms[1](self.second(hidden)))
        y: Tensor = self.skip(x) + hidden
        return y


def _modulated(x: Tensor, film: Tensor) -> Tensor:
    stretch, shift = film.to(x.dtype)[..., None, None].chunk(2, dim=1)
    return F.silu(x * (1 + stretch) + shift)


def _positive(logarithm: Tensor) -> Tensor:
    """A factor that reaches from nearly nothing to several times what it is at first."""
    return torch.exp(logarithm.float().clamp(QUIETEST, LOUDEST))


class _LevelCondition(NamedTuple):
    """Contribution of the condition to one decoder level."""

    first: Tensor
    last: Tensor
    loud: Tensor


class Condition(NamedTuple):
    """Noise-independent features of a case, shared by all of its samples."""

    levels: list[_LevelCondition]
    mean: Tensor
    amplitude: Tensor
    share: Tensor
    size: tuple[int, int]


class NoiseLevel(nn.Module):
    """Decoder level: coarser features, condition, fresh noise."""

    def __init__(self, known: int, coarser: int, drawn: int, noise: int, inner: int) -> None:
        super().__init__()
        self.drawn, self.noise = drawn, noise
        self.known = nn.Conv2d(known, 2 * drawn + noise, 3, padding=1)
        self.coarser = nn.Conv2d(coarser, drawn, 1) if coarser else None
        self.first = nn.Conv2d((drawn if coarser else 0) + noise, drawn, 3, padding=1, bias=False)
        self.second = nn.Conv2d(drawn, drawn, 3, padding=1)
        self.norms = nn.ModuleList(_GroupNorm(drawn) for _ in range(2))
        self.film = nn.Linear(inner, 2 * drawn)

    def share(self, features: Tensor) -> _LevelCondition:
        first, last, loud = self.known(features).split([self.drawn, self.drawn, self.noise], dim=1)
        return _LevelCondition(first, last, _positive(loud).to(loud.dtype))

    def forward(
        self, x: Tensor | None, shared: _LevelCondition, noise: Tensor, inner: Tensor
    ) -> Tensor:
        """Draw (case * sample, drawn, height, width)."""
        noise = (noise.to(shared.loud.dtype) * shared.loud[:, None]).flatten(0, 1)
        if x is None or self.coarser is None:
            below, inputs = None, noise
        else:
            below = F.interpolate(self.coarser(x), scale_factor=2, mode="nearest")
            inputs = torch.cat([below.to(noise.dtype), noise], dim=1)
        hidden = _beside(self.first(inputs), shared.first)
        hidden = _modulated(self.norms[0](hidden), self.film(inner))
        hidden = F.silu(self.norms[1](self.second(hidden)))
        hidden = _beside(hidden, shared.last)
        return hidden if below is None else hidden + below


def _beside(samples: Tensor, cases: Tensor) -> Tensor:
    """Add what belongs to a case to all of its samples."""
    return (unflatten_samples(samples, len(cases)) + cases[:, None]).flatten(0, 1)


def unflatten_samples(rows: Tensor, cases: int) -> Tensor:
    """Reshape (case * sample, ...) to (case, sample, ...)."""
    return rows.view(cases, len(rows) // cases, *rows.shape[1:])


class SamplerNet(nn.Module):
    r"""A sampler: noise to residuals of an estimate, in one evaluation.

    .. math:: r^{(j)} = \epsilon\, G(\text{told}, m, v^{(j)}), \qquad v^{(j)} \sim \mathcal N(0, I)

    Told are channels that describe the estimate (:class:`taskuq.recover.sampler._sample`), and
    the share :math:`m` that was measured. Noise enters every level of the part that draws as maps,
    made louder or quieter by the case's features, and all of it as numbers for the whole image;
    features also say how far residuals are from their mean.

    Arguments:
        config: The size.

    Example:
        >>> net = SamplerNet(SamplerConfig(inputs=3, outputs=1, width=4, drawn=(4, 4)))
        >>> noise = torch.randn(2, 5, net.noise_size(10, 12))
        >>> net(torch.randn(2, 3, 10, 12), torch.tensor([0.1, 0.2]), noise).shape
        torch.Size([2, 5, 1, 10, 12])
    """

    sizes: Tensor

    def __init__(self, config: SamplerConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or SamplerConfig()
        self.embed = _embedding(2)
        self.embed_noise = _embedding(2 + c.numbers)
        widths = c.widths
        self.down = nn.ModuleList(
            _FiLMBlock(before, after, EMBEDDED)
            for before, after in zip((c.inputs, *widths[:-1]), widths, strict=True)
        )
        self.middle = _FiLMBlock(widths[-1], widths[-1], EMBEDDED)
        above = (*widths[1:], widths[-1])
        self.up = nn.ModuleList(
            _FiLMBlock(before + after, after, EMBEDDED)
            for before, after in zip(above, widths, strict=True)
        )
        coarser = (*c.drawn[1:], 0)
        self.levels = nn.ModuleList(
            NoiseLevel(known, below, drawn, c.noise, EMBEDDED)
            for known, below, drawn in zip(widths, coarser, c.drawn, strict=True)
        )
        self.mean = nn.Conv2d(widths[0], c.outputs, 3, padding=1)
        self.amplitude = nn.Conv2d(widths[0], c.outputs, 3, padding=1)
        self.out = nn.Conv2d(c.drawn[0], c.outputs, 3, padding=1)
        for last in (self.mean, self.amplitude, self.out):
            nn.init.normal_(last.weight, std=1e-3)
            nn.init.zeros_(last.bias)  # type: ignore[arg-type]
        # How large each score, and the gradients of images and task, are at each acceleration.
        self.register_buffer("sizes", torch.zeros(len(ACCELERATIONS), SCORES + GRADIENTS))

    def noise_shapes(self, height: int, width: int) -> list[tuple[int, int, int]]:
        """Maps, height and width of the noise at each level, the finest first."""
        height, width = (side + -side % self.config.size_multiple for side in (height, width))
        return [
            (self.config.noise, height // 2**level, width // 2**level)
            for level in range(self.config.levels)
        ]

    def noise_size(self, height: int, width: int) -> int:
        """How many normal numbers a sample of an image takes."""
        return self.config.numbers + sum(map(math.prod, self.noise_shapes(height, width)))

    def forward(self, told: Tensor, share: Tensor, noise: Tensor) -> Tensor:
        """Draw residuals (case, sample, outputs, height, width).

        Arguments:
            told: (case, inputs, height, width).
            share: The measured share, (case,).
            noise: Normal numbers, (case, sample, noise_size).
        """
        return self.draw(self.know(told, share), noise)

    def know(self, told: Tensor, share: Tensor) -> Condition:
        """All that does not depend on noise; arguments as in forward."""
        if told.ndim != 4 or told.shape[1] != self.config.inputs:
            raise InputError(
                f"the sampler is told {tuple(told.shape)}; give (case, {self.config.inputs} "
                "channels, height, width)"
            )
        height, width = told.shape[-2:]
        multiple = self.config.size_multiple
        x = F.pad(
            self._differences(told), (0, -width % multiple, 0, -height % multiple), mode="replicate"
        )
        inner = self.embed(encode_fraction(share))
        skips = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else F.avg_pool2d(x, 2), inner)
            skips.append(x)
        x = self.middle(x, inner)
        features = []
        for level in reversed(range(self.config.levels)):
            if level < self.config.levels - 1:
                x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = self.up[level](torch.cat([x, skips[level]], dim=1), inner)
            features.append(x)
        levels = [
            level.share(known)  # type: ignore[operator]
            for level, known in zip(self.levels, reversed(features), strict=True)
        ]
        fine = features[-1]
        amplitude = _positive(self.amplitude(fine))
        return Condition(levels, self.mean(fine), amplitude, share, (height, width))

    def _differences(self, told: Tensor) -> Tensor:
        """The first image as it is, and what others differ from it, in units of a residual."""
        told = told.float().nan_to_num(0.0, LARGEST, -LARGEST).clamp(-LARGEST, LARGEST)
        first, *others = torch.split(told, self.config.outputs, dim=1)
        return torch.cat([first, *((x - first) / self.config.scale for x in others)], dim=1)

    def draw(self, known: Condition, noise: Tensor) -> Tensor:
        """Residuals (case, sample, outputs, height, width) of what is known and noise."""
        cases, samples = noise.shape[:2]
        height, width = known.size
        shapes = self.noise_shapes(height, width)
        parts = [self.config.numbers, *map(math.prod, shapes)]
        numbers, *maps = torch.split(noise, parts, dim=2)
        about = encode_fraction(known.share)[:, None].expand(-1, samples, -1)
        inner = self.embed_noise(torch.cat([about, numbers], dim=2).flatten(0, 1))
        x: Tensor | None = None
        for level, shared, part, shape in reversed(
            list(zip(self.levels, known.levels, maps, shapes, strict=True))
        ):
            x = level(x, shared, part.reshape(cases, samples, *shape), inner)
        noisy = unflatten_samples(self.out(x), cases).float() * known.amplitude[:, None]
        residual = noisy + known.mean[:, None]
        scaled: Tensor = residual[..., :height, :width] * self.config.scale
        return scaled


def _embedding(inputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, EMBEDDED), nn.SiLU(), nn.Linear(EMBEDDED, EMBEDDED))


def encode_fraction(share: Tensor) -> Tensor:
    """Encode the sampled fraction."""
    share = share.clamp_min(1e-3)
    return torch.stack([torch.log(share), share], dim=1)


# The accelerations for which it is known how large scores are; others count as the nearest.
ACCELERATIONS = (1, 2, 4, 8, 16, 32, 64)
# Images, and what a task network says: its raw output, its output, its features.
SCORES = 4
# Of the images' own score and of the task's, at the images.
GRADIENTS = 2


def nearest_acceleration(share: Tensor) -> Tensor:
    """The place in ``ACCELERATIONS`` that is nearest to a measured share, integers (case,)."""
    place = torch.round(-torch.log2(share.clamp_min(1e-6))).long()
    return place.clamp(0, len(ACCELERATIONS) - 1)
