"""What a flow of whole images is told and what it learns, and what its U-Net learns before."""

from __future__ import annotations

import torch
from torch import Tensor

from taskuq.measure.coils import to_channels, to_complex
from taskuq.measure.noise import complex_noise
from taskuq.measure.projections import keep_measured, null_space
from taskuq.recover.flow import ConditionalFlow, FlowConfig
from taskuq.recover.flow.expected import Expected, expected
from taskuq.recover.flow.sampler import case_scale
from taskuq.recover.flow.turn import smoothed

# Over how many pixels, and over how many lines of k-space, the size of a residual is averaged.
PIXELS, LINES = 3.0, 4.0


def flow_target(
    flow: ConditionalFlow, images: Tensor, mask: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return what a flow is told, and null-space images with noise in their complement.

    Both are real channels. Where the flow has a mean it is subtracted; where coils are turned, they
    are turned.

    Arguments:
        flow: The flow: its configuration and, where it has a mean, its U-Net, which is not trained.
        images: True coil images, complex (case, coil, height, width).
        mask: Booleans (case, width); True is measured.
        generator: Draws the noise.

    Example:
        >>> flow = ConditionalFlow(FlowConfig(coils=2, unet_width=4, unet_pools=1, steps=2,
        ...                                   condition_channels=2, noise=0.0))
        >>> x, mask = torch.ones(1, 2, 8, 8) + 0j, torch.ones(1, 8, dtype=torch.bool)
        >>> y, target = flow_target(flow, x, mask, torch.Generator())
        >>> target.abs().max().item()  # everything is measured: nothing is left to learn
        0.0
    """
    config = flow.config
    images, measured = scaled(config, images, mask)
    with torch.no_grad():
        found = expected(config, measured, mask, flow.predict)
    residual = null_space(images, mask)
    if found.images:
        residual = residual - null_space(found.images[-1], mask)
    noise = complex_noise(images, generator)
    seen = keep_measured(noise, mask)
    target = residual + config.null_noise * (noise - seen)
    if config.fill == "noise":
        target = target + config.noise * seen
    else:
        target = target + residual_fill(found, residual, mask, noise)
    return found.told, to_channels(found.turned(target))


def scaled(config: FlowConfig, images: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """True and zero-filled images, in the units of the flow."""
    measured = keep_measured(images, mask)
    if config.normalise:
        scale = case_scale(measured).view(-1, 1, 1, 1)
        images, measured = images / scale, measured / scale
    return images, measured


def residual_fill(found: Expected, residual: Tensor, mask: Tensor, noise: Tensor) -> Tensor:
    r"""Noise for the measured lines that is like the residual in the others.

    .. math:: A F^{\mathsf H} g F\, T^{\mathsf H} (s\, \epsilon), \qquad
              g^2 = \frac{N}{\lVert e \rVert^2} \cdot
              \frac{\overline{\lVert F e \rVert^2}}{\overline{1 - M}}, \quad
              s^2 = \overline{(T e)^2}

    :math:`e` is the residual, which has no measured lines :math:`M`, :math:`N` the number of
    pixels, :math:`\epsilon` white noise; :math:`s` is the residual's size at each pixel and in each
    real channel of the turned coils, averaged over a few pixels, :math:`g` its density in k-space
    relative to that of :math:`s \epsilon`, averaged over a few lines that are *not* measured: with
    a share :math:`m` of the lines measured, :math:`g^2` is :math:`1 / (1 - m)` on average. A
    network that cannot tell lines from each other then draws as much in those that are missing as
    it should.

    Arguments:
        found: How coils are turned.
        residual: What the flow has to draw, complex (case, coil, height, width).
        mask: Booleans (case, width); True is measured.
        noise: White noise of unit variance in real and imaginary parts, the same shape.

    Example:
        >>> e = null_space(torch.randn(1, 2, 32, 32) + 0j, mask := torch.arange(32)[None] % 2 == 0)
        >>> white = torch.randn(1, 2, 32, 32) + 1j * torch.randn(1, 2, 32, 32)
        >>> fill = residual_fill(Expected(None, (), e.real), e, mask, white)
        >>> 0.8 < (fill.norm() / e.norm()).item() < 1.25  # half of the lines each
        True
    """
    sizes = smoothed(to_channels(found.turned(residual)).square(), PIXELS).clamp_min(0).sqrt()
    white = found.back(to_complex(sizes * to_channels(noise)))
    lost = (~mask).to(sizes.dtype)[:, None, :].expand(-1, residual.shape[-2], -1)
    lost = torch.fft.ifftshift(lost, dim=-1)
    power = torch.fft.fft2(residual, norm="ortho").abs().square().sum(1)
    density = smoothed(power, LINES).clamp_min(0) / smoothed(lost, LINES).clamp_min(1e-6)
    mean = power.mean((1, 2), keepdim=True).clamp_min(1e-30)
    gain = (density / mean).sqrt() * (1 - lost)
    fill: Tensor = torch.fft.ifft2(torch.fft.fft2(white) * gain[:, None])
    return fill


def unexplained(flow: ConditionalFlow, images: Tensor, mask: Tensor) -> list[Tensor]:
    r"""The share of what is missing that stays unexplained after each pass of the U-Net, (case,).

    .. math:: \lVert (I - A)(\hat x - x) \rVert \,/\, \lVert (I - A) x \rVert

    For a flow without a mean, whose U-Net only makes conditions, :math:`\hat x` is what the U-Net
    says; nothing of a fully measured case is missing, and its share is 0.

    Arguments:
        flow: The flow whose U-Net is judged.
        images: True coil images, complex (case, coil, height, width).
        mask: Booleans (case, width); True is measured.
    """
    images, measured = scaled(flow.config, images, mask)
    found = expected(flow.config, measured, mask, flow.predict)
    said = found.images
    if not said:
        said = (found.back(to_complex(flow.predict(found.told)[1])),)
    missing = _size(null_space(images, mask)).clamp_min(torch.finfo(torch.float32).tiny)
    return [_size(null_space(image - images, mask)) / missing for image in said]


def _size(images: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(torch.view_as_real(images).flatten(1), dim=1)
    return size
