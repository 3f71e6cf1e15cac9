"""Tables as a folder of immutable Parquet shards: many writers, killed runs, no half-written work.

A folder holds ``table.json`` (attributes and schema) and shards with one row per round and case. A
shard is written under a temporary name and renamed, so that readers see only whole ones.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.checks import require_finite
from taskuq.disk import is_plain
from taskuq.errors import InputError, OtherTableError, TakenError
from taskuq.files import complete, plain, read_json, write_json
from taskuq.fingerprints import fingerprint
from taskuq.interval import TaskRange
from taskuq.outputs.columns import as_texts, concatenate, identities, positions, write_roster
from taskuq.outputs.lines import lines_as_texts
from taskuq.outputs.parquet import read_columns, read_note, read_schema, write_parquet
from taskuq.outputs.table import TaskOutputs
from taskuq.ranges import ranges_from_json, ranges_to_json

SCHEMA = "taskuq.outputs/1"
HEADER = "table.json"
# What a run keeps beside the shards to look at.
PICTURES = "pictures.npz"
LOST = "bring back a copy of it, or start the run afresh"


@dataclass(frozen=True)
class Header:
    """The attributes of a table on disk.

    Arguments:
        accelerations: One per round, decreasing.
        samples: The number of samples per row.
        task_names: One per task.
        task_ranges: The range of each task's outputs and targets, if declared.
        round_names: What rounds are called, where they have names.
        round_targets: Whether targets depend on the round.
        lines: How many lines or views there are to measure, where a rule chose some for each case.
        order: 'sorted' puts cases in the order of their identities, 'written' as they were saved,
            'roster' as the run's roster lists them.
        provenance: How the table was made.
    """

    accelerations: tuple[float, ...]
    samples: int
    task_names: tuple[str, ...] = ("task",)
    task_ranges: tuple[TaskRange, ...] = (None,)
    round_names: tuple[str, ...] | None = None
    round_targets: bool = False
    lines: int | None = None
    order: str = "sorted"
    provenance: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON can hold."""
        return {
            "schema": SCHEMA,
            "accelerations": [None if np.isnan(R) else R for R in self.accelerations],
            "samples": self.samples,
            "task_names": list(self.task_names),
            **ranges_to_json(self.task_ranges),
            **({} if self.round_names is None else {"round_names": list(self.round_names)}),
            "round_targets": self.round_targets,
            **({} if self.lines is None else {"lines": self.lines}),
            "order": self.order,
            "provenance": dict(self.provenance or {}),
        }

    @property
    def asked(self) -> dict[str, Any]:
        """What decides the numbers; who computed them may change between two starts."""
        # As in the file, so that a tuple equals the list it was written as.
        record = dict(plain(self.to_dict()))
        free = ("made_by", "words")
        record["provenance"] = {k: v for k, v in record["provenance"].items() if k not in free}
        return record

    @property
    def identity(self) -> str:
        """A fingerprint of what decides the numbers, which every shard keeps."""
        return fingerprint(self.asked)[:16]

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The names of each task's target and outputs columns."""
        if len(self.task_names) == 1:
            return [("target", "outputs")]
        return [(f"target_{name}", f"outputs_{name}") for name in self.task_names]


class TableWriter:
    """Writes rows of a table as they are computed, and knows which are there already.

    Opening a folder that holds a table of the same header goes on with it; another header is
    refused. Several writers, also on several machines, may share a folder.

    Arguments:
        folder: Where the table lives.
        header: Its attributes.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> writer = TableWriter(folder, Header(accelerations=(4.0, 2.0), samples=3))
        >>> for R in (4.0, 2.0):
        ...     _ = writer.write(["a", "b"], R, rng.random((2, 3)), targets=[0.1, 0.2])
        >>> sorted(TableWriter(folder, writer.header).finished())[:2]
        [('a', 2.0), ('a', 4.0)]
        >>> TaskOutputs.load(folder)
        TaskOutputs(2 rounds (R = 4, 2), 2 cases, 3 samples, 1 task)
    """

    def __init__(self, folder: str | os.PathLike[str], header: Header) -> None:
        self.folder = Path(folder)
        self.header = header
        try:
            if (self.folder / HEADER).exists():
                raise TakenError
            # Of several writers that begin at once one makes the header, and the others look at it.
            write_json(self.folder / HEADER, header.to_dict(), exclusive=True)
        except TakenError:
            _refuse_other_header(read_header(self.folder), header, self.folder)
        self._number = len(shard_paths(self.folder))

    def finished(self) -> set[tuple[str, float]]:
        """Return the (case, acceleration) pairs that whole shards hold."""
        rates = np.asarray(self.header.accelerations)
        return {
            pair
            for case, round in read_places(shard_paths(self.folder), self.header)
            for pair in zip(as_texts(case).to_pylist(), rates[round].tolist(), strict=True)
        }

    def write(
        self,
        case: Sequence[Any] | np.ndarray,
        acceleration: float | Sequence[float],
        outputs: Any,
        targets: Any,
        *,
        group: Any = None,
        label: Any = None,
        image: Any = None,
        lines: Any = None,
    ) -> Path:
        """Write one shard of rows and return its path.

        Arguments:
            case: The identity of each row's case.
            acceleration: The acceleration of all rows, or of each.
            outputs: (row, sample) or (row, sample, task).
            targets: (row,) or (row, task).
            group: The group of each row's case.
            label: The class of each row's case.
            image: A fingerprint of the image of each row's case.
            lines: What was measured of each row's case, booleans (row, line), where a rule chose.
        """
        import pyarrow as pa

        x = np.asarray(outputs, dtype=np.float32)
        z = np.asarray(targets, dtype=float)
        x = x[..., None] if x.ndim == 2 else x
        z = z[..., None] if z.ndim == 1 else z
        rows, tasks = len(case), len(self.header.task_names)
        if x.shape != (rows, self.header.samples, tasks) or z.shape != (rows, tasks):
            raise InputError(
                f"rows of outputs {x.shape} and targets {z.shape} do not fit a table of "
                f"{self.header.samples} samples and {tasks} tasks with {rows} cases given"
            )
        require_finite(x, "outputs")
        columns: dict[str, Any] = {"case": pa.array(np.asarray(case))}
        for name, values in (("group", group), ("label", label), ("image", image)):
            if values is not None:
                columns[name] = pa.array(np.asarray(values))
        if (lines is None) != (self.header.lines is None):
            raise InputError("measured lines belong to every row of a table, or to none")
        if lines is not None:
            columns["lines"] = pa.array(lines_as_texts(lines, rows, self.header.lines))
        columns["acceleration"] = pa.array(np.broadcast_to(np.asarray(acceleration, float), rows))
        for k, (target, output) in enumerate(self.header.columns):
            flat = pa.array(np.ascontiguousarray(x[:, :, k]).ravel())
            columns[target] = pa.array(z[:, k])
            columns[output] = pa.FixedSizeListArray.from_arrays(flat, self.header.samples)
        path = self.folder / f"part-{self._number:06d}-{uuid.uuid4().hex[:12]}.parquet"
        write_parquet(pa.table(columns), path, {"table": self.header.identity})
        self._number += 1
        return path


def finished_cases(folder: Path, header: Header, names: Sequence[str]) -> np.ndarray:
    """Say for each of the named cases whether whole shards hold all of its rounds.

    Arguments:
        folder: The folder of a table.
        header: Its attributes.
        names: Identities.
    """
    import pyarrow as pa

    there = np.zeros((len(header.accelerations), len(names)), dtype=bool)
    places = read_places(shard_paths(folder), header)
    if places:
        cases, rounds = zip(*places, strict=True)
        where = positions(concatenate(cases), pa.array(names, pa.large_string()))
        there[np.concatenate(rounds)[where >= 0], where[where >= 0]] = True
    return np.asarray(there.all(axis=0))


def image_marks(folder: Path) -> dict[str, str]:
    """Return the fingerprint of each case's image, where the shards remember it.

    Arguments:
        folder: The folder of a table.
    """
    found: dict[str, str] = {}
    for shard in shard_paths(folder):
        if "image" in read_schema(shard).names:
            rows = read_columns(shard, ["case", "image"])
            names = as_texts(identities(rows["case"], "case", shard.name)).to_pylist()
            marks = zip(names, rows["image"].to_pylist(), strict=True)
            found |= {name: str(mark) for name, mark in marks if mark}
    return found


def read_places(shards: Sequence[Path], header: Header) -> list[tuple[Any, np.ndarray]]:
    """Return for each shard which case and which round each of its rows belongs to.

    Arguments:
        shards: Files of a table.
        header: Its attributes.
    """
    places = []
    for shard in shards:
        _require_of_table(shard, header)
        rows = read_columns(shard, ["case", "acceleration"])
        case = identities(rows["case"], "case", f"shard {shard.name}")
        places.append((case, _rounds_of(rows, header, shard)))
    return places


def shard_paths(folder: Path) -> list[Path]:
    """Return the whole shards of a table, in the order of their names."""
    return sorted(folder.glob("part-*.parquet"))


def _require_of_table(shard: Path, header: Header) -> None:
    """Refuse a shard that was written under another header, whoever put it here."""
    note = read_note(shard, read_schema(shard))
    if note.get("table", header.identity) != header.identity:
        raise InputError(
            f"shard {shard.name} is of another table than {HEADER} beside it; remove the shard and "
            "run again, or bring back the table's own header"
        )


def _rounds_of(rows: Any, header: Header, shard: Path) -> np.ndarray:
    """Say for each row of a shard which round it belongs to."""
    rate, rates = numbers_of(rows, "acceleration", shard), np.asarray(header.accelerations)
    round: np.ndarray = np.full(len(rate), -1, dtype=np.int16)
    for k, R in enumerate(rates):
        round[np.isnan(rate) if np.isnan(R) else rate == R] = k
    if (round < 0).any():
        raise InputError(f"shard {shard.name} has rows of an acceleration not in {HEADER}")
    return round


def numbers_of(rows: Any, name: str, shard: Path) -> np.ndarray:
    """Return a column of numbers, or say what it holds instead."""
    values = np.asarray(rows[name].to_numpy(zero_copy_only=False))
    if values.dtype.kind not in "fiu":
        raise InputError(f"shard {shard.name} holds {rows[name].type} in {name}, not numbers")
    return values.astype(float)


def read_header(folder: Path) -> Header:
    """Read the attributes of a table, or say why that is impossible."""
    path = folder / HEADER
    if not path.exists():
        raise InputError(f"{folder} holds no {HEADER}, so it is not a table")
    if path.exists() and not is_plain(path):
        raise InputError(f"{path} is a link, a pipe or a folder and not a file; remove it")
    record = read_json(path, SCHEMA, remedy=LOST, is_sealed=False)
    with complete(path, "header"):
        names, called = tuple(map(str, record["task_names"])), record.get("round_names")
        header = Header(
            accelerations=tuple(np.nan if R is None else float(R) for R in record["accelerations"]),
            samples=int(record["samples"]),
            task_names=names,
            task_ranges=ranges_from_json(record, names),
            round_names=None if called is None else tuple(map(str, called)),
            round_targets=bool(record["round_targets"]),
            lines=None if record.get("lines") is None else int(record["lines"]),
            order=str(record["order"]),
            provenance=dict(record["provenance"]),
        )
    return header


def write_shards(table: TaskOutputs, folder: Path) -> Path:
    """Write a whole table into a new or empty folder, one shard per round."""
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; choose another name for the table")
    header = Header(
        accelerations=tuple(map(float, table.accelerations)),
        samples=table.samples,
        task_names=table.task_names,
        task_ranges=table.task_ranges,
        round_names=table.round_names,
        round_targets=table.has_round_targets,
        lines=None if table.lines is None else table.lines.shape[2],
        order="roster" if table.missing else "written",
        provenance=table.provenance,
    )
    writer = TableWriter(folder, header)
    case = np.arange(table.cases) if table.case is None else table.case
    if table.missing:
        # The roster remembers who is missing; it knows cases by their names.
        case = case.astype(str)
        write_roster(folder, [*case, *table.missing])
    known = {"group": table.group, "label": table.label}
    for k, R in enumerate(table.accelerations):
        lines = None if table.lines is None else table.lines[k]
        writer.write(case, float(R), table.outputs[k], table.targets_at(k), lines=lines, **known)
    return folder


def _refuse_other_header(found: Header, wanted: Header, folder: Path) -> None:
    before, now = _flat(found.asked), _flat(wanted.asked)
    differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if differing:
        shown = "; ".join(
            f"{n} was {before.get(n)}, but now it is {now.get(n)}" for n in differing[:3]
        )
        more = f" (and {len(differing) - 3} more)" if len(differing) > 3 else ""
        raise OtherTableError(
            f"{folder} holds a table in which {shown}{more}; choose another folder or start afresh"
        )


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names, so that a difference can be named."""
    found: dict[str, Any] = {}
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= _flat(value, f"{name}.")
        else:
            found[name] = value
    return found
