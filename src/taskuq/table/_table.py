"""TaskOutputs: arrays, checks, selection."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from taskuq._arrays import (
    as_array,
    as_ids,
    as_ranges,
    as_real_array,
    common_range,
    require_in_ranges,
)
from taskuq._io import reading
from taskuq._registry import Registry
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray, TaskRange
from taskuq.table._terminology import round_label


def as_rounds(
    accelerations: Any, costs: Any, full_cost: float | None, names: Any
) -> tuple[FloatArray, tuple[str, ...] | None]:
    """Take rounds by their accelerations, or by what they cost; return those and their names."""
    given = accelerations if costs is None else costs
    if given is None or (accelerations is not None and costs is not None):
        raise InputError(
            "rounds are given by accelerations, or by costs and full_cost; give one",
            code="option.conflict",
        )
    if isinstance(given, Mapping):
        if names is not None:
            raise InputError(
                "rounds have names already; leave round_names out", code="option.conflict"
            )
        names, given = list(given), list(given.values())
    values = np.atleast_1d(as_array(given, "accelerations" if costs is None else "costs"))
    if costs is not None:
        values = _full_cost_over(values, full_cost)
    return _as_accelerations(values, len(values)), _as_round_names(names, len(values))


def called_rounds(accelerations: FloatArray, names: tuple[str, ...] | None) -> dict[str, str]:
    """Return the names of rounds by their accelerations, as a record holds them."""
    return {f"{R:g}": name for R, name in zip(accelerations, names or (), strict=False)}


def _full_cost_over(costs: np.ndarray, full_cost: float | None) -> FloatArray:
    """Return accelerations: the full cost over the cost of each round."""
    if full_cost is None:
        raise InputError(
            "costs need full_cost, what it costs to measure everything; give it",
            code="option.missing",
        )
    is_rising = costs.dtype.kind in "fiu" and (costs > 0).all() and (np.diff(costs) > 0).all()
    if not is_rising or not costs[-1] < full_cost < np.inf:
        raise InputError(
            f"costs must be positive, rise and stay below full_cost, got "
            f"{', '.join(map(str, costs.tolist()))[:80]} and {full_cost}",
            code="rounds.invalid",
        )
    return np.asarray(full_cost / costs.astype(float))


def _as_accelerations(values: Any, rounds: int) -> FloatArray:
    """Take one acceleration for each round, decreasing and above 1."""
    if values is None:
        if rounds > 1:
            raise InputError(
                f"{rounds} rounds need their accelerations; give accelerations=, one for each, "
                "fewest measurements first",
                code="rounds.invalid",
            )
        # One round of unknown acceleration: nothing compares it with another.
        return np.full(1, np.nan)
    numbers = np.atleast_1d(as_array(values, "accelerations"))
    if numbers.dtype.kind not in "fiu":
        raise InputError(
            f"accelerations must be numbers, got an array of {numbers.dtype}", code="dtype.invalid"
        )
    given = numbers.astype(float)
    if given.shape != (rounds,):
        raise InputError(
            f"{rounds} rounds need as many accelerations, got {given.size}", code="rounds.invalid"
        )
    if rounds == 1 and np.isnan(given).all():
        return given
    if not (np.isfinite(given).all() and (given > 1).all() and (np.diff(given) < 0).all()):
        raise InputError(
            f"accelerations must decrease and stay above 1 (everything measured is implied), got "
            f"{', '.join(f'{R:g}' for R in given)}",
            code="rounds.invalid",
        )
    return given


def _as_round_names(values: Any, rounds: int) -> tuple[str, ...] | None:
    """Take a different name for each round, or None where they have none."""
    if values is None:
        return None
    names = _as_texts(values, "round_names")
    if len(names) != rounds or len(set(names)) != rounds or not all(map(str.strip, names)):
        raise InputError(
            f"{rounds} rounds need as many different names, got {names}", code="rounds.invalid"
        )
    return names


def _as_texts(values: Any, name: str) -> tuple[str, ...]:
    """Take a list of names."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(
            f"{name} must be a list of names, got {values!r:.80}", code="dtype.invalid"
        )
    return tuple(map(str, values))


@dataclass(frozen=True, eq=False)
class TaskOutputs:
    """Task outputs of many cases over the rounds of a scan, with the targets they estimate.

    Arguments:
        outputs: (round, case, sample) or (round, case, sample, task); (case, sample) is one round,
            (case,) one round of point estimates.
        targets: (case,), or (case, task); with a leading round axis when they depend on the round.
            None where they are unknown, as for new cases.
        accelerations: Full cost over the cost of each round, whatever is being saved: lines,
            views, dose, seconds; decreasing. The fully measured round is implied, not stored.
        group: What each case belongs to, e.g. a patient; integers or strings.
        label: The class of each case.
        case: An identity for each case.
        task_names: One per task.
        task_range: The range outputs and targets lie in, None where there is none: for all
            tasks, or one for each, in order or by name.
        task_ranges: One for each task, which is what ``task_range`` is kept as.
        round_names: What rounds are called, e.g. '20 views'; by their accelerations where None.
        provenance: How the table was made.
        missing_cases: Cases a run did not finish; they are not in the arrays.
        images_path: Where a run has kept pictures of some cases.
        sampled_lines: What each round measured of each case, booleans (round, case, line), where a rule
            chose it for each case.

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
        outputs: Any,
        targets: Any = None,
        accelerations: Any = None,
        *,
        group: Any = None,
        label: Any = None,
        case: Any = None,
        task_names: Sequence[str] | None = None,
        task_range: Any = None,
        task_ranges: Any = None,
        round_names: Sequence[str] | None = None,
        provenance: Mapping[str, Any] | None = None,
        missing_cases: Iterable[str] = (),
        images_path: Path | None = None,
        sampled_lines: Any = None,
    ) -> None:
        x = as_real_array(outputs, "outputs", ndim=(1, 2, 3, 4))
        x = x[:, None] if x.ndim == 1 else x
        x = x[None] if x.ndim == 2 else x
        rounds, n = x.shape[:2]
        tasks = x.shape[3] if x.ndim == 4 else 1
        if 0 in x.shape:
            raise InputError(
                f"outputs of shape {x.shape} are empty; at least one case is needed",
                code="table.incomplete",
            )
        per_case = (n, tasks) if x.ndim == 4 else (n,)
        if targets is None:
            z = np.full(per_case, np.nan)
        else:
            z = as_real_array(targets, "targets", ndim=(1, 2, 3)).astype(float)
        if z.shape not in (per_case, (rounds, *per_case)):
            raise InputError(_unlike(z.shape, x.shape, per_case), code="shape.mismatch")
        names = _names(tasks) if task_names is None else _as_texts(task_names, "task_names")
        if len(names) != tasks or len(set(names)) != tasks:
            raise InputError(
                f"{tasks} tasks need as many different names, got {names}", code="table.duplicate"
            )
        ranges = as_ranges(task_ranges if task_range is None else task_range, names)
        require_in_ranges(z, ranges, "targets", names)
        require_in_ranges(x, ranges, "outputs", names)
        values = {
            "outputs": x,
            "targets": z,
            "accelerations": _as_accelerations(accelerations, rounds),
            "group": None if group is None else as_ids(group, "group", n),
            "label": None if label is None else as_ids(label, "label", n),
            "case": None if case is None else as_ids(case, "case", n),
            "task_names": names,
            "task_ranges": ranges,
            "round_names": _as_round_names(round_names, rounds),
            "provenance": _provenance(provenance),
            "missing_cases": _as_texts(missing_cases, "missing_cases"),
            "images_path": images_path,
            "sampled_lines": None if sampled_lines is None else _lines(sampled_lines, rounds, n),
        }
        if values["case"] is not None and len(np.unique(values["case"])) != n:  # type: ignore[arg-type]  # an array
            raise InputError(
                "case holds an identity twice; each case needs its own", code="table.duplicate"
            )
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        rates = "R = " + ", ".join(f"{R:g}" for R in self.accelerations)
        called = rates if self.round_names is None else ", ".join(self.round_names)
        is_known = self.round_names is not None or not np.isnan(self.accelerations).any()
        return (
            f"TaskOutputs({_count(self.rounds, 'round')}{f' ({called})' if is_known else ''}, "
            f"{_count(self.cases, 'case')}, {_count(self.samples, 'sample')}, "
            f"{_count(self.tasks, 'task')})"
        )

    @property
    def rounds(self) -> int:
        """The number of stored rounds."""
        return int(self.outputs.shape[0])

    @property
    def cases(self) -> int:
        """The number of cases."""
        return int(self.outputs.shape[1])

    @property
    def samples(self) -> int:
        """The number of posterior samples per case and round."""
        return int(self.outputs.shape[2])

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return len(self.task_names)

    @property
    def task_range(self) -> TaskRange:
        """The range of the only task, or of all; tasks with ranges of their own have none."""
        return common_range(self.task_ranges, self.task_names)

    @property
    def round_labels(self) -> tuple[str, ...]:
        """What each round is called: its name, or its acceleration."""
        names = self.round_names or (None,) * self.rounds
        return tuple(map(round_label, self.accelerations.tolist(), names))

    @property
    def has_targets(self) -> bool:
        """Whether targets are known; they are not for new cases."""
        return not bool(np.isnan(self.targets).any())

    @property
    def has_round_targets(self) -> bool:
        """Whether targets depend on the round, as image quality does."""
        return self.targets.ndim == self.outputs.ndim - 1

    def round_index(self, acceleration: float | str) -> int:
        """Return the number of a round, counted from 0.

        Arguments:
            acceleration: Its acceleration, or its name.
        """
        if isinstance(acceleration, str):
            if acceleration not in self.round_labels:
                raise InputError(
                    f"there is no round {acceleration!r:.60}; the table has "
                    f"{', '.join(self.round_labels)}",
                    code="choice.unknown",
                )
            return self.round_labels.index(acceleration)
        found = np.nonzero(np.isclose(self.accelerations, acceleration, rtol=1e-9))[0]
        if not found.size:
            have = ", ".join(f"{R:g}" for R in self.accelerations)
            raise InputError(
                f"acceleration {acceleration:g} is not in the table, which has {have}; choose one",
                code="choice.unknown",
            )
        return int(found[0])

    def rounds_up_to(self, round: int) -> FloatArray:
        """Return the outputs of all rounds up to this one, (round, case, sample[, task])."""
        return np.asarray(self.outputs[: round + 1])

    def targets_at(self, round: int) -> FloatArray:
        """Return the targets of a round, (case,) or (case, task)."""
        return np.asarray(self.targets[round] if self.has_round_targets else self.targets)

    def select(
        self,
        *,
        accelerations: Sequence[float | str] | None = None,
        samples: int | None = None,
        group: Any = None,
        task: str | Sequence[str] | None = None,
        cases: Any = None,
    ) -> TaskOutputs:
        """Return a smaller table.

        Arguments:
            accelerations: Keep these rounds, by their accelerations or names.
            samples: Keep the first so many samples.
            group: Keep the cases of this group, or of these groups.
            task: Keep this task, and drop the task axis; or keep these, in the given order.
            cases: Keep these cases: positions, or one boolean per case.
        """
        outputs, targets, changes = self.outputs, self.targets, dict[str, Any]()
        if accelerations is not None:
            rounds = sorted(self.round_index(R) for R in accelerations)
            outputs, changes["accelerations"] = outputs[rounds], self.accelerations[rounds]
            changes["sampled_lines"] = (
                None if self.sampled_lines is None else self.sampled_lines[rounds]
            )
            targets = targets[rounds] if self.has_round_targets else targets
            if self.round_names is not None:
                changes["round_names"] = [self.round_names[k] for k in rounds]
        if samples is not None:
            if not 1 <= samples <= self.samples:
                raise InputError(
                    f"the table has {self.samples} samples per case, cannot keep {samples}",
                    code="samples.mismatch",
                )
            outputs = outputs[:, :, :samples]
        if cases is not None or group is not None:
            kept = self._kept(cases, group)
            outputs = outputs[:, kept]
            lines = changes.get("sampled_lines", self.sampled_lines)
            changes["sampled_lines"] = None if lines is None else lines[:, kept]
            targets = np.take(targets, kept, axis=1 if self.has_round_targets else 0)
            ids = {"group": self.group, "label": self.label, "case": self.case}
            changes |= {name: v if v is None else v[kept] for name, v in ids.items()}
        if task is not None:
            known = ", ".join(self.task_names)
            if isinstance(task, int):
                raise InputError(
                    f"a task is chosen by its name, got {task}; the table has {known}",
                    code="choice.unknown",
                )
            chosen = [task] if isinstance(task, str) else list(task)
            for name in chosen:
                if name not in self.task_names:
                    raise InputError(
                        f"there is no task {name!r:.60}; the table has {known}",
                        code="choice.unknown",
                    )
            index = [self.task_names.index(name) for name in chosen]
            if outputs.ndim == 4:
                at: Any = index[0] if isinstance(task, str) else index
                outputs, targets = outputs[..., at], targets[..., at]
            changes["task_names"] = tuple(chosen)
            changes["task_ranges"] = tuple(self.task_ranges[k] for k in index)
        return replace_arrays(self, outputs=outputs, targets=targets, **changes)

    def _kept(self, cases: Any, group: Any) -> np.ndarray:
        """Return the positions of chosen cases that belong to chosen groups."""
        kept = np.arange(self.cases) if cases is None else _positions(cases, self.cases)
        if group is None:
            return kept
        if self.group is None:
            raise InputError("the table has no groups to select by", code="groups.missing")
        members = np.isin(self.group[kept].astype(str), np.atleast_1d(group).astype(str))
        if not members.any():
            raise InputError(f"no case belongs to group {group!r}", code="choice.unknown")
        return kept[members]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the table: a folder of Parquet shards, or one file where the name ends so.

        A ``.npz`` file holds everything; a ``.csv`` or ``.parquet`` file holds rows for other
        programs, but neither ranges nor provenance.
        """
        target = Path(path)
        return WRITERS[target.suffix if target.suffix in WRITERS else FOLDER](self, target)

    @staticmethod
    def load(path: Any, *, task_range: Any = None) -> TaskOutputs:
        """Read a table from a folder of Parquet shards, from a file, or from a data frame.

        Arguments:
            path: The folder; or a ``.npz`` file of arrays; or a ``.csv`` or ``.parquet`` file of
                rows, as :func:`taskuq.table._formats.read_rows_file` describes it; or such rows as a
                data frame of pandas, polars or Arrow.
            task_range: Declares the task's range where the file does not, or those of tasks.
        """
        if not isinstance(path, str | os.PathLike):
            return _with_range(READERS[FRAME](path), task_range)
        source = Path(path)
        if not source.exists():
            raise InputError(f"there is no table at {path}; check the name", code="file.missing")
        kind = FOLDER if source.is_dir() else source.suffix
        with reading(source, "a table"):
            table = READERS[kind if kind in READERS else ".npz"](source)
        return _with_range(table, task_range)


# Who reads and writes tables: a folder of shards, files by their ending, and data frames.
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


def _unlike(z: tuple[int, ...], x: tuple[int, ...], per_case: tuple[int, ...]) -> str:
    """Why targets of one shape do not fit outputs of another."""
    said = (
        f"targets have shape {z}, but outputs of shape {x} need {per_case}, or "
        f"{(x[0], *per_case)} where targets depend on the round"
    )
    # (round, case) without samples was read as (case, sample).
    is_points = len(x) == 3 and x[0] == 1 and z == x[2:]
    return said + ("; point estimates of several rounds are outputs[..., None]" * is_points)


def replace_arrays(table: TaskOutputs, **changes: Any) -> TaskOutputs:
    """Return a table with some parts exchanged, checked again."""
    parts = {name: getattr(table, name) for name in table.__dataclass_fields__} | changes
    if np.isnan(parts["targets"]).all():
        parts["targets"] = None
    return TaskOutputs(
        parts.pop("outputs"), parts.pop("targets"), parts.pop("accelerations"), **parts
    )


def _with_range(table: TaskOutputs, task_range: Any) -> TaskOutputs:
    """A table whose range, or some of whose ranges, are declared now."""
    if task_range is None:
        return table
    ranges = as_ranges(task_range, table.task_names)
    if isinstance(task_range, Mapping):
        named = zip(table.task_names, ranges, table.task_ranges, strict=True)
        ranges = tuple(new if name in task_range else old for name, new, old in named)
    return replace_arrays(table, task_ranges=ranges)


def _lines(values: Any, rounds: int, n: int) -> BoolArray:
    lines = as_array(values, "lines")
    if lines.dtype != bool or lines.ndim != 3 or lines.shape[:2] != (rounds, n):
        raise InputError(
            f"lines are {lines.dtype} of shape {lines.shape}; booleans ({rounds}, {n}, line) say "
            "what was measured of each case",
            code="shape.mismatch",
        )
    if (lines[1:] < lines[:-1]).any():
        raise InputError(
            "lines of a later round leave out some of an earlier one; rounds nest",
            code="rounds.invalid",
        )
    return lines


def _provenance(values: Any) -> dict[str, Any]:
    if not isinstance(values or {}, Mapping):
        raise InputError(
            f"provenance must be names with values, got {type(values).__name__}",
            code="dtype.invalid",
        )
    return dict(values or {})


def _positions(cases: Any, n: int) -> np.ndarray:
    index = as_array(cases, "cases")
    if index.dtype == bool and index.shape == (n,):
        index = np.nonzero(index)[0]
    whole = index.ndim == 1 and index.size > 0 and index.dtype.kind in "iu"
    if not whole or index.min() < -n or index.max() >= n:
        raise InputError(
            f"no case is selected, or one that is not there: give positions below {n}, or one "
            "boolean for each case",
            code="value.invalid",
        )
    return index


def _names(tasks: int) -> tuple[str, ...]:
    return ("task",) if tasks == 1 else tuple(f"task{i}" for i in range(tasks))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


DESCRIBED = tuple(signature(TaskOutputs).parameters)[2:]


def as_table(given: Any, described: Mapping[str, Any], what: str) -> TaskOutputs:
    """Return a TaskOutputs from a table, path, frame or arrays.

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
        raise InputError(
            f"{what} does not know {unknown[0]!r}; a table is described by {known}",
            code="choice.unknown",
        )
    if is_stored(given):
        given = TaskOutputs.load(given, task_range=described.get("task_range"))
        described = {name: value for name, value in described.items() if name != "task_range"}
    if isinstance(given, TaskOutputs):
        if described:
            raise InputError(
                f"the table brings its own {', '.join(described)}; leave that out, or make another "
                "table",
                code="option.unused",
            )
        return given
    if not isinstance(given, tuple) or len(given) != 2:
        raise InputError(
            f"{what} needs a table, or arrays as a pair (outputs, targets); got a "
            f"{type(given).__name__}",
            code="dtype.invalid",
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


def suggest_range(table: TaskOutputs) -> str | None:
    """Suggest task_range=(0, 1) if outputs look like probabilities."""
    x = table.outputs.reshape(*table.outputs.shape[:3], -1)
    z = table.targets.reshape(-1, table.tasks) if table.has_targets else np.zeros((1, table.tasks))
    found = [
        name
        for k, name in enumerate(table.task_names)
        if table.task_ranges[k] is None and _is_within(x[..., k]) and _is_within(z[:, k])
    ]
    if not found:
        return None
    of = f" of {', '.join(found)}" if table.tasks > 1 else ""
    option = ",".join(f"{name}=0:1" for name in found) if table.tasks > 1 else "0,1"
    return (
        f"All outputs and targets{of} lie between 0 and 1 and no range is declared, so that "
        f"intervals may reach beyond; where it is their range, --range {option} (task_range in "
        "Python) declares it."
    )


def _is_within(values: np.ndarray) -> bool:
    return bool(values.min() >= 0 and values.max() <= 1)


def sum_groups(table: TaskOutputs, weight: float = 1.0) -> TaskOutputs:
    """Return a table of one case for each group: the weighted sums over its cases."""
    if not 0 < weight < math.inf:
        raise InputError(
            f"weight is {weight}; give a number above 0, e.g. a slice's thickness",
            code="value.invalid",
        )
    if table.group is None:
        raise InputError(
            "the table has no groups; sums are over the cases of a group", code="groups.missing"
        )
    if table.missing_cases:
        raise InputError(
            f"{len(table.missing_cases)} cases are missing, first {table.missing_cases[0]}; a sum without one "
            "of its cases would be another quantity: finish the run",
            code="table.incomplete",
        )
    names, of_case = np.unique(np.asarray(table.group), return_inverse=True)
    members = (of_case == np.arange(len(names))[:, None]).astype(float)

    def summed(values: FloatArray, axis: int) -> FloatArray:
        moved = np.moveaxis(np.tensordot(members, values, axes=(1, axis)), 0, axis)
        return np.asarray(weight * moved)

    return TaskOutputs(
        outputs=summed(table.outputs, 1),
        targets=summed(table.targets, 1 if table.has_round_targets else 0),
        accelerations=table.accelerations,
        round_names=table.round_names,
        case=names,
        task_names=table.task_names,
        task_ranges=tuple(_range(one) for one in table.task_ranges),
        provenance=_group_provenance(table),
    )


def _group_provenance(table: TaskOutputs) -> dict[str, Any]:
    said = dict(table.provenance)
    if isinstance(said.get("words"), Mapping) and "group" in said["words"]:
        said["words"] = {**said["words"], "case": said["words"]["group"]}
    return said


def _range(one: TaskRange) -> TaskRange:
    """Groups differ in size: of a range of cases only its sign is left."""
    if one is None or one[0] < 0:
        return None
    return (0.0, math.inf)
