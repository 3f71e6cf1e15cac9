"""Your own images: a folder of files and a table that says what is what."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from taskuq.data.arrays import group_scale
from taskuq.data.check import Check, Row, as_size
from taskuq.data.dataset import Dataset, Item
from taskuq.data.formats import FloatArray, count_frames, read_frame
from taskuq.data.readers import Reader, given
from taskuq.errors import InputError

Grouping = Literal["file", "folder", "each"]


@dataclass(frozen=True)
class Frame:
    """One image of a folder: which frame of which file, its label and its group."""

    path: Path
    index: int
    label: int
    group: str
    case: str


class ImageFolder:
    r"""Magnitude images from PNG, TIFF, NIfTI or DICOM files, read when they are asked for.

    Arguments:
        folder: Where the files are.
        labels: A CSV with the columns ``file`` (relative to the folder; the folder of a DICOM
            series is named as one file), ``label``, ``group``, and optionally ``slice`` for files
            with several; a row without a slice is about all of them.
        group: What a group is where the table has no column for it: ``"file"`` (a NIfTI volume,
            say), ``"folder"``, or ``"each"`` image on its own. It is never guessed.
        size: Cut or pad images to this many rows and columns about their centre.
        normalise: Divide each group by the 99.5 % quantile of its magnitudes.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> Image.fromarray(np.full((8, 8), 100, dtype=np.uint8)).save(folder / "a.png")
        >>> _ = (folder / "labels.csv").write_text("file,label,group\na.png,1,anna\n")
        >>> data = ImageFolder(folder, folder / "labels.csv")
        >>> data[0].label, data[0].group, data[0].scale
        (1, 'anna', 100.0)
    """

    def __init__(
        self,
        folder: Path | str,
        labels: Path | str,
        *,
        group: Grouping | None = None,
        size: int | None = None,
        normalise: bool = True,
    ) -> None:
        self.frames = _read_table(Path(folder), Path(labels), group)
        self.size = size
        self.normalise = normalise
        self._scales: dict[str, float] = {}

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of each case, (case,)."""
        return np.array([frame.label for frame in self.frames], dtype=np.int64)

    @property
    def groups(self) -> NDArray[np.str_]:
        """The group of each case, (case,)."""
        return np.array([frame.group for frame in self.frames])

    @property
    def cases(self) -> NDArray[np.str_]:
        """The name of each case: its file, and its number where the file has several, (case,)."""
        return np.array([frame.case for frame in self.frames])

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Item:
        import torch

        frame = self.frames[index]
        scale = self._scale(frame.group)
        return Item(
            image=torch.as_tensor(self._image(frame) / np.float32(scale)),
            label=frame.label,
            group=frame.group,
            case=frame.case,
            scale=scale,
        )

    def _image(self, frame: Frame) -> FloatArray:
        image = read_frame(frame.path, frame.index)
        return image if self.size is None else center_fit(image, self.size, self.size)

    def _scale(self, group: str) -> float:
        if not self.normalise:
            return 1.0
        if group not in self._scales:
            values = [self._image(f).ravel() for f in self.frames if f.group == group]
            self._scales[group] = group_scale(np.concatenate(values))
        return self._scales[group]


@dataclass(frozen=True, kw_only=True)
class FolderData(Reader):
    """Image files and a CSV, as :class:`ImageFolder` reads them.

    Arguments:
        path: The folder.
        labels: The CSV with file, label and group of each image.
        group: What a group is where the CSV does not say.
        cut: Cut or pad images to this many rows and columns.

    Example:
        >>> FolderData(path=Path("images"), labels=Path("labels.csv"), cut=128).cut
        128
    """

    path: Path | None = None
    labels: Path | None = None
    group: Grouping | None = None
    cut: int | None = None

    def open(self) -> Dataset:
        """All images that the CSV names."""
        return self._images(normalise=True)

    def check(self, *, strict: bool, thorough: bool) -> Check:
        """One row for each file; a file that cannot be read stops the check with a sentence."""
        data = self._images(normalise=False)
        files: dict[Path, list[int]] = {}
        for index, frame in enumerate(data.frames):
            files.setdefault(frame.path, []).append(index)
        rows = []
        for path, indices in files.items():
            shapes = {tuple(data[index].image.shape) for index in indices}
            rows.append(
                Row(
                    file=str(path.relative_to(self.path or "")),
                    kind="DICOM series" if path.is_dir() else path.suffix.lstrip("."),
                    size=" or ".join(map(as_size, sorted(shapes))),
                    slices=len(indices),
                    positives=int((data.labels[indices] > 0).sum()),
                )
            )
        one_size = len({row.size for row in rows}) == 1
        notes = () if one_size else ("sizes differ: say in [data] to which size to cut, cut = 128",)
        return Check(tuple(rows), groups=len(np.unique(data.groups)), notes=notes)

    def _images(self, *, normalise: bool) -> ImageFolder:
        folder = given(self.path, "path", "the folder of images")
        table = given(self.labels, "labels", "the CSV with file, label and group")
        return ImageFolder(folder, table, group=self.group, size=self.cut, normalise=normalise)


def center_fit(image: FloatArray, height: int, width: int) -> FloatArray:
    """Cut or pad an image with zeros; the pixel at half its size stays at half its size."""
    for axis, wanted in enumerate((height, width)):
        have = image.shape[axis]
        if have > wanted:
            start = have // 2 - wanted // 2
            image = np.take(image, range(start, start + wanted), axis=axis)
        elif have < wanted:
            before = wanted // 2 - have // 2
            pads = [(0, 0), (0, 0)]
            pads[axis] = (before, wanted - have - before)
            image = np.pad(image, pads)
    return image


def _read_table(folder: Path, table: Path, group: Grouping | None) -> tuple[Frame, ...]:
    """The images of a table of labels, in its order."""
    try:
        with table.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            columns = set(reader.fieldnames or ())
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(
            f"{table} cannot be read ({error}); give a CSV file", code="file.format"
        ) from error
    if missing := {"file", "label"} - columns:
        raise InputError(
            f"{table} has no column {', '.join(sorted(missing))}; add it", code="table.column"
        )
    if "group" not in columns and group is None:
        raise InputError(
            f"{table} has no column group; add one (patient or volume), or say what a group is: "
            "file, folder or each",
            code="groups.missing",
        )
    if "group" in columns and group is not None:
        raise InputError(
            f"{table} has a column group and {group!r} is asked for; leave one of the two out",
            code="option.conflict",
        )
    frames = [frame for line, row in rows for frame in _frames(folder, table, line, row, group)]
    names = [frame.case for frame in frames]
    if not frames or len(set(names)) != len(names):
        again = sorted({name for name in names if names.count(name) > 1})[:1]
        raise InputError(
            f"{table} names {'no image' if not frames else f'{again[0]} twice'}; give each image "
            "one row",
            code="table.duplicate",
        )
    return tuple(frames)


def _frames(
    folder: Path, table: Path, line: int, row: dict[str, str], group: Grouping | None
) -> list[Frame]:
    where = f"{table}, line {line}"
    if None in (row["file"], row["label"]) or not row["file"].strip():
        raise InputError(
            f"{where}: the row is short of file or label; fill it", code="table.incomplete"
        )
    name, path = row["file"].strip(), folder / row["file"].strip()
    if Path(name).is_absolute():
        raise InputError(
            f"{where}: file is {name!r:.80}; give its name from {folder}", code="file.missing"
        )
    try:
        label = int(row["label"])
        chosen = None if not (row.get("slice") or "").strip() else int(row["slice"])
    except (ValueError, TypeError):
        raise InputError(
            f"{where}: label is {row['label']!r} and slice {row.get('slice')!r}; use integers",
            code="dtype.invalid",
        ) from None
    if group is None and not (row["group"] or "").strip():
        raise InputError(
            f"{where}: group is empty; name the patient or volume", code="groups.missing"
        )
    count = count_frames(path)
    if chosen is not None and not 0 <= chosen < count:
        raise InputError(
            f"{where}: slice is {chosen}; {name} has slices 0 to {count - 1}", code="value.invalid"
        )
    frames = []
    for index in range(count) if chosen is None else (chosen,):
        case = name if count == 1 else f"{name}#{index}"
        names = {None: row.get("group") or "", "file": name, "each": case}
        names["folder"] = str(path.parent.relative_to(folder))
        frames.append(Frame(path, index, label, names[group].strip(), case))
    return frames
