"""What a run goes through: images with an identity, a group and a class, read when needed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskuq.checks import as_array, as_ids
from taskuq.errors import InputError
from taskuq.protocols import HasCases, HasGroups, HasImage, HasLabels


@dataclass(frozen=True)
class Cases:
    """The cases of a run.

    Arguments:
        images: Anything with a length whose items are images, or items with an ``image``.
        case: The identity of each.
        group: The group of each, if known.
        label: The class of each, if known.
    """

    images: Any
    case: tuple[str, ...]
    group: np.ndarray | None
    label: np.ndarray | None

    def __len__(self) -> int:
        return len(self.case)

    def image(self, index: int) -> Any:
        """Read one image."""
        item = self.images[index]
        return item.image if isinstance(item, HasImage) else item


def as_cases(
    images: Any,
    case: Sequence[Any] | None = None,
    group: Sequence[Any] | None = None,
    label: Sequence[Any] | None = None,
) -> Cases:
    """Take a data set, an array of images, or a list of them, as the cases of a run.

    A data set brings its own labels, groups and, if it has them, identities; what is given
    explicitly takes their place.

    Arguments:
        images: A data set, an array (case, ...), or a sequence of images.
        case: The identity of each; numbers from 0 where nothing else is known.
        group: The group of each.
        label: The class of each.

    Example:
        >>> cases = as_cases(np.zeros((3, 8, 8)), group=["a", "a", "b"])
        >>> len(cases), cases.case, cases.image(2).shape
        (3, ('0', '1', '2'), (8, 8))
    """
    try:
        n = len(images)
        images.__getitem__  # noqa: B018  # a sequence is asked for its items, nothing is read yet
    except (TypeError, AttributeError):
        raise InputError("images must have a length and give items by their number") from None
    if n == 0:
        raise InputError("there are no images to run; check the data set")
    if group is None and isinstance(images, HasGroups):
        group = images.groups
    if label is None and isinstance(images, HasLabels):
        label = images.labels
    if case is None and isinstance(images, HasCases):
        case = images.cases
    names = tuple(str(c) for c in (range(n) if case is None else as_ids(case, "case", n)))
    if len(set(names)) != n:
        raise InputError("two cases have the same identity; each needs its own")
    return Cases(
        images,
        names,
        None if group is None else as_ids(group, "group", n).astype(str),
        None if label is None else as_ids(label, "label", n),
    )


def image_mark(image: Any) -> str:
    """Return a short fingerprint of an image; empty for what is no array.

    Example:
        >>> image_mark(np.zeros((2, 2))), image_mark(object())
        ('d867bfd4712f9f3e', '')
    """
    try:
        array = np.ascontiguousarray(as_array(image, "image"))
    except (InputError, TypeError):
        return ""
    if array.dtype.kind not in "biufc":
        return ""
    kind = f"{array.dtype.str} {array.shape}".encode()
    return hashlib.sha256(kind + array.tobytes()).hexdigest()[:16]
