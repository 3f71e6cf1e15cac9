"""What is said of tasks: once for all of them, or of each, in order or by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from taskuq.checks import as_array, as_range, require_in_range
from taskuq.errors import InputError
from taskuq.files import range_to_json
from taskuq.interval import FloatArray, TaskRange

T = TypeVar("T")


def each_task(
    value: Any, names: Sequence[str], what: str, read: Callable[[Any], T]
) -> tuple[T, ...]:
    """Return one value for each task.

    Arguments:
        value: One for all tasks, a sequence with one for each, or some by the tasks' names; a task
            that is not named has None.
        names: The names of the tasks.
        what: What to call it in an error.
        read: Reads one of them.

    Example:
        >>> each_task({"area": 20}, ("lesion", "area"), "max_width", lambda v: v)
        (None, 20)
        >>> each_task((0.1, 20, 3), ("lesion", "area"), "max_width", float)
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: max_width has 3 entries for the 2 tasks lesion, area; give ...
    """
    if isinstance(value, Mapping):
        unknown = [name for name in value if name not in names]
        if unknown:
            raise InputError(
                f"{what} names {unknown[0]!r:.60}, which is no task; the tasks are "
                f"{', '.join(names)}",
                code="choice.unknown",
            )
        return tuple(read(value.get(name)) for name in names)
    if value is None or isinstance(value, str) or not hasattr(value, "__len__"):
        return tuple(read(value) for _ in names)
    if len(value) != len(names):
        raise InputError(
            f"{what} has {len(value)} entries for the {len(names)} tasks {', '.join(names)}; give "
            "one for all, one for each, or some by name",
            code="shape.mismatch",
        )
    return tuple(read(one) for one in value)


def as_ranges(value: Any, names: Sequence[str]) -> tuple[TaskRange, ...]:
    """Take a range for all tasks, or one for each: in order, or by name.

    Arguments:
        value: A pair (low, high); None where nothing is declared; one of these for each task; or
            pairs by the tasks' names.
        names: The names of the tasks.

    Example:
        >>> as_ranges((0, 1), ("lesion", "area"))
        ((0.0, 1.0), (0.0, 1.0))
        >>> as_ranges({"area": (0, float("inf"))}, ("lesion", "area"))
        (None, (0.0, inf))
    """
    if isinstance(value, Sequence | np.ndarray) and len(value) and all(map(_is_number, value)):
        return (as_range(value),) * len(names)
    return each_task(value, names, "task_range", as_range)


def _is_number(value: Any) -> bool:
    """Whether this is an end of a range, and not a range; files hold ends as words."""
    return isinstance(value, str | int | float | np.number)


def common_range(ranges: Sequence[TaskRange], names: Sequence[str]) -> TaskRange:
    """Return the range of the only task, or of all where they have the same.

    Example:
        >>> common_range([(0.0, 1.0)], ["lesion"])
        (0.0, 1.0)
    """
    if len(set(ranges)) > 1:
        raise InputError(
            f"the tasks {', '.join(names)} have ranges of their own; choose one task, or ask for "
            "task_ranges",
            code="range.invalid",
        )
    return ranges[0]


def require_in_ranges(
    values: Any, ranges: Sequence[TaskRange], what: str, names: Sequence[str] = ()
) -> None:
    """Refuse values (..., task), or of one task, outside the declared ranges.

    Arguments:
        values: The values; the last axis is the task's where there are several.
        ranges: One for each task.
        what: What to call the values in an error.
        names: What to call the tasks; their numbers where unknown.
    """
    x: FloatArray = as_array(values, what)
    if len(set(ranges)) == 1:
        require_in_range(np.atleast_1d(x), ranges[0], what)
        return
    for k, range_ in enumerate(ranges):
        name = names[k] if names else f"task {k + 1}"
        require_in_range(np.atleast_1d(x[..., k]), range_, f"{what} of {name}")


def ranges_to_json(ranges: Sequence[TaskRange]) -> dict[str, Any]:
    """Return the ranges as fields of a record; one for each task only where they differ.

    Example:
        >>> ranges_to_json([(0.0, 1.0), (0.0, 1.0)])
        {'task_range': ['0.0', '1.0']}
        >>> ranges_to_json([(0.0, 1.0), None])
        {'task_range': None, 'task_ranges': [['0.0', '1.0'], None]}
    """
    if len(set(ranges)) == 1:
        return {"task_range": range_to_json(ranges[0])}
    return {"task_range": None, "task_ranges": [range_to_json(one) for one in ranges]}


def ranges_from_json(record: Mapping[str, Any], names: Sequence[str]) -> tuple[TaskRange, ...]:
    """Read what :func:`ranges_to_json` wrote."""
    each = record.get("task_ranges")
    return as_ranges(record["task_range"] if each is None else each, names)
