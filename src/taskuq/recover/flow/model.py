"""The conditional normalising flow: images to latents and back, given a measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from taskuq.errors import InputError
from taskuq.recover.flow.condition import ConditionNet
from taskuq.recover.flow.config import FlowConfig
from taskuq.recover.flow.layer import Layer
from taskuq.recover.flow.size import ACCELERATIONS, SizeNet
from taskuq.recover.unet import UNet

Latents = list[Tensor]
# Each 2×2 block of pixels becomes channels, 4c + 2 dy + dx, and channels become pixels again.
squeeze, unsqueeze = nn.PixelUnshuffle(2), nn.PixelShuffle(2)


class ConditionalFlow(nn.Module):
    r"""An invertible network :math:`z = h(x; y)` between null-space images and Gaussian latents.

    .. math:: \log p(x \mid y) = \log \mathcal N(h(x; y); 0, I)
              + \log\Big|\det \frac{\partial h(x; y)}{\partial x}\Big|

    :math:`x` is what the measurement cannot see, :math:`y` the zero-filled image, both as real
    channels. A U-Net and a chain of convolutions turn :math:`y` into one condition for each
    layer. Every layer squeezes, runs its steps and factors out half of its channels as latents.
    With ``passes`` the U-Net says a mean (:func:`taskuq.recover.flow.expected.expected`) and
    :math:`x` is what is left, divided by a size that the conditions say.

    References:
        Wen et al., A Conditional Normalizing Flow for Accelerated Multi-Coil MR Imaging,
        ICML 2023.

    Arguments:
        config: The size.

    Example:
        >>> flow = ConditionalFlow(FlowConfig(coils=1, unet_width=4, unet_pools=2,
        ...                                   condition_channels=4, steps=2))
        >>> x, y = torch.randn(3, 2, 16, 16), torch.randn(3, 2, 16, 16)
        >>> conditions = flow.condition(y)
        >>> latents, log_det = flow(x, conditions)
        >>> [tuple(z.shape[1:]) for z in latents]
        [(4, 8, 8), (8, 4, 4), (8, 4, 4)]
        >>> torch.allclose(flow.inverse(latents, conditions), x, atol=1e-4)
        True
    """

    started: Tensor
    widening: Tensor

    def __init__(self, config: FlowConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or FlowConfig()
        generator = torch.Generator().manual_seed(c.seed)
        self.unet = UNet(c.read, c.channels, width=c.unet_width, pools=c.unet_pools)
        # The flow reads the U-Net's features; its last convolution would only wait for a gradient.
        # A U-Net that says the mean is trained before, and for nothing else.
        (self.unet if c.passes else self.unet.output).requires_grad_(False)
        read = c.told if c.passes else c.unet_width + (c.told if c.direct else 0)
        self.conditioner = ConditionNet(read, c.condition_channels, layers=c.layers)
        layers, channels = [], c.channels
        for _ in range(c.layers):
            layers.append(
                Layer(4 * channels, c.condition_channels, steps=c.steps, generator=generator)
            )
            channels *= 2
        self.layers = nn.ModuleList(layers)
        self.register_buffer("started", torch.zeros((), dtype=torch.bool))
        self.size = None
        if c.passes:
            self.size = SizeNet(read, c.condition_channels, c.channels)
            self.register_buffer("widening", torch.ones(len(ACCELERATIONS), c.channels))

    def condition(self, told: Tensor) -> list[Tensor]:
        """Turn what the flow is told, (case, told, height, width), into conditions.

        One for each layer; a flow with a mean has one more, the logarithms of residuals' sizes.
        """
        self._check(told, self.config.told)
        if self.size is not None:
            return [*self.conditioner(told), self.size(told)]
        features = self.unet.features(told)
        if self.config.direct:
            features = torch.cat([features, told], dim=1)
        return list(self.conditioner(features))

    def predict(self, read: Tensor) -> tuple[Tensor, Tensor]:
        """What the U-Net makes of (case, read, height, width): features, and what it says."""
        features = self.unet.features(read)
        # What is said is added to an image: rounded to bfloat16 it would show.
        with torch.autocast(read.device.type, enabled=False):
            return features, self.unet.output(features.to(read.dtype))

    def forward(
        self, x: Tensor, conditions: Sequence[Tensor], start: bool = False
    ) -> tuple[Latents, Tensor]:
        """Return the latents of images, finest first, and the log-determinant of each case.

        Arguments:
            x: Null-space images as real channels, (case, 2 * coil, height, width).
            conditions: What :meth:`condition` made of the measurement.
            start: Whether to set every ActNorm from this batch, layer after layer.
        """
        self._check(x, self.config.channels)
        latents, log_det = [], x.new_zeros(len(x))
        if self.size is not None:
            *conditions, size = conditions
            x, log_det = x * (-size).exp(), -size.sum((1, 2, 3))
        for layer, condition in zip(self.layers, conditions, strict=True):
            x, by_layer = layer(squeeze(x), condition, start)
            x, factored = x.chunk(2, dim=1)  # the first half goes on
            latents.append(factored)
            log_det = log_det + by_layer
        if start:
            self.started.fill_(True)
        return [*latents, x], log_det

    def inverse(self, latents: Sequence[Tensor], conditions: Sequence[Tensor]) -> Tensor:
        """Turn latents into null-space images: the inverse of :meth:`forward`."""
        *factored, x = latents
        size = None
        if self.size is not None:
            *conditions, size = conditions
        for layer, z, condition in zip(
            reversed(self.layers), reversed(factored), reversed(conditions), strict=True
        ):
            x = unsqueeze(layer.inverse(torch.cat([x, z], dim=1), condition))  # type: ignore[operator]
        return x if size is None else x * size.exp()

    def latent_shapes(self, height: int, width: int) -> list[tuple[int, int, int]]:
        """The shapes (channel, height, width) of the latents of one image."""
        channels, shapes = self.config.channels, []
        for _ in range(self.config.layers):
            channels, height, width = 2 * channels, height // 2, width // 2
            shapes.append((channels, height, width))
        return [*shapes, shapes[-1]]

    def _check(self, x: Tensor, channels: int) -> None:
        c = self.config
        if x.ndim != 4 or x.shape[1] != channels or any(n % c.size_multiple for n in x.shape[-2:]):
            raise InputError(
                f"images have shape {tuple(x.shape)}; this flow needs {channels} channels "
                f"({c.coils} coils) and sides divisible by {c.size_multiple}"
            )


def bits_per_dimension(latents: Sequence[Tensor], log_det: Tensor) -> Tensor:
    r"""Return the negative log-likelihood of each case, in bits for each real number of the image.

    .. math:: -\frac{\log \mathcal N(z; 0, I) + \log|\det|}{D \ln 2}

    :math:`z` are the :math:`D` latents of a case.

    Arguments:
        latents: The latents of a batch.
        log_det: The log-determinant of each case, (case,).

    Example:
        >>> round(bits_per_dimension([torch.zeros(1, 4, 2, 2)], torch.zeros(1)).item(), 4)
        1.3257
    """
    dimension = sum(z[0].numel() for z in latents)
    energy = sum(z.square().sum((1, 2, 3)) for z in latents)
    log_likelihood = log_det - energy / 2 - dimension * math.log(2 * math.pi) / 2
    return -log_likelihood / (dimension * math.log(2))
