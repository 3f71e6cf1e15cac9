"""Tables of a run: names, numbers as numbers, and how many digits of them to show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taskuq.decide.simulation import Simulation
from taskuq.evaluation.result import EvaluationRecord
from taskuq.report.figure import Figure, rows


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


def score_table(record: EvaluationRecord, name: str) -> Table:
    """Return coverage and width of every score of an evaluation.

    Arguments:
        record: The evaluation.
        name: What to call the table.
    """
    first = record.results[0]
    several = len({r.task for r in record.results}) > 1
    how = "all splits at once, exactly" if first.trials is None else f"{first.trials} random splits"
    caption = (
        f"Scores judged over {how}, by {first.unit}: {first.n_calibration} to calibrate and "
        f"{first.n_test} to test. Coverage is guaranteed to be at least {1 - first.alpha:g} on "
        "average; widths are measured."
    )
    head = (("task",) if several else ()) + (
        "R", "score", "p", "coverage", "coverage sd", "width", "width sd", "centre error",
        "infinite",
    )  # fmt: skip
    body = tuple(
        ((r.task,) if several else ())
        + (
            r.acceleration, r.score, r.samples, r.coverage.mean, r.coverage.sd, r.width.mean,
            r.width.sd, r.center_error.mean, r.infinite,
        )
        for r in record.results
    )  # fmt: skip
    return Table(name, caption, head, body)


def policy_table(found: Sequence[tuple[int, Simulation]], goal: str, name: str) -> Table:
    """Return what each policy of a simulation did.

    Arguments:
        found: Numbers of samples, and what each policy did.
        goal: When scans stop, in words.
        name: What to call the table.
    """
    first = found[0][1]
    caption = (
        f"Stopping rules over {first.trials} random splits by {first.unit}: scan until {goal}. "
        f"The target is coverage {1 - first.alpha:g}; it is guaranteed where the second column "
        "says so and measured elsewhere."
    )
    rates = tuple(f"stopped at R = {s.acceleration:g}" for s in first.stops)
    head = (
        "policy", "promise", "p", "average R", "coverage", "coverage of early stops",
        "stopped early", "width", "centre error", *rates,
    )  # fmt: skip
    return Table(
        name,
        caption,
        head,
        tuple(
            (
                policy_name(r), "guaranteed" if r.guaranteed else "measured", p,
                r.mean_acceleration, r.coverage, r.coverage_early, r.early, r.width,
                r.center_error, *(s.fraction for s in r.stops),
            )
            for p, r in found
        ),
    )  # fmt: skip


def policy_name(result: Simulation) -> str:
    """Return what to call a policy: its kind, its score or statistic, its budget.

    Arguments:
        result: What the policy did.
    """
    detail = result.statistic or result.score
    budget = "" if result.budget == 1 else f" {result.budget:g}"
    return f"{result.policy} {detail}{budget}"


def figure_table(figure: Figure) -> Table:
    """Return the numbers of a figure as a table.

    Arguments:
        figure: The figure.

    Example:
        >>> from taskuq.report.figure import Series
        >>> figure = Figure("f", "It falls.", "R", "width", (Series("ar", (16, 8), (0.2, 0.1)),))
        >>> figure_table(figure).rows
        (('ar', 16, 0.2), ('ar', 8, 0.1))
    """
    if any(series.style == "strip" for series in figure.series):
        marks = tuple((s.name, sum(map(bool, s.y)), len(s.y)) for s in figure.series)
        return Table(figure.name, figure.caption, ("series", "marked", "of"), marks)
    found = rows(figure)
    columns = tuple(found[0]) if found else ("series", figure.x_label, figure.y_label)
    return Table(figure.name, figure.caption, columns, tuple(tuple(r.values()) for r in found))
