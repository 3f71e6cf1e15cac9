"""What happened in a run, case by case: failures are kept, never silently dropped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskuq.disk import is_plain, reading
from taskuq.errors import whole_sentence
from taskuq.files import append_jsonl, read_jsonl

NAME = "log.jsonl"


@dataclass(frozen=True)
class RunLog:
    """A file of lines, one event each, that several workers may append to.

    Arguments:
        folder: The folder of the table.

    Example:
        >>> import tempfile
        >>> log = RunLog(Path(tempfile.mkdtemp()))
        >>> log.failed("patient-1-slice-2", ValueError("out of range"))
        >>> log.failures()
        {'patient-1-slice-2': 'ValueError: out of range'}
    """

    folder: Path

    def write(self, event: str, **details: Any) -> None:
        """Append an event."""
        record = {"event": event, "time": round(time.time(), 3), **details}
        append_jsonl(self.folder / NAME, [record])

    def failed(self, case: str, error: BaseException) -> None:
        """Remember that a case could not be finished, and why."""
        self.write("failed", case=case, error=whole_sentence(error, 500))

    def failures(self) -> dict[str, str]:
        """Return the cases that failed when they were last tried, and why."""
        found: dict[str, str] = {}
        for event in self.events():
            if event.get("event") == "failed":
                found[str(event.get("case"))] = str(event.get("error"))
            elif event.get("event") == "retrying":
                found.clear()
        return found

    def events(self) -> Iterator[Mapping[str, Any]]:
        """Yield all events; a line torn by a power cut is skipped."""
        path = self.folder / NAME
        if not is_plain(path):
            return
        with reading(path, "a log", "remove it"):
            yield from filter(None, read_jsonl(path))
