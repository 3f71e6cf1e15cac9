"""The estimate of a variational network that samples are drawn around, and cases of its errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from taskuq.measure.coils import rss, to_channels
from taskuq.measure.fourier import fft2c, ifft2c
from taskuq.measure.projections import broadcast_mask, keep_measured
from taskuq.pipeline.progress import Progress
from taskuq.recover.cases import MeasuredCases
from taskuq.recover.columns import central_lines, consistent_columns
from taskuq.recover.flow.sampler import case_scale
from taskuq.recover.folded_varnet import FoldedVarNet
from taskuq.recover.varnet import VarNet
from taskuq.training.feed import Stock

# The phase of an image is smooth: lines up to about this share of the width show it.
PHASE_LINES = 1 / 16
# How often the measured lines are put back into the network's image before errors are drawn.
ROUNDS = 3
# The most that latents are widened, at R = 2 and below.
WIDEST = math.sqrt(2)


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
        """Return a case's coil images (sample, coil, height, width) with these errors, consistent.

        Arguments:
            case: Which case.
            errors: Combined errors, complex (sample, 1, height, width).
        """
        images = self.image[case] + errors * (self.phase[case] * self.scale[case])
        return consistent_columns(self.maps[case] * images, self.measured[case], self.mask[case])

    def share(self) -> Tensor:
        """The share of lines that was measured, (case,)."""
        return self.mask.to(self.scale.dtype).mean(1)

    def images(self, residuals: Tensor) -> Tensor:
        """Magnitude images with these errors, consistent, (case, sample, height, width).

        Arguments:
            residuals: Combined errors as real channels, (case, sample, 2, height, width).
        """
        return rss(self.coils(residuals))

    def coils(self, residuals: Tensor) -> Tensor:
        r"""Coil images with these errors, consistent, (case, sample, coil, height, width).

        .. math:: \hat x_b = (I - A) \big(s_b (\hat c + q e^{i \varphi} r)\big) + y_b

        Arguments:
            residuals: Combined errors :math:`r` as real channels, (case, sample, 2, height, width).
        """
        turn = (self.phase * self.scale.view(-1, 1, 1))[:, None]
        images = self.image[:, None] + torch.complex(*residuals.unbind(2)) * turn
        return consistent_columns(
            self.maps[:, None] * images[:, :, None],
            self.measured[:, None],
            self.mask[:, None, None, None],
        )

    def widening(self, case: int) -> float:
        r"""By how much a case's latents are widened, :math:`\min((1 - m)^{-1/2}, \sqrt 2)`.

        The flow knows where an error is and how large, but hardly in which lines: it spreads
        errors over all of them. Putting the measured lines back takes away about their share
        :math:`m` of the variance, which is given in advance. Beyond R = 2 the flow would be asked
        for what it has never seen.

        Example:
            >>> from taskuq.recover.varnet import VarNetConfig
            >>> net = VarNet(VarNetConfig(cascades=1, width=4, pools=2, sensitivity_pools=2))
            >>> mask = torch.zeros(1, 16, dtype=torch.bool)
            >>> mask[:, 6:10] = True
            >>> round(estimate(net, torch.ones(1, 4, 16, 16) + 0j, mask).widening(0), 4)
            1.1547
        """
        unmeasured = 1 - self.mask[case].float().mean().item()
        return min(unmeasured**-0.5, WIDEST) if unmeasured else 1.0

    def _turn(self) -> Tensor:
        return self.phase.conj() / self.scale.view(-1, 1, 1)


def _combine(maps: Tensor, images: Tensor) -> Tensor:
    return (maps.conj() * images).sum(1)


@torch.no_grad()
def estimate(net: VarNet | FoldedVarNet, zero_filled: Tensor, mask: Tensor) -> Estimate:
    """Run a variational network and let its image agree with what was measured.

    Arguments:
        net: The network.
        zero_filled: Zero-filled coil images, complex (case, coil, height, width).
        mask: Booleans (case, width); True is measured.

    Example:
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
    lines = central_lines(mask)
    kspace = fft2c(zero_filled)
    kspace = torch.where(broadcast_mask(mask, kspace), kspace, 0)
    zero_filled = ifft2c(kspace)  # nothing but what was measured, for network and samples alike
    maps, coils = net.maps_and_images(kspace, mask, lines)
    first = image = _combine(maps, coils)
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


# Cases that are estimated together: a GPU wants many, a CPU's cache holds one.
TOGETHER = {"cuda": 8, "cpu": 1}


@dataclass(frozen=True, eq=False)
class EstimatedCases:
    """What a flow is told and what it learns, addressed by (epoch, index).

    Arguments:
        cases: The cases, with their masks.
        inputs: What the flow is told, (case, round, 6, height, width).
        errors: What it learns, (case, round, 2, height, width).
    """

    cases: MeasuredCases
    inputs: Tensor
    errors: Tensor

    @classmethod
    def of(cls, cases: MeasuredCases, net: VarNet, *, quiet: bool = False) -> EstimatedCases:
        """Run a variational network on every case at every acceleration.

        Arguments:
            cases: The cases, with their masks.
            net: The network; it runs where it is, and the results stay there.
            quiet: Show no progress.
        """
        device = next(net.parameters()).device
        masks = torch.as_tensor(cases.masks, device=device)
        inputs, errors = torch.empty(0), torch.empty(0)
        together = TOGETHER.get(device.type, 1)
        with Progress(len(cases), quiet=quiet) as progress:
            for start in range(0, len(cases), together):
                indices = range(start, min(start + together, len(cases)))
                images = torch.stack([cases[0, index]["image"].to(device) for index in indices])
                truth = images.repeat_interleave(len(masks), dim=0)
                mask = masks.repeat(len(images), 1)
                found = estimate(net, keep_measured(truth, mask), mask)
                told, error = found.inputs(), found.error(truth)
                if start == 0:
                    # One piece of memory from the start: it may be gigabytes.
                    rows = len(cases), len(masks)
                    inputs, errors = (x.new_empty(*rows, *x.shape[1:]) for x in (told, error))
                for whole, part in ((inputs, told), (errors, error)):
                    whole[start : indices.stop] = part.view(-1, len(masks), *part.shape[1:])
                for _ in indices:
                    progress.step()
        return cls(cases, inputs, errors)

    @property
    def precision(self) -> str | None:
        """How exact the images are, where their source says."""
        return self.cases.precision

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, place: tuple[int, int]) -> dict[str, Tensor]:
        epoch, index = place
        which = self.cases.round(epoch, index)
        return {"inputs": self.inputs[index, which], "error": self.errors[index, which]}

    def stock(self, device: torch.device, most: float) -> Stock:
        """Inputs and errors of all cases and rounds, which are tensors already."""
        rounds = self.inputs.shape[1]
        return Stock(
            by_case={},
            by_draw={
                "inputs": self.inputs.to(device).flatten(0, 1),
                "error": self.errors.to(device).flatten(0, 1),
            },
            drawn=lambda epoch, index: index * rounds + self.cases.round(epoch, index),
        )
