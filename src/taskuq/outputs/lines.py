"""Which lines were measured of each case, as texts that people and programs can read."""

from __future__ import annotations

from typing import Any

import numpy as np

from taskuq.errors import InputError
from taskuq.interval import BoolArray


def lines_as_texts(lines: Any, rows: int, count: int | None) -> list[str]:
    """Return the numbers of measured lines of each row, separated by spaces.

    Arguments:
        lines: Booleans (row, line).
        rows: How many rows there have to be.
        count: How many lines there have to be.

    Example:
        >>> lines_as_texts([[False, True, True], [True, False, False]], rows=2, count=3)
        ['1 2', '0']
    """
    found = np.asarray(lines)
    if found.dtype != bool or found.shape != (rows, count):
        raise InputError(
            f"lines are {found.dtype} of shape {found.shape}; booleans {(rows, count)} are needed"
        )
    return [" ".join(map(str, np.flatnonzero(row))) for row in found]


def lines_from_texts(texts: list[str], count: int, where: str) -> BoolArray:
    """Read what :func:`lines_as_texts` wrote, booleans (row, line).

    Arguments:
        texts: One for each row.
        count: How many lines there are.
        where: The file they are from.

    Example:
        >>> lines_from_texts(["1 2", "0"], 3, "part-0").astype(int).tolist()
        [[0, 1, 1], [1, 0, 0]]
        >>> lines_from_texts(["7"], 3, "part-0")
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: part-0 names lines that are not below 3: '7'
    """
    found = np.zeros((len(texts), count), dtype=bool)
    for row, text in zip(found, texts, strict=True):
        parts = str(text).split()
        if not all(part.isdecimal() and len(part) < 10 and int(part) < count for part in parts):
            raise InputError(f"{where} names lines that are not below {count}: {str(text)[:40]!r}")
        row[[int(part) for part in parts]] = True
    return found
