"""Rounds whose lines have come take turns: one thread of a connection decides all its slices."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from taskuq.decide.acquisition import Awaited
from taskuq.errors import first_line
from taskuq.runs.mrd.arriving import ArrivingSlice


@dataclass(eq=False)
class UnderWay:
    """A slice, or all that go together, between two of its rounds.

    Arguments:
        slices: The slices, by number.
        number: Of each case, the number of its slice.
        rounds: Goes on with the scan each time it is asked, and says what it waits for next.
        awaited: The round that it waits for, and the cases that are measured in it.
        has_turn: Whether it is being decided about, or waits to be.
    """

    slices: dict[int, ArrivingSlice]
    number: dict[str, int]
    rounds: Generator[Awaited, None, Any]
    awaited: Awaited
    has_turn: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether all lines have come that it waits for."""
        round_, cases = self.awaited
        return all(self.slices[self.number[case]].has(round_) for case in cases)


@dataclass(eq=False)
class Turns:
    """Decides the rounds of a connection, in the order in which they became ready.

    Networks compute for one at a time anyway. A thread for each slice would only let a stranger
    start as many threads as a header announces slices.

    Arguments:
        most: Rounds that may wait before :meth:`wait` waits.
        ended: Called with a scan that is over, and what ended it where that was an error.
    """

    most: int
    ended: Callable[[UnderWay, str | None], None]
    _ready: deque[UnderWay] = field(default_factory=deque)
    _is_deciding: bool = False
    _is_leaving: bool = False
    _last: float = field(default_factory=time.monotonic)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to decide."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def offer(self, scan: UnderWay) -> None:
        """Give a scan a turn where its lines have come, and it has none."""
        with self._changed:
            if not self._is_leaving and not scan.has_turn and scan.is_ready:
                scan.has_turn = True
                self._ready.append(scan)
                self._changed.notify_all()

    def wait(self) -> None:
        """Wait while too many rounds do: what is not read keeps the other end from sending."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_leaving or self._waiting < self.most)

    def leave(self) -> None:
        """Take nothing more, and let what is ready be decided."""
        with self._changed:
            self._is_leaving = True
            self._changed.notify_all()
        if self._thread not in (None, threading.current_thread()):
            self._thread.join()

    def is_busy(self, since: float) -> bool:
        """Whether something is being decided, or was so many seconds ago.

        Arguments:
            since: The seconds.
        """
        with self._changed:
            return self._waiting > 0 or time.monotonic() < self._last + since

    @property
    def _waiting(self) -> int:
        return len(self._ready) + self._is_deciding

    def _run(self) -> None:
        while (scan := self._next()) is not None:
            self._decide(scan)
            # While the next one is waited for, nothing of this one is kept.
            del scan

    def _decide(self, scan: UnderWay) -> None:
        # In words: an error would keep the frames that it came through, and their lines.
        is_over, failed = False, None
        try:
            scan.awaited = next(scan.rounds)
        except StopIteration:
            is_over = True
        except Exception as error:  # one slice must not end the others
            is_over, failed = True, first_line(error)
        if is_over:
            self.ended(scan, failed)
        with self._changed:
            self._is_deciding, self._last = False, time.monotonic()
            scan.has_turn = is_over or scan.is_ready
            if scan.has_turn and not is_over:
                self._ready.append(scan)
            self._changed.notify_all()

    def _next(self) -> UnderWay | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._is_leaving)
            if not self._ready:
                return None
            self._is_deciding = True
            return self._ready.popleft()
