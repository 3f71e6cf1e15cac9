"""How far a run is, on stderr: count, rate and time left."""

from __future__ import annotations

import sys
import time


class Progress:
    """Says now and then how many cases are done and how long the rest will take.

    Arguments:
        total: All cases of the run.
        done: Cases finished by an earlier run.
        quiet: Say nothing.
        since: When the work began, by :func:`time.monotonic`; now where None.
    """

    def __init__(
        self, total: int, done: int = 0, *, quiet: bool = False, since: float | None = None
    ) -> None:
        self.total, self.done, self.fresh, self.failed = total, done, 0, 0
        self.quiet = quiet
        self.said = time.monotonic()
        self.started = self.said if since is None else since

    def step(self, *, failed: bool = False) -> None:
        """Count one case, and speak up if it is time."""
        self.done += 1
        self.fresh += 1
        self.failed += failed
        now = time.monotonic()
        pause = 0.5 if sys.stderr.isatty() else 10.0
        if not self.quiet and (now - self.said > pause or self.done == self.total):
            self.said = now
            end = "\r" if sys.stderr.isatty() and self.done < self.total else "\n"
            sys.stderr.write(self.line(now) + end)
            sys.stderr.flush()

    def line(self, now: float) -> str:
        """Return the line for a moment."""
        rate = self.fresh / max(now - self.started, 1e-9)
        left = (self.total - self.done) / max(rate, 1e-9)
        lost = f", {self.failed} failed" if self.failed else ""
        return f"{self.done}/{self.total} cases{lost}, {rate:.3g} cases/s, {duration(left)} left"


def duration(seconds: float) -> str:
    """Say a time span in the two largest units that matter.

    Example:
        >>> duration(59.6), duration(3725), duration(90000)
        ('60 s', '1 h 2 min', '25 h 0 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 60:
        return f"{int(minutes)} min {int(seconds % 60)} s"
    return f"{int(minutes // 60)} h {int(minutes % 60)} min"
