"""Something done now and then in a thread of its own, so that no job waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Beside:
    """Something done now and then in a thread of its own, so that no job waits for it.

    Arguments:
        do: What is done.
        seconds: It is not begun again before so many have passed.
        tell: Called with a sentence where it fails; it is tried again the next time.
    """

    def __init__(
        self, do: Callable[[], object], seconds: float, tell: Callable[[str], None] = print
    ) -> None:
        self.do, self.seconds, self.tell = do, seconds, tell
        self.begun = time.monotonic()
        self.thread = threading.Thread()

    def __call__(self) -> None:
        """Begin, unless it was begun not long ago or goes on still."""
        if self.thread.is_alive() or time.monotonic() - self.begun < self.seconds:
            return
        self.begun = time.monotonic()
        self.thread = threading.Thread(target=self._try, daemon=True)
        self.thread.start()

    def _try(self) -> None:
        try:
            self.do()
        except Exception as error:
            self.tell(f"what is done beside the jobs failed: {type(error).__name__}: {error}")

    def end(self) -> None:
        """Wait for what was begun."""
        if self.thread.is_alive():
            self.thread.join()
