"""The learning curve: one row of a CSV file for each epoch."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from taskuq.files import whole_file


def log_epoch(path: Path, row: Mapping[str, float]) -> None:
    """Add the row of an epoch; rows of this and later epochs, left by a killed run, are replaced.

    Arguments:
        path: The CSV file; it is never half written.
        row: Numbers by name; ``epoch`` is one of them.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "metrics.csv"
        >>> for epoch, loss in ((0, 3.0), (1, 2.0), (1, 1.5)):  # epoch 1 ran twice
        ...     log_epoch(path, {"epoch": epoch, "loss": loss})
        >>> print(path.read_text().strip())
        epoch,loss
        0,3.0
        1,1.5
    """
    rows = [old for old in read_log(path) if old["epoch"] < row["epoch"]]
    rows.append({name: float(value) for name, value in row.items()})
    with whole_file(path) as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**r, "epoch": int(r["epoch"])} for r in rows)


def read_log(path: Path) -> list[dict[str, float]]:
    """Read a learning curve.

    Arguments:
        path: The CSV file; none yet is an empty curve.

    Returns:
        One dictionary of numbers for each epoch.

    Example:
        >>> read_log(Path("absent.csv"))
        []
    """
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
