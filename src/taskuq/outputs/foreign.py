"""A table from rows with named columns: a CSV or Parquet file, or a data frame."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.errors import InputError, first_line
from taskuq.interval import FloatArray
from taskuq.outputs.columns import identities, positions, to_numpy
from taskuq.outputs.joining import join_tasks
from taskuq.outputs.table import TaskOutputs


def read_foreign(path: Path) -> TaskOutputs:
    r"""Read a table from rows with named columns.

    Either one row for each case and round, with all samples:

    ============================  ============================================================
    ``case``                      the identity of the case
    ``acceleration``              the round's R; left out where there is one round
    ``round``                     what the round is called; optional
    ``task``                      which task the row is of; left out where there is one
    ``target``                    the task on the true image; left out where it is unknown
    ``group``, ``label``          optional
    ``output_0``, ``output_1``…   the samples; or ``outputs``, a list, in a Parquet file; or
                                  ``output`` for a point estimate
    ============================  ============================================================

    Or one row for each sample, with a column ``sample`` of numbers and a column ``output``.
    A case that lacks a round is listed as missing. Other columns are passed over.

    Arguments:
        path: The file, ending in .csv or .parquet.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "mine.csv"
        >>> _ = path.write_text("case,acceleration,target,output_0,output_1\n"
        ...                     "a,8,0.5,0.4,0.6\na,4,0.5,0.5,0.5\nb,8,0.1,0.0,0.3\nb,4,0.1,0,0\n")
        >>> read_foreign(path)
        TaskOutputs(2 rounds (R = 8, 4), 2 cases, 2 samples, 1 task)
    """
    return read_rows(_read(path), path)


def read_frame(frame: Any) -> TaskOutputs:
    """Read a table from a data frame with the columns of :func:`read_foreign`.

    Arguments:
        frame: A frame of pandas, polars or Arrow, or columns by name.
    """
    import pyarrow as pa

    path = Path("the data frame")
    try:
        rows = pa.table(frame)
    except (pa.ArrowException, ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"a table is read from a path or a data frame, and a {type(frame).__name__} is neither "
            f"({first_line(error):.80})"
        ) from None
    return read_rows(_checked(rows, path), path)


def read_rows(rows: Any, path: Path) -> TaskOutputs:
    """Read a table from Arrow rows, of one task or of several.

    Arguments:
        rows: The rows.
        path: What to call them in an error.
    """
    if "task" not in rows.column_names:
        return _one_task(rows, path)
    import pyarrow.compute as pc

    task = identities(rows["task"], "task", path.name)
    names = [str(name) for name in task.unique().to_pylist()]
    if "" in names:
        row = task.to_pylist().index("") + 1
        raise InputError(f"{path.name} names no task in row {row}; fill the column task in")
    tables = {}
    for name, one in zip(names, task.unique(), strict=True):
        of_task = _one_task(rows.filter(pc.equal(task, one)), path, f" of task {name}")
        tables[name] = of_task
    return join_tasks(tables)


def _one_task(rows: Any, path: Path, of: str = "") -> TaskOutputs:
    """Read the table of one task."""
    path = path.with_name(path.name + of)
    case = identities(rows["case"], "case", path.name)
    names = case.unique()
    rates, round = _rounds(rows, path)
    placed = _Placed(path, rows, positions(case, names), round, np.arange(rows.num_rows))
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
        missing=[str(name) for name in texts[~complete]],
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Placed:
    """Rows of a file, one for each case and round: their case, their round, their first row."""

    path: Path
    rows: Any
    where: np.ndarray
    round: np.ndarray
    first: np.ndarray

    def complete(self, rounds: int, cases: int) -> np.ndarray:
        """Say for each case whether it has all rounds; refuse a row twice, or no such case."""
        place = self.where.astype(np.int64) * rounds + self.round
        if len(np.unique(place)) != len(place):
            named = self.rows.column_names
            if "round" in named and "acceleration" not in named:
                raise InputError(
                    f"{self.path.name} names rounds and gives no accelerations; add a column "
                    "acceleration, full cost over the round's cost"
                )
            tasks = "" if "task" in named else ", or tell tasks apart by a column task"
            raise InputError(
                f"{self.path.name} has two rows for one case and round; keep one{tasks}"
            )
        there = np.zeros((rounds, cases), dtype=bool)
        there[self.round, self.where] = True
        complete = np.asarray(there.all(axis=0))
        if not complete.any():
            raise InputError(f"no case of {self.path.name} has all {rounds} rounds")
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
                f"{self.path.name} gives a case two different entries in {name}; keep one"
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
        raise InputError(f"{path} cannot be read as a table ({first_line(error):.120})") from None
    return _checked(rows, path)


def _checked(rows: Any, path: Path) -> Any:
    """Refuse rows that cannot be a table."""
    if rows.num_rows == 0:
        raise InputError(f"{path.name} has no rows; check the file")
    if len(set(rows.column_names)) != len(rows.column_names):
        raise InputError(f"{path.name} has two columns of one name; rename one")
    if "case" not in rows.column_names:
        raise InputError(
            f"{path.name} has no column case; it has {', '.join(rows.column_names)[:120]}"
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
        raise InputError(f"{path.name} has a {name} that is not a number; fill it or drop its rows")
    return values.astype(float)


def _rounds(rows: Any, path: Path) -> tuple[FloatArray, np.ndarray]:
    if "acceleration" not in rows.column_names:
        return np.full(1, np.nan), np.zeros(rows.num_rows, dtype=np.int64)
    rates, round = np.unique(-_numbers(rows, "acceleration", path), return_inverse=True)
    return -rates, round.ravel()


def _round_names(rows: Any, round: np.ndarray, rounds: int, path: Path) -> tuple[str, ...] | None:
    """What rounds are called, where rows say so; refused where a round has two names."""
    if "round" not in rows.column_names:
        return None
    values = _identities(rows, "round", path).astype(str)
    names = np.zeros(rounds, dtype=values.dtype)
    names[round] = values
    if (names[round] != values).any():
        raise InputError(
            f"{path.name} gives one acceleration two names in round; give each acceleration its own"
        )
    return tuple(map(str, names))


def _samples(rows: Any, path: Path) -> FloatArray:
    """The samples of each row, (row, sample)."""
    import pyarrow as pa

    if "outputs" in rows.column_names:
        lists = rows["outputs"].combine_chunks()
        kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        if lists.null_count or not any(is_kind(lists.type) for is_kind in kinds):
            raise InputError(f"{path.name} has outputs that are no lists; give one to each row")
        lengths = np.unique(np.asarray(lists.value_lengths()))
        if len(lengths) != 1:
            raise InputError(
                f"{path.name} has lists of {lengths.min()} to {lengths.max()} outputs; every row "
                "needs as many"
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
            "output with a column sample"
        )
    return np.stack([_numbers(rows, numbered[k], path) for k in sorted(numbered)], axis=1)


def _gathered(placed: _Placed) -> tuple[_Placed, FloatArray]:
    """Put the rows of one case and round together, with their outputs (row, sample)."""
    rows, path, where, round = placed.rows, placed.path, placed.where, placed.round
    if "output" not in rows.column_names:
        raise InputError(f"{path.name} has a column sample but no column output; add it")
    sample, outputs = _numbers(rows, "sample", path), _numbers(rows, "output", path)
    order = np.lexsort((sample, round, where))
    key = where.astype(np.int64)[order] * (int(round.max()) + 1) + round[order]
    _, start, count = np.unique(key, return_index=True, return_counts=True)
    if len(np.unique(count)) != 1:
        raise InputError(
            f"{path.name} has {count.min()} to {count.max()} samples of a case in a round; every "
            "case and round needs as many"
        )
    numbers = sample[order].reshape(len(start), -1)
    if (np.diff(numbers, axis=1) == 0).any():
        raise InputError(f"{path.name} has a sample of a case and round twice; keep one")
    for name in ("target", "group", "label"):
        if name not in rows.column_names:
            continue
        is_target = name == "target"
        column = _numbers(rows, name, path) if is_target else _identities(rows, name, path)
        values = column[order].reshape(len(start), -1)
        if (values != values[:, :1]).any():
            raise InputError(
                f"{path.name} gives the samples of one case and round two different entries in "
                f"{name}; keep one"
            )
    first = order[start]
    together = _Placed(path, rows, where[first], round[first], first)
    return together, outputs[order].reshape(len(start), -1)
