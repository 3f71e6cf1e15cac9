"""A flow whose training steps are compiled: the same function, in fewer passes over memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from taskuq.recover.flow.layer import Step
from taskuq.recover.flow.model import ConditionalFlow


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


def compile_flow(flow: ConditionalFlow) -> None:
    """Compile the conditioning networks and the steps of a flow, in place, for training.

    Arguments:
        flow: The flow.
    """
    with warnings.catch_warnings():
        # torch's compiler imports a part of torch that is deprecated.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
        condition = torch.compile(flow.condition, dynamic=False)
        # One function for all steps: those of a kind share what is compiled.
        forward = torch.compile(Step.forward, dynamic=False)
    flow.condition = ForTraining(flow.condition, condition)  # type: ignore[method-assign, assignment]
    for layer in flow.layers:
        for step in layer.steps:  # type: ignore[union-attr]
            plain = partial(Step.forward, step)
            step.forward = ForTraining(plain, partial(forward, step))
