"""Validation of arrays, ids and task ranges."""

from __future__ import annotations

import base64
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import repeat
from types import NoneType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from taskuq._io import range_to_json
from taskuq.errors import GuaranteeWarning, InputError
from taskuq.interval import BoolArray, FloatArray, TaskRange

# Sums of larger numbers may leave the range of floats.
LARGEST = 1e303
# Fewest cases whose single outputs all agree with calibration cases for a reason.
MANY = 10


def is_tensor(values: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def no_grad() -> AbstractContextManager[None]:
    """Return ``torch.no_grad()`` if torch is already imported, else a null context."""
    torch = sys.modules.get("torch")
    return nullcontext() if torch is None else torch.no_grad()


def as_array(values: Any, name: str) -> np.ndarray:
    if values is None:
        raise InputError(f"{name} is None; pass an array", code="dtype.invalid")
    if isinstance(values, np.ma.MaskedArray):
        message = f"{name} is a masked array; remove the masked cases and pass the rest"
        raise InputError(message, code="dtype.invalid")
    try:
        if not isinstance(values, np.ndarray) and is_tensor(values):
            values = values.detach().cpu()
            # NumPy has no bfloat16, whose values float32 holds exactly.
            values = (values.float() if "bfloat16" in str(values.dtype) else values).numpy()
        array = np.asarray(values)
        if array.dtype == object and not any(isinstance(v, str | bytes) for v in array.flat):
            array = array.astype(float)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{name} must be an array ({error})", code="dtype.invalid") from None
    if array.dtype == object:
        raise InputError(f"{name} contains text; pass numbers", code="dtype.invalid")
    return array


def as_real_array(values: Any, name: str, *, ndim: tuple[int, ...]) -> FloatArray:
    """Return validated real, finite values; float32 stays, all else becomes float64."""
    array = as_array(values, name)
    if array.dtype.kind not in "fiub":
        advice = "; pass the magnitude, or real and imaginary part as two tasks"
        text = f"{name} must be real numbers, got {array.dtype}"
        text += advice if array.dtype.kind == "c" else ""
        raise InputError(text, code="dtype.invalid")
    if array.ndim not in ndim:
        raise InputError(f"{name} must have {ndim} axes, got {array.shape}", code="shape.axes")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(float)
    require_finite(array, name)
    return array


# Order of the axes of outputs and targets, by the names that xarray gives them.
AXES = ("round", "case", "sample", "task")


def _library(values: Any) -> str:
    return type(values).__module__.partition(".")[0]


def case_ids(values: Any) -> np.ndarray | None:
    """Return the ids that label the cases of a data structure; None if it has none.

    The ids are the column ``case`` of a pandas or polars data frame, else the index of a pandas
    object, the coordinate ``case`` of an xarray array, or the ids of a table.
    """
    library = _library(values)
    if library == "taskuq":
        return getattr(values, "case", None)
    if library in ("pandas", "polars") and "case" in getattr(values, "columns", ()):
        return np.asarray(values["case"])
    if library == "pandas" and hasattr(values, "index"):
        return np.asarray(values.index)
    if library == "xarray" and "case" in getattr(values, "indexes", ()):
        return np.asarray(values.indexes["case"])
    return None


def _unlabelled(values: Any, name: str) -> Any:
    """Return a labelled array as numbers, with its axes in the order of :data:`AXES`."""
    library = _library(values)
    if library == "xarray" and hasattr(values, "transpose"):
        unknown = [dim for dim in values.dims if dim not in AXES]
        if unknown:
            message = f"{name} has the dimension {unknown[0]!r:.40}; rename it to one of {AXES}"
            raise InputError(message, code="shape.axes")
        return values.transpose(*(dim for dim in AXES if dim in values.dims)).to_numpy()
    if library not in ("pandas", "polars") or not hasattr(values, "to_numpy"):
        return values
    columns = [column for column in getattr(values, "columns", ()) if column != "case"]
    # In one order of memory, so that sums do not depend on the library.
    array = np.ascontiguousarray((values[columns] if columns else values).to_numpy())
    return array[:, 0] if len(columns) == 1 and name != "outputs" else array


def align_cases(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return named arrays with their cases in one order, that of the first labelled array.

    Data of pandas, polars and xarray are matched by the ids of their cases (see
    :func:`case_ids`); arrays without ids are matched by position.

    Raises:
        InputError: If ids differ, or repeated ids have different orders.
    """
    plain = {np.ndarray, list, tuple, NoneType}
    if set(map(type, arrays.values())) <= plain:
        return dict(arrays)
    labelled = [name for name, values in arrays.items() if type(values) not in plain]
    labels = {name: ids for name in labelled if (ids := case_ids(arrays[name])) is not None}
    found = {**arrays, **{name: _unlabelled(arrays[name], name) for name in labelled}}
    first = next(iter(labels), "")
    for name, ids in labels.items():
        if name == first or np.array_equal(ids, labels[first]):
            continue
        place = {label: k for k, label in enumerate(ids.tolist())}
        order = [place.get(label, -1) for label in labels[first].tolist()]
        if len(place) != len(ids) or len(order) != len(ids) or -1 in order:
            message = f"{first} and {name} have different indexes; align them, or pass arrays"
            raise InputError(message, code="shape.mismatch")
        is_round = _library(arrays[name]) == "xarray" and "round" in arrays[name].dims
        found[name] = np.take(found[name], order, axis=1 if is_round else 0)
    return found


def case_digests(outputs: FloatArray) -> NDArray[np.uint32]:
    """Return a 32-bit digest of the outputs (case, ...) of each case."""
    rows = np.ascontiguousarray(outputs, dtype=float).reshape(len(outputs), -1) + 0.0
    odd = np.uint64(0x9E3779B97F4A7C15) * np.arange(1, 2 * rows.shape[1], 2, dtype=np.uint64)
    mixed = (rows.view(np.uint64) * odd).sum(axis=1, dtype=np.uint64)
    mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray(mixed >> np.uint64(32), dtype=np.uint32)


def encode_cases(outputs: FloatArray) -> str:
    return base64.b64encode(np.sort(case_digests(outputs)).tobytes()).decode()


def warn_of_calibration_cases(stored: Any, outputs: FloatArray) -> None:
    """Warn if any of the outputs (case, ...) belongs to a stored calibration case."""
    try:
        known = np.frombuffer(base64.b64decode(stored or ""), dtype=np.uint32)
    except (ValueError, TypeError):
        return
    if not len(known) or not len(outputs):
        return
    found = np.isin(case_digests(outputs), known)
    flat = outputs.reshape(len(outputs), -1)
    # Samples that agree, and single samples, may be those of another case by chance.
    certain = (flat != flat[:, :1]).any(axis=1) | (len(found) >= MANY and found.all())
    count = int((found & certain).sum())
    if count:
        text = f"{count} of {len(found)} cases were used for calibration, so the guarantee does not"
        warnings.warn(f"{text} hold for them; pass new cases", GuaranteeWarning, stacklevel=3)


def require_finite(array: FloatArray, name: str) -> None:
    """Raise InputError for values that are NaN, infinite or too large."""
    if array.size == 0:
        return
    if array.flags.c_contiguous:
        with np.errstate(over="ignore", invalid="ignore"):
            # A large value makes the sum of squares infinite, NaN makes it NaN.
            is_moderate = bool(np.isfinite(np.vdot(array, array)))
    else:
        is_moderate = float(array.min()) >= -LARGEST and float(array.max()) <= LARGEST
    if is_moderate:
        return
    bad = ~(np.abs(array) <= np.float64(LARGEST))
    count = int(bad.sum())
    if count:
        first = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(bad)))
        message = (
            f"{count} of {array.size} {name} are NaN, infinite or beyond {LARGEST:g}, first "
            f"{np.atleast_1d(array)[first]:g} at index {first}; correct or remove them"
        )
        raise InputError(message, code="value.nonfinite")


def as_ids(values: Any, name: str, cases: int) -> np.ndarray:
    if isinstance(values, np.ma.MaskedArray):
        raise InputError(f"{name} is a masked array; remove the masked cases", code="dtype.invalid")
    try:
        is_array = isinstance(values, np.ndarray) or not is_tensor(values)
        array = np.asarray(values) if is_array else as_array(values, name)
    except ValueError:
        raise InputError(f"{name} must not be lists of lists", code="shape.axes") from None
    if array.dtype == object:
        nameless = [v is None or v != v or str(v) == "" for v in array.ravel()]
        array = np.asarray([str(v) for v in array.ravel()]).reshape(array.shape)
    else:
        nameless = (array == "").ravel().tolist() if array.dtype.kind in "US" else []
    if array.shape != (cases,):
        message = f"{name} must have one entry for each of {cases} cases, got {array.shape}"
        raise InputError(message, code="shape.mismatch")
    if any(nameless):
        # They would all be one group.
        raise InputError(f"{name} is missing for {sum(nameless)} cases", code="groups.missing")
    if array.dtype.kind == "f" and (np.abs(array) < 2**53).all() and (array % 1 == 0).all():
        return array.astype(np.int64)
    if array.dtype.kind not in "iubUS":
        raise InputError(
            f"{name} must be integers or strings, got {array.dtype}", code="dtype.invalid"
        )
    return array


def as_task_range(value: Any) -> tuple[float, float] | None:
    """Return a validated task range (low, high) or None; ends may be infinite."""
    if value is None:
        return None
    try:
        low, high = (float(v) for v in value)
    except (TypeError, ValueError, OverflowError):
        low, high = np.nan, np.nan
    if not low < high or any(LARGEST < abs(end) < np.inf for end in (low, high)):
        message = f"task_range must be (low, high), with inf for an open end, got {value}"
        raise InputError(message, code="range.invalid")
    return low, high


def as_outputs_and_targets(
    outputs: Any, targets: Any, range_: TaskRange
) -> tuple[FloatArray, FloatArray]:
    x = as_real_array(outputs, "outputs", ndim=(1, 2, 3))
    x = x[:, None] if x.ndim == 1 else x
    z = as_real_array(targets, "targets", ndim=(1,)).astype(float)
    n = int(x.shape[-2])
    if z.shape != (n,):
        message = f"outputs {x.shape} need {n} targets, got shape {z.shape}"
        raise InputError(message, code="shape.mismatch")
    if x.shape[-1] < 1:
        raise InputError("outputs have no samples; pass at least one", code="samples.mismatch")
    if range_ is not None:
        require_in_range(z, range_, "targets")
    return x, z


def require_methods(part: Any, name: str, kinds: Any, lacks: str = "cannot be called") -> None:
    """Raise InputError if an object lacks a method of the given protocols."""
    if not isinstance(part, kinds):
        message = f"{name} is a {type(part).__name__}, which {lacks}"
        raise InputError(message, code="component.invalid")


def require_in_range(values: FloatArray, range_: TaskRange, name: str) -> None:
    if range_ is None or values.size == 0:
        return
    # In the precision of the values, so that float32(0.1) is within [0, 0.1].
    with np.errstate(over="ignore", invalid="ignore"):
        if values.min() >= range_[0] and values.max() <= range_[1]:
            return  # the usual case, without a second array
        outside = (values < range_[0]) | (values > range_[1])
    if outside.any():
        first = tuple(int(i[0]) for i in np.nonzero(outside))
        raise InputError(
            f"{int(outside.sum())} of {values.size} {name} lie outside task_range=({range_[0]:g}, "
            f"{range_[1]:g}), first {values[first]:g} at index {first}; correct values or range",
            code="range.outside",
        )


def require_nested_lines(values: Any, lines: BoolArray, round: int) -> BoolArray:
    """Return a mask of the next lines; raise InputError if lines already measured are missing."""
    chosen = np.asarray(values)
    if chosen.dtype != bool or chosen.shape != lines.shape or (chosen < lines).any():
        raise InputError(
            f"the adaptive rule must return booleans {lines.shape} that include all lines sampled "
            f"so far, got {chosen.dtype} {chosen.shape} after round {round}",
            code="component.invalid",
        )
    return chosen


T = TypeVar("T")


def per_task(
    value: Any, names: Sequence[str], what: str, read: Callable[[Any], T]
) -> tuple[T, ...]:
    """Return one value per task from a single value, a list or a dictionary by task."""
    if isinstance(value, Mapping):
        unknown = [name for name in value if name not in names]
        if unknown:
            message = f"{what}: no task {unknown[0]!r:.60} in {', '.join(names)}"
            raise InputError(message, code="choice.unknown")
        return tuple(map(read, map(value.get, names)))
    if value is None or isinstance(value, str) or not hasattr(value, "__len__"):
        return tuple(map(read, repeat(value, len(names))))
    if len(value) != len(names):
        raise InputError(
            f"{what} has {len(value)} entries; pass one for all, or for each of {', '.join(names)}",
            code="shape.mismatch",
        )
    return tuple(map(read, value))


def as_ranges(value: Any, names: Sequence[str]) -> tuple[TaskRange, ...]:
    ends = str | int | float | np.number  # files store ends as strings
    is_list = isinstance(value, Sequence | np.ndarray) and len(value) > 0
    if is_list and all(isinstance(end, ends) for end in value):
        return (as_task_range(value),) * len(names)
    return per_task(value, names, "task_range", as_task_range)


def require_in_ranges(
    values: Any, ranges: Sequence[TaskRange], what: str, names: Sequence[str] = ()
) -> None:
    """Raise InputError for values (..., task) outside the range of their task."""
    if set(ranges) == {None}:
        return
    x: FloatArray = as_array(values, what)
    if len(set(ranges)) == 1:
        require_in_range(np.atleast_1d(x), ranges[0], what)
        return
    for k, range_ in enumerate(ranges):
        name = names[k] if names else f"task {k + 1}"
        require_in_range(np.atleast_1d(x[..., k]), range_, f"{what} of {name}")


def ranges_to_json(ranges: Sequence[TaskRange]) -> dict[str, Any]:
    """Return ranges as JSON fields: a single range if all tasks share it, else one per task."""
    if len(set(ranges)) == 1:
        return {"task_range": range_to_json(ranges[0])}
    return {"task_range": None, "task_ranges": [range_to_json(one) for one in ranges]}


def ranges_from_json(record: Mapping[str, Any], names: Sequence[str]) -> tuple[TaskRange, ...]:
    each = record.get("task_ranges")
    return as_ranges(record["task_range"] if each is None else each, names)
