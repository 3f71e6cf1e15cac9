"""Figures of masks, image quality, task networks, splits and sample sizes."""

from __future__ import annotations

import io
import itertools
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskuq.conformal._quantiles import calibration_size
from taskuq.interval import FloatArray
from taskuq.report import _records as records
from taskuq.report.figures import Figure, FigureKind, Series, series_from_rows
from taskuq.table._table import TaskOutputs

FOLDS = {"train": "training", "tune": "tuning", "judge": "calibration and test"}
PARTS = {"tune": "tuning", "judge": "test"}
IMAGES = "Measurement and images"
Row = Mapping[str, Any]
_TOLERANCES = (0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05)


def masks_figure(masks: np.ndarray, accelerations: Any, *, lines: str = "lines") -> Figure:
    """Plot the k-space lines (or views) measured in each round, from masks (round, width)."""
    width = masks.shape[1]
    nested = all((a <= b).all() for a, b in itertools.pairwise(masks))
    note = f"Every round keeps the {lines} of the rounds before it." if nested else (
        f"The masks are not nested: a later round drops {lines} that an earlier one measured."
    )  # fmt: skip
    series = tuple(
        Series(f"R = {R:g}: {int(mask.sum())} of {width} {lines}", tuple(range(width)),
               tuple(map(float, mask)), style="strip")
        for R, mask in zip(accelerations, masks, strict=True)
    )  # fmt: skip
    counts = ", ".join(str(int(mask.sum())) for mask in masks)
    caption = f"The {lines} that each round measures. {note}"
    label = "line of k-space (phase encode)" if lines == "lines" else lines
    return Figure("masks", caption, label, "measured", series,
                  title=f"The rounds measure {counts} of {width} {lines}")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Example:
    """Reconstructions of one case, with intervals from samples and from a point estimate."""

    case: str
    truth: FloatArray  # (H, W)
    accelerations: Sequence[float]  # (T,)
    mean: FloatArray  # (T, H, W)
    sd: FloatArray  # (T, H, W)
    intervals: FloatArray  # (T, 2)
    target: float
    point: FloatArray | None = None  # (T, H, W)
    point_intervals: FloatArray | None = None  # (T, 2)
    box: tuple[slice, slice] | None = None  # rows and columns of the annotation


def example_figure(example: Example, task: str, alpha: float) -> Figure:
    """Draw a figure of one case: its images, a magnified inset and its intervals."""
    by = {"samples": example.intervals}
    if example.point_intervals is not None:
        by["point network"] = example.point_intervals
    names = tuple(f"R = {R:g}" for R in example.accelerations)
    series = [
        Series(name, names, tuple(ends.mean(1)), tuple(np.diff(ends)[:, 0] / 2), style="points")
        for name, ends in by.items()
    ]
    boxed = " The box of the annotation is magnified." if example.box is not None else ""
    caption = (
        f"Case {example.case}: reconstructions, pixel-wise standard deviation of the samples, and "
        f"intervals at level {1 - alpha:g}; the dashed line is the output on the true image, "
        f"{example.target:.3g}.{boxed}"
    )
    first, last = (float(np.diff(example.intervals[k])[0]) for k in (0, -1))
    title = (
        f"{example.case}: the interval is {first:.3g} wide at {names[0]}, {last:.3g} at {names[-1]}"
    )
    return Figure(f"example-{example.case}", caption, "acceleration", task, tuple(series),
                  x_scale="category", reference=(("true image", example.target),), title=title,
                  picture=_example_picture(example, by, names, task))  # fmt: skip


def _example_picture(
    example: Example, by: Mapping[str, FloatArray], names: Sequence[str], task: str
) -> str:
    from matplotlib.figure import Figure as MplFigure
    from matplotlib.patches import Rectangle

    rows: list[tuple[str, FloatArray | None, FloatArray, Any]] = []
    gray = {"cmap": "gray", "vmin": 0, "vmax": float(np.quantile(example.truth, 0.999)) or 1}
    if example.point is not None:
        rows.append(("point network", example.truth, example.point, gray))
    rows.append(("mean of samples", example.truth, example.mean, gray))
    spread = {"cmap": "magma", "vmin": 0, "vmax": float(np.quantile(example.sd, 0.999)) or 1}
    rows.append(("standard deviation", None, example.sd, spread))
    if example.box is not None:
        zoom = _magnified(example.box, example.truth.shape)
        many = [("box, point network", example.point), ("box, mean", example.mean)]
        rows += [
            (name, example.truth[zoom], images[:, *zoom], gray)
            for name, images in many
            if images is not None
        ]
        rows.append(("box, deviation", None, example.sd[:, *zoom], spread))
    columns = 1 + len(names)
    ratio = example.truth.shape[0] / example.truth.shape[1]
    height = len(rows) * 1.25 * ratio + 1.9
    canvas = MplFigure(figsize=(1.3 * columns + 0.4, height), layout="constrained", dpi=160)
    axes = canvas.subplots(
        len(rows) + 1, columns, squeeze=False,
        gridspec_kw={"height_ratios": [1.25 * ratio] * len(rows) + [1.5]},
    )  # fmt: skip
    for axis in axes[:-1].ravel():
        axis.set(xticks=(), yticks=(), frame_on=False)
    for row, (name, first, images, look) in zip(axes[:-1], rows, strict=True):
        row[0].set_ylabel(name, size=8)
        for axis, image in zip(row, (first, *images), strict=True):
            if image is None:
                continue
            axis.imshow(image, interpolation="nearest", **look)
            if example.box is not None and image.shape == example.truth.shape:
                down, across = example.box
                size = across.stop - across.start, down.stop - down.start
                corner = (across.start - 0.5, down.start - 0.5)
                axis.add_patch(Rectangle(corner, *size, fill=False, edgecolor="#e63946", lw=0.9))
            elif example.box is not None:
                axis.set_frame_on(True)
                for side in axis.spines.values():
                    side.set_edgecolor("#e63946")
    for axis, name in zip(axes[0], ("true image", *names), strict=True):
        axis.set_title(name, size=8)
    _draw_intervals(axes[-1], by, example.target, task)
    file = io.BytesIO()
    canvas.savefig(file, format="png", metadata={"Software": None})
    return b64encode(file.getvalue()).decode()


def _magnified(box: tuple[slice, slice], shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return row and column slices of a square around a box; its side is at least 9 pixels."""
    wide = max(9, *(3 * (side.stop - side.start) // 2 for side in box))
    wide = min(wide, *shape)
    starts = [(side.start + side.stop - wide) // 2 for side in box]
    starts = [min(max(0, first), size - wide) for first, size in zip(starts, shape, strict=True)]
    return tuple(slice(first, first + wide) for first in starts)


def _draw_intervals(
    axes: Sequence[Any], by: Mapping[str, FloatArray], target: float, task: str
) -> None:
    ends = np.concatenate(list(by.values()))
    finite = np.append(ends[np.isfinite(ends)], target)
    room = 0.08 * float(np.ptp(finite)) or 0.1
    limits = float(finite.min()) - room, float(finite.max()) + room
    axes[0].set_axis_off()
    for k, axis in enumerate(axes[1:]):
        for place, (name, of) in enumerate(by.items()):
            low, high = np.clip(of[k], *limits)
            colour = ("#c4550a", "#4a4f57")[place % 2]
            axis.bar(place, high - low, bottom=low, width=0.5, color=colour, label=name)
        axis.axhline(target, color="#0072b2", lw=1, ls="--", label="true image")
        axis.set(ylim=limits, xlim=(-0.6, len(by) - 0.4), xticks=())
        axis.tick_params(labelsize=6, labelleft=k == 0)
        widths = [f"{max(high - low, 0):.2g}" for low, high in (of[k] for of in by.values())]
        axis.set_xlabel("width " + ", ".join(widths), size=7)
    axes[1].set_ylabel(task, size=7)
    handles, labels = axes[1].get_legend_handles_labels()
    axes[0].legend(handles, labels, loc="center left", fontsize=6.5, frameon=False)


def task_auroc(table: TaskOutputs) -> tuple[float, float] | None:
    """Return the AUROC of a task on true images and its standard error over units, or None.

    The standard error follows Obuchowski (Biometrics 1997) for groups, DeLong for single cases.
    """
    if table.label is None or not table.has_targets or table.has_round_targets or table.tasks > 1:
        return None
    classes, y = np.unique(table.label, return_inverse=True)
    if len(classes) != 2:
        return None
    z, y = np.asarray(table.targets_at(0), dtype=float), y.astype(bool)
    present, absent = z[y], z[~y]
    wins = (present[:, None] > absent) + 0.5 * (present[:, None] == absent)
    area = float(wins.mean())
    unit = (
        np.arange(len(z)) if table.group is None else np.unique(table.group, return_inverse=True)[1]
    )
    n = unit.max() + 1
    if n < 3:
        return area, float("nan")
    sums = np.zeros((2, n))
    np.add.at(sums[0], unit[y], wins.mean(1) - area)
    np.add.at(sums[1], unit[~y], wins.mean(0) - area)
    return area, float(
        np.sqrt(n / (n - 1) * np.square(sums[0] / y.sum() + sums[1] / (~y).sum()).sum())
    )


def quality_figures(record: Mapping[str, Any]) -> list[Figure]:
    """Plot PSNR and SSIM against acceleration from a record ``taskuq.quality/1``."""
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
    """Plot (result, value) pairs of a quality record against acceleration, by method."""
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
    """Return a title that names the method that is best at the most accelerations."""
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
    """Plot the number of groups in each subset of a data split."""
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
    """Plot the ROC curve and the reliability curve of each task in a ``taskuq.task/1`` record."""
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
    """Plot ROC curves, given as false and true positive rates by name."""
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
    """Return a record of calibration sizes for several tolerated deviations of coverage."""
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
    """Plot the number of calibration cases against the tolerated deviation of coverage."""
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
