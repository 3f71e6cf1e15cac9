"""The flow as a recovery, of whole images or around estimates, and how it is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from taskuq.errors import InputError
from taskuq.measure.coils import rss
from taskuq.protocols import Recover
from taskuq.recover.around import AroundEstimate, check_temperature
from taskuq.recover.cases import RecoveryTraining
from taskuq.recover.estimate import EstimatedCases
from taskuq.recover.flow import ConditionalFlow, FlowConfig, bits_per_dimension
from taskuq.recover.flow.sampler import Sampler
from taskuq.recover.flow_compiled import compile_flow
from taskuq.recover.flow_targets import flow_target, unexplained
from taskuq.recover.flow_widening import set_widening
from taskuq.recover.methods import RECOVERIES
from taskuq.recover.recorded import Replayed
from taskuq.recover.scan import Scan, stacked
from taskuq.recover.varnet_training import estimating_network
from taskuq.recover.views import CoilViews
from taskuq.seeds import numbers_of_cases
from taskuq.settings import read_toml
from taskuq.training.config import TrainingConfig
from taskuq.training.fit import Machine
from taskuq.training.networks import Network
from taskuq.training.recipe import Batch, Recipe

# Trained in minutes.
SMALL = FlowConfig(unet_width=16, condition_channels=16, steps=4, normalise=True)
PRESETS = {
    "paper": FlowConfig(),
    # 128×128, 8 coils: 3.6 million parameters, 7.5 MB in float16.
    "demo": replace(SMALL, noise=0.02, null_noise=0.02),
    # The same size around the estimates of a variational network: 2.5 million parameters.
    "around": replace(
        SMALL,
        coils=1,
        inputs=6,
        unet_width=32,
        unet_pools=3,
        condition_channels=24,
        direct=True,
        layers=3,
        null_noise=0.003,
    ),
    # For teaching and tests: 0.7 million parameters.
    "tiny": replace(SMALL, coils=1, unet_pools=3),
}
PAPER = TrainingConfig(epochs=150, batch=8, learning_rate=1e-4, weight_decay=1e-7, clip=1.0)


class FlowRecovery:
    """Posterior samples by a conditional flow.

    Arguments:
        flow: The flow; it is not changed.
        temperature: Standard deviation of the latents; 1 draws from the posterior.
        options: Of :class:`taskuq.recover.Sampler`: ``device``, ``dtype``, ``memory``.

    Example:
        >>> from taskuq.measure.mri import Measurement
        >>> flow = ConditionalFlow(FlowConfig(coils=1, unet_width=4, unet_pools=2,
        ...                                   condition_channels=4, steps=2))
        >>> scan = Measurement(torch.ones(1, 16, 16) + 0j, torch.ones(16, dtype=torch.bool), 1.0)
        >>> recover = FlowRecovery(flow)
        >>> recover(scan, samples=3, seed=0).shape, recover.rejected
        (torch.Size([3, 16, 16]), 0)
    """

    def __init__(self, flow: ConditionalFlow, *, temperature: float = 1.0, **options: Any) -> None:
        self.sampler = Sampler(flow, finish=rss, **options)
        self.temperature = temperature
        self.rejected = 0

    def __call__(self, measurement: Scan, *, samples: int, seed: int) -> Tensor:
        """Return posterior samples, (sample, height, width); rejected draws are counted."""
        return self.batch([measurement], samples=samples, seeds=[seed])[0]

    def batch(self, measurements: Sequence[Scan], *, samples: int, seeds: Sequence[int]) -> Tensor:
        """Return posterior samples of several cases, (case, sample, height, width)."""
        zero_filled, mask = stacked(measurements)
        drawn = self.sampler(
            zero_filled, mask, samples=samples, seeds=seeds, temperature=self.temperature
        )
        self.rejected += int(drawn.rejected.sum())
        return drawn.images

    def __getstate__(self) -> dict[str, Any]:
        # Recorded GPU work cannot travel to another process; it is recorded there again.
        sampler = copy(self.sampler)
        sampler._recorded = {}
        return {**self.__dict__, "sampler": sampler}


@dataclass(frozen=True)
class FlowMethod:
    """The table ``[recover]`` of a flow.

    Arguments:
        weights: The trained flow: a .safetensors file, or a name of the package's own.
        estimate: For a flow around estimates, its variational network where the TOML beside the
            flow's weights does not name it.
        temperature: Of the flow's latents; by default what the flow's TOML says, else 1, which
            draws what was learned.
        precision: 'auto' draws in bfloat16 on a GPU, and estimates in float16; 'float32' does both
            as a CPU does.
    """

    weights: Path | None = None
    estimate: Path | None = None
    temperature: float | None = None
    precision: Literal["auto", "float32"] = "auto"

    def open(self, device: torch.device | str) -> Recover:
        """Load the flow, and the network around whose estimates it draws, on a device."""
        path, flow = RECOVERIES.trained("flow", self.weights)
        temperature = self.temperature
        if not flow.config.inputs:
            whole = 1.0 if temperature is None else temperature
            dtype = torch.float32 if self.precision == "float32" else None
            return FlowRecovery(flow, device=device, dtype=dtype, temperature=whole)
        card = read_toml(path.with_suffix(".toml"))
        named = self.estimate or card.get("estimate")
        if named is None:
            raise InputError(
                f"{path.name} draws around estimates and does not say whose; name the variational "
                "network it was trained with as 'estimate'"
            )
        if temperature is None:
            temperature = card.get("temperatures") or 1.0
        net = estimating_network(named)
        dtype = torch.float32 if self.precision == "float32" else torch.float16
        return AroundEstimate(flow, net, device=device, temperature=temperature, dtype=dtype)


@dataclass(frozen=True)
class FlowTraining(RecoveryTraining):
    """One TOML file for a flow; the defaults are the paper's.

    Arguments:
        estimate: Weights of a variational network around whose estimates the flow is trained: a
            file, or a name of the package's own. Without them the flow learns whole images, as
            the paper's does.
        temperatures: At what temperature a flow around estimates draws, as pairs of an acceleration
            and a temperature; the TOML beside the weights keeps them. 1 where there are none.
        pretrain: How the conditioning U-Net of a flow of whole images is trained to say what is
            missing, before the flow is; its weights and its curve go to the folder ``pretrain``.
            None as in the paper. A network with ``passes`` needs it.
        views: How coil images are moved before they are measured, in both trainings. None as in
            the paper.

    Example:
        >>> FlowTraining().training.epochs, FlowTraining().training.clip
        (150, 1.0)
    """

    network: FlowConfig = field(default_factory=FlowConfig)
    training: TrainingConfig = PAPER
    estimate: Path | None = None
    temperatures: tuple[tuple[float, float], ...] = ()
    pretrain: TrainingConfig | None = None
    views: CoilViews | None = None

    def __post_init__(self) -> None:
        if self.estimate is not None and (self.pretrain or self.views):
            raise InputError(
                "estimate is given, and pretrain or views, which are for flows of whole images; "
                "leave one of them out"
            )
        if self.network.passes and self.pretrain is None:
            raise InputError(
                f"network.passes is {self.network.passes}, which needs a U-Net that says what is "
                "missing; add the table pretrain"
            )
        if self.temperatures and self.estimate is None:
            raise InputError(
                f"temperatures are {self.temperatures}, for a flow around estimates; name its "
                "'estimate', or leave them out"
            )
        if self.temperatures:
            check_temperature(self.temperatures)

    def prepare(self, machine: Machine, data: Any = None) -> tuple[Any, Any]:
        """Measure the cases, and estimate them where the flow is to be around that."""
        cases = self.measured(machine, data)
        if self.estimate is None:
            return cases
        on_gpu = machine.accelerator != "cpu" and torch.cuda.is_available()
        net = estimating_network(self.estimate).to("cuda" if on_gpu else "cpu")
        training, validation = (
            EstimatedCases.of(part, net, quiet=not machine.progress) for part in cases
        )
        return training, validation

    def recipe(self, cases: Any, machine: Machine) -> Recipe:
        """The flow, to be trained by maximum likelihood."""
        if self.estimate is not None:
            replayed = machine.may_be_one_gpu and self.training.replay
            return around_recipe(self.network, replayed=replayed)
        recipe = flow_recipe(
            self.network,
            compiled=self.training.compile,
            pretrain=self.pretrain,
            views=self.views,
        )
        if not self.network.passes:
            return recipe
        on_gpu = machine.accelerator != "cpu" and torch.cuda.is_available()
        device = "cuda" if on_gpu else "cpu"
        flow = cast(ConditionalFlow, recipe.network)
        return replace(recipe, after=partial(set_widening, flow, cases[1], device=device))


def flow_recipe(
    config: FlowConfig,
    *,
    compiled: bool = False,
    pretrain: TrainingConfig | None = None,
    views: CoilViews | None = None,
) -> Recipe:
    r"""Train a flow by maximum likelihood of what the measurement cannot see.

    .. math:: \min\; -\log p\big((I - A) x + \sigma A \epsilon \mid A x\big), \qquad
              \epsilon \sim \mathcal N(0, I)

    :math:`A` keeps the measured lines. The target :math:`(I - A) x` lies in a subspace and has no
    density of its own; noise of size :math:`\sigma` in the complement, and only there, gives it
    one and leaves the posterior as it is, because data consistency replaces that part of every
    sample. What ``fill``, ``turned`` and ``passes`` of the configuration change of this is in
    :func:`taskuq.recover.flow_targets.flow_target`.

    Arguments:
        config: The size of the flow.
        compiled: Whether to compile the network for training.
        pretrain: How to train the U-Net before, so that little stays unexplained of what is missing
            (:func:`taskuq.recover.flow_targets.unexplained`).
        views: How to move coil images before they are measured.

    Example:
        >>> small = FlowConfig(coils=1, unet_width=4, unet_pools=2, condition_channels=4, steps=2)
        >>> flow_recipe(small).monitor
        'loss'
    """
    flow = ConditionalFlow(config)
    if torch.cuda.is_available():
        # Convolutions of this size run on tensor cores, which read channels last.
        flow.unet.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        flow.conditioner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if compiled:
        compile_flow(flow)
    recipe = _likelihood(flow, _whole, moved=_moving(views))
    return recipe if pretrain is None else replace(recipe, before=(_unet(flow, views), pretrain))


def around_recipe(config: FlowConfig, *, replayed: bool = False) -> Recipe:
    r"""Train a flow by maximum likelihood of the error of an estimate.

    .. math:: \min\; -\log p\big(r + \sigma \epsilon \mid \hat x, y\big), \qquad
              \epsilon \sim \mathcal N(0, I)

    :math:`r` is the combined error of the estimate :math:`\hat x`
    (:meth:`taskuq.recover.estimate.Estimate.error`), :math:`y` the zero-filled image,
    :math:`\sigma` the configuration's ``null_noise``.

    Arguments:
        config: The size of the flow: ``coils=1, inputs=6``.
        replayed: Whether to record a step on the GPU and replay it.

    Example:
        >>> around_recipe(FlowConfig(coils=1, inputs=6, unet_width=4, unet_pools=2)).kind
        'flow'
    """
    return _likelihood(ConditionalFlow(config), _around, replayed=replayed)


# What a flow is told and what it learns, made of a batch.
Pair = Callable[[ConditionalFlow, Batch, torch.Generator], tuple[Tensor, Tensor]]
Move = Callable[[Batch, torch.Generator], Batch]


def _moving(views: CoilViews | None) -> Move:
    if views is None:
        return lambda batch, generator: batch
    return lambda batch, generator: {**batch, "image": views(batch["image"], generator)}


def _unet(flow: ConditionalFlow, views: CoilViews | None) -> Recipe:
    """The flow's U-Net, to be trained to say what is missing."""
    move = _moving(views)

    def loss(net: nn.Module, batch: Batch, generator: torch.Generator) -> Tensor:
        batch = move(batch, generator)
        return torch.stack(unexplained(flow, batch["image"], batch["mask"])).mean()

    return Recipe(
        kind="unet",
        network=flow.unet,
        config=flow.config,
        loss=loss,
        validate=lambda net, batch, generator: {
            "loss": unexplained(flow, batch["image"], batch["mask"])[-1]
        },
    )


def _likelihood(
    flow: ConditionalFlow, pair: Pair, *, moved: Move | None = None, replayed: bool = False
) -> Recipe:
    bits = partial(_bits, flow)
    step = Replayed(flow, bits) if replayed else bits  # of this flow: it is the one trained
    move = moved or _moving(None)

    def start(net: nn.Module, batch: Batch, generator: torch.Generator) -> None:
        told, target = pair(flow, move(batch, generator), generator)
        if not bool(flow.started):
            with torch.no_grad():
                flow(target, flow.condition(told), start=True)

    return Recipe(
        kind="flow",
        network=flow,
        config=flow.config,
        loss=lambda net, batch, generator: step(
            *pair(flow, move(batch, generator), generator)
        ).mean(),
        validate=lambda net, batch, generator: {"loss": bits(*pair(flow, batch, generator))},
        first_batch=start,
    )


def _whole(
    flow: ConditionalFlow, batch: Batch, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    return flow_target(flow, batch["image"], batch["mask"], generator)


def _around(
    flow: ConditionalFlow, batch: Batch, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    error = batch["error"]
    noise = numbers_of_cases(
        torch.randn, error.shape, generator, device=error.device, dtype=error.dtype
    )
    return batch["inputs"], error + flow.config.null_noise * noise


def _bits(flow: ConditionalFlow, told: Tensor, target: Tensor) -> Tensor:
    latents, log_det = flow(target, flow.condition(told))
    return bits_per_dimension(cast(Sequence[Tensor], latents), log_det)


NETWORK = Network(FlowConfig, ConditionalFlow, FlowTraining, FlowMethod, PRESETS, large=True)
