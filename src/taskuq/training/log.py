"""The learning curve: one row of a CSV file for each epoch, and the same for TensorBoard."""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskuq.disk import make_folder, reading
from taskuq.files import whole_file


def log_epoch(path: Path, row: Mapping[str, float]) -> None:
    """Add the row of an epoch in place of this and later rows that a killed run left."""
    rows = [old for old in read_log(path) if old["epoch"] < row["epoch"]]
    rows.append({name: float(value) for name, value in row.items()})
    with whole_file(path) as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**r, "epoch": int(r["epoch"])} for r in rows)


class Events:
    """The same numbers for TensorBoard, where the extra ``tensorboard`` is installed."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self.records: Any = None
        try:
            from tensorboardX.proto import event_pb2
            from tensorboardX.record_writer import RecordWriter
        except ImportError:
            return
        make_folder(folder)
        # A file of its own for each start: the time alone has whole seconds.
        number = len(list(folder.iterdir()))
        self.event = event_pb2.Event
        self.records = RecordWriter(str(folder / f"events.out.tfevents.{time.time():.0f}.{number}"))
        self._write(file_version="brain.Event:2")
        if epoch:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(step=epoch, session_log=start)

    def add(self, row: Mapping[str, float]) -> None:
        """Add the row of an epoch; it is in the file when this returns."""
        if self.records is None:
            return
        values = [{"tag": k, "simple_value": v} for k, v in row.items() if k != "epoch"]
        self._write(step=int(row["epoch"]), summary={"value": values})

    def close(self) -> None:
        """Finish the file."""
        if self.records is not None:
            self.records.close()

    def _write(self, **content: Any) -> None:
        # Not the package's own writer: its thread writes when it likes; a killed run loses that.
        self.records.write(self.event(wall_time=time.time(), **content).SerializeToString())
        self.records.flush()


def read_log(path: Path) -> list[dict[str, float]]:
    """Read a learning curve: a dictionary of numbers for each epoch."""
    if not path.exists():
        return []
    remedy = "remove it to begin another"
    with reading(path, "a learning curve", remedy), path.open(newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
