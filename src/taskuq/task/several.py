"""Several tasks of one image: each reads its numbers, and the table has all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor

from taskuq.errors import InputError
from taskuq.interval import TaskRange
from taskuq.protocols import RangedTask, Task
from taskuq.task.methods import TASKS
from taskuq.training.networks import Method


@dataclass(frozen=True, eq=False)
class SeveralTasks:
    """Tasks side by side, each with a name and a range of its own.

    Arguments:
        tasks: One number for each image, by name.

    Example:
        >>> from taskuq.task.methods import MeanIntensity
        >>> upper, all_ = MeanIntensity(rows=(0.0, 0.5)), MeanIntensity()
        >>> both = SeveralTasks({"upper": upper, "all": all_})
        >>> both(torch.tensor([[[1.0, 3.0], [8.0, 8.0]]])), both.names
        (tensor([[2., 5.]]), ('upper', 'all'))
    """

    tasks: Mapping[str, Task]

    def __post_init__(self) -> None:
        if not self.tasks:
            raise InputError("there is no task; name at least one")

    @property
    def names(self) -> tuple[str, ...]:
        """What the numbers are called."""
        return tuple(self.tasks)

    @property
    def range(self) -> list[TaskRange]:
        """The range of each task, None where it has none."""
        return [t.range if isinstance(t, RangedTask) else None for t in self.tasks.values()]

    def __call__(self, images: Any) -> Tensor:
        """Images (image, height, width) to numbers (image, task)."""
        columns = []
        for name, task in self.tasks.items():
            column = torch.as_tensor(task(images)).float()
            if column.ndim == 2 and column.shape[1] == 1:
                column = column[:, 0]
            if column.ndim != 1:
                raise InputError(
                    f"the task {name} gives shape {tuple(column.shape)}; several tasks take one "
                    "number for each image from each of them"
                )
            columns.append(column.cpu())
        return torch.stack(columns, dim=1)


@dataclass(frozen=True)
class SeveralMethod:
    """The table ``[task]`` of several tasks: a table ``[task.of.NAME]`` for each.

    Arguments:
        of: The tasks by the names that they have in the table of outputs.
    """

    of: dict[str, Annotated[Method, TASKS]] = field(default_factory=dict)

    def open(self, device: torch.device | str) -> SeveralTasks:
        """Open all of them."""
        return SeveralTasks({name: method.open(device) for name, method in self.of.items()})
