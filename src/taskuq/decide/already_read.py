"""A task that was run on some samples already: a rule that asks for the same is told at once."""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from typing import Any

from taskuq.protocols import Task


@dataclass(frozen=True, eq=False)
class AlreadyRead:
    """The task, and what it said of the samples of a round.

    A scanner waits while lines are chosen: what is known need not be computed again. What is told
    is what the task would say: it is run again where other images are given, a part of them, the
    same with other numbers in their memory, or where gradients are asked for. (Only writing that
    torch does not count is not noticed: by ``.data``, or by NumPy into the same memory.)

    Arguments:
        task: The task.
        outputs: What it said; nobody else's memory.
        memory: Where the samples lay when it was run; None where that is no torch tensor's.

    Example:
        >>> told = AlreadyRead.of(lambda images: images.sum(axis=1), np.ones((2, 4)))
        >>> told.outputs, told(np.zeros((1, 4)))
        (array([4., 4.]), array([0.]))
    """

    task: Task
    outputs: Any
    memory: tuple[Any, ...] | None

    @classmethod
    def of(cls, task: Task, images: Any) -> AlreadyRead:
        """Run the task on images."""
        # A task that writes into them is run again on what it made of them.
        memory = _memory(images)
        return cls(task, _copied(task(images)), memory)

    def __call__(self, images: Any) -> Any:
        """Return what the task says of images."""
        if self.memory is None or _memory(images) != self.memory:
            return self.task(images)
        return _copied(self.outputs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.task, name)


def _copied(outputs: Any) -> Any:
    """Numbers that whoever asked may write into."""
    return outputs.clone() if hasattr(outputs, "clone") else copy.deepcopy(outputs)


def _memory(images: Any) -> tuple[Any, ...] | None:
    """Where a tensor's numbers lie, how they are read, and how often they were written.

    None for anything else, for tensors of which torch does not say it, and where gradients are
    asked for.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(images, torch.Tensor) or torch.is_grad_enabled():
        return None
    try:
        if torch.autograd.forward_ad.unpack_dual(images).tangent is not None:
            return None
        where = (images.device, images.data_ptr(), images.stride(), images._version)
    except RuntimeError:  # inside of a transform, sparse, or in inference mode
        return None
    return (*where, images.dtype, images.shape, images.is_conj(), images.is_neg())
