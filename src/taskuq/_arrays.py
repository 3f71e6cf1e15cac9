"""Checks of arrays and task ranges."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np

from taskuq._io import range_to_json
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray, TaskRange

# Fourth powers of larger numbers, on a logit's tangent, leave the range of floats; no task has any.
LARGEST = 1e60

CALLED = "cannot be called; give a function"


def is_tensor(values: Any) -> bool:
    """Return True for a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def no_grad() -> AbstractContextManager[None]:
    """torch.no_grad() if torch is loaded, else a null context."""
    torch = sys.modules.get("torch")
    return nullcontext() if torch is None else torch.no_grad()


def as_array(values: Any, name: str) -> np.ndarray:
    """Take an array, a list or a torch tensor on any device as a NumPy array."""
    try:
        if is_tensor(values):
            values = _from_tensor(values.detach().cpu())
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(
            f"{name} cannot be read as an array of numbers ({error})", code="dtype.invalid"
        ) from None
    if array.dtype == object:
        raise InputError(
            f"{name} cannot be read as an array of numbers (mixed or ragged entries)",
            code="dtype.invalid",
        )
    return array


def _from_tensor(tensor: Any) -> Any:
    """Take a tensor on the CPU; NumPy has no bfloat16, whose values float32 holds exactly."""
    return (tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).numpy()


def as_real_array(values: Any, name: str, *, ndim: tuple[int, ...]) -> FloatArray:
    """Validate real, finite values; keep float32, else convert to float64."""
    array = as_array(values, name)
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"{name} must be real numbers, got an array of {array.dtype}", code="dtype.invalid"
        )
    if array.ndim not in ndim:
        wanted = " or ".join(map(str, ndim))
        raise InputError(
            f"{name} must have {wanted} axes, got shape {array.shape}", code="shape.axes"
        )
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(float)
    require_finite(array, name)
    return array


def require_finite(array: FloatArray, name: str) -> None:
    """Refuse NaN, infinity and what is as good as it; say how many and where the first one is."""
    if array.size == 0:
        return
    if array.flags.c_contiguous:
        with np.errstate(over="ignore", invalid="ignore"):
            # One large number makes the sum of squares large, and NaN makes it NaN: one pass,
            # without a second array.
            is_moderate = np.vdot(array, array) <= np.float64(LARGEST) ** 2
    else:
        is_moderate = array.min() >= -LARGEST and array.max() <= LARGEST
    if is_moderate:
        return
    bad = ~(np.abs(array) <= np.float64(LARGEST))
    count = int(bad.sum())
    if count:
        first = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(bad)))
        plural = "s" if count > 1 else ""
        raise InputError(
            f"{name} hold {count} NaN or infinite value{plural} of {array.size}, first at "
            f"{first}; remove those cases or repair them first",
            code="value.nonfinite",
        )


def as_ids(values: Any, name: str, cases: int) -> np.ndarray:
    """Validate one integer or string per case."""
    try:
        array = as_array(values, name) if is_tensor(values) else np.asarray(values)
    except ValueError:
        raise InputError(
            f"{name} must hold one integer or string per case, got a list of lists",
            code="shape.axes",
        ) from None
    if array.dtype == object:
        nameless = [v is None or v != v or str(v) == "" for v in array.ravel()]
        array = np.asarray([str(v) for v in array.ravel()]).reshape(array.shape)
    else:
        nameless = (array == "").ravel().tolist() if array.dtype.kind in "US" else []
    if array.shape != (cases,):
        raise InputError(
            f"{name} must hold one entry for each of {cases} cases, got shape {array.shape}",
            code="shape.mismatch",
        )
    if any(nameless):
        # They would all be taken for one and the same.
        raise InputError(
            f"{name} is missing for {sum(nameless)} of {cases} cases; name it for each, or leave "
            "these cases out",
            code="groups.missing",
        )
    if array.dtype.kind == "f":
        exact = (np.abs(array) < 2**53).all()
        whole = array.astype(np.int64) if exact else None
        if whole is None or (whole != array).any():
            raise InputError(
                f"{name} must be integers or strings, got fractions or NaN", code="dtype.invalid"
            )
        return whole
    if array.dtype.kind not in "iubUS":
        raise InputError(
            f"{name} must be integers or strings, got an array of {array.dtype}",
            code="dtype.invalid",
        )
    return array


def as_task_range(value: Any) -> tuple[float, float] | None:
    """Validate a task range (low, high) or None; either end may be infinite."""
    if value is None:
        return None
    try:
        low, high = (float(v) for v in value)
    except (TypeError, ValueError, OverflowError):
        low, high = np.nan, np.nan
    is_too_large = any(LARGEST < abs(end) < np.inf for end in (low, high))
    if not low < high or is_too_large:
        raise InputError(
            f"a task range is two numbers low < high, below {LARGEST:g} or infinite, got {value}",
            code="range.invalid",
        )
    return low, high


def as_outputs_and_targets(
    outputs: Any, targets: Any, range_: TaskRange
) -> tuple[FloatArray, FloatArray]:
    """Validate outputs and targets of one round."""
    x = as_real_array(outputs, "outputs", ndim=(1, 2, 3))
    x = x[:, None] if x.ndim == 1 else x
    z = as_real_array(targets, "targets", ndim=(1,)).astype(float)
    n = int(x.shape[-2])
    if z.shape != (n,):
        raise InputError(
            f"outputs of shape {x.shape} are {n} cases, but targets have shape {z.shape}; one "
            "target per case is needed",
            code="shape.mismatch",
        )
    if x.shape[-1] < 1:
        raise InputError(
            "outputs hold no samples; at least one per case is needed", code="samples.mismatch"
        )
    if range_ is not None:
        require_in_range(z, range_, "targets")
    return x, z


def require_methods(part: Any, name: str, kinds: Any, lacks: str = CALLED) -> None:
    """Raise InputError if a component lacks a required method."""
    if not isinstance(part, kinds):
        raise InputError(
            f"{name} is a {type(part).__name__}, which {lacks}", code="component.invalid"
        )


def require_in_range(values: FloatArray, range_: TaskRange, name: str) -> None:
    """Refuse values outside the declared task range."""
    if range_ is None or values.size == 0:
        return
    # The range takes the precision of the values, so that float32(0.1) lies within [0, 0.1].
    with np.errstate(over="ignore", invalid="ignore"):
        if values.min() >= range_[0] and values.max() <= range_[1]:
            return  # the usual case, without a second array
        outside = (values < range_[0]) | (values > range_[1])
    if outside.any():
        first = tuple(int(i[0]) for i in np.nonzero(outside))
        raise InputError(
            f"{int(outside.sum())} of {values.size} {name} lie outside the declared range "
            f"[{range_[0]:g}, {range_[1]:g}], first {values[first]:g} at {first}; declare the "
            "true range or none",
            code="range.outside",
        )


def require_nested_lines(found: Any, lines: BoolArray, round: int) -> BoolArray:
    """Raise InputError if chosen lines drop measured ones."""
    chosen = np.asarray(found)
    if chosen.dtype != bool or chosen.shape != lines.shape or (chosen < lines).any():
        raise InputError(
            f"the rule chose {chosen.dtype} of shape {chosen.shape} after round {round}; booleans "
            f"{lines.shape} that keep all lines measured so far are needed",
            code="component.invalid",
        )
    return chosen


T = TypeVar("T")


def per_task(
    value: Any, names: Sequence[str], what: str, read: Callable[[Any], T]
) -> tuple[T, ...]:
    """Broadcast one value, a list or a mapping to all tasks."""
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
        return (as_task_range(value),) * len(names)
    return per_task(value, names, "task_range", as_task_range)


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
