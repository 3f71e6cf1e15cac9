"""A slice whose lines arrive over the network, in any order, some of them twice or never."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taskuq.errors import InputError
from taskuq.measure.mri import Measurement


@dataclass
class ArrivingSlice:
    """A scanner that measures a round once all of its lines have come.

    Lines of later rounds may come early. A line that comes twice alike is passed over; one that
    comes again with other numbers is a fault of the slice, because nobody can tell which is right.

    Arguments:
        columns: The columns that each round adds.
        shape: Coil, height, width.
        accelerations: R of each round.
        scan_id: What the scan is called.
        lock: Held while lines are added or looked at; slices of a connection may share one.
    """

    columns: Sequence[NDArray[np.intp]]
    shape: tuple[int, int, int]
    accelerations: Sequence[float]
    scan_id: str
    lines: dict[int, NDArray[np.complex64]] = field(default_factory=dict, repr=False)
    faults: dict[int, str] = field(default_factory=dict)
    is_settled: bool = False
    lock: Any = field(default_factory=threading.RLock, repr=False)

    @property
    def nbytes(self) -> int:
        """How much the lines take that have come."""
        coils, height, _ = self.shape
        return 8 * coils * height * len(self.lines)

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
        with self.lock:
            before = self.lines.get(column)
            if before is None:
                self.lines[column] = line.astype(np.complex64)
            elif not self.is_settled and not np.array_equal(before, line):
                self.faults[column] = f"line {column} came twice, with other numbers"
                return self.faults[column]
        return None

    def want(self, round: int, lines: NDArray[np.int64]) -> None:
        """Be told which columns a round adds, where a rule chooses them."""
        columns = list(self.columns)
        columns[round] = np.asarray(lines, dtype=np.intp)
        self.columns = columns

    def has(self, round: int) -> bool:
        """Whether all lines that a round adds have come."""
        with self.lock:
            return all(column in self.lines for column in self.columns[round].tolist())

    def settle(self) -> str | None:
        """Say which line came again with other numbers; where none did, none does from now on.

        A decision is about the lines that had come when it was made: one that changes after a stop
        does not take it back.
        """
        with self.lock:
            fault = next(iter(self.faults.values()), None)
            self.is_settled = fault is None
        return fault

    def measure(self, round: int) -> dict[str, Any]:
        """Return the lines that a round adds."""
        wanted = self.columns[round].tolist()
        with self.lock:
            assert self.has(round), "a round is measured when its lines have come"
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
        """Measure a stored round once more, and refuse lines that were not stored.

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
        """Join what all rounds so far have measured: what ``joined`` pieces are, to the bit.

        A scanner waits meanwhile: lines are put where the Fourier transform wants them, so that
        k-space is not shifted as a whole, and images are shifted at once and not axis by axis.
        """
        _, height, width = self.shape
        rows, columns = height // 2, width // 2
        mask = torch.zeros(width, dtype=torch.bool)
        kspace = torch.zeros(self.shape, dtype=torch.complex64)
        for piece in pieces:
            lines = torch.as_tensor(piece["kspace"]).to(torch.complex64)
            mask[torch.as_tensor(piece["columns"])] = True
            place = torch.as_tensor((piece["columns"] - columns) % width)
            kspace[:, height - rows :].index_copy_(2, place, lines[:, :rows])
            kspace[:, : height - rows].index_copy_(2, place, lines[:, rows:])
        images = torch.fft.ifft2(kspace, norm="ortho")
        # The memory of k-space takes the shifted images.
        for here, there in _halves(height):
            for left, right in _halves(width):
                kspace[:, here, left] = images[:, there, right]
        rounds, R = len(pieces), self.accelerations
        return Measurement(kspace, mask, float(R[rounds - 1]) if rounds <= len(R) else 1.0)

    def is_complete(self, pieces: Sequence[dict[str, Any]]) -> bool:
        """Whether every line is there."""
        return sum(len(piece["columns"]) for piece in pieces) == self.shape[-1]


def _halves(size: int) -> list[tuple[slice, slice]]:
    """Where each half of an axis goes when its origin moves to the middle, and where it was."""
    middle = size // 2
    return [
        (slice(middle, None), slice(None, size - middle)),
        (slice(None, middle), slice(size - middle, None)),
    ]
