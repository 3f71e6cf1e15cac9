"""The figure for whoever plans a study: how many calibration cases how much certainty takes."""

from __future__ import annotations

from taskuq.calibration.law import calibration_size
from taskuq.report.figure import Figure, Series

TOLERANCES = (0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05)


def planner_figure(alpha: float, delta: float = 0.05, have: int | None = None) -> Figure:
    """Return how many calibration cases keep the coverage of one calibration set near its target.

    Arguments:
        alpha: The error rate.
        delta: The probability of an unlucky calibration set.
        have: How many calibration cases this run has, for comparison.

    Example:
        >>> figure = planner_figure(0.05)
        >>> figure.series[0].x[2], figure.series[0].y[2]
        (0.02, 442.0)
    """
    sizes = [
        tuple(float(calibration_size(alpha, e, delta, two_sided=both)) for e in TOLERANCES)
        for both in (True, False)
    ]
    return Figure(
        name="calibration-size",
        caption=f"How many exchangeable calibration cases keep coverage within a tolerance of "
        f"{1 - alpha:g}, for all but {delta:g} of calibration sets. Cases that come in groups "
        "carry less information each, so more are needed.",
        x_label="tolerance of coverage",
        y_label="calibration cases",
        y_scale="log",
        series=(
            Series("neither more nor less", TOLERANCES, sizes[0]),
            Series("not less", TOLERANCES, sizes[1]),
        ),
        reference=() if not have else (("this run", float(have)),),
    )
