"""What is calibrated on or judged: arrays, or a table that brings them along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from taskuq.calibration.units import UnitName, as_unit
from taskuq.errors import InputError
from taskuq.outputs import TaskOutputs, is_stored


class Given(NamedTuple):
    """Arrays of one round, wherever they come from.

    Arguments:
        outputs: What was handed in as outputs, or what a table has.
        targets: Likewise.
        group: The group of each case, if any.
        task_range: The range of the task, or of each.
        acceleration: The acceleration of the round, if it is known.
        task_names: The names of the tasks, if any are known.
        label: The class of each case, if a table has one.
    """

    outputs: Any
    targets: Any
    group: Any
    task_range: Any
    acceleration: float | None
    task_names: tuple[str, ...] | None = None
    label: Any = None
    round_name: str | None = None

    @property
    def where(self) -> dict[str, Any]:
        """Round and task by name, as a result remembers them."""
        return {
            "acceleration": self.acceleration,
            "round_name": self.round_name,
            "task": self.task_name,
        }

    @property
    def task_name(self) -> str | None:
        """The name of the only task, where it has one that means something."""
        names = self.task_names or ("task",)
        return None if names == ("task",) else names[0]


def given_cases(
    outputs: Any,
    targets: Any,
    acceleration: float | str | None = None,
    task: str | None = None,
    group: Any = None,
    task_range: Any = None,
    unit: UnitName | None = None,
) -> Given:
    """Return the arrays of one task in one round, from arrays or from a table.

    Arguments:
        outputs: Outputs, or a table, its path or a data frame.
        targets: Targets; None with a table.
        acceleration: Which round of a table, where it has several; else what to remember.
        task: Which task of a table, where it has several.
        group: Groups in place of a table's.
        task_range: A range in place of a table's.
        unit: 'case' leaves a table's groups out.

    Example:
        >>> table = TaskOutputs(rng.random((2, 5, 3)), rng.random(5), accelerations=(8, 4))
        >>> given_cases(table, None, acceleration=4).outputs.shape  # this round and the earlier
        (2, 5, 3)
        >>> given_cases(table, None)
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: the table has the rounds R = 8, R = 4; choose one with ...
    """
    outputs = _opened(outputs, targets)
    if not isinstance(outputs, TaskOutputs):
        if task is not None:
            raise InputError("task chooses one of a table's tasks, got arrays; leave it out")
        return _arrays(outputs, targets, acceleration, group, task_range)
    table, k = _round(outputs, targets, acceleration)
    if task is None and table.tasks > 1:
        raise InputError(
            f"the table has the tasks {', '.join(table.task_names)}; choose one with task=, or "
            "cover all of them with calibrate_joint"
        )
    table = table if task is None else table.select(task=task)
    return _of_table(table, k, table.until(k), group, task_range, unit)


def given_tasks(
    outputs: Any,
    targets: Any,
    acceleration: float | str | None = None,
    task_names: Sequence[str] | None = None,
    group: Any = None,
    task_range: Any = None,
    unit: UnitName | None = None,
) -> Given:
    """Return the arrays of several tasks in one round, from arrays or from a table.

    Arguments:
        outputs: Outputs (case, sample, task), or a table, its path or a data frame.
        targets: Targets (case, task); None with a table.
        acceleration: As in :func:`given_cases`.
        task_names: What tasks are called, or which of a table's tasks are meant.
        group: Groups in place of a table's.
        task_range: Ranges in place of a table's.
        unit: 'case' leaves a table's groups out.
    """
    outputs = _opened(outputs, targets)
    if not isinstance(outputs, TaskOutputs):
        given = _arrays(outputs, targets, acceleration, group, task_range)
        return given._replace(task_names=None if task_names is None else tuple(task_names))
    table, k = _round(outputs, targets, acceleration)
    table = table if task_names is None else table.select(task=list(task_names))
    if table.outputs.ndim == 3:
        raise InputError("the table has one task; use calibrate, or bring a table of several")
    return _of_table(table, k, table.outputs[k], group, task_range, unit)


def _opened(outputs: Any, targets: Any) -> Any:
    """A table where its path or a data frame stands for one; a frame with targets is an array."""
    return TaskOutputs.load(outputs) if targets is None and is_stored(outputs) else outputs


def _arrays(
    outputs: Any, targets: Any, acceleration: float | str | None, group: Any, task_range: Any
) -> Given:
    if targets is None:
        raise InputError("targets are missing; give outputs and targets, or a table that has both")
    if isinstance(acceleration, str):
        raise InputError(
            f"{acceleration!r:.40} names a round of a table; with arrays give a number"
        )
    rate = None if acceleration is None else float(acceleration)
    return Given(outputs, targets, group, task_range, rate)


def _round(
    table: TaskOutputs, targets: Any, acceleration: float | str | None
) -> tuple[TaskOutputs, int]:
    """The table and the number of the round that is meant."""
    if targets is not None:
        raise InputError("a table brings its own targets; leave targets out")
    if not table.has_targets:
        raise InputError("the table has no targets, so nothing can be learnt from it")
    if acceleration is not None:
        unknown = bool(np.isnan(table.accelerations).all())
        return table, 0 if unknown and not isinstance(acceleration, str) else table.round_at(
            acceleration
        )
    if table.rounds > 1:
        raise InputError(
            f"the table has the rounds {', '.join(table.round_labels)}; choose one with "
            "acceleration="
        )
    return table, 0


def _of_table(
    table: TaskOutputs, k: int, outputs: Any, group: Any, task_range: Any, unit: UnitName | None
) -> Given:
    R = float(table.accelerations[k])
    ranges = table.task_ranges[0] if table.outputs.ndim == 3 else table.task_ranges
    own = as_unit(unit, has_groups=table.group is not None).groups(table.group)
    return Given(
        outputs, table.targets_at(k), own if group is None else group,
        ranges if task_range is None else task_range, None if np.isnan(R) else R,
        table.task_names, table.label, None if table.round_names is None else table.round_names[k],
    )  # fmt: skip
