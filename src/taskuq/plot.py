"""Figures of results on matplotlib axes; reports contain the same figures.

Every function draws on ``ax`` or, if it is None, on new axes, and returns the axes.

Example:
    >>> import taskuq as tq
    >>> table = tq.TaskOutputs.load("atlas-sampler")
    >>> found = [tq.evaluate_exact(table, acceleration=R, alpha=0.1) for R in (16, 8, 4)]
    >>> tq.plot.widths(found).get_xlabel()
    'acceleration R'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from taskuq.conformal import Diagnosis, Evaluation
from taskuq.errors import InputError
from taskuq.interval import Interval
from taskuq.policy import Simulation
from taskuq.report._records import number, policy_name
from taskuq.report.figures import Figure, Series, _imaging, _policy, draw_on
from taskuq.report.figures import _evaluation as _evaluations
from taskuq.scan import Monitor, Scan
from taskuq.table import TaskOutputs
from taskuq.table._terminology import Terminology, round_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "calibration_sizes", "coverage", "coverage_law", "evidence", "intervals", "lines", "masks",
    "rank_histogram", "scan", "stop_coverage", "stops", "trade_off", "widths",
]  # fmt: skip

T = TypeVar("T")


def intervals(
    interval: Interval, targets: ArrayLike | None = None, *, ax: Axes | None = None
) -> Axes:
    """Draw the interval of each case, and its target if known.

    Args:
        interval: Intervals (case,); infinite ends are drawn up to the edge of the plot.
        targets: Targets (case,); a pandas Series is matched by the ids of the cases.
        ax: Axes to draw on.

    Raises:
        InputError: If there are several tasks, or not one target per interval.
    """
    (found,) = _all(interval, Interval)
    ends = np.reshape(np.asarray(found), (-1, 2))
    if found.lower.ndim > 1:
        message = "intervals of several tasks have no common axis; pass interval[:, k]"
        raise InputError(message, code="shape.axes")
    series = []
    if targets is not None:
        z = tuple(map(float, np.ravel(found._aligned(targets))))
        series = [Series("target", tuple(range(len(z))), z, style="points")]
    finite = np.append(ends[np.isfinite(ends)], [y for one in series for y in one.y])
    if len(finite):
        ends = ends.clip(finite.min(), finite.max())
    series.insert(0, _bars("interval", range(len(ends)), ends))
    title = f"Mean width {found.width.mean():.3g}"
    if targets is not None:
        inside = found.contains(targets)
        title = f"{inside.sum()} of {inside.size} intervals contain their target"
    return _draw(Figure("intervals", title, "case", "task output", tuple(series), title=title), ax)


def widths(evaluations: Evaluation | Sequence[Evaluation], *, ax: Axes | None = None) -> Axes:
    """Draw mean interval width against acceleration or, for one acceleration, number of samples.

    Args:
        evaluations: Results of :func:`taskuq.evaluate` or :func:`taskuq.evaluate_exact`.
        ax: Axes to draw on.
    """
    rows = [one.to_dict() for one in _all(evaluations, Evaluation)]
    several = len({row["acceleration"] for row in rows}) > 1
    return _draw(_evaluations.width_against(rows, "acceleration" if several else "samples"), ax)


def coverage_law(evaluation: Evaluation, *, ax: Axes | None = None) -> Axes:
    """Draw the histogram of coverage over random splits, with its exact distribution.

    Raises:
        InputError: If the distribution is not known, as for splits by group.
    """
    (found,) = _all(evaluation, Evaluation)
    if found.histogram is None:
        message = "the evaluation has no exact law; evaluate random splits by case"
        raise InputError(message, code="option.missing")
    return _draw(_evaluations.coverage_histogram(found.to_dict()), ax)


def coverage(
    evaluations: Evaluation | Sequence[Evaluation],
    by: Literal["class", "site", "site_left_out", "size"] = "class",
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw coverage by class, site, left-out site or interval width (``by="size"``).

    Raises:
        InputError: If the evaluations were made without labels, sites or ``size_bins``.
    """
    rows = [one.to_dict() for one in _all(evaluations, Evaluation)]
    field = _evaluations.WITHIN.get(by) and _evaluations.stratum_field(by)
    if field is None or not all(row[field] for row in rows):
        message = f"no coverage by {by!r:.40}; evaluate with label=, site= or size_bins="
        raise InputError(message, code="option.missing")
    return _draw(_evaluations.coverage_within(rows, by), ax)


def rank_histogram(
    diagnosis: Diagnosis,
    *,
    acceleration: float | str | None = None,
    task: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw how often the truth has each rank among the samples, relative to calibrated samples.

    Args:
        diagnosis: Result of :func:`taskuq.diagnose`.
        acceleration: Round, by acceleration or name; default: the first round.
        task: Name of the task; default: the first task.
        ax: Axes to draw on.
    """
    (found,) = _all(diagnosis, Diagnosis)
    rows: list[dict[str, Any]] = [row for row in found.to_dict()["results"] if row["label"] is None]
    if acceleration is not None:
        rows = [row for row in rows if acceleration in (row["acceleration"], row["round"])]
    rows = [row for row in rows if task in (None, row["task"])]
    if not rows:
        message = f"the diagnosis has no round {acceleration!r:.40} of task {task!r:.40}"
        raise InputError(message, code="choice.unknown")
    return _draw(_evaluations.rank_histogram(rows[0]), ax)


def stops(simulations: Simulation | Sequence[Simulation], *, ax: Axes | None = None) -> Axes:
    """Draw the fraction of cases that each policy stops after each round."""
    return _draw(_policy.accepted(_stops(simulations)), ax)


def stop_coverage(
    simulations: Simulation | Sequence[Simulation], *, ax: Axes | None = None
) -> Axes:
    """Draw the coverage among the cases that each policy stops after each round."""
    found = _all(simulations, Simulation)
    return _draw(_policy.coverage_at_stop(_stops(found), found[0].alpha), ax)


def trade_off(simulations: Simulation | Sequence[Simulation], *, ax: Axes | None = None) -> Axes:
    """Draw, for each policy, mean acceleration against mean width when scans stop early."""
    rows = [one.to_dict() for one in _all(simulations, Simulation)]
    points = [(policy_name(row), number(row["width"]), row["mean_acceleration"]) for row in rows]
    return _draw(_policy.acceleration_against_width(points), ax)


def scan(scan: Scan, target: float | None = None, *, task: int = 0, ax: Axes | None = None) -> Axes:
    """Draw the samples and the interval of one case after each round of its scan.

    Args:
        scan: Result of :func:`taskuq.acquire` or :func:`taskuq.load_scan`.
        target: Output on the true image, if known.
        task: Index of the task.
        ax: Axes to draw on.
    """
    (found,) = _all(scan, Scan)
    names = [round_label(one.acceleration) for one in found.rounds]
    every = [np.reshape(one.outputs, (len(one.outputs), -1))[:, task] for one in found.rounds]
    ends = np.array(
        [[np.ravel(one.lower)[task], np.ravel(one.upper)[task]] for one in found.rounds]
    )
    known = np.concatenate([*every, ends[np.isfinite(ends)], [] if target is None else [target]])
    samples = Series(
        "samples", tuple(n for n, of in zip(names, every, strict=True) for _ in of),
        tuple(float(v) for of in every for v in of), style="points",
    )  # fmt: skip
    reference = () if target is None else (("truth", float(target)),)
    last = names[-1] if names else "no round"
    figure = Figure(
        "scan", found.reason if found.rounds else "A scan without rounds.", "round", "task output",
        (samples, _bars("interval", names, ends.clip(known.min(), known.max()))),
        x_scale="category", reference=reference,
        title=f"The scan stops at {last}" if found.is_finished else f"The scan is at {last}",
    )  # fmt: skip
    return _draw(figure, ax)


def evidence(monitor: Monitor, *, ax: Axes | None = None) -> Axes:
    """Draw how a monitor's evidence against exchangeability changes with each unit."""
    (found,) = _all(monitor, Monitor)
    return _draw(_policy.evidence(found.to_dict()), ax)


def masks(masks: ArrayLike, accelerations: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Draw which lines of k-space each round measures, from masks (round, line)."""
    marked, R = np.asarray(masks), np.atleast_1d(np.asarray(accelerations, dtype=float))
    if marked.ndim != 2 or len(marked) != len(R):
        message = f"masks {marked.shape} and {len(R)} accelerations do not fit; pass (round, line)"
        raise InputError(message, code="shape.mismatch")
    return _draw(_imaging.masks_figure(marked.astype(bool), R), ax)


def lines(table: TaskOutputs, *, ax: Axes | None = None) -> Axes:
    """Draw, by round, the fraction of cases in which adaptive sampling measured each line."""
    (found,) = _all(table, TaskOutputs)
    if found.sampled_lines is None:
        message = "the table has no lines chosen by a rule; run a pipeline with an adaptive measure"
        raise InputError(message, code="option.missing")
    record = _policy.lines_record(found, Terminology())
    return _draw(_policy.lines_figures(record)[0], ax)


def calibration_sizes(alpha: float, delta: float = 0.05, *, ax: Axes | None = None) -> Axes:
    """Draw the number of calibration cases against the largest deviation of coverage."""
    return _draw(_imaging.planner_figure(_imaging.calibration_sizes(alpha, delta)), ax)


def _draw(figure: Figure, ax: Axes | None) -> Axes:
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")[1]
    axes: Axes = draw_on(ax, figure)
    return axes


def _all(results: T | Sequence[T], kind: type[T]) -> list[T]:
    """Return one or several results as a list; raise InputError for other types."""
    found = [results] if isinstance(results, kind) else results
    if not isinstance(found, Sequence) or not all(isinstance(one, kind) for one in found):
        message = f"pass a {kind.__name__}, got {type(results).__name__}"
        raise InputError(message, code="dtype.invalid")
    if not found:
        raise InputError(f"pass at least one {kind.__name__}", code="option.missing")
    return list(found)


def _bars(name: str, x: Sequence[Any], ends: np.ndarray) -> Series:
    """Return a series of vertical bars from lower to upper ends, without empty intervals."""
    half = np.diff(ends)[:, 0] / 2
    center = [None if h < 0 else float(c) for h, c in zip(half, ends.mean(axis=1), strict=True)]
    return Series(name, tuple(x), tuple(center), tuple(map(float, half)), style="interval")


def _stops(simulations: Simulation | Sequence[Simulation]) -> dict[str, Any]:
    rows = [one.to_dict() for one in _all(simulations, Simulation)]
    return {policy_name(row): row["stops"] for row in rows}
