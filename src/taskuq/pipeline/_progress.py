"""Progress bar and durations."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import Progress as Drawing
from rich.progress import TextColumn

# Seconds between two lines where stderr is a file, in which nothing can be drawn anew.
PAUSE = 10.0


class Progress:
    def __init__(
        self,
        total: int,
        done: int = 0,
        *,
        quiet: bool = False,
        since: float | None = None,
        what: str = "cases",
    ) -> None:
        self.what = what
        self.total, self.done, self.fresh, self.failed = total, done, 0, 0
        self.said = time.monotonic()
        self.started = self.said if since is None else since
        console = Console(stderr=True, highlight=False)
        self.drawing = Drawing(
            TextColumn("{task.description}"), console=console, refresh_per_second=2, disable=quiet
        )
        self.row = self.drawing.add_task("")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self.fresh:
            self.drawing.stop()

    def say(self, line: str) -> None:
        if not self.drawing.disable:
            self.drawing.console.print(line, markup=False, soft_wrap=True)

    def step(self, *, failed: bool = False) -> None:
        self.done += 1
        self.fresh += 1
        self.failed += failed
        now = time.monotonic()
        self.drawing.update(self.row, description=self.line(now))
        if self.fresh == 1:
            self.drawing.start()
        is_file = not self.drawing.disable and not self.drawing.console.is_terminal
        if is_file and self.done < self.total and now - self.said > PAUSE:
            self.said = now
            self.drawing.print(self.line(now))

    def line(self, now: float) -> str:
        rate = self.fresh / max(now - self.started, 1e-9)
        left = (self.total - self.done) / max(rate, 1e-9)
        lost = f", {self.failed} failed" if self.failed else ""
        count = f"{self.done}/{self.total} {self.what}{lost}"
        return f"{count}, {rate:.3g} {self.what}/s, {duration(left)} left"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 60:
        return f"{int(minutes)} min {int(seconds % 60)} s"
    return f"{int(minutes // 60)} h {int(minutes % 60)} min"
