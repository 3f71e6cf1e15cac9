"""Values of tasks: one for all, or one for each, in order or by name."""

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
    """Return one value for each task."""
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
    """Take a range for all tasks, or one for each: in order, or by name."""
    if isinstance(value, Sequence | np.ndarray) and len(value) and all(map(_is_number, value)):
        return (as_range(value),) * len(names)
    return each_task(value, names, "task_range", as_range)


def _is_number(value: Any) -> bool:
    """Return True if this is an end of a range, and not a range; files hold ends as words."""
    return isinstance(value, str | int | float | np.number)


def common_range(ranges: Sequence[TaskRange], names: Sequence[str]) -> TaskRange:
    """Return the range of the only task, or of all where they have the same."""
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
    """Refuse values (..., task), or of one task, outside the declared ranges."""
    x: FloatArray = as_array(values, what)
    if len(set(ranges)) == 1:
        require_in_range(np.atleast_1d(x), ranges[0], what)
        return
    for k, range_ in enumerate(ranges):
        name = names[k] if names else f"task {k + 1}"
        require_in_range(np.atleast_1d(x[..., k]), range_, f"{what} of {name}")


def ranges_to_json(ranges: Sequence[TaskRange]) -> dict[str, Any]:
    """Return the ranges as fields of a record; one for each task only where they differ."""
    if len(set(ranges)) == 1:
        return {"task_range": range_to_json(ranges[0])}
    return {"task_range": None, "task_ranges": [range_to_json(one) for one in ranges]}


def ranges_from_json(record: Mapping[str, Any], names: Sequence[str]) -> tuple[TaskRange, ...]:
    """Read what :func:`ranges_to_json` wrote."""
    each = record.get("task_ranges")
    return as_ranges(record["task_range"] if each is None else each, names)
