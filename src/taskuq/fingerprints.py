"""Fingerprints: what a record or a file holds as one short text, so that a change is seen."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskuq.disk import reading
from taskuq.errors import InputError, UncheckedWarning

SEAL = "sha256"
# Bytes up to which a file counts with every one of them, and of larger ones how many blocks of what
# size do.
WHOLE, BLOCKS, BLOCK = 2**25, 64, 2**16


def fingerprint(record: Any) -> str:
    """Return the SHA-256 of what JSON can hold, whatever the order of its keys.

    Numbers count with all of their digits, lists and tuples alike.
    """
    # There and back, because keys that are numbers become texts.
    plain = json.loads(json.dumps(record))
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the fingerprint of everything else in it."""
    rest = {name: value for name, value in record.items() if name != SEAL}
    return {**rest, SEAL: fingerprint(rest)}


def require_seal(
    record: Mapping[str, Any],
    path: str | os.PathLike[str],
    remedy: str = "write it again",
    *,
    always: bool = True,
) -> None:
    """Refuse a record that is not as it was written."""
    if SEAL in record:
        if record[SEAL] != sealed(record)[SEAL]:
            raise InputError(
                f"{path} is not as it was written: its content and its sha256 differ, so it was "
                f"damaged or edited; {remedy}",
                code="file.damaged",
            )
        return
    unknown = f"{path} has no sha256 (an older version, or written by hand), so nothing tells"
    if always:
        raise InputError(
            f"{unknown} whether it is as it was written; {remedy}", code="file.damaged"
        )
    warnings.warn(f"{unknown} whether it was damaged or edited", UncheckedWarning, stacklevel=3)


def content_fingerprint(path: Path) -> str:
    """Return the fingerprint of a file, or of a folder's files and their names.

    Small files count with every byte; of one beyond 32 MiB its size and 64 blocks spread over it
    do, so that terabytes of images are looked at in minutes.
    """
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
        return fingerprint([(str(p.relative_to(path)), content_fingerprint(p)) for p in files])
    found = hashlib.sha256()
    with reading(path, "bytes"), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        found.update(size.to_bytes(8, "little"))
        if size <= WHOLE:
            found.update(file.read(WHOLE))
        else:
            for k in range(BLOCKS):
                file.seek(k * (size - BLOCK) // (BLOCKS - 1))
                found.update(file.read(BLOCK))
    return found.hexdigest()
