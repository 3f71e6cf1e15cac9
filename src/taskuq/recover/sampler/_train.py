"""Training of the one-step sampler with proper scoring rules, and its recovery method."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from taskuq._config import NonNegative, Size, Unit, Within, check_ranges
from taskuq._seeds import per_case_random
from taskuq.errors import InputError
from taskuq.recover._cases import CoilAugmentation, RecoveryTraining, ScanRandomisation
from taskuq.recover._compiled import Step, accelerate, inference_varnet
from taskuq.recover._estimate import (
    CrossFitEstimates,
    EstimateConfig,
    VarNetEstimate,
    collate,
    load_estimator,
    varnet_estimate,
)
from taskuq.recover._methods import (
    RECOVERIES,
    MeasurementLike,
    init_weights,
    load_network,
    rescale_pow2,
    set_float32,
    stack_measurements,
)
from taskuq.recover._varnet import VarNet
from taskuq.recover._varnet_training import VarNetTraining
from taskuq.recover.sampler._network import (
    ACCELERATIONS,
    NORMS,
    SCORES,
    SamplerConfig,
    SamplerNet,
    nearest_acceleration,
    unflatten_samples,
)
from taskuq.recover.sampler._sample import ConditionedBatch, SamplerRecovery
from taskuq.training._config import Batch, Recipe, TrainingConfig
from taskuq.training._fit import TrainerOptions
from taskuq.training._networks import NETWORKS, NetworkKind
from taskuq.training._weights import locate, read_card


def _fair_crps(samples: Tensor, truth: Tensor) -> Tensor:
    """Return the fair CRPS averaged over all values of a case, (case,)."""
    return _fair_score(torch.abs, samples, truth).reshape(len(truth), -1).mean(1)


def _energy_score(samples: Tensor, truth: Tensor) -> Tensor:
    """Return the fair energy score of each case, (case,); all values of a case form one vector."""
    norm = partial(torch.linalg.vector_norm, dim=-1)  # its derivative at 0 is taken as 0
    truth = truth.flatten(1)
    return _fair_score(norm, samples.flatten(2), truth) / math.sqrt(truth.shape[1])


def _fair_score(size: Callable[[Tensor], Tensor], samples: Tensor, truth: Tensor) -> Tensor:
    if samples.shape[:1] + samples.shape[2:] != truth.shape or samples.shape[1] < 2:
        text = "samples must be (case, at least two, ...) and the truth (case, ...), got "
        text += f"{tuple(samples.shape)} and {tuple(truth.shape)}"
        raise InputError(text, code="shape.mismatch")
    return size(samples - truth[:, None]).mean(1) - _half_distance(size, samples)


def _half_distance(size: Callable[[Tensor], Tensor], samples: Tensor) -> Tensor:
    """Return half of the mean distance of two different samples."""
    count = samples.shape[1]
    pairs = sum(size(samples[:, k:] - samples[:, k - 1 : k]).sum(1) for k in range(1, count))
    return torch.as_tensor(pairs / (count * (count - 1)))


@dataclass(frozen=True)
class ImageLossConfig:
    """Settings of [loss]: weights of the proper scoring rules for images."""

    crps: NonNegative = 1.0  #: Weight of the fair CRPS of pixels.
    energy: NonNegative = 0.5  #: Weight of the energy score.
    pooled_crps: NonNegative = 0.5  #: Weight of the fair CRPS of average-pooled images.
    pool_sizes: tuple[Size, ...] = (2, 4, 8, 16, 32)  #: Sizes of the pooling windows, in pixels.

    def __post_init__(self) -> None:
        check_ranges(self)
        if not max(self.crps, self.energy, self.pooled_crps) > 0:
            raise InputError("[loss] needs at least one weight above 0", code="value.invalid")

    def __call__(self, samples: Tensor, truth: Tensor) -> Tensor:
        score = self.crps * _fair_crps(samples, truth)
        score = score + self.energy * _energy_score(samples, truth)
        for side in self.pool_sizes if self.pooled_crps else ():
            if side <= min(truth.shape[-2:]):
                part = _fair_crps(F.avg_pool2d(samples, side), F.avg_pool2d(truth, side))
                score = score + self.pooled_crps * part
        return score


SampleCount = Annotated[int, Within("[2, 1e6]")]
# Decay of the running means of losses, and samples of a validation case.
DECAY, VALIDATION_SAMPLES = 0.98, 8
# Change of the reward for spread in a step, and its range.
REWARD_RATE, REWARDS = 0.01, (-0.5, 4.0)
# Values of a task network that are scored, and their weight, all together, next to the images' when
# checkpoints are compared.
TASK_SCORES, TASK_WEIGHT = ("raw", "output", "features"), 0.25
# A batch to estimates and true images, (case, height, width).
Estimate = Callable[[Batch, torch.Generator], tuple[ConditionedBatch, Tensor]]


@runtime_checkable
class _FeatureTask(Protocol):
    def inside(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...


@dataclass(frozen=True)
class TaskLossConfig:
    """Settings of [task_loss]: weights of the proper scoring rules for a task network."""

    weights: Path | None = None  #: Task network; its weights are not trained.
    logits: NonNegative = 0.1  #: Weight of the fair CRPS of logits.
    outputs: NonNegative = 0.1  #: Weight of the fair CRPS of outputs.
    features: NonNegative = 0.1  #: Weight of the energy score of hidden features.
    #: Maximum ratio of the gradient norm of the task loss to that of the image loss.
    gradient_limit: NonNegative = 4.0
    ramp_start: Unit = 0.5  #: Fraction of the training at which the task loss begins.
    ramp_end: Unit = 0.75  #: Fraction of the training at which the task loss has its full weight.

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.ramp_start > self.ramp_end:
            text = f"task_loss.ramp_start is {self.ramp_start:g}, above ramp_end {self.ramp_end:g}"
            raise InputError(text, code="value.invalid")

    def fade(self, progress: float) -> float:
        if progress >= self.ramp_end:
            return 1.0
        return max(0.0, (progress - self.ramp_start) / max(self.ramp_end - self.ramp_start, 1e-9))


@dataclass(frozen=True)
class SamplerLoss:
    estimate: Estimate
    image: ImageLossConfig = field(default_factory=ImageLossConfig)
    samples: int = 4
    task_loss: TaskLossConfig | None = None
    task: _FeatureTask | None = None
    forward: Step | None = None  # accelerated, of the network

    def __call__(self, net: nn.Module, batch: Batch, generator: torch.Generator) -> Tensor:
        net = cast(SamplerNet, net)
        estimates, truth, images = self._sample(
            net, self.forward or net, batch, self.samples, generator
        )
        place = nearest_acceleration(estimates.sampled_fraction())
        task_loss = self.task_loss
        fade = task_loss.fade(batch["progress"]) if task_loss else 0.0
        if task_loss is None or not fade:
            score = self.image(images, truth)[:, None]
            return (score / _update_running_means(net.sizes, place, score)).mean()
        # Gradients at the images, separately; then back through the network once.
        leaf = images.detach().requires_grad_()
        score, pairs = self.image(leaf, truth)[:, None], self._task_values(leaf, truth)
        task_scores = _task_scores(pairs)
        spreads = [_half_distance(torch.abs, x).flatten(1).mean(1) for x, _ in pairs[:2]]
        scores = torch.cat([score, task_scores, spreads[0][:, None]], dim=1).detach()
        sizes = _update_running_means(net.sizes, place, scores)
        rewards = _update_rewards(net.sizes)[place]
        own = (score / sizes[:, :1]).mean()
        # Python numbers, not a tensor, whose copy a GPU would wait for.
        weights = task_loss.logits, task_loss.outputs, task_loss.features
        parts = list((task_scores / sizes[:, 1:SCORES]).unbind(1))
        for k, spread in enumerate(spreads):
            parts[k] = parts[k] - rewards * spread / sizes[:, 1 + k]
        task = torch.stack([w * part for w, part in zip(weights, parts, strict=True)]).sum(0)
        (image_gradient,) = torch.autograd.grad(own, leaf)
        (task_gradient,) = torch.autograd.grad(task.mean(), leaf)
        gradients = (image_gradient, task_gradient)
        norms = [torch.linalg.vector_norm(x.flatten(1), dim=1) * len(x) for x in gradients]
        means = _update_running_means(net.sizes[:, NORMS:], place, torch.stack(norms, dim=1))
        bound = task_loss.gradient_limit * (means[:, 0] / means[:, 1])
        weight = (fade * bound.clamp_max(1)).view(-1, 1, 1, 1)
        back = (images * (image_gradient + weight * task_gradient)).sum()
        return (own + fade * task.mean()).detach() + back - back.detach()

    def validate(
        self, net: nn.Module, batch: Batch, generator: torch.Generator
    ) -> dict[str, Tensor]:
        net = cast(SamplerNet, net)
        estimates, truth, images = self._sample(net, net, batch, VALIDATION_SAMPLES, generator)
        values = {
            "loss": self.image(images, truth),
            "place": nearest_acceleration(estimates.sampled_fraction()),
            "error": (images.mean(1) - truth).square().mean((1, 2)),
            "spread": images.var(1).mean((1, 2)),
            "peak": truth.amax((1, 2)),
        }
        if self.task is not None:
            scores = _task_scores(self._task_values(images, truth))
            values |= dict(zip(TASK_SCORES, scores.unbind(1), strict=True))
        return values

    def _sample(
        self, net: SamplerNet, forward: Step, batch: Batch, count: int, generator: torch.Generator
    ) -> tuple[ConditionedBatch, Tensor, Tensor]:
        estimates, truth = self.estimate(batch, generator)
        inputs, scale = estimates.inputs(), estimates.scale.view(-1, 1, 1)
        size = (len(inputs), count, net.noise_size(*inputs.shape[-2:]))
        noise = per_case_random(torch.randn, size, generator, device=inputs.device)
        residuals = forward(inputs, estimates.sampled_fraction(), noise)
        return estimates, truth / scale, estimates.images(residuals.float()) / scale[:, None]

    def _task_values(self, images: Tensor, truth: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return raw outputs, outputs and features of samples, each with those of the truth."""
        assert self.task is not None
        if isinstance(self.task, nn.Module):
            self.task.to(images.device)
        # In bfloat16 outputs of samples that nearly agree would differ by rounding.
        with torch.autocast(images.device.type, enabled=False):
            with torch.no_grad():
                targets = self.task.inside(truth)
            flat = self.task.inside(images.flatten(0, 1))
        outputs = [unflatten_samples(part, len(images)) for part in flat]
        return list(zip(outputs, targets, strict=True))


def _task_scores(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    scores = [_fair_crps(*pairs[0]), _fair_crps(*pairs[1]), _energy_score(*pairs[2])]
    return torch.stack(scores, dim=1)


@torch.no_grad()
def _update_rewards(sizes: Tensor) -> Tensor:
    """Update and return the rewards for spread.

    Exact samples are as far from the truth as from each other, so that the mean fair CRPS is half
    of the mean distance of two samples.
    """
    score, half, rewards = sizes[:, 1], sizes[:, SCORES], sizes[:, -1]
    missing = torch.log((score + half).clamp_min(1e-12) / (2 * half).clamp_min(1e-12))
    rewards.copy_((rewards + REWARD_RATE * missing).clamp(*REWARDS))
    return rewards


@torch.no_grad()
def _update_running_means(sizes: Tensor, place: Tensor, scores: Tensor) -> Tensor:
    """Update running mean scores by acceleration; return each case's means before the update."""
    counted = torch.cat([scores, torch.ones_like(scores[:, :1])], dim=1)
    sums = counted.new_zeros(len(sizes), counted.shape[1]).index_add_(0, place, counted)
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(sums)  # of the whole batch, over all processes
    counts = sums[:, -1:]
    new = sums[:, :-1] / counts.clamp_min(1)
    means = sizes[:, : scores.shape[1]]
    before = torch.where(means > 0, means, new)
    after = DECAY * before + (1 - DECAY) * new
    means.copy_(torch.where(counts > 0, after, means))
    return before[place].clamp_min(1e-12)


def _summary(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the geometric mean of the loss over accelerations, and statistics by acceleration."""
    summary: dict[str, float] = {}
    logs = []
    for place, rate in enumerate(ACCELERATIONS):
        here = values["place"] == place
        if not bool(here.any()):
            continue
        part = {name: value[here].double() for name, value in values.items()}
        logs.append(part["loss"].mean().log())
        if "output" in part:
            scores = [part[name].mean().clamp_min(1e-30).log() for name in TASK_SCORES]
            logs[-1] = logs[-1] + TASK_WEIGHT * torch.stack(scores).mean()
            summary[f"task_{rate}"] = float(part["output"].mean())
        error, spread = part["error"].clamp_min(1e-30), part["spread"]
        summary[f"psnr_{rate}"] = float((10 * torch.log10(part["peak"] ** 2 / error)).mean())
        # The error of a mean of p samples has the mean's own spread in it.
        summary[f"spread_{rate}"] = float(
            (spread.mean() * (1 + 1 / VALIDATION_SAMPLES) / error.mean()).sqrt()
        )
    return {"loss": float(torch.stack(logs).mean().exp()), **summary}


PRESETS = {
    "paper": SamplerConfig(),  # 320×320: 14.4 million parameters, 0.6 million run for each sample
    # 128×128: 3.3 million parameters.
    "demo": SamplerConfig(width=24, decoder_channels=(32, 64, 96, 128)),
    # For tests: 0.2 million parameters.
    "tiny": SamplerConfig(width=8, decoder_channels=(8, 16, 16)),
}
PAPER = TrainingConfig(
    epochs=40,
    batch=16,
    learning_rate=6e-4,
    betas=(0.9, 0.99),
    weight_decay=1e-2,
    adamw=True,
    warmup_steps=300,
    ema=0.999,
    schedule="cosine",
    lr_decay=0.02,
    clip_norm=20.0,
    precision="bf16-mixed",
)


@dataclass(frozen=True, eq=False)
class _RescaledEstimates:
    estimate: VarNetEstimate
    size: Tensor

    @property
    def scale(self) -> Tensor:
        return self.estimate.scale * self.size

    def inputs(self) -> Tensor:
        return self.estimate.inputs()

    def sampled_fraction(self) -> Tensor:
        return self.estimate.sampled_fraction()

    def images(self, residuals: Tensor) -> Tensor:
        return self.estimate.images(residuals) * self.size.view(-1, 1, 1, 1)

    def __getitem__(self, cases: slice) -> _RescaledEstimates:
        return _RescaledEstimates(self.estimate.of(cases), self.size[cases])


class VarNetEstimator:
    def __init__(self, net: VarNet, *, dtype: torch.dtype = torch.float16) -> None:
        self.net = inference_varnet(net.eval(), dtype)
        self.device = next(net.parameters()).device

    def __call__(self, measurements: Sequence[MeasurementLike]) -> _RescaledEstimates:
        return self.estimate(*self.tensors(measurements))

    def tensors(self, measurements: Sequence[MeasurementLike]) -> tuple[Tensor, Tensor]:
        zero_filled, mask = stack_measurements(measurements)
        return zero_filled.to(self.device), mask.to(self.device)

    def estimate(self, *tensors: Tensor) -> _RescaledEstimates:
        zero_filled, mask = tensors
        images, size = rescale_pow2(zero_filled)
        return _RescaledEstimates(varnet_estimate(self.net, images, mask), size)


@dataclass(frozen=True)
class SamplerMethod:
    """Settings of [recover] for a sampler."""

    weights: Path | None = None  #: Trained sampler: weights file or bundled name.
    estimate: Path | None = None  #: VarNet weights; default: those used in training.
    #: Precision; on a GPU, "auto" uses bfloat16 for samples and float16 for the estimate.
    precision: Literal["auto", "float32"] = "auto"

    def open(self, device: torch.device | str) -> SamplerRecovery:
        path, net = RECOVERIES.trained("sampler", self.weights)
        exact = set_float32(self.precision)
        estimator = VarNetEstimator(
            load_estimator(path, self.estimate, VarNet).to(device),
            dtype=torch.float32 if exact else torch.float16,
        )
        dtype = torch.float32 if exact else None
        return SamplerRecovery(net.to(device), estimator, dtype=dtype)


class SamplerTrainingMixin:
    """Settings, checks and training loss shared by all sampler training runs."""

    network: SamplerConfig
    training: TrainingConfig
    loss: ImageLossConfig  #: Proper scoring loss of images.
    task_loss: TaskLossConfig | None  #: Proper scoring loss of the outputs of a task network.
    samples: SampleCount  #: Number of samples per case and training step.
    init_from: Path | None  #: Initial weights of the sampler.

    def check(self, channels: tuple[int, int]) -> None:
        check_ranges(self)
        if (self.network.in_channels, self.network.out_channels) != channels:
            text = f"network.in_channels and network.out_channels must be {channels}"
            raise InputError(text, code="option.conflict")
        if self.task_loss is not None and self.task_loss.weights is None:
            raise InputError("task_loss.weights is missing; name a network", code="config.missing")

    def sampler_recipe(self, kind: str, estimate: Estimate, machine: TrainerOptions) -> Recipe:
        graphs = machine.may_be_one_gpu and self.training.cuda_graphs
        task: Any = None
        if self.task_loss is not None and self.task_loss.weights is not None:
            path = locate(self.task_loss.weights)
            card = read_card(path, list(NETWORKS))
            task = NETWORKS[card["kind"]].load(path, card["network"]).requires_grad_(False)
            if not isinstance(task, _FeatureTask):
                text = f"{path} holds a {card['kind']}, which has no hidden features"
                raise InputError(text, code="weights.mismatch")
        net = SamplerNet(self.network)
        init_weights(net, self.init_from, kind)
        forward = accelerate(net, net.forward, cuda_graphs=graphs, compiled=self.training.compile)
        loss = SamplerLoss(estimate, self.loss, self.samples, self.task_loss, task, forward)
        return Recipe(
            kind=kind,
            network=net,
            config=self.network,
            loss=loss,
            validate=loss.validate,
            summary=_summary,
            collate=collate,
        )


@dataclass(frozen=True)
class _SamplerTraining(SamplerTrainingMixin, RecoveryTraining):
    network: SamplerConfig = field(default_factory=SamplerConfig)
    training: TrainingConfig = PAPER
    #: Point-estimate network and its cross-fitting.
    estimate: EstimateConfig = field(default_factory=EstimateConfig)
    augment: CoilAugmentation | None = None  #: Augmentation of coil images.
    randomise: ScanRandomisation | None = None  #: Random masks, coils, noise and contrast.
    loss: ImageLossConfig = field(default_factory=ImageLossConfig)
    task_loss: TaskLossConfig | None = None
    samples: SampleCount = 4
    init_from: Path | None = None

    def __post_init__(self) -> None:
        self.check((6, 2))

    def prepare(self, machine: TrainerOptions, data: Any = None) -> tuple[Any, ...]:
        by_volume = self.estimate.data_range == "volume"
        return self.measured(machine, data, by_volume=by_volume)

    def stages(self, cases: tuple[Any, ...], folder: Path, **options: Any) -> tuple[Any, ...]:
        settings = VarNetTraining(
            data=self.data, measure=self.measure, augment=self.augment, randomise=self.randomise,
            data_range=self.estimate.data_range,
        )  # fmt: skip
        return self.estimate.train(cases, settings, folder, **options)

    def recipe(self, cases: tuple[Any, ...], machine: TrainerOptions) -> Recipe:
        graphs = machine.may_be_one_gpu and self.training.cuda_graphs
        nets = [load_network(path, VarNet) for path in cases[2]]
        estimates = CrossFitEstimates(
            nets, self.augment, self.randomise, cuda_graphs=graphs, compiled=self.training.compile
        )
        return self.sampler_recipe("sampler", estimates, machine)


NETWORK = NetworkKind(
    SamplerConfig,
    SamplerNet,
    _SamplerTraining,
    SamplerMethod,
    PRESETS,
    large=True,
    flexible_input=True,
)
