"""Splits of groups into training, tuning and test sets, stored once and never mixed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskuq.data.dataset import Changed, Dataset, Item, Subset
from taskuq.data.memory import InMemory
from taskuq.errors import InputError
from taskuq.files import read_json, write_json
from taskuq.interval import FloatArray

SCHEMA = "taskuq.split/1"
PARTS = ("train", "tune", "judge")


@dataclass(frozen=True)
class Split:
    """Three disjoint sets of groups (patients, volumes).

    Calibration and test draw from ``judge`` alone: coverage must not be measured on patients that
    weights, thresholds or settings were chosen by.

    Arguments:
        train: Groups whose images networks learn from.
        tune: Groups that decide when training stops and which weights are kept.
        judge: Groups that calibrate and test.

    Example:
        >>> Split(train=("a", "b"), tune=("c",), judge=("a",))
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: 1 group is both in train and in judge, first a; ...
    """

    train: tuple[str, ...]
    tune: tuple[str, ...]
    judge: tuple[str, ...]

    def __post_init__(self) -> None:
        for one, other in combinations(PARTS, 2):
            common = sorted(set(getattr(self, one)) & set(getattr(self, other)))
            if common:
                raise InputError(
                    f"{_groups(len(common))} both in {one} and in {other}, first {common[0]}; let "
                    "each patient be in one part only",
                    code="data.leak",
                )
        for part in PARTS:
            names = getattr(self, part)
            if len(set(names)) != len(names):
                raise InputError(
                    f"{part} names a group twice; name each group once", code="table.duplicate"
                )

    def of(self, dataset: Dataset) -> tuple[Subset, Subset, Subset]:
        """The three parts of a data set; every group of it must have a part."""
        return _part(dataset, self.train), _part(dataset, self.tune), self.judged(dataset)

    def judged(self, dataset: Dataset) -> Subset:
        """The cases of the groups that may calibrate and test."""
        known = {*self.train, *self.tune, *self.judge}
        unknown = sorted(set(map(str, dataset.groups)) - known)
        if unknown:
            raise InputError(
                f"{_groups(len(unknown))} in no part of the split, first {unknown[0]}; use the "
                "data the split was made for, or make a split of its own",
                code="resume.mismatch",
            )
        return _part(dataset, self.judge)


@dataclass(frozen=True, eq=False)
class Part:
    """Some cases and what should be said about them.

    Arguments:
        cases: The images.
        targets: What a task network should say, (case, task).
        is_read: Whether every image is in memory already.
    """

    cases: Dataset
    targets: FloatArray
    is_read: bool = False

    @classmethod
    def of(cls, cases: Dataset) -> Part:
        """Cases with their labels as targets."""
        return cls(cases, np.asarray(cases.labels, dtype=np.float64)[:, None])

    def in_memory(self, processes: int = 1) -> Part:
        """The same with every image read, as a magnitude image: a task network sees nothing else.

        Arguments:
            processes: The number of processes that read.
        """
        if self.is_read:
            return self
        # Of eight coils a sixteenth of the memory.
        combined = Changed(self.cases, _combined)
        return replace(self, cases=InMemory.of(combined, processes), is_read=True)

    def split(self, split: Split) -> tuple[Part, Part, Part]:
        """The three parts that a split names: to train on, to tune on, to judge."""
        train, tune, judge = (
            replace(self, cases=part, targets=self.targets[list(part.indices)])
            for part in split.of(self.cases)
        )
        return train, tune, judge


@dataclass(frozen=True)
class SplitConfig:
    """Shares of groups for training and tuning; the rest calibrates and tests.

    Arguments:
        path: The JSON file that holds the split: written by the first training, read by all others.
        train: The share of patients to train on.
        tune: The share of patients that decide when to stop.
        seed: Where the order comes from.

    Example:
        >>> SplitConfig().train, SplitConfig().tune
        (0.6, 0.1)
    """

    path: Path | None = None
    train: float = 0.6
    tune: float = 0.1
    seed: int = 0

    def split(self, groups: NDArray[np.str_], *, is_stored: bool = True) -> Split:
        """The stored split, or a new one, which is stored; shares and seed must agree with it."""
        new = split_groups(groups, self.train, self.tune, seed=self.seed)
        if self.path is None or not (is_stored or self.path.exists()):
            return new
        return load_split(save_split(new, self.path))


def split_groups(groups: Iterable[str], train: float, tune: float, *, seed: int) -> Split:
    """Split the set of groups by a seed; what is not for training or tuning is judged.

    Arguments:
        groups: The group of each case, or each group once.
        train: The share of groups to train on.
        tune: The share of groups to tune on.
        seed: Where the order comes from.

    Example:
        >>> split = split_groups(["a", "a", "b", "c", "d"], 0.5, 0.25, seed=0)
        >>> len(split.train), len(split.tune), len(split.judge)
        (2, 1, 1)
    """
    if min(train, tune) <= 0 or train + tune > 1 + 1e-9:
        raise InputError(
            f"shares are {train} to train and {tune} to tune; give positive shares that sum to at "
            "most 1",
            code="value.invalid",
        )
    names = np.random.default_rng(seed).permutation(sorted({str(group) for group in groups}))
    # Half of four groups must be two even where 0.5 came out of arithmetic.
    ends = np.floor(np.cumsum([train, tune]) * len(names) + 1e-9).astype(int)
    parts = [tuple(str(n) for n in part) for part in np.split(names, ends)]
    if not (parts[0] and parts[1]):
        raise InputError(
            f"{_groups(len(names))} too few for shares {train} and {tune}; give more groups or "
            "larger shares",
            code="units.few",
        )
    return Split(*parts)


def folds(groups: Iterable[str], count: int, tune: float, *, seed: int) -> list[Split]:
    """Cross-validation by group: each group is judged in exactly one of the splits.

    Arguments:
        groups: The group of each case, or each group once.
        count: The number of folds.
        tune: The share of the other groups to tune on.
        seed: Where the order comes from.

    Example:
        >>> parts = folds("abcdef", 3, 0.25, seed=0)
        >>> sorted(name for split in parts for name in split.judge)
        ['a', 'b', 'c', 'd', 'e', 'f']
    """
    names = np.random.default_rng(seed).permutation(sorted({str(group) for group in groups}))
    if not 2 <= count <= len(names):
        raise InputError(
            f"{count} folds of {len(names)} groups; give 2 to {len(names)} folds",
            code="value.invalid",
        )
    splits = []
    for k, judged in enumerate(np.array_split(names, count)):
        others = [str(name) for name in names if name not in set(judged)]
        rest = split_groups(others, 1 - tune, tune, seed=seed + k + 1)
        # Shares are rounded down; no group is left out.
        splits.append(Split(rest.train + rest.judge, rest.tune, tuple(map(str, judged))))
    return splits


def save_split(split: Split, path: Path | str) -> Path:
    """Store a split; a file that holds another one is refused, not overwritten.

    Arguments:
        split: The split.
        path: The JSON file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "split.json"
        >>> load_split(save_split(Split(("a",), ("b",), ("c",)), path)).judge
        ('c',)
        >>> save_split(Split(("b",), ("a",), ("c",)), path)
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: ...split.json holds another split ...
    """
    path = Path(path)
    if path.exists():
        if _as_sets(load_split(path)) != _as_sets(split):
            raise InputError(
                f"{path} holds another split (other patients, shares or seed); give another file, "
                "or delete it together with everything that was trained or calibrated with it",
                code="resume.mismatch",
            )
        return path
    record: dict[str, Any] = {"schema": SCHEMA}
    record |= {part: list(getattr(split, part)) for part in PARTS}
    return write_json(path, record)


def load_split(path: Path | str) -> Split:
    """Read what :func:`save_split` wrote; a split in which a group has two parts is refused.

    Arguments:
        path: The JSON file.
    """
    record = read_json(path, SCHEMA, is_sealed=False)
    parts = [record.get(part) for part in PARTS]
    if not all(isinstance(p, list) and all(isinstance(n, str) for n in p) for p in parts):
        raise InputError(
            f"{path} lacks lists of names {', '.join(PARTS)}; write it again", code="file.format"
        )
    try:
        return Split(*(tuple(part) for part in parts))  # type: ignore[arg-type]  # checked above
    except InputError as error:
        raise InputError(f"{path}: {error}", code=error.code) from None


def _part(dataset: Dataset, names: Sequence[str]) -> Subset:
    return Subset.where(dataset, np.isin(dataset.groups, list(names)))


def _combined(item: Item) -> Item:
    from taskuq.measure.coils import magnitude

    return item._replace(image=magnitude(item.image))


def _as_sets(split: Split) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(getattr(split, part)) for part in PARTS)


def _groups(count: int) -> str:
    return "1 group is" if count == 1 else f"{count} groups are"
