"""Settings of a training run, and training recipes of networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from taskuq.errors import InputError


@dataclass(frozen=True)
class TrainingConfig:
    """Settings [training]: optimiser, schedule, batches and precision."""

    epochs: int = 150  #: Passes over the training cases.
    batch: int = 8  #: Cases per step, over all processes.
    learning_rate: float = 1e-4  #: Peak learning rate of Adam.
    betas: tuple[float, ...] = (0.9, 0.999)  #: Decay rates of Adam.
    weight_decay: float = 0.0  #: Weight decay.
    adamw: bool = False  #: Use AdamW (decoupled weight decay) instead of Adam.
    warmup_steps: int = 0  #: Steps of linear learning-rate warm-up.
    #: Decay of the moving average (EMA) of the weights; 0 disables it.
    ema: float = 0.0
    schedule: Literal["constant", "step", "cosine"] = "constant"  #: Learning-rate schedule.
    #: Factor per step ("step") or final factor ("cosine") of the learning rate.
    lr_decay: float = 0.1
    lr_decay_epochs: int = 40  #: Epochs between steps of the schedule "step".
    clip_norm: float = 0.0  #: Maximum gradient norm; 0 for no limit.
    precision: Literal["32-true", "bf16-mixed"] = "32-true"  #: Training precision, as in Lightning.
    accumulate: int = 1  #: Batches per optimiser step.
    workers: int = 0  #: Data-loading processes per training process.
    #: Keep all cases on the device or load them one by one; "auto" keeps small data on a GPU.
    dataloader: Literal["auto", "device", "loader"] = "auto"
    seed: int = 0  #: Seed of all random numbers of the training.
    compile: bool = False  #: Compile the network with torch.compile.
    cuda_graphs: bool = False  #: Run training steps as CUDA graphs; one GPU only.
    deterministic: bool = False  #: Use deterministic kernels only.
    checkpoint_every: int = 1  #: Epochs between checkpoints.
    patience: int = 0  #: Epochs without improvement before training stops; 0 to train all epochs.

    def __post_init__(self) -> None:
        positive = "epochs batch accumulate lr_decay_epochs checkpoint_every learning_rate"
        for name in positive.split():
            if getattr(self, name) <= 0:
                text = f"training.{name} must be positive, got {getattr(self, name)}"
                raise InputError(text, code="value.invalid")
        for name in ("warmup_steps", "clip_norm", "weight_decay", "workers", "patience"):
            if getattr(self, name) < 0:
                text = f"training.{name} must not be negative, got {getattr(self, name)}"
                raise InputError(text, code="value.invalid")
        if not 0 <= self.ema < 1:
            text = f"training.ema must be in [0, 1), got {self.ema}"
            raise InputError(text, code="value.invalid")
        if self.cuda_graphs and self.accumulate > 1:
            # A CUDA graph overwrites the gradients of the last batch.
            raise InputError("training.cuda_graphs needs accumulate = 1", code="option.conflict")


Batch = Mapping[str, Any]
Loss = Callable[[nn.Module, Batch, torch.Generator], Tensor]
Validate = Callable[[nn.Module, Batch, torch.Generator], dict[str, Tensor]]


def mean_summary(values: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: float(value.double().mean()) for name, value in values.items()}


@dataclass(frozen=True, eq=False)
class Recipe:
    """Network with its loss and validation functions."""

    kind: str
    network: nn.Module
    config: Any
    loss: Loss
    validate: Validate
    summary: Callable[[Mapping[str, Tensor]], dict[str, float]] = field(default=mean_summary)
    monitor: str = "loss"
    mode: Literal["min", "max"] = "min"
    example_batch: Callable[[nn.Module, Batch, torch.Generator], None] | None = None
    collate: Callable[[list[Any]], Batch] | None = None
    pretraining: tuple[Recipe, TrainingConfig] | None = None
    on_end: Callable[[], Mapping[str, Any] | None] | None = None
