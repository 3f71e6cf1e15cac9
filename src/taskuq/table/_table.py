"""Table of task outputs: arrays, validation and selection."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from taskuq._arrays import (
    align_cases,
    as_array,
    as_ids,
    as_ranges,
    as_real_array,
    case_ids,
    require_in_ranges,
)
from taskuq._display import Displayed, Summary, svg
from taskuq._io import reading
from taskuq._registry import Registry
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray, TaskRange
from taskuq.table._terminology import count_noun, round_label

if TYPE_CHECKING:
    import arviz
    import xarray


def as_rounds(
    accelerations: Any, costs: Any, full_cost: float | None, names: Any
) -> tuple[FloatArray, tuple[str, ...] | None]:
    given = accelerations if costs is None else costs
    if given is None or (accelerations is not None and costs is not None):
        raise InputError("pass accelerations, or costs and full_cost", code="option.conflict")
    if isinstance(given, Mapping):
        if names is not None:
            raise InputError("rounds are named already; remove round_names", code="option.unused")
        names, given = list(given), list(given.values())
    values = np.atleast_1d(as_array(given, "accelerations" if costs is None else "costs"))
    if costs is not None:
        if full_cost is None:
            raise InputError("costs need full_cost, the cost at R = 1", code="option.missing")
        is_rising = values.dtype.kind in "fiu" and values[0] > 0 and (np.diff(values) > 0).all()
        if not is_rising or not values[-1] < full_cost < np.inf:
            message = f"costs must increase between 0 and {full_cost}, got {values.tolist()!s:.80}"
            raise InputError(message, code="rounds.invalid")
        values = np.asarray(full_cost / values.astype(float))
    return _as_accelerations(values, len(values)), _as_round_names(names, len(values))


def called_rounds(accelerations: FloatArray, names: tuple[str, ...] | None) -> dict[str, str]:
    return {f"{R:g}": name for R, name in zip(accelerations, names or (), strict=False)}


def _as_accelerations(values: Any, rounds: int) -> FloatArray:
    if values is None and rounds == 1:
        return np.full(1, np.nan)  # unknown: nothing compares it with another
    numbers = np.atleast_1d(as_array(() if values is None else values, "accelerations"))
    if numbers.dtype.kind not in "fiu":
        text = f"accelerations must be numbers, got {numbers.dtype}"
        raise InputError(text, code="dtype.invalid")
    rates = numbers.astype(float)
    if rates.shape != (rounds,):
        text = f"accelerations must have one entry for each of {rounds} rounds, got {rates.size}"
        raise InputError(text, code="rounds.invalid")
    if rounds == 1 and np.isnan(rates).all():
        return rates
    if not (np.isfinite(rates).all() and (rates > 1).all() and (np.diff(rates) < 0).all()):
        message = f"accelerations must decrease and exceed 1, got {rates.tolist()!s:.80}"
        raise InputError(message, code="rounds.invalid")
    return rates


def _as_round_names(values: Any, rounds: int) -> tuple[str, ...] | None:
    if values is None:
        return None
    names = _as_texts(values, "round_names")
    if len(names) != rounds or len(set(names)) != rounds or not all(map(str.strip, names)):
        message = f"round_names must be {rounds} different names, got {names}"
        raise InputError(message, code="rounds.invalid")
    return names


def _as_texts(values: Any, name: str) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{name} must be a list, got {values!r:.80}", code="dtype.invalid")
    return tuple(map(str, values))


# One range for all tasks, or one per task, in order or by name.
_Range: TypeAlias = Sequence[float] | None
TaskRanges: TypeAlias = _Range | Sequence[_Range] | Mapping[str, _Range]


class TableFields(TypedDict, total=False):
    """Fields of a table that functions accept as keyword arguments next to arrays."""

    accelerations: ArrayLike | None
    group: ArrayLike | None
    site: ArrayLike | None
    case: ArrayLike | None
    task_names: Sequence[str] | None
    task_range: TaskRanges
    round_names: Sequence[str] | None
    provenance: Mapping[str, Any] | None
    missing_cases: Iterable[str]
    sampled_lines: ArrayLike | None


# Optional ids of cases: columns of a table.
IDS = ("case", "group", "site", "label")


@dataclass(frozen=True, eq=False, repr=False)
class TaskOutputs(Displayed):
    """Task outputs of many cases in all rounds of a scan, with their targets.

    Args:
        outputs: Task outputs, (round, case, sample) or (round, case, sample, task); also
            (case, sample) for one round, or (case,) for one round of point estimates.
        targets: Targets, (case,) or (case, task), with a leading round axis if they depend on
            the round; None if unknown, as for new cases.
        accelerations: Cost of the full measurement divided by the cost of each round, decreasing.
            Omit the full measurement, R = 1.
        group: Group of each case, e.g. its patient; integers or strings.
        site: Site of each case, e.g. its hospital; all cases of a group have the same site.
        label: Class of each case.
        case: Id of each case.
        task_names: One name per task.
        task_range: Range (low, high) of outputs and targets, or None if unbounded: the same for all
            tasks, or a list or dictionary of ranges by task.
        task_ranges: Range of each task, computed from ``task_range``.
        round_names: Names of the rounds, e.g. '20 views'; by default their accelerations are shown.
        provenance: Description of how the table was computed.
        missing_cases: Ids of cases that a run did not finish, and that the arrays therefore omit.
        images_path: File with images of some of the cases.
        sampled_lines: Mask of the lines that adaptive sampling measured, (round, case, line).

    Raises:
        InputError: If arrays do not fit together or values lie outside ``task_range``.

    Example:
        >>> table = TaskOutputs(rng.random((2, 5, 3)), rng.random(5), accelerations=(8, 4))
        >>> table
        TaskOutputs(2 rounds (R = 8, 4), 5 cases, 3 samples, 1 task)
        >>> table.select(accelerations=[4], samples=2).outputs.shape
        (1, 5, 2)
    """

    outputs: FloatArray
    targets: FloatArray
    accelerations: FloatArray
    group: np.ndarray | None = None
    site: np.ndarray | None = None
    label: np.ndarray | None = None
    case: np.ndarray | None = None
    task_names: tuple[str, ...] = ("task",)
    task_ranges: tuple[TaskRange, ...] = (None,)
    round_names: tuple[str, ...] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    missing_cases: tuple[str, ...] = ()
    images_path: Path | None = None
    sampled_lines: BoolArray | None = None

    def __init__(
        self,
        outputs: ArrayLike,
        targets: ArrayLike | None = None,
        accelerations: ArrayLike | None = None,
        *,
        group: ArrayLike | None = None,
        site: ArrayLike | None = None,
        label: ArrayLike | None = None,
        case: ArrayLike | None = None,
        task_names: Sequence[str] | None = None,
        task_range: TaskRanges = None,
        task_ranges: TaskRanges = None,
        round_names: Sequence[str] | None = None,
        provenance: Mapping[str, Any] | None = None,
        missing_cases: Iterable[str] = (),
        images_path: Path | None = None,
        sampled_lines: ArrayLike | None = None,
    ) -> None:
        given = {"outputs": outputs, "targets": targets, "group": group, "label": label}
        ids = case_ids(outputs) if case is None else None
        if ids is not None and not np.array_equal(ids, np.arange(len(ids))):
            case = ids
        outputs, targets, group, label, site = align_cases({**given, "site": site}).values()
        x = as_real_array(outputs, "outputs", ndim=(1, 2, 3, 4))
        x = x[:, None] if x.ndim == 1 else x
        x = x[None] if x.ndim == 2 else x
        rounds, n = x.shape[:2]
        tasks = x.shape[3] if x.ndim == 4 else 1
        if 0 in x.shape:
            raise InputError(f"outputs of shape {x.shape} are empty", code="table.incomplete")
        per_case = (n, tasks) if x.ndim == 4 else (n,)
        if targets is None:
            z = np.full(per_case, np.nan)
        else:
            z = as_real_array(targets, "targets", ndim=(1, 2, 3)).astype(float)
        if z.shape not in (per_case, (rounds, *per_case)):
            # (round, case) without samples was read as (case, sample).
            is_points = x.ndim == 3 and x.shape[0] == 1 and z.shape == x.shape[2:]
            advice = "; for point estimates of several rounds, pass outputs[..., None]" * is_points
            message = f"outputs {x.shape} need targets {per_case}, got {z.shape}{advice}"
            raise InputError(message, code="shape.mismatch")
        default = ("task",) if tasks == 1 else tuple(f"task{i}" for i in range(tasks))
        names = default if task_names is None else _as_texts(task_names, "task_names")
        if len(names) != tasks or len(set(names)) != tasks:
            message = f"task_names must be {tasks} different names, got {names}"
            raise InputError(message, code="table.duplicate")
        ranges = as_ranges(task_ranges if task_range is None else task_range, names)
        require_in_ranges(z, ranges, "targets", names)
        require_in_ranges(x, ranges, "outputs", names)
        origin: Any = provenance or {}
        if not isinstance(origin, Mapping):
            message = f"provenance must be a mapping, got {provenance!r:.80}"
            raise InputError(message, code="dtype.invalid")
        values = {
            "outputs": x,
            "targets": z,
            "accelerations": _as_accelerations(accelerations, rounds),
            "group": None if group is None else as_ids(group, "group", n),
            "site": None if site is None else as_ids(site, "site", n),
            "label": None if label is None else as_ids(label, "label", n),
            "case": None if case is None else as_ids(case, "case", n),
            "task_names": names,
            "task_ranges": ranges,
            "round_names": _as_round_names(round_names, rounds),
            "provenance": dict(origin),
            "missing_cases": _as_texts(missing_cases, "missing_cases"),
            "images_path": images_path,
            "sampled_lines": None if sampled_lines is None else _as_lines(sampled_lines, rounds, n),
        }
        if values["case"] is not None and len(np.unique(values["case"])) != n:  # type: ignore[arg-type]  # an array
            raise InputError("case ids are not unique; make them unique", code="table.duplicate")
        if site is not None and group is not None:
            require_one_site(values["group"], values["site"])
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        rates = "R = " + ", ".join(f"{R:g}" for R in self.accelerations)
        named = rates if self.round_names is None else ", ".join(self.round_names)
        is_known = self.round_names is not None or not np.isnan(self.accelerations).any()
        nouns = ("round", "case", "sample", "task")
        counts = [count_noun(getattr(self, f"{noun}s"), noun) for noun in nouns]
        counts[0] += f" ({named})" if is_known else ""
        return f"TaskOutputs({', '.join(counts)})"

    def __str__(self) -> str:
        return Displayed.__repr__(self)

    def _summary(self) -> Summary:
        rows = []
        for name, range_ in zip(self.task_names, self.task_ranges, strict=True):
            rows.append(("task", f"{name}, range {range_ or 'not declared'}"))
        rows.append(("rounds", ", ".join(self.round_labels)))
        rows += [(noun, str(getattr(self, noun))) for noun in ("cases", "samples")]
        for name in ("group", "site", "label"):
            if (ids := getattr(self, name)) is not None:
                rows.append((f"{name}s", str(len(np.unique(ids)))))
        return Summary(
            "TaskOutputs", [*rows, ("targets", "known" if self.has_targets else "not known")]
        )

    def _picture(self) -> str:
        some = np.reshape(self.outputs[:, :200], (*self.outputs[:, :200].shape[:3], -1))[..., 0]
        if self.samples > 1:
            return svg("mean standard deviation of the samples", labels=self.round_labels,
                       bars=[(0.0, float(v)) for v in some.std(axis=2).mean(axis=1)])  # fmt: skip
        return svg("outputs of the first round", bars=[(0.0, float(v)) for v in some[0, :, 0]])

    @property
    def rounds(self) -> int:
        """Number of stored rounds."""
        return int(self.outputs.shape[0])

    @property
    def cases(self) -> int:
        """Number of cases."""
        return int(self.outputs.shape[1])

    @property
    def samples(self) -> int:
        """Number of posterior samples per case and round."""
        return int(self.outputs.shape[2])

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.task_names)

    @property
    def task_range(self) -> TaskRange:
        """Range of all tasks; raises InputError if tasks have different ranges."""
        if len(set(self.task_ranges)) > 1:
            raise InputError("tasks differ in range; use task_ranges", code="range.invalid")
        return self.task_ranges[0]

    @property
    def round_labels(self) -> tuple[str, ...]:
        """Name or acceleration of each round."""
        names = self.round_names or (None,) * self.rounds
        return tuple(map(round_label, self.accelerations.tolist(), names))

    @property
    def has_targets(self) -> bool:
        """True if the table has targets."""
        return not bool(np.isnan(self.targets).any())

    @property
    def has_round_targets(self) -> bool:
        """True if targets depend on the round, as image quality does."""
        return self.targets.ndim == self.outputs.ndim - 1

    def round_index(self, acceleration: float | str) -> int:
        """Return the index of a round.

        Args:
            acceleration: Acceleration or name of the round.

        Raises:
            InputError: If the table has no such round.
        """
        if isinstance(acceleration, str):
            matches = [k for k, label in enumerate(self.round_labels) if label == acceleration]
        else:
            is_near = np.isclose(self.accelerations, acceleration, rtol=1e-9)
            matches = np.flatnonzero(is_near).tolist()
        if not matches:
            message = f"no round {acceleration!r:.60}; the table has {', '.join(self.round_labels)}"
            raise InputError(message, code="choice.unknown")
        return int(matches[0])

    def rounds_up_to(self, round: int) -> FloatArray:
        """Return the outputs of all rounds up to a given one, (round, case, sample[, task])."""
        return np.asarray(self.outputs[: round + 1])

    def targets_at(self, round: int) -> FloatArray:
        """Return the targets of a round, (case,) or (case, task)."""
        return np.asarray(self.targets[round] if self.has_round_targets else self.targets)

    def select(
        self,
        *,
        accelerations: Sequence[float | str] | None = None,
        samples: int | None = None,
        group: ArrayLike | None = None,
        task: str | Sequence[str] | None = None,
        cases: ArrayLike | None = None,
    ) -> TaskOutputs:
        """Return the table of the selected rounds, samples, groups, tasks and cases.

        Args:
            accelerations: Rounds, by acceleration or name.
            samples: Number of samples; the first ones are kept.
            group: A group, or several groups.
            task: A task name, to drop the task axis; or several, in the order of the new table.
            cases: Indices of cases, or a mask (case,).

        Raises:
            InputError: If the table has no such round, group, task or case.
        """
        outputs, targets, changes = self.outputs, self.targets, dict[str, Any]()
        lines = self.sampled_lines
        if accelerations is not None:
            rounds = sorted(self.round_index(R) for R in accelerations)
            outputs, changes["accelerations"] = outputs[rounds], self.accelerations[rounds]
            lines = None if lines is None else lines[rounds]
            targets = targets[rounds] if self.has_round_targets else targets
            if self.round_names is not None:
                changes["round_names"] = [self.round_names[k] for k in rounds]
        if samples is not None:
            if not 1 <= samples <= self.samples:
                message = f"samples must be 1 to {self.samples}, got {samples}"
                raise InputError(message, code="samples.mismatch")
            outputs = outputs[:, :, :samples]
        if cases is not None or group is not None:
            kept = np.arange(self.cases) if cases is None else _positions(cases, self.cases)
            if group is not None:
                if self.group is None:
                    raise InputError("the table has no groups to select by", code="groups.missing")
                kept = kept[np.isin(self.group[kept].astype(str), np.atleast_1d(group).astype(str))]
                if not len(kept):
                    raise InputError(f"no case belongs to group {group!r}", code="choice.unknown")
            outputs = outputs[:, kept]
            lines = None if lines is None else lines[:, kept]
            targets = np.take(targets, kept, axis=1 if self.has_round_targets else 0)
            ids = {name: getattr(self, name) for name in IDS}
            changes |= {name: v if v is None else v[kept] for name, v in ids.items()}
        if task is not None:
            chosen = [task] if isinstance(task, str | int) else list(task)
            unknown = [name for name in chosen if name not in self.task_names]
            if unknown:
                message = f"no task {unknown[0]!r:.60}; the table has {', '.join(self.task_names)}"
                raise InputError(message, code="choice.unknown")
            index = [self.task_names.index(name) for name in chosen]
            if outputs.ndim == 4:
                at: Any = index[0] if isinstance(task, str) else index
                outputs, targets = outputs[..., at], targets[..., at]
            changes["task_names"] = tuple(chosen)
            changes["task_ranges"] = tuple(self.task_ranges[k] for k in index)
        changes["sampled_lines"] = lines
        return replace_arrays(self, outputs=outputs, targets=targets, **changes)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the table and return its path.

        Args:
            path: A ``.npz`` file; a ``.csv`` or ``.parquet`` file of rows, without ranges and
                provenance; or a folder for Parquet shards.
        """
        target = Path(path)
        return WRITERS[target.suffix if target.suffix in WRITERS else FOLDER](self, target)

    def to_xarray(self) -> xarray.Dataset:
        """Return an xarray.Dataset with dimensions round, case, sample and task.

        Raises:
            InputError: If xarray is not installed.
        """
        from taskuq.table import _formats

        dataset: xarray.Dataset = _formats.to_dataset(self)
        return dataset

    def to_arviz(self) -> arviz.InferenceData | xarray.DataTree:
        """Return an ArviZ InferenceData: samples as posterior_predictive, targets as observed_data.

        Raises:
            InputError: If ArviZ is not installed.
        """
        from taskuq.table._formats import to_inference_data

        return to_inference_data(self)

    @staticmethod
    def from_posterior(
        samples: ArrayLike, theta: ArrayLike | None = None, **options: Unpack[TableFields]
    ) -> TaskOutputs:
        """Return posterior samples of parameters as a table with one task per parameter.

        Args:
            samples: Samples (sample, case, parameter), as ``sample_batched`` of sbi returns them.
            theta: True parameters (case, parameter); None if unknown.
            options: Other fields of the table, e.g. ``task_names`` or ``case``.

        Raises:
            InputError: If shapes do not fit together.

        Example:
            >>> theta = rng.standard_normal((50, 2))
            >>> samples = theta + 0.1 * rng.standard_normal((16, 50, 2))
            >>> TaskOutputs.from_posterior(samples, theta, task_names=["mass", "spin"]).tasks
            2
        """
        x = as_real_array(samples, "samples", ndim=(3,))
        return TaskOutputs(np.moveaxis(x, 0, 1)[None], theta, **options)

    @staticmethod
    def load(path: TableLike, *, task_range: TaskRanges = None) -> TaskOutputs:
        """Read a table from a file, a folder or a data frame.

        Args:
            path: A folder of Parquet shards; a ``.npz`` file; a ``.csv`` or ``.parquet`` file or a
                data frame of rows (pandas, polars, Arrow); a Dataset of xarray or InferenceData of
                ArviZ; or the name of a bundled table, 'atlas-sampler' or 'atlas-varnet'.
            task_range: Range of the tasks, if the file does not store it.

        Raises:
            InputError: If there is no such file, it cannot be read as a table, or it stores another
                range.
        """
        if not isinstance(path, str | os.PathLike):
            table = READERS[FRAME](path)
        elif not Path(path).exists():
            bundled = BUNDLED / f"{path}.npz"
            if str(path) not in {stored.stem for stored in BUNDLED.glob("*.npz")}:
                raise InputError(f"there is no table {path}; check the path", code="file.missing")
            table = READERS[".npz"](bundled)
        else:
            kind = FOLDER if Path(path).is_dir() else Path(path).suffix
            with reading(path, "a table"):
                table = READERS[kind if kind in READERS else ".npz"](Path(path))
        if task_range is None:
            return table
        ranges = as_ranges(task_range, table.task_names)
        named = list(zip(table.task_names, ranges, table.task_ranges, strict=True))
        if isinstance(task_range, Mapping):
            named = [(name, new if name in task_range else old, old) for name, new, old in named]
        for name, new, old in named:
            if old not in (None, new):
                text = f"the table stores the range {old} of {name}, got {new}; omit the range"
                raise InputError(text, code="range.invalid")
        return replace_arrays(table, task_ranges=tuple(new for _, new, _ in named))


# A table, its path, a data frame, datasets of ArviZ, or arrays; and one value, or one per task.
TableLike: TypeAlias = TaskOutputs | ArrayLike | os.PathLike[str] | Mapping[str, object]
PerTask: TypeAlias = float | Sequence[float] | Mapping[str, float] | None
BUNDLED = Path(__file__).parent / "bundled"
# Readers and writers: of a folder of shards, of files by their suffix, of data frames.
FOLDER, FRAME = "folder", "data frame"
READERS: Registry[Callable[[Any], TaskOutputs]] = Registry(
    "kind of table",
    {
        FOLDER: "taskuq.table._parquet:read_shards",
        ".npz": "taskuq.table._formats:read_npz",
        ".csv": "taskuq.table._formats:read_rows_file",
        ".parquet": "taskuq.table._formats:read_rows_file",
        FRAME: "taskuq.table._formats:read_frame",
    },
)
WRITERS: Registry[Callable[[TaskOutputs, Path], Path]] = Registry(
    "kind of table",
    {
        FOLDER: "taskuq.table._parquet:write_shards",
        ".npz": "taskuq.table._formats:write_npz",
        ".csv": "taskuq.table._formats:write_rows",
        ".parquet": "taskuq.table._formats:write_rows",
    },
)


def replace_arrays(table: TaskOutputs, **changes: Any) -> TaskOutputs:
    parts = {name: getattr(table, name) for name in table.__dataclass_fields__} | changes
    if np.isnan(parts["targets"]).all():
        parts["targets"] = None
    return TaskOutputs(**parts)


def require_one_site(group: Any, site: Any) -> None:
    """Raise InputError if the cases of any group are at several sites."""
    names, first, of_case = np.unique(group, return_index=True, return_inverse=True)
    split = np.flatnonzero(site != site[first][of_case])
    if len(split):
        message = f"group {names[of_case[split[0]]]} is at several sites; use one group id per site"
        raise InputError(message, code="table.duplicate")


def _as_lines(values: Any, rounds: int, n: int) -> BoolArray:
    lines = as_array(values, "sampled_lines")
    if lines.dtype != bool or lines.ndim != 3 or lines.shape[:2] != (rounds, n):
        message = f"sampled_lines must be booleans ({rounds}, {n}, line), got {lines.shape}"
        raise InputError(message, code="shape.mismatch")
    if (lines[1:] < lines[:-1]).any():
        message = "each round of sampled_lines must contain the lines of the round before"
        raise InputError(message, code="rounds.invalid")
    return lines


def _positions(cases: Any, n: int) -> np.ndarray:
    index = as_array(cases, "cases")
    if index.dtype == bool and index.shape == (n,):
        index = np.nonzero(index)[0]
    is_valid = index.ndim == 1 and index.size > 0 and index.dtype.kind in "iu"
    if not is_valid or index.min() < -n or index.max() >= n:
        text = f"cases must be indices below {n} or one boolean per case"
        raise InputError(text, code="value.invalid")
    return index


DESCRIBED = tuple(signature(TaskOutputs).parameters)[2:]


def as_table(given: Any, described: Mapping[str, Any], what: str) -> TaskOutputs:
    """Return ``given`` as a table; it may be a table, a path, a data frame or arrays."""
    unknown = [name for name in described if name not in DESCRIBED]
    if unknown:
        message = f"{what} has no argument {unknown[0]!r}; a table takes {', '.join(DESCRIBED)}"
        raise InputError(message, code="choice.unknown")
    if is_stored(given):
        given = TaskOutputs.load(given, task_range=described.get("task_range"))
        described = {name: value for name, value in described.items() if name != "task_range"}
    if isinstance(given, TaskOutputs):
        if described:
            message = f"the table already has {', '.join(described)}; remove the argument"
            raise InputError(message, code="option.unused")
        return given
    if not isinstance(given, tuple) or len(given) != 2:
        message = f"{what} needs a table or a pair (outputs, targets), got {type(given).__name__}"
        raise InputError(message, code="dtype.invalid")
    return TaskOutputs(*given, **described)


def is_stored(given: Any) -> bool:
    # Frames of pandas and polars have columns, those of Arrow column_names.
    is_frame = hasattr(given, "columns") or hasattr(given, "column_names")
    return isinstance(given, str | os.PathLike | Mapping) or is_frame


def suggest_range(table: TaskOutputs) -> str | None:
    x = table.outputs.reshape(*table.outputs.shape[:3], -1)
    z = table.targets.reshape(-1, table.tasks) if table.has_targets else np.zeros((1, table.tasks))
    names = [
        name
        for k, name in enumerate(table.task_names)
        if table.task_ranges[k] is None
        and all(v.min() >= 0 and v.max() <= 1 for v in (x[..., k], z[:, k]))
    ]
    if not names:
        return None
    of = f" of {', '.join(names)}" if table.tasks > 1 else ""
    option = ",".join(f"{name}=0:1" for name in names) if table.tasks > 1 else "0,1"
    return (
        f"All outputs and targets{of} are between 0 and 1, but no range is declared, so intervals "
        f"may extend beyond. If this is their range, use --range {option} (task_range in Python)."
    )


def sum_groups(table: TaskOutputs, weight: float = 1.0) -> TaskOutputs:
    """Return a table with one case per group: the sum over its cases, times ``weight``.

    Args:
        table: A table with groups and without missing cases.
        weight: Factor that is the same for all cases, e.g. the thickness of a slice.

    Raises:
        InputError: If the table has no groups, or cases are missing.
    """
    if not 0 < weight < math.inf:
        raise InputError(f"weight must be positive, got {weight}", code="value.invalid")
    if table.group is None:
        raise InputError("the table has no groups to sum over", code="groups.missing")
    if table.missing_cases:
        message = f"{len(table.missing_cases)} cases are missing (first: {table.missing_cases[0]})"
        raise InputError(message, code="table.incomplete")
    names, first, of_case = np.unique(table.group, return_index=True, return_inverse=True)
    members = (of_case == np.arange(len(names))[:, None]).astype(float)

    def summed(values: FloatArray, axis: int) -> FloatArray:
        sums = np.tensordot(members, values, axes=(1, axis))
        return np.asarray(weight * np.moveaxis(sums, 0, axis))

    provenance = dict(table.provenance)
    words = provenance.get("words")
    if isinstance(words, Mapping) and "group" in words:
        provenance["words"] = {**words, "case": words["group"]}
    return TaskOutputs(
        outputs=summed(table.outputs, 1),
        targets=summed(table.targets, 1 if table.has_round_targets else 0),
        accelerations=table.accelerations,
        round_names=table.round_names,
        case=names,
        site=None if table.site is None else table.site[first],
        task_names=table.task_names,
        # Groups differ in size: of the range of a case only the sign holds.
        task_ranges=tuple((0.0, math.inf) if r and r[0] >= 0 else None for r in table.task_ranges),
        provenance=provenance,
    )
