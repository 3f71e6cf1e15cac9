"""A slice whose lines arrive over the network, in any order, some of them twice or never."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq.errors import InputError
from taskuq.measure.mri import Measurement
from taskuq.runs.mrd.canvas import Canvas

# Bytes that slices of one connection may take to put their lines together as they come.
ROOM = 32 * 2**20


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
        canvas: Where lines are put as they come; they are when a round is over where None.
    """

    columns: Sequence[NDArray[np.intp]]
    shape: tuple[int, int, int]
    accelerations: Sequence[float]
    scan_id: str
    lines: dict[int, NDArray[np.complex64]] = field(default_factory=dict, repr=False)
    faults: dict[int, str] = field(default_factory=dict)
    is_settled: bool = False
    lock: Any = field(default_factory=threading.RLock, repr=False)
    canvas: Canvas | None = field(default=None, repr=False)
    _awaited: frozenset[int] = field(init=False, repr=False)
    _own: dict[int, NDArray[np.complex64]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._awaited = frozenset(self.columns[0].tolist())

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
                if self.canvas is not None and column in self._awaited:
                    self.canvas.put_line(column, self.lines[column])
            elif not self.is_settled and not np.array_equal(before, line):
                self.faults[column] = f"line {column} came twice, with other numbers"
                return self.faults[column]
        return None

    def want(self, round: int, lines: NDArray[np.int64]) -> None:
        """Be told which columns a round adds, where a rule chooses them."""
        # Nobody knew which lines to put before.
        self.canvas = None
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
            self._own[round] = kspace
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
        """Join what all rounds so far have measured: what ``joined`` pieces are, to the bit."""
        mask = torch.zeros(self.shape[2], dtype=torch.bool)
        for piece in pieces:
            mask[torch.as_tensor(piece["columns"])] = True
        rounds, R = len(pieces), self.accelerations
        with self.lock:
            canvas = self.canvas if self._is_drawn(pieces) else None
            if canvas is not None:
                # Nothing is put while it is read.
                self._awaited = frozenset()
        images = self._redrawn(pieces) if canvas is None else self._drawn(canvas, pieces)
        return Measurement(images, mask, float(R[rounds - 1]) if rounds <= len(R) else 1.0)

    def _is_drawn(self, pieces: Sequence[dict[str, Any]]) -> bool:
        """Whether pieces are what this slice measured, and the canvas has nothing beyond them."""
        if self.canvas is None:
            return False
        own = [self._own.get(k) is piece["kspace"] for k, piece in enumerate(pieces)]
        known = {column for piece in pieces for column in piece["columns"].tolist()}
        return all(own) and self.canvas.columns <= known

    def _drawn(self, canvas: Canvas, pieces: Sequence[dict[str, Any]]) -> Tensor:
        """The images of the canvas, which then takes lines of the next round as they come."""
        for piece in pieces:
            # Lines that came before their round did.
            late = ~np.isin(piece["columns"], list(canvas.columns))
            if late.any():
                canvas.put(piece["columns"][late], piece["kspace"][..., late])
        # Memory of its own: a recovery that is late reads it while the next lines are put.
        images = canvas.images(torch.empty_like(canvas.kspace))
        with self.lock:
            self._awaited = frozenset(
                c for k in self.columns[len(pieces) :][:1] for c in k.tolist()
            )
        return images

    def _redrawn(self, pieces: Sequence[dict[str, Any]]) -> Tensor:
        """The images of pieces from elsewhere, a stored scan, or where there is no canvas."""
        canvas = Canvas(self.shape)
        for piece in pieces:
            canvas.put(piece["columns"], piece["kspace"])
        return canvas.images(canvas.kspace)

    def is_complete(self, pieces: Sequence[dict[str, Any]]) -> bool:
        """Whether every line is there."""
        return sum(len(piece["columns"]) for piece in pieces) == self.shape[-1]


def with_canvases(
    slices: Iterable[ArrivingSlice], others: Iterable[ArrivingSlice]
) -> list[ArrivingSlice]:
    """Give slices a canvas as long as there is room; the others do without.

    A canvas is as large as all lines of its slice, however few have come.

    Arguments:
        slices: The slices, which have none.
        others: Those that are under way, some of which have one.
    """
    each, taken = list(slices), sum(other.canvas is not None for other in others)
    for slice_ in each:
        taken += 1
        if 8 * math.prod(slice_.shape) * taken > ROOM:
            break
        slice_.canvas = Canvas(slice_.shape)
    return each
