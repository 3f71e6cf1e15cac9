"""The figures of a simulation: who stops when, who is covered there, and what width costs."""

from __future__ import annotations

from collections.abc import Sequence

from taskuq.decide.simulation import Simulation
from taskuq.report.figure import Figure, Series
from taskuq.report.tables import policy_name


def simulation_figures(results: Sequence[Simulation]) -> list[Figure]:
    """Return the figures of several policies on one table.

    Arguments:
        results: What each policy did.
    """
    return [_accepted(results), _coverage_at_stop(results), _trade_off(results)]


def _accepted(results: Sequence[Simulation]) -> Figure:
    return Figure(
        name="accepted-by-acceleration",
        caption="Fraction of cases accepted after each acceleration; R = 1 is a full scan.",
        x_label="acceleration R",
        y_label="fraction of cases",
        x_scale="category",
        series=tuple(
            Series(
                policy_name(r),
                tuple(f"{s.acceleration:g}" for s in r.stops),
                tuple(s.fraction for s in r.stops),
                style="bars",
            )
            for r in results
        ),
    )


def _coverage_at_stop(results: Sequence[Simulation]) -> Figure:
    return Figure(
        name="coverage-by-stop",
        caption="Coverage among the cases stopped at each acceleration; measured. The guarantee is "
        "for all stops together.",
        x_label="stopped at acceleration R",
        y_label="coverage",
        x_scale="category",
        reference=(("target", 1 - results[0].alpha),),
        series=tuple(
            Series(
                policy_name(r),
                tuple(f"{s.acceleration:g}" for s in r.stops[:-1]),
                tuple(None if s.fraction == 0 else s.coverage for s in r.stops[:-1]),
                style="points",
            )
            for r in results
        ),
    )


def _trade_off(results: Sequence[Simulation]) -> Figure:
    return Figure(
        name="acceleration-against-width",
        caption="Average acceleration against the mean width of early reports: up and to the left "
        "is better. Policies named paper have no guarantee.",
        x_label="mean width of early reports",
        y_label="average acceleration",
        series=tuple(
            Series(policy_name(r), (r.width,), (r.mean_acceleration,), style="points")
            for r in results
        ),
    )
