"""A task that was run on some samples already: a rule that asks for the same is told at once."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from taskuq.protocols import Task


@dataclass(frozen=True, eq=False)
class AlreadyRead:
    """The task, and what it said of the samples of a round.

    A scanner waits while lines are chosen, and on a GPU the network of the task takes as long as
    all the rest of a choice. What is told is what the task would say: it is run again where other
    images are given, a part of them, the same with other numbers in their memory, or where
    gradients are asked for.

    Arguments:
        task: The task.
        images: The samples that it was run on; only torch's tensors are known again.
        outputs: What it said.

    Example:
        >>> import torch
        >>> images, asked = torch.ones(2, 4), []
        >>> def task(images):
        ...     asked.append(len(images))
        ...     return images.sum(1)
        >>> told = AlreadyRead(task, images, task(images))
        >>> with torch.no_grad():
        ...     told(images), told(images[:1])
        (tensor([4., 4.]), tensor([4.]))
        >>> asked
        [2, 1]
    """

    task: Task
    images: Any
    outputs: Any
    _known: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_known", _memory(self.images))

    def __call__(self, images: Any) -> Any:
        """Return what the task says of images."""
        memory = _memory(images)
        if memory is None or memory != self._known or _is_remembering():
            return self.task(images)
        # A rule may write into what it is given.
        return self.outputs.clone() if hasattr(self.outputs, "clone") else self.outputs

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.task, name)


def _memory(images: Any) -> tuple[Any, ...] | None:
    """Where a tensor's numbers lie, and how often they were written; None for anything else."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(images, torch.Tensor) or images.is_inference():
        return None
    where = (images.device, images.data_ptr(), images.dtype, images.shape, images.stride())
    return (*where, images._version)


def _is_remembering() -> bool:
    """Whether torch remembers how numbers are made, for gradients."""
    return bool(sys.modules["torch"].is_grad_enabled())
