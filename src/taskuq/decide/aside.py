"""Work that goes on beside a computation, and has ended before anybody hears of either."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(work: Callable[[], None] | None, *, waits: bool = False) -> Iterator[Callable[[], None]]:
    """Let work go on in a thread of its own while inside; nobody leaves before it has ended.

    A disk writes while networks compute. Where the work failed, its error is raised at the end.

    Arguments:
        work: What to do, or None for nothing.
        waits: Whether it begins when what this gives is called, and not at once. Where that is
            called too late or never, the work is done in the end.

    Example:
        >>> written = []
        >>> with beside(lambda: written.append("a round"), waits=True) as begin:
        ...     begin()
        >>> written
        ['a round']
    """
    failed: list[BaseException] = []
    threads: list[threading.Thread] = []
    # A computation that is late may ask for the beginning while the end does: one of them has it.
    turn, left = threading.Lock(), [] if work is None else [work]

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    def begin() -> None:
        with turn:
            for one in left:
                thread = threading.Thread(target=run, args=(one,))
                try:
                    thread.start()
                    threads.append(thread)
                except RuntimeError:  # there is no thread to be had: it is done here, and first
                    run(one)
            left.clear()

    if not waits:
        begin()
    try:
        yield begin
    finally:
        with turn:
            for one in left:
                run(one)
            left.clear()
        for thread in threads:
            thread.join()
        if failed:
            # An error that stayed here would keep the frames that it came through.
            raise failed.pop()
