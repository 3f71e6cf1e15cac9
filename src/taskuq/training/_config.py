"""Training configuration and recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from taskuq.errors import InputError


@dataclass(frozen=True)
class TrainingConfig:
    """Settings [training]: optimiser, schedule, batch, precision."""

    epochs: int = 150
    batch: int = 8
    learning_rate: float = 1e-4
    betas: tuple[float, ...] = (0.9, 0.999)
    weight_decay: float = 0.0
    decoupled: bool = False
    warmup: int = 0
    average: float = 0.0
    schedule: Literal["constant", "step", "cosine"] = "constant"
    decay: float = 0.1
    decay_epochs: int = 40
    clip: float = 0.0
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    accumulate: int = 1
    workers: int = 0
    feed: Literal["auto", "device", "loader"] = "auto"
    seed: int = 0
    compile: bool = False
    replay: bool = False
    deterministic: bool = False
    keep_every: int = 1
    patience: int = 0
    minutes: float = 0.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "accumulate", "decay_epochs", "keep_every"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"{name} is {getattr(self, name)}; give a whole number above 0",
                    code="value.invalid",
                )
        if self.replay and self.accumulate > 1:
            # A replay writes gradients where the last one's lie: nothing would be added up.
            raise InputError(
                f"replay is for one batch a step, not accumulate = {self.accumulate}; leave one "
                "of them out",
                code="option.conflict",
            )
        if not 0 <= self.average < 1:
            raise InputError(
                f"average is {self.average}; give a decay of at least 0 and below 1",
                code="value.invalid",
            )
        if self.warmup < 0 or self.minutes < 0:
            raise InputError(
                f"warmup is {self.warmup} and minutes {self.minutes}; give no negative number",
                code="value.invalid",
            )
        smallest = min(self.clip, self.weight_decay, self.workers, self.patience)
        if self.learning_rate <= 0 or smallest < 0:
            raise InputError(
                f"learning_rate {self.learning_rate}, clip {self.clip}, weight_decay "
                f"{self.weight_decay}, workers {self.workers}, patience {self.patience}; give a "
                "positive learning rate and no negative number",
                code="value.invalid",
            )


Batch = Mapping[str, Any]
Loss = Callable[[nn.Module, Batch, torch.Generator], Tensor]
Validate = Callable[[nn.Module, Batch, torch.Generator], dict[str, Tensor]]


def mean_summary(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the mean of each quantity over all validation cases."""
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
    first_batch: Callable[[nn.Module, Batch, torch.Generator], None] | None = None
    collate: Callable[[list[Any]], Batch] | None = None
    before: tuple[Recipe, TrainingConfig] | None = None
    after: Callable[[], Mapping[str, Any] | None] | None = None

    def is_better(self, new: float, old: float | None) -> bool:
        """Return True if a new value of the monitored summary beats the best one so far."""
        if old is None:
            return True
        return new < old if self.mode == "min" else new > old
