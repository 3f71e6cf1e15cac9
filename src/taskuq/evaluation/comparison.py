"""The paper's comparison of scores: interval width against acceleration and sample count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from taskuq.calibration.family import BoundSide, sides_asked
from taskuq.calibration.units import NewCase, unit_named
from taskuq.errors import InputError
from taskuq.evaluation.closed_form import evaluate_exact_score
from taskuq.evaluation.montecarlo import evaluate_scores
from taskuq.evaluation.pools import check_cases
from taskuq.evaluation.result import Evaluation, EvaluationRecord
from taskuq.evaluation.strata import PAPER_SIZE_BINS
from taskuq.outputs import TaskOutputs
from taskuq.outputs.rounds import called_rounds
from taskuq.protocols import Score
from taskuq.ranges import ranges_to_json

# What of a comparison its record repeats.
ASKED = ("alpha", "trials", "seed", "side", "cases", "delta")


@dataclass(frozen=True)
class Comparison:
    """What to compare; the defaults are the paper's values.

    Arguments:
        scores: Scores by name, or objects.
        alpha: The error rate.
        accelerations: The rounds; all of the table's where None.
        samples: Numbers of posterior samples; all of the table's where None.
        trials: Random splits; None takes all splits exactly.
        seed: The seed of the splits.
        unit: 'case' or 'group'; the group where the table has groups and splits are random.
        cases: With groups, whom the promise is about.
        delta: For a promise given the calibration set.
        side: 'two', 'upper', 'lower' or 'each'; the last is compared with 'two'.
        size_bins: Edges of width ranges.
    """

    scores: tuple[str | Score, ...] = ("ar", "lwr", "cqr")
    alpha: float = 0.05
    accelerations: tuple[float, ...] | None = None
    samples: tuple[int, ...] | None = None
    trials: int | None = 10_000
    seed: int = 0
    unit: str | None = None
    cases: float | str = "random"
    delta: float | None = None
    side: BoundSide = "two"
    size_bins: tuple[float, ...] = PAPER_SIZE_BINS


def compare(table: TaskOutputs, comparison: Comparison) -> EvaluationRecord:
    """Judge every score at every acceleration and number of samples of a table.

    Arguments:
        table: The table of task outputs.
        comparison: What to compare.

    Example:
        >>> from taskuq.outputs.synthetic import SyntheticScanner, synthetic_outputs
        >>> table = synthetic_outputs(SyntheticScanner(volumes=8), seed=0)
        >>> record = compare(table, Comparison(trials=None, accelerations=(16.0, 2.0)))
        >>> [(r.acceleration, r.score) for r in record.results][:3]
        [(16.0, 'ar'), (16.0, 'lwr'), (16.0, 'cqr')]
    """
    if not table.has_targets:
        raise InputError("the table has no targets, so nothing can be judged on it")
    results = [
        result
        for name in table.task_names
        for result in _task(table.select(task=name) if table.tasks > 1 else table, comparison)
    ]
    return EvaluationRecord(tuple(results), _inputs(table, comparison))


def _task(table: TaskOutputs, comparison: Comparison) -> Iterator[Evaluation]:
    accelerations: Sequence[float] = comparison.accelerations or tuple(table.accelerations)
    for R in accelerations:
        k = 0 if np.isnan(R) else table.round_at(R)
        for p in comparison.samples or (table.samples,):
            smaller = table.select(samples=p)
            for result in _round(smaller, k, comparison):
                yield replace(
                    result,
                    acceleration=None if np.isnan(R) else float(R),
                    round_name=None if table.round_names is None else table.round_names[k],
                    task=table.task_names[0] if table.task_names != ("task",) else None,
                )


def _round(table: TaskOutputs, k: int, comparison: Comparison) -> list[Evaluation]:
    trials, unit = comparison.trials, comparison.unit
    if trials is None:
        unit = unit or NewCase().name
        if unit_named(unit).is_group:
            raise InputError("exact evaluation is for splits by case; groups take --trials")
    checked = check_cases(
        table.until(k),
        table.targets_at(k),
        # Where all splits are taken at once, nothing is learnt from groups either.
        group=None if trials is None else table.group,
        label=table.label,
        unit=unit,
        cases=comparison.cases,
        task_range=table.task_range,
    )
    if trials is None:
        return [
            evaluate_exact_score(checked, score, alpha=comparison.alpha, side=comparison.side)
            for score in comparison.scores
        ]

    def judged(side: BoundSide, size_bins: tuple[float, ...] | None) -> list[Evaluation]:
        # The same splits at every acceleration, so that differences are not those of the splits.
        rng = np.random.default_rng(comparison.seed)
        return evaluate_scores(
            checked, comparison.scores, alpha=comparison.alpha, trials=trials, rng=rng,
            delta=comparison.delta, side=side, size_bins=size_bins,
        )  # fmt: skip

    results = judged(comparison.side, comparison.size_bins)
    score_side, ends = sides_asked(comparison.side)
    if ends == 1:
        return results
    by_one = judged(score_side, None)
    return [
        replace(each, width_by_one=one.width) for each, one in zip(results, by_one, strict=True)
    ]


def _inputs(table: TaskOutputs, comparison: Comparison) -> dict[str, Any]:
    return {
        "table": repr(table),
        **ranges_to_json(table.task_ranges),
        "provenance": dict(table.provenance),
        "missing_cases": list(table.missing),
        "round_names": called_rounds(table.accelerations, table.round_names),
        "scores": [s if isinstance(s, str) else type(s).__name__ for s in comparison.scores],
        **{name: getattr(comparison, name) for name in ASKED},
    }
