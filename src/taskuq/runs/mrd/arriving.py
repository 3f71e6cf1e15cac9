"""A slice whose lines arrive over the network, in any order, some of them twice or never."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskuq.errors import InputError
from taskuq.measure.mri import Measurement, joined


class GoneError(Exception):
    """Whoever sent the lines has gone."""


@dataclass
class ArrivingSlice:
    """A scanner that waits until all lines of a round have come.

    Lines of later rounds may come early. A line that comes twice alike is passed over; one that
    comes again with other numbers is a fault of the slice, because nobody can tell which is right.

    Arguments:
        columns: The columns that each round adds.
        shape: Coil, height, width.
        accelerations: R of each round.
        scan_id: What the scan is called.
    """

    columns: Sequence[NDArray[np.intp]]
    shape: tuple[int, int, int]
    accelerations: Sequence[float]
    scan_id: str
    lines: dict[int, NDArray[np.complex64]] = field(default_factory=dict, repr=False)
    faults: dict[int, str] = field(default_factory=dict)
    is_gone: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition, repr=False)

    def add(self, column: int, data: Any) -> str | None:
        """Take a line of k-space (coil, height), or say why it cannot be one of this slice."""
        coils, height, width = self.shape
        line = np.asarray(data)
        if not 0 <= column < width:
            return f"line {column} of {width} lines"
        if line.shape != (coils, height):
            return f"line {column} has shape {line.shape}, and {(coils, height)} is needed"
        if not np.isfinite(line).all():
            return f"line {column} holds numbers that are not finite"
        with self._changed:
            before = self.lines.get(column)
            if before is None:
                self.lines[column] = line.astype(np.complex64)
            elif not np.array_equal(before, line):
                self.faults[column] = f"line {column} came twice, with other numbers"
                return self.faults[column]
            self._changed.notify_all()
        return None

    def want(self, round: int, lines: NDArray[np.int64]) -> None:
        """Be told which columns a round adds, where a rule chooses them."""
        columns = list(self.columns)
        columns[round] = np.asarray(lines, dtype=np.intp)
        self.columns = columns

    def leave(self) -> None:
        """No more lines will come."""
        with self._changed:
            self.is_gone = True
            self._changed.notify_all()

    def measure(self, round: int) -> dict[str, Any]:
        """Wait for the lines that a round adds."""
        wanted = self.columns[round].tolist()
        with self._changed:
            self._changed.wait_for(lambda: self.is_gone or all(c in self.lines for c in wanted))
            if not all(column in self.lines for column in wanted):
                raise GoneError
            fault = next(iter(self.faults.values()), "")
            kspace = np.stack([self.lines[column] for column in wanted], axis=-1)
        return {
            "columns": self.columns[round],
            "kspace": kspace,
            "round": np.array(round),
            "scan_id": np.array(self.scan_id),
            "fault": np.array(fault),
        }

    def again(self, round: int, piece: dict[str, Any]) -> None:
        """Wait for the lines of a stored round once more, and refuse any that were not stored.

        The name of a scan is no proof: names are given twice, and a decision about one patient must
        not be told to another.

        Arguments:
            round: The round.
            piece: What was stored of it.
        """
        found = self.measure(round)
        is_same = all(np.array_equal(found[name], piece[name]) for name in ("columns", "kspace"))
        if self.faults or not is_same:
            raise InputError(
                f"scan {self.scan_id} is stored with other lines of round {round} than those that "
                "came now; nothing is decided about these, give every scan a measurementID of its "
                "own"
            )

    def combine(self, pieces: Sequence[dict[str, Any]]) -> Measurement:
        """Join what all rounds so far have measured."""
        return joined(pieces, self.shape, self.accelerations)

    def is_complete(self, pieces: Sequence[dict[str, Any]]) -> bool:
        """Whether every line is there."""
        return sum(len(piece["columns"]) for piece in pieces) == self.shape[-1]
