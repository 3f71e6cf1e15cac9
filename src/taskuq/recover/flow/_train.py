"""Training of the flow and its recovery method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from taskuq._config import NonNegative, read_toml
from taskuq._io import complete_record
from taskuq._seeds import mix_seeds, per_case_random
from taskuq.errors import InputError
from taskuq.interval import FloatArray
from taskuq.measure._coils import rss, to_channels, to_complex
from taskuq.measure._fourier import complex_noise, project_measured, project_null_space
from taskuq.protocols import Recover
from taskuq.recover._cases import CoilAugmentation, MaskedDataset, RecoveryTraining
from taskuq.recover._compiled import CompiledStep, GraphedFunction, compile_on_first_call
from taskuq.recover._estimate import EstimateDataset, case_scale, load_estimator
from taskuq.recover._methods import (
    RECOVERIES,
    BatchRecovery,
    MeasurementLike,
    load_network,
    set_float32,
    stack_measurements,
)
from taskuq.recover._varnet import VarNet
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
    ResidualFlowSampler,
    check_temperature,
    gaussian_blur,
    posterior_mean,
)
from taskuq.training._config import Batch, Recipe, TrainingConfig
from taskuq.training._fit import TrainerOptions
from taskuq.training._networks import NetworkKind


def _compile_flow(flow: ConditionalFlow) -> None:
    condition = compile_on_first_call(flow.condition)
    # One function for all steps: those of a kind share its compiled code.
    forward = compile_on_first_call(FlowStep.forward)
    flow.condition = CompiledStep(flow.condition, condition)  # type: ignore[method-assign, assignment]
    for layer in flow.layers:
        for step in layer.steps:  # type: ignore[union-attr]
            plain = partial(FlowStep.forward, step)
            step.forward = CompiledStep(plain, partial(forward, step))


# Pixels and lines of k-space over which the scale of a residual is averaged.
PIXELS, LINES = 3.0, 4.0
# Samples of each case and cases of a batch that fit the inflation, and its bounds.
SAMPLES, BATCH = 8, 16
MIN_INFLATION, MAX_INFLATION = 0.5, 2.0


def _null_space_target(
    flow: ConditionalFlow, batch: Batch, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    config, mask = flow.config, batch["mask"]
    images, measured = _normalised(config, batch["image"], mask)
    with torch.no_grad():
        prior = posterior_mean(config, measured, mask, flow.predict)
    residual = project_null_space(images, mask)
    if prior.images:
        residual = residual - project_null_space(prior.images[-1], mask)
    noise = complex_noise(images, generator)
    in_lines = project_measured(noise, mask)
    target = residual + config.null_noise * (noise - in_lines)
    if config.fill == "noise":
        fill = config.measured_noise * in_lines
    else:
        fill = _residual_fill(prior, residual, mask, noise)
    return prior.condition, to_channels(prior.rotate(target + fill))


def _normalised(config: FlowConfig, images: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    measured = project_measured(images, mask)
    if config.normalise:
        scale = case_scale(measured).view(-1, 1, 1, 1)
        images, measured = images / scale, measured / scale
    return images, measured


def _residual_fill(prior: PosteriorMean, residual: Tensor, mask: Tensor, noise: Tensor) -> Tensor:
    """Return noise for the measured lines that resembles the residual in the other lines."""
    power = to_channels(prior.rotate(residual)).square()
    scales = gaussian_blur(power, PIXELS).clamp_min(0).sqrt()
    white = prior.unrotate(to_complex(scales * to_channels(noise)))
    lost = (~mask).to(scales.dtype)[:, None, :].expand(-1, residual.shape[-2], -1)
    lost = torch.fft.ifftshift(lost, dim=-1)
    power = torch.fft.fft2(residual, norm="ortho").abs().square().sum(1)
    density = gaussian_blur(power, LINES).clamp_min(0) / gaussian_blur(lost, LINES).clamp_min(1e-6)
    mean = power.mean((1, 2), keepdim=True).clamp_min(1e-30)
    gain = (density / mean).sqrt() * (1 - lost)
    fill: Tensor = torch.fft.ifft2(torch.fft.fft2(white) * gain[:, None])
    return fill


def _residual_fraction(flow: ConditionalFlow, images: Tensor, mask: Tensor) -> list[Tensor]:
    images, measured = _normalised(flow.config, images, mask)
    prior = posterior_mean(flow.config, measured, mask, flow.predict)
    passes = prior.images
    if not passes:
        passes = (prior.unrotate(to_complex(flow.predict(prior.condition)[1])),)
    missing = _norm(project_null_space(images, mask)).clamp_min(torch.finfo(torch.float32).tiny)
    return [_norm(project_null_space(image - images, mask)) / missing for image in passes]


def _norm(images: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(torch.view_as_real(images).flatten(1), dim=1)
    return norm


@torch.no_grad()
def _fit_inflation(flow: ConditionalFlow, cases: MaskedDataset, *, device: str) -> None:
    flow.widening.fill_(1)
    sampler = FlowSampler(flow.eval(), device=device)
    masks = torch.as_tensor(cases.masks)
    rates = np.log2(masks.shape[1] / masks.sum(1).numpy())
    factors = np.stack([_inflation(sampler, cases, mask, k) for k, mask in enumerate(masks)])
    order = np.argsort(rates)
    places = np.log2(ACCELERATIONS)
    columns = [np.interp(places, rates[order], column[order]) for column in factors.T]
    flow.widening.copy_(torch.as_tensor(np.stack(columns, axis=1)))


def _inflation(sampler: FlowSampler, cases: MaskedDataset, mask: Tensor, round: int) -> FloatArray:
    error = spread = torch.zeros(sampler.config.channels, device=sampler.device)
    for start in range(0, len(cases), BATCH):
        indices = range(start, min(start + BATCH, len(cases)))
        images = torch.stack([cases[0, index]["image"] for index in indices]).to(sampler.device)
        lines = mask.to(sampler.device).expand(len(images), -1)
        truth, measured = _normalised(sampler.config, images, lines)
        seeds = [mix_seeds(round, index) for index in indices]
        drawn = sampler(measured, lines, samples=SAMPLES, seeds=seeds).images
        prior = posterior_mean(sampler.config, measured, lines, sampler.flow.predict)
        target = to_channels(prior.rotate(truth))
        samples = torch.stack([to_channels(prior.rotate(drawn[:, k])) for k in range(SAMPLES)])
        error = error + (samples.mean(0) - target).square().sum((0, 2, 3))
        spread = spread + samples.var(0).sum((0, 2, 3))
    squared = torch.where(spread > 0, error / spread.clamp_min(1e-30) - 1 / SAMPLES, 1)
    return squared.clamp(MIN_INFLATION**2, MAX_INFLATION**2).sqrt().double().cpu().numpy()


# Trained in minutes.
SMALL = FlowConfig(unet_width=16, condition_channels=16, steps_per_layer=4, normalise=True)
PRESETS = {
    "paper": FlowConfig(),
    # 128×128, 8 coils: 3.6 million parameters, 7.5 MB in float16.
    "demo": replace(SMALL, measured_noise=0.02, null_noise=0.02),
    # The same size around the estimates of a variational network: 2.5 million parameters.
    "around": replace(
        SMALL,
        coils=1,
        in_channels=6,
        unet_width=32,
        unet_pools=3,
        condition_channels=24,
        condition_skip=True,
        layers=3,
        null_noise=0.003,
    ),
    # For teaching and tests: 0.7 million parameters.
    "tiny": replace(SMALL, coils=1, unet_pools=3),
}
PAPER = TrainingConfig(epochs=150, batch=8, learning_rate=1e-4, weight_decay=1e-7, clip_norm=1.0)


class FlowRecovery(BatchRecovery):
    """Posterior samples by a conditional flow.

    Args:
        flow: Flow; it is not modified.
        temperature: Standard deviation of the latents; 1 samples the posterior.
        options: ``device``, ``dtype`` and ``memory`` of :class:`FlowSampler`.

    Example:
        >>> from taskuq.measure._mri import MRIMeasurement
        >>> flow = ConditionalFlow(FlowConfig(coils=1, unet_width=4, unet_pools=2,
        ...                                   condition_channels=4, steps_per_layer=2))
        >>> scan = MRIMeasurement(torch.ones(1, 16, 16) + 0j, torch.ones(16, dtype=torch.bool), 1.0)
        >>> recover = FlowRecovery(flow)
        >>> recover(scan, samples=3, seed=0).shape, recover.rejected
        (torch.Size([3, 16, 16]), 0)
    """

    def __init__(self, flow: ConditionalFlow, *, temperature: float = 1.0, **options: Any) -> None:
        self.sampler = FlowSampler(flow, finish=rss, **options)
        self.temperature = temperature
        self.rejected = 0

    def batch(
        self, measurements: Sequence[MeasurementLike], *, samples: int, seeds: Sequence[int]
    ) -> Tensor:
        y, mask = stack_measurements(measurements)
        result = self.sampler(y, mask, samples=samples, seeds=seeds, temperature=self.temperature)
        self.rejected += int(result.rejected.sum())
        return result.images

    def __getstate__(self) -> dict[str, Any]:
        # CUDA graphs cannot be pickled; they are captured again in another process.
        sampler = copy(self.sampler)
        sampler._graphs = {}
        return {**self.__dict__, "sampler": sampler}


@dataclass(frozen=True)
class FlowMethod:
    """Settings of [recover] for a flow."""

    weights: Path | None = None  #: Trained flow: weights file or bundled name.
    #: Weights of the VarNet whose residuals the flow samples; default: those used in training.
    estimate: Path | None = None
    #: Standard deviation of the latents; default: the value stored with the weights, or 1.
    temperature: NonNegative | None = None
    #: Precision; on a GPU, "auto" uses bfloat16 for samples and float16 for the estimate.
    precision: Literal["auto", "float32"] = "auto"

    def open(self, device: torch.device | str) -> Recover:
        path, flow = RECOVERIES.trained("flow", self.weights)
        temperature, exact = self.temperature, set_float32(self.precision)
        if not flow.config.in_channels:
            temperature = 1.0 if temperature is None else temperature
            dtype = torch.float32 if exact else None
            return FlowRecovery(flow, device=device, dtype=dtype, temperature=temperature)
        net = load_estimator(path, self.estimate, VarNet)
        if temperature is None:
            with complete_record(path, "network with a model card"):
                temperature = read_toml(path.with_suffix(".toml")).get("temperatures") or 1.0
                check_temperature(temperature)
        half = torch.float32 if exact else torch.float16
        return ResidualFlowSampler(flow, net, device=device, temperature=temperature, dtype=half)


@dataclass(frozen=True)
class _FlowTraining(RecoveryTraining):
    """Settings for training a flow; the defaults are the paper's."""

    network: FlowConfig = field(default_factory=FlowConfig)
    training: TrainingConfig = PAPER
    #: VarNet weights; if set, a flow of its residuals is trained, otherwise of whole images.
    estimate: Path | None = None
    #: Temperatures of a residual flow: pairs (acceleration, temperature), interpolated in between.
    temperatures: tuple[tuple[float, float], ...] = ()
    #: Settings of [training] for pre-training the conditioning U-Net.
    pretrain: TrainingConfig | None = None
    augment: CoilAugmentation | None = None  #: Augmentation of coil images.

    def __post_init__(self) -> None:
        if self.estimate is not None and (self.pretrain or self.augment):
            raise InputError("estimate excludes pretrain and augment", code="option.conflict")
        if self.network.mean_passes and self.pretrain is None:
            raise InputError("network.mean_passes needs a table [pretrain]", code="option.missing")
        if self.temperatures and self.estimate is None:
            text = "temperatures are for residual flows; set estimate, or remove them"
            raise InputError(text, code="option.missing")
        if self.temperatures:
            check_temperature(self.temperatures)

    def prepare(self, machine: TrainerOptions, data: Any = None) -> tuple[Any, ...]:
        cases = self.measured(machine, data)
        if self.estimate is None:
            return cases
        net = load_network(self.estimate, VarNet).to(_device(machine))
        return tuple(EstimateDataset.of(part, net, quiet=not machine.progress) for part in cases)

    def recipe(self, cases: Any, machine: TrainerOptions) -> Recipe:
        flow = ConditionalFlow(self.network)
        if self.estimate is not None:
            graphs = machine.may_be_one_gpu and self.training.cuda_graphs
            return _likelihood_recipe(flow, _residual_pair, cuda_graphs=graphs)
        if torch.cuda.is_available():
            # Convolutions of this size run on tensor cores, which read channels last.
            flow.unet.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            flow.conditioner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.training.compile:
            _compile_flow(flow)
        recipe = _likelihood_recipe(flow, _null_space_target, augment=self.augment)
        if self.pretrain is not None:
            recipe = replace(recipe, pretraining=(self._mean_recipe(flow), self.pretrain))
        if not self.network.mean_passes:
            return recipe
        fit = partial(_fit_inflation, flow, cases[1], device=_device(machine))
        return replace(recipe, on_end=fit)

    def _mean_recipe(self, flow: ConditionalFlow) -> Recipe:
        def missing(batch: Batch) -> list[Tensor]:
            return _residual_fraction(flow, batch["image"], batch["mask"])

        def loss(net: nn.Module, batch: Batch, generator: torch.Generator) -> Tensor:
            return torch.stack(missing(_augmented(batch, self.augment, generator))).mean()

        return Recipe(
            kind="unet",
            network=flow.unet,
            config=self.network,
            loss=loss,
            validate=lambda net, batch, generator: {"loss": missing(batch)[-1]},
        )


def _device(machine: TrainerOptions) -> str:
    return "cuda" if machine.accelerator != "cpu" and torch.cuda.is_available() else "cpu"


# A batch to condition and target of the flow.
Pair = Callable[[ConditionalFlow, Batch, torch.Generator], tuple[Tensor, Tensor]]


def _augmented(batch: Batch, augment: CoilAugmentation | None, generator: torch.Generator) -> Batch:
    return batch if augment is None else {**batch, "image": augment(batch["image"], generator)}


def _likelihood_recipe(
    flow: ConditionalFlow,
    pair: Pair,
    *,
    augment: CoilAugmentation | None = None,
    cuda_graphs: bool = False,
) -> Recipe:
    def bits(condition: Tensor, target: Tensor) -> Tensor:
        latents, log_det = flow(target, flow.condition(condition))
        return bits_per_dimension(cast(Sequence[Tensor], latents), log_det)

    step = GraphedFunction(flow, bits) if cuda_graphs else bits

    def training_pair(batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return pair(flow, _augmented(batch, augment, generator), generator)

    def start(net: nn.Module, batch: Batch, generator: torch.Generator) -> None:
        condition, target = training_pair(batch, generator)
        if not bool(flow.started):
            with torch.no_grad():
                flow(target, flow.condition(condition), start=True)

    return Recipe(
        kind="flow",
        network=flow,
        config=flow.config,
        loss=lambda net, batch, generator: step(*training_pair(batch, generator)).mean(),
        validate=lambda net, batch, generator: {"loss": bits(*pair(flow, batch, generator))},
        example_batch=start,
    )


def _residual_pair(
    flow: ConditionalFlow, batch: Batch, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    error = batch["error"]
    noise = per_case_random(
        torch.randn, error.shape, generator, device=error.device, dtype=error.dtype
    )
    return batch["inputs"], error + flow.config.null_noise * noise


NETWORK = NetworkKind(FlowConfig, ConditionalFlow, _FlowTraining, FlowMethod, PRESETS, large=True)
