"""Flow around an estimate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from taskuq._seeds import mix_seeds
from taskuq.errors import InputError
from taskuq.measure._coils import rss
from taskuq.recover._compiled import inference_varnet
from taskuq.recover._estimate import varnet_estimate
from taskuq.recover._methods import MeasurementLike, stack_measurements
from taskuq.recover._varnet import VarNet
from taskuq.recover.flow._folded import fold
from taskuq.recover.flow._model import ConditionalFlow
from taskuq.recover.flow._sample import ATTEMPTS
from taskuq.training._determinism import gaussian_rows

# An acceleration and the temperature there, for some accelerations.
Temperatures = Sequence[tuple[float, float]]


def _pairs(temperature: float | Temperatures) -> list[tuple[float, float]]:
    if isinstance(temperature, int | float):
        return [(1.0, temperature)]
    return list(temperature)


def check_temperature(temperature: float | Temperatures) -> None:
    """Refuse what is no temperature.

    Arguments:
        temperature: One number of at least 0, or pairs of an acceleration of at least 1 and such
            a number.

    Example:
        >>> check_temperature([(16, 0.85), (8, 1)])
    """
    pairs = _pairs(temperature)
    fine = pairs and all(
        len(pair) == 2 and pair[0] >= 1 and 0 <= pair[1] < math.inf for pair in pairs
    )
    if not fine:
        raise InputError(
            f"the temperature is {temperature}; give a number of at least 0, or pairs of an "
            "acceleration of at least 1 and such a number"
        )


def temperature_at(temperature: float | Temperatures, mask: Tensor) -> float:
    """Return the temperature for a mask.

    Between two accelerations it is interpolated in their logarithms; beyond the ends it stays.

    Arguments:
        temperature: One number, or pairs of an acceleration and a number.
        mask: The measured columns, booleans (width,).

    Example:
        >>> mask = torch.arange(64) % 16 == 0  # R = 16
        >>> temperature_at([(16, 0.8), (8, 1)], mask)
        0.8
    """
    accelerations, values = zip(*sorted(_pairs(temperature)), strict=True)
    rate = len(mask) / max(float(mask.sum()), 1.0)
    return float(np.interp(math.log(rate), np.log(accelerations), values))


# Images that are drawn together; more would not be quicker, and need more memory.
TOGETHER = 64
# How often latents are halved where no draw as it was learned is within the limit.
COOLER = 6


class ResidualFlowSampler:
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
        temperature: Standard deviation of the latents before they are widened
            (:meth:`taskuq.recover._estimate.VarNetEstimate.widening`); 1 draws what was learned. Pairs of
            an acceleration and a temperature where it is to depend on how much was measured
            (:func:`taskuq.recover.flow._around.temperature_at`).
        dtype: The precision of the network's convolutions on a GPU.

    Attributes:
        rejected: How many draws were beyond the flow's limit, and drawn again.
        cooled: How many samples had to be drawn at a lower temperature, since eleven draws as
            they were learned had been rejected.

    Example:
        >>> from taskuq.measure._mri import MRIMeasurement
        >>> from taskuq.recover.flow._model import FlowConfig
        >>> from taskuq.recover._varnet import VarNetConfig
        >>> net = VarNet(VarNetConfig(cascades=1, width=4, pools=2, sensitivity_pools=2))
        >>> flow = ConditionalFlow(FlowConfig(coils=1, inputs=6, unet_width=4, unet_pools=2,
        ...                                   condition_channels=4, steps=2))
        >>> scan = MRIMeasurement(torch.ones(4, 16, 16) + 0j, torch.ones(16, dtype=torch.bool), 1.0)
        >>> samples = ResidualFlowSampler(flow, net)(scan, samples=3, seed=0)
        >>> torch.allclose(samples, torch.full((3, 16, 16), 2.0))  # all is measured: RSS of 4 coils
        True
    """

    def __init__(
        self,
        flow: ConditionalFlow,
        net: VarNet,
        *,
        device: torch.device | str | None = None,
        temperature: float | Temperatures = 1.0,
        dtype: torch.dtype = torch.float16,
    ) -> None:
        if flow.config.coils != 1 or flow.config.inputs != 6:
            raise InputError(
                f"the flow has {flow.config.coils} coils and {flow.config.inputs} inputs; a flow "
                "around an estimate has coils = 1 and inputs = 6"
            )
        self.device = torch.device(device or next(flow.parameters()).device)
        self.flow, self.net = flow, inference_varnet(net.to(self.device).eval(), dtype)
        self.folded = fold(flow, device=self.device, dtype=torch.float32)
        check_temperature(temperature)
        self.temperature = temperature
        self.rejected = self.cooled = 0

    def __call__(self, measurement: MeasurementLike, *, samples: int, seed: int) -> Tensor:
        """Return posterior samples, (sample, height, width); rejected draws are counted."""
        return self.batch([measurement], samples=samples, seeds=[seed])[0]

    def batch(
        self, measurements: Sequence[MeasurementLike], *, samples: int, seeds: Sequence[int]
    ) -> Tensor:
        """Return posterior samples of several cases, (case, sample, height, width)."""
        return self._draw(measurements, samples, seeds, rss)

    def coil_images(self, measurement: MeasurementLike, *, samples: int, seed: int) -> Tensor:
        """Return posterior samples before coils are combined, (sample, coil, height, width)."""
        return self._draw([measurement], samples, [seed], lambda images: images)[0]

    @torch.no_grad()
    def _draw(
        self,
        measurements: Sequence[MeasurementLike],
        samples: int,
        seeds: Sequence[int],
        finish: Callable[[Tensor], Tensor],
    ) -> Tensor:
        if samples < 1:
            raise InputError(f"{samples} samples are asked for; ask for at least 1")
        zero_filled, mask = (part.to(self.device) for part in stack_measurements(measurements))
        found = varnet_estimate(self.net, zero_filled.to(torch.complex64), mask)
        inputs = found.inputs()
        if not bool(torch.isfinite(inputs).all()):
            raise InputError(
                "the estimate to draw around is not finite; look for NaN or overflow in the "
                'k-space, or let the variational network compute with precision = "float32"'
            )
        drawn = []
        for k, seed in enumerate(seeds):
            shares = self.folded.shares(inputs[k : k + 1])
            deviation = temperature_at(self.temperature, mask[k]) * found.widening(k)
            for start in range(0, samples, TOGETHER):
                numbers = range(start, min(start + TOGETHER, samples))
                errors = self._errors(inputs, shares, numbers, seed, deviation)
                drawn.append(finish(found.coil_images(k, errors)))
        result = torch.cat(drawn)
        return result.view(len(seeds), samples, *result.shape[1:])

    def _errors(
        self,
        inputs: Tensor,
        shares: list[list[Tensor]],
        numbers: range,
        seed: int,
        deviation: float,
    ) -> Tensor:
        """Combined errors, complex (sample, 1, height, width); those beyond the limit once more.

        What a measurement says may make nearly every draw explode. Then latents are halved with
        every further draw, and the sample counts as cooled.
        """
        errors = self._inverse(inputs, shares, [mix_seeds(seed, j, 0) for j in numbers], deviation)
        for attempt in range(1, ATTEMPTS + COOLER):
            again = self._beyond(errors)
            if not again:
                return errors
            self.rejected += len(again)
            self.cooled += len(again) if attempt == ATTEMPTS else 0
            rows = [mix_seeds(seed, numbers[k], attempt) for k in again]
            cooled = deviation * 0.5 ** max(0, attempt - ATTEMPTS + 1)
            errors[again] = self._inverse(inputs, shares, rows, cooled)
        if self._beyond(errors):
            raise InputError(
                f"a sample is not finite or beyond {self.flow.config.limit} after "
                f"{ATTEMPTS + COOLER - 1} draws, the last ones at ever lower temperatures; train "
                "the flow longer, or give a higher limit"
            )
        return errors

    def _beyond(self, errors: Tensor) -> list[int]:
        # Not "above the limit": NaN must count as beyond it too.
        fine = errors.abs().amax((1, 2, 3)) <= self.flow.config.limit
        return [k for k, ok in enumerate(fine.tolist()) if not ok]

    def _inverse(
        self, inputs: Tensor, shares: list[list[Tensor]], rows: list[int], deviation: float
    ) -> Tensor:
        shapes = self.flow.latent_shapes(*inputs.shape[-2:])
        numbers = [math.prod(shape) for shape in shapes]
        # Two numbers for each pixel: drawn on the CPU, they are the same on every device.
        drawn = gaussian_rows(torch.empty(len(rows), sum(numbers)), rows).to(self.device)
        drawn *= deviation
        latents = [
            part.view(-1, height, width, channels)
            for part, (channels, height, width) in zip(
                torch.split(drawn, numbers, dim=1), shapes, strict=True
            )
        ]
        return self.folded.inverse(latents, shares)
