"""How loud noise has to be for samples to spread as much as they err, on cases held out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq.recover.sampler.estimated import Estimated
from taskuq.recover.sampler.network import ACCELERATIONS, SamplerNet, nearest_acceleration
from taskuq.recover.sampler.noise import normal_numbers
from taskuq.seeds import mixed_seed

# Samples of each case, and how loud the noise is tried.
SAMPLES, TRIED = 8, (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5)


@torch.no_grad()
def loudness_of(net: SamplerNet, cases: Iterable[tuple[Estimated, Tensor]]) -> tuple[float, ...]:
    r"""Find at what size of the noise samples spread as much as their mean errs.

    .. math:: \frac{(1 + 1/p) \sum \sigma^2}{\sum (\bar x - x)^2} = 1

    :math:`\bar x` and :math:`\sigma` are mean and deviation of :math:`p` samples at noise times
    :math:`\lambda`, :math:`x` is the true image; the sums are over pixels of all cases of an
    acceleration, in units of their scale.

    Arguments:
        net: The sampler.
        cases: Batches of estimated cases that it was not trained on, with their true images.

    Returns:
        The factor :math:`\lambda` for each of ``ACCELERATIONS``.
    """
    sums = torch.zeros(len(TRIED), len(ACCELERATIONS), 2, dtype=torch.float64)
    for number, (found, truth) in enumerate(cases):
        told, share = found.inputs(), found.share()
        places = nearest_acceleration(share).cpu()
        scale = found.scale.view(-1, 1, 1)
        rows = [mixed_seed(number, case) for case in range(len(told) * SAMPLES)]
        size = net.noise_size(*told.shape[-2:])
        noise = normal_numbers(torch.tensor(rows, device=told.device), size)
        noise = noise.view(len(told), SAMPLES, size)
        known = net.know(told, share)
        for k, factor in enumerate(TRIED):
            images = found.images(net.draw(known, factor * noise)) / scale[:, None]
            error = (images.mean(1) - truth / scale).square().mean((1, 2))
            spread = images.var(1).mean((1, 2)) * (1 + 1 / SAMPLES)
            both = torch.stack([spread, error], dim=1).double().cpu()
            sums[k].index_add_(0, places, both)
    return tuple(round(float(factor), 4) for factor in _levelled(sums.numpy()))


def _levelled(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where spread meets error at each acceleration; in between where no case was seen."""
    seen = np.flatnonzero(sums[0, :, 1] > 0)
    if len(seen) == 0:
        return np.ones(sums.shape[1])
    ratio = np.sqrt(sums[..., 0] / np.maximum(sums[..., 1], 1e-300))
    # Louder noise spreads more; where a network does not follow, the loudest so far counts.
    rising = np.maximum.accumulate(ratio, axis=0)
    factors = [np.interp(1.0, rising[:, place], TRIED) for place in seen]
    return np.interp(np.arange(sums.shape[1]), seen, factors)


def loudness_at(loudness: Tensor, share: Tensor) -> Tensor:
    """How loud noise is for measured shares, (case,), between two accelerations interpolated.

    Arguments:
        loudness: The factors at each of ``ACCELERATIONS``.
        share: The measured share, (case,).

    Example:
        >>> loudness_at(torch.arange(7.0), torch.tensor([1.0, 0.25, 0.17678]))
        tensor([0.0000, 2.0000, 2.5000])
    """
    place = -torch.log2(share.clamp_min(1 / ACCELERATIONS[-1]))
    low = place.floor().long().clamp(0, len(loudness) - 2)
    part = place - low
    return loudness[low] * (1 - part) + loudness[low + 1] * part


class Louder:
    """A sampler whose noise is made louder, asked as the sampler itself is.

    Arguments:
        net: What knows cases and draws.
        loudness: The factors at each of ``ACCELERATIONS``, where the network is.
    """

    def __init__(self, net: Any, loudness: Tensor) -> None:
        self.net, self.loudness = net, loudness

    def noise_size(self, height: int, width: int) -> int:
        """How many normal numbers a sample of an image takes."""
        size: int = self.net.noise_size(height, width)
        return size

    def know(self, told: Tensor, share: Tensor) -> tuple[Any, Tensor]:
        """All that does not depend on noise, and how loud it is for each case."""
        return self.net.know(told, share), loudness_at(self.loudness, share)

    def draw(self, known: tuple[Any, Tensor], noise: Tensor) -> Tensor:
        """Residuals (case, sample, outputs, height, width) of what is known and noise."""
        known_here, factor = known
        residuals: Tensor = self.net.draw(known_here, noise * factor.view(-1, 1, 1))
        return residuals
