"""Train the sampler's rival on the same cases, and open it as a recovery."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from taskuq.recover.cases import RecoveryTraining
from taskuq.recover.estimate import Estimate
from taskuq.recover.folds import Estimating, HonestEstimates, collate
from taskuq.recover.matching.network import MatchingConfig, MatchingNet
from taskuq.recover.methods import RECOVERIES
from taskuq.recover.quick_steps import quick_steps
from taskuq.recover.sampler.learning import sizes_after
from taskuq.recover.sampler.network import SamplerNet, nearest_acceleration
from taskuq.recover.sampler.recovery import SamplerRecovery
from taskuq.recover.sampler_training import PAPER, PRESETS, SamplerTraining, estimates_beside
from taskuq.recover.scans import AnyScan
from taskuq.recover.varnet_training import estimating_network
from taskuq.recover.views import CoilViews
from taskuq.training.config import TrainingConfig
from taskuq.training.fit import Machine
from taskuq.training.networks import Network
from taskuq.training.recipe import Batch, Recipe

# A batch to estimated cases and their residuals, (case, 2, height, width).
Residuals = Callable[[Batch, torch.Generator], tuple[Estimate, Tensor]]

NETWORKS = {
    name: MatchingConfig(c.inputs, c.outputs, c.width, c.widest, c.drawn)
    for name, c in PRESETS.items()
}


@dataclass(frozen=True)
class MatchingMethod:
    """The table ``[recover]`` of flow matching around estimates.

    Arguments:
        weights: The trained network: a .safetensors file.
        estimate: Its variational network, where neither the TOML beside the weights nor the folder
            ``estimate`` there names it.
        precision: 'auto' draws in bfloat16 on a GPU, 'float32' as a CPU does.
        evaluations: How often the network is evaluated for a sample, an even number.
    """

    weights: Path | None = None
    estimate: Path | None = None
    precision: Literal["auto", "float32"] = "auto"
    evaluations: int = 8

    def open(self, device: torch.device | str) -> SamplerRecovery:
        """Load the network, and the one around whose estimates it draws, on a device."""
        path, net = RECOVERIES.trained("matching", self.weights)
        net.evaluations = self.evaluations
        dtype = torch.float32 if self.precision == "float32" else None
        estimates = estimates_beside(path, self.estimate, device, self.precision)
        # Asked as a sampler is: to know a case, and to draw from noise.
        return SamplerRecovery(cast(SamplerNet, net.to(device)), estimates, dtype=dtype)


@dataclass(frozen=True)
class MatchingTraining(RecoveryTraining):
    """One TOML file for flow matching around estimates, and for the networks that estimate.

    Arguments:
        estimate: Whose estimates are drawn around, and how training patients get honest ones.
        views: How images are moved before they are measured, in all trainings.
        scans: How masks, coils, noise and contrast differ from case to case, in all trainings and
            in validation; by default every case is seen through a mask of ``[measure]``.
        draws: Times and noises for each case in a step.

    Example:
        >>> MatchingTraining().draws, MatchingTraining().network.times
        (4, 16)
    """

    network: MatchingConfig = field(default_factory=lambda: NETWORKS["paper"])
    training: TrainingConfig = PAPER
    estimate: Estimating = field(default_factory=Estimating)
    views: CoilViews | None = None
    scans: AnyScan | None = None
    draws: int = 4

    def prepare(self, machine: Machine, data: Any = None) -> tuple[Any, ...]:
        """Measure the cases."""
        return self._as_sampler().prepare(machine, data)

    def stages(
        self,
        cases: tuple[Any, ...],
        folder: Path,
        *,
        machine: Machine,
        fresh: bool,
        steps: int | None,
    ) -> tuple[Any, ...]:
        """Train the networks that estimate, and say which of them estimates which case."""
        before = self._as_sampler()
        return before.stages(cases, folder, machine=machine, fresh=fresh, steps=steps)

    def _as_sampler(self) -> SamplerTraining:
        """A sampler's training, which has the same cases and estimates."""
        return SamplerTraining(
            training=self.training,
            data=self.data,
            measure=self.measure,
            estimate=self.estimate,
            views=self.views,
            scans=self.scans,
        )

    def recipe(self, cases: tuple[Any, ...], machine: Machine) -> Recipe:
        """The velocity, to be trained by squares."""
        replayed = machine.may_be_one_gpu and self.training.replay
        nets = [estimating_network(path) for path in cases[2]]
        honest = HonestEstimates(nets, self.views, self.scans, replayed=replayed)
        quick = partial(quick_steps, is_replayed=replayed, is_compiled=self.training.compile)
        recipe = matching_recipe(self.network, honest.residuals, self.draws, quick)
        return replace(recipe, collate=collate)


def matching_recipe(
    config: MatchingConfig,
    residuals: Residuals,
    draws: int = 4,
    quick: Callable[..., Callable[..., Tensor]] = quick_steps,
) -> Recipe:
    r"""Train a velocity to carry noise to residuals along straight lines.

    .. math:: \mathbb E\, \big\| v\big((1 - t) u_0 + t u_1, t, \text{told}\big) - (u_1 - u_0)
              \big\|^2

    :math:`u_1` is a residual, divided by the root of the running mean square at its measured
    share, so that every share counts alike.

    Arguments:
        config: The size of the network.
        residuals: What makes estimated cases and their residuals of a batch.
        draws: Times and noises for each case.
        quick: What makes training steps quicker, of the network and what is computed with it.

    Example:
        >>> matching_recipe(MatchingConfig(width=4, drawn=(4, 4)), print).kind
        'matching'
    """
    trained = MatchingNet(config)

    def velocity(told: Tensor, share: Tensor, state: Tensor, time: Tensor) -> Tensor:
        return trained.velocity(trained.know(told, share), state, time)

    carry = quick(trained, velocity)

    def loss(net: nn.Module, batch: Batch, generator: torch.Generator) -> Tensor:
        found, target = residuals(batch, generator)
        net = cast(MatchingNet, net)
        squares = target.square().mean((1, 2, 3))[:, None]
        sizes_after(net.built.sizes, nearest_acceleration(found.share()), squares)
        return _missed(net, carry, found, target, draws, generator).mean()

    def validate(net: nn.Module, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        found, target = residuals(batch, generator)
        return {"loss": _missed(cast(MatchingNet, net), carry, found, target, draws, generator)}

    return Recipe("matching", trained, config, loss, validate)


def _missed(
    net: MatchingNet,
    carry: Callable[..., Tensor],
    found: Estimate,
    target: Tensor,
    draws: int,
    generator: torch.Generator,
) -> Tensor:
    """By how much the velocity misses, squared, (case,)."""
    share, device = found.share(), target.device
    end = (target / net.sizes(share).view(-1, 1, 1, 1))[:, None]
    cases, size = len(end), end.shape[2:]
    begin = torch.randn((cases, draws, *size), generator=generator, device=device)
    time = torch.rand((cases, draws), generator=generator, device=device)
    state = begin + time[..., None, None, None] * (end - begin)
    velocity = carry(found.inputs(), share, state, time)
    missed: Tensor = (velocity - (end - begin)).square().mean((1, 2, 3, 4))
    return missed


NETWORK = Network(
    MatchingConfig, MatchingNet, MatchingTraining, MatchingMethod, NETWORKS, large=True
)
