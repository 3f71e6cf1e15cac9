"""Evaluation over all random splits by cases, in closed form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from taskuq.calibration.family import BoundSide, sides_asked
from taskuq.calibration.given import given_cases
from taskuq.calibration.rank import coverage_rank
from taskuq.calibration.scores import resolve_score, score_name
from taskuq.errors import InputError
from taskuq.evaluation.exact import Moments, quantile_position
from taskuq.evaluation.pools import Checked, Pool, check_cases, pools
from taskuq.evaluation.result import Evaluation
from taskuq.evaluation.sums import pool_sums
from taskuq.interval import TaskRange
from taskuq.protocols import Score


def evaluate_exact(
    outputs: Any,
    targets: Any = None,
    *,
    alpha: float,
    score: str | Score = "mlwr",
    side: BoundSide = "two",
    task_range: TaskRange = None,
    share: float = 0.7,
    tunings: int = 10,
    rng: np.random.Generator | None = None,
    acceleration: float | str | None = None,
    task: str | None = None,
) -> Evaluation:
    r"""Judge a score over all random splits by cases at once, exactly.

    A split enters only through the position of the quantile among the ordered scores, whose law
    is known (:class:`~taskuq.evaluation.exact.QuantilePosition`). Mean and standard deviation over
    all :math:`\binom{N}{n}` splits of the test fold's coverage and mean width follow without
    simulation, ties and clipping included. A case counts as covered where its reported interval
    contains its target (:func:`~taskuq.evaluation.ties.covered_from`).

    Arguments:
        outputs: Task outputs (case, sample), (case,) for point estimates, or (round, case, sample)
            with the current round last. Or a table, which brings targets and range.
        targets: Targets (case,); left out with a table.
        alpha: The error rate.
        score: A score's name or object.
        side: 'two', 'upper' or 'lower'.
        task_range: The range intervals are clipped to.
        share: The share of cases used for calibration.
        tunings: For a score that learns from targets: how many tuning folds to average over.
        rng: Draws the tuning folds; without it they are taken at even steps.
        acceleration: Of a table with several rounds: which one, by acceleration or name.
        task: Of a table with several tasks: which one.

    Example:
        >>> truth = rng.random(100)
        >>> outputs = truth[:, None] + 0.1 * rng.standard_normal((100, 8))
        >>> exact = evaluate_exact(outputs, truth, alpha=0.1, score="ar")
        >>> abs(exact.coverage.mean - 64 / 71) < 1e-12  # rank 64 of 70 calibration cases
        True
    """
    given = given_cases(outputs, targets, acceleration, task, None, task_range)
    checked = check_cases(given.outputs, given.targets, task_range=given.task_range, share=share)
    result = evaluate_exact_score(checked, score, alpha=alpha, side=side, tunings=tunings, rng=rng)
    return replace(result, **given.where)


def evaluate_exact_score(
    checked: Checked,
    score: str | Score,
    *,
    alpha: float,
    side: BoundSide = "two",
    tunings: int = 10,
    rng: np.random.Generator | None = None,
) -> Evaluation:
    """Judge a score on inputs that are checked already; see :func:`evaluate_exact`."""
    score_side, ends = sides_asked(side)
    if ends > 1:
        raise InputError("exact evaluation is for one quantile; side 'each' takes --trials")
    chosen = resolve_score(score, alpha, score_side)
    judged = [_judge(checked, pool, alpha) for pool in pools(checked, chosen, alpha, tunings, rng)]
    if not judged:
        raise InputError(f"tunings must be at least 1, got {tunings}")
    coverage, width, center_error, infinite, n_tuning = zip(*judged, strict=True)
    return Evaluation(
        score=score_name(chosen),
        alpha=alpha,
        **checked.sizes,
        n_tuning=n_tuning[0],
        trials=None,
        coverage=mixture(coverage),
        case_coverage=mixture(coverage),
        coverage_of=checked.unit.who,
        mean_over=checked.unit.mean_over,
        width=mixture(width),
        center_error=mixture(center_error),
        infinite=float(np.mean(infinite)),
    )


def mixture(parts: tuple[Moments, ...]) -> Moments:
    """Combine moments over equally likely parts.

    Example:
        >>> mixture((Moments(1.0, 0.0), Moments(3.0, 0.0)))
        Moments(mean=2.0, sd=1.0)
    """
    if len(parts) == 1:
        return parts[0]
    mean = float(np.mean([part.mean for part in parts]))
    if not math.isfinite(mean):
        return Moments(mean, math.nan)
    variance = np.mean([part.sd**2 + (part.mean - mean) ** 2 for part in parts])
    return Moments(mean, math.sqrt(float(variance)))


def _judge(
    checked: Checked, pool: Pool, alpha: float
) -> tuple[Moments, Moments, Moments, float, int]:
    rank = coverage_rank(pool.n_calibration, alpha)
    if rank > pool.n_calibration:
        everything = pool.interval(math.inf)
        width = Moments(float(everything.width.mean()), 0.0)
        error = Moments(float(np.abs(pool.offset(everything)).mean()), 0.0)
        return Moments(1.0, 0.0), width, error, 1.0, pool.n_tuning
    order = np.argsort(pool.scores, kind="stable")
    ordered = pool.scores[order]
    law = quantile_position(pool.n_calibration, checked.n_test, rank)
    coverage = law.coverage(ordered, np.sort(pool.covered_from))
    quantiles = ordered[law.position - 1]
    infinite = float(law.probability[np.isposinf(quantiles)].sum())
    with np.errstate(invalid="ignore"):  # infinite widths are reported as such
        width, error = (
            law.mean_over_test(*powers) for powers in pool_sums(pool.take(order), law.position)
        )
    return coverage, width, error, infinite, pool.n_tuning
