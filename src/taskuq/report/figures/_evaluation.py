"""Figures of interval widths, the distribution of coverage and conditional coverage."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from taskuq.conformal._diagnose import BAND
from taskuq.report._records import DIAGNOSE, EVALUATE, number, slug
from taskuq.report.figures import Figure, FigureKind, Series, Style, method_label, series_from_rows
from taskuq.table._terminology import round_label

# Result of one score at one acceleration, as stored in a record.
Row = Mapping[str, Any]
# A correct law fails a goodness-of-fit test at this level once in ten thousand histograms.
_SMALLEST_P = 1e-4
ALONG = {"acceleration": "acceleration R", "samples": "posterior samples p"}
WITHIN = {
    "class": ("Coverage within each class", "class"),
    "site": ("Coverage within each site", "site"),
    "site_left_out": ("Coverage of a site after calibration on all others", "site left out"),
    "size": ("Coverage by width of the interval", "interval width"),
}


def width_against(rows: Sequence[Row], along: Literal["acceleration", "samples"]) -> Figure:
    """Plot mean interval width against acceleration or number of samples."""
    sentence = (
        "against acceleration; bars are one standard deviation over splits."
        if along == "acceleration"
        else f"against the number p of posterior samples{_at(rows[0])}."
    )
    series = series_from_rows(
        rows,
        lambda r: str(r["score"]),
        lambda r: float(r[along] or 1.0),
        lambda r: number(r["width"]["mean"]),
        lambda r: number(r["width"]["sd"]),
    )
    return Figure(f"width-against-{along}", f"Mean interval width {sentence}", ALONG[along],
                  "mean interval width", series, x_scale="log2",
                  title=_shrinking(series, "R" if along == "acceleration" else "p"))  # fmt: skip


def _shrinking(series: Sequence[Series], letter: str) -> str:
    """Return a title naming the narrowest method; for letter 'p', the one most sensitive to p."""
    ends = {}
    for one in series:
        known = sorted((float(x), y) for x, y in zip(one.x, one.y, strict=True) if y)
        if known and all(map(math.isfinite, (known[0][1], known[-1][1]))):
            ends[method_label(one.name)] = known[0], known[-1]
    if not ends:
        return ""
    if letter == "p":
        name, (few, most) = max(ends.items(), key=lambda of: of[1][0][1] / of[1][1][1])
        times = f"{few[1] / most[1]:.3g}×"
        return f"{name} widens most with few samples: {times} from p = {most[0]:g} to {few[0]:g}"
    name, (_, last) = min(ends.items(), key=lambda of: float(of[1][1][1]))
    return f"{name} is narrowest at R = {last[0]:g}: mean width {last[1]:.3g}"


def coverage_histogram(row: Row) -> Figure:
    """Plot a histogram of coverage over random splits, and the exact distribution of coverage."""
    histogram, score = row["histogram"], row["score"]
    coverage = tuple(covered / row["n_test"] for covered in histogram["covered"])
    caption = (
        f"Empirical coverage of {method_label(score)}{_at(row)} over {row['trials']} random "
        f"splits, against its exact law (goodness-of-fit p = {number(histogram['p_value']):.2g})."
    )
    series = (
        Series(f"{score} in random splits", coverage, tuple(map(float, histogram["trials"])),
               style="bars"),
        Series("exact law", coverage, tuple(map(number, histogram["expected"])), style="step"),
    )  # fmt: skip
    name = "-".join(filter(None, ("coverage", _where(row), score)))
    verb = "follows" if number(histogram["p_value"]) > _SMALLEST_P else "departs from"
    return Figure(name, caption, "empirical coverage", "splits", series,
                  title=f"Coverage of {method_label(score)} {verb} its exact law")  # fmt: skip


def coverage_within(rows: Sequence[Row], strata: str) -> Figure:
    """Plot coverage within classes, sites, held-out sites or ranges of width (``"size"``)."""
    sentence, label = WITHIN[strata]
    series = series_from_rows(
        [(r["score"], s) for r in rows for s in r[stratum_field(strata)]],
        lambda pair: str(pair[0]),
        lambda pair: str(pair[1]["name"]),
        lambda pair: None if pair[1]["trials"] == 0 else number(pair[1]["coverage"]),
        lambda pair: number(pair[1].get("standard_error")),
        style="points",
    )
    return Figure(
        f"{strata.replace('_', '-')}-coverage-{_where(rows[0]) or 'one-round'}",
        f"{sentence}{_at(rows[0])}; measured, not guaranteed. Empty strata are omitted.",
        label, "coverage", series, x_scale="category",
        reference=(("target", 1 - rows[0]["alpha"]),), title=lowest_coverage(series, label),
    )  # fmt: skip


def stratum_field(strata: str) -> str:
    """Return the name of the record field with coverage by class, site or width."""
    return strata if strata == "site_left_out" else f"{strata}_coverage"


def lowest_coverage(series: Sequence[Series], where: str = "") -> str:
    """Return a title with the lowest coverage of any series, its method and its position."""
    every = [
        (y, f"{method_label(one.name)}, {where} {x}".replace(",  ", ", "))
        for one in series
        for x, y in zip(one.x, one.y, strict=True)
        if y is not None and math.isfinite(y)
    ]
    return f"Lowest coverage {min(every)[0]:.3g} ({min(every)[1]})" if every else ""


def rank_histogram(row: Row) -> Figure:
    """Plot the rank histogram of the truth, relative to the expectation for calibrated samples."""
    bins, called = row["histogram"], row["round"] or "one round"
    ranks = tuple((b["first"] + b["last"]) / 2 for b in bins)

    def series(name: str, of: str, style: Style) -> Series:
        return Series(name, ranks, tuple(b[of] / b["expected"] for b in bins), style=style)

    return Figure(
        f"ranks-{slug(called)}",
        f"Rank of the truth among the posterior samples, {called}: {row['verdict']}. A bar is a "
        "fraction of cases divided by its expectation for calibrated samples, whose bars all lie "
        f"in the band with probability {BAND:g} or more.",
        "samples below the truth", "cases over expected",
        (series("truths", "fraction", "bars"), series("band, lower end", "low", "step"),
         series("band, upper end", "high", "step")),
        reference=(("calibrated", 1.0),), title=f"Samples at {called}: {row['verdict']}",
    )  # fmt: skip


def _at(row: Row) -> str:
    R = row["acceleration"]
    return f" at {round_label(R, row.get('round_name'))}" if R else ""


def _where(row: Row) -> str:
    return f"R{row['acceleration']:g}" if row["acceleration"] else ""


def _each_task(
    describe: Callable[[list[Row]], list[Figure]],
    record: Mapping[str, Any],
    *,
    first_alone: bool = False,
) -> list[Figure]:
    """Return the figures of each task, with the name of the task if there are several."""
    tasks: dict[str | None, list[Row]] = {}
    for row in record["results"]:
        tasks.setdefault(row.get("task"), []).append(row)
    if len(tasks) == 1:
        return describe(record["results"])
    return [
        replace(
            figure,
            name=f"{slug(str(task))}-{figure.name}",
            caption=f"{task}: {figure.caption[:1].lower()}{figure.caption[1:]}",
            title=figure.title and f"{task}: {figure.title}",
        )
        for task, rows in list(tasks.items())[: 1 if first_alone else None]
        for figure in describe(rows)
    ]


def _of_most_samples(rows: Sequence[Row]) -> list[Row]:
    most = max(r["samples"] for r in rows)
    return [r for r in rows if r["samples"] == most]


def _widths(along: Literal["acceleration", "samples"], rows: list[Row]) -> list[Figure]:
    rows = rows if along == "samples" else _of_most_samples(rows)
    is_line = len({r[along] for r in rows}) > 1
    if along == "samples":
        rows = [r for r in rows if r["acceleration"] == rows[0]["acceleration"]]
    return [width_against(rows, along)] if is_line else []


def _conditional(rows: list[Row]) -> list[Figure]:
    rates: dict[float | None, list[Row]] = {}
    for row in _of_most_samples(rows):
        rates.setdefault(row["acceleration"], []).append(row)
    return [
        coverage_within(at, strata)
        for at in rates.values()
        for strata in WITHIN
        if any(r.get(stratum_field(strata)) for r in at)
    ]


SAMPLES = "Are the samples calibrated?"
RANKS = FigureKind(
    DIAGNOSE,
    partial(_each_task, lambda rows: [rank_histogram(r) for r in rows if r["label"] is None]),
    SAMPLES,
)
AGAINST_ACCELERATION = FigureKind(
    EVALUATE, partial(_each_task, partial(_widths, "acceleration")), "Widths of intervals"
)
AGAINST_SAMPLES = FigureKind(
    EVALUATE, partial(_each_task, partial(_widths, "samples")), "Widths of intervals"
)
# The law is the same whatever the task is.
LAW = FigureKind(
    EVALUATE,
    partial(
        _each_task,
        lambda rows: [coverage_histogram(r) for r in _of_most_samples(rows) if r.get("histogram")],
        first_alone=True,
    ),
    "Coverage against its exact law",
    reading=lambda record: next(
        str(r["histogram"].get("reading", "")) for r in record["results"] if r.get("histogram")
    ),
)
CONDITIONAL = FigureKind(
    EVALUATE, partial(_each_task, _conditional), "Coverage within classes and widths"
)
