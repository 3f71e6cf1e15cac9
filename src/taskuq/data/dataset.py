"""Data sets: cases, each an image with a label, a group and a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from taskuq.errors import InputError
from taskuq.interval import BoolArray
from taskuq.protocols import HasCases, HasPrecision

if TYPE_CHECKING:
    from torch import Tensor


class Item(NamedTuple):
    """One case.

    Attributes:
        image: Complex coil images (coil, height, width) or one magnitude image (height, width),
            divided by ``scale``.
        label: The class, 0 or 1 for absent and present.
        group: What the case comes in: a volume, a patient.
        case: A name to find the image again, unique in its data set.
        scale: What to multiply ``image`` with to get the numbers of the source.
    """

    image: Tensor
    label: int
    group: str
    case: str
    scale: float


@runtime_checkable
class Dataset(Protocol):
    """Cases that are read when they are asked for.

    The labels and groups of all cases are known without reading an image. A data set can be
    pickled, so that a torch ``DataLoader`` with workers takes it as it is.
    """

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of each case, (case,)."""

    @property
    def groups(self) -> NDArray[np.str_]:
        """The group of each case, (case,)."""

    def __len__(self) -> int:
        """The number of cases."""

    def __getitem__(self, index: int) -> Item:
        """Read one case."""


@dataclass(frozen=True)
class Subset:
    """Some cases of a data set, in the given order; itself a data set.

    Arguments:
        source: The data set.
        indices: Which of its cases.

    Example:
        >>> from taskuq.data.arrays import ArrayDataset
        >>> images = np.ones((3, 8, 8), dtype=np.float32)
        >>> data = ArrayDataset(images, label=[0, 1, 0], group=["a", "a", "b"])
        >>> Subset(data, (2, 0)).groups
        array(['b', 'a'], dtype='<U1')
    """

    source: Dataset
    indices: Sequence[int]

    @classmethod
    def where(cls, source: Dataset, chosen: BoolArray) -> Subset:
        """The cases of a data set for which ``chosen`` (case,) is True."""
        return cls(source, tuple(int(i) for i in np.flatnonzero(chosen)))

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of each case, (case,)."""
        return np.asarray(self.source.labels[np.asarray(self.indices, dtype=int)])

    @property
    def groups(self) -> NDArray[np.str_]:
        """The group of each case, (case,)."""
        return np.asarray(self.source.groups[np.asarray(self.indices, dtype=int)])

    @property
    def cases(self) -> NDArray[np.str_] | None:
        """The name of each case, (case,), where the source knows them without reading images."""
        names = names_of(self.source)
        return None if names is None else np.asarray(names[np.asarray(self.indices, dtype=int)])

    @property
    def precision(self) -> str | None:
        """Return how exact the source's images are, where it says."""
        return precision_of(self.source)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Item:
        return self.source[self.indices[index]]


@dataclass(frozen=True)
class Changed:
    """A data set whose cases are changed when they are read; itself a data set.

    Arguments:
        source: The data set.
        change: What is done to each case; label, group and name stay.

    Example:
        >>> from taskuq.data.arrays import ArrayDataset
        >>> data = ArrayDataset(np.ones((3, 8, 8)), label=[0, 1, 0], group="each")
        >>> Changed(data, lambda item: item._replace(image=-item.image))[0].image.max()
        tensor(-1.)
    """

    source: Dataset
    change: Callable[[Item], Item]

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of each case, (case,)."""
        return self.source.labels

    @property
    def groups(self) -> NDArray[np.str_]:
        """The group of each case, (case,)."""
        return self.source.groups

    @property
    def cases(self) -> NDArray[np.str_] | None:
        """The name of each case, (case,), where the source knows them without reading images."""
        return names_of(self.source)

    @property
    def precision(self) -> str | None:
        """Return how exact the source's images are, where it says."""
        return precision_of(self.source)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Item:
        return self.change(self.source[index])


def names_of(dataset: Dataset) -> NDArray[np.str_] | None:
    """The name of each case, (case,), or None where a data set knows them by reading alone."""
    return dataset.cases if isinstance(dataset, HasCases) else None


def precision_of(dataset: Dataset) -> str | None:
    """Return the precision of images, ``"half"`` or ``"single"``; None if unknown."""
    return dataset.precision if isinstance(dataset, HasPrecision) else None


def split_by_group(
    dataset: Dataset, fractions: Sequence[float], *, rng: np.random.Generator
) -> tuple[Subset, ...]:
    """Split a data set into parts that share no group; within each, cases keep their order.

    Neighbouring slices of a patient are near copies; a split by case would put copies of the
    training images into the test fold.

    Arguments:
        dataset: The data set.
        fractions: The share of groups in each part; the last part takes what is left over.
        rng: Where the order of the groups comes from.

    Example:
        >>> from taskuq.data.arrays import ArrayDataset
        >>> images = np.ones((6, 8, 8), dtype=np.float32)
        >>> data = ArrayDataset(images, label=[0] * 6, group=["a", "a", "b", "b", "c", "c"])
        >>> [len(part) for part in split_by_group(data, (2 / 3, 1 / 3), rng=rng)]
        [4, 2]
    """
    if min(fractions, default=0) <= 0 or abs(sum(fractions) - 1) > 1e-9:
        raise InputError(
            f"fractions are {list(fractions)}; give positive numbers that sum to 1",
            code="value.invalid",
        )
    groups = dataset.groups
    names = rng.permutation(np.unique(groups))
    # Two thirds of three groups is 1.9999... in floats.
    ends = np.floor(np.cumsum(fractions) * len(names) + 1e-9).astype(int)
    ends[-1] = len(names)
    parts = np.split(names, ends[:-1])
    if any(len(part) == 0 for part in parts):
        raise InputError(
            f"{len(names)} groups cannot be split {list(fractions)} without an empty part; give "
            "more groups or fewer parts",
            code="units.few",
        )
    return tuple(Subset.where(dataset, np.isin(groups, part)) for part in parts)
