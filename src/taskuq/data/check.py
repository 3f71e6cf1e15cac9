"""Contents of a data folder as a table: files that are used, and those skipped with reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from taskuq.data.readers import Reader


@dataclass(frozen=True)
class Row:
    """One file of the table.

    Attributes:
        file: Its name below the folder.
        kind: What it is: an acquisition, or a file format.
        size: Coils, height and width, as text.
        slices: How many images are used.
        positives: How many of these carry the label 1 (or larger).
        reason: Why it is not used; empty where it is.
    """

    file: str
    kind: str
    size: str
    slices: int
    positives: int
    reason: str = ""

    @property
    def used(self) -> bool:
        """True if it is used."""
        return not self.reason

    def as_record(self) -> dict[str, Any]:
        """The row as JSON holds it."""
        names = ("file", "used", "reason", "kind", "size", "slices", "positives")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Check:
    """The table of a folder, and what follows from it.

    Attributes:
        rows: One for each file.
        groups: How many groups (volumes, patients) are used.
        notes: What else a user should know, such as label rows that could not be read.
    """

    rows: tuple[Row, ...]
    groups: int
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> dict[str, Any]:
        """Counts: files, used, skipped by reason, groups, slices, positives."""
        skipped = Counter(row.reason for row in self.rows if not row.used)
        return {
            "files": len(self.rows),
            "used": sum(row.used for row in self.rows),
            "skipped": dict(skipped.most_common()),
            "groups": self.groups,
            "slices": sum(row.slices for row in self.rows),
            "positives": sum(row.positives for row in self.rows),
        }

    def as_record(self) -> dict[str, Any]:
        """The table as a JSON record."""
        return {
            "schema": "taskuq.data-check/1",
            "summary": self.summary,
            "notes": list(self.notes),
            "files": [row.as_record() for row in self.rows],
        }


@runtime_checkable
class Checkable(Protocol):
    """A reader that knows its files: a table by file says more than one by group."""

    def check(self, *, strict: bool, thorough: bool) -> Check:
        """Return a description of the files."""
        ...


def check(reader: Reader, *, strict: bool = False, thorough: bool = False) -> Check:
    """Describe the data of a table ``[data]``, file by file or group by group."""
    if isinstance(reader, Checkable):
        return reader.check(strict=strict, thorough=thorough)
    cases, rows = reader.open(), []
    labels, groups = cases.labels, cases.groups
    for group in dict.fromkeys(groups.tolist()):
        indices = np.flatnonzero(groups == group)
        images = [cases[int(index)].image for index in indices]
        kinds = sorted({str(image.dtype).removeprefix("torch.") for image in images})
        sizes = sorted({as_size(image.shape) for image in images})
        positives = int((labels[indices] > 0).sum())
        rows.append(Row(group, " or ".join(kinds), " or ".join(sizes), len(indices), positives))
    return Check(tuple(rows), groups=len(rows))


def as_size(shape: Sequence[int]) -> str:
    """A shape as text."""
    return "×".join(map(str, shape))
