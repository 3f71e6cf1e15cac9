"""File locks that end with the process that holds them."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taskuq.disk import make_folder, writing
from taskuq.errors import InputError


@contextmanager
def locked(path: Path, *, wait: bool = False, what: str = "this file") -> Iterator[None]:
    """Hold a lock on an empty file; a second holder waits or is refused.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "scan.lock"
        >>> with locked(path):
        ...     with locked(path, what="scan.json"):
        ...         pass
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: another process is working on scan.json; wait until it has ended
    """
    from filelock import FileLock, Timeout  # here: most commands take no lock

    make_folder(path.parent)
    # A soft lock would outlive a killed process; without locks a warning is given instead.
    lock = FileLock(path, thread_local=False, poll_interval=0.01, fallback_to_soft=False)
    with writing(path):
        try:
            lock.acquire(blocking=wait)
        except Timeout:
            raise InputError(
                f"another process is working on {what}; wait until it has ended",
                code="file.exists",
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
                raise
            warnings.warn(
                f"the file system of {path.parent} has no locks ({error.strerror}); start only one "
                f"process that works on {what}",
                stacklevel=3,
            )
    try:
        yield
    finally:
        lock.release()
