"""Flow: method and training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from taskuq._config import read_toml
from taskuq._seeds import mix_seeds, per_case_random
from taskuq.errors import InputError
from taskuq.measure._coils import rss, to_channels, to_complex
from taskuq.measure._fourier import complex_noise, project_measured, project_null_space
from taskuq.protocols import Recover
from taskuq.recover._cases import CoilAugmentation, MaskedDataset, RecoveryTraining
from taskuq.recover._compiled import CompiledStep, GraphedFunction, compile_on_first_call
from taskuq.recover._estimate import EstimateDataset
from taskuq.recover._methods import RECOVERIES, MeasurementLike, stack_measurements
from taskuq.recover._varnet_training import estimating_network
from taskuq.recover.flow._around import ResidualFlowSampler, check_temperature
from taskuq.recover.flow._model import (
    ACCELERATIONS,
    ConditionalFlow,
    FlowConfig,
    FlowStep,
    bits_per_dimension,
)
from taskuq.recover.flow._sample import (
    FlowSampler,
    PosteriorMean,
    case_scale,
    gaussian_blur,
    posterior_mean,
)
from taskuq.training._config import Batch, Recipe, TrainingConfig
from taskuq.training._fit import TrainerOptions
from taskuq.training._networks import NetworkKind


def _compile_flow(flow: ConditionalFlow) -> None:
    """Compile the conditioning networks and the steps of a flow, in place, for training."""
    condition = compile_on_first_call(flow.condition)
    # One function for all steps: those of a kind share what is compiled.
    forward = compile_on_first_call(FlowStep.forward)
    flow.condition = CompiledStep(flow.condition, condition)  # type: ignore[method-assign, assignment]
    for layer in flow.layers:
        for step in layer.steps:  # type: ignore[union-attr]
            plain = partial(FlowStep.forward, step)
            step.forward = CompiledStep(plain, partial(forward, step))


# Over how many pixels, and over how many lines of k-space, the size of a residual is averaged.
PIXELS, LINES = 3.0, 4.0


def _null_space_target(
    flow: ConditionalFlow, images: Tensor, mask: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the condition and null-space target of the flow."""
    config = flow.config
    images, measured = _scaled(config, images, mask)
    with torch.no_grad():
        found = posterior_mean(config, measured, mask, flow.predict)
    residual = project_null_space(images, mask)
    if found.images:
        residual = residual - project_null_space(found.images[-1], mask)
    noise = complex_noise(images, generator)
    seen = project_measured(noise, mask)
    target = residual + config.null_noise * (noise - seen)
    if config.fill == "noise":
        target = target + config.noise * seen
    else:
        target = target + _residual_fill(found, residual, mask, noise)
    return found.told, to_channels(found.turned(target))


def _scaled(config: FlowConfig, images: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """True and zero-filled images, in the units of the flow."""
    measured = project_measured(images, mask)
    if config.normalise:
        scale = case_scale(measured).view(-1, 1, 1, 1)
        images, measured = images / scale, measured / scale
    return images, measured


def _residual_fill(found: PosteriorMean, residual: Tensor, mask: Tensor, noise: Tensor) -> Tensor:
    """Noise for the measured lines that is like the residual in the others."""
    sizes = gaussian_blur(to_channels(found.turned(residual)).square(), PIXELS).clamp_min(0).sqrt()
    white = found.back(to_complex(sizes * to_channels(noise)))
    lost = (~mask).to(sizes.dtype)[:, None, :].expand(-1, residual.shape[-2], -1)
    lost = torch.fft.ifftshift(lost, dim=-1)
    power = torch.fft.fft2(residual, norm="ortho").abs().square().sum(1)
    density = gaussian_blur(power, LINES).clamp_min(0) / gaussian_blur(lost, LINES).clamp_min(1e-6)
    mean = power.mean((1, 2), keepdim=True).clamp_min(1e-30)
    gain = (density / mean).sqrt() * (1 - lost)
    fill: Tensor = torch.fft.ifft2(torch.fft.fft2(white) * gain[:, None])
    return fill


def _residual_fraction(flow: ConditionalFlow, images: Tensor, mask: Tensor) -> list[Tensor]:
    """Return the fraction of missing energy after each pass."""
    images, measured = _scaled(flow.config, images, mask)
    found = posterior_mean(flow.config, measured, mask, flow.predict)
    said = found.images
    if not said:
        said = (found.back(to_complex(flow.predict(found.told)[1])),)
    missing = _size(project_null_space(images, mask)).clamp_min(torch.finfo(torch.float32).tiny)
    return [_size(project_null_space(image - images, mask)) / missing for image in said]


def _size(images: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(torch.view_as_real(images).flatten(1), dim=1)
    return size


# Samples of each case, cases that are drawn together, and between what a factor stays.
SAMPLES, TOGETHER = 8, 16
NARROWEST, WIDEST = 0.5, 2.0


@torch.no_grad()
def _fit_inflation(flow: ConditionalFlow, cases: MaskedDataset, *, device: str) -> None:
    """Fit residual inflation per acceleration."""
    flow.widening.fill_(1)
    sampler = FlowSampler(flow.eval(), device=device)
    masks = torch.as_tensor(cases.masks)
    rates = np.log2(masks.shape[1] / masks.sum(1).numpy())
    factors = np.stack([_factors(sampler, cases, mask, place) for place, mask in enumerate(masks)])
    order = np.argsort(rates)
    places = np.log2(ACCELERATIONS)
    columns = [np.interp(places, rates[order], column[order]) for column in factors.T]
    flow.widening.copy_(torch.as_tensor(np.stack(columns, axis=1)))


def _factors(
    sampler: FlowSampler, cases: MaskedDataset, mask: Tensor, place: int
) -> NDArray[np.float64]:
    """The factor of each real channel at one acceleration."""
    error = spread = torch.zeros(sampler.config.channels, device=sampler.device)
    for start in range(0, len(cases), TOGETHER):
        numbers = range(start, min(start + TOGETHER, len(cases)))
        images = torch.stack([cases[0, index]["image"] for index in numbers]).to(sampler.device)
        lines = mask.to(sampler.device).expand(len(images), -1)
        truth, measured = _scaled(sampler.config, images, lines)
        seeds = [mix_seeds(place, index) for index in numbers]
        drawn = sampler(measured, lines, samples=SAMPLES, seeds=seeds).images
        found = posterior_mean(sampler.config, measured, lines, sampler.folded.unet.predict)
        true = to_channels(found.turned(truth))
        each = [to_channels(found.turned(drawn[:, k])) for k in range(SAMPLES)]
        samples = torch.stack(each)
        error = error + (samples.mean(0) - true).square().sum((0, 2, 3))
        spread = spread + samples.var(0).sum((0, 2, 3))
    squared = torch.where(spread > 0, error / spread.clamp_min(1e-30) - 1 / SAMPLES, 1)
    return squared.clamp(NARROWEST**2, WIDEST**2).sqrt().double().cpu().numpy()


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
        options: Of :class:`taskuq.recover.flow._sample.FlowSampler`: ``device``, ``dtype``, ``memory``.

    Example:
        >>> from taskuq.measure._mri import MRIMeasurement
        >>> flow = ConditionalFlow(FlowConfig(coils=1, unet_width=4, unet_pools=2,
        ...                                   condition_channels=4, steps=2))
        >>> scan = MRIMeasurement(torch.ones(1, 16, 16) + 0j, torch.ones(16, dtype=torch.bool), 1.0)
        >>> recover = FlowRecovery(flow)
        >>> recover(scan, samples=3, seed=0).shape, recover.rejected
        (torch.Size([3, 16, 16]), 0)
    """

    def __init__(self, flow: ConditionalFlow, *, temperature: float = 1.0, **options: Any) -> None:
        self.sampler = FlowSampler(flow, finish=rss, **options)
        self.temperature = temperature
        self.rejected = 0

    def __call__(self, measurement: MeasurementLike, *, samples: int, seed: int) -> Tensor:
        """Return posterior samples, (sample, height, width); rejected draws are counted."""
        return self.batch([measurement], samples=samples, seeds=[seed])[0]

    def batch(
        self, measurements: Sequence[MeasurementLike], *, samples: int, seeds: Sequence[int]
    ) -> Tensor:
        """Return posterior samples of several cases, (case, sample, height, width)."""
        zero_filled, mask = stack_measurements(measurements)
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
    """The table ``[recover]`` of a flow."""

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
        return ResidualFlowSampler(flow, net, device=device, temperature=temperature, dtype=dtype)


@dataclass(frozen=True)
class _FlowTraining(RecoveryTraining):
    """One TOML file for a flow; the defaults are the paper's."""

    network: FlowConfig = field(default_factory=FlowConfig)
    training: TrainingConfig = PAPER
    estimate: Path | None = None
    temperatures: tuple[tuple[float, float], ...] = ()
    pretrain: TrainingConfig | None = None
    views: CoilAugmentation | None = None

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

    def prepare(self, machine: TrainerOptions, data: Any = None) -> tuple[Any, Any]:
        """Measure the cases, and estimate them where the flow is to be around that."""
        cases = self.measured(machine, data)
        if self.estimate is None:
            return cases
        on_gpu = machine.accelerator != "cpu" and torch.cuda.is_available()
        net = estimating_network(self.estimate).to("cuda" if on_gpu else "cpu")
        training, validation = (
            EstimateDataset.of(part, net, quiet=not machine.progress) for part in cases
        )
        return training, validation

    def recipe(self, cases: Any, machine: TrainerOptions) -> Recipe:
        """The flow, to be trained by maximum likelihood."""
        if self.estimate is not None:
            replayed = machine.may_be_one_gpu and self.training.replay
            return _residual_flow_recipe(self.network, replayed=replayed)
        recipe = _flow_recipe(
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
        return replace(recipe, on_end=partial(_fit_inflation, flow, cases[1], device=device))


def _flow_recipe(
    config: FlowConfig,
    *,
    compiled: bool = False,
    pretrain: TrainingConfig | None = None,
    views: CoilAugmentation | None = None,
) -> Recipe:
    """Train a flow by maximum likelihood of what the measurement cannot see."""
    flow = ConditionalFlow(config)
    if torch.cuda.is_available():
        # Convolutions of this size run on tensor cores, which read channels last.
        flow.unet.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        flow.conditioner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if compiled:
        _compile_flow(flow)
    recipe = _likelihood(flow, _whole, moved=_moving(views))
    return recipe if pretrain is None else replace(recipe, pretraining=(_unet(flow, views), pretrain))


def _residual_flow_recipe(config: FlowConfig, *, replayed: bool = False) -> Recipe:
    """Recipe of a residual flow."""
    return _likelihood(ConditionalFlow(config), _around, replayed=replayed)


# What a flow is told and what it learns, made of a batch.
Pair = Callable[[ConditionalFlow, Batch, torch.Generator], tuple[Tensor, Tensor]]
Move = Callable[[Batch, torch.Generator], Batch]


def _moving(views: CoilAugmentation | None) -> Move:
    if views is None:
        return lambda batch, generator: batch
    return lambda batch, generator: {**batch, "image": views(batch["image"], generator)}


def _unet(flow: ConditionalFlow, views: CoilAugmentation | None) -> Recipe:
    """The flow's U-Net, to be trained to say what is missing."""
    move = _moving(views)

    def loss(net: nn.Module, batch: Batch, generator: torch.Generator) -> Tensor:
        batch = move(batch, generator)
        return torch.stack(_residual_fraction(flow, batch["image"], batch["mask"])).mean()

    return Recipe(
        kind="unet",
        network=flow.unet,
        config=flow.config,
        loss=loss,
        validate=lambda net, batch, generator: {
            "loss": _residual_fraction(flow, batch["image"], batch["mask"])[-1]
        },
    )


def _likelihood(
    flow: ConditionalFlow, pair: Pair, *, moved: Move | None = None, replayed: bool = False
) -> Recipe:
    bits = partial(_bits, flow)
    step = GraphedFunction(flow, bits) if replayed else bits  # of this flow: it is the one trained
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
        example_batch=start,
    )


def _whole(
    flow: ConditionalFlow, batch: Batch, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    return _null_space_target(flow, batch["image"], batch["mask"], generator)


def _around(
    flow: ConditionalFlow, batch: Batch, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    error = batch["error"]
    noise = per_case_random(
        torch.randn, error.shape, generator, device=error.device, dtype=error.dtype
    )
    return batch["inputs"], error + flow.config.null_noise * noise


def _bits(flow: ConditionalFlow, told: Tensor, target: Tensor) -> Tensor:
    latents, log_det = flow(target, flow.condition(told))
    return bits_per_dimension(cast(Sequence[Tensor], latents), log_det)


NETWORK = NetworkKind(FlowConfig, ConditionalFlow, _FlowTraining, FlowMethod, PRESETS, large=True)
