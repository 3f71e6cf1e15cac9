"""Figures of policies, monitors and adaptive lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from taskuq.outputs import TaskOutputs
from taskuq.report import _records as records
from taskuq.report._records import has_several_tasks, number, policy_name, round_called
from taskuq.report.figures import Figure, FigureKind, Series, Style, series_of
from taskuq.words import Words

# What happened at each round, the fully measured one last, as records hold it.
Stops = Sequence[Mapping[str, Any]]
HEADING = "When scans stop"


def accepted(stops: Mapping[str, Stops], called: Mapping[float, str] | None = None) -> Figure:
    """Return how many cases each stopping rule accepts in each round, from its stops."""
    return Figure(
        name="accepted-by-acceleration",
        caption="Fraction of cases accepted after each round; the last has everything measured."
        if called
        else "Fraction of cases accepted after each acceleration; R = 1 is a full scan.",
        x_label="round" if called else "acceleration R",
        y_label="fraction of cases",
        x_scale="category",
        series=series_of(
            [(rule, stop) for rule, of in stops.items() for stop in of],
            lambda pair: pair[0],
            lambda pair: _round(pair[1], called),
            # A mean of shares may fall below nothing by a rounding error.
            lambda pair: max(0.0, number(pair[1]["fraction"])),
            style="bars",
        ),
    )


def _round(stop: Mapping[str, Any], called: Mapping[float, str] | None) -> str:
    R = float(stop["acceleration"])
    return called[R] if called else f"{R:g}"


def _called(record: Mapping[str, Any]) -> dict[float, str] | None:
    """What the rounds of a simulation are called; None where they have no names."""
    if not (record.get("inputs") or {}).get("round_names"):
        return None
    rates = [float(stop["acceleration"]) for stop in record["results"][0]["stops"]]
    return {R: round_called(record, R) for R in rates}


def _coverage_at_stop(record: Mapping[str, Any]) -> Figure:
    called = _called(record)
    return Figure(
        name="coverage-by-stop",
        caption=f"Coverage among the cases stopped at each {'round' if called else 'acceleration'};"
        " measured. The guarantee is for all stops together.",
        x_label="stopped at" if called else "stopped at acceleration R",
        y_label="coverage",
        x_scale="category",
        reference=(("target", 1 - record["results"][0]["alpha"]),),
        series=series_of(
            [(rule, stop) for rule, of in _stops(record).items() for stop in of[:-1]],
            lambda pair: pair[0],
            lambda pair: _round(pair[1], called),
            lambda pair: None if pair[1]["fraction"] == 0 else number(pair[1]["coverage"]),
            style="points",
        ),
    )


def acceleration_against_width(
    points: Sequence[tuple[str, float, float]], style: Style = "points"
) -> Figure:
    """Return what narrower reports cost."""
    return Figure(
        name="acceleration-against-width",
        caption="Average acceleration against the mean width of early reports: up and to the left "
        "is better. Policies named paper have no guarantee.",
        x_label="mean width of early reports",
        y_label="average acceleration",
        series=series_of(points, lambda p: p[0], lambda p: p[1], lambda p: p[2], style=style),
    )


def _most(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What each policy did with all samples."""
    most = max(int(row["samples"]) for row in record["results"])
    return [row for row in record["results"] if int(row["samples"]) == most]


def _stops(record: Mapping[str, Any]) -> dict[str, Stops]:
    return {policy_name(row): row["stops"] for row in _most(record)}


def _trade_off(record: Mapping[str, Any]) -> list[Figure]:
    if has_several_tasks(record):
        return []  # their widths have no common axis
    points = [
        (policy_name(r), number(r["width"]), number(r["mean_acceleration"])) for r in _most(record)
    ]
    return [acceleration_against_width(points)]


ACCEPTED = FigureKind(
    records.SIMULATE, lambda record: [accepted(_stops(record), _called(record))], HEADING
)
COVERAGE = FigureKind(records.SIMULATE, lambda record: [_coverage_at_stop(record)], HEADING)
TRADE_OFF = FigureKind(records.SIMULATE, _trade_off, HEADING)


# So many units of a long watch are drawn, the last among them.
POINTS = 400


def _evidence(record: Mapping[str, Any]) -> Figure:
    each = record["statistics"]
    return Figure(
        name="evidence",
        caption=f"Evidence against exchangeability after each new {record['unit']}, for each "
        f"statistic that is watched. Were all {record['unit']}s exchangeable, any of them would "
        f"ever reach the line with probability at most {record['delta']:g}.",
        x_label=f"new {record['unit']}s",
        y_label="evidence",
        y_scale="log",
        reference=(("the promise is withdrawn", len(each) / float(record["delta"])),),
        series=tuple(_series(str(one["name"]), one["evidence"]) for one in each if one["evidence"]),
    )


def _series(name: str, evidence: list[float]) -> Series:
    last = len(evidence) - 1
    drawn = np.unique(np.linspace(0, last, min(last + 1, POINTS)).astype(int)).tolist()
    return Series(name, tuple(k + 1 for k in drawn), tuple(float(evidence[k]) for k in drawn))


EVIDENCE = FigureKind(
    records.MONITOR,
    lambda record: [_evidence(record)],
    heading="Whether the promise still stands",
    title="Evidence against exchangeability",
    reading=lambda record: str(record["sentence"]),
)


# So many cases have a row of their own.
ROWS = 24


def lines_record(table: TaskOutputs, words: Words) -> dict[str, Any]:
    """Return what was measured of the cases of a table, as a record for figures."""
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
