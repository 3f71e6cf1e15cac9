"""CSV that a spreadsheet opens safely: text stays text, numbers keep all their digits."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from taskuq.files import whole_file

# A cell that starts like this is run as a formula when a spreadsheet opens the file.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def cell(value: Any) -> str:
    """Return a value as a cell: a number with all its digits, text that cannot become a formula.

    Arguments:
        value: A number, a text, a truth value, or None for an empty cell.

    Example:
        >>> cell(-0.1), cell("=1+1"), cell("-5 mm"), cell(None), cell(True)
        ('-0.1', "'=1+1", "'-5 mm", '', 'yes')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA) else text


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Write a table as CSV; the file begins with a mark that tells Excel it is UTF-8.

    Arguments:
        path: Where to write.
        columns: The heads.
        rows: The values.
    """
    with whole_file(path) as partial, partial.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerow([cell(str(column)) for column in columns])
        writer.writerows([cell(value) for value in row] for row in rows)
    return path
