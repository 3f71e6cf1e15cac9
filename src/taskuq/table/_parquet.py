"""Tables as folders of Parquet files (shards) with checksums."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from taskuq._arrays import ranges_from_json, ranges_to_json, require_finite
from taskuq._config import flatten
from taskuq._io import (
    ExistingFileError,
    atomic_write,
    complete_record,
    fingerprint,
    is_regular_file,
    parse_json,
    read_json,
    to_json_value,
    verify_checksum,
    with_checksum,
    write_json,
)
from taskuq.errors import InputError, TableMismatchError, first_line
from taskuq.interval import BoolArray, TaskRange
from taskuq.table._table import TaskOutputs

# Rows of a row group, which a reader holds in memory.
ROWS = 65536
# Key of the file metadata that holds checksums and the table's identity.
NOTE = b"taskuq"
REMEDY = "delete it and rerun to recompute its cases"


def _write_parquet(
    table: Any, path: Path, note: Mapping[str, Any] | None = None, *, exclusive: bool = False
) -> Path:
    hashes = _ColumnHashes(table.column_names)
    for rows in table.to_batches():
        hashes.update(rows)
    sealed = with_checksum({**(note or {}), "columns": hashes.hexdigests()})
    names = [
        field.name
        for field in table.schema
        if not (pa.types.is_floating(field.type) or pa.types.is_fixed_size_list(field.type))
    ]
    with atomic_write(path, exclusive=exclusive) as partial:
        # Numbers hardly repeat: a dictionary would not help them.
        pq.write_table(
            table.replace_schema_metadata({NOTE: json.dumps(sealed)}), partial, compression="zstd",
            row_group_size=ROWS, use_dictionary=names, write_page_checksum=True,
        )  # fmt: skip
    return path


def _read_batches(
    path: Path, columns: list[str], identity: str = "", optional: Sequence[str] = ()
) -> Iterator[Any]:
    """Yield batches of rows; raise InputError if the file is damaged or of another table."""
    schema = _read_schema(path)
    note = _read_note(path, schema)
    if identity and note.get("table", identity) != identity:
        text = f"shard {path.name} is from a different table than {HEADER}; remove it and "
        raise InputError(f"{text}rerun, or restore its {HEADER}", code="resume.mismatch")
    for name in columns:
        if name not in schema.names:
            raise InputError(f"shard {path.name} has no column {name}", code="table.column")
    columns = [*columns, *filter(schema.names.__contains__, optional)]
    written = note.get("columns", {})
    hashes = _ColumnHashes(written.keys() & columns)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for rows in file.iter_batches(batch_size=ROWS, columns=columns, use_threads=False):
                hashes.update(rows)
                yield rows
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise _damaged(path, first_line(error)) from None
    for name, digest in hashes.hexdigests().items():
        if digest != written[name]:
            raise _damaged(path, f"the checksum of column {name} differs")


def _read_columns(
    path: Path, columns: list[str], identity: str = "", optional: Sequence[str] = ()
) -> Any:
    batches = list(_read_batches(path, columns, identity, optional))
    if not batches:
        return _read_schema(path).empty_table().select(columns)
    return pa.Table.from_batches(batches)


def _read_schema(path: Path) -> Any:
    if not is_regular_file(path):
        raise _irregular(path)
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise _damaged(path, first_line(error)) from None


def _irregular(path: Path) -> InputError:
    return InputError(f"{path} is a link, a pipe or a folder; remove it", code="file.format")


def _read_note(path: Path, schema: Any) -> dict[str, Any]:
    """Return taskuq's entry in the metadata of a file; empty for files of other programs."""
    text = (schema.metadata or {}).get(NOTE)
    if text is None:
        return {}
    try:
        note = _parse_note(text, path)
        absent = set(note["columns"]) - set(schema.names)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _damaged(path, "its checksums are") from None
    if absent:
        raise _damaged(path, f"no column {min(absent)}")
    return note


@lru_cache
def _parse_note(text: bytes, path: Path) -> dict[str, Any]:
    note = dict(parse_json(text))
    verify_checksum(note, path)
    return note


def _damaged(path: Path, reason: str) -> InputError:
    text = f"shard {path.name} is truncated or damaged ({reason:.80}); {REMEDY}"
    return InputError(text, code="file.damaged")


class _ColumnHashes:
    """SHA-256 hash of each column, updated batch by batch."""

    def __init__(self, names: Iterable[str]) -> None:
        self.parts: dict[str, tuple[set[str], Any, Any]] = {}
        for name in names:
            self.parts[name] = (set(), hashlib.sha256(), hashlib.sha256())

    def update(self, rows: Any) -> None:
        for name, (kinds, content, lengths) in self.parts.items():
            array = rows.column(name)
            if pa.types.is_fixed_size_list(array.type):
                kinds.add(f"lists of {array.type.list_size}")
                lengths.update(np.asarray(array.is_valid()).tobytes())
                array = array.flatten()
            kinds.add(str(array.type))
            if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
                texts = array.cast(pa.large_string())
                each = np.asarray(pc.fill_null(pc.binary_length(texts), -1), dtype=np.int64)
                lengths.update(each.tobytes())
                _, offsets, data = texts.buffers()
                if data is not None:
                    whole = np.frombuffer(offsets, dtype=np.int64)
                    start, end = whole[[texts.offset, texts.offset + len(texts)]]
                    content.update(memoryview(data)[start:end])
            else:
                content.update(np.ascontiguousarray(array.to_numpy(zero_copy_only=False)).data)

    def hexdigests(self) -> dict[str, str]:
        found = {}
        for name, (kinds, content, lengths) in self.parts.items():
            parts = (*sorted(kinds), content.hexdigest(), lengths.hexdigest())
            found[name] = hashlib.sha256(" ".join(parts).encode()).hexdigest()
        return found


# Characters of the longest id: a million longer ones would fill the memory.
LONGEST = 1000
# A Parquet file too, but other tools read *.parquet of a folder as one table: only shards match.
CASE_LIST = "cases.pq"


def identities(column: Any, name: str, source: str, *, floats: bool = False) -> Any:
    """Return a column of ids as an Arrow array of type int64 or large_string."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    try:
        if column.null_count or not (texts or whole or (floats and pa.types.is_floating(kind))):
            raise pa.ArrowInvalid(kind)
        # A cast that would round raises.
        ids = column.cast(pa.large_string() if texts else pa.int64())
    except pa.ArrowException:
        text = f"{source} has a {name} that is neither an integer nor a string"
        raise InputError(text, code="table.column") from None
    ids = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    try:
        ids.validate(full=True)
    except pa.ArrowException:  # bytes that are not UTF-8
        text = f"{source} is damaged in column {name}; {REMEDY}"
        raise InputError(text, code="file.damaged") from None
    return ids


def _as_texts(array: Any) -> Any:
    return array.cast(pa.large_string())


def _concatenate(arrays: Sequence[Any]) -> Any:
    """Join arrays of ids; if some ids are strings, convert all to strings."""
    if len(arrays) > 1 and len({array.type for array in arrays}) > 1:
        arrays = [_as_texts(array) for array in arrays]
    return pa.concat_arrays(arrays)


def index_of(array: Any, among: Any) -> np.ndarray:
    if array.type != among.type:
        array, among = _as_texts(array), _as_texts(among)
    return np.asarray(pc.fill_null(pc.index_in(array, value_set=among), -1))


def to_numpy(array: Any, name: str) -> np.ndarray:
    if pa.types.is_integer(array.type):
        return np.asarray(array)
    longest = pc.max(pc.utf8_length(array)).as_py() or 1
    if longest > LONGEST:
        text = f"{name} has an entry of {longest} characters, the limit is {LONGEST}"
        raise InputError(text, code="value.invalid")
    texts = np.empty(len(array), dtype=f"<U{longest}")
    for start in range(0, len(array), ROWS):
        texts[start : start + ROWS] = array.slice(start, ROWS).to_pylist()
    return texts


def write_case_list(folder: Path, case: list[str], **ids: Any) -> Path:
    columns = {"case": case, **ids}
    rows = pa.table({name: pa.array(v) for name, v in columns.items() if v is not None})
    return _write_parquet(rows, folder / CASE_LIST, exclusive=True)


def read_case_list(folder: Path) -> list[str] | None:
    """Return the names of all planned cases in table order; None if none are stored."""
    path = folder / CASE_LIST
    if not path.exists():
        return None
    try:
        cases = _read_columns(path, ["case"])["case"].to_pylist()
    except InputError as error:
        raise InputError(f"{path}: {error}, or overwrite the table", code=error.code) from None
    return [str(case) for case in cases]


def _lines_as_texts(lines: Any, rows: int, count: int | None) -> list[str]:
    """Return the indices of the sampled lines of each row as text, separated by spaces."""
    mask = np.asarray(lines)
    if mask.dtype != bool or mask.shape != (rows, count):
        text = f"lines must be booleans {(rows, count)}, got {mask.dtype} of shape {mask.shape}"
        raise InputError(text, code="shape.mismatch")
    return [" ".join(map(str, np.flatnonzero(row))) for row in mask]


def _lines_from_texts(texts: list[str], count: int, source: str) -> BoolArray:
    """Parse the texts of :func:`_lines_as_texts` into a mask (row, line)."""
    mask = np.zeros((len(texts), count), dtype=bool)
    for row, text in zip(mask, texts, strict=True):
        parts = str(text).split()
        if not all(part.isdecimal() and len(part) < 10 and int(part) < count for part in parts):
            message = f"{source} has line indices not below {count}: {str(text)[:40]!r}"
            raise InputError(message, code="file.damaged")
        row[[int(part) for part in parts]] = True
    return mask


SCHEMA = "taskuq.outputs/1"
# Columns that place a row in the arrays, and ids that a table may have.
PLACE, IDS = ["case", "acceleration"], ["group", "site", "label"]
HEADER = "table.json"
# Images of some cases, for the report.
PICTURES = "pictures.npz"


@dataclass(frozen=True)
class TableHeader:
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
        """Attributes of the run that determine the values in the table."""
        # As in the file, so that a tuple equals the list it was written as.
        record = dict(to_json_value(self.to_dict()))
        free = ("made_by", "words")
        record["provenance"] = {k: v for k, v in record["provenance"].items() if k not in free}
        return record

    @cached_property
    def identity(self) -> str:
        """Fingerprint of ``inputs``, stored in every shard."""
        return fingerprint(self.inputs)[:16]

    @cached_property
    def columns(self) -> list[tuple[str, str]]:
        """Names of the target column and the output column of each task."""
        if len(self.task_names) == 1:
            return [("target", "outputs")]
        return [(f"target_{name}", f"outputs_{name}") for name in self.task_names]


class TableWriter:
    """Writer of the shards of a table, which can resume an interrupted run.

    Args:
        folder: Folder of the table; an existing table must have the same header.
        header: Attributes of the table.

    Raises:
        TableMismatchError: If the folder holds the table of a different run.
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
            _refuse_other_header(read_header(self.folder), header, self.folder)
        self._number = len(_shard_paths(self.folder))

    def finished(self) -> set[tuple[str, float]]:
        rates = np.asarray(self.header.accelerations)
        return {
            pair
            for case, round, _ in _read_places(_shard_paths(self.folder), self.header)
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
        site: Any = None,
        label: Any = None,
        image: Any = None,
        lines: Any = None,
    ) -> Path:
        """Write one shard of rows and return its path.

        Args:
            case: Id of each row.
            acceleration: Acceleration of each row, or one for all rows.
            outputs: Task outputs, (row, sample) or (row, sample, task).
            targets: Targets, (row,) or (row, task).
            group: Group of each row.
            site: Site of each row.
            label: Class of each row.
            image: Fingerprint of each row's image.
            lines: Mask of the sampled lines, (row, line).
        """
        x = np.asarray(outputs)
        x = x if x.dtype == np.float64 else x.astype(np.float32)
        z = np.asarray(targets, dtype=float)
        x = x[..., None] if x.ndim == 2 else x
        z = z[..., None] if z.ndim == 1 else z
        rows, tasks = len(case), len(self.header.task_names)
        if x.shape != (rows, self.header.samples, tasks) or z.shape != (rows, tasks):
            text = f"outputs {x.shape} and targets {z.shape} of {rows} cases do not fit a table of "
            text += f"{self.header.samples} samples and {tasks} tasks"
            raise InputError(text, code="shape.mismatch")
        require_finite(x, "outputs")
        if (lines is None) != (self.header.lines is None):
            raise InputError("pass lines for every row of a table, or none", code="option.missing")
        columns: dict[str, Any] = {"case": pa.array(np.asarray(case))}
        ids = {"group": group, "site": site, "label": label, "image": image}
        for name, values in ids.items():
            if values is not None:
                columns[name] = pa.array(np.asarray(values))
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
    """Return a mask of the cases whose rounds are all stored."""
    there = np.zeros((len(header.accelerations), len(names)), dtype=bool)
    places = _read_places(_shard_paths(folder), header)
    if places:
        cases, rounds, _ = zip(*places, strict=True)
        index = index_of(_concatenate(cases), pa.array(names, pa.large_string()))
        there[np.concatenate(rounds)[index >= 0], index[index >= 0]] = True
    return np.asarray(there.all(axis=0))


def image_marks(folder: Path) -> dict[str, str]:
    marks: dict[str, str] = {}
    for shard in _shard_paths(folder):
        if "image" in _read_schema(shard).names:
            rows = _read_columns(shard, ["case", "image"])
            names = _as_texts(identities(rows["case"], "case", shard.name)).to_pylist()
            pairs = zip(names, rows["image"].to_pylist(), strict=True)
            marks |= {name: str(mark) for name, mark in pairs if mark}
    return marks


def _read_places(
    shards: Sequence[Path], header: TableHeader, ids: Sequence[str] = ()
) -> list[tuple[Any, np.ndarray, dict[str, Any]]]:
    """Return, for each shard, the case and round of every row, and the columns of other ids."""
    places = []
    for shard in shards:
        rows, source = _read_columns(shard, PLACE, header.identity, ids), f"shard {shard.name}"
        case, found = identities(rows["case"], "case", source), {}
        for name in set(rows.column_names).difference(PLACE):
            found[name] = identities(rows[name], name, source, floats=True)
        places.append((case, _rounds_of(rows, header, shard), found))
    return places


def _shard_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def _rounds_of(rows: Any, header: TableHeader, shard: Path) -> np.ndarray:
    rate, rates = _numeric_column(rows, "acceleration", shard), np.asarray(header.accelerations)
    round: np.ndarray = np.full(len(rate), -1, dtype=np.int16)
    for k, R in enumerate(rates):
        round[np.isnan(rate) if np.isnan(R) else rate == R] = k
    if (round < 0).any():
        text = f"shard {shard.name} has an acceleration that is not in {HEADER}"
        raise InputError(text, code="rounds.invalid")
    return round


def _numeric_column(rows: Any, name: str, shard: Path) -> np.ndarray:
    values = np.asarray(rows[name].to_numpy(zero_copy_only=False))
    if values.dtype.kind not in "fiu":
        text = f"shard {shard.name} has {rows[name].type} in {name} instead of numbers"
        raise InputError(text, code="table.column")
    return values.astype(float)


def read_header(folder: Path) -> TableHeader:
    path = folder / HEADER
    if not path.exists():
        raise InputError(f"{folder} has no {HEADER} and is not a table", code="file.missing")
    if not is_regular_file(path):
        raise _irregular(path)
    remedy = "restore it, or overwrite the table"
    record = read_json(path, SCHEMA, remedy=remedy, is_sealed=False)
    with complete_record(path, "header"):
        names, round_names = tuple(map(str, record["task_names"])), record.get("round_names")
        return TableHeader(
            accelerations=tuple(np.array(record["accelerations"], dtype=float).tolist()),
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
    """Write a table as one shard per round into a new or empty folder."""
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
            site=table.site, label=table.label, lines=None if lines is None else lines[k],
        )  # fmt: skip
    return folder


def _refuse_other_header(stored: TableHeader, new: TableHeader, folder: Path) -> None:
    before, now = flatten(stored.inputs), flatten(new.inputs)
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if changed:
        shown = "; ".join(f"{n} was {before.get(n)}, now {now.get(n)}" for n in changed[:3])
        more = f" (and {len(changed) - 3} more)" if len(changed) > 3 else ""
        text = f"{folder} holds a table of a different run ({shown}{more}); use another folder, or "
        raise TableMismatchError(f"{text}overwrite it", code="resume.mismatch")


# For each row of a shard: the case and the round of the arrays that it fills; -1 for none.
Places = tuple[np.ndarray, np.ndarray]


def read_shards(folder: Path) -> TaskOutputs:
    """Read a table from a folder of shards; this needs little memory beyond its arrays."""
    header = read_header(folder)
    shards = _shard_paths(folder)
    if not shards:
        raise InputError(f"the table in {folder} has no rows yet", code="table.incomplete")
    ids, places, complete, others = _place_rows(header, shards)
    rounds, n, tasks = len(header.accelerations), int(complete.sum()), len(header.task_names)
    if n == 0:
        text = f"no case of the table in {folder} has all {rounds} rounds yet"
        raise InputError(text, code="table.incomplete")
    schemas = [_read_schema(shard) for shard in shards]
    for shard, schema in zip(shards, schemas, strict=True):
        # Before memory is allocated for the samples that the header claims.
        _require_lists(schema, header, shard)
    kinds = {schema.field(name).type.value_type for schema in schemas for _, name in header.columns}
    precision = np.float64 if pa.float64() in kinds else np.float32
    outputs = np.empty((rounds, n, header.samples, tasks), dtype=precision)
    targets = np.empty((rounds, n, tasks))
    for shard, place in zip(shards, places, strict=True):
        _fill(outputs, targets, header, shard, place)
    unknown = bool(np.isnan(targets).all())
    if not header.round_targets and not unknown:
        # NaN differs from itself; TaskOutputs refuses it.
        if ((targets != targets[:1]) & ~np.isnan(targets)).any():
            text = f"the table in {folder} has targets that differ between rounds"
            raise InputError(text, code="table.duplicate")
        targets = targets[0]
    if tasks == 1:
        outputs, targets = outputs[..., 0], targets[..., 0]
    known = _join_ids(others, places, n)
    return TaskOutputs(
        outputs, None if unknown else targets, header.accelerations,
        case=to_numpy(ids.filter(complete), "case"),
        **known,
        task_names=header.task_names,
        task_range=header.task_ranges,
        round_names=header.round_names,
        provenance=header.provenance,
        missing_cases=_as_texts(ids.filter(~complete)).to_pylist(),
        sampled_lines=_read_lines(header, shards, places, n),
        images_path=folder / PICTURES if (folder / PICTURES).exists() else None,
    )  # fmt: skip


def _place_rows(
    header: TableHeader, shards: list[Path]
) -> tuple[Any, list[Places], np.ndarray, Sequence[dict[str, Any]]]:
    """Return the ids of all cases, and the case and round indices of the rows of each shard.

    Also return a mask of complete cases, and the groups, sites and labels of the rows.
    """
    cases, rounds, others = zip(*_read_places(shards, header, IDS), strict=True)
    names = _concatenate(cases)
    ids = pc.unique(names)
    planned = read_case_list(shards[0].parent) if header.order == "roster" else None
    if planned is not None:
        # Planned cases without rows count as missing.
        ids = pc.unique(pa.concat_arrays([pa.array(planned, pa.large_string()), _as_texts(ids)]))
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
    return ids, list(zip(places, rounds, strict=True)), complete, others


def _fill(
    outputs: np.ndarray, targets: np.ndarray, header: TableHeader, shard: Path, place: Places
) -> None:
    start = 0
    for rows in _read_batches(shard, [name for pair in header.columns for name in pair]):
        here = slice(start, start + len(rows))
        start += len(rows)
        case, round = place[0][here], place[1][here]
        keep = case >= 0
        for k, (target, output) in enumerate(header.columns):
            if rows[output].null_count:
                raise _damaged(shard, f"rows without {output}")
            x = np.asarray(rows[output].flatten().to_numpy(zero_copy_only=False))
            outputs[round[keep], case[keep], :, k] = x.reshape(-1, header.samples)[keep]
            targets[round[keep], case[keep], k] = _numeric_column(rows, target, shard)[keep]


def _join_ids(shards: Sequence[dict[str, Any]], places: list[Places], n: int) -> dict[str, Any]:
    """Return the columns of groups, sites and labels that have a value for every case."""
    read: dict[str, list[tuple[Any, np.ndarray]]] = {name: [] for name in IDS}
    for others, (case, _) in zip(shards, places, strict=True):
        for name, ids in others.items():
            read[name].append((ids, case))
    found = {}
    for name, parts in read.items():
        if parts:
            ids, cases = zip(*parts, strict=True)
            case, row = np.concatenate(cases), np.full(n, -1, dtype=np.int64)
            row[case[case >= 0]] = np.nonzero(case >= 0)[0]
            if (row >= 0).all():
                found[name] = to_numpy(_concatenate(ids).take(pa.array(row)), name)
    return found


def _read_lines(
    header: TableHeader, shards: list[Path], places: list[Places], n: int
) -> np.ndarray | None:
    """Return the mask of lines that adaptive sampling measured, (round, case, line)."""
    if header.lines is None:
        return None
    lines = np.zeros((len(header.accelerations), n, header.lines), dtype=bool)
    for shard, (case, round) in zip(shards, places, strict=True):
        column = identities(_read_columns(shard, ["lines"])["lines"], "lines", shard.name)
        texts, keep = _as_texts(column).to_pylist(), case >= 0
        rows = _lines_from_texts(texts, header.lines, f"shard {shard.name}")
        lines[round[keep], case[keep]] = rows[keep]
    return lines


def _require_lists(schema: Any, header: TableHeader, shard: Path) -> None:
    """Raise InputError unless each output is a list with one number per sample."""
    for _, name in header.columns:
        if name not in schema.names:
            raise InputError(f"shard {shard.name} has no column {name}", code="table.column")
        kind = schema.field(name).type
        is_list = pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type)
        if not is_list or kind.list_size != header.samples:
            text = f"shard {shard.name} has {kind} in {name} instead of {header.samples} samples"
            raise InputError(text, code="samples.mismatch")
