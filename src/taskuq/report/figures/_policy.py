"""Figures of policies, monitors and adaptive lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from taskuq.report import _records as records
from taskuq.report._records import has_several_tasks, number, policy_name, round_called
from taskuq.report.figures import Figure, FigureKind, Series, Style, method_label, series_from_rows
from taskuq.report.figures._evaluation import lowest_coverage
from taskuq.table._table import TaskOutputs
from taskuq.table._terminology import Terminology

# Results at each round of a rule, the fully measured one last.
Stops = Sequence[Mapping[str, Any]]
HEADING = "When scans stop"
# Points of a long series of evidence that are drawn, and cases with a row of their own.
_POINTS, _ROWS = 400, 24


def accepted(stops: Mapping[str, Stops], called: Mapping[float, str] | None = None) -> Figure:
    """Plot the fraction of cases that stop in each round, by stopping rule."""
    caption = "Fraction of cases that stop in each round; in the last, everything is measured."
    if not called:
        caption = "Fraction of cases that stop at each acceleration; R = 1 is a full scan."
    series = series_from_rows(
        [(rule, stop) for rule, of in stops.items() for stop in of],
        lambda pair: pair[0],
        lambda pair: _round(pair[1], called),
        # A mean of fractions may be negative by a rounding error.
        lambda pair: max(0.0, number(pair[1]["fraction"])),
        # Many bars next to each other cannot be distinguished.
        style="bars" if len(stops) < 4 else "points",
    )
    x_label = "round" if called else "acceleration R"
    early = {one.name: sum(y or 0.0 for y in one.y[:-1]) for one in series}
    most = max(early, key=lambda rule: early[rule])
    title = f"{method_label(most)} stops most scans early: {100 * early[most]:.3g} %"
    return Figure("accepted-by-acceleration", caption, x_label, "fraction of cases", series,
                  x_scale="category", title=title)  # fmt: skip


def _round(stop: Mapping[str, Any], called: Mapping[float, str] | None) -> str:
    R = float(stop["acceleration"])
    return called[R] if called else f"{R:g}"


def _called(record: Mapping[str, Any]) -> dict[float, str] | None:
    if not (record.get("inputs") or {}).get("round_names"):
        return None
    rates = [float(stop["acceleration"]) for stop in record["results"][0]["stops"]]
    return {R: round_called(record, R) for R in rates}


def coverage_at_stop(
    stops: Mapping[str, Stops], alpha: float, called: Mapping[float, str] | None = None
) -> Figure:
    """Plot coverage among the cases that stop in each round, by stopping rule."""
    series = series_from_rows(
        [(rule, stop) for rule, of in stops.items() for stop in of[:-1]],
        lambda pair: pair[0],
        lambda pair: _round(pair[1], called),
        lambda pair: None if pair[1]["fraction"] == 0 else number(pair[1]["coverage"]),
        style="points",
    )
    caption = (
        f"Coverage among the cases stopped at each {'round' if called else 'acceleration'}; "
        "measured. The guarantee is for all stops together."
    )
    return Figure(
        "coverage-by-stop", caption, "stopped at" if called else "stopped at acceleration R",
        "coverage", series, x_scale="category", reference=(("target", 1 - alpha),),
        title=lowest_coverage(series, "" if called else "R ="),
    )  # fmt: skip


def acceleration_against_width(
    points: Sequence[tuple[str, float, float]], style: Style = "points"
) -> Figure:
    """Plot mean acceleration, by rule, against the mean interval width of scans that stop early."""
    caption = (
        "Average acceleration against the mean interval width of scans that stop early: up and to "
        "the left is better. The paper's rules have no guarantee."
    )
    series = series_from_rows(points, lambda p: p[0], lambda p: p[1], lambda p: p[2], style=style)
    best = max(points, key=lambda p: p[2])
    title = f"{method_label(best[0])} reaches the highest average acceleration, {best[2]:.3g}"
    return Figure("acceleration-against-width", caption, "mean width of early stops",
                  "average acceleration", series, title=title)  # fmt: skip


def _most(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    most = max(int(row["samples"]) for row in record["results"])
    return [row for row in record["results"] if int(row["samples"]) == most]


def _stops(record: Mapping[str, Any]) -> dict[str, Stops]:
    return {policy_name(row): row["stops"] for row in _most(record)}


def _trade_off(record: Mapping[str, Any]) -> list[Figure]:
    if has_several_tasks(record):
        return []  # their widths have no common axis
    rows = [(policy_name(r), r["width"], r["mean_acceleration"]) for r in _most(record)]
    return [acceleration_against_width([(name, number(w), number(R)) for name, w, R in rows])]


def evidence(record: Mapping[str, Any]) -> Figure:
    """Plot the evidence of a monitor after each unit."""
    each, units = record["statistics"], f"{record['unit']}s"
    series = []
    for one in each:
        values, last = one["evidence"], len(one["evidence"]) - 1
        drawn = np.unique(np.linspace(0, last, min(last + 1, _POINTS)).astype(int)).tolist()
        y = tuple(float(values[k]) for k in drawn)
        series += [Series(str(one["name"]), tuple(k + 1 for k in drawn), y)] if values else []
    caption = (
        f"Evidence against exchangeability after each new {record['unit']}, for each monitored "
        f"statistic. If all {units} were exchangeable, the probability that any of them ever "
        f"reaches the line would be at most {record['delta']:g}."
    )
    limit = "the guarantee is withdrawn", len(each) / float(record["delta"])
    most = max((max(one.y) for one in series), default=0.0)  # type: ignore[type-var]  # no gaps
    title = f"Evidence against exchangeability reaches {most:.3g}; the limit is {limit[1]:.3g}"
    return Figure("evidence", caption, f"new {units}", "evidence", tuple(series), y_scale="log",
                  reference=(limit,), title=title)  # fmt: skip


def lines_record(table: TaskOutputs, words: Terminology) -> dict[str, Any]:
    """Return a record of when lines are measured, for :func:`lines_figures`."""
    assert table.sampled_lines is not None, "a rule chose them"
    some = np.unique(np.linspace(0, table.cases - 1, min(table.cases, _ROWS)).astype(int))
    names = np.arange(table.cases) if table.case is None else table.case
    # Rounds before the first that measured a line; the number of rounds if none did.
    first = (~table.sampled_lines).sum(axis=0)
    return {
        "schema": records.LINES,
        "cases": table.cases,
        "rounds": list(table.round_labels),
        "shares": table.sampled_lines.mean(axis=1).tolist(),
        "first": [{"case": str(names[i]), "rounds": first[i].tolist()} for i in some],
        "words": [words.case, words.many("case"), words.measurement, words.many("measurement")],
    }


def lines_figures(record: Mapping[str, Any]) -> list[Figure]:
    """Plot the share of cases in which each line is measured by each round, and single cases."""
    case, cases, line, lines = map(str, record["words"])
    shares = np.asarray(record["shares"], dtype=float)
    rounds, places = [str(name) for name in record["rounds"]], tuple(range(shares.shape[1]))
    by_round = tuple(
        Series(f"{name}: {of.sum():.0f} of {len(of)}", places, tuple(map(float, of)), style="strip")
        for name, of in zip(rounds, shares, strict=True)
    )
    # Dark in the first round, fainter in each later one, empty if never measured.
    shade = [1 - k / len(rounds) for k in range(len(rounds))] + [0.0]
    by_case = tuple(
        Series(f"{case} {row['case']}", places, tuple(shade[int(k)] for k in row["rounds"]),
               style="strip")
        for row in record["first"]
    )  # fmt: skip
    measured = (
        f"Share of the {int(record['cases'])} {cases} for which the rule measured each {line}; "
        "darker is more."
    )
    when = f"Round that measured each {line}, for some {cases}; darker is earlier."
    always = [float((of == 1).sum()) for of in shares]
    common = f"{always[-1]:.0f} of {len(places)} {lines} were measured in every {case}"
    return [
        Figure("lines-by-round", measured, line, f"share of {cases}", by_round, title=common),
        Figure("lines-by-case", when, line, "how early", by_case,
               title=f"Measured {lines} of {len(by_case)} {cases}"),
    ]  # fmt: skip


ACCEPTED = FigureKind(
    records.SIMULATE, lambda record: [accepted(_stops(record), _called(record))], HEADING
)
COVERAGE = FigureKind(
    records.SIMULATE,
    lambda record: [
        coverage_at_stop(_stops(record), record["results"][0]["alpha"], _called(record))
    ],
    HEADING,
)
TRADE_OFF = FigureKind(records.SIMULATE, _trade_off, HEADING)
EVIDENCE = FigureKind(
    records.MONITOR, lambda record: [evidence(record)], "Monitoring exchangeability",
    lambda record: str(record["sentence"]),
)  # fmt: skip
LINES = FigureKind(records.LINES, lines_figures, "Measurement and images")
