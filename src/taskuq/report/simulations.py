"""The figures of a simulation: who stops when, who is covered there, and what width costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taskuq.report.figure import Figure, FigureKind, Style, series_of
from taskuq.report.records import (
    SIMULATE,
    has_several_tasks,
    number,
    policy_name,
    round_called,
)

# What happened at each round, the fully measured one last, as records hold it.
Stops = Sequence[Mapping[str, Any]]
HEADING = "When scans stop"


def accepted(stops: Mapping[str, Stops], called: Mapping[float, str] | None = None) -> Figure:
    """Return how many cases each stopping rule accepts in each round, from its stops.

    Arguments:
        stops: What happened at each round, for each rule.
        called: What rounds are called, by acceleration, where they have names.

    Example:
        >>> half = [{"acceleration": R, "fraction": 0.5} for R in (8.0, 1.0)]
        >>> accepted({"paper lwr": half}).series[0].x
        ('8', '1')
    """
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
    """Return what narrower reports cost.

    Arguments:
        points: The name of a rule, the mean width of its early reports, its average acceleration.
        style: 'line' where a rule has several points.
    """
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


ACCEPTED = FigureKind(SIMULATE, lambda record: [accepted(_stops(record), _called(record))], HEADING)
COVERAGE = FigureKind(SIMULATE, lambda record: [_coverage_at_stop(record)], HEADING)
TRADE_OFF = FigureKind(SIMULATE, _trade_off, HEADING)
