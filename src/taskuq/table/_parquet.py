"""Folder of checksummed Parquet shards."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from taskuq._arrays import ranges_from_json, ranges_to_json, require_finite
from taskuq._config import flatten
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
from taskuq.interval import TaskRange
from taskuq.table._table import TaskOutputs

# Rows of a row group, which a reader holds in memory.
ROWS = 65536
# Key of the file metadata that holds checksums and the table's identity.
NOTE = b"taskuq"
TEXT = "large_string"
REMEDY = "delete it and rerun to recompute its cases"


def _write_parquet(
    table: Any, path: Path, note: Mapping[str, Any] | None = None, *, exclusive: bool = False
) -> Path:
    """Write an Arrow table whole, with checksums."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {}
    for name in table.column_names:
        digest = _ColumnHash()
        for array in table[name].chunks:
            digest.update(array)
        columns[name] = digest.hexdigest()
    sealed = with_checksum({**(note or {}), "columns": columns})
    numbers = (pa.types.is_floating, pa.types.is_fixed_size_list)
    names = [n for n in columns if not any(is_kind(table[n].type) for is_kind in numbers)]
    with atomic_write(path, exclusive=exclusive) as partial:
        # Numbers hardly repeat: a dictionary would not help them.
        pq.write_table(
            table.replace_schema_metadata({NOTE: json.dumps(sealed)}), partial, compression="zstd",
            row_group_size=ROWS, use_dictionary=names, write_page_checksum=True,
        )  # fmt: skip
    return path


def _read_batches(path: Path, columns: list[str]) -> Iterator[Any]:
    """Yield batches of rows; raise InputError if the file is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _read_schema(path)
    for name in columns:
        _require_column(schema.names, name, path)
    written = _read_note(path, schema).get("columns", {})
    hashes = {name: _ColumnHash() for name in columns if name in written}
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for rows in file.iter_batches(batch_size=ROWS, columns=columns, use_threads=False):
                for name, one in hashes.items():
                    one.update(rows.column(name))
                yield rows
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise _damaged(path, first_line(error)) from None
    for name, one in hashes.items():
        if one.hexdigest() != written[name]:
            raise _damaged(path, f"the checksum of column {name} differs")


def _read_columns(path: Path, columns: list[str]) -> Any:
    import pyarrow as pa

    batches = list(_read_batches(path, columns))
    if not batches:
        return _read_schema(path).empty_table().select(columns)
    return pa.Table.from_batches(batches)


def _read_schema(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    _require_regular(path)
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise _damaged(path, first_line(error)) from None


def _require_regular(path: Path) -> None:
    if not is_regular_file(path):
        raise InputError(f"{path} is a link, pipe or folder; remove it", code="file.format")


def _read_note(path: Path, schema: Any) -> dict[str, Any]:
    text = (schema.metadata or {}).get(NOTE)
    if text is None:
        return {}
    try:
        note = dict(json.loads(text))
        verify_checksum(note, path)
        absent = set(note["columns"]) - set(schema.names)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _damaged(path, "its checksums are") from None
    if absent:
        raise _damaged(path, f"no column {min(absent)}")
    return {name: value for name, value in note.items() if name != SEAL}


def _require_column(names: list[str], name: str, path: Path) -> None:
    if name not in names:
        raise InputError(f"shard {path.name} has no column {name}", code="table.column")


def _damaged(path: Path, reason: str) -> InputError:
    return InputError(
        f"shard {path.name} is truncated or damaged ({reason:.80}); {REMEDY}", code="file.damaged"
    )


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
            texts = array.cast(TEXT)
            lengths = np.asarray(pc.fill_null(pc.binary_length(texts), -1), dtype=np.int64)
            self.lengths.update(lengths.tobytes())
            _, offsets, content = texts.buffers()
            if content is not None:
                ends = np.frombuffer(offsets, dtype=np.int64)[texts.offset :]
                self.content.update(memoryview(content)[ends[0] : ends[len(texts)]])
        else:
            self.content.update(np.ascontiguousarray(array.to_numpy(zero_copy_only=False)).data)

    def hexdigest(self) -> str:
        parts = (*sorted(self.kinds), self.content.hexdigest(), self.lengths.hexdigest())
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()


# Characters of the longest id: a million longer ones would fill the memory.
LONGEST = 1000
# Readers that take a folder of Parquet as one table skip names with an underscore.
CASE_LIST = "_cases.parquet"


def identities(column: Any, name: str, source: str, *, floats: bool = False) -> Any:
    """Return a column of ids as an Arrow array of int64 or large_string."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    try:
        if column.null_count or not (texts or whole or (floats and pa.types.is_floating(kind))):
            raise pa.ArrowInvalid(kind)
        # A cast that would round raises.
        ids = column.cast(TEXT if texts else "int64")
    except pa.ArrowException:
        message = f"{source} has a {name} that is neither an integer nor a string"
        raise InputError(message, code="table.column") from None
    ids = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    try:
        ids.validate(full=True)
    except pa.ArrowException:  # bytes that are not UTF-8
        raise InputError(f"{source} has a damaged {name}; {REMEDY}", code="file.damaged") from None
    return ids


def _concatenate(arrays: Sequence[Any]) -> Any:
    """Join ids, as strings if some are strings and others integers."""
    import pyarrow as pa

    if len({array.type for array in arrays}) > 1:
        arrays = [array.cast(TEXT) for array in arrays]
    return pa.concat_arrays(arrays)


def index_of(array: Any, among: Any) -> np.ndarray:
    """Return the index of each id, -1 if absent."""
    import pyarrow.compute as pc

    if array.type != among.type:
        array, among = array.cast(TEXT), among.cast(TEXT)
    return np.asarray(pc.fill_null(pc.index_in(array, value_set=among), -1))


def to_numpy(array: Any, name: str) -> np.ndarray:
    """Return ids as NumPy integers or strings."""
    import pyarrow.compute as pc

    if array.type == "int64":
        return np.asarray(array)
    longest = pc.max(pc.utf8_length(array)).as_py() or 1
    if longest > LONGEST:
        raise InputError(f"{name} has an entry of {longest} characters, the limit is {LONGEST}")
    texts = np.empty(len(array), dtype=f"<U{longest}")
    for start in range(0, len(array), ROWS):
        texts[start : start + ROWS] = array.slice(start, ROWS).to_pylist()
    return texts


def write_case_list(folder: Path, case: list[str], group: Any = None, label: Any = None) -> Path:
    import pyarrow as pa

    columns = {"case": case, "group": group, "label": label}
    rows = pa.table({name: pa.array(v) for name, v in columns.items() if v is not None})
    return _write_parquet(rows, folder / CASE_LIST, exclusive=True)


def read_case_list(folder: Path) -> list[str] | None:
    """Return all planned cases in the order of the table, or None."""
    path = folder / CASE_LIST
    if not path.exists():
        return None
    try:
        cases = _read_columns(path, ["case"])["case"].to_pylist()
    except InputError as error:
        raise InputError(f"{path}: {error}, or overwrite the table", code=error.code) from None
    return [str(case) for case in cases]


SCHEMA = "taskuq.table/1"
HEADER = "table.json"
# Images of some cases, for the report.
PICTURES = "pictures.npz"


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

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """Attributes that determine the numbers of the table, as in the file."""
        record = dict(to_json_value(self.to_dict()))
        free = ("made_by", "words")
        record["provenance"] = {k: v for k, v in record["provenance"].items() if k not in free}
        return record

    @cached_property
    def identity(self) -> str:
        return fingerprint(self.inputs)[:16]

    @cached_property
    def columns(self) -> list[tuple[str, str]]:
        if len(self.task_names) == 1:
            return [("target", "outputs")]
        return [(f"target_{name}", f"outputs_{name}") for name in self.task_names]


class TableWriter:
    """Writer of a table's shards, resumable.

    Args:
        folder: Folder of the table; a table in it must have the same header.
        header: Attributes of the table.

    Raises:
        TableMismatchError: If the folder holds the table of another run.
    """

    def __init__(self, folder: str | os.PathLike[str], header: TableHeader) -> None:
        self.folder = Path(folder)
        self.header = header
        try:
            if (self.folder / HEADER).exists():
                raise ExistingFileError
            # Of several writers that start at once, one creates the header.
            write_json(self.folder / HEADER, header.to_dict(), exclusive=True)
        except ExistingFileError:
            before, now = flatten(read_header(self.folder).inputs), flatten(header.inputs)
            changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            if changed:
                shown = "; ".join(f"{n} was {before.get(n)}, now {now.get(n)}" for n in changed[:3])
                raise TableMismatchError(
                    f"{folder} holds a different run ({shown}); use another folder, or overwrite it"
                ) from None
        self._number = len(_shard_paths(self.folder))

    def finished(self) -> set[tuple[str, float]]:
        """Return the stored (case, acceleration) pairs."""
        rates = np.asarray(self.header.accelerations)
        return {
            pair
            for case, round in _read_places(_shard_paths(self.folder), self.header)
            for pair in zip(case.cast(TEXT).to_pylist(), rates[round].tolist(), strict=True)
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

        Args:
            case: Id of each row.
            acceleration: Acceleration of each row, or of all.
            outputs: (row, sample) or (row, sample, task).
            targets: (row,) or (row, task).
            group: Group of each row.
            label: Class of each row.
            image: Fingerprint of each row's image.
            lines: Sampled lines, booleans (row, line).
        """
        import pyarrow as pa

        x = np.asarray(outputs, dtype=np.float32)
        z = np.asarray(targets, dtype=float)
        x = x[..., None] if x.ndim == 2 else x
        z = z[..., None] if z.ndim == 1 else z
        rows, tasks = len(case), len(self.header.task_names)
        if x.shape != (rows, self.header.samples, tasks) or z.shape != (rows, tasks):
            message = f"outputs {x.shape} and targets {z.shape} do not fit the table"
            raise InputError(message, code="shape.mismatch")
        require_finite(x, "outputs")
        if (lines is None) != (self.header.lines is None):
            raise InputError("pass lines for every row of a table, or none", code="option.missing")
        columns: dict[str, Any] = {"case": pa.array(np.asarray(case))}
        for name, values in (("group", group), ("label", label), ("image", image)):
            if values is not None:
                columns[name] = pa.array(np.asarray(values))
        if lines is not None:
            mask = np.asarray(lines)
            if mask.dtype != bool or mask.shape != (rows, self.header.lines):
                message = f"lines must be booleans {(rows, self.header.lines)}, got {mask.shape}"
                raise InputError(message, code="shape.mismatch")
            # Indices of the sampled lines of each row, separated by spaces.
            columns["lines"] = pa.array([" ".join(map(str, np.flatnonzero(row))) for row in mask])
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
    import pyarrow as pa

    there = np.zeros((len(header.accelerations), len(names)), dtype=bool)
    places = _read_places(_shard_paths(folder), header)
    if places:
        cases, rounds = zip(*places, strict=True)
        index = index_of(_concatenate(cases), pa.array(names, TEXT))
        there[np.concatenate(rounds)[index >= 0], index[index >= 0]] = True
    return np.asarray(there.all(axis=0))


def image_marks(folder: Path) -> dict[str, str]:
    """Return the stored fingerprint of each case's image."""
    marks: dict[str, str] = {}
    for shard in _shard_paths(folder):
        if "image" in _read_schema(shard).names:
            rows = _read_columns(shard, ["case", "image"])
            names = identities(rows["case"], "case", shard.name).cast(TEXT).to_pylist()
            pairs = zip(names, rows["image"].to_pylist(), strict=True)
            marks |= {name: str(mark) for name, mark in pairs if mark}
    return marks


def _read_places(shards: Sequence[Path], header: TableHeader) -> list[tuple[Any, np.ndarray]]:
    """Return case and round of each row, by shard."""
    places = []
    for shard in shards:
        note = _read_note(shard, _read_schema(shard))
        if note.get("table", header.identity) != header.identity:
            message = f"shard {shard.name} belongs to another table; remove it, or restore {HEADER}"
            raise InputError(message, code="resume.mismatch")
        rows = _read_columns(shard, ["case", "acceleration"])
        case = identities(rows["case"], "case", f"shard {shard.name}")
        rate = _numeric_column(rows, "acceleration", shard)
        round: np.ndarray = np.full(len(rate), -1, dtype=np.int16)
        for k, R in enumerate(header.accelerations):
            round[np.isnan(rate) if np.isnan(R) else rate == R] = k
        if (round < 0).any():
            message = f"shard {shard.name} has a round that is not in {HEADER}"
            raise InputError(message, code="rounds.invalid")
        places.append((case, round))
    return places


def _shard_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def _numeric_column(rows: Any, name: str, shard: Path) -> np.ndarray:
    values = np.asarray(rows[name].to_numpy(zero_copy_only=False))
    if values.dtype.kind not in "fiu":
        raise InputError(f"shard {shard.name} has no numbers in {name}", code="table.column")
    return values.astype(float)


def read_header(folder: Path) -> TableHeader:
    path = folder / HEADER
    if not path.exists():
        raise InputError(f"{folder} has no {HEADER} and is not a table", code="file.missing")
    _require_regular(path)
    record = read_json(path, SCHEMA, remedy="restore or overwrite it", is_sealed=False)
    with complete_record(path, "header"):
        names, round_names = tuple(map(str, record["task_names"])), record.get("round_names")
        return TableHeader(
            accelerations=tuple(np.nan if R is None else float(R) for R in record["accelerations"]),
            samples=int(record["samples"]),
            task_names=names,
            task_ranges=ranges_from_json(record, names),
            round_names=None if round_names is None else tuple(map(str, round_names)),
            round_targets=bool(record["round_targets"]),
            lines=None if record.get("lines") is None else int(record["lines"]),
            order=str(record["order"]),
            provenance=dict(record["provenance"]),
        )


def write_shards(table: TaskOutputs, folder: Path) -> Path:
    """Write a whole table into a new or empty folder, one shard per round."""
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; use another name", code="file.exists")
    lines = table.sampled_lines
    header = TableHeader(
        accelerations=tuple(map(float, table.accelerations)),
        samples=table.samples,
        task_names=table.task_names,
        task_ranges=table.task_ranges,
        round_names=table.round_names,
        round_targets=table.has_round_targets,
        lines=None if lines is None else lines.shape[2],
        order="roster" if table.missing_cases else "written",
        provenance=table.provenance,
    )
    writer = TableWriter(folder, header)
    case = np.arange(table.cases) if table.case is None else table.case
    if table.missing_cases:
        case = case.astype(str)
        write_case_list(folder, [*case, *table.missing_cases])
    for k, R in enumerate(table.accelerations):
        writer.write(
            case, float(R), table.outputs[k], table.targets_at(k), group=table.group,
            label=table.label, lines=None if lines is None else lines[k],
        )  # fmt: skip
    return folder


# For each row of a shard: the case and the round of the arrays that it fills; -1 for none.
Places = tuple[np.ndarray, np.ndarray]


def read_shards(folder: Path) -> TaskOutputs:
    """Read a table, some rows at a time into arrays of the final size."""
    import pyarrow as pa

    header = read_header(folder)
    shards = _shard_paths(folder)
    if not shards:
        raise InputError(f"the table in {folder} has no rows yet", code="table.incomplete")
    ids, places, complete = _place_rows(header, shards)
    rounds, n, tasks = len(header.accelerations), int(complete.sum()), len(header.task_names)
    if n == 0:
        raise InputError(f"{folder} has no case with all rounds yet", code="table.incomplete")
    # Before memory is allocated for the samples that the header claims.
    for shard, (_, name) in product(shards, header.columns):
        schema = _read_schema(shard)
        _require_column(schema.names, name, shard)
        kind = schema.field(name).type
        is_list = pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type)
        if not is_list or kind.list_size != header.samples:
            message = f"shard {shard.name} has {kind} in {name} for {header.samples} samples"
            raise InputError(message, code="samples.mismatch")
    outputs = np.empty((rounds, n, header.samples, tasks), dtype=np.float32)
    targets = np.empty((rounds, n, tasks))
    for shard, place in zip(shards, places, strict=True):
        start = 0
        for rows in _read_batches(shard, [name for pair in header.columns for name in pair]):
            case, round = (part[start : start + len(rows)] for part in place)
            start, keep = start + len(rows), case >= 0
            for k, (target, output) in enumerate(header.columns):
                if rows[output].null_count:
                    raise _damaged(shard, f"rows without {output}")
                x = np.asarray(rows[output].flatten().to_numpy(zero_copy_only=False))
                outputs[round[keep], case[keep], :, k] = x.reshape(-1, header.samples)[keep]
                targets[round[keep], case[keep], k] = _numeric_column(rows, target, shard)[keep]
    unknown = bool(np.isnan(targets).all())
    if not header.round_targets and not unknown:
        # NaN differs from itself; TaskOutputs refuses it.
        if ((targets != targets[:1]) & ~np.isnan(targets)).any():
            raise InputError(f"{folder} has targets that differ by round", code="table.duplicate")
        targets = targets[0]
    if tasks == 1:
        outputs, targets = outputs[..., 0], targets[..., 0]
    return TaskOutputs(
        outputs, None if unknown else targets, header.accelerations,
        case=to_numpy(ids.filter(complete), "case"),
        group=_read_ids("group", shards, places, n),
        label=_read_ids("label", shards, places, n),
        task_names=header.task_names,
        task_range=header.task_ranges,
        round_names=header.round_names,
        provenance=header.provenance,
        missing_cases=ids.filter(~complete).cast(TEXT).to_pylist(),
        sampled_lines=_read_lines(header, shards, places, n),
        images_path=folder / PICTURES if (folder / PICTURES).exists() else None,
    )  # fmt: skip


def _place_rows(header: TableHeader, shards: list[Path]) -> tuple[Any, list[Places], np.ndarray]:
    """Return all ids, the place of each row, and True for each complete case."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cases, rounds = zip(*_read_places(shards, header), strict=True)
    names = _concatenate(cases)
    ids = pc.unique(names)
    planned = read_case_list(shards[0].parent) if header.order == "roster" else None
    if planned is not None:
        # Planned cases without rows count as missing.
        ids = pc.unique(pa.concat_arrays([pa.array(planned, TEXT), ids.cast(TEXT)]))
    elif header.order != "written":
        ids = ids.take(pc.sort_indices(ids))
    there = np.zeros((len(header.accelerations), len(ids)), dtype=bool)
    placed = []
    # All shards together: the ids are indexed once.
    ends = np.cumsum([len(round) for round in rounds])[:-1]
    for case, round in zip(np.split(index_of(names, ids), ends), rounds, strict=True):
        # A case computed twice, by two workers or after a kill, counts once.
        is_new = ~there[round, case]
        _, first = np.unique(case.astype(np.int64) * len(there) + round, return_index=True)
        is_first = np.zeros(len(case), dtype=bool)
        is_first[first] = True
        there[round, case] = True
        placed.append(np.where(is_new & is_first, case, -1))
    complete = np.asarray(there.all(axis=0))
    number = np.where(complete, np.cumsum(complete) - 1, -1).astype(np.int32)
    places = [np.where(case >= 0, number[case], -1) for case in placed]
    return ids, list(zip(places, rounds, strict=True)), complete


def _read_ids(name: str, shards: list[Path], places: list[Places], n: int) -> np.ndarray | None:
    """Return group or label of all cases, or None if some are unknown."""
    ids, cases = [], []
    for shard, (case, _) in zip(shards, places, strict=True):
        if name in _read_schema(shard).names:
            column = _read_columns(shard, [name])[name]
            ids.append(identities(column, name, f"shard {shard.name}", floats=True))
            cases.append(case)
    row = np.full(n, -1, dtype=np.int64)
    if ids:
        case = np.concatenate(cases)
        row[case[case >= 0]] = np.nonzero(case >= 0)[0]
    if not ids or (row < 0).any():
        return None
    return to_numpy(_concatenate(ids).take(row), name)


def _read_lines(
    header: TableHeader, shards: list[Path], places: list[Places], n: int
) -> np.ndarray | None:
    if header.lines is None:
        return None
    lines = np.zeros((len(header.accelerations), n, header.lines), dtype=bool)
    for shard, (case, round) in zip(shards, places, strict=True):
        column = identities(_read_columns(shard, ["lines"])["lines"], "lines", shard.name)
        for at, k, text in zip(case, round, column.cast(TEXT).to_pylist(), strict=True):
            parts = text.split()
            if not all(p.isdecimal() and len(p) < 10 and int(p) < header.lines for p in parts):
                raise _damaged(shard, f"lines not below {header.lines}: {text[:40]!r}")
            if at >= 0:
                lines[k, at][[int(part) for part in parts]] = True
    return lines
