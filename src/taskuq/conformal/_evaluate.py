"""Evaluation over random splits, by class and width."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from taskuq._arrays import ranges_to_json
from taskuq.conformal._calibrate import as_round
from taskuq.conformal._exact import (
    Evaluation,
    EvaluationRecord,
    MeanAndSD,
    StratumCoverage,
    coverage_histogram,
    evaluate_exact_score,
    quantile_position,
)
from taskuq.conformal._family import BoundSide, parse_side, use_numba
from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal._splits import (
    EvaluationInputs,
    Pool,
    RankedScores,
    SplitResults,
    Splits,
    check_cases,
    has_crossing,
    make_pools,
    rank_for_guarantee,
    run_splits,
    splitmix64,
    sums_at_quantiles,
)
from taskuq.conformal._units import CaseUnit, Unit, as_generator, make_unit
from taskuq.conformal.scores import resolve_score, score_name
from taskuq.errors import InputError
from taskuq.interval import FloatArray, TaskRange
from taskuq.protocols import Score
from taskuq.table._table import TaskOutputs, called_rounds

PAPER_SIZE_BINS = (0.0, 0.05, 0.1, 0.15, 0.2, math.inf)


# Test cases of each stratum, what they weigh and what the covered ones weigh, (3, trial); a stratum
# is a pair of 'class' or 'width' and the name of the class or the range.
StratumCounts = dict[tuple[str, str], FloatArray]


def _stratum_coverage(
    parts: Sequence[StratumCounts], kind: str, unit: Unit
) -> tuple[StratumCoverage, ...]:
    """Average over the trials in which a stratum is not empty: empty is missing, not zero."""
    found = []
    for stratum in (stratum for stratum in parts[0] if stratum[0] == kind):
        cases, inside, covered = np.concatenate([part[stratum] for part in parts], axis=1)
        there = cases > 0
        coverage = math.nan
        if there.any():
            # A mean of the shares of small folds would count groups, not cases of groups, alike.
            shares = (
                covered.sum() / inside.sum() if unit.is_group else covered[there] / inside[there]
            )
            coverage = float(np.mean(shares))
        found.append(StratumCoverage(stratum[1], coverage, float(cases.mean()), int(there.sum())))
    return tuple(found)


def _count_strata(
    checked: EvaluationInputs,
    pool: Pool,
    edges: tuple[float, ...],
    splitting: Splits,
    quantile: FloatArray,
) -> StratumCounts:
    """Count and weigh test cases, and covered ones, in each class and each range of widths."""
    labels = None if checked.label is None else checked.label[pool.index]
    classes = [] if labels is None else list(np.unique(labels))
    if not classes and not edges:
        return {}

    def tables(q: FloatArray) -> FloatArray:
        covered = pool.covered(q)
        inside = [np.broadcast_to(labels == c, covered.shape) for c in classes]
        if edges:
            width = pool.intervals(q).width
            inside += [
                (width >= low) & ((width < high) | (high == math.inf))
                for low, high in pairwise(edges)
            ]
        counted = np.stack([*inside, *(i & covered for i in inside)]).astype(float)
        return counted if weight is None else np.concatenate([counted, counted * weight])

    unit = checked.unit
    weight = unit.weights(splitting.unit_of_case) if unit.is_group else None
    sums = sums_at_quantiles(splitting, quantile, tables)
    titles = [("class", str(c)) for c in classes]
    titles += [("width", f"[{low:g}, {high:g})") for low, high in pairwise(edges)]
    last, strata = len(sums), len(titles)
    return {
        title: sums[[i, last - 2 * strata + i, last - strata + i]] for i, title in enumerate(titles)
    }


def _group_coverage(
    pool: Pool, splitting: Splits, quantile: FloatArray, share: Fraction
) -> FloatArray:
    """Return the share of test groups of which at least a share of cases is covered, (trial,)."""
    enough = [math.ceil(share * int(size)) for size in np.bincount(splitting.unit_of_case)]
    by_group = replace(splitting, unit_of_case=np.empty(0, np.int64))

    def tables(q: FloatArray) -> FloatArray:
        covered = splitting.of_units(pool.covered(q).astype(np.int64))
        return (covered >= np.array(enough))[None].astype(float)

    return np.asarray(sums_at_quantiles(by_group, quantile, tables)[0] / splitting.n_test)


def _as_size_bins(edges: Sequence[float] | None) -> tuple[float, ...]:
    """Take rising edges of ranges of widths, or none."""
    if edges is None:
        return ()
    try:
        given = tuple(float(e) for e in edges)
    except (TypeError, ValueError):
        raise InputError(
            f"size_bins must be increasing numbers, got {edges!r}", code="value.invalid"
        ) from None
    if len(given) < 2 or any(not a < b for a, b in pairwise(given)):
        raise InputError(
            f"size_bins must be at least two increasing edges, got {given}", code="value.invalid"
        )
    return given


def evaluate(
    outputs: Any,
    targets: Any = None,
    *,
    alpha: float,
    score: str | Score = "mlwr",
    splits: int = 10_000,
    seed: int | np.random.Generator = 0,
    group: Any = None,
    label: Any = None,
    unit: str | None = None,
    cases: float | str = "random",
    delta: float | None = None,
    side: BoundSide = "two",
    task_range: TaskRange = None,
    calibration_fraction: float = 0.7,
    size_bins: Sequence[float] | None = None,
    tuning_repeats: int = 10,
    acceleration: float | str | None = None,
    task: str | None = None,
) -> Evaluation:
    r"""Evaluate a score over random calibration and test splits.

    In each split :math:`t` the quantile is calibrated on one set of units, and coverage and mean
    interval width are measured on the other:

    .. math:: \mathrm{coverage}[t] = \frac1m \sum_{i \in \mathrm{test}}
        \mathbb 1\{z_i \in \mathcal C_i\}, \qquad
        \mathrm{width}[t] = \frac1m \sum_{i \in \mathrm{test}} |\mathcal C_i|

    With groups as the unit whole groups are split, and every group has equal weight. Where all
    cases of a group, or a fraction, are to be covered, coverage is the fraction of such groups. A
    case is covered if its reported interval contains its target.

    Args:
        outputs: Task outputs (case, sample), (case,) for point estimates, or (round, case, sample)
            with the current round last. Or a table, which has the rest.
        targets: Targets (case,); omit with a table.
        alpha: Error rate.
        score: Name or object of a score.
        splits: Number of random splits.
        seed: Integer or Generator.
        group: Group of each case.
        label: Class of each case, for class-conditional coverage.
        unit: 'case' or 'group'; the group if groups are given.
        cases: With groups, the cases of a new group to cover, as in :func:`taskuq.calibrate`.
        delta: For a guarantee given the calibration set, as in :func:`taskuq.calibrate`.
        side: 'two', 'upper', 'lower' or 'each'.
        task_range: Range that intervals are clipped to.
        calibration_fraction: Fraction of units used for calibration.
        size_bins: Edges of width ranges for size-stratified coverage, e.g. the paper's
            (0, 0.05, 0.1, 0.15, 0.2, inf).
        tuning_repeats: For a score that is fitted to targets, number of tuning sets to average
            over.
        acceleration: Round of a table, by acceleration or name.
        task: Task of a table.

    Returns:
        Coverage, width and centre error over the splits, overall, by class and by width.

    Example:
        >>> truth = rng.random(300)
        >>> outputs = truth[:, None] + 0.1 * rng.standard_normal((300, 8))
        >>> result = evaluate(outputs, truth, alpha=0.1, score="lwr", splits=200, seed=0)
        >>> abs(result.coverage.mean - 0.9) < 0.02
        True
    """
    arrays = as_round(outputs, targets, acceleration, task, group, task_range)
    checked = check_cases(
        arrays.outputs, arrays.targets, group=arrays.group, unit=unit, cases=cases,
        label=arrays.label if label is None else label, task_range=arrays.task_range,
        calibration_fraction=calibration_fraction,
    )  # fmt: skip
    (result,) = _evaluate_scores(
        checked, [score], alpha=alpha, splits=splits, seed=seed, delta=delta, side=side,
        size_bins=size_bins, tuning_repeats=tuning_repeats,
    )  # fmt: skip
    return replace(result, **arrays.labels)


@dataclass(frozen=True)
class _QuantileOptions:
    """Options shared by all scores of one evaluation."""

    guarantee: Guarantee
    size_bins: tuple[float, ...]
    is_compiled: bool


def _evaluate_scores(
    checked: EvaluationInputs,
    scores: Sequence[str | Score],
    *,
    alpha: float,
    splits: int,
    seed: int | np.random.Generator,
    delta: float | None = None,
    side: BoundSide = "two",
    size_bins: Sequence[float] | None = None,
    tuning_repeats: int = 10,
) -> list[Evaluation]:
    """Evaluate several scores on the same splits; see :func:`evaluate`."""
    if splits < 1 or tuning_repeats < 1:
        raise InputError(
            f"splits and tuning_repeats must be at least 1, got {splits} and {tuning_repeats}",
            code="value.invalid",
        )
    score_side, ends = parse_side(side)
    guarantee = Guarantee(
        alpha=alpha,
        **checked.unit.record,
        delta=delta,
        n_cases=len(checked.targets),
        quantiles_per_interval=ends,
    )
    rule = _QuantileOptions(
        guarantee, _as_size_bins(size_bins), use_numba(splits * len(checked.targets) * len(scores))
    )
    rng = as_generator(seed)
    split_seed = int(rng.integers(2**63))
    chosen = [resolve_score(score, alpha, score_side) for score in scores]
    parts: list[list[_PoolResults]] = [[] for _ in chosen]
    whole: dict[int, Pool] = {}
    draws = min(tuning_repeats, splits)
    for k, one in enumerate(chosen):
        for draw, pool in enumerate(make_pools(checked, one, alpha, draws, rng, ends)):
            if len(pool.index) == len(checked.targets):
                whole[k] = pool
            else:
                count = splits // draws + (draw < splits % draws)
                parts[k] += _run(checked, [pool], rule, count, splitmix64(split_seed + draw + 1))
    # Scores that need no cases of their own all see the same splits.
    together = _run(checked, list(whole.values()), rule, splits, split_seed) if whole else []
    for k, part in zip(whole, together, strict=True):
        parts[k].append(part)
    return [
        _summarise(checked, score_name(one), rule, splits, of_score)
        for one, of_score in zip(chosen, parts, strict=True)
    ]


@dataclass(frozen=True)
class _PoolResults:
    """Per-split results of one pool."""

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
    checked: EvaluationInputs, pools_: list[Pool], rule: _QuantileOptions, trials: int, seed: int
) -> list[_PoolResults]:
    index = pools_[0].index
    unit_of_case = np.unique(checked.unit_of_case[index], return_inverse=True)[1].astype(np.int64)
    of_case = unit_of_case if checked.unit.is_group else np.empty(0, np.int64)
    units = int(unit_of_case.max()) + 1
    splitting = Splits(units, checked.n_test, trials, seed, of_case, rule.is_compiled)
    weight = checked.unit.weights(unit_of_case)
    allowed = rule.guarantee.allowed(pools_[0].n_calibration)
    rankings = [
        rank_for_guarantee(
            scores, rule.guarantee, allowed, unit_of_case,
            pool.covered_from if rule.guarantee.quantiles_per_interval == 1 else None,
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
    outcomes = run_splits(splitting, rankings, features * weight)
    if rule.guarantee.quantiles_per_interval == 2:
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
    checked: EvaluationInputs,
    pool: Pool,
    rule: _QuantileOptions,
    splitting: Splits,
    ranking: RankedScores,
    outcomes: SplitResults,
    weight: FloatArray,
) -> _PoolResults:
    quantile = ranking.quantiles(outcomes.position)
    infinite = np.isposinf(quantile)
    m = splitting.n_test
    coverage = case_coverage = 1 - outcomes.test_above / m
    linear = pool.linear_width
    is_linear = linear is not None and not has_crossing(linear, float(quantile.min()))
    if is_linear:
        base, slope, center = outcomes.sums
        finite = np.where(infinite, 0.0, quantile)
        width = np.where(infinite, np.inf, (base + slope * finite) / m)
        center_error = np.where(infinite, np.inf, center / m)
    if not is_linear or checked.unit.fraction is not None:
        case_coverage, widths, errors = _means(pool, splitting, quantile, weight)
        if not is_linear:
            open_ended = np.array([_is_open(pool, q) for q in (0.0, math.inf)])
            width = np.where(open_ended[infinite.astype(int), 0], np.inf, widths)
            center_error = np.where(open_ended[infinite.astype(int), 1], np.inf, errors)
    return _PoolResults(
        coverage=coverage,
        case_coverage=case_coverage,
        width=width,
        center_error=center_error,
        is_infinite=infinite,
        n_tuning=pool.n_tuning,
        strata=_count_strata(checked, pool, rule.size_bins, splitting, quantile),
        whole_groups=_whole_groups(checked, pool, splitting, quantile),
        pmf=_law(checked, pool, rule),
    )


def _of_ends(
    checked: EvaluationInputs,
    pool: Pool,
    rule: _QuantileOptions,
    splitting: Splits,
    quantile: FloatArray,
    weight: FloatArray,
) -> _PoolResults:
    infinite = np.isposinf(quantile)
    case_coverage, widths, errors = _means(pool, splitting, quantile, weight)
    share = checked.unit.fraction
    kept = None if share is None else _group_coverage(pool, splitting, quantile, share)
    # The quantiles of a trial are finite, infinite below, above, or both.
    kinds = ((0.0, 0.0), (math.inf, 0.0), (0.0, math.inf), (math.inf, math.inf))
    open_width, open_error = np.array([_is_open(pool, kind) for kind in kinds]).T
    kind = infinite @ [1, 2]
    return _PoolResults(
        coverage=case_coverage if kept is None else kept,
        case_coverage=case_coverage,
        width=np.where(open_width[kind], np.inf, widths),
        center_error=np.where(open_error[kind], np.inf, errors),
        is_infinite=kind > 0,
        n_tuning=pool.n_tuning,
        strata=_count_strata(checked, pool, rule.size_bins, splitting, quantile),
        whole_groups=_whole_groups(checked, pool, splitting, quantile),
        pmf=None,
    )


def _means(pool: Pool, splitting: Splits, quantile: FloatArray, weight: FloatArray) -> FloatArray:
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
    """Return True if widths, and distances to the target, are infinite at a quantile."""
    interval = pool.interval(quantile)
    both = np.isinf(interval.lower) & np.isinf(interval.upper)
    return bool(interval.is_unbounded.any()), bool(both.any())


def _whole_groups(
    checked: EvaluationInputs, pool: Pool, splitting: Splits, quantile: FloatArray
) -> FloatArray | None:
    """Share of test groups whose cases are all covered, where groups are the unit."""
    if not checked.unit.is_group:
        return None
    return _group_coverage(pool, splitting, quantile, Fraction(1))


def _law(checked: EvaluationInputs, pool: Pool, rule: _QuantileOptions) -> FloatArray | None:
    if checked.unit.is_group or pool.n_tuning:
        return None
    n = pool.n_calibration
    rank = rule.guarantee.rank(n)
    if rank > n:
        return np.append(np.zeros(checked.n_test), 1.0)
    law = quantile_position(n, checked.n_test, rank)
    return law.coverage_pmf(np.sort(pool.scores), np.sort(pool.covered_from))


def _summarise(
    checked: EvaluationInputs,
    name: str,
    rule: _QuantileOptions,
    splits: int,
    parts: list[_PoolResults],
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
        alpha=rule.guarantee.alpha,
        **checked.sizes,
        n_tuning=parts[0].n_tuning,
        splits=splits,
        coverage=_moments(coverage),
        case_coverage=_moments(np.concatenate([part.case_coverage for part in parts])),
        coverage_unit=checked.unit.covered,
        mean_unit=checked.unit.mean_unit,
        width=_moments(np.concatenate([part.width for part in parts])),
        center_error=_moments(np.concatenate([part.center_error for part in parts])),
        infinite=float(infinite.mean()),
        whole_group_coverage=float(np.concatenate(groups).mean()) if groups else None,
        class_coverage=_stratum_coverage(strata, "class", checked.unit),
        size_coverage=_stratum_coverage(strata, "width", checked.unit),
        histogram=histogram,
    )


def _moments(values: FloatArray) -> MeanAndSD:
    if not np.isfinite(values).all():
        return MeanAndSD(math.inf, math.nan)
    return MeanAndSD(float(values.mean()), float(values.std()))


# Options in the record of a grid, by their stored names.
ASKED = {
    "alpha": "alpha", "trials": "splits", "seed": "seed", "side": "side", "cases": "cases",
    "delta": "delta",
}  # fmt: skip


@dataclass(frozen=True)
class EvaluationGrid:
    """Scores, accelerations and sample counts to evaluate; defaults follow the paper."""

    scores: tuple[str | Score, ...] = ("ar", "lwr", "cqr")
    alpha: float = 0.05
    accelerations: tuple[float, ...] | None = None
    samples: tuple[int, ...] | None = None
    splits: int | None = 10_000
    seed: int = 0
    unit: str | None = None
    cases: float | str = "random"
    delta: float | None = None
    side: BoundSide = "two"
    size_bins: tuple[float, ...] = PAPER_SIZE_BINS


def evaluate_table(table: TaskOutputs, comparison: EvaluationGrid) -> EvaluationRecord:
    """Evaluate every score, acceleration and sample count of a table."""
    if not table.has_targets:
        raise InputError(
            "the table has no targets; evaluation needs targets f(x) of the true images",
            code="targets.missing",
        )
    results = [
        result
        for name in table.task_names
        for result in _task(table.select(task=name) if table.tasks > 1 else table, comparison)
    ]
    return EvaluationRecord(tuple(results), _inputs(table, comparison))


def _task(table: TaskOutputs, comparison: EvaluationGrid) -> Iterator[Evaluation]:
    accelerations: Sequence[float] = comparison.accelerations or tuple(table.accelerations)
    for R in accelerations:
        k = 0 if np.isnan(R) else table.round_index(R)
        for p in comparison.samples or (table.samples,):
            smaller = table.select(samples=p)
            for result in _round(smaller, k, comparison):
                yield replace(
                    result,
                    acceleration=None if np.isnan(R) else float(R),
                    round_name=None if table.round_names is None else table.round_names[k],
                    task=table.task_names[0] if table.task_names != ("task",) else None,
                )


def _round(table: TaskOutputs, k: int, comparison: EvaluationGrid) -> list[Evaluation]:
    splits, unit = comparison.splits, comparison.unit
    if splits is None:
        unit = unit or CaseUnit().name
        if make_unit(unit).is_group:
            raise InputError(
                "exact evaluation splits by case; use random splits for groups",
                code="option.conflict",
            )
    checked = check_cases(
        table.rounds_up_to(k),
        table.targets_at(k),
        # Where all splits are taken at once, nothing is learnt from groups either.
        group=None if splits is None else table.group,
        label=table.label,
        unit=unit,
        cases=comparison.cases,
        task_range=table.task_range,
    )
    if splits is None:
        return [
            evaluate_exact_score(checked, score, alpha=comparison.alpha, side=comparison.side)
            for score in comparison.scores
        ]

    def judged(side: BoundSide, size_bins: tuple[float, ...] | None) -> list[Evaluation]:
        # The same splits at every acceleration, so that differences are not those of the splits.
        return _evaluate_scores(
            checked, comparison.scores, alpha=comparison.alpha, splits=splits, seed=comparison.seed,
            delta=comparison.delta, side=side, size_bins=size_bins,
        )  # fmt: skip

    results = judged(comparison.side, comparison.size_bins)
    score_side, ends = parse_side(comparison.side)
    if ends == 1:
        return results
    by_one = judged(score_side, None)
    return [
        replace(each, width_single_quantile=one.width)
        for each, one in zip(results, by_one, strict=True)
    ]


def _inputs(table: TaskOutputs, comparison: EvaluationGrid) -> dict[str, Any]:
    return {
        "table": repr(table),
        **ranges_to_json(table.task_ranges),
        "provenance": dict(table.provenance),
        "missing_cases": list(table.missing_cases),
        "round_names": called_rounds(table.accelerations, table.round_names),
        "scores": [s if isinstance(s, str) else type(s).__name__ for s in comparison.scores],
        **{key: getattr(comparison, name) for key, name in ASKED.items()},
    }
