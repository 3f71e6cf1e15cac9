"""npz, CSV, rows and data frames."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taskuq._arrays import ranges_to_json
from taskuq._io import atomic_write, open_npz
from taskuq.errors import InputError, first_line
from taskuq.interval import FloatArray
from taskuq.table._parquet import identities, index_of, to_numpy
from taskuq.table._table import TaskOutputs


def _join_tasks(tables: Mapping[str, TaskOutputs]) -> TaskOutputs:
    """Join tables of single tasks into one table."""
    names, first = list(tables), next(iter(tables.values()), None)
    if first is None:
        raise InputError("no task was given to join; give a table for each", code="config.missing")
    for name, table in tables.items():
        _require_alike(first, table, names[0], name)
    places = [{case: k for k, case in enumerate(_ids(table).tolist())} for table in tables.values()]
    shared = [case for case in places[0] if all(case in place for place in places)]
    if not shared:
        raise InputError(
            f"no case has all of the tasks {', '.join(names)}; check the identities",
            code="table.incomplete",
        )
    parts = [
        table.select(cases=[place[case] for case in shared])
        for table, place in zip(tables.values(), places, strict=True)
    ]
    for kind in ("group", "label"):
        _require_agreeing(parts, names, kind)
    by_round = any(part.has_round_targets for part in parts)
    targets = [
        np.stack([part.targets_at(k) for k in range(part.rounds)]) if by_round else part.targets
        for part in parts
    ]
    missing = {str(case) for place in places for case in place.keys() - set(shared)}
    return TaskOutputs(
        np.stack([part.outputs for part in parts], axis=-1),
        np.stack(targets, axis=-1) if all(part.has_targets for part in parts) else None,
        parts[0].accelerations,
        case=parts[0].case, group=parts[0].group, label=parts[0].label, task_names=names,
        task_range=tuple(part.task_range for part in parts), round_names=parts[0].round_names,
        provenance=parts[0].provenance, sampled_lines=parts[0].sampled_lines,
        missing_cases=sorted({*missing, *(m for part in parts for m in part.missing_cases)}),
    )  # fmt: skip


def _ids(table: TaskOutputs) -> np.ndarray:
    return np.arange(table.cases) if table.case is None else table.case


def _require_alike(first: TaskOutputs, other: TaskOutputs, one: str, two: str) -> None:
    """Refuse tables that cannot stand side by side."""
    if other.tasks > 1:
        raise InputError(
            f"the table {two} has {other.tasks} tasks; select one of them first",
            code="shape.mismatch",
        )
    shapes = [(t.rounds, t.samples, t.round_labels) for t in (first, other)]
    if shapes[0] != shapes[1]:
        said = [f"{rounds} rounds ({', '.join(of)}) and {p} samples" for rounds, p, of in shapes]
        raise InputError(
            f"task {one} has {said[0]}, task {two} has {said[1]}; every task needs the same",
            code="samples.mismatch",
        )
    if first.has_targets != other.has_targets:
        raise InputError(
            f"one of the tasks {one} and {two} has targets, the other has none",
            code="targets.missing",
        )


def _require_agreeing(parts: list[TaskOutputs], names: list[str], kind: str) -> None:
    """Refuse tasks that put a case into different groups or classes."""
    first = getattr(parts[0], kind)
    for part, name in zip(parts[1:], names[1:], strict=True):
        other = getattr(part, kind)
        if (first is None) != (other is None) or not np.array_equal(first, other):
            raise InputError(
                f"tasks {names[0]} and {name} give a case different entries in {kind}; keep one",
                code="table.duplicate",
            )


def read_rows_file(path: Path) -> TaskOutputs:
    """Read a CSV or Parquet file."""
    return _read_rows(_read(path), path)


def read_frame(frame: Any) -> TaskOutputs:
    """Read a table from a data frame with the columns of :func:`read_rows_file`."""
    import pyarrow as pa

    path = Path("the data frame")
    try:
        rows = pa.table(frame)
    except (pa.ArrowException, ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"a table is read from a path or a data frame, and a {type(frame).__name__} is neither "
            f"({first_line(error):.80})",
            code="dtype.invalid",
        ) from None
    return _read_rows(_checked(rows, path), path)


def _read_rows(rows: Any, path: Path) -> TaskOutputs:
    """Read a table from Arrow rows, of one task or of several."""
    if "task" not in rows.column_names:
        return _one_task(rows, path)
    import pyarrow.compute as pc

    task = identities(rows["task"], "task", path.name)
    names = [str(name) for name in task.unique().to_pylist()]
    if "" in names:
        row = task.to_pylist().index("") + 1
        raise InputError(
            f"{path.name} names no task in row {row}; fill the column task in", code="table.column"
        )
    tables = {}
    for name, one in zip(names, task.unique(), strict=True):
        of_task = _one_task(rows.filter(pc.equal(task, one)), path, f" of task {name}")
        tables[name] = of_task
    return _join_tasks(tables)


def _one_task(rows: Any, path: Path, of: str = "") -> TaskOutputs:
    """Read the table of one task."""
    path = path.with_name(path.name + of)
    case = identities(rows["case"], "case", path.name)
    names = case.unique()
    rates, round = _rounds(rows, path)
    placed = _PivotedRows(path, rows, index_of(case, names), round, np.arange(rows.num_rows))
    if "sample" in rows.column_names:
        placed, outputs = _gathered(placed)
    else:
        outputs = _samples(rows, path)
    complete = placed.complete(len(rates), len(names))
    table = np.zeros((len(rates), len(names), outputs.shape[1]), dtype=outputs.dtype)
    table[placed.round, placed.where] = outputs
    texts = to_numpy(names, "case")
    return TaskOutputs(
        table[:, complete], placed.targets(complete), rates, case=texts[complete],
        group=placed.extra("group", complete), label=placed.extra("label", complete),
        round_names=_round_names(rows, round, len(rates), path),
        provenance={"source": path.name.removesuffix(of)},
        missing_cases=[str(name) for name in texts[~complete]],
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _PivotedRows:
    """Case and round index of every row."""

    path: Path
    rows: Any
    where: np.ndarray
    round: np.ndarray
    first: np.ndarray

    def complete(self, rounds: int, cases: int) -> np.ndarray:
        place = self.where.astype(np.int64) * rounds + self.round
        if len(np.unique(place)) != len(place):
            named = self.rows.column_names
            if "round" in named and "acceleration" not in named:
                raise InputError(
                    f"{self.path.name} names rounds and gives no accelerations; add a column "
                    "acceleration, full cost over the round's cost",
                    code="rounds.invalid",
                )
            tasks = "" if "task" in named else ", or tell tasks apart by a column task"
            raise InputError(
                f"{self.path.name} has two rows for one case and round; keep one{tasks}",
                code="table.duplicate",
            )
        there = np.zeros((rounds, cases), dtype=bool)
        there[self.round, self.where] = True
        complete = np.asarray(there.all(axis=0))
        if not complete.any():
            raise InputError(
                f"no case of {self.path.name} has all {rounds} rounds", code="table.incomplete"
            )
        return complete

    def targets(self, complete: np.ndarray) -> FloatArray | None:
        """Targets (case,), or (round, case) where they depend on it; None where unknown."""
        if "target" not in self.rows.column_names:
            return None
        targets = np.zeros((int(self.round.max()) + 1, len(complete)))
        targets[self.round, self.where] = _numbers(self.rows, "target", self.path)[self.first]
        targets = targets[:, complete]
        return np.asarray(targets[0] if (targets == targets[0]).all() else targets)

    def extra(self, name: str, complete: np.ndarray) -> np.ndarray | None:
        """The group or class of each case; refused where rows of a case disagree."""
        if name not in self.rows.column_names:
            return None
        values = _identities(self.rows, name, self.path)[self.first]
        of_case = np.zeros(len(complete), dtype=values.dtype)
        of_case[self.where] = values
        if (of_case[self.where] != values).any():
            raise InputError(
                f"{self.path.name} gives a case two different entries in {name}; keep one",
                code="table.duplicate",
            )
        return np.asarray(of_case[complete])


def _read(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    try:
        if path.suffix == ".csv":
            # "007" is a name, not a number.
            kinds = dict.fromkeys(("case", "group", "task", "round"), pa.string())
            convert = pa.csv.ConvertOptions(column_types=kinds)
            rows = pa.csv.read_csv(path, convert_options=convert)
        else:
            rows = pq.read_table(path, partitioning=None)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise InputError(
            f"{path} cannot be read as a table ({first_line(error):.120})", code="file.format"
        ) from None
    return _checked(rows, path)


def _checked(rows: Any, path: Path) -> Any:
    """Refuse rows that cannot be a table."""
    if rows.num_rows == 0:
        raise InputError(f"{path.name} has no rows; check the file", code="table.incomplete")
    if len(set(rows.column_names)) != len(rows.column_names):
        raise InputError(
            f"{path.name} has two columns of one name; rename one", code="table.duplicate"
        )
    if "case" not in rows.column_names:
        raise InputError(
            f"{path.name} has no column case; it has {', '.join(rows.column_names)[:120]}",
            code="table.column",
        )
    return rows


def _identities(rows: Any, name: str, path: Path) -> np.ndarray:
    """A column of groups or classes."""
    return to_numpy(identities(rows[name], name, path.name, floats=True), name)


def _numbers(rows: Any, name: str, path: Path) -> FloatArray:
    """A column of finite numbers."""
    import pyarrow as pa

    column = rows[name].combine_chunks()
    is_number = pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
    values = np.asarray(column.to_numpy(zero_copy_only=False)) if is_number else None
    if values is None or column.null_count or not np.isfinite(values).all():
        raise InputError(
            f"{path.name} has a {name} that is not a number; fill it or drop its rows",
            code="table.column",
        )
    return values.astype(float)


def _rounds(rows: Any, path: Path) -> tuple[FloatArray, np.ndarray]:
    if "acceleration" not in rows.column_names:
        return np.full(1, np.nan), np.zeros(rows.num_rows, dtype=np.int64)
    rates, round = np.unique(-_numbers(rows, "acceleration", path), return_inverse=True)
    return -rates, round.ravel()


def _round_names(rows: Any, round: np.ndarray, rounds: int, path: Path) -> tuple[str, ...] | None:
    if "round" not in rows.column_names:
        return None
    values = _identities(rows, "round", path).astype(str)
    names = np.zeros(rounds, dtype=values.dtype)
    names[round] = values
    if (names[round] != values).any():
        raise InputError(
            f"{path.name} gives one acceleration two names in round; give each acceleration its own",
            code="rounds.invalid",
        )
    return tuple(map(str, names))


def _samples(rows: Any, path: Path) -> FloatArray:
    """The samples of each row, (row, sample)."""
    import pyarrow as pa

    if "outputs" in rows.column_names:
        lists = rows["outputs"].combine_chunks()
        kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        if lists.null_count or not any(is_kind(lists.type) for is_kind in kinds):
            raise InputError(
                f"{path.name} has outputs that are no lists; give one to each row",
                code="table.column",
            )
        lengths = np.unique(np.asarray(lists.value_lengths()))
        if len(lengths) != 1:
            raise InputError(
                f"{path.name} has lists of {lengths.min()} to {lengths.max()} outputs; every row "
                "needs as many",
                code="samples.mismatch",
            )
        flat = pa.table({"outputs": lists.flatten()})
        return _numbers(flat, "outputs", path).reshape(len(lists), -1)
    found = (re.fullmatch(r"output_(\d{1,9})", name) for name in rows.column_names)
    numbered = {int(m[1]): m[0] for m in found if m}
    if "output" in rows.column_names and not numbered:
        return _numbers(rows, "output", path)[:, None]
    if not numbered or "output" in rows.column_names:
        raise InputError(
            f"{path.name} has no outputs; name the columns output_0, output_1 and so on, or "
            "output with a column sample",
            code="table.column",
        )
    return np.stack([_numbers(rows, numbered[k], path) for k in sorted(numbered)], axis=1)


def _gathered(placed: _PivotedRows) -> tuple[_PivotedRows, FloatArray]:
    """Put the rows of one case and round together, with their outputs (row, sample)."""
    rows, path, where, round = placed.rows, placed.path, placed.where, placed.round
    if "output" not in rows.column_names:
        raise InputError(
            f"{path.name} has a column sample but no column output; add it", code="table.column"
        )
    sample, outputs = _numbers(rows, "sample", path), _numbers(rows, "output", path)
    order = np.lexsort((sample, round, where))
    key = where.astype(np.int64)[order] * (int(round.max()) + 1) + round[order]
    _, start, count = np.unique(key, return_index=True, return_counts=True)
    if len(np.unique(count)) != 1:
        raise InputError(
            f"{path.name} has {count.min()} to {count.max()} samples of a case in a round; every "
            "case and round needs as many",
            code="samples.mismatch",
        )
    numbers = sample[order].reshape(len(start), -1)
    if (np.diff(numbers, axis=1) == 0).any():
        raise InputError(
            f"{path.name} has a sample of a case and round twice; keep one", code="table.duplicate"
        )
    for name in ("target", "group", "label"):
        if name not in rows.column_names:
            continue
        is_target = name == "target"
        column = _numbers(rows, name, path) if is_target else _identities(rows, name, path)
        values = column[order].reshape(len(start), -1)
        if (values != values[:, :1]).any():
            raise InputError(
                f"{path.name} gives the samples of one case and round two different entries in "
                f"{name}; keep one",
                code="table.duplicate",
            )
    first = order[start]
    together = _PivotedRows(path, rows, where[first], round[first], first)
    return together, outputs[order].reshape(len(start), -1)


# Names in the file, and attributes of the table.
ARRAYS = {
    **{name: name for name in ("outputs", "targets", "accelerations", "group", "label", "case")},
    "round_names": "round_names", "lines": "sampled_lines",
}  # fmt: skip
ATTRIBUTES = "attributes"


def write_npz(table: TaskOutputs, path: Path) -> Path:
    """Write a table as compressed arrays of the names in the class, and its attributes as JSON."""
    arrays = {name: getattr(table, field) for name, field in ARRAYS.items()}
    arrays = {name: values for name, values in arrays.items() if values is not None}
    for name in ("accelerations", "targets"):
        if np.isnan(arrays[name]).any():  # unknown
            del arrays[name]
    attributes = {
        "task_names": table.task_names,
        **ranges_to_json(table.task_ranges),
        "provenance": table.provenance,
        "missing": table.missing_cases,
    }
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez_compressed(
            file, allow_pickle=False, **arrays, **{ATTRIBUTES: np.array(json.dumps(attributes))}
        )
    return path


def read_npz(path: Path) -> TaskOutputs:
    """Read a table from an ``.npz`` file; only ``outputs`` is required."""
    with open_npz(path, "a table") as archive:
        if "outputs" not in archive:
            raise InputError(
                f"{path} has no array outputs; it holds {', '.join(sorted(archive)) or 'nothing'}",
                code="table.column",
            )
        arrays: dict[str, Any] = {ARRAYS[n]: archive[n] for n in ARRAYS if n in archive}
        text = str(archive[ATTRIBUTES]) if ATTRIBUTES in archive else "{}"
        attributes = json.loads(text)
    if not isinstance(attributes, dict):
        raise InputError(
            f"{path} has attributes that are not a table's; write it again", code="file.format"
        )
    return TaskOutputs(
        arrays.pop("outputs"), arrays.pop("targets", None), arrays.pop("accelerations", None),
        **arrays, task_names=attributes.get("task_names"),
        task_range=attributes.get("task_ranges") or attributes.get("task_range"),
        provenance=attributes.get("provenance"), missing_cases=attributes.get("missing", ()),
    )  # fmt: skip


def write_rows(table: TaskOutputs, path: Path) -> Path:
    """Write a table as a CSV or Parquet file, as :func:`taskuq.table._formats.read_rows_file`
    reads.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    rounds, n, tasks = table.rounds, table.cases, table.tasks
    x = table.outputs if table.outputs.ndim == 4 else table.outputs[..., None]

    def of_case(values: np.ndarray) -> np.ndarray:
        return np.tile(np.repeat(values, tasks), rounds)

    columns = {"case": of_case(np.arange(n) if table.case is None else table.case)}
    for name in ("group", "label"):
        if getattr(table, name) is not None:
            columns[name] = of_case(getattr(table, name))
    if not np.isnan(table.accelerations).any():
        columns["acceleration"] = np.repeat(table.accelerations, n * tasks)
    if table.round_names is not None:
        columns["round"] = np.repeat(np.array(table.round_names), n * tasks)
    if table.task_names != ("task",):
        columns["task"] = np.tile(np.array(table.task_names), rounds * n)
    if table.has_targets:
        columns["target"] = np.stack([table.targets_at(k) for k in range(rounds)]).ravel()
    for p in range(table.samples):
        columns[f"output_{p}"] = x[:, :, p].ravel()
    if path.suffix == ".csv":
        _require_plain(columns)
    rows = pa.table({name: pa.array(values) for name, values in columns.items()})
    with atomic_write(path) as partial:
        (pa.csv.write_csv if path.suffix == ".csv" else pq.write_table)(rows, partial)
    return path


def _require_plain(columns: dict[str, np.ndarray]) -> None:
    """Refuse names that a spreadsheet would run as a formula."""
    for name, values in columns.items():
        texts = np.unique(values) if values.dtype.kind in "US" else ()
        bad = [str(text) for text in texts if str(text).startswith(("=", "+", "-", "@", "\t"))]
        if bad:
            raise InputError(
                f"{name} {bad[0]!r:.40} would be run as a formula where a spreadsheet opens the "
                "file; save the table as .parquet",
                code="value.invalid",
            )
