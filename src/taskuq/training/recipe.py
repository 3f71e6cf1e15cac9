"""Recipe of a training: a network, its loss and its validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from taskuq.training.config import TrainingConfig

Batch = Mapping[str, Any]
Loss = Callable[[nn.Module, Batch, torch.Generator], Tensor]
Validate = Callable[[nn.Module, Batch, torch.Generator], dict[str, Tensor]]


def mean_summary(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the mean of each quantity over all validation cases.

    Arguments:
        values: Quantities of all cases, each (case,).

    Example:
        >>> mean_summary({"loss": torch.tensor([1.0, 3.0])})
        {'loss': 2.0}
    """
    return {name: float(value.double().mean()) for name, value in values.items()}


@dataclass(frozen=True, eq=False)
class Recipe:
    """A network and the functions that train it.

    Arguments:
        kind: What the network is, e.g. ``"flow"``; stands in its configuration file.
        network: The network.
        config: The dataclass it was made from.
        loss: Network, batch and generator to the loss of a training batch. All randomness comes
            from the generator, which is seeded by epoch, step and process; drawn by
            :func:`taskuq.seeds.numbers_of_cases`, a case has the same numbers however many
            processes share the batch. The batch also says how much of the training is done,
            ``progress`` from 0 to 1.
        validate: The same for a validation batch; returns quantities for each case, (case,).
        summary: What is made of the quantities of all validation cases; their means by default.
        monitor: The summary that decides which weights are best.
        mode: Whether its least or its largest value is best.
        first_batch: Called once, on the first training batch of all, before any step; for starts
            that need data.
        collate: Makes a batch of a list of cases; torch's own by default.
        before: A recipe for a part of the network, and how to train it, on the same cases, before
            the whole is trained. What is frozen in the part is trained there, and frozen again.
        after: Called once at the end, when the network holds its best weights; they are stored
            again with what it changes, and what it returns is noted in their TOML file.

    Example:
        >>> line = Recipe("line", nn.Linear(1, 1), config=None,
        ...               loss=lambda net, batch, generator: net(batch["x"]).square().mean(),
        ...               validate=lambda net, batch, generator: {"loss": net(batch["x"])[:, 0]})
        >>> line.monitor, line.mode
        ('loss', 'min')
    """

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
