"""Evaluation of scores over random splits: overall, by class, by site and by width."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from taskuq._arrays import ranges_to_json
from taskuq.conformal._bound import Bound
from taskuq.conformal._calibrate import (
    aligned,
    as_round,
    calibrate,
    is_self_tuned,
    require_own_targets,
)
from taskuq.conformal._exact import (
    Evaluation,
    EvaluationRecord,
    MeanAndSD,
    StratumCoverage,
    coverage_histogram,
    evaluate_exact_score,
    part_measures,
    quantile_position,
)
from taskuq.conformal._family import BoundSide, parse_side
from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal._splits import (
    TABLE_NUMBERS,
    EvaluationInputs,
    Pool,
    Splits,
    center_distance,
    check_cases,
    make_pools,
    rank_for_guarantee,
    run_splits,
    splitmix64,
    sums_at_quantiles,
)
from taskuq.conformal._units import as_generator, make_unit
from taskuq.conformal.scores import resolve_score, score_name
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray, TaskRange
from taskuq.protocols import Score
from taskuq.table._table import TableLike, TaskOutputs, called_rounds

# With at most so many units a score that learns is fitted again in each split, in so many splits:
# with more, a fit to all units differs little from those of calibration.
FEW_UNITS, REFITS = 100, 1000
PAPER_SIZE_BINS = (0.0, 0.05, 0.1, 0.15, 0.2, math.inf)


# Below this many numbers NumPy is quicker than loading the compiled loops.
WORTH_COMPILING = 2_000_000
# Number of test cases of each stratum, their weight and that of the covered ones, (3, trial); a
# stratum is a pair of 'class', 'site' or 'width' and the name of the class, site or range.
StratumCounts = dict[tuple[str, str], FloatArray]


def _stratum_coverage(
    parts: Sequence[StratumCounts], kind: str, checked: EvaluationInputs, by_case: FloatArray
) -> tuple[StratumCoverage, ...]:
    """Return the coverage in each stratum, over the splits in which it has test cases."""
    found, unit = [], checked.unit
    members = {name: inside for of, name, inside in checked.parts if of == kind}
    for stratum in (stratum for stratum in parts[0] if stratum[0] == kind):
        cases, inside, covered = np.concatenate([part[stratum] for part in parts], axis=1)
        there = cases > 0
        coverage = math.nan
        if there.any():
            # A mean of the shares of small folds would count groups, not cases of groups, alike.
            each = covered[there] / inside[there]
            coverage = float(covered.sum() / inside.sum() if unit.is_group else each.mean())
        name, measures = stratum[1], (math.nan, math.nan)
        if name in members:
            measures = part_measures(checked, members[name], by_case)[1:]
        counts = float(cases.mean()), int(there.sum())
        found.append(StratumCoverage(name, coverage, *counts, *measures))
    return tuple(found)


def _count_strata(
    options: _Options, pool: Pool, splitting: Splits, quantile: FloatArray
) -> StratumCounts:
    """Return number, total weight and covered weight of test cases by class, site and width."""
    checked, edges = options.checked, options.size_bins
    known = checked.parts
    if not known and not edges:
        return {}

    def tables(q: FloatArray) -> FloatArray:
        covered = pool.covered(q)
        inside = [np.broadcast_to(each[pool.index], covered.shape) for *_, each in known]
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
    titles = [(kind, name) for kind, name, _ in known]
    titles += [("width", f"[{low:g}, {high:g})") for low, high in pairwise(edges)]
    last, strata = len(sums), len(titles)
    return {
        title: sums[[i, last - 2 * strata + i, last - strata + i]] for i, title in enumerate(titles)
    }


def _sum_by_case(pool: Pool, splitting: Splits, quantile: FloatArray) -> FloatArray:
    """Return how often each case is tested, how often covered, and its total width, (3, case)."""
    distinct, row = np.unique(quantile, axis=0 if quantile.ndim > 1 else None, return_inverse=True)
    sums, tested = np.zeros((3, len(pool.index))), splitting.count_tests(row.ravel(), len(distinct))
    step = max(1, TABLE_NUMBERS // len(pool.index))
    for start in range(0, len(distinct), step):
        block = slice(start, start + step)
        some, times = distinct[block], splitting.of_cases(tested[block])
        width = np.where(times > 0, pool.intervals(some).width, 0.0)
        sums += [each.sum(axis=0) for each in (times, times * pool.covered(some), times * width)]
    return sums


def _group_coverage(
    pool: Pool, splitting: Splits, quantile: FloatArray, share: Fraction
) -> FloatArray:
    """Return the fraction of test groups with at least ``share`` of the cases covered, (trial,)."""
    enough = [math.ceil(share * int(size)) for size in np.bincount(splitting.unit_of_case)]
    by_group = replace(splitting, unit_of_case=np.empty(0, np.int64))

    def tables(q: FloatArray) -> FloatArray:
        covered = splitting.of_units(pool.covered(q).astype(np.int64))
        return (covered >= np.array(enough))[None].astype(float)

    return np.asarray(sums_at_quantiles(by_group, quantile, tables)[0] / splitting.n_test)


def _as_size_bins(edges: Sequence[float] | None) -> tuple[float, ...]:
    if edges is None:
        return ()
    try:
        given = tuple(float(e) for e in edges)
    except (TypeError, ValueError):
        given = ()
    if len(given) < 2 or any(not a < b for a, b in pairwise(given)):
        message = f"size_bins must be at least two increasing edges, got {edges!r}"
        raise InputError(message, code="value.invalid")
    return given


def evaluate(
    outputs: TableLike,
    targets: ArrayLike | None = None,
    *,
    alpha: float,
    score: str | Score = "mlwr",
    splits: int = 10_000,
    seed: int | np.random.Generator = 0,
    group: ArrayLike | None = None,
    site: ArrayLike | None = None,
    label: ArrayLike | None = None,
    unit: str | None = None,
    cases: float | str = "random",
    delta: float | None = None,
    side: BoundSide = "two",
    task_range: TaskRange = None,
    size_bins: Sequence[float] | None = None,
    tuning_repeats: int = 10,
    acceleration: float | str | None = None,
    task: str | None = None,
) -> Evaluation:
    r"""Evaluate a score over random calibration and test splits.

    In split :math:`t`, some units are used for calibration and the others for testing:

    .. math:: \mathrm{coverage}[t] = \frac1m \sum_{i \in \mathrm{test}}
        \mathbb 1\{z_i \in \mathcal C_i\}, \qquad
        \mathrm{width}[t] = \frac1m \sum_{i \in \mathrm{test}} |\mathcal C_i|

    with :math:`m` test cases. If groups are the units, no group is divided, and every group has
    equal weight. If ``cases`` is 'all' or a fraction, a group counts as covered if at least this
    fraction of its cases is covered, and coverage is the fraction of covered groups.

    Args:
        outputs: Task outputs as in :func:`taskuq.calibrate`, or a table with all arrays.
        targets: Targets (case,); omit with a table.
        alpha: Error rate in (0, 1).
        score: Name or object of a score.
        splits: Number of random splits.
        seed: Integer or Generator for the splits and tuning sets.
        group: Group of each case.
        site: Site of each case, for coverage by site.
        label: Class of each case, for class-conditional coverage.
        unit: Unit that is split, 'case' or 'group'; default: 'group' if groups are given.
        cases: Cases of a new group that are covered, as in :func:`taskuq.calibrate`.
        delta: Allowed probability of a lower coverage, as in :func:`taskuq.calibrate`.
        side: 'two', 'upper', 'lower' or 'each', as in :func:`taskuq.calibrate`.
        task_range: Range to which intervals are clipped.
        size_bins: Edges of ranges of interval width; coverage is also returned for each range.
        tuning_repeats: Number of random tuning sets, if the score is fitted to held-out targets;
            results are averaged over them.
        acceleration: Round of the table to use, by acceleration or name.
        task: Task to use, if the table has several tasks.

    Returns:
        Coverage, width and centre error over the splits: overall, by class, by site and by width.

    Example:
        >>> truth = rng.random(300)
        >>> outputs = truth[:, None] + 0.1 * rng.standard_normal((300, 8))
        >>> result = evaluate(outputs, truth, alpha=0.1, score="lwr", splits=200, seed=0)
        >>> abs(result.coverage.mean - 0.9) < 0.02
        True
    """
    outputs, targets, group, label, site = aligned(
        outputs, targets, group=group, label=label, site=site
    )
    arrays = as_round(outputs, targets, acceleration, task, group, task_range)
    checked = check_cases(
        arrays.outputs, arrays.targets, group=arrays.group, unit=unit, cases=cases,
        label=arrays.label if label is None else label,
        site=arrays.site if site is None else site, task_range=arrays.task_range,
    )  # fmt: skip
    result = _evaluate_score(
        checked, score, alpha=alpha, splits=splits, seed=seed, delta=delta, side=side,
        size_bins=size_bins, tuning_repeats=tuning_repeats,
    )  # fmt: skip
    return replace(result, **arrays.labels)


class _Options(NamedTuple):
    checked: EvaluationInputs
    guarantee: Guarantee
    size_bins: tuple[float, ...]
    is_compiled: bool


def _evaluate_score(
    checked: EvaluationInputs,
    score: str | Score,
    *,
    alpha: float,
    splits: int,
    seed: int | np.random.Generator,
    delta: float | None = None,
    side: BoundSide = "two",
    size_bins: Sequence[float] | None = None,
    tuning_repeats: int = 10,
) -> Evaluation:
    if not isinstance(splits, int | np.integer) or splits < 1 or tuning_repeats < 1:
        counts = f"{splits} and {tuning_repeats}"
        message = f"splits and tuning_repeats must be at least 1, got {counts}"
        raise InputError(message, code="value.invalid")
    score_side, ends = parse_side(side)
    guarantee = Guarantee(
        alpha=alpha,
        **checked.unit.record,
        delta=delta,
        n_cases=len(checked.targets),
        quantiles_per_interval=ends,
    )
    is_large = splits * len(checked.targets) >= WORTH_COMPILING
    is_compiled = is_large and importlib.util.find_spec("numba") is not None
    options = _Options(checked, guarantee, _as_size_bins(size_bins), is_compiled)
    rng, chosen = as_generator(seed), resolve_score(score, alpha, score_side)
    split_seed, draws = int(rng.integers(2**63)), min(tuning_repeats, splits)
    parts: list[_PoolResults] = []
    if is_self_tuned(chosen, delta) and checked.units <= FEW_UNITS:
        splits = min(splits, REFITS)
        parts = [_refitted(options, chosen, side, splits, split_seed)]
    else:
        for draw, pool in enumerate(make_pools(checked, chosen, alpha, draws, rng, ends)):
            # Scores that need no cases of their own all see the same splits.
            count, pool_seed = splits, split_seed
            if len(pool.index) < len(checked.targets):
                count = splits // draws + (draw < splits % draws)
                pool_seed = splitmix64(split_seed + draw + 1)
            parts.append(_run(options, pool, count, pool_seed))
    left_out = tuple(_left_out(checked, chosen, guarantee, side))
    result = _summarise(options, score_name(chosen), parts, splits)
    return replace(result, site_left_out=left_out)


def _bound(
    checked: EvaluationInputs, score: Score, guarantee: Guarantee, side: BoundSide, kept: BoolArray
) -> Bound:
    group = checked.unit.groups(checked.group)
    return calibrate(
        checked.outputs[..., kept, :], checked.targets[kept], score=score, side=side,
        group=None if group is None else group[kept], alpha=guarantee.alpha,
        delta=guarantee.delta, task_range=checked.task_range, unit=checked.unit.counted,
        cases=checked.unit.cases,
    )  # fmt: skip


def _refitted(
    options: _Options, score: Score, side: BoundSide, trials: int, seed: int
) -> _PoolResults:
    """Evaluate a score that is fitted anew to the calibration set of each split."""
    checked, edges = options.checked, options.size_bins
    unit, index, m = checked.unit, checked.unit_of_case, checked.n_test
    of_case = index if unit.is_group else np.empty(0, np.int64)
    splitting = Splits(checked.units, m, trials, seed, of_case, options.is_compiled)
    test = np.stack([splitting.of_cases(splitting.fold(t)[None])[0] > 0 for t in range(trials)])
    covered, width, error = np.zeros((3, *test.shape))
    infinite = np.zeros(trials, dtype=bool)
    for t, inside in enumerate(test):
        bound = _bound(checked, score, options.guarantee, side, ~inside)
        infinite[t] = not bound.is_finite
        interval, z = bound(checked.outputs[..., inside, :]), checked.targets[inside]
        covered[t, inside], width[t, inside] = interval.contains(z), interval.width
        error[t, inside] = center_distance(interval, z, checked.task_range)
    weight = unit.weights(index)
    means = [(values * weight).sum(axis=1) / m for values in (covered, width, error)]
    sizes = np.bincount(index)
    hits = np.stack([np.bincount(index, row, len(sizes)) for row in covered])
    tested = np.stack([np.bincount(index, row, len(sizes)) > 0 for row in test])
    coverage = means[0]
    if unit.fraction is not None:
        coverage = ((hits >= unit.enough(sizes)) & tested).sum(axis=1) / m
    inside_of = {(kind, name): test & each for kind, name, each in checked.parts}
    for low, high in pairwise(edges):
        within = (width >= low) & ((width < high) | (high == math.inf))
        inside_of["width", f"[{low:g}, {high:g})"] = test & within
    weights = weight if unit.is_group else np.ones(len(index))
    return _PoolResults(
        coverage=coverage,
        case_coverage=means[0],
        width=means[1],
        center_error=means[2],
        is_infinite=infinite,
        n_tuning=0,
        strata={
            name: np.stack([part.sum(axis=1), part @ weights, (part * covered) @ weights])
            for name, part in inside_of.items()
        },
        by_case=np.stack([test.sum(axis=0), covered.sum(axis=0), width.sum(axis=0)]),
        whole_groups=((hits == sizes) & tested).sum(axis=1) / m if unit.is_group else None,
        pmf=None,
    )


def _left_out(
    checked: EvaluationInputs, score: Score, guarantee: Guarantee, side: BoundSide
) -> Iterator[StratumCoverage]:
    """Yield the coverage of each site under a bound calibrated on all other sites."""
    sites = [(name, inside) for kind, name, inside in checked.parts if kind == "site"]
    for name, inside in sites if len(sites) > 1 else ():
        rest, by_case = ~inside, np.zeros((3, len(inside)))
        try:
            bound = _bound(checked, score, guarantee, side, rest)
        except InputError:  # too few other units
            continue
        interval = bound(checked.outputs[..., inside, :])
        covered = interval.contains(checked.targets[inside])
        by_case[:, inside] = np.stack([np.ones(len(covered)), covered, interval.width])
        coverage, *measures = part_measures(checked, inside, by_case)
        yield StratumCoverage(name, coverage, int(inside.sum()), None, *measures)


@dataclass(frozen=True)
class _PoolResults:
    """Results of each random split, for a pool of cases that share one fitted score."""

    coverage: FloatArray
    case_coverage: FloatArray
    width: FloatArray
    center_error: FloatArray
    is_infinite: np.ndarray
    n_tuning: int
    strata: StratumCounts
    by_case: FloatArray
    whole_groups: FloatArray | None
    pmf: FloatArray | None


def _run(options: _Options, pool: Pool, trials: int, seed: int) -> _PoolResults:
    checked, guarantee, unit = options.checked, options.guarantee, options.checked.unit
    index, ends, m = pool.index, guarantee.quantiles_per_interval, checked.n_test
    unit_of_case = np.unique(checked.unit_of_case[index], return_inverse=True)[1].astype(np.int64)
    of_case = unit_of_case if unit.is_group else np.empty(0, np.int64)
    units = int(unit_of_case.max()) + 1
    splitting = Splits(units, m, trials, seed, of_case, options.is_compiled)
    weight = unit.weights(unit_of_case)
    allowed = guarantee.allowed(pool.n_calibration)
    rest = guarantee, allowed, unit_of_case, pool.covered_from if ends == 1 else None
    rankings = [rank_for_guarantee(s, *rest) for s in np.atleast_2d(pool.scores)]
    features = np.zeros((len(rankings), 3, len(index)))
    linear, is_linear = pool.linear_width if ends == 1 else None, False
    if linear is not None:
        features[0, :2] = linear
        features[0, 2] = np.abs(pool.targets - pool.family.interval(0.0).center)
    outcomes = run_splits(splitting, rankings, features * weight)
    found = [r.quantiles(at) for r, at in zip(rankings, outcomes.position, strict=True)]
    # One quantile for each trial, or one for each end of its intervals, (trial, end).
    quantile = found[0] if ends == 1 else np.stack(found, axis=1)
    if linear is not None and np.isfinite(least := quantile.min()):
        # Sums of widths are linear only if no interval is empty, at the smallest quantile either.
        is_linear = not (linear[0] + linear[1] * float(least)).min() < 0
    # The quantiles of a trial are finite, infinite below, above, or both.
    infinite = np.isposinf(quantile)
    kind = infinite.astype(int) if ends == 1 else infinite @ [1, 2]
    if not is_linear or unit.fraction is not None:
        case_coverage, width, center_error = _means(pool, splitting, quantile, weight)
    if not is_linear:
        kinds: list[ArrayLike] = [0.0, math.inf]
        if ends > 1:
            kinds = [(0.0, 0.0), (math.inf, 0.0), (0.0, math.inf), (math.inf, math.inf)]
        open_width, open_error = np.array([_is_open(pool, q) for q in kinds]).T
        width = np.where(open_width[kind], np.inf, width)
        center_error = np.where(open_error[kind], np.inf, center_error)
    else:
        base, slope, center = outcomes.sums[0]
        finite = np.where(infinite, 0.0, quantile)
        width = np.where(infinite, np.inf, (base + slope * finite) / m)
        center_error = np.where(infinite, np.inf, center / m)
    if ends == 1:
        coverage: FloatArray = 1 - outcomes.test_above[0] / m
        case_coverage = coverage if is_linear and unit.fraction is None else case_coverage
    else:
        share = unit.fraction
        kept = None if share is None else _group_coverage(pool, splitting, quantile, share)
        coverage = case_coverage if kept is None else kept
    whole = _group_coverage(pool, splitting, quantile, Fraction(1)) if unit.is_group else None
    by_case = np.zeros((3, len(options.checked.targets)))
    if options.checked.parts:
        by_case[:, pool.index] = _sum_by_case(pool, splitting, quantile)
    return _PoolResults(
        coverage=coverage,
        case_coverage=case_coverage,
        width=width,
        center_error=center_error,
        is_infinite=kind > 0,
        n_tuning=pool.n_tuning,
        strata=_count_strata(options, pool, splitting, quantile),
        by_case=by_case,
        whole_groups=whole,
        pmf=_law(options, pool) if ends == 1 else None,
    )


def _means(pool: Pool, splitting: Splits, quantile: FloatArray, weight: FloatArray) -> FloatArray:
    """Return coverage, mean width and mean centre error of each test set, (3, trial)."""

    def tables(q: FloatArray) -> FloatArray:
        interval = pool.intervals(q)
        covered = pool.covered(q)
        # Infinity times an absent case is not a number; such trials are set apart afterwards.
        width = np.where(np.isinf(interval.width), 0.0, interval.width)
        error = np.abs(pool.offset(interval))
        return np.stack([covered, width, np.where(np.isinf(error), 0.0, error)]) * weight

    return sums_at_quantiles(splitting, quantile, tables) / splitting.n_test


def _is_open(pool: Pool, quantile: ArrayLike) -> tuple[bool, bool]:
    """Return two flags: some interval is unbounded; some interval is unbounded at both ends."""
    interval = pool.interval(quantile)
    both = np.isinf(interval.lower) & np.isinf(interval.upper)
    return bool(interval.is_unbounded.any()), bool(both.any())


def _law(options: _Options, pool: Pool) -> FloatArray | None:
    if options.checked.unit.is_group or pool.n_tuning:
        return None
    n, m = pool.n_calibration, options.checked.n_test
    rank = options.guarantee.rank(n)
    if rank > n:
        return np.append(np.zeros(m), 1.0)
    law = quantile_position(n, m, rank)
    return law.coverage_pmf(np.sort(pool.scores), np.sort(pool.covered_from))


def _summarise(options: _Options, name: str, parts: list[_PoolResults], splits: int) -> Evaluation:
    def joined(field: str) -> FloatArray:
        return np.concatenate([getattr(part, field) for part in parts])

    checked, pmf = options.checked, parts[0].pmf
    covered = np.rint(joined("coverage") * checked.n_test).astype(np.int64)
    rest = checked, np.sum([part.by_case for part in parts], axis=0)
    strata = [part.strata for part in parts]
    return Evaluation(
        score=name,
        alpha=options.guarantee.alpha,
        **checked.facts,
        n_tuning=parts[0].n_tuning,
        splits=splits,
        coverage=_moments(joined("coverage")),
        case_coverage=_moments(joined("case_coverage")),
        width=_moments(joined("width")),
        center_error=_moments(joined("center_error")),
        infinite=float(joined("is_infinite").mean()),
        whole_group_coverage=(
            float(joined("whole_groups").mean()) if checked.unit.is_group else None
        ),
        class_coverage=_stratum_coverage(strata, "class", *rest),
        site_coverage=_stratum_coverage(strata, "site", *rest),
        size_coverage=_stratum_coverage(strata, "width", *rest),
        histogram=None if pmf is None else coverage_histogram(covered, pmf),
    )


def _moments(values: FloatArray) -> MeanAndSD:
    if not np.isfinite(values).all():
        return MeanAndSD(math.inf, math.nan)
    # Squares of very large or small numbers leave the range of floats.
    largest = np.abs(values).max(initial=0)
    unit = 1.0 if largest == 0 or 1e-100 < largest < 1e100 else largest
    return MeanAndSD(float((values / unit).mean() * unit), float((values / unit).std() * unit))


@dataclass(frozen=True)
class EvaluationGrid:
    """Scores, accelerations and numbers of samples to evaluate; by default those of the paper."""

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
    """Evaluate a table for every score, acceleration and number of samples."""
    require_own_targets(table)
    results: list[Evaluation] = []
    left_out: dict[str, str] = {}
    for name in table.task_names:
        one = table.select(task=name) if table.tasks > 1 else table
        results += _task(one, comparison, left_out)
    if not results:
        why = "; ".join(left_out.values()) or "pass at least one score, round and sample count"
        raise InputError(why, code="units.few")
    scores = [s if isinstance(s, str) else type(s).__name__ for s in comparison.scores]
    inputs = {
        "table": repr(table),
        **ranges_to_json(table.task_ranges),
        "provenance": dict(table.provenance),
        "missing_cases": list(table.missing_cases),
        "round_names": called_rounds(table.accelerations, table.round_names),
        "scores": scores,
        "trials": comparison.splits,
        **({"left_out": left_out} if left_out else {}),
        **{name: getattr(comparison, name) for name in ("alpha", "seed", "side", "cases", "delta")},
    }
    return EvaluationRecord(tuple(results), inputs)


def _task(
    table: TaskOutputs, comparison: EvaluationGrid, left_out: dict[str, str]
) -> Iterator[Evaluation]:
    accelerations: Sequence[float] = comparison.accelerations or tuple(table.accelerations)
    for R in accelerations:
        k = 0 if np.isnan(R) else table.round_index(R)
        for p in comparison.samples or (table.samples,):
            smaller = table.select(samples=p)
            for result in _round(smaller, k, comparison, left_out):
                yield replace(
                    result,
                    acceleration=None if np.isnan(R) else float(R),
                    round_name=None if table.round_names is None else table.round_names[k],
                    task=table.task_names[0] if table.task_names != ("task",) else None,
                )


def _round(
    table: TaskOutputs, k: int, comparison: EvaluationGrid, left_out: dict[str, str]
) -> list[Evaluation]:
    splits, unit = comparison.splits, comparison.unit
    if splits is None:
        unit = unit or "case"
        if make_unit(unit).is_group:
            message = "exact evaluation splits by case; use random splits for groups"
            raise InputError(message, code="option.conflict")
    checked = check_cases(
        table.rounds_up_to(k),
        table.targets_at(k),
        # Where all splits are taken at once, nothing is learnt from groups either.
        group=None if splits is None else table.group,
        label=table.label,
        site=table.site,
        unit=unit,
        cases=comparison.cases,
        task_range=table.task_range,
    )
    score_side, ends = parse_side(comparison.side)

    def judged(
        score: str | Score, side: BoundSide, size_bins: tuple[float, ...] | None
    ) -> Evaluation:
        if splits is None:
            return evaluate_exact_score(checked, score, alpha=comparison.alpha, side=side)
        # The same splits at every acceleration, so that differences are not those of the splits.
        return _evaluate_score(
            checked, score, alpha=comparison.alpha, splits=splits, seed=comparison.seed,
            delta=comparison.delta, side=side, size_bins=size_bins,
        )  # fmt: skip

    results = []
    for score in comparison.scores:
        try:
            found = judged(score, comparison.side, comparison.size_bins)
            if ends > 1 and splits is not None:
                one = judged(score, score_side, None)
                found = replace(found, width_single_quantile=one.width)
        except InputError as error:
            if error.code not in ("units.few", "samples.mismatch"):
                raise
            # One score that cannot be computed must not hide the others.
            left_out[score if isinstance(score, str) else type(score).__name__] = str(error)
            continue
        results.append(found)
    return results
