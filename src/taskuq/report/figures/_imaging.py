"""Figures of masks, image quality, task networks, splits and sample sizes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from taskuq.conformal._quantiles import calibration_size
from taskuq.report import _records as records
from taskuq.report.figures import Figure, FigureKind, Series, series_from_rows

FOLDS = {"train": "training", "tune": "tuning", "judge": "calibration and test"}
PARTS = {"tune": "tuning", "judge": "test"}
IMAGES = "Measurement and images"
Row = Mapping[str, Any]
_TOLERANCES = (0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05)


def masks_figure(masks: np.ndarray, accelerations: Any) -> Figure:
    """Return the k-space lines measured in each round, from masks (round, width)."""
    width = masks.shape[1]
    nested = all((a <= b).all() for a, b in itertools.pairwise(masks))
    note = "Every round keeps the lines of the rounds before it." if nested else (
        "The masks are not nested: a later round drops lines that an earlier one measured."
    )  # fmt: skip
    series = tuple(
        Series(f"R = {R:g}: {int(mask.sum())} of {width} lines", tuple(range(width)),
               tuple(map(float, mask)), style="strip")
        for R, mask in zip(accelerations, masks, strict=True)
    )  # fmt: skip
    counts = ", ".join(str(int(mask.sum())) for mask in masks)
    caption = f"The lines of k-space that each round measures. {note}"
    return Figure("masks", caption, "line of k-space (phase encode)", "measured", series,
                  title=f"The rounds measure {counts} of {width} lines")  # fmt: skip


def quality_figures(record: Mapping[str, Any]) -> list[Figure]:
    """Return PSNR and SSIM against acceleration from a record ``taskuq.quality/1``."""
    figures = [
        against_acceleration(
            [(row, row[name]["mean"]) for row in record["results"] if name in row],
            errors=name,
            name=f"{name}-against-acceleration",
            caption=f"{label.split()[0]} of whole volumes against acceleration, higher is "
            "better; bars are one standard error over volumes.",
            y_label=label,
        )
        for name, label in (("psnr", "PSNR (dB)"), ("ssim", "SSIM"))
    ]
    return [figure for figure in figures if not figure.is_empty]


def against_acceleration(
    values: Sequence[tuple[Row, float | None]], *,
    name: str, caption: str, y_label: str, errors: str | None = None,
) -> Figure:  # fmt: skip
    """Return values of a quality record against acceleration, one line per method."""
    series = series_from_rows(
        values,
        lambda pair: str(pair[0]["method"]),
        lambda pair: float(pair[0]["acceleration"]),
        lambda pair: pair[1],
        None if errors is None else lambda pair: pair[0][errors]["standard_error"],
    )
    return Figure(name, caption, "acceleration R", y_label, series, x_scale="log2",
                  title=_best(series, y_label))  # fmt: skip


def _best(series: Sequence[Series], y_label: str) -> str:
    """Return the method with the highest value at most accelerations."""
    at: dict[Any, list[tuple[float, str]]] = {}
    for one in series:
        for x, y in zip(one.x, one.y, strict=True):
            at.setdefault(x, []).extend([] if y is None else [(y, one.name)])
    wins = Counter(max(of)[1] for of in at.values() if of)
    if not wins:
        return ""
    ((name, count),) = wins.most_common(1)
    return f"{name} has the highest {y_label.split(' (')[0]} at {count} of {len(at)} accelerations"


def _split_figure(record: Mapping[str, Any]) -> Figure:
    """Return the number of groups in each part of a record ``taskuq.split/1``."""
    counts = tuple(float(len(record[part])) for part in FOLDS)
    caption = (
        "Groups (patients or volumes) used to train networks, to tune them, and to calibrate and "
        "test. The parts are disjoint."
    )
    series = (Series("groups", tuple(FOLDS.values()), counts, style="bars"),)
    train, tune, rest = (f"{count:g}" for count in counts)
    title = f"{train} groups train, {tune} tune, {rest} calibrate and test"
    return Figure("groups", caption, "part", "groups", series, x_scale="category", title=title)


def task_figures(record: Mapping[str, Any]) -> list[Figure]:
    """Return a ROC and a reliability curve for each task of a record ``taskuq.task/1``."""
    parts = record["parts"]
    tasks = [row["task"] for row in next(iter(parts.values()), []) if "roc" in row]
    figures = []
    for k, task in enumerate(tasks):
        rows = {PARTS[part]: of[k] for part, of in parts.items()}
        curves = {
            f"{part}, AUROC {row['auroc']:.3f}": (row["roc"]["false"], row["roc"]["true"])
            for part, row in rows.items()
        }
        caption = f"ROC curve: detected findings ({task}) against false alarms."
        figures += [roc(curves, name=f"roc-{task}", caption=caption), _reliability(rows, task)]
    return figures


def roc(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, name: str, caption: str
) -> Figure:
    """Return ROC curves, given as false and true positive rates by name."""
    series = [Series(called, tuple(x), tuple(y)) for called, (x, y) in curves.items()]
    series.append(Series("chance", (0.0, 1.0), (0.0, 1.0)))
    areas = ", ".join(f"{np.trapezoid(y, x):.3g}" for x, y in curves.values())
    return Figure(name, caption, "false positive rate", "true positive rate", tuple(series),
                  title=f"AUROC {areas}")  # fmt: skip


def _reliability(rows: Mapping[str, Row], task: str) -> Figure:
    series = series_from_rows(
        [(part, bin_) for part, row in rows.items() for bin_ in row["reliability"]],
        lambda pair: pair[0],
        lambda pair: float(pair[1]["mean"]),
        lambda pair: pair[1]["positive"],
    )
    caption = f"Frequency of the finding ({task}) against the predicted probability."
    diagonal = Series("ideal", (0.0, 1.0), (0.0, 1.0))
    gaps = [abs(float(x) - y) for one in series for x, y in zip(one.x, one.y, strict=True)
            if y is not None]  # fmt: skip
    title = f"Predictions are off by at most {max(gaps):.2g}" if gaps else ""
    return Figure(f"reliability-{task}", caption, "mean output", "share with the finding",
                  (*series, diagonal), title=title)  # fmt: skip


def calibration_sizes(alpha: float, delta: float = 0.05, have: int | None = None) -> dict[str, Any]:
    """Return a record of calibration sizes for several tolerances of coverage."""
    sizes = [
        (e, *(calibration_size(alpha, e, delta, two_sided=both) for both in (True, False)))
        for e in _TOLERANCES
    ]
    return {
        "schema": records.PLAN_SIZE,
        "alpha": alpha,
        "delta": delta,
        "sizes": sizes,
        "have": have,
    }


def planner_figure(record: Mapping[str, Any]) -> Figure:
    """Return calibration sizes against the tolerance of coverage."""
    alpha, delta = record["alpha"], record["delta"]
    tolerances, within, above = (tuple(map(float, of)) for of in zip(*record["sizes"], strict=True))
    caption = (
        f"Number of exchangeable calibration cases that keep coverage within a tolerance of "
        f"{1 - alpha:g}, except for a fraction {delta:g} of calibration sets. Grouped cases carry "
        "less information each, so more are needed."
    )
    names = "two-sided", "lower bound only"
    series = tuple(Series(n, tolerances, of) for n, of in zip(names, (within, above), strict=True))
    have = (("this run", float(record["have"])),) if record.get("have") else ()
    title = f"{above[2]:.0f} cases keep coverage above {1 - alpha - tolerances[2]:.3g}"
    return Figure("calibration-size", caption, "tolerance of coverage", "calibration cases", series,
                  y_scale="log", reference=have, title=title)  # fmt: skip


QUALITY = FigureKind(records.QUALITY, quality_figures, IMAGES)
TASK = FigureKind(records.TASK, task_figures, "Task network")
SPLIT = FigureKind(records.SPLIT, lambda record: [_split_figure(record)], IMAGES)
MASKS = FigureKind(
    records.MASKS, lambda record: [masks_figure(record["masks"], record["accelerations"])], IMAGES
)
# A record without sizes is for one tolerance and has no figure.
PLANNER = FigureKind(
    records.PLAN_SIZE,
    lambda record: [planner_figure(record)] if "sizes" in record else [],
    "Planning a study",
)
