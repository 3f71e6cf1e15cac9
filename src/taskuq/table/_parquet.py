"""Folder of checksummed Parquet shards."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taskuq._arrays import ranges_from_json, ranges_to_json, require_finite
from taskuq._io import (
    SEAL,
    ExistingFileError,
    atomic_write,
    complete_record,
    fingerprint,
    is_regular_file,
    read_json,
    to_json_value,
    verify_checksum,
    with_checksum,
    write_json,
)
from taskuq.errors import InputError, TableMismatchError, first_line
from taskuq.interval import BoolArray, TaskRange
from taskuq.table._table import TaskOutputs

# Rows of a group, which is what a reader holds at one time.
ROWS = 65536
# Where a file's metadata remembers its checksums and what else is told to it.
NOTE = b"taskuq"
REMEDY = "delete it and run again to compute its cases anew"


def _write_parquet(
    table: Any,
    path: Path,
    remember: Mapping[str, Any] | None = None,
    *,
    exclusive: bool = False,
) -> Path:
    """Write an Arrow table whole, with checksums."""
    import pyarrow.parquet as pq

    columns = {name: _digest(table[name].chunks) for name in table.column_names}
    note = with_checksum({**(remember or {}), "columns": columns})
    names = [n for n in table.column_names if not _is_number(table[n].type)]
    with atomic_write(path, exclusive=exclusive) as partial:
        # Row groups are what a reader holds at one time; numbers hardly repeat.
        pq.write_table(
            table.replace_schema_metadata({NOTE: json.dumps(note)}), partial, compression="zstd",
            row_group_size=ROWS, use_dictionary=names, write_page_checksum=True,
        )  # fmt: skip
    return path


def _read_parts(path: Path, columns: list[str]) -> Iterator[Any]:
    """Read columns of a file, some rows at a time, or say that it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _read_schema(path)
    for name in columns:
        _require_column(schema.names, name, path)
    written = _read_note(path, schema).get("columns", {})
    found = {name: _ColumnHash() for name in columns if name in written}
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for rows in file.iter_batches(batch_size=ROWS, columns=columns, use_threads=False):
                for name, one in found.items():
                    one.update(rows.column(name))
                yield rows
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise _damaged(path, first_line(error)) from None
    for name, one in found.items():
        if one.hexdigest() != written[name]:
            raise _damaged(path, f"column {name} is not as it was written")


def _read_columns(path: Path, columns: list[str]) -> Any:
    """Read columns of a file, or say that it is damaged."""
    import pyarrow as pa

    parts = list(_read_parts(path, columns))
    if not parts:
        return _read_schema(path).empty_table().select(columns)
    return pa.Table.from_batches(parts)


def _read_schema(path: Path) -> Any:
    """Read which columns a file has, or say that it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not is_regular_file(path):
        raise InputError(
            f"{path} is a link, a pipe or a folder and not a file; remove it", code="file.format"
        )
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise _damaged(path, first_line(error)) from None


def _read_note(path: Path, schema: Any) -> dict[str, Any]:
    """Return what a file's metadata remembers; nothing where somebody else wrote it."""
    text = (schema.metadata or {}).get(NOTE)
    if text is None:
        return {}
    try:
        note = dict(json.loads(text))
        verify_checksum(note, path)
        lacking = set(note["columns"]) - set(schema.names)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _damaged(path, "its checksums are") from None
    if lacking:
        raise _damaged(path, f"no column {min(lacking)}")
    return {name: value for name, value in note.items() if name != SEAL}


def _require_column(names: list[str], name: str, path: Path) -> None:
    """Refuse a file that lacks a column."""
    if name not in names:
        raise InputError(f"shard {path.name} has no column {name}", code="table.column")


def _damaged(path: Path, reason: str, remedy: str = REMEDY) -> InputError:
    """Return the error that names a damaged file and says how to make it again."""
    return InputError(
        f"shard {path.name} cannot be read ({reason:.80}); it is truncated or damaged: {remedy}",
        code="file.damaged",
    )


def _digest(arrays: Iterable[Any]) -> str:
    """Return the SHA-256 of a column, however its rows are divided into arrays."""
    whole = _ColumnHash()
    for array in arrays:
        whole.update(array)
    return whole.hexdigest()


class _ColumnHash:
    """Incremental SHA-256 of a column."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.content, self.lengths = hashlib.sha256(), hashlib.sha256()

    def update(self, array: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_fixed_size_list(array.type):
            self.kinds.add(f"lists of {array.type.list_size}")
            self.lengths.update(np.asarray(array.is_valid()).tobytes())
            array = array.flatten()
        self.kinds.add(str(array.type))
        if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            texts = array.cast(pa.large_string())
            lengths = np.asarray(pc.fill_null(pc.binary_length(texts), -1), dtype=np.int64)
            self.lengths.update(lengths.tobytes())
            _, offsets, content = texts.buffers()
            if content is not None:
                ends = np.frombuffer(offsets, dtype=np.int64)[
                    [texts.offset, texts.offset + len(texts)]
                ]
                self.content.update(memoryview(content)[ends[0] : ends[1]])
        else:
            self.content.update(np.ascontiguousarray(array.to_numpy(zero_copy_only=False)).data)

    def hexdigest(self) -> str:
        parts = (*sorted(self.kinds), self.content.hexdigest(), self.lengths.hexdigest())
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(kind) or pa.types.is_fixed_size_list(kind))


# Longer ones are no names, and a million of them would fill the memory.
LONGEST = 1000
# Rows that become Python objects at one time.
COLUMN_ROWS = 65536
# Names with an underscore are passed over by readers that take a folder of Parquet as one table.
ROSTER = "_cases.parquet"


def identities(column: Any, name: str, where: str, *, floats: bool = False) -> Any:
    """Take a column of integers or strings, or say in one sentence what it holds instead."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    try:
        if column.null_count or not (texts or whole or (floats and pa.types.is_floating(kind))):
            raise pa.ArrowInvalid(kind)
        # A cast that would round is refused.
        found = column.cast(pa.large_string() if texts else pa.int64())
    except pa.ArrowException:
        raise InputError(
            f"{where} has a {name} that is neither an integer nor a string", code="table.column"
        ) from None
    found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    try:
        found.validate(full=True)
    except pa.ArrowException:  # text whose bytes are no text
        raise InputError(
            f"{where} is damaged in column {name}: delete it and run again", code="file.damaged"
        ) from None
    return found


def _as_texts(array: Any) -> Any:
    """Return identities as an Arrow array of strings."""
    import pyarrow as pa

    return array.cast(pa.large_string())


def _concatenate(arrays: Sequence[Any]) -> Any:
    """Join identities; as strings where some are strings and others integers."""
    import pyarrow as pa

    if len({array.type for array in arrays}) > 1:
        arrays = [_as_texts(array) for array in arrays]
    return pa.concat_arrays(arrays)


def index_of(array: Any, among: Any) -> np.ndarray:
    """Return the index of each id, -1 if absent."""
    import pyarrow.compute as pc

    if array.type != among.type:
        array, among = _as_texts(array), _as_texts(among)
    return np.asarray(pc.fill_null(pc.index_in(array, value_set=among), -1))


def to_numpy(array: Any, name: str) -> np.ndarray:
    """Return identities as NumPy integers or strings."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_integer(array.type):
        return np.asarray(array)
    longest = pc.max(pc.utf8_length(array)).as_py() or 1
    if longest > LONGEST:
        raise InputError(
            f"{name} has an entry of {longest} characters; {LONGEST} are the most",
            code="value.invalid",
        )
    texts = np.empty(len(array), dtype=f"<U{longest}")
    for start in range(0, len(array), COLUMN_ROWS):
        texts[start : start + COLUMN_ROWS] = array.slice(start, COLUMN_ROWS).to_pylist()
    return texts


def write_case_list(folder: Path, case: list[str], group: Any = None, label: Any = None) -> Path:
    """Write case, group and label of all planned cases."""
    import pyarrow as pa

    columns = {"case": pa.array(case)}
    columns |= {
        name: pa.array(values)
        for name, values in (("group", group), ("label", label))
        if values is not None
    }
    return _write_parquet(pa.table(columns), folder / ROSTER, exclusive=True)


def read_roster(folder: Path) -> list[str] | None:
    """Return the identities in the order of the table, or None where there is no roster."""
    path = folder / ROSTER
    if not path.exists():
        return None
    try:
        cases = _read_columns(path, ["case"])["case"].to_pylist()
    except InputError as error:
        raise InputError(
            f"{path}: {error}; without it, start the run afresh", code="file.damaged"
        ) from None
    return [str(case) for case in cases]


def _lines_as_texts(lines: Any, rows: int, count: int | None) -> list[str]:
    """Return the numbers of measured lines of each row, separated by spaces."""
    found = np.asarray(lines)
    if found.dtype != bool or found.shape != (rows, count):
        raise InputError(
            f"lines are {found.dtype} of shape {found.shape}; booleans {(rows, count)} are needed",
            code="shape.mismatch",
        )
    return [" ".join(map(str, np.flatnonzero(row))) for row in found]


def _lines_from_texts(texts: list[str], count: int, where: str) -> BoolArray:
    """Read what :func:`_lines_as_texts` wrote, booleans (row, line)."""
    found = np.zeros((len(texts), count), dtype=bool)
    for row, text in zip(found, texts, strict=True):
        parts = str(text).split()
        if not all(part.isdecimal() and len(part) < 10 and int(part) < count for part in parts):
            raise InputError(
                f"{where} names lines that are not below {count}: {str(text)[:40]!r}",
                code="file.damaged",
            )
        row[[int(part) for part in parts]] = True
    return found


SCHEMA = "taskuq.table/1"
HEADER = "table.json"
# What a run keeps beside the shards to look at.
PICTURES = "pictures.npz"
LOST = "bring back a copy of it, or start the run afresh"


@dataclass(frozen=True)
class TableHeader:
    """Attributes of a table on disk."""

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
        # As in the file, so that a tuple equals the list it was written as.
        record = dict(to_json_value(self.to_dict()))
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
    """Writes rows of a table as they are computed, and knows which are there already."""

    def __init__(self, folder: str | os.PathLike[str], header: TableHeader) -> None:
        self.folder = Path(folder)
        self.header = header
        try:
            if (self.folder / HEADER).exists():
                raise ExistingFileError
            # Of several writers that begin at once one makes the header, and the others look at it.
            write_json(self.folder / HEADER, header.to_dict(), exclusive=True)
        except ExistingFileError:
            _refuse_other_header(read_header(self.folder), header, self.folder)
        self._number = len(_shard_paths(self.folder))

    def finished(self) -> set[tuple[str, float]]:
        """Return the (case, acceleration) pairs that whole shards hold."""
        rates = np.asarray(self.header.accelerations)
        return {
            pair
            for case, round in _read_places(_shard_paths(self.folder), self.header)
            for pair in zip(_as_texts(case).to_pylist(), rates[round].tolist(), strict=True)
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
        """Write one shard of rows and return its path."""
        import pyarrow as pa

        x = np.asarray(outputs, dtype=np.float32)
        z = np.asarray(targets, dtype=float)
        x = x[..., None] if x.ndim == 2 else x
        z = z[..., None] if z.ndim == 1 else z
        rows, tasks = len(case), len(self.header.task_names)
        if x.shape != (rows, self.header.samples, tasks) or z.shape != (rows, tasks):
            raise InputError(
                f"rows of outputs {x.shape} and targets {z.shape} do not fit a table of "
                f"{self.header.samples} samples and {tasks} tasks with {rows} cases given",
                code="shape.mismatch",
            )
        require_finite(x, "outputs")
        columns: dict[str, Any] = {"case": pa.array(np.asarray(case))}
        for name, values in (("group", group), ("label", label), ("image", image)):
            if values is not None:
                columns[name] = pa.array(np.asarray(values))
        if (lines is None) != (self.header.lines is None):
            raise InputError(
                "measured lines belong to every row of a table, or to none", code="option.missing"
            )
        if lines is not None:
            columns["lines"] = pa.array(_lines_as_texts(lines, rows, self.header.lines))
        columns["acceleration"] = pa.array(np.broadcast_to(np.asarray(acceleration, float), rows))
        for k, (target, output) in enumerate(self.header.columns):
            flat = pa.array(np.ascontiguousarray(x[:, :, k]).ravel())
            columns[target] = pa.array(z[:, k])
            columns[output] = pa.FixedSizeListArray.from_arrays(flat, self.header.samples)
        path = self.folder / f"part-{self._number:06d}-{uuid.uuid4().hex[:12]}.parquet"
        _write_parquet(pa.table(columns), path, {"table": self.header.identity})
        self._number += 1
        return path


def finished_cases(folder: Path, header: TableHeader, names: Sequence[str]) -> np.ndarray:
    """Return True per case whose rounds are all stored."""
    import pyarrow as pa

    there = np.zeros((len(header.accelerations), len(names)), dtype=bool)
    places = _read_places(_shard_paths(folder), header)
    if places:
        cases, rounds = zip(*places, strict=True)
        where = index_of(_concatenate(cases), pa.array(names, pa.large_string()))
        there[np.concatenate(rounds)[where >= 0], where[where >= 0]] = True
    return np.asarray(there.all(axis=0))


def image_marks(folder: Path) -> dict[str, str]:
    """Return the fingerprint of each case's image, where the shards remember it."""
    found: dict[str, str] = {}
    for shard in _shard_paths(folder):
        if "image" in _read_schema(shard).names:
            rows = _read_columns(shard, ["case", "image"])
            names = _as_texts(identities(rows["case"], "case", shard.name)).to_pylist()
            marks = zip(names, rows["image"].to_pylist(), strict=True)
            found |= {name: str(mark) for name, mark in marks if mark}
    return found


def _read_places(shards: Sequence[Path], header: TableHeader) -> list[tuple[Any, np.ndarray]]:
    """Return for each shard which case and which round each of its rows belongs to."""
    places = []
    for shard in shards:
        _require_of_table(shard, header)
        rows = _read_columns(shard, ["case", "acceleration"])
        case = identities(rows["case"], "case", f"shard {shard.name}")
        places.append((case, _rounds_of(rows, header, shard)))
    return places


def _shard_paths(folder: Path) -> list[Path]:
    """Return the whole shards of a table, in the order of their names."""
    return sorted(folder.glob("part-*.parquet"))


def _require_of_table(shard: Path, header: TableHeader) -> None:
    """Refuse a shard that was written under another header, whoever put it here."""
    note = _read_note(shard, _read_schema(shard))
    if note.get("table", header.identity) != header.identity:
        raise InputError(
            f"shard {shard.name} is of another table than {HEADER} beside it; remove the shard and "
            "run again, or bring back the table's own header",
            code="resume.mismatch",
        )


def _rounds_of(rows: Any, header: TableHeader, shard: Path) -> np.ndarray:
    rate, rates = _numeric_column(rows, "acceleration", shard), np.asarray(header.accelerations)
    round: np.ndarray = np.full(len(rate), -1, dtype=np.int16)
    for k, R in enumerate(rates):
        round[np.isnan(rate) if np.isnan(R) else rate == R] = k
    if (round < 0).any():
        raise InputError(
            f"shard {shard.name} has rows of an acceleration not in {HEADER}", code="rounds.invalid"
        )
    return round


def _numeric_column(rows: Any, name: str, shard: Path) -> np.ndarray:
    """Return a numeric column of a shard."""
    values = np.asarray(rows[name].to_numpy(zero_copy_only=False))
    if values.dtype.kind not in "fiu":
        raise InputError(
            f"shard {shard.name} holds {rows[name].type} in {name}, not numbers",
            code="table.column",
        )
    return values.astype(float)


def read_header(folder: Path) -> TableHeader:
    """Read the attributes of a table, or say why that is impossible."""
    path = folder / HEADER
    if not path.exists():
        raise InputError(f"{folder} holds no {HEADER}, so it is not a table", code="file.missing")
    if path.exists() and not is_regular_file(path):
        raise InputError(
            f"{path} is a link, a pipe or a folder and not a file; remove it", code="file.format"
        )
    record = read_json(path, SCHEMA, remedy=LOST, is_sealed=False)
    with complete_record(path, "header"):
        names, called = tuple(map(str, record["task_names"])), record.get("round_names")
        header = TableHeader(
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
        raise InputError(
            f"{folder} is not empty; choose another name for the table", code="file.exists"
        )
    header = TableHeader(
        accelerations=tuple(map(float, table.accelerations)),
        samples=table.samples,
        task_names=table.task_names,
        task_ranges=table.task_ranges,
        round_names=table.round_names,
        round_targets=table.has_round_targets,
        lines=None if table.sampled_lines is None else table.sampled_lines.shape[2],
        order="roster" if table.missing_cases else "written",
        provenance=table.provenance,
    )
    writer = TableWriter(folder, header)
    case = np.arange(table.cases) if table.case is None else table.case
    if table.missing_cases:
        # The roster remembers who is missing; it knows cases by their names.
        case = case.astype(str)
        write_case_list(folder, [*case, *table.missing_cases])
    known = {"group": table.group, "label": table.label}
    for k, R in enumerate(table.accelerations):
        lines = None if table.sampled_lines is None else table.sampled_lines[k]
        writer.write(case, float(R), table.outputs[k], table.targets_at(k), lines=lines, **known)
    return folder


def _refuse_other_header(found: TableHeader, wanted: TableHeader, folder: Path) -> None:
    before, now = _flat(found.asked), _flat(wanted.asked)
    differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if differing:
        shown = "; ".join(
            f"{n} was {before.get(n)}, but now it is {now.get(n)}" for n in differing[:3]
        )
        more = f" (and {len(differing) - 3} more)" if len(differing) > 3 else ""
        raise TableMismatchError(
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


# For each row of a shard: the case and the round of the arrays that it fills; -1 for none.
Places = tuple[np.ndarray, np.ndarray]


def read_shards(folder: Path) -> TaskOutputs:
    """Read a table, some rows at a time into arrays of the final size."""
    header = read_header(folder)
    shards = _shard_paths(folder)
    if not shards:
        raise InputError(
            f"the table in {folder} has no rows yet; run it first", code="table.incomplete"
        )
    ids, places, complete = _place_rows(header, shards)
    rounds, n, tasks = len(header.accelerations), int(complete.sum()), len(header.task_names)
    if n == 0:
        raise InputError(
            f"no case of the table in {folder} has all {rounds} rounds yet", code="table.incomplete"
        )
    for shard in shards:
        # Before memory is set aside for as many samples as the header says.
        _require_lists(_read_schema(shard), header, shard)
    outputs = np.empty((rounds, n, header.samples, tasks), dtype=np.float32)
    targets = np.empty((rounds, n, tasks))
    for shard, place in zip(shards, places, strict=True):
        _fill(outputs, targets, header, shard, place)
    unknown = bool(np.isnan(targets).all())
    if not header.round_targets and not unknown:
        # NaN differs from itself; it is reported as what it is when the table is made.
        if ((targets != targets[:1]) & ~np.isnan(targets)).any():
            raise InputError(
                f"the table in {folder} has targets that differ between rounds",
                code="table.duplicate",
            )
        targets = targets[0]
    if tasks == 1:
        outputs, targets = outputs[..., 0], targets[..., 0]
    return TaskOutputs(
        outputs, None if unknown else targets, header.accelerations,
        case=to_numpy(_chosen(ids, complete), "case"),
        group=_extra("group", shards, places, n),
        label=_extra("label", shards, places, n),
        task_names=header.task_names,
        task_range=header.task_ranges,
        round_names=header.round_names,
        provenance=header.provenance,
        missing_cases=_as_texts(_chosen(ids, ~complete)).to_pylist(),
        sampled_lines=_lines(header, shards, places, n),
        images_path=folder / PICTURES if (folder / PICTURES).exists() else None,
    )  # fmt: skip


def _place_rows(header: TableHeader, shards: list[Path]) -> tuple[Any, list[Places], np.ndarray]:
    """Return all identities, where each row goes, and which cases have all of their rounds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cases, rounds = zip(*_read_places(shards, header), strict=True)
    names = _concatenate(cases)
    ids = pc.unique(names)
    roster = read_roster(shards[0].parent) if header.order == "roster" else None
    if roster is not None:
        # Cases that the run has not come to are missing, and said to be.
        ids = pc.unique(pa.concat_arrays([pa.array(roster, pa.large_string()), _as_texts(ids)]))
    elif header.order != "written":
        ids = ids.take(pc.sort_indices(ids))
    there = np.zeros((len(header.accelerations), len(ids)), dtype=bool)
    placed = []
    # All at once: the identities are put in order once, not for every shard.
    ends = np.cumsum([len(round) for round in rounds])[:-1]
    for case, round in zip(np.split(index_of(names, ids), ends), rounds, strict=True):
        # A case computed twice, by two workers or after a kill, counts once.
        first = ~there[round, case]
        _, where = np.unique(case.astype(np.int64) * len(there) + round, return_index=True)
        alone = np.zeros(len(case), dtype=bool)
        alone[where] = True
        there[round, case] = True
        placed.append(np.where(first & alone, case, -1))
    complete = np.asarray(there.all(axis=0))
    number = np.where(complete, np.cumsum(complete) - 1, -1).astype(np.int32)
    places = [np.where(case >= 0, number[case], -1) for case in placed]
    return ids, list(zip(places, rounds, strict=True)), complete


def _fill(
    outputs: np.ndarray, targets: np.ndarray, header: TableHeader, shard: Path, place: Places
) -> None:
    """Put the rows of a shard where they belong."""
    start = 0
    for rows in _read_parts(shard, [name for pair in header.columns for name in pair]):
        part = slice(start, start + len(rows))
        start += len(rows)
        case, round = place[0][part], place[1][part]
        keep = case >= 0
        for k, (target, output) in enumerate(header.columns):
            outputs[round[keep], case[keep], :, k] = _samples(rows, output, header, shard)[keep]
            targets[round[keep], case[keep], k] = _numeric_column(rows, target, shard)[keep]


def _extra(name: str, shards: list[Path], places: list[Places], n: int) -> np.ndarray | None:
    """Return the groups or classes of all cases, or None where some are not known."""
    import pyarrow as pa

    found, where = [], []
    for shard, (case, _) in zip(shards, places, strict=True):
        if name in _read_schema(shard).names:
            column = _read_columns(shard, [name])[name]
            found.append(identities(column, name, f"shard {shard.name}", floats=True))
            where.append(case)
    row = np.full(n, -1, dtype=np.int64)
    if found:
        case = np.concatenate(where)
        row[case[case >= 0]] = np.nonzero(case >= 0)[0]
    if not found or (row < 0).any():
        return None
    return to_numpy(_concatenate(found).take(pa.array(row)), name)


def _lines(
    header: TableHeader, shards: list[Path], places: list[Places], n: int
) -> np.ndarray | None:
    """Return what was measured of each case, (round, case, line), where a rule chose it."""
    if header.lines is None:
        return None
    found = np.zeros((len(header.accelerations), n, header.lines), dtype=bool)
    for shard, (case, round) in zip(shards, places, strict=True):
        column = identities(_read_columns(shard, ["lines"])["lines"], "lines", shard.name)
        keep = case >= 0
        texts = _as_texts(column).to_pylist()
        read = _lines_from_texts(texts, header.lines, f"shard {shard.name}")
        found[round[keep], case[keep]] = read[keep]
    return found


def _chosen(ids: Any, mask: np.ndarray) -> Any:
    import pyarrow as pa

    return ids.filter(pa.array(mask))


def _require_lists(schema: Any, header: TableHeader, shard: Path) -> None:
    """Refuse columns of outputs that are not lists of as many numbers as the table has samples."""
    import pyarrow as pa

    for _, name in header.columns:
        _require_column(schema.names, name, shard)
        kind = schema.field(name).type
        is_list = pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type)
        if not is_list or kind.list_size != header.samples:
            raise InputError(
                f"shard {shard.name} holds {kind} in {name}, but the table has {header.samples} "
                "samples",
                code="samples.mismatch",
            )


def _samples(rows: Any, name: str, header: TableHeader, shard: Path) -> np.ndarray:
    column = rows[name]
    if column.null_count:
        raise InputError(
            f"shard {shard.name} has rows without {name}; delete it and run again",
            code="file.damaged",
        )
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(-1, header.samples)
