"""Files that appear only when they are complete."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a temporary name beside ``path`` to write to; rename it when all went well.

    A killed run leaves no half file under the final name, and of several processes that write
    the same file one whole result stays.

    Arguments:
        path: The file to write; its folder is made.

    Returns:
        A context that gives the temporary path.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "result.txt"
        >>> with written_whole(target) as partial:
        ...     _ = partial.write_text("whole")
        >>> target.read_text(), len(list(target.parent.iterdir()))
        ('whole', 1)
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        yield partial
        # Renaming within a folder replaces the target in one step.
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
