"""Posterior samples around an estimate: a variational network says where, a flow how far off.

A flow that has to learn the whole image from its zero-filled version needs tens of millions of
parameters and hours. Around a good estimate only its error is left to learn, which is small, local
and nearly free of structure: a flow of five megabytes does, trained in minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.measure.coils import rss
from taskuq.measure.fourier import fft2c, ifft2c
from taskuq.measure.layout import to_channels
from taskuq.measure.projections import broadcast_mask
from taskuq.recover.columns import consistent_columns
from taskuq.recover.flow.folded import fold
from taskuq.recover.flow.model import ConditionalFlow
from taskuq.recover.flow.sampler import ATTEMPTS, case_scale
from taskuq.recover.low_frequencies import central_lines
from taskuq.recover.scan import Scan, stacked
from taskuq.recover.varnet import VarNet
from taskuq.training.seeds import gaussian_rows, mixed_seed

# Images that are drawn together; more would not be quicker, and need more memory.
TOGETHER = 64
# The phase of an image is smooth: lines up to about this share of the width show it.
PHASE_LINES = 1 / 16


# How often the measured lines are put back into the network's image before errors are drawn.
ROUNDS = 3


class Estimate(NamedTuple):
    """What a variational network makes of a batch of measurements.

    Attributes:
        image: The combined image that the network and the measured lines agree on, complex
            (case, height, width).
        first: The network's own combined image, the same shape.
        maps: Sensitivities, unit sum of squares, (case, coil, height, width).
        measured: Zero-filled coil images, the same shape.
        mask: Booleans (case, width); True is measured.
        phase: The image's smooth phase, complex numbers of modulus 1, (case, height, width).
        scale: The 95 % quantile of each case's zero-filled magnitudes, (case,).
    """

    image: Tensor
    first: Tensor
    maps: Tensor
    measured: Tensor
    mask: Tensor
    phase: Tensor
    scale: Tensor

    def inputs(self) -> Tensor:
        """What the flow is told: the image before and after, and zero-filled, (case, 6, h, w).

        Where the measured lines had to change the network's image, it was wrong.
        """
        zero_filled = _combine(self.maps, self.measured)
        images = torch.stack([self.image, self.first, zero_filled], dim=1)
        return to_channels(images * self._turn()[:, None])

    def error(self, truth: Tensor) -> Tensor:
        r"""The error of the combined image, (case, 2, height, width).

        .. math:: r = \frac{e^{-i \varphi}}{q} \Big(\textstyle\sum_b \bar s_b x_b - \hat c\Big)

        :math:`q` is the scale and :math:`\varphi` the image's smooth phase: the real part is an
        error of the magnitude, most of it, the imaginary part one of the phase.

        Arguments:
            truth: True coil images, complex (case, coil, height, width).
        """
        error = _combine(self.maps, truth) - self.image
        return to_channels((error * self._turn())[:, None])

    def coil_images(self, case: int, errors: Tensor) -> Tensor:
        """The coil images of a case with these errors, consistent with what was measured.

        Arguments:
            case: Which case.
            errors: Combined errors, complex (sample, 1, height, width).

        Returns:
            Complex (sample, coil, height, width).
        """
        images = self.image[case] + errors * (self.phase[case] * self.scale[case])
        return consistent_columns(self.maps[case] * images, self.measured[case], self.mask[case])

    def _turn(self) -> Tensor:
        return self.phase.conj() / self.scale.view(-1, 1, 1)


def _combine(maps: Tensor, images: Tensor) -> Tensor:
    return (maps.conj() * images).sum(1)


@torch.no_grad()
def estimate(net: VarNet, zero_filled: Tensor, mask: Tensor) -> Estimate:
    """Run a variational network and let its image agree with what was measured.

    Arguments:
        net: The network.
        zero_filled: Zero-filled coil images, complex (case, coil, height, width).
        mask: Booleans (case, width); True is measured.

    Returns:
        The combined image, sensitivities, phase and scale.

    Example:
        >>> import torch
        >>> from taskuq.measure.projections import keep_measured
        >>> from taskuq.recover.varnet import VarNetConfig
        >>> net = VarNet(VarNetConfig(cascades=1, width=4, pools=2, sensitivity_pools=2))
        >>> mask = torch.zeros(1, 16, dtype=torch.bool)
        >>> mask[:, 4:12] = True
        >>> measured = keep_measured(torch.randn(1, 4, 16, 16) + 0j, mask)
        >>> found = estimate(net, measured, mask)
        >>> images = found.coil_images(0, torch.zeros(1, 1, 16, 16) + 0j)
        >>> torch.allclose(keep_measured(images, mask), measured, atol=1e-5)
        True
    """
    lines = central_lines(mask.cpu()).to(mask.device)
    kspace = fft2c(zero_filled)
    kspace = torch.where(broadcast_mask(mask, kspace), kspace, 0)
    maps = net.sens_net(kspace, lines)
    first = image = _combine(maps, net.coil_images(kspace, mask, lines))
    for _ in range(ROUNDS):
        coils = consistent_columns(maps * image[:, None], zero_filled, mask[:, None, None])
        image = _combine(maps, coils)
    return Estimate(
        image=image,
        first=first,
        maps=maps,
        measured=zero_filled,
        mask=mask,
        phase=_smooth_phase(image),
        scale=case_scale(zero_filled),
    )


def _smooth_phase(image: Tensor) -> Tensor:
    kspace = fft2c(image)
    for axis in (-1, -2):
        size = image.shape[axis]
        lines = torch.arange(size, device=image.device) - size // 2
        window = torch.exp(-((lines / (PHASE_LINES * size)) ** 2) / 2)
        kspace = kspace * (window if axis == -1 else window[:, None])
    angle = ifft2c(kspace).angle()
    return torch.polar(torch.ones_like(angle), angle)


class AroundEstimate:
    r"""Posterior samples: an image, errors that a flow draws, and the lines that were measured.

    .. math:: \hat x^{(j)}_b = (I - A) \big(s_b (\hat c + q e^{i \varphi} r^{(j)})\big) + y_b

    :math:`\hat c` is the combined image, :math:`s_b` are sensitivities, :math:`\varphi` is the
    image's smooth phase, :math:`q` its scale, :math:`r^{(j)}` are errors drawn by the flow,
    :math:`A` keeps the measured lines and :math:`y` is zero-filled: every sample agrees with the
    measurement exactly.

    Arguments:
        flow: A flow of one combined image, told three (``coils=1, inputs=6``).
        net: The variational network it was trained around.
        device: Where to draw; by default where the flow is.
        temperature: Standard deviation of the latents; 1 draws from the posterior.

    Example:
        >>> import torch
        >>> from taskuq.measure.mri import Measurement
        >>> from taskuq.recover.flow import FlowConfig
        >>> from taskuq.recover.varnet import VarNetConfig
        >>> net = VarNet(VarNetConfig(cascades=1, width=4, pools=2, sensitivity_pools=2))
        >>> flow = ConditionalFlow(FlowConfig(coils=1, inputs=6, unet_width=4, unet_pools=2,
        ...                                   condition_channels=4, steps=2))
        >>> scan = Measurement(torch.ones(4, 16, 16) + 0j, torch.ones(16, dtype=torch.bool), 1.0)
        >>> samples = AroundEstimate(flow, net)(scan, samples=3, seed=0)
        >>> torch.allclose(samples, torch.full((3, 16, 16), 2.0))  # all is measured: RSS of 4 coils
        True
    """

    def __init__(
        self,
        flow: ConditionalFlow,
        net: VarNet,
        *,
        device: torch.device | str | None = None,
        temperature: float = 1.0,
    ) -> None:
        if flow.config.coils != 1 or flow.config.inputs != 6:
            raise InputError(
                f"the flow has {flow.config.coils} coils and {flow.config.inputs} inputs; a flow "
                "around an estimate has coils = 1 and inputs = 6"
            )
        self.device = torch.device(device or next(flow.parameters()).device)
        self.flow, self.net = flow, net.to(self.device).eval()
        self.folded = fold(flow, device=self.device, dtype=torch.float32)
        self.temperature = temperature
        self.rejected = 0

    def __call__(self, measurement: Scan, *, samples: int, seed: int) -> Tensor:
        """Return posterior samples, (sample, height, width); rejected draws are counted."""
        return self.batch([measurement], samples=samples, seeds=[seed])[0]

    def batch(self, measurements: Sequence[Scan], *, samples: int, seeds: Sequence[int]) -> Tensor:
        """Return posterior samples of several cases, (case, sample, height, width)."""
        return self._draw(measurements, samples, seeds, rss)

    def coil_images(self, measurement: Scan, *, samples: int, seed: int) -> Tensor:
        """Return posterior samples before coils are combined, (sample, coil, height, width)."""
        return self._draw([measurement], samples, [seed], lambda images: images)[0]

    @torch.no_grad()
    def _draw(
        self,
        measurements: Sequence[Scan],
        samples: int,
        seeds: Sequence[int],
        finish: Callable[[Tensor], Tensor],
    ) -> Tensor:
        if samples < 1:
            raise InputError(f"{samples} samples are asked for; ask for at least 1")
        zero_filled, mask = (part.to(self.device) for part in stacked(measurements))
        found = estimate(self.net, zero_filled.to(torch.complex64), mask)
        inputs = found.inputs()
        drawn = []
        for k, seed in enumerate(seeds):
            shares = self.folded.shares(inputs[k : k + 1])
            for start in range(0, samples, TOGETHER):
                numbers = range(start, min(start + TOGETHER, samples))
                errors = self._errors(inputs, shares, numbers, seed)
                drawn.append(finish(found.coil_images(k, errors)))
        result = torch.cat(drawn)
        return result.view(len(seeds), samples, *result.shape[1:])

    def _errors(
        self, inputs: Tensor, shares: list[list[Tensor]], numbers: range, seed: int
    ) -> Tensor:
        """Combined errors, complex (sample, 1, height, width); those beyond the limit once more."""
        errors = self._inverse(inputs, shares, [mixed_seed(seed, j, 0) for j in numbers])
        attempt = 0
        while again := self._beyond(errors):
            attempt += 1
            if attempt == ATTEMPTS:
                raise InputError(
                    f"a sample is not finite or beyond {self.flow.config.limit} after {ATTEMPTS} "
                    "draws; train the flow longer, or give a lower temperature or a higher limit"
                )
            self.rejected += len(again)
            rows = [mixed_seed(seed, numbers[k], attempt) for k in again]
            errors[again] = self._inverse(inputs, shares, rows)
        return errors

    def _beyond(self, errors: Tensor) -> list[int]:
        # Not "above the limit": NaN must count as beyond it too.
        fine = errors.abs().amax((1, 2, 3)) <= self.flow.config.limit
        return [k for k, ok in enumerate(fine.tolist()) if not ok]

    def _inverse(self, inputs: Tensor, shares: list[list[Tensor]], rows: list[int]) -> Tensor:
        shapes = self.flow.latent_shapes(*inputs.shape[-2:])
        numbers = [math.prod(shape) for shape in shapes]
        # Two numbers for each pixel: drawn on the CPU, they are the same on every device.
        drawn = gaussian_rows(torch.empty(len(rows), sum(numbers)), rows).to(self.device)
        drawn *= self.temperature
        latents = [
            part.view(-1, height, width, channels)
            for part, (channels, height, width) in zip(
                torch.split(drawn, numbers, dim=1), shapes, strict=True
            )
        ]
        return self.folded.inverse(latents, shares)
