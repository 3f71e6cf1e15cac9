"""Which lines a rule chose: of how many cases in each round, and when of each case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from taskuq.outputs import TaskOutputs
from taskuq.report import records
from taskuq.report.figure import Figure, FigureKind, Series
from taskuq.words import Words

# So many cases have a row of their own.
ROWS = 24


def lines_record(table: TaskOutputs, words: Words) -> dict[str, Any]:
    """Return what was measured of the cases of a table, as a record for figures.

    Arguments:
        table: A table with lines.
        words: What cases and measurements are called.

    Example:
        >>> lines = np.array([[[1, 0, 0], [1, 0, 0]], [[1, 1, 0], [1, 0, 1]]], dtype=bool)
        >>> table = TaskOutputs(rng.random((2, 2, 1)), rng.random(2), (3, 1.5), lines=lines)
        >>> record = lines_record(table, Words())
        >>> record["shares"][1], record["first"][1]["rounds"]
        ([1.0, 0.5, 0.5], [0, 2, 1])
    """
    assert table.lines is not None, "a rule chose them"
    some = np.unique(np.linspace(0, table.cases - 1, min(table.cases, ROWS)).astype(int))
    names = np.arange(table.cases) if table.case is None else table.case
    # The number of rounds before the one that measured a line first; all of them where none did.
    first = (~table.lines).sum(axis=0)
    return {
        "schema": records.LINES,
        "cases": table.cases,
        "rounds": list(table.round_labels),
        "shares": table.lines.mean(axis=1).tolist(),
        "first": [{"case": str(names[i]), "rounds": first[i].tolist()} for i in some],
        "words": [words.case, words.many("case"), words.measurement, words.many("measurement")],
    }


def lines_figures(record: Mapping[str, Any]) -> list[Figure]:
    """Return maps of lines against rounds, and of lines against cases."""
    case, cases, line, lines = map(str, record["words"])
    shares = np.asarray(record["shares"], dtype=float)
    rounds, places = [str(name) for name in record["rounds"]], tuple(range(shares.shape[1]))
    by_round = Figure(
        name="lines-by-round",
        caption=f"Which {lines} the rule measured: the darker, the larger the share of the "
        f"{int(record['cases'])} {cases}.",
        x_label=line,
        y_label=f"share of {cases}",
        series=tuple(
            Series(f"{name}: {of.sum():.0f} of {len(of)}", places, tuple(map(float, of)),
                   style="strip")
            for name, of in zip(rounds, shares, strict=True)
        ),
    )  # fmt: skip
    # Dark in the first round, fainter in each later one, and nothing for what was left.
    shade = [1 - k / len(rounds) for k in range(len(rounds))] + [0.0]
    by_case = Figure(
        name="lines-by-case",
        caption=f"When each {line} was measured of some {cases}: the darker, the earlier the "
        "round.",
        x_label=line,
        y_label="how early",
        series=tuple(
            Series(f"{case} {row['case']}", places, tuple(shade[int(k)] for k in row["rounds"]),
                   style="strip")
            for row in record["first"]
        ),
    )  # fmt: skip
    return [by_round, by_case]


LINES = FigureKind(records.LINES, lines_figures, "Measurement and images")
