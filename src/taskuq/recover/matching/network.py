r"""A velocity that carries white noise to errors of an estimate, and the way along it.

.. math:: \frac{d u}{d t} = v(u, t, \text{told}), \qquad u_0 \sim \mathcal N(0, I), \quad
          r = q(m)\, u_1

The velocity is a network of the sampler's build: what an estimate tells is read once for a case,
and where the sampler has noise stands the state, averaged at every level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name torch's own documentation uses

from taskuq.errors import InputError
from taskuq.recover.sampler.config import SamplerConfig
from taskuq.recover.sampler.network import Known, SamplerNet, nearest_acceleration

# Steps become shorter towards the end, where errors of a certain size are told from smaller ones.
BEND = 1.5


@dataclass(frozen=True)
class MatchingConfig:
    """The size of a velocity network; a sampler of the same numbers is as large.

    Arguments:
        inputs: Channels that the network is told of an estimate.
        outputs: Channels of a residual: 2 for a complex image, 1 for a real one.
        width: Channels of the first level of the part that is run once for a case.
        widest: How many times the width there is at most.
        drawn: Channels of the part that is run in each evaluation, for each level.
        times: By how many numbers the network is told the time.

    Example:
        >>> MatchingConfig(outputs=1).built.noise  # the state stands where the sampler has noise
        1
    """

    inputs: int = 6
    outputs: int = 2
    width: int = 48
    widest: int = 6
    drawn: tuple[int, ...] = (32, 48, 64, 96, 128)
    times: int = 16

    @property
    def built(self) -> SamplerConfig:
        """The network as a sampler's build."""
        return SamplerConfig(
            inputs=self.inputs,
            outputs=self.outputs,
            width=self.width,
            widest=self.widest,
            drawn=self.drawn,
            noise=self.outputs,
            numbers=self.times,
            scale=1.0,
        )


class MatchingNet(nn.Module):
    """Residuals of an estimate by flow matching; asked as a sampler is.

    References:
        Lipman et al., Flow Matching for Generative Modeling, ICLR 2023.

    Arguments:
        config: The size.

    Attributes:
        evaluations: How often the network is evaluated for a sample, an even number: two for each
            step of the midpoint rule.

    Example:
        >>> net = MatchingNet(MatchingConfig(inputs=3, outputs=1, width=4, drawn=(4, 4)))
        >>> noise = torch.randn(2, 5, net.noise_size(10, 12))
        >>> net.draw(net.know(torch.randn(2, 3, 10, 12), torch.tensor([0.1, 0.2])), noise).shape
        torch.Size([2, 5, 1, 10, 12])
    """

    def __init__(self, config: MatchingConfig | None = None) -> None:
        super().__init__()
        self.config = config or MatchingConfig()
        self.built = SamplerNet(self.config.built)
        self.evaluations = 8

    def noise_size(self, height: int, width: int) -> int:
        """How many normal numbers a sample of an image takes."""
        return self.config.outputs * height * width

    def know(self, told: Tensor, share: Tensor) -> Known:
        """All that depends neither on noise nor on time.

        Arguments:
            told: (case, inputs, height, width).
            share: The measured share, (case,).
        """
        return self.built.know(told, share)

    def draw(self, known: Known, noise: Tensor) -> Tensor:
        """Residuals (case, sample, outputs, height, width) of what is known and noise."""
        if self.evaluations < 2 or self.evaluations % 2:
            raise InputError(f"{self.evaluations} evaluations; give an even number, at least 2")
        state = noise.reshape(*noise.shape[:2], self.config.outputs, *known.size)
        steps = self.evaluations // 2
        times = [1 - (1 - k / steps) ** BEND for k in range(steps + 1)]
        for begin, end in pairwise(times):
            half = (end - begin) / 2
            between = state + half * self.velocity(known, state, begin)
            state = state + 2 * half * self.velocity(known, between, begin + half)
        return state * self.sizes(known.share).view(-1, 1, 1, 1, 1)

    def velocity(self, known: Known, state: Tensor, time: float | Tensor) -> Tensor:
        """Where states (case, sample, outputs, height, width) are carried, the same shape.

        Arguments:
            known: What is known of the cases.
            state: The states.
            time: From 0 to 1, one for all, or (case, sample).
        """
        when = torch.as_tensor(time, dtype=state.dtype, device=state.device)
        when = when.expand(state.shape[:2])
        turns = torch.arange(self.config.times, device=state.device, dtype=state.dtype)
        parts = [torch.cos(math.pi * turns * when[..., None])]
        height, width = known.size
        multiple = self.config.built.size_multiple
        x = F.pad(state, (0, -width % multiple, 0, -height % multiple)).flatten(0, 1)
        for level in range(self.config.built.levels):
            # The mean of four independent numbers is half as large: doubled, noise stays as loud.
            x = x if level == 0 else 2 * F.avg_pool2d(x, 2)
            parts.append(x.reshape(*state.shape[:2], -1))
        return self.built.draw(known, torch.cat(parts, dim=2))

    def sizes(self, share: Tensor) -> Tensor:
        """How large residuals are at a measured share, as training saw it, (case,)."""
        squares = self.built.sizes[nearest_acceleration(share), 0]
        return torch.where(squares > 0, squares, 1.0).sqrt()
