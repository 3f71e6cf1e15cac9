"""A table, or what one can be made of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from inspect import signature
from typing import Any

from taskuq.errors import InputError
from taskuq.outputs.table import TaskOutputs

DESCRIBED = tuple(signature(TaskOutputs).parameters)[2:]


def as_table(given: Any, described: Mapping[str, Any], what: str) -> TaskOutputs:
    """Return a table, where one or the arrays of one were handed in.

    Arguments:
        given: A table, its path, a data frame, or a pair (outputs, targets).
        described: What else describes a table of arrays, by name.
        what: The function that asks, for an error.

    Example:
        >>> as_table((rng.random((2, 5, 3)), rng.random(5)), {"accelerations": (8, 4)}, "plan")
        TaskOutputs(2 rounds (R = 8, 4), 5 cases, 3 samples, 1 task)
        >>> as_table(rng.random((5, 3)), {}, "plan")
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: plan needs a table, or arrays as a pair (outputs, targets); ...
    """
    unknown = [name for name in described if name not in DESCRIBED]
    if unknown:
        known = ", ".join(DESCRIBED)
        raise InputError(f"{what} does not know {unknown[0]!r}; a table is described by {known}")
    if is_stored(given):
        given = TaskOutputs.load(given, task_range=described.get("task_range"))
        described = {name: value for name, value in described.items() if name != "task_range"}
    if isinstance(given, TaskOutputs):
        if described:
            raise InputError(
                f"the table brings its own {', '.join(described)}; leave that out, or make another "
                "table"
            )
        return given
    if not isinstance(given, tuple) or len(given) != 2:
        raise InputError(
            f"{what} needs a table, or arrays as a pair (outputs, targets); got a "
            f"{type(given).__name__}"
        )
    return TaskOutputs(*given, **described)


def is_stored(given: Any) -> bool:
    """Whether this is the path of a table, or a data frame, which holds one.

    Example:
        >>> is_stored("table.npz"), is_stored({"case": [1]}), is_stored(rng.random((5, 3)))
        (True, True, False)
    """
    # Frames of pandas and polars have columns, those of Arrow names of columns.
    is_frame = hasattr(given, "columns") or hasattr(given, "column_names")
    return isinstance(given, str | os.PathLike | Mapping) or is_frame
