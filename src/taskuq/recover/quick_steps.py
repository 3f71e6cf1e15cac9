"""Training steps that are compiled, and replayed: the same function in less time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from taskuq.recover.recorded import Replayed


class ForTraining:
    """A function that is compiled for training batches of the size it first meets.

    Anything else, validation, the start of a flow or a last batch that is smaller, is computed as
    ever: each would be compiled again, which takes longer than it could save.

    Arguments:
        plain: The function.
        compiled: The same, compiled.

    Example:
        >>> twice = ForTraining(lambda x: 2 * x, lambda x: x + x)
        >>> with torch.no_grad():
        ...     twice(torch.ones(1))  # as it is
        tensor([2.])
    """

    def __init__(self, plain: Callable[..., Any], compiled: Callable[..., Any]) -> None:
        self.plain, self.compiled = plain, compiled
        self._shapes: list[torch.Size] | None = None

    def __call__(self, *given: Any) -> Any:
        """Return what the function makes of its arguments."""
        if not torch.is_grad_enabled():
            return self.plain(*given)
        shapes = [x.shape for x in given if isinstance(x, Tensor)]
        if self._shapes is None:
            self._shapes = shapes
        return (self.compiled if shapes == self._shapes else self.plain)(*given)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function for the shapes it is called with, at the first call.

    Arguments:
        function: The function.
    """
    with warnings.catch_warnings():
        # torch's compiler imports a part of torch that is deprecated.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
        return torch.compile(function, dynamic=False)


def quick_steps(
    network: nn.Module,
    compute: Callable[..., Tensor],
    *,
    is_replayed: bool = False,
    is_compiled: bool = False,
) -> Callable[..., Tensor]:
    """Return what computes the same in training, in less time.

    Arguments:
        network: The network, whose weights are trained.
        compute: What is computed with it, of tensors. It must neither wait for the GPU nor draw
            random numbers.
        is_replayed: Whether to record it on a GPU and replay it.
        is_compiled: Whether to compile it.

    Example:
        >>> line = nn.Linear(1, 1)
        >>> quick_steps(line, line) is line
        True
    """
    if is_compiled:
        compute = ForTraining(compute, compiled(compute))
    return Replayed(network, compute) if is_replayed else compute
