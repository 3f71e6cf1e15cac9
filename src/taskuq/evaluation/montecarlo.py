"""Evaluation over true random splits, by cases or by groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskuq.calibration.family import Side, intervals_at
from taskuq.calibration.guarantee import Guarantee
from taskuq.calibration.summaries import compiled
from taskuq.errors import InputError
from taskuq.evaluation.exact import Moments, coverage_pmf, quantile_position
from taskuq.evaluation.goodness import coverage_histogram
from taskuq.evaluation.pools import (
    Cases,
    Pool,
    check_cases,
    clipped,
    crosses,
    distance,
    linear_width,
    named_score,
    pools,
)
from taskuq.evaluation.ranking import Ranking, promised_ranking
from taskuq.evaluation.result import Evaluation
from taskuq.evaluation.splits import hash_word
from taskuq.evaluation.strata import (
    StratumCounts,
    as_size_bins,
    count_strata,
    join,
    whole_group_coverage,
)
from taskuq.evaluation.trials import Found, Splitting, run_trials, split_by, sums_at_quantiles
from taskuq.interval import FloatArray
from taskuq.protocols import Score


def evaluate(
    outputs: Any,
    targets: Any,
    *,
    alpha: float,
    score: str | Score = "mlwr",
    trials: int = 10_000,
    rng: np.random.Generator,
    group: Any = None,
    label: Any = None,
    unit: str | None = None,
    cases: float | str = "random",
    delta: float | None = None,
    side: Side = "two",
    task_range: tuple[float, float] | None = None,
    share: float = 0.7,
    size_bins: Sequence[float] | None = None,
    tunings: int = 10,
) -> Evaluation:
    r"""Judge a score over random splits into calibration and test folds.

    In each trial :math:`t` the units are split, the quantile is calibrated on one fold, and the
    other fold's coverage and mean interval width are recorded:

    .. math:: \mathrm{EC}[t] = \frac1m \sum_{i \in \mathrm{test}}
        \mathbb 1\{z_i \in \mathcal C_i\}, \qquad
        \mathrm{MIL}[t] = \frac1m \sum_{i \in \mathrm{test}} |\mathcal C_i|

    With groups as the unit whole groups are split, and every group counts the same.

    Arguments:
        outputs: Task outputs (case, sample), or (round, case, sample) with the current round last.
        targets: Targets (case,).
        alpha: The error rate.
        score: A score's name or object.
        trials: The number of splits.
        rng: Their source of randomness.
        group: The group of each case.
        label: The class of each case, for class-conditional coverage.
        unit: 'case' or 'group'; the group if groups are given.
        cases: With groups: whom the promise is about, as in :func:`taskuq.calibrate`.
        delta: For a promise given the calibration set, as in :func:`taskuq.calibrate`.
        side: 'two', 'upper' or 'lower'.
        task_range: The range intervals are clipped to.
        share: The share of units used for calibration.
        size_bins: Edges of width ranges for size-stratified coverage, e.g. the paper's
            (0, 0.05, 0.1, 0.15, 0.2, inf).
        tunings: For a score that learns from targets: how many tuning folds to average over.

    Example:
        >>> truth = rng.random(300)
        >>> outputs = truth[:, None] + 0.1 * rng.standard_normal((300, 8))
        >>> result = evaluate(outputs, truth, alpha=0.1, score="lwr", trials=200, rng=rng)
        >>> abs(result.coverage.mean - 0.9) < 0.02
        True
    """
    checked = check_cases(
        outputs, targets, group=group, label=label, unit=unit, cases=cases, task_range=task_range,
        share=share,
    )  # fmt: skip
    return evaluate_scores(
        checked,
        [score],
        alpha=alpha,
        trials=trials,
        rng=rng,
        delta=delta,
        side=side,
        size_bins=size_bins,
        tunings=tunings,
    )[0]


@dataclass(frozen=True)
class _Rule:
    """How the quantile is found and what is reported, shared by all scores of a call."""

    promise: Guarantee
    size_bins: tuple[float, ...]
    is_compiled: bool


def evaluate_scores(
    checked: Cases,
    scores: Sequence[str | Score],
    *,
    alpha: float,
    trials: int,
    rng: np.random.Generator,
    delta: float | None = None,
    side: Side = "two",
    size_bins: Sequence[float] | None = None,
    tunings: int = 10,
) -> list[Evaluation]:
    """Judge several scores on the same splits; see :func:`evaluate`."""
    if trials < 1 or tunings < 1:
        raise InputError(f"trials and tunings must be at least 1, got {trials} and {tunings}")
    promise = Guarantee(
        alpha=alpha, **checked.unit.record, delta=delta, n_cases=len(checked.targets)
    )
    rule = _Rule(
        promise, as_size_bins(size_bins), compiled(trials * len(checked.targets) * len(scores))
    )
    seed = int(rng.integers(2**63))
    named = [named_score(score, alpha, side) for score in scores]
    found: list[list[_Part]] = [[] for _ in named]
    whole: list[tuple[int, Pool]] = []
    for k, (_, score) in enumerate(named):
        for draw, pool in enumerate(pools(checked, score, alpha, min(tunings, trials), rng)):
            if len(pool.index) == len(checked.targets):
                whole.append((k, pool))
            else:
                draws = min(tunings, trials)
                count = trials // draws + (draw < trials % draws)
                found[k] += _run(checked, [pool], rule, count, hash_word(seed + draw + 1))
    for (k, _), part in zip(
        whole,
        _run(checked, [p for _, p in whole], rule, trials, seed) if whole else [],
        strict=True,
    ):
        found[k].append(part)
    return [
        _summarise(checked, name, rule, trials, parts)
        for (name, _), parts in zip(named, found, strict=True)
    ]


@dataclass(frozen=True)
class _Part:
    """What the trials of one pool gave, each (trial,) unless said otherwise."""

    coverage: FloatArray
    width: FloatArray
    center_error: FloatArray
    is_infinite: np.ndarray
    n_tuning: int
    strata: tuple[StratumCounts, ...]
    whole_groups: FloatArray | None
    pmf: FloatArray | None


def _run(cases: Cases, pools_: list[Pool], rule: _Rule, trials: int, seed: int) -> list[_Part]:
    index = pools_[0].index
    unit_of_case = np.unique(cases.unit_of_case[index], return_inverse=True)[1].astype(np.int64)
    splitting = split_by(
        cases.unit, unit_of_case, n_test=cases.n_test, trials=trials, seed=seed,
        is_compiled=rule.is_compiled,
    )  # fmt: skip
    weight = cases.unit.weights(unit_of_case)
    rankings = [
        promised_ranking(pool.scores, rule.promise, pool.n_calibration, unit_of_case)
        for pool in pools_
    ]
    linear = [linear_width(pool.family, cases.task_range) for pool in pools_]
    features = np.zeros((len(pools_), 3, len(index)))
    targets = cases.targets[index]
    for k, (pool, widths) in enumerate(zip(pools_, linear, strict=True)):
        if widths is not None:
            features[k, :2] = widths
            features[k, 2] = np.abs(targets - pool.family.interval(0.0).center)
    found = run_trials(splitting, rankings, features * weight)
    return [
        _part(cases, pool, rule, splitting, rankings[k], found, k, linear[k], weight)
        for k, pool in enumerate(pools_)
    ]


def _part(
    cases: Cases,
    pool: Pool,
    rule: _Rule,
    splitting: Splitting,
    ranking: Ranking,
    found: Found,
    k: int,
    linear: tuple[FloatArray, FloatArray] | None,
    weight: FloatArray,
) -> _Part:
    quantile = ranking.quantiles(found.position[k])
    infinite = np.isposinf(quantile)
    m = splitting.n_test
    targets = cases.targets[pool.index]
    per_case = len(ranking.scores) == len(pool.index)
    coverage = 1 - found.test_above[k] / m
    is_linear = linear is not None and not crosses(linear, float(quantile.min()))
    if is_linear:
        base, slope, center = found.sums[k]
        finite = np.where(infinite, 0.0, quantile)
        width = np.where(infinite, np.inf, (base + slope * finite) / m)
        center_error = np.where(infinite, np.inf, center / m)
    if not is_linear or not per_case:

        def tables(q: FloatArray) -> FloatArray:
            interval = clipped(intervals_at(pool.family, q), cases.task_range)
            covered = pool.scores <= q[:, None]
            # Infinity times an absent case is not a number; such trials are set apart below.
            unbounded = np.where(np.isinf(interval.width), 0.0, interval.width)
            error = distance(interval, targets, cases.task_range)
            error = np.where(np.isinf(error), 0.0, error)
            return np.stack([covered, unbounded, error]) * weight

        covered, widths, errors = sums_at_quantiles(splitting, quantile, tables) / m
        coverage = covered
        if not is_linear:
            open_ended = np.array([_is_open(pool, cases.task_range, q) for q in (0.0, math.inf)])
            width = np.where(open_ended[infinite.astype(int), 0], np.inf, widths)
            center_error = np.where(open_ended[infinite.astype(int), 1], np.inf, errors)
    return _Part(
        coverage=coverage,
        width=width,
        center_error=center_error,
        is_infinite=infinite,
        n_tuning=pool.n_tuning,
        strata=tuple(count_strata(cases, pool, rule.size_bins, splitting, quantile)),
        whole_groups=whole_group_coverage(cases, pool, splitting, quantile),
        pmf=_law(cases, pool, rule),
    )


def _is_open(
    pool: Pool, task_range: tuple[float, float] | None, quantile: float
) -> tuple[bool, bool]:
    """Whether widths, and distances to the target, are infinite at a quantile."""
    interval = clipped(pool.family.interval(quantile), task_range)
    both = np.isinf(interval.lower) & np.isinf(interval.upper)
    return bool(interval.is_unbounded.any()), bool(both.any())


def _law(cases: Cases, pool: Pool, rule: _Rule) -> FloatArray | None:
    if cases.unit.is_group or pool.n_tuning:
        return None
    n = pool.n_calibration
    rank = rule.promise.rank(n)
    if rank > n:
        return np.append(np.zeros(cases.n_test), 1.0)
    return coverage_pmf(quantile_position(n, cases.n_test, rank), np.sort(pool.scores))


def _summarise(cases: Cases, name: str, rule: _Rule, trials: int, parts: list[_Part]) -> Evaluation:
    coverage = np.concatenate([part.coverage for part in parts])
    infinite = np.concatenate([part.is_infinite for part in parts])
    pmf = parts[0].pmf
    histogram = None
    if pmf is not None:
        histogram = coverage_histogram(np.rint(coverage * cases.n_test).astype(np.int64), pmf)
    groups = [part.whole_groups for part in parts if part.whole_groups is not None]
    strata = [join(same) for same in zip(*(part.strata for part in parts), strict=True)]
    return Evaluation(
        score=name,
        alpha=rule.promise.alpha,
        unit=cases.unit.counted,
        samples=int(cases.outputs.shape[-1]),
        n=cases.units,
        n_calibration=cases.n_calibration,
        n_test=cases.n_test,
        n_tuning=parts[0].n_tuning,
        trials=trials,
        coverage=_moments(coverage),
        width=_moments(np.concatenate([part.width for part in parts])),
        center_error=_moments(np.concatenate([part.center_error for part in parts])),
        infinite=float(infinite.mean()),
        whole_groups=float(np.concatenate(groups).mean()) if groups else None,
        class_coverage=tuple(s.summary() for s in strata if s.kind == "class"),
        size_coverage=tuple(s.summary() for s in strata if s.kind == "size"),
        histogram=histogram,
    )


def _moments(values: FloatArray) -> Moments:
    if not np.isfinite(values).all():
        return Moments(math.inf, math.nan)
    return Moments(float(values.mean()), float(values.std()))
