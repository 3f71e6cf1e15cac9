"""What narrower reports cost: average acceleration against the mean width at the stop."""

from __future__ import annotations

import numpy as np

from taskuq.decide.goal import Goal
from taskuq.decide.planning import PolicyPlan
from taskuq.decide.simulation import simulate
from taskuq.experiments.inputs import Inputs
from taskuq.experiments.settings import ClaimSettings
from taskuq.report.figure import Figure, Series


def trade_off(inputs: Inputs, settings: ClaimSettings) -> Figure:
    """Replay stopping rules at several widths, by case.

    Arguments:
        inputs: A table of posterior samples with several rounds.
        settings: Widths, error rate, trials and seed.

    Returns:
        One line for each rule, one point for each width to stop at.

    Example:
        >>> from taskuq.experiments.inputs import make_inputs
        >>> from taskuq.outputs.synthetic import SyntheticScanner, synthetic_outputs
        >>> table = synthetic_outputs(SyntheticScanner(volumes=20), seed=0)
        >>> few = ClaimSettings(widths=(0.1, 0.3), round_trials=20)
        >>> [series.name for series in trade_off(make_inputs(table), few).series]
        ['paper lwr', 'paper cqr', 'adaptive mlwr', 'fixed-width, half budget', 'fixed-width']
    """
    lines: dict[str, list[tuple[float, float]]] = {}
    for width in settings.widths:
        goal = Goal(max_width=width)
        plans = {
            "paper lwr": PolicyPlan("paper", settings.alpha, goal, score="lwr"),
            "paper cqr": PolicyPlan("paper", settings.alpha, goal, score="cqr"),
            "adaptive mlwr": PolicyPlan("adaptive", settings.alpha, goal, score="mlwr"),
            "fixed-width, half budget": PolicyPlan("fixed-width", settings.alpha, goal, budget=0.5),
            "fixed-width": PolicyPlan("fixed-width", settings.alpha, goal),
        }
        found = simulate(
            inputs.table,
            list(plans.values()),
            trials=settings.replays,
            rng=np.random.default_rng(settings.seed),
            unit="case",
        )
        for name, result in zip(plans, found, strict=True):
            lines.setdefault(name, []).append((result.width, result.mean_acceleration))
    return Figure(
        name="acceleration-against-width",
        caption="Average acceleration against the mean width of early reports, splits by case, one "
        f"point for each width to stop at ({', '.join(f'{w:g}' for w in settings.widths)}), error "
        f"rate {settings.alpha:g}: up and to the left is better. Those named paper have no "
        "guarantee.",
        x_label="mean width of early reports",
        y_label="average acceleration",
        series=tuple(
            Series(name, tuple(x for x, _ in points), tuple(y for _, y in points))
            for name, points in lines.items()
        ),
    )
