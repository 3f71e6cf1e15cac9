"""Task networks on a GPU, recorded: where lines are chosen, a scan waits for their gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from taskuq.errors import first_line

# The latest networks and shapes that were recorded, which take memory of the GPU, and how many.
_recorded: dict[object, Callable[[Tensor], Any]] = {}
MOST = 2


def quick_task(task: Any, images: Tensor) -> Callable[[Tensor], Any]:
    """The same task in less time, forwards and backwards, for images of this shape.

    A network on a GPU is recorded as a CUDA graph, which replaces hundreds of launches, and
    computes in bfloat16: for ranking lines that is enough. Everything else runs as it is, and so
    does a network that cannot be recorded, which is said once.

    Arguments:
        task: The task.
        images: Samples (sample, height, width).

    Example:
        >>> quick_task(torch.exp, torch.zeros(1)) is torch.exp
        True
    """
    if not isinstance(task, nn.Module) or not images.is_cuda:
        call: Callable[[Tensor], Any] = task
        return call
    key = (task, images.shape, images.dtype, images.device)
    if key not in _recorded:
        while len(_recorded) >= MOST:
            del _recorded[next(iter(_recorded))]
        _recorded[key] = _record(task, images)
    return _recorded[key]


def _record(task: nn.Module, images: Tensor) -> Callable[[Tensor], Any]:
    def halved(some: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            outputs: Tensor = task(some).float()
        return outputs

    try:
        sample = images.clone().requires_grad_()
        recorded: Callable[[Tensor], Any] = torch.cuda.make_graphed_callables(halved, (sample,))
    except RuntimeError as error:
        warnings.warn(
            f"the task network runs launch by launch: it cannot be recorded ({first_line(error)})",
            stacklevel=2,
        )
        return task
    return recorded
