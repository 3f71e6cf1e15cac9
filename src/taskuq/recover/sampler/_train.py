"""Sampler: method, training, proper scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from taskuq._config import read_toml
from taskuq._seeds import per_case_random
from taskuq.errors import InputError
from taskuq.recover._cases import CoilAugmentation, RecoveryTraining, ScanRandomisation
from taskuq.recover._compiled import accelerate, inference_varnet
from taskuq.recover._estimate import (
    CrossFitDataset,
    CrossFitEstimates,
    EstimateConfig,
    VarNetEstimate,
    assign_folds,
    collate,
    estimate_weights,
    varnet_estimate,
)
from taskuq.recover._methods import RECOVERIES, MeasurementLike, rescale_pow2, stack_measurements
from taskuq.recover._varnet import VarNet
from taskuq.recover._varnet_training import VarNetTraining, estimating_network
from taskuq.recover.sampler._network import (
    ACCELERATIONS,
    SCORES,
    SamplerConfig,
    SamplerNet,
    nearest_acceleration,
    unflatten_samples,
)
from taskuq.recover.sampler._sample import ConditionedBatch, SamplerRecovery, fit_noise_scale
from taskuq.training._config import Batch, Recipe, TrainingConfig
from taskuq.training._fit import TrainerOptions
from taskuq.training._networks import NETWORKS, NetworkKind
from taskuq.training._weights import load_weights, locate, read_card


def _fair_crps(samples: Tensor, truth: Tensor) -> Tensor:
    """The fair continuous ranked probability score, averaged over what a case holds, (case,)."""
    _check(samples, truth)
    count = samples.shape[1]
    off = (samples - truth[:, None]).abs().mean(1)
    pairs = sum(_apart(samples, later).abs().sum(1) for later in range(1, count))
    return (off - pairs / (count * (count - 1))).reshape(len(truth), -1).mean(1)


def _energy_score(samples: Tensor, truth: Tensor) -> Tensor:
    """The fair energy score of what a case holds as one vector of length :math:`n`, (case,)."""
    _check(samples, truth)
    samples, truth = samples.flatten(2), truth.flatten(1)
    count = samples.shape[1]
    off = _norm(samples - truth[:, None]).mean(1)
    pairs = sum(_norm(_apart(samples, later)).sum(1) for later in range(1, count))
    score = off - pairs / (count * (count - 1))
    scored: Tensor = score / samples.shape[-1] ** 0.5
    return scored


def _apart(samples: Tensor, later: int) -> Tensor:
    return samples[:, later:] - samples[:, later - 1 : later]


def _norm(x: Tensor) -> Tensor:
    # Where two samples agree in every number, the derivative of a norm is taken as 0.
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return norm


def _check(samples: Tensor, truth: Tensor) -> None:
    if samples.shape[:1] + samples.shape[2:] != truth.shape or samples.shape[1] < 2:
        raise InputError(
            f"samples have shape {tuple(samples.shape)} and the truth {tuple(truth.shape)}; give "
            "(case, sample, ...) with at least two samples, and (case, ...)"
        )


@dataclass(frozen=True)
class ImageLossConfig:
    """Settings [score]: weights of pixel CRPS, energy score, pooled CRPS."""

    pixels: float = 1.0
    energy: float = 0.5
    pooled: float = 0.5
    pools: tuple[int, ...] = (2, 4, 8, 16, 32)

    def __post_init__(self) -> None:
        weights = (self.pixels, self.energy, self.pooled)
        if min(weights) < 0 or not max(weights) > 0 or min(self.pools, default=1) < 1:
            raise InputError(
                f"the score weighs pixels {self.pixels}, energy {self.energy} and pooled "
                f"{self.pooled} over {list(self.pools)}; give weights of at least 0, one above it, "
                "and whole numbers of pixels"
            )

    def __call__(self, samples: Tensor, truth: Tensor) -> Tensor:
        """Score images (case, sample, height, width) by the true ones (case, height, width)."""
        score = self.pixels * _fair_crps(samples, truth) + self.energy * _energy_score(
            samples, truth
        )
        for side in self.pools if self.pooled else ():
            if side <= min(truth.shape[-2:]):
                part = _fair_crps(F.avg_pool2d(samples, side), F.avg_pool2d(truth, side))
                score = score + self.pooled * part
        return score


# How fast the running means of scores follow, and how many samples judge a validation case.
DECAY, JUDGED = 0.98, 8

# What a task network's view is scored by, and how much it counts, all together, beside the images
# when weights are compared.
VIEWS, VIEWED = ("raw", "output", "features"), 0.25

# A batch to estimated cases and their true images, (case, height, width).
Estimating = Callable[[Batch, torch.Generator], tuple[ConditionedBatch, Tensor]]

# A network and what it computes of tensors to what computes the same.
Quick = Callable[[nn.Module, Callable[..., Tensor]], Callable[..., Tensor]]


@runtime_checkable
class _FeatureTask(Protocol):
    """Task network that exposes its hidden features."""

    def inside(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Raw outputs, outputs (image, task) and hidden features (image, feature)."""


@dataclass(frozen=True)
class TaskLossConfig:
    """Settings [task] of a sampler: weights of the task loss."""

    weights: Path | None = None
    raw: float = 0.1
    output: float = 0.1
    features: float = 0.1
    limit: float = 4.0
    begin: float = 0.5
    full: float = 0.75

    def __post_init__(self) -> None:
        smallest = min(self.raw, self.output, self.features, self.limit)
        if smallest < 0 or not 0 <= self.begin <= self.full <= 1:
            raise InputError(
                f"the task terms weigh {self.raw}, {self.output} and {self.features}, limit "
                f"{self.limit}, begin {self.begin}, full {self.full}; give nothing below 0, and "
                "begin at most full, both up to 1"
            )

    def fade(self, progress: float) -> float:
        if progress >= self.full:
            return 1.0
        return max(0.0, (progress - self.begin) / max(self.full - self.begin, 1e-9))


@dataclass(frozen=True)
class SamplerLoss:
    """Proper scoring loss of a sampler."""

    image: ImageLossConfig = field(default_factory=ImageLossConfig)
    draws: int = 4
    terms: TaskLossConfig | None = None
    task: _FeatureTask | None = None

    def task_scores(self, images: Tensor, truth: Tensor) -> Tensor:
        """Scores of the task's raw outputs, outputs and features, (case, 3)."""
        assert self.task is not None
        if isinstance(self.task, nn.Module):
            self.task.to(images.device)
        # In bfloat16 outputs of samples that nearly agree would differ by rounding.
        with torch.autocast(images.device.type, enabled=False):
            with torch.no_grad():
                true = self.task.inside(truth)
            seen = [
                unflatten_samples(part, len(images))
                for part in self.task.inside(images.flatten(0, 1))
            ]
        pairs = list(zip(seen, true, strict=True))
        scores = [_fair_crps(*pairs[0]), _fair_crps(*pairs[1]), _energy_score(*pairs[2])]
        return torch.stack(scores, dim=1)


def sampler_recipe(
    config: SamplerConfig, scored: SamplerLoss, estimating: Estimating, quick: Quick | None = None
) -> Recipe:
    """Train a sampler by proper scores of its images."""
    net = SamplerNet(config)
    draw = net if quick is None else quick(net, net.forward)
    return Recipe(
        kind="sampler",
        network=net,
        config=config,
        loss=partial(_loss, draw=draw, scored=scored, estimating=estimating),
        validate=partial(_validate, scored=scored, estimating=estimating),
        summary=_summary,
    )


def _drawn(
    net: SamplerNet,
    draw: Callable[..., Tensor],
    found: ConditionedBatch,
    draws: int,
    generator: torch.Generator,
) -> Tensor:
    """Images in units of the scale, (case, sample, height, width)."""
    told = found.inputs()
    size = (len(told), draws, net.noise_size(*told.shape[-2:]))
    noise = per_case_random(torch.randn, size, generator, device=told.device)
    residuals = draw(told, found.share(), noise)
    return found.images(residuals.float()) / found.scale.view(-1, 1, 1, 1)


def _loss(
    net: nn.Module,
    batch: Batch,
    generator: torch.Generator,
    *,
    draw: Callable[..., Tensor],
    scored: SamplerLoss,
    estimating: Estimating,
) -> Tensor:
    net = cast(SamplerNet, net)
    found, truth = estimating(batch, generator)
    truth = truth / found.scale.view(-1, 1, 1)
    images = _drawn(net, draw, found, scored.draws, generator)
    place = nearest_acceleration(found.share())
    fade = scored.terms.fade(batch["progress"]) if scored.terms else 0.0
    if scored.terms is None or not fade:
        score = scored.image(images, truth)[:, None]
        return (score / _update_running_means(net.sizes, place, score)).mean()
    # Gradients at the images, apart from each other; then back through the network once.
    leaf = images.detach().requires_grad_()
    score, views = scored.image(leaf, truth)[:, None], scored.task_scores(leaf, truth)
    sizes = _update_running_means(net.sizes, place, torch.cat([score, views], dim=1).detach())
    own, task = (score / sizes[:, :1]).mean(), _weighed(scored.terms, views, sizes)
    (pull,) = torch.autograd.grad(own, leaf)
    (push,) = torch.autograd.grad(task.mean(), leaf)
    bound = scored.terms.limit * _means_of_norms(net, place, pull, push)
    # Behind the limit: before it, what the limit makes small would count alike everywhere.
    uncertain = sizes[:, 2] / net.sizes[:, 2].max().clamp_min(1e-30)
    gradient = pull + fade * (uncertain * bound.clamp_max(1)).view(-1, 1, 1, 1) * push
    back = (images * gradient).sum()
    return (own + fade * (uncertain * task).mean()).detach() + back - back.detach()


def _weighed(terms: TaskLossConfig, views: Tensor, sizes: Tensor) -> Tensor:
    """All terms of each case, (case,)."""
    weights = terms.raw, terms.output, terms.features
    # By numbers, not a tensor of them, which a GPU would be waited for to receive.
    parts = (views / sizes[:, 1:]).unbind(1)
    return torch.stack([w * part for w, part in zip(weights, parts, strict=True)]).sum(0)


def _means_of_norms(net: SamplerNet, place: Tensor, pull: Tensor, push: Tensor) -> Tensor:
    norms = [torch.linalg.vector_norm(x.flatten(1), dim=1) * len(x) for x in (pull, push)]
    means = _update_running_means(net.sizes[:, SCORES:], place, torch.stack(norms, dim=1))
    return means[:, 0] / means[:, 1]


@torch.no_grad()
def _update_running_means(sizes: Tensor, place: Tensor, scores: Tensor) -> Tensor:
    """Update running loss scales."""
    counted = torch.cat([scores, torch.ones_like(scores[:, :1])], dim=1)
    found = counted.new_zeros(len(sizes), counted.shape[1]).index_add_(0, place, counted)
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(found)  # of the whole batch, whoever has a part of it
    counts = found[:, -1:]
    new = found[:, :-1] / counts.clamp_min(1)
    kept = sizes[:, : scores.shape[1]]
    before = torch.where(kept > 0, kept, new)
    followed = DECAY * before + (1 - DECAY) * new
    kept.copy_(torch.where(counts > 0, followed, kept))
    return before[place].clamp_min(1e-12)


def _validate(
    net: nn.Module,
    batch: Batch,
    generator: torch.Generator,
    *,
    scored: SamplerLoss,
    estimating: Estimating,
) -> dict[str, Tensor]:
    net = cast(SamplerNet, net)
    found, truth = estimating(batch, generator)
    truth = truth / found.scale.view(-1, 1, 1)
    images = _drawn(net, net, found, JUDGED, generator)
    values = {
        "loss": scored.image(images, truth),
        "place": nearest_acceleration(found.share()),
        "error": (images.mean(1) - truth).square().mean((1, 2)),
        "spread": images.var(1).mean((1, 2)),
        "peak": truth.amax((1, 2)),
    }
    if scored.task is not None:
        views = scored.task_scores(images, truth)
        values |= dict(zip(VIEWS, views.unbind(1), strict=True))
    return values


def _summary(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Judge samplers by all accelerations alike: the geometric mean of their mean scores."""
    found: dict[str, float] = {}
    logs = []
    for place, rate in enumerate(ACCELERATIONS):
        here = values["place"] == place
        if not bool(here.any()):
            continue
        part = {name: value[here].double() for name, value in values.items()}
        logs.append(part["loss"].mean().log())
        if "output" in part:
            views = [part[name].mean().clamp_min(1e-30).log() for name in VIEWS]
            logs[-1] = logs[-1] + VIEWED * torch.stack(views).mean()
            found[f"task_{rate}"] = float(part["output"].mean())
        error, spread = part["error"].clamp_min(1e-30), part["spread"]
        found[f"psnr_{rate}"] = float((10 * torch.log10(part["peak"] ** 2 / error)).mean())
        # The error of a mean of p samples has the mean's own spread in it.
        found[f"spread_{rate}"] = float((spread.mean() * (1 + 1 / JUDGED) / error.mean()).sqrt())
    return {"loss": float(torch.stack(logs).mean().exp()), **found}


PRESETS = {
    # 320×320: 14.4 million parameters, of which 0.6 million run for each sample.
    "paper": SamplerConfig(),
    # 128×128: 3.3 million parameters, 6.6 MB in float16.
    "demo": SamplerConfig(width=24, drawn=(32, 64, 96, 128)),
    # For teaching and tests: 0.2 million parameters.
    "tiny": SamplerConfig(width=8, drawn=(8, 16, 16)),
}
# Validation cases that say how loud noise has to be, at most, and how many are drawn together.
ASKED, TOGETHER = 400, 8
PAPER = TrainingConfig(
    epochs=40,
    batch=16,
    learning_rate=6e-4,
    betas=(0.9, 0.99),
    weight_decay=1e-2,
    decoupled=True,
    warmup=300,
    average=0.999,
    schedule="cosine",
    decay=0.02,
    clip=20.0,
    precision="bf16-mixed",
)


@dataclass(frozen=True, eq=False)
class _RescaledEstimates:
    """Estimates computed on power-of-two rescaled inputs."""

    found: VarNetEstimate
    size: Tensor

    @property
    def scale(self) -> Tensor:
        """The unit of each case's images, (case,)."""
        return self.found.scale * self.size

    def inputs(self) -> Tensor:
        return self.found.inputs()

    def share(self) -> Tensor:
        """The share of lines that was measured, (case,)."""
        return self.found.share()

    def images(self, residuals: Tensor) -> Tensor:
        """Consistent magnitude images (case, sample, height, width)."""
        return self.found.images(residuals) * self.size.view(-1, 1, 1, 1)

    def coils(self, residuals: Tensor) -> Tensor:
        """Consistent coil images (case, sample, coil, height, width)."""
        return self.found.coils(residuals) * self.size.view(-1, 1, 1, 1, 1)


class _VarNetEstimator:
    """Measurements to VarNet estimates."""

    def __init__(self, net: VarNet, *, dtype: torch.dtype = torch.float16) -> None:
        self.net = inference_varnet(net.eval(), dtype)
        self.device = next(net.parameters()).device

    def __call__(self, measurements: Sequence[MeasurementLike]) -> _RescaledEstimates:
        """VarNetEstimate several cases."""
        return self.of(*self.tensors(measurements))

    def tensors(self, measurements: Sequence[MeasurementLike]) -> tuple[Tensor, Tensor]:
        """Zero-filled images (case, coil, height, width), and masks (case, width)."""
        zero_filled, mask = (part.to(self.device) for part in stack_measurements(measurements))
        return zero_filled, mask

    def of(self, *tensors: Tensor) -> _RescaledEstimates:
        """VarNetEstimate the cases of :meth:`tensors`."""
        zero_filled, mask = tensors
        images, size = rescale_pow2(zero_filled)
        return _RescaledEstimates(varnet_estimate(self.net, images, mask), size)


def _load_estimator(
    weights: Path,
    named: Path | None,
    device: torch.device | str,
    precision: Literal["auto", "float32"] = "auto",
) -> _VarNetEstimator:
    """Load the point-estimate network of a sampler."""
    card = read_toml(weights.with_suffix(".toml")).get("estimate", {})
    beside = estimate_weights(Path(card.get("folder", weights.parent)))
    found = named or card.get("weights") or (beside if beside.exists() else None)
    if found is None:
        raise InputError(
            f"{weights.name} draws around estimates and does not say whose; name the variational "
            "network it was trained with as 'estimate'"
        )
    dtype = torch.float32 if precision == "float32" else torch.float16
    return _VarNetEstimator(estimating_network(found).to(device), dtype=dtype)


@dataclass(frozen=True)
class SamplerMethod:
    """The table ``[recover]`` of a sampler."""

    weights: Path | None = None
    estimate: Path | None = None
    precision: Literal["auto", "float32"] = "auto"
    widened: bool = False

    def open(self, device: torch.device | str) -> SamplerRecovery:
        """Load the sampler, and the network around whose estimates it draws, on a device."""
        path, net = RECOVERIES.trained("sampler", self.weights)
        estimates = _load_estimator(path, self.estimate, device, self.precision)
        dtype = torch.float32 if self.precision == "float32" else None
        loudness = read_toml(path.with_suffix(".toml")).get("loudness") if self.widened else None
        if self.widened and loudness is None:
            raise InputError(
                f"the TOML beside {path.name} does not say how loud noise has to be; train it "
                "again, or leave widened"
            )
        return SamplerRecovery(net.to(device), estimates, dtype=dtype, loudness=loudness)


@dataclass(frozen=True)
class _SamplerTraining(RecoveryTraining):
    """One TOML file for a sampler and for the networks that it draws around."""

    network: SamplerConfig = field(default_factory=SamplerConfig)
    training: TrainingConfig = PAPER
    estimate: EstimateConfig = field(default_factory=EstimateConfig)
    views: CoilAugmentation | None = None
    scans: ScanRandomisation | None = None
    score: ImageLossConfig = field(default_factory=ImageLossConfig)
    task: TaskLossConfig | None = None
    draws: int = 4
    start: Path | None = None

    def __post_init__(self) -> None:
        if self.draws < 2:
            raise InputError(f"draws is {self.draws}; a score needs at least 2 samples of a case")
        if self.network.inputs != 6 or self.network.outputs != 2:
            raise InputError(
                f"the network has {self.network.inputs} inputs and {self.network.outputs} outputs; "
                "around a variational network it has 6 and 2"
            )
        if self.task is not None and self.task.weights is None:
            raise InputError("task.weights is missing; name the trained task network")

    def prepare(self, machine: TrainerOptions, data: Any = None) -> tuple[Any, ...]:
        """Measure the cases."""
        by_volume = self.estimate.data_range == "volume"
        return self.measured(machine, data, by_volume=by_volume)

    def stages(
        self,
        cases: tuple[Any, ...],
        folder: Path,
        *,
        machine: TrainerOptions,
        fresh: bool,
        steps: int | None,
    ) -> tuple[Any, ...]:
        """Train the networks that estimate, and say which of them estimates which case."""
        seen = VarNetTraining(
            data=self.data, measure=self.measure, views=self.views, scans=self.scans
        )
        paths = self.estimate.trained(
            (cases[0], cases[1]), seen, folder, machine=machine, fresh=fresh, steps=steps
        )
        of_case = np.zeros(len(cases[0]), dtype=np.int64)
        if self.estimate.folds:
            groups, seed = cases[0].source.groups, self.estimate.training.seed
            of_case = 1 + assign_folds(groups, self.estimate.folds, seed=seed)
        validated = np.zeros(len(cases[1]), dtype=np.int64)
        return CrossFitDataset(cases[0], of_case), CrossFitDataset(cases[1], validated), paths

    def recipe(self, cases: tuple[Any, ...], machine: TrainerOptions) -> Recipe:
        """The sampler, to be trained by proper scores of its images."""
        replayed = machine.may_be_one_gpu and self.training.replay
        nets = [estimating_network(path) for path in cases[2]]
        honest = CrossFitEstimates(nets, self.views, self.scans, replayed=replayed)
        task = None if self.task is None else load_task_network(self.task)
        scored = SamplerLoss(self.score, self.draws, self.task, task)
        quick = partial(accelerate, is_replayed=replayed, is_compiled=self.training.compile)
        recipe = sampler_recipe(self.network, scored, honest, quick)
        net = cast(SamplerNet, recipe.network)
        on_gpu = machine.accelerator != "cpu" and torch.cuda.is_available()
        judge = partial(_judge_loudness, net, cases[1], honest, "cuda" if on_gpu else "cpu")
        recipe = replace(recipe, collate=collate, on_end=judge)
        if self.start is not None:
            path = locate(self.start)
            read_card(path, ("sampler",))
            load_weights(recipe.network, path)
        return recipe


def _judge_loudness(
    net: SamplerNet, cases: CrossFitDataset, honest: CrossFitEstimates, device: str
) -> dict[str, Any]:
    generator = torch.Generator(device).manual_seed(0)

    def batches() -> Iterator[tuple[VarNetEstimate, Tensor]]:
        asked = np.linspace(0, len(cases) - 1, min(ASKED, len(cases))).astype(int)
        for start in range(0, len(asked), TOGETHER):
            batch = collate([cases[0, int(row)] for row in asked[start : start + TOGETHER]])
            yield honest(_there(batch, device), generator)

    loudness = fit_noise_scale(net.to(device).eval(), batches())
    net.cpu()
    return {"loudness": list(loudness)}


def _there(batch: dict[str, Any], device: str) -> dict[str, Any]:
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()}


def load_task_network(terms: TaskLossConfig) -> _FeatureTask:
    """Load the frozen task network of the task loss."""
    assert terms.weights is not None
    path = locate(terms.weights)
    card = read_card(path, list(NETWORKS))
    net = NETWORKS[card["kind"]].load(path, card["network"])
    if not isinstance(net, _FeatureTask):
        raise InputError(
            f"{path} holds a {card['kind']}, which cannot be looked into; name another"
        )
    net.requires_grad_(False)
    return net


NETWORK = NetworkKind(
    SamplerConfig, SamplerNet, _SamplerTraining, SamplerMethod, PRESETS, large=True, flexible_input=True
)
