"""One process at a time: a lock that ends with the process that holds it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taskuq.disk import make_folder, writing
from taskuq.errors import InputError


@contextmanager
def locked(path: Path, *, wait: bool = False, what: str = "this file") -> Iterator[None]:
    """Hold a lock while inside; another process waits for it, or is refused.

    The lock is the operating system's, on an empty file: it ends with the process, however that
    ends, and the file may stay.

    Arguments:
        path: The lock's file.
        wait: Whether to wait for whoever holds it; otherwise an error says that somebody does.
        what: What is being worked on, for the error.

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
    try:
        import fcntl
    except ImportError:  # pragma: no cover
        # Without such locks (Windows) nobody is refused.
        yield
        return
    make_folder(path.parent)
    with writing(path):
        file = path.open("ab")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another process is working on {what}; wait until it has ended"
            ) from None
        except OSError as error:
            # Some network file systems keep no locks.
            warnings.warn(
                f"the file system of {path.parent} keeps no locks ({error.strerror}); let no two "
                f"processes work on {what}",
                stacklevel=3,
            )
        yield
