"""Tasks by name: the one list, and the networks among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch

from taskuq.training.networks import Methods

TASKS = Methods("task", "task", {"mean-intensity": "taskuq.task.simple:MeanIntensityMethod"})


class TaskMethod(Protocol):
    """A table ``[task]``: a frozen dataclass whose fields are the table's keys."""

    def open(self, device: torch.device | str) -> Any:
        """Return the task that the pipeline calls, on a device."""
        ...


def build(name: str, preset: str = "paper") -> Any:
    """Make a task network with random weights.

    Arguments:
        name: ``"classifier"``, or one of your own.
        preset: ``"paper"`` (ResNet-50, 320×320), ``"demo"`` (128×128) or ``"tiny"``.

    Returns:
        A torch module.

    Example:
        >>> net = build("classifier", preset="tiny")
        >>> sum(p.numel() for p in net.parameters())
        20665
    """
    return TASKS.build(name, preset)


def load(path: Path | str) -> Any:
    """Read a trained task network: safetensors, with the TOML of its configuration beside it.

    Arguments:
        path: The weights, ending in .safetensors.

    Returns:
        The network, on the CPU, ready to be used.

    Example:
        >>> from taskuq.weights import locate
        >>> load(locate("classifier-atlas")).config.hidden
        (64,)
    """
    return TASKS.load(path)
