"""Conditional generator of residuals around a point estimate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from taskuq._config import Channels, Depth, Natural, Positive, check_ranges
from taskuq.errors import InputError


@dataclass(frozen=True)
class SamplerConfig:
    """Size of a sampler: a large encoder runs once per case, a light decoder once per sample.

    The defaults are the preset ``paper`` for 320×320 images.

    Example:
        >>> SamplerConfig().levels, SamplerConfig().widths
        (5, (48, 96, 192, 288, 288))
    """

    in_channels: Channels = 6  #: Channels of the condition, a multiple of ``out_channels``.
    #: Channels of a residual: 2 for a complex image, 1 for a real one.
    out_channels: Channels = 2
    #: Channels at the encoder's first level; they double with each halving of the image.
    width: Channels = 48
    max_multiplier: Depth = 6  #: Maximum number of channels as a multiple of ``width``.
    #: Channels of the decoder at each level, finest first.
    decoder_channels: tuple[Channels, ...] = (32, 48, 64, 96, 128)
    #: Number of noise maps at each level; multiples of 8 are fastest on tensor cores.
    noise_channels: Channels = 8
    global_noise: Natural = 32  #: Number of noise values for the whole image.
    #: Residual that corresponds to an output of 1, in units of the estimate's scale.
    residual_scale: Positive = 0.3

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.decoder_channels:
            raise InputError("decoder_channels is empty; add levels", code="value.invalid")
        if self.in_channels % self.out_channels:
            text = f"in_channels must be a multiple of {self.out_channels}, got {self.in_channels}"
            raise InputError(text, code="value.invalid")

    @property
    def levels(self) -> int:
        """Number of resolution levels, including the full resolution."""
        return len(self.decoder_channels)

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of the encoder at each level, finest first."""
        return tuple(
            self.width * min(2**level, self.max_multiplier) for level in range(self.levels)
        )

    @property
    def size_multiple(self) -> int:
        return int(2 ** (self.levels - 1))


EMBEDDED = 128
# Values of the condition are in units of the case's own scale. Beyond this there is no image.
LARGEST = 100.0
# Logarithms of the smallest and the largest noise scale.
MIN_LOG_SCALE, MAX_LOG_SCALE = -6.0, 2.0


class _GroupNorm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.groups = math.gcd(8, channels)
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
            return F.group_norm(x, self.groups, weight, bias)


class _FiLMBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, embedding: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.norms = nn.ModuleList(_GroupNorm(outputs) for _ in range(2))
        self.film = nn.Linear(embedding, 2 * outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        hidden = _film_silu(self.norms[0](self.first(x)), self.film(embedding))
        y: Tensor = self.skip(x) + F.silu(self.norms[1](self.second(hidden)))
        return y


def _film_silu(x: Tensor, film: Tensor) -> Tensor:
    stretch, shift = film.to(x.dtype)[..., None, None].chunk(2, dim=1)
    return F.silu(x * (1 + stretch) + shift)


def _bounded_exp(logarithm: Tensor) -> Tensor:
    return torch.exp(logarithm.float().clamp(MIN_LOG_SCALE, MAX_LOG_SCALE))


class _LevelCondition(NamedTuple):
    first: Tensor
    last: Tensor
    noise_scale: Tensor


class Condition(NamedTuple):
    """Noise-independent features of a case, shared by all of its samples."""

    levels: list[_LevelCondition]  # finest first
    mean: Tensor  # (case, channel, height, width)
    noise_scale: Tensor  # same shape
    sampled_fraction: Tensor  # (case,)
    size: tuple[int, int]  # before padding

    def of(self, cases: slice) -> Condition:
        levels = [_LevelCondition(*(part[cases] for part in level)) for level in self.levels]
        mean, scale, fraction = self.mean, self.noise_scale, self.sampled_fraction
        return Condition(levels, mean[cases], scale[cases], fraction[cases], self.size)


class NoiseLevel(nn.Module):
    """Decoder level that combines coarser features, condition and new noise."""

    def __init__(self, inputs: int, coarser: int, width: int, noise: int, embedding: int) -> None:
        super().__init__()
        self.split = [width, width, noise]
        # The name of the weights in files.
        self.known = nn.Conv2d(inputs, 2 * width + noise, 3, padding=1)
        self.coarser = nn.Conv2d(coarser, width, 1) if coarser else None
        self.first = nn.Conv2d((width if coarser else 0) + noise, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.norms = nn.ModuleList(_GroupNorm(width) for _ in range(2))
        self.film = nn.Linear(embedding, 2 * width)

    def encode(self, features: Tensor) -> _LevelCondition:
        first, last, logarithm = self.known(features).split(self.split, dim=1)
        return _LevelCondition(first, last, _bounded_exp(logarithm).to(logarithm.dtype))

    def forward(
        self, x: Tensor | None, condition: _LevelCondition, noise: Tensor, embedding: Tensor
    ) -> Tensor:
        """Return features (case * sample, channel, height, width)."""
        scale = condition.noise_scale
        noise = (noise.to(scale.dtype) * scale[:, None]).flatten(0, 1)
        if x is None or self.coarser is None:
            below, inputs = None, noise
        else:
            below = F.interpolate(self.coarser(x), scale_factor=2, mode="nearest")
            inputs = torch.cat([below.to(noise.dtype), noise], dim=1)
        hidden = add_to_samples(self.first(inputs), condition.first)
        hidden = _film_silu(self.norms[0](hidden), self.film(embedding))
        hidden = F.silu(self.norms[1](self.second(hidden)))
        hidden = add_to_samples(hidden, condition.last)
        return hidden if below is None else hidden + below


def add_to_samples(samples: Tensor, cases: Tensor) -> Tensor:
    return (unflatten_samples(samples, len(cases)) + cases[:, None]).flatten(0, 1)


def unflatten_samples(rows: Tensor, cases: int) -> Tensor:
    """Reshape (case * sample, ...) to (case, sample, ...)."""
    return rows.view(cases, len(rows) // cases, *rows.shape[1:])


class SamplerNet(nn.Module):
    r"""Conditional one-step generator of residuals of a point estimate.

    .. math:: r^{(j)} = \epsilon\, G(c, m, v^{(j)}), \qquad v^{(j)} \sim \mathcal N(0, I)

    The condition :math:`c` consists of images that describe the estimate, :math:`m` is the sampled
    fraction and :math:`\epsilon` the residual scale. Each decoder level receives noise maps, scaled
    by features of the case, and noise values for the whole image.

    Args:
        config: Size of the network.

    Example:
        >>> net = SamplerNet(SamplerConfig(3, 1, width=4, decoder_channels=(4, 4)))
        >>> noise = torch.randn(2, 5, net.noise_size(10, 12))
        >>> net(torch.randn(2, 3, 10, 12), torch.tensor([0.1, 0.2]), noise).shape
        torch.Size([2, 5, 1, 10, 12])
    """

    sizes: Tensor

    def __init__(self, config: SamplerConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or SamplerConfig()
        self.embed = _embedding(2)
        self.embed_noise = _embedding(2 + c.global_noise)
        widths = c.widths
        self.down = nn.ModuleList(
            _FiLMBlock(before, after, EMBEDDED)
            for before, after in zip((c.in_channels, *widths[:-1]), widths, strict=True)
        )
        self.middle = _FiLMBlock(widths[-1], widths[-1], EMBEDDED)
        above = (*widths[1:], widths[-1])
        self.up = nn.ModuleList(
            _FiLMBlock(before + after, after, EMBEDDED)
            for before, after in zip(above, widths, strict=True)
        )
        coarser = (*c.decoder_channels[1:], 0)
        self.levels = nn.ModuleList(
            NoiseLevel(inputs, below, width, c.noise_channels, EMBEDDED)
            for inputs, below, width in zip(widths, coarser, c.decoder_channels, strict=True)
        )
        self.mean = nn.Conv2d(widths[0], c.out_channels, 3, padding=1)
        self.amplitude = nn.Conv2d(widths[0], c.out_channels, 3, padding=1)
        self.out = nn.Conv2d(c.decoder_channels[0], c.out_channels, 3, padding=1)
        for last in (self.mean, self.amplitude, self.out):
            nn.init.normal_(last.weight, std=1e-3)
            nn.init.zeros_(last.bias)  # type: ignore[arg-type]
        # By acceleration: running means of the losses, of half of the distance of two samples' raw
        # outputs, and of the norms of the gradients of images and task; the reward for spread.
        self.register_buffer("sizes", torch.zeros(len(ACCELERATIONS), NORMS + 3))

    def noise_shapes(self, height: int, width: int) -> list[tuple[int, int, int]]:
        """Return the number of maps, height and width of the noise at each level, finest first."""
        height, width = (side + -side % self.config.size_multiple for side in (height, width))
        return [
            (self.config.noise_channels, height // 2**level, width // 2**level)
            for level in range(self.config.levels)
        ]

    def noise_size(self, height: int, width: int) -> int:
        return self.config.global_noise + sum(map(math.prod, self.noise_shapes(height, width)))

    def forward(self, estimate: Tensor, sampled_fraction: Tensor, noise: Tensor) -> Tensor:
        """Sample residuals (case, sample, channel, height, width).

        Args:
            estimate: Images to condition on, (case, channel, height, width).
            sampled_fraction: Sampled fraction of each case, (case,).
            noise: Standard normal numbers, (case, sample, noise_size).
        """
        return self.decode(self.encode(estimate, sampled_fraction), noise)

    def encode(self, estimate: Tensor, sampled_fraction: Tensor) -> Condition:
        """Return the noise-independent features of each case; arguments as in :meth:`forward`."""
        if estimate.ndim != 4 or estimate.shape[1] != self.config.in_channels:
            text = f"the condition must be (case, {self.config.in_channels}, height, width), got "
            raise InputError(f"{text}{tuple(estimate.shape)}", code="shape.axes")
        height, width = estimate.shape[-2:]
        multiple = self.config.size_multiple
        padding = (0, -width % multiple, 0, -height % multiple)
        estimate = estimate.float().nan_to_num(0.0, LARGEST, -LARGEST).clamp(-LARGEST, LARGEST)
        # The first image and the differences of others, in units of a residual.
        first, *others = torch.split(estimate, self.config.out_channels, dim=1)
        x = torch.cat([first, *((x - first) / self.config.residual_scale for x in others)], dim=1)
        x = F.pad(x, padding, mode="replicate")
        embedding = self.embed(encode_fraction(sampled_fraction))
        skips = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else F.avg_pool2d(x, 2), embedding)
            skips.append(x)
        x = self.middle(x, embedding)
        features = []
        for level in reversed(range(self.config.levels)):
            if level < self.config.levels - 1:
                x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = self.up[level](torch.cat([x, skips[level]], dim=1), embedding)
            features.append(x)
        pairs = zip(self.levels, reversed(features), strict=True)
        levels = [level.encode(part) for level, part in pairs]  # type: ignore[operator]
        scale = _bounded_exp(self.amplitude(x))
        return Condition(levels, self.mean(x), scale, sampled_fraction, (height, width))

    def decode(self, condition: Condition, noise: Tensor) -> Tensor:
        """Return residuals (case, sample, channel, height, width)."""
        cases, samples = noise.shape[:2]
        height, width = condition.size
        shapes = self.noise_shapes(height, width)
        parts = [self.config.global_noise, *map(math.prod, shapes)]
        numbers, *maps = torch.split(noise, parts, dim=2)
        fraction = encode_fraction(condition.sampled_fraction)[:, None].expand(-1, samples, -1)
        embedding = self.embed_noise(torch.cat([fraction, numbers], dim=2).flatten(0, 1))
        x: Tensor | None = None
        for level, of_level, part, shape in reversed(
            list(zip(self.levels, condition.levels, maps, shapes, strict=True))
        ):
            x = level(x, of_level, part.reshape(cases, samples, *shape), embedding)
        noisy = unflatten_samples(self.out(x), cases).float() * condition.noise_scale[:, None]
        residual = noisy + condition.mean[:, None]
        scaled: Tensor = residual[..., :height, :width] * self.config.residual_scale
        return scaled


def _embedding(inputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, EMBEDDED), nn.SiLU(), nn.Linear(EMBEDDED, EMBEDDED))


def encode_fraction(fraction: Tensor) -> Tensor:
    fraction = fraction.clamp_min(1e-3)
    return torch.stack([torch.log(fraction), fraction], dim=1)


# The accelerations of running means; others count as the nearest.
ACCELERATIONS = (1, 2, 4, 8, 16, 32, 64)
# Number of losses: of the images and of a task network's raw output, output and features. The
# first column of the norms of gradients.
SCORES, NORMS = 4, 5


def nearest_acceleration(fraction: Tensor) -> Tensor:
    """Return the index in ``ACCELERATIONS`` nearest to a sampled fraction, integers (case,)."""
    index = torch.round(-torch.log2(fraction.clamp_min(1e-6))).long()
    return index.clamp(0, len(ACCELERATIONS) - 1)
