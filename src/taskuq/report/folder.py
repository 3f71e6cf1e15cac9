"""A run's folder: which results lie in it, and what could not be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from taskuq.errors import InputError
from taskuq.files import parsed_json
from taskuq.fingerprints import SEAL, require_seal
from taskuq.outputs import TaskOutputs
from taskuq.outputs.shards import HEADER
from taskuq.report.explorer import Explorer, load_explorer
from taskuq.report.figure import FIGURES
from taskuq.report.records import BOUND, DATA_CHECK, EXPERIMENT, POLICY, RUN, STATUS

# What the page has a place for beside figures; other records are listed by name.
SHOWN = (EXPERIMENT, STATUS, DATA_CHECK, POLICY, BOUND)
# Written by the report itself, or pictures of what is read elsewhere.
NOT_RESULTS = ("figures", "exports", "report.html")
LARGEST_RECORD = 200_000_000
T = TypeVar("T")


@dataclass(frozen=True)
class StoredRecord:
    """One JSON record.

    Arguments:
        path: Where it lies, from the run's folder.
        schema: What it says it is.
        record: What it holds.
    """

    path: str
    schema: str
    record: dict[str, Any]


@dataclass(frozen=True)
class RunFolder:
    """Everything a run's folder holds that a page can show.

    Arguments:
        path: The folder.
        run: What was run, as ``run.json`` says.
        records: Records the page has a place for, in the order of their paths.
        others: Paths and schemas of records it has none for.
        unreadable: Paths, and why they cannot be read.
        unchecked: Paths of records without a checksum, to which damage would not be seen.
        table: The table of task outputs.
        table_path: Where it lies.
        explorer: What the explorer shows.
    """

    path: Path
    run: dict[str, Any] = field(default_factory=dict)
    records: tuple[StoredRecord, ...] = ()
    others: tuple[tuple[str, str], ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()
    unchecked: tuple[str, ...] = ()
    table: TaskOutputs | None = None
    table_path: str | None = None
    explorer: Explorer | None = None

    def of(self, schema: str) -> list[StoredRecord]:
        """Return the records of a schema."""
        return [found for found in self.records if found.schema == schema]


def read_folder(path: Path) -> RunFolder:
    """Read a run's folder; what cannot be read is remembered, not raised."""
    if not path.is_dir():
        raise InputError(f"there is no folder {path}; give the folder of a run")
    unreadable: list[tuple[str, str]] = []
    run: dict[str, Any] = {}
    records, others, unchecked = [], [], []
    shown = {*SHOWN, *(FIGURES[name].schema for name in FIGURES)}
    for file in _json_files(path):
        record, name = _tried(_read, file, path, unreadable), file.relative_to(path).as_posix()
        if record is None:
            continue
        schema = str(record.get("schema") or "no schema")
        if record.pop(SEAL, None) is None:
            unchecked.append(name)
        if schema == RUN:
            run = run or record
        elif schema in shown:
            records.append(StoredRecord(name, schema, record))
        else:
            others.append((name, schema))
    table, table_path = _table(path, unreadable)
    explorer = path / "explorer.npz"
    return RunFolder(
        path=path,
        run=run,
        records=tuple(records),
        others=tuple(others),
        table=table,
        table_path=table_path,
        explorer=_tried(load_explorer, explorer, path, unreadable) if explorer.exists() else None,
        unreadable=tuple(unreadable),
        unchecked=tuple(unchecked),
    )


def _tried(
    read: Callable[[Path], T], file: Path, path: Path, unreadable: list[tuple[str, str]]
) -> T | None:
    """Read a file, or note what went wrong, with paths as seen from the run's folder."""
    try:
        return read(file)
    except InputError as error:
        name, reason = file.relative_to(path).as_posix(), str(error).replace(str(path), ".")
        unreadable.append((name, reason))
        return None


def _json_files(path: Path) -> Iterator[Path]:
    tables = {header.parent for header in path.rglob(HEADER)}
    for file in sorted(path.rglob("*.json")):
        inside = file.relative_to(path).parts
        if inside[0] in NOT_RESULTS or any(parent in tables for parent in file.parents):
            continue
        yield file


def _read(file: Path) -> dict[str, Any]:
    try:
        if not file.is_file():
            raise InputError("is a folder or a pipe and not a file; remove it")
        if file.stat().st_size > LARGEST_RECORD:
            raise InputError("is too large for a record; leave it out of the run's folder")
        record = parsed_json(file)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise InputError("is not JSON, or it is truncated; write it again") from None
    if not isinstance(record, dict):
        raise InputError("holds no record; write it again")
    if SEAL in record:
        require_seal(record, file)
    return record


def _table(path: Path, unreadable: list[tuple[str, str]]) -> tuple[TaskOutputs | None, str | None]:
    """Find the table: a folder of shards, table.npz, or the only other file of arrays with one."""
    candidates = [path / "table", path / "table.npz"]
    candidates += sorted(header.parent for header in path.glob(f"*/{HEADER}"))
    candidates += sorted(p for p in path.glob("*.npz") if p.name != "explorer.npz")
    for candidate in dict.fromkeys(candidates):
        if not candidate.exists() or candidate.name in NOT_RESULTS:
            continue
        table = _tried(TaskOutputs.load, candidate, path, unreadable)
        if table is not None:
            return table, candidate.relative_to(path).as_posix()
    return None, None
