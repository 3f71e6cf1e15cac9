"""Tables: numbers as numbers, how many digits to show, CSV for spreadsheets, LaTeX for papers."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskuq.files import whole_file
from taskuq.report.figure import Figure

# A cell that starts like this is run as a formula when a spreadsheet opens the file.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "∞": r"$\infty$", "±": r"$\pm$", "–": "--",
    "−": "$-$", "α": r"$\alpha$", "τ": r"$\tau$", "\n": " ", "\r": " ",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table with a sentence that says what it shows.

    Arguments:
        name: A name for files.
        caption: What it shows, as a sentence.
        columns: The heads of the columns.
        rows: The values; numbers as numbers, None where there is none.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def shown(value: Any) -> str:
    """Return a value as a table shows it: four significant digits, a dash for what is missing.

    Example:
        >>> shown(0.123456), shown(12345.0), shown(None), shown(True), shown(7), shown("ar")
        ('0.1235', '12345', '–', 'yes', '7', 'ar')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if math.isinf(value):
            return "∞" if value > 0 else "-∞"
        return f"{value:.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return str(value)


def two_digits(value: float) -> str:
    """Return an error with two digits that count, and no power of ten below a million.

    Example:
        >>> two_digits(0.01234), two_digits(168.2)
        ('0.012', '170')
    """
    return f"{float(f'{value:.2g}'):g}"


def figure_table(figure: Figure) -> Table:
    """Return the numbers of a figure as a table.

    Example:
        >>> from taskuq.report.figure import Series
        >>> figure = Figure("f", "It falls.", "R", "width", (Series("ar", (16, 8), (0.2, 0.1)),))
        >>> figure_table(figure).rows
        (('ar', 16, 0.2), ('ar', 8, 0.1))
    """
    if figure.is_strip:
        marks = tuple((s.name, sum(map(bool, s.y)), len(s.y)) for s in figure.series)
        return Table(figure.name, figure.caption, ("series", "marked", "of"), marks)
    has_error = any(series.error for series in figure.series)
    columns = ("series", figure.x_label, figure.y_label, *(("±",) if has_error else ()))
    points = tuple(
        (series.name, x, series.y[i], *((series.error and series.error[i],) if has_error else ()))
        for series in figure.series
        for i, x in enumerate(series.x)
    )
    return Table(figure.name, figure.caption, columns, points)


def cell(value: Any) -> str:
    """Return a value as a cell: a number with all its digits, text that cannot become a formula.

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


def write_csv(path: Path, table: Table) -> Path:
    """Write a table as CSV; the file begins with a mark that tells Excel it is UTF-8."""
    with whole_file(path) as partial, partial.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerow([cell(str(column)) for column in table.columns])
        writer.writerows([cell(value) for value in row] for row in table.rows)
    return path


def escaped(text: str) -> str:
    r"""Return text that LaTeX sets as it is.

    Example:
        >>> print(escaped("50 % of a_b \\input{x}"))
        50 \% of a\_b \textbackslash{}input\{x\}
    """
    return "".join(SPECIAL.get(c, c) for c in text)


def latex_table(table: Table) -> str:
    r"""Return a table as LaTeX; it needs the package booktabs.

    Example:
        >>> print(latex_table(Table("t", "Widths.", ("score", "width"), (("lwr", 0.2),))))
        \begin{table}
        \caption{Widths.}
        \label{tab:t}
        \begin{tabular}{lr}
        \toprule
        score & width \\
        \midrule
        lwr & 0.2 \\
        \bottomrule
        \end{tabular}
        \end{table}
    """
    count = len(table.columns)
    words = [k == 0 or any(isinstance(row[k], str) for row in table.rows) for k in range(count)]
    lines = [
        r"\begin{table}",
        rf"\caption{{{escaped(table.caption)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{''.join('l' if word else 'r' for word in words)}}}",
        r"\toprule",
        " & ".join(escaped(column) for column in table.columns) + r" \\",
        r"\midrule",
        *(" & ".join(escaped(shown(v)) for v in row) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines)
