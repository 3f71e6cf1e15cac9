"""How much too small a flow's residuals are, seen on cases that it was not trained on."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq.measure.coils import to_channels
from taskuq.recover.cases import MeasuredCases
from taskuq.recover.flow import ConditionalFlow
from taskuq.recover.flow.expected import expected
from taskuq.recover.flow.sampler import Sampler
from taskuq.recover.flow.size import ACCELERATIONS
from taskuq.recover.flow_targets import scaled
from taskuq.seeds import mixed_seed

# Samples of each case, cases that are drawn together, and between what a factor stays.
SAMPLES, TOGETHER = 8, 16
NARROWEST, WIDEST = 0.5, 2.0


@torch.no_grad()
def set_widening(flow: ConditionalFlow, cases: MeasuredCases, *, device: str) -> None:
    r"""Let residuals be as large as the errors of what is expected, at each acceleration.

    .. math:: \lambda^2 = \frac{\sum (\bar r - r)^2 - \sum \sigma^2 / p}{\sum \sigma^2}

    :math:`\bar r` and :math:`\sigma` are mean and deviation of :math:`p` drawn residuals, :math:`r`
    is the true one; the sums are over pixels of all cases, for each real channel of the (turned)
    coils. A network has seen the patients that it learned from: on them the image that it expects
    is better than on new ones, and the flow learns residuals that are too small.

    Arguments:
        flow: The flow, with a mean; its ``widening`` is set.
        cases: Cases that it was not trained on, with the masks.
        device: Where to draw.
    """
    flow.widening.fill_(1)
    sampler = Sampler(flow.eval(), device=device)
    masks = torch.as_tensor(cases.masks)
    rates = np.log2(masks.shape[1] / masks.sum(1).numpy())
    factors = np.stack([_factors(sampler, cases, mask, place) for place, mask in enumerate(masks)])
    order = np.argsort(rates)
    places = np.log2(ACCELERATIONS)
    columns = [np.interp(places, rates[order], column[order]) for column in factors.T]
    flow.widening.copy_(torch.as_tensor(np.stack(columns, axis=1)))


def _factors(
    sampler: Sampler, cases: MeasuredCases, mask: Tensor, place: int
) -> NDArray[np.float64]:
    """The factor of each real channel at one acceleration."""
    error = spread = torch.zeros(sampler.config.channels, device=sampler.device)
    for start in range(0, len(cases), TOGETHER):
        numbers = range(start, min(start + TOGETHER, len(cases)))
        images = torch.stack([cases[0, index]["image"] for index in numbers]).to(sampler.device)
        lines = mask.to(sampler.device).expand(len(images), -1)
        truth, measured = scaled(sampler.config, images, lines)
        seeds = [mixed_seed(place, index) for index in numbers]
        drawn = sampler(measured, lines, samples=SAMPLES, seeds=seeds).images
        found = expected(sampler.config, measured, lines, sampler.folded.unet.predict)
        true = to_channels(found.turned(truth))
        each = [to_channels(found.turned(drawn[:, k])) for k in range(SAMPLES)]
        samples = torch.stack(each)
        error = error + (samples.mean(0) - true).square().sum((0, 2, 3))
        spread = spread + samples.var(0).sum((0, 2, 3))
    squared = torch.where(spread > 0, error / spread.clamp_min(1e-30) - 1 / SAMPLES, 1)
    return squared.clamp(NARROWEST**2, WIDEST**2).sqrt().double().cpu().numpy()
