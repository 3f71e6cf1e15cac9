"""What is in a folder: which files are used, which are skipped and why, as one table."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.data.arrays import read_npz
from taskuq.data.fastmri import Finding, Labels, survey
from taskuq.data.folder import Grouping, ImageFolder
from taskuq.data.preparation import Preparation
from taskuq.errors import InputError


@dataclass(frozen=True)
class Row:
    """One file of the table.

    Attributes:
        file: Its name below the folder.
        used: Whether it is used.
        reason: Why not; empty where it is.
        kind: What it is: an acquisition, or a file format.
        size: Coils, height and width, as text.
        slices: How many images are used.
        positives: How many of these carry the label 1 (or larger).
    """

    file: str
    used: bool
    reason: str
    kind: str
    size: str
    slices: int
    positives: int


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
            "files": [asdict(row) for row in self.rows],
        }


def check_fastmri(
    folder: Path,
    preparation: Preparation,
    labels: Labels | None = None,
    *,
    strict: bool = False,
    thorough: bool = False,
) -> Check:
    """Check a folder of fastMRI volumes.

    Arguments:
        folder: The folder.
        preparation: Which volumes and slices are used.
        labels: Where labels come from.
        strict: Stop at the first file, or row of labels, that cannot be used.
        thorough: Read the k-space of every volume that is used.

    Returns:
        The table.
    """
    unreadable = () if labels is None else labels.annotations.unreadable
    if strict and unreadable:
        raise InputError(f"labels, {unreadable[0]}; correct the row or leave out --strict")
    findings = survey(folder, preparation, labels, strict=strict, thorough=thorough)
    rows = tuple(_volume_row(folder, finding) for finding in findings)
    notes = tuple(f"label row skipped: {reason}" for reason in unreadable)
    return Check(rows, groups=sum(row.used for row in rows), notes=notes)


def check_images(folder: Path, table: Path, *, group: Grouping | None = None) -> Check:
    """Check a folder of one's own images: read every image that the table names.

    Arguments:
        folder: The folder.
        table: The CSV with file, label and group.
        group: What a group is where the table has no column for it.

    Returns:
        The table; a file that cannot be read stops the check with a sentence.
    """
    data = ImageFolder(folder, table, group=group, normalise=False)
    files: dict[Path, list[int]] = {}
    for index, frame in enumerate(data.frames):
        files.setdefault(frame.path, []).append(index)
    rows = []
    for path, indices in files.items():
        shapes = {tuple(data[index].image.shape) for index in indices}
        rows.append(
            Row(
                file=str(path.relative_to(folder)),
                used=True,
                reason="",
                kind="DICOM series" if path.is_dir() else path.suffix.lstrip("."),
                size=" or ".join("×".join(map(str, shape)) for shape in sorted(shapes)),
                slices=len(indices),
                positives=int((data.labels[indices] > 0).sum()),
            )
        )
    notes = () if len({row.size for row in rows}) == 1 else ("sizes differ: give --size to cut",)
    return Check(tuple(rows), groups=len(np.unique(data.groups)), notes=notes)


def check_arrays(path: Path, *, group: str | None = None) -> Check:
    """Check one .npz file.

    Arguments:
        path: The file.
        group: ``"each"`` when each image is its own group and the file has no groups.

    Returns:
        The table.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "mine.npz"
        >>> np.savez(path, images=np.ones((4, 8, 8)), label=[0, 0, 1, 1], group=[7, 7, 9, 9])
        >>> check_arrays(path).summary
        {'files': 1, 'used': 1, 'skipped': {}, 'groups': 2, 'slices': 4, 'positives': 2}
    """
    data = read_npz(path, group=group, normalise=False)
    size = "×".join(map(str, data.images.shape[1:]))
    positives = int((data.labels > 0).sum())
    row = Row(path.name, True, "", str(data.images.dtype), size, len(data), positives)
    return Check((row,), groups=len(np.unique(data.groups)))


def _volume_row(folder: Path, finding: Finding) -> Row:
    volume = finding.volume
    return Row(
        file=str(finding.file.relative_to(folder)),
        used=not finding.reason,
        reason=finding.reason,
        kind="" if volume is None else volume.acquisition,
        size="" if volume is None else f"{volume.coils}×{volume.height}×{volume.width}",
        slices=finding.slices,
        positives=finding.positives,
    )
