"""What the files of a runtime are called, and how they are known."""

from __future__ import annotations

import hashlib
from pathlib import Path

SCHEMA, MANIFEST = "taskuq.runtime/1", "manifest.json"


def checksum(path: Path) -> str:
    """Return the SHA-256 of every byte of a file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a"
        >>> _ = path.write_text("taskuq")
        >>> checksum(path)[:8]
        'd4b24d1c'
    """
    found = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(2**20):
            found.update(part)
    return found.hexdigest()
