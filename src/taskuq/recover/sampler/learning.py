r"""How a sampler learns: samples of each case are made into images and scored by the true one.

Late rounds leave small errors, and by their plain mean the first round would be all that counts.
Each case's score is therefore divided by the running mean of the scores at its measured share,

.. math:: \mathbb E\, \frac{S\big(\{\hat x^{(j)}\}, x\big)}{\bar S(m)},

which is as proper as the score itself: the divisor knows earlier batches and the share, not the
case. (The first batch at a share is divided by its own mean.) Whatever weighs scores has to be of
this kind; a weight that looked at the case's truth would make samples too narrow or too wide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor, distributed, nn

from taskuq.errors import InputError
from taskuq.recover.sampler.config import SamplerConfig
from taskuq.recover.sampler.estimated import Estimated
from taskuq.recover.sampler.losses import ImageScore, energy_score, fair_crps
from taskuq.recover.sampler.network import (
    ACCELERATIONS,
    SCORES,
    SamplerNet,
    apart,
    nearest_acceleration,
)
from taskuq.seeds import numbers_of_cases
from taskuq.training.recipe import Batch, Recipe

# How fast the running means of scores follow, and how many samples judge a validation case.
DECAY, JUDGED = 0.98, 8

# What a task network's view is scored by, and how much it counts, all together, beside the images
# when weights are compared.
VIEWS, VIEWED = ("raw", "output", "features"), 0.25

# A batch to estimated cases and their true images, (case, height, width).
Estimating = Callable[[Batch, torch.Generator], tuple[Estimated, Tensor]]

# A network and what it computes of tensors to what computes the same.
Quick = Callable[[nn.Module, Callable[..., Tensor]], Callable[..., Tensor]]


@runtime_checkable
class Watched(Protocol):
    """A task network whose inside can be looked at."""

    def inside(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Raw outputs, outputs (image, task) and hidden features (image, feature)."""


@dataclass(frozen=True)
class TaskTerms:
    """What a task network says about samples, scored too: the table ``[task]``.

    Each term is divided by its own running mean at the case's measured share; all of them together
    are limited, and then weighed by how uncertain the task's output is there, relative to the share
    where it is most uncertain.

    Arguments:
        weights: The task network, which is not trained.
        raw: The weight of the fair CRPS of its raw outputs (logits).
        output: The weight of the fair CRPS of its outputs.
        features: The weight of the energy score of its last hidden features.
        limit: The gradient of these terms at the images is at most so many times that of the
            images' own score where the output is most uncertain, in running means at the case's
            measured share, and less elsewhere.
        begin: The share of the training after which the terms begin to count.
        full: The share after which they count fully.

    Example:
        >>> [TaskTerms(begin=0.5, full=0.75).fade(done) for done in (0.4, 0.625, 0.9)]
        [0.0, 0.5, 1.0]
        >>> TaskTerms(begin=0, full=0).fade(0)  # from the beginning
        1.0
    """

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
        """How much the terms count when a share of the training is done."""
        if progress >= self.full:
            return 1.0
        return max(0.0, (progress - self.begin) / max(self.full - self.begin, 1e-9))


@dataclass(frozen=True)
class Scored:
    """How samples are scored in training.

    Arguments:
        image: The score of images.
        draws: Samples of each case.
        terms: How a task network's view is scored.
        task: That network.
    """

    image: ImageScore = field(default_factory=ImageScore)
    draws: int = 4
    terms: TaskTerms | None = None
    task: Watched | None = None

    def task_scores(self, images: Tensor, truth: Tensor) -> Tensor:
        """Scores of the task's raw outputs, outputs and features, (case, 3)."""
        assert self.task is not None
        if isinstance(self.task, nn.Module):
            self.task.to(images.device)
        # In bfloat16 outputs of samples that nearly agree would differ by rounding.
        with torch.autocast(images.device.type, enabled=False):
            with torch.no_grad():
                true = self.task.inside(truth)
            seen = [apart(part, len(images)) for part in self.task.inside(images.flatten(0, 1))]
        pairs = list(zip(seen, true, strict=True))
        scores = [fair_crps(*pairs[0]), fair_crps(*pairs[1]), energy_score(*pairs[2])]
        return torch.stack(scores, dim=1)


def sampler_recipe(
    config: SamplerConfig, scored: Scored, estimating: Estimating, quick: Quick | None = None
) -> Recipe:
    """Train a sampler by proper scores of its images.

    Arguments:
        config: The size of the network.
        scored: How samples are scored.
        estimating: What makes estimated cases, and their true images, of a batch.
        quick: What makes of the network, and of what it computes of tensors, the same in training,
            in less time.

    Example:
        >>> recipe = sampler_recipe(SamplerConfig(width=4, drawn=(4, 4)), Scored(), print)
        >>> recipe.kind, recipe.monitor
        ('sampler', 'loss')
    """
    net = SamplerNet(config)
    draw = net if quick is None else quick(net, net.forward)
    return Recipe(
        kind="sampler",
        network=net,
        config=config,
        loss=partial(_loss, draw=draw, scored=scored, estimating=estimating),
        validate=partial(_validate, scored=scored, estimating=estimating),
        summary=summary,
    )


def _drawn(
    net: SamplerNet,
    draw: Callable[..., Tensor],
    found: Estimated,
    draws: int,
    generator: torch.Generator,
) -> Tensor:
    """Images in units of the scale, (case, sample, height, width)."""
    told = found.inputs()
    size = (len(told), draws, net.noise_size(*told.shape[-2:]))
    noise = numbers_of_cases(torch.randn, size, generator, device=told.device)
    residuals = draw(told, found.share(), noise)
    return found.images(residuals.float()) / found.scale.view(-1, 1, 1, 1)


def _loss(
    net: nn.Module,
    batch: Batch,
    generator: torch.Generator,
    *,
    draw: Callable[..., Tensor],
    scored: Scored,
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
        return (score / sizes_after(net.sizes, place, score)).mean()
    # Gradients at the images, apart from each other; then back through the network once.
    leaf = images.detach().requires_grad_()
    score, views = scored.image(leaf, truth)[:, None], scored.task_scores(leaf, truth)
    sizes = sizes_after(net.sizes, place, torch.cat([score, views], dim=1).detach())
    own, task = (score / sizes[:, :1]).mean(), _weighed(scored.terms, views, sizes)
    (pull,) = torch.autograd.grad(own, leaf)
    (push,) = torch.autograd.grad(task.mean(), leaf)
    bound = scored.terms.limit * _means_of_norms(net, place, pull, push)
    # Behind the limit: before it, what the limit makes small would count alike everywhere.
    uncertain = sizes[:, 2] / net.sizes[:, 2].max().clamp_min(1e-30)
    gradient = pull + fade * (uncertain * bound.clamp_max(1)).view(-1, 1, 1, 1) * push
    back = (images * gradient).sum()
    return (own + fade * (uncertain * task).mean()).detach() + back - back.detach()


def _weighed(terms: TaskTerms, views: Tensor, sizes: Tensor) -> Tensor:
    """All terms of each case, (case,)."""
    weights = terms.raw, terms.output, terms.features
    # By numbers, not a tensor of them, which a GPU would be waited for to receive.
    parts = (views / sizes[:, 1:]).unbind(1)
    return torch.stack([w * part for w, part in zip(weights, parts, strict=True)]).sum(0)


def _means_of_norms(net: SamplerNet, place: Tensor, pull: Tensor, push: Tensor) -> Tensor:
    """How much larger the images' own gradients are than the task's, (case,), by running means.

    A case's own gradients would know its truth, and weigh down samples that are far from it.
    """
    norms = [torch.linalg.vector_norm(x.flatten(1), dim=1) * len(x) for x in (pull, push)]
    means = sizes_after(net.sizes[:, SCORES:], place, torch.stack(norms, dim=1))
    return means[:, 0] / means[:, 1]


@torch.no_grad()
def sizes_after(sizes: Tensor, place: Tensor, scores: Tensor) -> Tensor:
    """Let running means follow the scores of a batch, in place; return each case's from before.

    Arguments:
        sizes: Running means (acceleration, score); 0 where there were no cases yet.
        place: Which acceleration each case counts as, (case,).
        scores: The first scores of cases, (case, some scores).

    Example:
        >>> sizes = torch.zeros(3, 1)
        >>> sizes_after(sizes, torch.tensor([0, 2, 2]), torch.tensor([[1.0], [2.0], [4.0]]))
        tensor([[1.],
                [3.],
                [3.]])
        >>> sizes_after(sizes, torch.tensor([0]), torch.tensor([[2.0]])), sizes[0]
        (tensor([[1.]]), tensor([1.0200]))
    """
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
    scored: Scored,
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


def summary(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Judge samplers by all accelerations alike: the geometric mean of their mean scores.

    Where a task network looks, the geometric mean of its scores counts, too, by a fourth root.
    Beside that, for each acceleration: the PSNR of the samples' mean in dB, and how large samples'
    deviation from their mean is beside its error (1 is right).

    Arguments:
        values: Quantities of all validation cases, each (case,).

    Example:
        >>> one, four = torch.ones(2), torch.tensor([1.0, 4.0])
        >>> found = summary({"loss": four, "place": torch.tensor([1, 2]), "error": four,
        ...                  "spread": one, "peak": 10 * one})
        >>> found["loss"], found["psnr_2"], round(found["spread_4"], 3)
        (2.0, 20.0, 0.53)
    """
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
