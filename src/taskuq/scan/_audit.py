"""Hash-chained audit log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from taskuq._io import (
    append_jsonl,
    file_lock,
    fingerprint,
    make_folder,
    parse_json,
    read_jsonl,
    to_json_value,
    writing,
)
from taskuq.errors import InputError
from taskuq.scan._state import RoundRecord

SCHEMA = "taskuq.audit/1"
# Hash before the first line.
BEGINNING = "0" * 64


def audit_entry(record: RoundRecord, latency: float, **scan: Any) -> dict[str, Any]:
    """Return the audit entry of one case and round."""
    x = record.outputs
    summary: dict[str, float] = {"count": int(x.size)}
    if x.size:
        summary |= {n: float(getattr(np, n)(x)) for n in ("mean", "std", "min", "max")}
    kept = record.to_dict()
    line = {
        "schema": SCHEMA,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **scan,
        **{name: kept[name] for name in ("case", "round", "acceleration")},
        "outputs": summary,
        **{name: kept[name] for name in ("lower", "upper", "stop", "reason", "fault")},
        **{name: kept[name] for name in ("void", "shadow")},
        "latency": round(latency, 6),
    }
    return dict(to_json_value(line))


def append_entries(path: str | os.PathLike[str], lines: list[dict[str, Any]]) -> None:
    """Append entries to an audit log, each with its hash and the hash of the previous entry."""
    target = Path(path).resolve()
    make_folder(target.parent)
    with file_lock(target.with_name(f".{target.name}.lock"), wait=True), writing(target):
        previous, chained = _last_hash(target), []
        for line in lines:
            record = {**line, "previous": previous}
            previous = fingerprint(record)
            chained.append({**record, "hash": previous})
        append_jsonl(target, chained, durable=bool(chained), private=True)


def read_audit_log(
    path: str | os.PathLike[str], *, expect: str | None = None
) -> list[dict[str, Any]]:
    """Return the lines of an audit log after verifying the hash chain and the expected hash."""
    previous, found = BEGINNING, []
    for number, line in _lines(path):
        chained = {name: value for name, value in line.items() if name != "hash"}
        if line.get("previous") != previous or line.get("hash") != fingerprint(chained):
            text = f"{path}: line {number} breaks the hash chain: the log is damaged or edited"
            raise InputError(text, code="file.damaged")
        previous = line["hash"]
        found.append(line)
    if expect is not None:
        lines_after(found, expect)
    return found


def lines_after(lines: list[dict[str, Any]], expect: str) -> int:
    """Return the number of lines that follow the last one whose hash starts with ``expect``."""
    if len(expect) < 16 or set(expect.lower()) - set("0123456789abcdef"):
        text = f"--expect must be a hash of 16 to 64 hexadecimal digits, got {expect!r}"
        raise InputError(text, code="value.invalid")
    for k, line in enumerate(reversed(lines)):
        if str(line["hash"]).startswith(expect.lower()):
            return k
    text = f"no line of the audit log has the hash {expect}: the log was cut or rewritten"
    raise InputError(text, code="file.damaged")


def backward_times(lines: list[dict[str, Any]]) -> list[str]:
    """Return a note for each log line whose time is earlier than that of the previous line."""
    notes = []
    for number, (before, line) in enumerate(pairwise(lines), start=2):
        then, now = str(before.get("time")), str(line.get("time"))
        # ISO times of one zone and precision sort as texts.
        if now < then:
            notes.append(f"line {number}: time goes backwards, from {then} to {now}")
    return notes


def entries_by_scan(lines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        found.setdefault(str(line.get("scan_id")), []).append(line)
    return found


def _lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        records = list(read_jsonl(Path(path)))
    except OSError as error:
        text = f"cannot read {path}: {error.strerror or error}"
        raise InputError(text, code="file.missing") from None
    for number, line in enumerate(records, start=1):
        if line is None or line.get("schema") != SCHEMA:
            text = f"{path}: line {number} is not a line of an audit log ({SCHEMA})"
            raise InputError(text, code="file.schema")
        yield number, line


def _last_hash(path: Path) -> str:
    """Return the hash of the last line, after removing a line that was not fully written."""
    if not path.exists() or path.stat().st_size == 0:
        return BEGINNING
    last, whole = _last_line(path)
    try:
        line = parse_json(last)
    except ValueError:
        line = None
    if not isinstance(line, dict) or line.get("schema") != SCHEMA:
        text = f"{path} does not end in a line of an audit log; use another log"
        raise InputError(text, code="file.schema")
    if whole < path.stat().st_size:
        os.truncate(path, whole)
    return str(line["hash"])


def _last_line(path: Path) -> tuple[bytes, int]:
    length = 2**16
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        while True:
            start = max(0, size - length)
            file.seek(start)
            data = file.read(size - start)
            end = data.rfind(b"\n") + 1
            begin = data.rfind(b"\n", 0, max(0, end - 1)) + 1
            if begin or start == 0:
                return data[begin:end], start + end
            length *= 2
