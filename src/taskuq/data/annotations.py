"""fastMRI+ annotations: which slices and volumes show a pathology, and where."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from taskuq.errors import InputError

_BOX = ("x", "y", "width", "height")
# The columns of a fastMRI+ file.
COLUMNS = ("file", "slice", "study_level", *_BOX, "label")


@dataclass(frozen=True)
class Annotation:
    """One row of a fastMRI+ file.

    Attributes:
        file: Name of the volume, without its ending.
        slice_index: Number of the slice, from 0.
        is_study_level: Whether the row is about the whole volume.
        box: x, y, width, height for the image flipped up/down; None for rows without a box.
        label: Name of the pathology.
    """

    file: str
    slice_index: int
    is_study_level: bool
    box: tuple[int, int, int, int] | None
    label: str

    def rows_and_columns(self, image_height: int) -> tuple[slice, slice]:
        """The box in the image as it is stored, not flipped.

        Annotators saw the image flipped up/down: row r of the stored image was row
        ``image_height - 1 - r`` for them. A few boxes begin a pixel outside the image; they are
        cut there.

        Example:
            >>> note = Annotation("file1", 0, False, (10, 30, 5, 20), "Meniscus Tear")
            >>> note.rows_and_columns(320)
            (slice(270, 290, None), slice(10, 15, None))
        """
        if self.box is None:
            raise InputError(
                f"the row for {self.file}, slice {self.slice_index} has no box; ask rows with one",
                code="value.invalid",
            )
        x, y, width, height = self.box
        bottom = min(image_height - y, image_height)
        return slice(max(image_height - y - height, 0), bottom), slice(max(x, 0), x + width)


@dataclass(frozen=True)
class Annotations:
    """All rows of a fastMRI+ file.

    Attributes:
        rows: The rows that could be read.
        unreadable: For each other row, its line number and what is wrong with it.
    """

    rows: tuple[Annotation, ...]
    unreadable: tuple[str, ...] = ()

    @property
    def pathologies(self) -> list[str]:
        """The names that occur, sorted."""
        return sorted({row.label for row in self.rows})

    def positive_slices(self, pathology: str) -> dict[str, set[int]]:
        """For each volume with the pathology, the slices that show it.

        Names are compared without surrounding spaces (the file has some) and without regard to
        case. Rows about a whole volume name no slice and are left to :meth:`positive_volumes`.
        """
        positive: dict[str, set[int]] = {}
        for row in self._chosen(pathology):
            if not row.is_study_level:
                positive.setdefault(row.file, set()).add(row.slice_index)
        return positive

    def positive_volumes(self, pathology: str) -> set[str]:
        """The volumes with the pathology, in a slice or as a whole."""
        return {row.file for row in self._chosen(pathology)}

    def _chosen(self, pathology: str) -> list[Annotation]:
        wanted = pathology.strip().lower()
        chosen = [row for row in self.rows if row.label.lower() == wanted]
        if not chosen:
            raise InputError(
                f"no row is labelled {pathology!r}; choose from {', '.join(self.pathologies)}",
                code="choice.unknown",
            )
        return chosen


def read_annotations(path: Path | str, *, strict: bool = False) -> Annotations:
    r"""Read a fastMRI+ file such as knee.csv or brain.csv.

    References:
        Zhao et al., fastMRI+: Clinical Pathology Annotations for Knee and Brain Fully Sampled
        Multi-Coil MRI Data, Scientific Data 2022.

    Arguments:
        path: A CSV with the columns file, slice, study_level, x, y, width, height, label.
        strict: Stop at the first row that cannot be read instead of listing it.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "knee.csv"
        >>> _ = path.write_text(
        ...     "file,slice,study_level,x,y,width,height,label\n"
        ...     "file1,14,No,90,173,35,10,Meniscus Tear\n"
        ...     "file1,fifteen,No,90,173,35,10,Meniscus Tear\n"
        ... )
        >>> notes = read_annotations(path)
        >>> len(notes.rows), notes.unreadable
        (1, ("line 3: slice is 'fifteen', not a number",))
    """
    path = Path(path)
    rows, unreadable = [], []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = set(COLUMNS) - set(reader.fieldnames or ())
            if missing:
                raise InputError(
                    f"{path} has no column {', '.join(sorted(missing))}; give a fastMRI+ file with "
                    f"the columns {', '.join(COLUMNS)}",
                    code="table.column",
                )
            for row in reader:
                try:
                    rows.append(_annotation(row))
                except _RowError as error:
                    unreadable.append(f"line {reader.line_num}: {error}")
    except (OSError, UnicodeError, csv.Error) as error:
        raise InputError(
            f"{path} cannot be read ({error}); give a fastMRI+ CSV file", code="file.format"
        ) from error
    if strict and unreadable:
        raise InputError(
            f"{path}, {unreadable[0]}; correct the row or leave out --strict", code="file.format"
        )
    return Annotations(tuple(rows), tuple(unreadable))


def read_file_list(path: Path | str) -> frozenset[str]:
    """Read the list of volumes that annotators looked at, one name in each line.

    A volume on the list without a row is free of findings; a volume that is not on the list is
    not labelled at all.

    Arguments:
        path: A file such as knee_file_list.csv.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "list.csv"
        >>> _ = path.write_text("file1000001.h5")
        >>> sorted(read_file_list(path))
        ['file1000001']
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); give a list of file names", code="file.format"
        ) from error
    return frozenset(line.strip().strip(",").removesuffix(".h5") for line in lines if line.strip())


@dataclass(frozen=True, eq=False)
class Labels:
    """Source of labels.

    Attributes:
        annotations: fastMRI+ rows.
        pathology: Which pathology is 1.
        files: The volumes that annotators looked at; others are skipped. None takes all.
        per: ``"slice"`` labels each slice by its own rows; ``"volume"`` gives all slices of a
            volume with the pathology the label 1.
    """

    annotations: Annotations
    pathology: str = "Meniscus Tear"
    files: frozenset[str] | None = None
    per: Literal["slice", "volume"] = "slice"

    def of(self, name: str, slices: range) -> NDArray[np.int64]:
        """Labels of the given slices of a volume."""
        if self.per == "volume":
            return np.full(len(slices), name in self._positive_volumes, dtype=np.int64)
        positive = self._positive_slices.get(name, set())
        return np.array([index in positive for index in slices], dtype=np.int64)

    @cached_property
    def _positive_slices(self) -> dict[str, set[int]]:
        return self.annotations.positive_slices(self.pathology)

    @cached_property
    def _positive_volumes(self) -> set[str]:
        return self.annotations.positive_volumes(self.pathology)


def read_labels(
    annotations: Path | None, files: Path | None, pathology: str = "Meniscus Tear"
) -> Labels | None:
    """Read the labels of slices from the files of fastMRI+."""
    if annotations is None:
        if files is not None:
            raise InputError(
                f"files is {files} without labels; give the fastMRI+ CSV too", code="option.missing"
            )
        return None
    listed = None if files is None else read_file_list(files)
    return Labels(read_annotations(annotations), pathology, listed)


class _RowError(Exception):
    """Fault of one row."""


def _annotation(row: dict[str, str | None]) -> Annotation:
    text = {name: (row.get(name) or "").strip() for name in COLUMNS}
    if not text["file"] or not text["label"]:
        raise _RowError("file or label is empty")
    if text["study_level"].lower() not in ("yes", "no"):
        raise _RowError(f"study_level is {text['study_level']!r}, not Yes or No")
    box = None
    if any(text[name] for name in _BOX):
        x, y, width, height = (_whole(text[name], name) for name in _BOX)
        box = (x, y, width, height)
    index = _whole(text["slice"], "slice")
    if index < 0:
        raise _RowError(f"slice is {index}, below 0")
    is_study_level = text["study_level"].lower() == "yes"
    return Annotation(text["file"].removesuffix(".h5"), index, is_study_level, box, text["label"])


def _whole(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _RowError(f"{name} is {text!r}, not a number") from None
