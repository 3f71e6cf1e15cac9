"""Figures of evaluations: widths, coverage law, conditional coverage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from taskuq.conformal._diagnose import BAND
from taskuq.report._records import DIAGNOSE, EVALUATE, number, slug
from taskuq.report.figures import Figure, FigureKind, Series, Style, series_from_rows
from taskuq.table._terminology import round_label

# One evaluation as its record holds it: what one score did at one acceleration.
Row = Mapping[str, Any]
ALONG = {"acceleration": "acceleration R", "samples": "posterior samples p"}
WITHIN = {
    "class": ("Coverage within each class", "class"),
    "size": ("Coverage by width of the interval", "interval width"),
}


def width_against(rows: Sequence[Row], along: Literal["acceleration", "samples"]) -> Figure:
    """Return mean interval widths against acceleration or the number of samples."""
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
                  "mean interval width", series, x_scale="log2")  # fmt: skip


def coverage_histogram(row: Row) -> Figure:
    """Return the coverage of random splits and its exact law."""
    histogram, score = row["histogram"], row["score"]
    coverage = tuple(covered / row["n_test"] for covered in histogram["covered"])
    caption = (
        f"Empirical coverage of {score}{_at(row)} over {row['trials']} random splits, against its "
        f"exact law (goodness-of-fit p = {number(histogram['p_value']):.2g})."
    )
    series = (
        Series("random splits", coverage, tuple(map(float, histogram["trials"])), style="bars"),
        Series("exact law", coverage, tuple(map(number, histogram["expected"])), style="step"),
    )
    name = "-".join(filter(None, ("coverage", _where(row), score)))
    return Figure(name, caption, "empirical coverage", "splits", series)


def coverage_within(rows: Sequence[Row], strata: str) -> Figure:
    """Return coverage within classes (``"class"``) or ranges of width (``"size"``)."""
    sentence, label = WITHIN[strata]
    series = series_from_rows(
        [(r["score"], s) for r in rows for s in r[f"{strata}_coverage"]],
        lambda pair: str(pair[0]),
        lambda pair: str(pair[1]["name"]),
        lambda pair: number(pair[1]["coverage"]) if pair[1]["trials"] else None,
        style="points",
    )
    return Figure(
        f"{strata}-coverage-{_where(rows[0]) or 'one-round'}",
        f"{sentence}{_at(rows[0])}; measured, not guaranteed. An empty stratum is left out.",
        label, "coverage", series, x_scale="category",
        reference=(("target", 1 - rows[0]["alpha"]),),
    )  # fmt: skip


def rank_histogram(row: Row) -> Figure:
    """Return the ranks of the truth among the samples, relative to calibrated ones."""
    bins, called = row["histogram"], row["round"] or "one round"
    ranks = tuple((b["first"] + b["last"]) / 2 for b in bins)

    def series(name: str, of: str, style: Style) -> Series:
        return Series(name, ranks, tuple(b[of] / b["expected"] for b in bins), style=style)

    return Figure(
        f"ranks-{slug(called)}",
        f"Rank of the truth among the posterior samples, {called}: {row['verdict']}. Bars are "
        "fractions of cases over those of calibrated samples, whose bars all lie between the two "
        f"ends of the band with probability {BAND:g} or more.",
        "samples below the truth", "cases over expected",
        (series("truths", "fraction", "bars"), series("band, lower end", "low", "step"),
         series("band, upper end", "high", "step")),
        reference=(("calibrated", 1.0),),
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
    """Figures of each task, with its name if there are several."""
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


def _histograms(rows: list[Row]) -> list[Figure]:
    return [coverage_histogram(r) for r in _of_most_samples(rows) if r.get("histogram") is not None]


def _conditional(rows: list[Row]) -> list[Figure]:
    rates: dict[float | None, list[Row]] = {}
    for row in _of_most_samples(rows):
        rates.setdefault(row["acceleration"], []).append(row)
    return [
        coverage_within(at, strata)
        for at in rates.values()
        for strata in WITHIN
        if any(r.get(f"{strata}_coverage") for r in at)
    ]


def _rank_histograms(rows: list[Row]) -> list[Figure]:
    return [rank_histogram(r) for r in rows if r["label"] is None]


SAMPLES = "Are the samples calibrated?"
RANKS = FigureKind(DIAGNOSE, partial(_each_task, _rank_histograms), SAMPLES)
AGAINST_ACCELERATION = FigureKind(
    EVALUATE, partial(_each_task, partial(_widths, "acceleration")), "Widths of intervals"
)
AGAINST_SAMPLES = FigureKind(
    EVALUATE, partial(_each_task, partial(_widths, "samples")), "Widths of intervals"
)
# The law is the same whatever the task is.
LAW = FigureKind(
    EVALUATE,
    partial(_each_task, _histograms, first_alone=True),
    "Coverage against its exact law",
    reading=lambda record: next(
        str(r["histogram"].get("reading", "")) for r in record["results"] if r.get("histogram")
    ),
)
CONDITIONAL = FigureKind(
    EVALUATE, partial(_each_task, _conditional), "Coverage within classes and widths"
)
