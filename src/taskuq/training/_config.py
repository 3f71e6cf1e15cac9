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
    """Settings of the training engine.

    Arguments:
        epochs: How often every training case is seen.
        batch: Cases in a step, of all processes together.
        learning_rate: The step size of Adam.
        betas: The decay rates of Adam.
        weight_decay: The weight decay: in Adam's gradient, as torch's Adam takes it.
        decoupled: Whether weights decay apart from the gradient, as in AdamW.
        warmup: Steps in which the rate rises from nothing to what the schedule says.
        average: The decay of a running mean of the weights, which is what is validated and kept;
            0 keeps the weights themselves. Early on the mean is over fewer steps.
        schedule: ``"constant"``, ``"step"`` (times ``decay`` every ``decay_epochs``) or
            ``"cosine"`` (down to ``decay`` times the rate at the end).
        decay: What a schedule multiplies the rate by.
        decay_epochs: Epochs between two steps of the ``"step"`` schedule.
        clip: The largest norm of a gradient; 0 does not clip.
        precision: ``"32-true"``, or ``"bf16-mixed"`` on a GPU.
        accumulate: Batches whose gradients are added to one step.
        workers: Processes that read data, for each training process.
        feed: Where batches come from, which are the same: ``"device"`` puts all cases on the one
            device that trains, in the beginning; ``"loader"`` reads them one by one; ``"auto"`` is
            the first on a GPU, for cases in memory that take little of the GPU's, else the second.
        seed: Where all randomness of training comes from.
        compile: Whether to compile the costly part of the network (minutes at first, faster
            steps): flows of whole images, samplers and their rivals.
        replay: Whether one GPU replays a recording of each step, which small networks train faster
            with: all recovery networks but flows of whole images.
        deterministic: Whether to insist on kernels that give the same bits every time.
        keep_every: Epochs between two states from which a killed training resumes.
        patience: Epochs without a better value after which training stops; 0 never stops early.
        minutes: The number of epochs is lowered to what fits into so many minutes of all starts,
            schedule included: foreseen after the second epoch, and again after each until half of
            them are done. The state keeps the number. 0 trains all epochs.

    Example:
        >>> TrainingConfig(epochs=50, batch=16).learning_rate
        0.0001
    """

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
            :func:`taskuq._seeds.per_case_random`, a case has the same numbers however many
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
