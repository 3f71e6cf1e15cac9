"""Settings of a training run, and the functions that train a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from taskuq._config import BelowOne, Count, Natural, NonNegative, Positive, Seed, check_ranges
from taskuq.errors import InputError


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of [training]: optimiser, schedule, batches and precision."""

    epochs: Count = 150  #: Passes over the training cases.
    batch: Count = 8  #: Cases per step, over all processes.
    learning_rate: Positive = 1e-4  #: Highest learning rate of Adam.
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)  #: Decay rates of Adam.
    weight_decay: NonNegative = 0.0  #: Weight decay of the optimiser; 0 for none.
    adamw: bool = False  #: Use AdamW (decoupled weight decay) instead of Adam.
    warmup_steps: Natural = 0  #: Steps over which the learning rate rises linearly to its peak.
    #: Decay of the moving average (EMA) of the weights; 0 disables it.
    ema: BelowOne = 0.0
    #: First epoch included in an average of the weights over epochs; 0 for no average.
    average_from: Natural = 0
    schedule: Literal["constant", "step", "cosine"] = "constant"  #: Learning-rate schedule.
    #: Factor by which each step of "step" multiplies the learning rate; final factor of "cosine".
    lr_decay: Positive = 0.1
    lr_decay_epochs: Count = 40  #: Epochs between steps of the schedule "step".
    clip_norm: NonNegative = 0.0  #: Maximum gradient norm; 0 for no limit.
    precision: Literal["32-true", "bf16-mixed"] = "32-true"  #: Training precision, as in Lightning.
    accumulate: Count = 1  #: Batches per optimiser step.
    workers: Natural = 0  #: Data-loading processes per training process.
    #: "device" keeps all cases on the device, "loader" loads each batch; "auto" chooses "device"
    #: for small data on a GPU, otherwise "loader".
    dataloader: Literal["auto", "device", "loader"] = "auto"
    seed: Seed = 0  #: Seed of all random numbers of the training.
    compile: bool = False  #: Compile the network with torch.compile.
    cuda_graphs: bool = False  #: Run training steps as CUDA graphs; one GPU only.
    deterministic: bool = False  #: Use deterministic kernels only.
    checkpoint_every: Count = 1  #: Epochs between checkpoints, from which training resumes.
    #: Epochs without improvement before training stops; 0 to train all epochs.
    patience: Natural = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.ema and self.average_from:
            raise InputError("set only training.ema or average_from", code="option.conflict")
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
    """Network to train, with its loss, validation function and other training functions."""

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
