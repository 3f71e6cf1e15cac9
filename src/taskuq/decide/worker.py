"""A deadline for computations that Python cannot stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass
class Worker:
    """What computes within a deadline.

    Python cannot stop a computation. One that is late goes on by itself, and while it does nothing
    else is begun: what is asked for meanwhile is late too.

    Arguments:
        deadline: Seconds, or None for as long as it takes.
    """

    deadline: float | None = None
    _late: threading.Thread | None = field(default=None, init=False, repr=False)

    def run(self, compute: Callable[[], T], *, hurry: bool = True) -> T:
        """Return what is computed, or raise TimeoutError where it takes too long.

        Arguments:
            compute: What to compute.
            hurry: Whether the deadline counts.
        """
        if self._late is not None:
            self._late.join(self.deadline if hurry else None)
            if self._late.is_alive():
                raise TimeoutError("the recovery of an earlier round is still running")
            self._late = None
        if self.deadline is None or not hurry:
            return compute()
        found: list[T] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                found.append(compute())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(self.deadline)
        if thread.is_alive():
            self._late = thread
            raise TimeoutError(f"recovery and task took longer than {self.deadline:g} s")
        if failed:
            raise failed[0]
        return found[0]
