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
    """Refuse what is no temperature."""
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
    """Return the temperature for a mask."""
    accelerations, values = zip(*sorted(_pairs(temperature)), strict=True)
    rate = len(mask) / max(float(mask.sum()), 1.0)
    return float(np.interp(math.log(rate), np.log(accelerations), values))


# Images that are drawn together; more would not be quicker, and need more memory.
TOGETHER = 64
# How often latents are halved where no draw as it was learned is within the limit.
COOLER = 6


class ResidualFlowSampler:
    """Sample residuals around a point estimate with a flow; enforce data consistency."""

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
        """Combined errors, complex (sample, 1, height, width); those beyond the limit once more."""
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
