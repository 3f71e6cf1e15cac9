"""Evaluation over true random splits, by cases or by groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from taskuq.calibration.family import BoundSide, sides_asked
from taskuq.calibration.given import given_cases
from taskuq.calibration.guarantee import Guarantee
from taskuq.calibration.scores import resolve_score, score_name
from taskuq.calibration.summaries import compiled
from taskuq.errors import InputError
from taskuq.evaluation.exact import Moments, coverage_histogram, quantile_position
from taskuq.evaluation.pools import Checked, Pool, check_cases, crosses, pools
from taskuq.evaluation.result import Evaluation
from taskuq.evaluation.splits import hash_word
from taskuq.evaluation.strata import (
    StratumCounts,
    as_size_bins,
    count_strata,
    group_coverage,
    stratum_coverage,
)
from taskuq.evaluation.trials import (
    Outcomes,
    Ranking,
    Splitting,
    promised_ranking,
    run_trials,
    sums_at_quantiles,
)
from taskuq.interval import FloatArray, TaskRange
from taskuq.protocols import Score


def evaluate(
    outputs: Any,
    targets: Any = None,
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
    side: BoundSide = "two",
    task_range: TaskRange = None,
    share: float = 0.7,
    size_bins: Sequence[float] | None = None,
    tunings: int = 10,
    acceleration: float | str | None = None,
    task: str | None = None,
) -> Evaluation:
    r"""Judge a score over random splits into calibration and test folds.

    In each trial :math:`t` the units are split, the quantile is calibrated on one fold, and the
    other fold's coverage and mean interval width are recorded:

    .. math:: \mathrm{coverage}[t] = \frac1m \sum_{i \in \mathrm{test}}
        \mathbb 1\{z_i \in \mathcal C_i\}, \qquad
        \mathrm{width}[t] = \frac1m \sum_{i \in \mathrm{test}} |\mathcal C_i|

    With groups as the unit whole groups are split, and every group counts the same. Where all cases
    of a group are promised, or a share, coverage is the share of groups for which that holds.
    A case counts as covered where its reported interval contains its target
    (:func:`~taskuq.evaluation.ties.covered_from`).

    Arguments:
        outputs: Task outputs (case, sample), (case,) for point estimates, or (round, case, sample)
            with the current round last. Or a table, which brings the rest.
        targets: Targets (case,); left out with a table.
        alpha: The error rate.
        score: A score's name or object.
        trials: The number of splits.
        rng: Their source of randomness.
        group: The group of each case.
        label: The class of each case, for class-conditional coverage.
        unit: 'case' or 'group'; the group if groups are given.
        cases: With groups: whom the promise is about, as in :func:`taskuq.calibrate`.
        delta: For a promise given the calibration set, as in :func:`taskuq.calibrate`.
        side: 'two', 'upper', 'lower' or 'each'.
        task_range: The range intervals are clipped to.
        share: The share of units used for calibration.
        size_bins: Edges of width ranges for size-stratified coverage, e.g. the paper's
            (0, 0.05, 0.1, 0.15, 0.2, inf).
        tunings: For a score that learns from targets: how many tuning folds to average over.
        acceleration: Of a table with several rounds: which one, by acceleration or name.
        task: Of a table with several tasks: which one.

    Example:
        >>> truth = rng.random(300)
        >>> outputs = truth[:, None] + 0.1 * rng.standard_normal((300, 8))
        >>> result = evaluate(outputs, truth, alpha=0.1, score="lwr", trials=200, rng=rng)
        >>> abs(result.coverage.mean - 0.9) < 0.02
        True
    """
    given = given_cases(outputs, targets, acceleration, task, group, task_range)
    checked = check_cases(
        given.outputs, given.targets, group=given.group, unit=unit, cases=cases,
        label=given.label if label is None else label, task_range=given.task_range, share=share,
    )  # fmt: skip
    (result,) = evaluate_scores(
        checked, [score], alpha=alpha, trials=trials, rng=rng, delta=delta, side=side,
        size_bins=size_bins, tunings=tunings,
    )  # fmt: skip
    return replace(result, **given.where)


@dataclass(frozen=True)
class _Rule:
    """How the quantile is found and what is reported, shared by all scores of a call."""

    promise: Guarantee
    size_bins: tuple[float, ...]
    is_compiled: bool


def evaluate_scores(
    checked: Checked,
    scores: Sequence[str | Score],
    *,
    alpha: float,
    trials: int,
    rng: np.random.Generator,
    delta: float | None = None,
    side: BoundSide = "two",
    size_bins: Sequence[float] | None = None,
    tunings: int = 10,
) -> list[Evaluation]:
    """Judge several scores on the same splits; see :func:`evaluate`."""
    if trials < 1 or tunings < 1:
        raise InputError(f"trials and tunings must be at least 1, got {trials} and {tunings}")
    score_side, ends = sides_asked(side)
    promise = Guarantee(
        alpha=alpha, **checked.unit.record, delta=delta, n_cases=len(checked.targets), ends=ends
    )
    rule = _Rule(
        promise, as_size_bins(size_bins), compiled(trials * len(checked.targets) * len(scores))
    )
    seed = int(rng.integers(2**63))
    chosen = [resolve_score(score, alpha, score_side) for score in scores]
    parts: list[list[_PoolTrials]] = [[] for _ in chosen]
    whole: dict[int, Pool] = {}
    draws = min(tunings, trials)
    for k, one in enumerate(chosen):
        for draw, pool in enumerate(pools(checked, one, alpha, draws, rng, ends)):
            if len(pool.index) == len(checked.targets):
                whole[k] = pool
            else:
                count = trials // draws + (draw < trials % draws)
                parts[k] += _run(checked, [pool], rule, count, hash_word(seed + draw + 1))
    # Scores that need no cases of their own all see the same splits.
    together = _run(checked, list(whole.values()), rule, trials, seed) if whole else []
    for k, part in zip(whole, together, strict=True):
        parts[k].append(part)
    return [
        _summarise(checked, score_name(one), rule, trials, of_score)
        for one, of_score in zip(chosen, parts, strict=True)
    ]


@dataclass(frozen=True)
class _PoolTrials:
    """What the trials of one pool gave, each (trial,) unless said otherwise."""

    coverage: FloatArray
    case_coverage: FloatArray
    width: FloatArray
    center_error: FloatArray
    is_infinite: np.ndarray
    n_tuning: int
    strata: StratumCounts
    whole_groups: FloatArray | None
    pmf: FloatArray | None


def _run(
    checked: Checked, pools_: list[Pool], rule: _Rule, trials: int, seed: int
) -> list[_PoolTrials]:
    index = pools_[0].index
    unit_of_case = np.unique(checked.unit_of_case[index], return_inverse=True)[1].astype(np.int64)
    of_case = unit_of_case if checked.unit.is_group else np.empty(0, np.int64)
    units = int(unit_of_case.max()) + 1
    splitting = Splitting(units, checked.n_test, trials, seed, of_case, rule.is_compiled)
    weight = checked.unit.weights(unit_of_case)
    allowed = rule.promise.allowed(pools_[0].n_calibration)
    rankings = [
        promised_ranking(
            scores, rule.promise, allowed, unit_of_case,
            pool.covered_from if rule.promise.ends == 1 else None,
        )
        for pool in pools_
        for scores in np.atleast_2d(pool.scores)
    ]  # fmt: skip
    linear = [pool.linear_width for pool in pools_]
    features = np.zeros((len(rankings), 3, len(index)))
    for k, (pool, widths) in enumerate(zip(pools_, linear, strict=True)):
        if widths is not None:
            features[k, :2] = widths
            features[k, 2] = np.abs(pool.targets - pool.family.interval(0.0).center)
    outcomes = run_trials(splitting, rankings, features * weight)
    if rule.promise.ends == 2:
        found = [r.quantiles(at) for r, at in zip(rankings, outcomes.position, strict=True)]
        pairs = np.stack(found, axis=1).reshape(trials, len(pools_), 2)
        return [
            _of_ends(checked, pool, rule, splitting, pairs[:, k], weight)
            for k, pool in enumerate(pools_)
        ]
    return [
        _of_pool(checked, pool, rule, splitting, ranking, outcomes.of(k), weight)
        for k, (pool, ranking) in enumerate(zip(pools_, rankings, strict=True))
    ]


def _of_pool(
    checked: Checked,
    pool: Pool,
    rule: _Rule,
    splitting: Splitting,
    ranking: Ranking,
    outcomes: Outcomes,
    weight: FloatArray,
) -> _PoolTrials:
    quantile = ranking.quantiles(outcomes.position)
    infinite = np.isposinf(quantile)
    m = splitting.n_test
    coverage = case_coverage = 1 - outcomes.test_above / m
    linear = pool.linear_width
    is_linear = linear is not None and not crosses(linear, float(quantile.min()))
    if is_linear:
        base, slope, center = outcomes.sums
        finite = np.where(infinite, 0.0, quantile)
        width = np.where(infinite, np.inf, (base + slope * finite) / m)
        center_error = np.where(infinite, np.inf, center / m)
    if not is_linear or checked.unit.share is not None:
        case_coverage, widths, errors = _means(pool, splitting, quantile, weight)
        if not is_linear:
            open_ended = np.array([_is_open(pool, q) for q in (0.0, math.inf)])
            width = np.where(open_ended[infinite.astype(int), 0], np.inf, widths)
            center_error = np.where(open_ended[infinite.astype(int), 1], np.inf, errors)
    return _PoolTrials(
        coverage=coverage,
        case_coverage=case_coverage,
        width=width,
        center_error=center_error,
        is_infinite=infinite,
        n_tuning=pool.n_tuning,
        strata=count_strata(checked, pool, rule.size_bins, splitting, quantile),
        whole_groups=_whole_groups(checked, pool, splitting, quantile),
        pmf=_law(checked, pool, rule),
    )


def _of_ends(
    checked: Checked,
    pool: Pool,
    rule: _Rule,
    splitting: Splitting,
    quantile: FloatArray,
    weight: FloatArray,
) -> _PoolTrials:
    """What trials gave where each end has a quantile of its own, (trial, end)."""
    infinite = np.isposinf(quantile)
    case_coverage, widths, errors = _means(pool, splitting, quantile, weight)
    share = checked.unit.share
    kept = None if share is None else group_coverage(pool, splitting, quantile, share)
    # The quantiles of a trial are finite, infinite below, above, or both.
    kinds = ((0.0, 0.0), (math.inf, 0.0), (0.0, math.inf), (math.inf, math.inf))
    open_width, open_error = np.array([_is_open(pool, kind) for kind in kinds]).T
    kind = infinite @ [1, 2]
    return _PoolTrials(
        coverage=case_coverage if kept is None else kept,
        case_coverage=case_coverage,
        width=np.where(open_width[kind], np.inf, widths),
        center_error=np.where(open_error[kind], np.inf, errors),
        is_infinite=kind > 0,
        n_tuning=pool.n_tuning,
        strata=count_strata(checked, pool, rule.size_bins, splitting, quantile),
        whole_groups=_whole_groups(checked, pool, splitting, quantile),
        pmf=None,
    )


def _means(
    pool: Pool, splitting: Splitting, quantile: FloatArray, weight: FloatArray
) -> FloatArray:
    """Coverage, mean width and mean centre error of each test fold, case by case."""

    def tables(q: FloatArray) -> FloatArray:
        interval = pool.intervals(q)
        covered = pool.covered(q)
        # Infinity times an absent case is not a number; such trials are set apart afterwards.
        width = np.where(np.isinf(interval.width), 0.0, interval.width)
        error = np.abs(pool.offset(interval))
        return np.stack([covered, width, np.where(np.isinf(error), 0.0, error)]) * weight

    return sums_at_quantiles(splitting, quantile, tables) / splitting.n_test


def _is_open(pool: Pool, quantile: ArrayLike) -> tuple[bool, bool]:
    """Whether widths, and distances to the target, are infinite at a quantile."""
    interval = pool.interval(quantile)
    both = np.isinf(interval.lower) & np.isinf(interval.upper)
    return bool(interval.is_unbounded.any()), bool(both.any())


def _whole_groups(
    checked: Checked, pool: Pool, splitting: Splitting, quantile: FloatArray
) -> FloatArray | None:
    """Share of test groups whose cases are all covered, where groups are the unit."""
    if not checked.unit.is_group:
        return None
    return group_coverage(pool, splitting, quantile, Fraction(1))


def _law(checked: Checked, pool: Pool, rule: _Rule) -> FloatArray | None:
    if checked.unit.is_group or pool.n_tuning:
        return None
    n = pool.n_calibration
    rank = rule.promise.rank(n)
    if rank > n:
        return np.append(np.zeros(checked.n_test), 1.0)
    law = quantile_position(n, checked.n_test, rank)
    return law.coverage_pmf(np.sort(pool.scores), np.sort(pool.covered_from))


def _summarise(
    checked: Checked, name: str, rule: _Rule, trials: int, parts: list[_PoolTrials]
) -> Evaluation:
    coverage = np.concatenate([part.coverage for part in parts])
    infinite = np.concatenate([part.is_infinite for part in parts])
    pmf = parts[0].pmf
    histogram = None
    if pmf is not None:
        histogram = coverage_histogram(np.rint(coverage * checked.n_test).astype(np.int64), pmf)
    groups = [part.whole_groups for part in parts if part.whole_groups is not None]
    strata = [part.strata for part in parts]
    return Evaluation(
        score=name,
        alpha=rule.promise.alpha,
        **checked.sizes,
        n_tuning=parts[0].n_tuning,
        trials=trials,
        coverage=_moments(coverage),
        case_coverage=_moments(np.concatenate([part.case_coverage for part in parts])),
        coverage_of=checked.unit.who,
        mean_over=checked.unit.mean_over,
        width=_moments(np.concatenate([part.width for part in parts])),
        center_error=_moments(np.concatenate([part.center_error for part in parts])),
        infinite=float(infinite.mean()),
        whole_groups=float(np.concatenate(groups).mean()) if groups else None,
        class_coverage=stratum_coverage(strata, "class", checked.unit),
        size_coverage=stratum_coverage(strata, "width", checked.unit),
        histogram=histogram,
    )


def _moments(values: FloatArray) -> Moments:
    if not np.isfinite(values).all():
        return Moments(math.inf, math.nan)
    return Moments(float(values.mean()), float(values.std()))
