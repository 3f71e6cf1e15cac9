"""Scores judged side by side: AR on point estimates, all others on posterior samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from taskuq.calibration.scores import resolve_score
from taskuq.calibration.tuning import target_share
from taskuq.calibration.units import Unit
from taskuq.errors import InputError
from taskuq.evaluation.comparison import Comparison, compare
from taskuq.evaluation.result import Evaluation
from taskuq.experiments.inputs import ClaimSettings, Inputs, learns
from taskuq.outputs.table import TaskOutputs, replace_arrays
from taskuq.report.figures.evaluation import width_against
from taskuq.report.figures import Figure


def judge_scores(
    inputs: Inputs,
    settings: ClaimSettings,
    unit: Unit,
    *,
    accelerations: Sequence[float] | None = None,
    samples: Sequence[int] | None = None,
    exact: bool = False,
    clip: bool = True,
) -> list[Evaluation]:
    """Return evaluations of the paper's scores and ours on the same splits.

    There is one for each acceleration, score and number of samples, in this order.

    Arguments:
        inputs: The tables.
        settings: Scores, error rate, trials and seed.
        unit: What is split.
        accelerations: The rounds; all where None.
        samples: Numbers of posterior samples; all of the table's where None.
        exact: Whether to take all splits by case at once.
        clip: Whether intervals are cut to the task's range.

    Example:
        >>> from taskuq.calibration.units import NewCase
        >>> from taskuq.experiments.inputs import make_inputs
        >>> from taskuq.outputs.synthetic import SyntheticScanner, synthetic_outputs
        >>> table = synthetic_outputs(SyntheticScanner(volumes=8), seed=0)
        >>> inputs = make_inputs(table, table.select(samples=1))
        >>> found = judge_scores(inputs, ClaimSettings(), NewCase(), accelerations=[16], exact=True)
        >>> [(r.score, r.samples) for r in found]
        [('ar', 1), ('lwr', 32), ('cqr', 32), ('mlwr', 32), ('learned', 32)]
    """
    names = [
        name
        for name in (*settings.scores, *settings.ours)
        if learns(inputs, unit, [settings.alpha])
        or not target_share(resolve_score(name, settings.alpha))
    ]
    plan = Comparison(
        alpha=settings.alpha,
        trials=None if exact and not unit.is_group else settings.trials,
        seed=settings.seed,
        unit=unit.name,
        samples=None if samples is None else tuple(samples),
        size_bins=settings.size_bins,
    )
    rates = tuple(inputs.table.accelerations if accelerations is None else accelerations)
    estimated = [s for s in names if samples is None and source_of(inputs, s) is not inputs.table]
    drawn = [s for s in names if s not in estimated]
    found = _compare(inputs.table, plan, drawn, rates, clip)
    if estimated:
        point = source_of(inputs, estimated[0])
        there = point.accelerations
        shared = [R for R in rates if np.isnan(R) or np.isclose(there, R, rtol=1e-9).any()]
        if not shared:
            raise InputError("the table of point estimates has none of the accelerations asked for")
        found += _compare(point, plan, estimated, tuple(shared), clip)
    order: dict[float | None, int] = {R: k for k, R in enumerate(rates)}
    found.sort(key=lambda r: (order.get(r.acceleration, 0), names.index(r.score), r.samples))
    return found


def length_figure(
    found: Sequence[Evaluation],
    along: Literal["acceleration", "samples"],
    unit: Unit,
    caption: str,
) -> Figure:
    """Return mean interval lengths, as the paper calls the widths of intervals."""
    return replace(
        width_against([r.to_dict() for r in found], along),
        name=f"length-against-{along}-by-{unit.counted}",
        caption=caption,
        y_label="mean interval length",
    )


def source_of(inputs: Inputs, score: str) -> TaskOutputs:
    """Return the table a score is judged on: AR takes the point estimates, where there are any."""
    return inputs.point if score == "ar" and inputs.point is not None else inputs.table


def point_source(inputs: Inputs) -> str:
    """Return where AR's estimate comes from, in words."""
    return "the point estimate" if inputs.point is not None else "the mean of the samples"


def _compare(
    table: TaskOutputs, plan: Comparison, scores: list[str], rates: tuple[float, ...], clip: bool
) -> list[Evaluation]:
    if not scores:
        return []
    # The paper computes lengths without a range.
    table = table if clip else replace_arrays(table, task_ranges=None)
    return list(compare(table, replace(plan, scores=tuple(scores), accelerations=rates)).results)
