"""Work that goes on beside a computation, and has ended before anybody hears of either."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(work: Callable[[], None] | None) -> Iterator[None]:
    """Let work go on in a thread of its own while inside; nobody leaves before it has ended.

    A disk writes while networks compute. Where the work failed, its error is raised at the end.

    Arguments:
        work: What to do, or None for nothing.

    Example:
        >>> written = []
        >>> with beside(lambda: written.append("a round")):
        ...     pass
        >>> written
        ['a round']
    """
    failed: list[BaseException] = []
    threads: list[threading.Thread] = []

    def run() -> None:
        try:
            if work is not None:
                work()
        except BaseException as error:
            failed.append(error)

    if work is not None:
        thread = threading.Thread(target=run)
        try:
            thread.start()
            threads.append(thread)
        except RuntimeError:  # there is no thread to be had: it is done here, and first
            run()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()
        if failed:
            # An error that stayed here would keep the frames that it came through.
            raise failed.pop()
