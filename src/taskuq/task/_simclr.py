"""SimCLR pre-training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from taskuq._config import Channels, Positive, check_ranges
from taskuq._seeds import ShardedGenerator
from taskuq.errors import InputError
from taskuq.task._backbone import Backbone, BackboneConfig
from taskuq.task._cases import AugmentConfig, TaskTraining, augment, collate, unit_scale
from taskuq.training._config import Batch, Recipe, TrainingConfig
from taskuq.training._fit import TrainerOptions
from taskuq.training._networks import NetworkKind


@dataclass(frozen=True)
class _SimCLRConfig:
    backbone: BackboneConfig = field(default_factory=BackboneConfig)  #: Convolutional layers.
    hidden: Channels = 512  #: Hidden width of the projection head.
    embedding: Channels = 128  #: Dimension of the embedding.
    temperature: Positive = 0.07  #: Temperature of the NT-Xent loss.

    def __post_init__(self) -> None:
        check_ranges(self)


class _SimCLRNet(nn.Module):
    def __init__(self, config: _SimCLRConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = Backbone(config.backbone)
        self.projection = nn.Sequential(
            nn.Linear(self.backbone.features, config.hidden),
            nn.ReLU(),
            nn.Linear(config.hidden, config.embedding),
        )

    def forward(self, scaled: Tensor) -> Tensor:
        embeddings: Tensor = self.projection(self.backbone(scaled))
        return embeddings


# Shorter embeddings are not normalised: the gradient would leave the range of float16.
SHORTEST = 1e-3
PAPER = TrainingConfig(
    epochs=500, batch=128, learning_rate=2e-4, weight_decay=1e-2, schedule="cosine", lr_decay=0.02
)
VIEWS = AugmentConfig(contrast=0.5, blur=2.0)


def _nt_xent(first: Tensor, second: Tensor, temperature: float, *, counts: bool = True) -> Tensor:
    own = torch.cat([first, second]).float()
    own = functional.normalize(own, eps=SHORTEST)
    everyone, before = _gathered(own, counts)
    with torch.autocast(own.device.type, enabled=False):
        similarity = own @ everyone.T / temperature
    if not counts:
        return 0 * similarity.sum(1)
    here = torch.arange(len(own), device=own.device)
    similarity = similarity.index_put((here, here + before), own.new_tensor(-torch.inf))
    partner = (here + len(first)) % len(own) + before
    return functional.cross_entropy(similarity, partner, reduction="none")


def _gathered(own: Tensor, counts: bool) -> tuple[Tensor, int]:
    if not (distributed.is_available() and distributed.is_initialized()):
        return own, 0
    length = torch.zeros((), dtype=torch.long, device=own.device)
    lengths = [length.clone() for _ in range(distributed.get_world_size())]
    distributed.all_gather(lengths, lengths[0].new_tensor(len(own) if counts else 0))
    rows = [int(length) for length in lengths]
    # All processes send equally many rows; padding is dropped.
    longest = max(*rows, len(own))
    padded = functional.pad(own, (0, 0, 0, longest - len(own)))
    parts: Tensor = _AllGather.apply(padded)  # type: ignore[no-untyped-call]
    blocks = parts.reshape(len(rows), longest, -1)
    everyone = torch.cat([block[:n] for block, n in zip(blocks, rows, strict=True)])
    return everyone, sum(rows[: distributed.get_rank()])


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, own: Tensor) -> Tensor:
        parts = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, own.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        distributed.all_reduce(gradient)
        return gradient.chunk(distributed.get_world_size())[distributed.get_rank()]


@dataclass(frozen=True)
class _SimCLRTraining(TaskTraining):
    """Settings of SimCLR pre-training."""

    network: _SimCLRConfig = field(default_factory=_SimCLRConfig)
    training: TrainingConfig = PAPER
    augment: AugmentConfig = VIEWS

    def recipe(self, cases: tuple[Any, ...], machine: TrainerOptions) -> Recipe:
        if self.training.batch < 2:
            text = "training.batch is 1; a contrastive loss compares images; use a larger batch"
            raise InputError(text, code="value.invalid")
        if self.init_from.classifier is not None:
            raise InputError("init_from.classifier is for classifiers", code="option.conflict")
        network = _SimCLRNet(self.network)
        self.init_from.fill(network.backbone)

        def losses(net: nn.Module, batch: Batch, generator: torch.Generator) -> Tensor:
            scaled = unit_scale(batch["image"])
            both = [unit_scale(augment(scaled, self.augment, generator)) for _ in range(2)]
            # One pass for both: batch statistics must not distinguish them.
            first, second = net(torch.cat(both)).chunk(2)
            counts = not isinstance(generator, ShardedGenerator) or generator.share.counts
            return _nt_xent(first, second, self.network.temperature, counts=counts)

        return Recipe(
            kind="simclr",
            network=network,
            config=self.network,
            loss=lambda *given: losses(*given).mean(),
            validate=lambda *given: {"loss": losses(*given).reshape(2, -1).mean(0)},
            collate=collate,
        )


NETWORK = NetworkKind(_SimCLRConfig, _SimCLRNet, _SimCLRTraining)
