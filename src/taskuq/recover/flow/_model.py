"""Conditional normalising flow and its layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from taskuq._config import (
    Channels,
    Coils,
    Depth,
    Natural,
    NonNegative,
    Positive,
    Seed,
    check_ranges,
)
from taskuq.errors import InputError
from taskuq.recover._varnet import UNet

# Tensor cores read channels by eights.
ALIGNED = 8


class _ActNorm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    @torch.no_grad()
    def start(self, x: Tensor) -> None:
        """Initialise scale and bias so that ``x`` is standardised over all processes."""
        moments = torch.stack([x.mean((0, 2, 3)), x.square().mean((0, 2, 3))]).double()
        if distributed.is_available() and distributed.is_initialized():
            # Every process holds a batch of the same size; its own moments would start it apart.
            distributed.all_reduce(moments)
            moments /= distributed.get_world_size()
        mean, square = moments
        std = (square - mean**2).clamp_min(1e-12).sqrt()
        self.scale.copy_(-std.log())
        self.bias.copy_(-mean / std)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.addcmul(self.bias.view(1, -1, 1, 1), x, self.scale.exp().view(1, -1, 1, 1))
        return y, x.shape[-2] * x.shape[-1] * self.scale.sum()


class _ChannelRotation(nn.Module):
    matrix: Tensor

    def __init__(self, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        gaussian = torch.randn(
            channels, channels, generator=generator, dtype=torch.float64, device="cpu"
        )
        q, r = torch.linalg.qr(gaussian)
        # Without these signs the QR decomposition does not give the uniform distribution.
        q = q * torch.sign(torch.diagonal(r))
        if torch.det(q) < 0:
            q[:, 0] = -q[:, 0]
        self.register_buffer("matrix", q.float())

    def exact(self) -> Tensor:
        """Return the matrix in float64, orthogonal to machine precision."""
        rounded = self.matrix.double()
        eye = torch.eye(len(rounded), dtype=rounded.dtype, device=rounded.device)
        return rounded @ (3 * eye - rounded.T @ rounded) / 2

    def forward(self, x: Tensor) -> Tensor:
        matrix = self.exact() if x.dtype == torch.float64 else self.matrix
        # Rounded to bfloat16, as autocast would do, a rotation and its transpose do not cancel.
        with torch.autocast(x.device.type, enabled=False):
            return (matrix @ x.flatten(2)).view_as(x)


def _undo(norm: _ActNorm, rotation: _ChannelRotation, *parts: Tensor) -> Tensor:
    """Invert an ActNorm and the rotation that follows it, in one matrix product."""
    is_double = parts[0].dtype == torch.float64
    matrix = rotation.exact() if is_double else rotation.matrix
    shrink = (-norm.scale).exp()
    # Row vectors: y R inverts the rotation R x of column vectors.
    rows = [part.movedim(1, -1).flatten(0, 2) for part in parts]
    matrix, bias = matrix * shrink, -norm.bias * shrink
    if parts[0].is_cuda and not is_double:
        x = _affine_in_parts(rows, matrix, bias)
    else:
        x = torch.addmm(bias, torch.cat(rows, dim=1), matrix)
    return x.view(len(parts[0]), *parts[0].shape[2:], -1).movedim(-1, 1)


def _affine_in_parts(rows: Sequence[Tensor], matrix: Tensor, bias: Tensor) -> Tensor:
    """Multiply matrices split into high and low bfloat16 parts; omit the product of low parts.

    The relative error, 2e-5, is smaller than in TF32; the speed is that of bfloat16.
    """
    pairs = [_split(part) for part in rows]
    (upper, lower), (first, second) = _split(matrix), _split(bias[None])
    high, low = ([pair[k] for pair in pairs] for k in (0, 1))
    ones = high[0].new_ones(len(high[0]), ALIGNED)
    left = torch.cat([*high, *low, *high, ones], dim=1)
    rest = first.new_zeros(ALIGNED - 2, len(bias))
    right = torch.cat([upper, upper, lower, first, second, rest])
    product: Tensor = torch.mm(left, right, out_dtype=torch.float32)
    return product


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    # Truncated by its bits: a compiler may skip the rounding of a conversion and its inverse.
    high = (x.view(torch.int32) & -65536).view(torch.float32)
    return high.bfloat16(), (x - high).bfloat16()


STAGE_SLOPE = 0.01


class ConditionStage(nn.Module):
    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(inputs, channels, 3, stride=2, padding=1)
        self.residual = nn.Sequential(
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.LeakyReLU(STAGE_SLOPE),
            nn.Conv2d(2 * channels, 2 * channels, 3, padding=1),
            nn.LeakyReLU(STAGE_SLOPE),
            nn.Conv2d(2 * channels, channels, 1),
        )
        self.norm = nn.BatchNorm2d(channels)
        self.mix = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x.to(self.down.weight.dtype))
        x = F.leaky_relu(self.norm(x + self.residual(x)), STAGE_SLOPE)
        mixed: Tensor = self.mix(x)
        return mixed


class _ConditionNet(nn.Module):
    def __init__(self, inputs: int, channels: int, *, layers: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            ConditionStage(inputs if i == 0 else channels, channels) for i in range(layers)
        )

    def forward(self, features: Tensor) -> list[Tensor]:
        conditions = []
        for stage in self.stages:
            features = stage(features)
            conditions.append(features)
        return conditions


@dataclass(frozen=True)
class FlowConfig:
    """Size of a conditional flow; the defaults are the paper's (507 million parameters).

    Example:
        >>> FlowConfig().size_multiple  # images must be divisible by this
        4
    """

    coils: Channels = 8  #: Number of (virtual) coils; the flow has two real channels per coil.
    in_channels: Coils = 0  #: Channels of the condition: 0 for two per coil, 6 for a residual flow.
    unet_width: Channels = 256  #: Channels at the first level of the conditioning U-Net.
    unet_pools: Depth = 4  #: Number of times the conditioning U-Net halves the image.
    condition_channels: Channels = 64  #: Channels of the condition passed to each layer.
    #: Pass the inputs to the conditioning network directly as well as through the U-Net.
    condition_skip: bool = False
    layers: Depth = 2  #: Number of layers, each at half the resolution of the previous one.
    #: Flow steps per layer; their coupling networks alternate between 1×1 and 3×3 kernels.
    steps_per_layer: Depth = 10
    #: Standard deviation of the training noise in the measured subspace; data consistency removes
    #: it from every sample.
    measured_noise: NonNegative = 0.05
    #: Standard deviation of the training noise in the null space; it should be below the noise of
    #: the images, because it widens the posterior.
    null_noise: NonNegative = 0.0
    #: Kind of training noise in the measured subspace: ``"noise"`` is white, ``"residual"`` has the
    #: local size and spectrum of the residual.
    fill: Literal["noise", "residual"] = "noise"
    #: Combine the coils of each pixel unitarily; the first output channel is the combined image.
    rotate_coils: bool = False
    #: Passes of the U-Net that predict the posterior mean, around which the flow samples. The U-Net
    #: is trained first (``[pretrain]``) and then frozen.
    mean_passes: Natural = 0
    normalise: bool = False  #: Divide each case by the 95 % quantile of its zero-filled magnitudes.
    #: Largest allowed value in normalised units; samples that exceed it are redrawn and counted.
    max_value: Positive = 10.0
    seed: Seed = 0  #: Seed of the rotations and of the initial weights.

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.in_channels and (self.mean_passes or self.rotate_coils or self.fill != "noise"):
            text = f"in_channels = {self.in_channels}, of a residual flow, excludes fill, "
            raise InputError(f"{text}rotate_coils and mean_passes", code="option.conflict")

    @property
    def size_multiple(self) -> int:
        """Number that must divide the height and the width of images."""
        return int(2**self.layers)

    @property
    def channels(self) -> int:
        return 2 * self.coils

    @property
    def unet_inputs(self) -> int:
        return 2 * self.channels if self.mean_passes else self.in_channels or self.channels

    @property
    def condition_inputs(self) -> int:
        # With a mean: features, zero-filled image, mean, last output and the sampled fraction.
        return self.unet_width + 3 * self.channels + 1 if self.mean_passes else self.unet_inputs


COUPLING_SLOPE = 0.01
# The published soft clamp: 0.636 is close to 2 / pi, so that |s| stays below CLAMP.
CLAMP, ATAN_SCALE = 1.5, 0.636


def per_case(operation: Callable[..., Tensor], samples: Tensor, cases: Tensor) -> Tensor:
    """Apply a binary operation to samples (case * sample, ...) and a tensor (case, ...)."""
    by_case = samples.view(len(cases), -1, *samples.shape[1:])
    return operation(by_case, cases[:, None]).flatten(0, 1)


class CouplingNet(nn.Module):
    def __init__(self, inputs: int, condition: int, *, kernel: int) -> None:
        super().__init__()
        hidden = 2 * (inputs + condition)
        self.inputs, self.kernel = inputs, kernel
        pad = kernel // 2
        self.first = nn.Conv2d(inputs + condition, hidden, kernel, padding=pad)
        self.second = nn.Conv2d(hidden, hidden, kernel, padding=pad)
        self.third = nn.Conv2d(hidden, 2 * inputs, kernel, padding=pad)

    def reset(self, generator: torch.Generator) -> None:
        """Draw weights from N(0, 0.02²); set those of the last convolution to 0."""
        with torch.no_grad():
            for conv in (self.first, self.second):
                conv.weight.normal_(0, 0.02, generator=generator)
                conv.bias.normal_(0, 0.02, generator=generator)  # type: ignore[union-attr]
            self.third.weight.zero_()
            self.third.bias.zero_()  # type: ignore[union-attr]

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return self._rest(self.first(torch.cat([x, condition], dim=1)))

    def encode(self, condition: Tensor) -> Tensor:
        """Return the part of the first convolution that depends only on the condition."""
        weight, bias = self.first.weight[:, self.inputs :], self.first.bias
        return F.conv2d(condition, weight, bias, padding=self.kernel // 2)

    def predict(self, x: Tensor, encoded: Tensor) -> Tensor:
        """Apply the network to samples (case * sample, ...) and each case's encoded condition."""
        weight = self.first.weight[:, : self.inputs]
        hidden = F.conv2d(x.to(weight.dtype), weight, padding=self.kernel // 2)
        return self._rest(per_case(torch.add, hidden, encoded))

    def _rest(self, hidden: Tensor) -> Tensor:
        hidden = F.leaky_relu(hidden, COUPLING_SLOPE)
        hidden = F.leaky_relu(self.second(hidden), COUPLING_SLOPE)
        raw: Tensor = self.third(hidden)
        return raw


class _Coupling(nn.Module):
    """Coupling layer: the first half of the channels sets scale and shift of the second."""

    def __init__(self, channels: int, condition: int, *, kernel: int) -> None:
        super().__init__()
        self.subnet = CouplingNet(channels // 2, condition, kernel=kernel)

    def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        kept, changed = x.chunk(2, dim=1)
        s, t = _scale_and_shift(self.subnet(kept, condition), kept.dtype)
        return torch.cat([kept, changed * s.exp() + t], dim=1), s.sum((1, 2, 3))

    def inverse(self, y: Tensor, encoded: Tensor) -> tuple[Tensor, Tensor]:
        kept, changed = y.chunk(2, dim=1)
        s, t = _scale_and_shift(self.subnet.predict(kept, encoded), kept.dtype)
        return kept, (changed - t) * (-s).exp()


def _scale_and_shift(raw: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    # The subnet may run in bfloat16; scale and shift stay in the images' precision.
    scale, shift = raw.to(dtype).chunk(2, dim=1)
    return CLAMP * ATAN_SCALE * torch.atan(scale), shift


FLOOR = 1e-5
# Initial offset and gates: factors of 0.982, where the logistic function still has a slope.
OPEN = 4.0


def _stripes(x: Tensor) -> Tensor:
    """Mark the entries (channel, height, width) whose channel plus row-major pixel index is odd."""
    channels, height, width = x.shape[1:]
    pixel = torch.arange(height * width, device=x.device).view(1, height, width)
    return (torch.arange(channels, device=x.device).view(-1, 1, 1) + pixel) % 2 == 1


class _InvertibleAttention(nn.Module):
    """Invertible map-based channel attention (iMAP)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.zeros(channels))
        self.offset = nn.Parameter(torch.full((), OPEN))
        self.gate = nn.Parameter(torch.full((channels,), OPEN))

    def reset(self, generator: torch.Generator) -> None:
        with torch.no_grad():
            # The mean of as many rows as channels, drawn from N(0, 0.02²).
            self.filter.normal_(0, 0.02 / len(self.filter) ** 0.5, generator=generator)

    def gates(self) -> Tensor:
        return torch.sigmoid(self.gate) + FLOOR

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mask = _stripes(x)
        attention = self._attention(x, mask)
        gate = self.gates().view(1, -1, 1, 1)
        decided = x.shape[1] // 2
        log_det = decided * attention.log().sum((1, 2, 3)) + (mask * gate.log()).sum()
        return x * torch.where(mask, gate, attention), log_det

    def inverse(self, y: Tensor) -> Tensor:
        mask = _stripes(y)
        opened = y / self.gates().view(1, -1, 1, 1)
        return torch.where(mask, opened, y / self._attention(opened, mask))

    def _attention(self, x: Tensor, mask: Tensor) -> Tensor:
        # Mask and filter first: that product is small, and one pass over the batch is saved.
        weighted = (x * (mask * self.filter.view(-1, 1, 1))).sum(1, keepdim=True)
        return torch.sigmoid(weighted + self.offset) + FLOOR


class FlowStep(nn.Module):
    def __init__(
        self, channels: int, condition: int, *, kernel: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.norm = _ActNorm(channels)
        self.rotation = _ChannelRotation(channels, generator)
        self.coupling = _Coupling(channels, condition, kernel=kernel)
        self.attention = _InvertibleAttention(channels)
        # Numbers for the meta device would load torch's compiler, for seconds; a file fills it.
        if not self.coupling.subnet.first.weight.is_meta:
            self.coupling.subnet.reset(generator)
            self.attention.reset(generator)

    def forward(self, x: Tensor, condition: Tensor, start: bool = False) -> tuple[Tensor, Tensor]:
        """Return the transformed ``x`` and log-determinants; ``start`` initialises the ActNorm."""
        if start:
            self.norm.start(x)
        x, by_norm = self.norm(x)
        x, by_coupling = self.coupling(self.rotation(x), condition)
        x, by_attention = self.attention(x)
        return x, by_norm + by_coupling + by_attention

    def inverse(self, y: Tensor, encoded: Tensor) -> Tensor:
        halves = self.coupling.inverse(self.attention.inverse(y), encoded)
        return _undo(self.norm, self.rotation, *halves)


class FlowLayer(nn.Module):
    def __init__(
        self, channels: int, condition: int, *, steps: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.norm = _ActNorm(channels)
        self.rotation = _ChannelRotation(channels, generator)
        self.steps = nn.ModuleList(
            FlowStep(channels, condition, kernel=1 + 2 * (k % 2), generator=generator)
            for k in range(steps)
        )

    def forward(self, x: Tensor, condition: Tensor, start: bool = False) -> tuple[Tensor, Tensor]:
        if start:
            self.norm.start(x)
        x, log_det = self.norm(x)
        x = self.rotation(x)
        for step in self.steps:
            x, by_step = step(x, condition, start)
            log_det = log_det + by_step
        return x, log_det

    def encode(self, condition: Tensor) -> list[Tensor]:
        steps = cast(Iterable[FlowStep], self.steps)
        return [step.coupling.subnet.encode(condition) for step in steps]

    def inverse(self, y: Tensor, encoded: Sequence[Tensor]) -> Tensor:
        for step, own in zip(reversed(self.steps), reversed(encoded), strict=True):
            y = step.inverse(y, own)  # type: ignore[operator]
        return _undo(self.norm, self.rotation, y)


SIZE_SLOPE = 0.01
# Bound of the logarithm of a residual scale, in addition to the first ActNorm.
LARGEST = 4.0
# The accelerations of inflation factors; others are interpolated.
ACCELERATIONS = (1, 2, 4, 8, 16, 32, 64)


class ResidualScaleNet(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, hidden, 3, padding=1)
        self.second = nn.Conv2d(hidden, hidden, 3, padding=1)
        self.third = nn.Conv2d(hidden, outputs, 1)
        with torch.no_grad():
            self.third.weight.zero_()
            self.third.bias.zero_()  # type: ignore[union-attr]

    def forward(self, condition: Tensor) -> Tensor:
        hidden = F.leaky_relu(self.first(condition.to(self.first.weight.dtype)), SIZE_SLOPE)
        raw = self.third(F.leaky_relu(self.second(hidden), SIZE_SLOPE))
        return LARGEST * torch.tanh(raw.to(condition.dtype) / LARGEST)


def inflation_at(inflation: Tensor, mask: Tensor) -> Tensor:
    fraction = mask.to(inflation.dtype).mean(-1).clamp_min(1 / ACCELERATIONS[-1])
    place = -torch.log2(fraction)
    below = place.floor().long().clamp_max(len(ACCELERATIONS) - 2)
    return torch.lerp(inflation[below], inflation[below + 1], (place - below)[:, None])


class FlowCondition(NamedTuple):
    """Noise-independent part of the inverse flow, shared by all samples of a case."""

    layers: list[list[Tensor]]  # of each step of each layer
    log_scale: Tensor | None  # of residuals, (case, channel, height, width)


# Each 2×2 block of pixels becomes channels, 4c + 2 dy + dx, and channels become pixels again.
squeeze, unsqueeze = nn.PixelUnshuffle(2), nn.PixelShuffle(2)


class ConditionalFlow(nn.Module):
    r"""Invertible network :math:`z = h(x; y)` between null-space images and Gaussian latents.

    .. math:: \log p(x \mid y) = \log \mathcal N(h(x; y); 0, I)
              + \log\Big|\det \frac{\partial h(x; y)}{\partial x}\Big|

    :math:`x` is the null-space part of the image, :math:`y` the zero-filled image, both as real
    channels. A U-Net and a chain of convolutions turn :math:`y` into one condition for each
    layer. Every layer squeezes, runs its steps and factors out half of its channels as latents.
    With ``mean_passes``, the U-Net predicts the mean, and :math:`x` is the residual divided by a
    scale predicted from the condition.

    References:
        Wen et al., A Conditional Normalizing Flow for Accelerated Multi-Coil MR Imaging,
        ICML 2023.

    Args:
        config: Size of the flow.

    Example:
        >>> flow = ConditionalFlow(FlowConfig(coils=1, unet_width=4, unet_pools=2,
        ...                                   condition_channels=4, steps_per_layer=2))
        >>> x, y = torch.randn(3, 2, 16, 16), torch.randn(3, 2, 16, 16)
        >>> conditions = flow.condition(y)
        >>> latents, log_det = flow(x, conditions)
        >>> [tuple(z.shape[1:]) for z in latents]
        [(4, 8, 8), (8, 4, 4), (8, 4, 4)]
        >>> torch.allclose(flow.inverse(latents, flow.encode(y)), x, atol=1e-4)
        True
    """

    started: Tensor
    widening: Tensor

    def __init__(self, config: FlowConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or FlowConfig()
        generator = torch.Generator().manual_seed(c.seed)
        self.unet = UNet(c.unet_inputs, c.channels, width=c.unet_width, pools=c.unet_pools)
        # The flow uses the U-Net's features; its last convolution never gets a gradient.
        # A U-Net that predicts the mean is trained before, and for nothing else.
        (self.unet if c.mean_passes else self.unet.output).requires_grad_(False)
        inputs = c.condition_inputs if c.mean_passes or c.condition_skip else 0
        inputs += 0 if c.mean_passes else c.unet_width
        self.conditioner = _ConditionNet(inputs, c.condition_channels, layers=c.layers)
        self.layers = nn.ModuleList(
            FlowLayer(n, c.condition_channels, steps=c.steps_per_layer, generator=generator)
            for n in (4 * c.channels * 2**level for level in range(c.layers))
        )
        self.register_buffer("started", torch.zeros((), dtype=torch.bool))
        self.size = None
        if c.mean_passes:
            self.size = ResidualScaleNet(inputs, c.condition_channels, c.channels)
            self.register_buffer("widening", torch.ones(len(ACCELERATIONS), c.channels))

    def condition(self, inputs: Tensor) -> list[Tensor]:
        """Return each layer's condition; with ``mean_passes``, also the log residual scales."""
        self._check(inputs, self.config.condition_inputs)
        if self.size is not None:
            return [*self.conditioner(inputs), self.size(inputs)]
        features = self.unet.features(inputs)
        if self.config.condition_skip:
            features = torch.cat([features, inputs.to(features.dtype)], dim=1)
        return list(self.conditioner(features))

    def predict(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.unet.features(inputs)
        # The output is added to an image: rounded to bfloat16 it would show.
        with torch.autocast(inputs.device.type, enabled=False):
            return features, self.unet.output(features.to(inputs.dtype))

    def forward(
        self, x: Tensor, conditions: Sequence[Tensor], start: bool = False
    ) -> tuple[list[Tensor], Tensor]:
        """Return the latents of images, finest first, and the log-determinant of each case.

        Args:
            x: Null-space images as real channels, (case, 2 * coil, height, width).
            conditions: Result of :meth:`condition`.
            start: Initialise each ActNorm from this batch, in order.
        """
        self._check(x, self.config.channels)
        latents, log_det = [], x.new_zeros(len(x))
        if self.size is not None:
            *conditions, size = conditions
            x, log_det = x * (-size).exp(), -size.sum((1, 2, 3))
        for layer, condition in zip(self.layers, conditions, strict=True):
            x, by_layer = layer(squeeze(x), condition, start)
            x, factored = x.chunk(2, dim=1)
            latents.append(factored)
            log_det = log_det + by_layer
        if start:
            self.started.fill_(True)
        return [*latents, x], log_det

    def encode(self, inputs: Tensor) -> FlowCondition:
        """Return the conditioning features, computed once for all samples of a case."""
        conditions = self.condition(inputs)
        size = None if self.size is None else conditions.pop()
        pairs = zip(self.layers, conditions, strict=True)
        return FlowCondition([layer.encode(c) for layer, c in pairs], size)  # type: ignore[operator]

    def inverse(self, latents: Sequence[Tensor], condition: FlowCondition) -> Tensor:
        """Turn latents (case * sample, ...) into null-space images: the inverse of :meth:`forward`.

        Args:
            latents: Latents, with the same number of samples for each case.
            condition: Result of :meth:`encode`.
        """
        *factored, x = latents
        for layer, z, encoded in zip(
            reversed(self.layers), reversed(factored), reversed(condition.layers), strict=True
        ):
            x = unsqueeze(layer.inverse(self.join(x, z), encoded))  # type: ignore[operator]
        log_scale = condition.log_scale
        return x if log_scale is None else per_case(torch.mul, x, log_scale.exp())

    def join(self, x: Tensor, z: Tensor) -> Tensor:
        """Join the two halves of a layer's channels, channels last."""
        return torch.cat([x, z], dim=1).contiguous(memory_format=torch.channels_last)

    def latent_shapes(self, height: int, width: int) -> list[tuple[int, int, int]]:
        """Return the shapes (channel, height, width) of the latents of one image."""
        channels, shapes = self.config.channels, []
        for _ in range(self.config.layers):
            channels, height, width = 2 * channels, height // 2, width // 2
            shapes.append((channels, height, width))
        return [*shapes, shapes[-1]]

    def _check(self, x: Tensor, channels: int) -> None:
        c = self.config
        if x.ndim != 4 or x.shape[1] != channels or any(n % c.size_multiple for n in x.shape[-2:]):
            text = f"this flow needs {channels} channels ({c.coils} coils) and sides divisible by "
            text += f"{c.size_multiple}, got {tuple(x.shape)}"
            raise InputError(text, code="shape.mismatch")


def bits_per_dimension(latents: Sequence[Tensor], log_det: Tensor) -> Tensor:
    r"""Return the negative log-likelihood of each case in bits per dimension.

    .. math:: -\frac{\log \mathcal N(z; 0, I) + \log|\det|}{D \ln 2}

    :math:`z` are the :math:`D` latents of a case.

    Args:
        latents: Latents of a batch.
        log_det: Log-determinant of each case, (case,).

    Example:
        >>> round(bits_per_dimension([torch.zeros(1, 4, 2, 2)], torch.zeros(1)).item(), 4)
        1.3257
    """
    dimension = sum(z[0].numel() for z in latents)
    energy = sum(z.square().sum((1, 2, 3)) for z in latents)
    log_likelihood = log_det - energy / 2 - dimension * math.log(2 * math.pi) / 2
    return -log_likelihood / (dimension * math.log(2))
