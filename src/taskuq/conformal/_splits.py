"""Random splits of units into calibration and test sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq._arrays import as_ids, as_outputs_and_targets, as_task_range
from taskuq.conformal._calibrate import tuned_score, tuning_count, tuning_fraction
from taskuq.conformal._family import LinearFamily, clipped, interval_family, intervals_at
from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal._quantiles import BettingEProcess, exact_alpha, smallest_certified
from taskuq.conformal._units import Unit, as_unit, case_contents, choose_units
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray, Interval, TaskRange
from taskuq.protocols import IntervalFamily, Score

GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
FULL = 0xFFFFFFFFFFFFFFFF


def fold_sizes(units: int) -> tuple[int, int]:
    """Return the sizes of the calibration set (7 tenths, rounded down) and of the test set."""
    calibration = 7 * units // 10
    if not 1 <= calibration < units:
        raise InputError(f"{units} units are too few to split; collect more", code="units.few")
    return calibration, units - calibration


def splitmix64(state: int) -> int:
    z = state & FULL
    z = ((z ^ (z >> 30)) * MIX_1) & FULL
    z = ((z ^ (z >> 27)) * MIX_2) & FULL
    return z ^ (z >> 31)


def test_sets(
    seed: int, first_trial: int, trials: int, units: int, n_test: int
) -> NDArray[np.uint8]:
    """Return a mask of the test units of each split, (split, unit)."""
    words = -(-units // 8)
    # The counter of each split's random stream.
    first, numbers = splitmix64(seed & FULL), range(first_trial + 1, first_trial + trials + 1)
    starts = np.array([splitmix64(first + t * GOLDEN) for t in numbers], dtype=np.uint64)
    counter = np.arange(1, words + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    z = starts[:, None] + counter
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
    z = z ^ (z >> np.uint64(31))
    random_bytes = z.astype("<u8").view(np.uint8).reshape(trials, words * 8)[:, :units]
    folds = (random_bytes < byte_threshold(units, n_test)).astype(np.uint8)
    for fold, start in zip(folds, starts, strict=True):
        _settle(fold, int(start), words, n_test)
    return np.asarray(folds)


def byte_threshold(units: int, n_test: int) -> int:
    """Return the limit below which a random byte puts its unit into the initial test set."""
    return min(255, max(1, (256 * n_test + units // 2) // units))


def _settle(fold: NDArray[np.uint8], start: int, words: int, n_test: int) -> None:
    """Move random units into or out of the test set until it has ``n_test`` units."""
    units, count = len(fold), int(fold.sum())
    wanted = 1 if count < n_test else 0
    number = words
    # Products below this remainder would favour some units; such words are skipped.
    unfair = 2**32 % units
    while count != n_test:
        number += 1
        product = (splitmix64(start + number * GOLDEN) >> 32) * units
        if (product & 0xFFFFFFFF) < unfair:
            continue
        unit = product >> 32
        if fold[unit] != wanted:
            fold[unit] = wanted
            count += 1 if wanted else -1


def covering_quantile(
    scores: FloatArray,
    quantiles: FloatArray,
    contains: Callable[[NDArray[np.int64], FloatArray], BoolArray],
) -> FloatArray:
    """Return, for each case, the smallest of ``quantiles`` whose interval contains its target."""
    first = np.searchsorted(quantiles, scores)
    cases = np.flatnonzero(first)
    cases = cases[contains(cases, quantiles[first[cases] - 1])]
    low, high = np.zeros(len(cases), dtype=np.int64), first[cases] - 1
    while (low < high).any():
        middle = (low + high) // 2
        inside = contains(cases, quantiles[middle])
        low, high = np.where(inside, low, middle + 1), np.where(inside, middle, high)
    first[cases] = low
    return np.append(quantiles, np.inf)[first]


@dataclass(frozen=True)
class EvaluationInputs:
    outputs: FloatArray
    targets: FloatArray
    unit: Unit
    unit_of_case: NDArray[np.int64]
    n_calibration: int
    n_test: int
    task_range: TaskRange
    group: np.ndarray | None
    label: np.ndarray | None
    site: np.ndarray | None

    @property
    def units(self) -> int:
        return self.n_calibration + self.n_test

    @property
    def parts(self) -> list[tuple[str, str, BoolArray]]:
        """Kind ('class' or 'site'), name and case mask of each class and site."""
        ids = {"class": self.label, "site": self.site}
        return [
            (kind, str(name), np.asarray(of_case == name))
            for kind, of_case in ids.items()
            for name in (() if of_case is None else np.unique(of_case))
        ]

    @property
    def facts(self) -> dict[str, Any]:
        """Fields of the evaluation result that depend on the inputs only."""
        return {
            "unit": self.unit.counted,
            "samples": int(self.outputs.shape[-1]),
            "n": self.units,
            "n_calibration": self.n_calibration,
            "n_test": self.n_test,
            "coverage_unit": self.unit.covered,
            "mean_unit": self.unit.mean_unit,
        }


@dataclass(frozen=True)
class Pool:
    """Cases to split into calibration and test cases, with the intervals of a fitted score."""

    index: NDArray[np.int64]
    family: IntervalFamily
    targets: FloatArray
    scores: FloatArray
    task_range: TaskRange
    n_calibration: int
    n_tuning: int

    @property
    def moves_in_lines(self) -> bool:
        """True if the ends of unclipped intervals are linear in the quantile."""
        return isinstance(self.family, LinearFamily) and self.family.link.is_identity

    @property
    def linear_width(self) -> tuple[FloatArray, FloatArray] | None:
        """Intercept and slope of each width as a function of the quantile; None if nonlinear."""
        family = self.family
        if self.task_range is None and isinstance(family, LinearFamily) and self.moves_in_lines:
            return (family.high - family.low, 2 * family.scale) if family.side == "two" else None
        return None

    def interval(self, quantile: ArrayLike) -> Interval:
        return clipped(self.family.interval(quantile), self.task_range)

    def intervals(self, quantiles: FloatArray) -> Interval:
        return clipped(intervals_at(self.family, quantiles), self.task_range)

    def covered(self, quantiles: FloatArray) -> BoolArray:
        if self.scores.ndim == 1:
            return self.covered_from <= quantiles[:, None]
        return self.intervals(quantiles).contains(self.targets)

    @cached_property
    def covered_from(self) -> FloatArray:
        """Smallest conformal quantile at which the interval contains the target, for each case."""

        def contains(cases: NDArray[np.int64], at: FloatArray) -> BoolArray:
            interval = clipped(self.family.select(cases).interval(at), self.task_range)
            return interval.contains(self.targets[cases])

        return covering_quantile(self.scores, np.sort(self.scores), contains)

    def offset(self, interval: Interval) -> FloatArray:
        """Return the target minus the centre of the interval, for each case."""
        return _center_offset(interval, self.targets, self.task_range)

    def take(self, order: NDArray[np.int64]) -> Pool:
        """Return the pool of the cases with the given indices, in this order."""
        family, scores = self.family.select(order), self.scores[..., order]
        index, targets = self.index[order], self.targets[order]
        return replace(self, index=index, family=family, targets=targets, scores=scores)


def check_cases(
    outputs: Any,
    targets: Any,
    *,
    group: Any = None,
    label: Any = None,
    site: Any = None,
    unit: str | None = None,
    cases: float | str = "random",
    task_range: Any = None,
) -> EvaluationInputs:
    range_ = as_task_range(task_range)
    x, z = as_outputs_and_targets(outputs, targets, range_)
    n = len(z)
    groups = None if group is None else as_ids(group, "group", n)
    chosen = as_unit(unit, cases, has_groups=groups is not None)
    unit_of_case = chosen.index(n, groups)
    sizes = fold_sizes(int(unit_of_case.max()) + 1 if n else 0)
    labels = None if label is None else as_ids(label, "label", n)
    sites = None if site is None else as_ids(site, "site", n)
    return EvaluationInputs(x, z, chosen, unit_of_case, *sizes, range_, groups, labels, sites)


def make_pools(
    checked: EvaluationInputs,
    score: Score,
    alpha: float,
    tuning_repeats: int,
    rng: np.random.Generator | None,
    ends: int = 1,
) -> Iterator[Pool]:
    """Yield a pool for each random tuning set, or a single pool if none is needed."""
    outputs, targets, range_ = checked.outputs, checked.targets, checked.task_range
    everyone = np.arange(len(targets))
    if not tuning_fraction(score):
        # The same function of all outputs for every split: cases stay exchangeable, exactly.
        tuned = tuned_score(score, outputs, targets, range_, None)
        yield _pool(checked, tuned, everyone, 0, ends)
        return
    n = checked.n_calibration
    take = tuning_count(n, tuning_fraction(score), exact_alpha(alpha) / ends)
    if not 1 <= take < n:
        message = f"a fitted score needs more calibration {checked.unit.counted}s, got {n}"
        raise InputError(f"{message}; use mlwr or collect more", code="units.few")
    contents = case_contents(np.moveaxis(outputs[..., :2], -2, 0), targets)
    for draw in range(tuning_repeats):
        aside = choose_units(checked.unit_of_case, take, draw if rng is None else rng, contents)
        group = None if checked.group is None else checked.group[aside]
        tuned = tuned_score(score, outputs[..., aside, :], targets[aside], range_, group)
        yield _pool(checked, tuned, everyone[~aside], take, ends)


def center_distance(interval: Interval, targets: FloatArray, task_range: TaskRange) -> FloatArray:
    """Return the distance of each target from the centre, or the finite end, of its interval."""
    return np.abs(_center_offset(interval, targets, task_range))


def _center_offset(interval: Interval, targets: FloatArray, task_range: TaskRange) -> FloatArray:
    if task_range is not None and np.isfinite(task_range).all() and not interval.is_empty.any():
        return np.asarray(targets - (interval.lower + interval.upper) * 0.5)
    # The extremes show whether any end is infinite, without an array of answers.
    if np.isfinite(interval.lower.min()) and np.isfinite(interval.upper.max()):
        return np.asarray(targets - interval.center)
    lower_open, upper_open = np.isinf(interval.lower), np.isinf(interval.upper)
    finite_end = np.where(lower_open, interval.upper, interval.lower)
    with np.errstate(invalid="ignore"):  # minus plus infinity has no centre
        center = np.where(lower_open != upper_open, finite_end, interval.center)
    return np.where(lower_open & upper_open, np.inf, targets - center)


def _pool(
    checked: EvaluationInputs, score: Score, index: NDArray[np.int64], n_tuning: int, ends: int
) -> Pool:
    family = interval_family(score, checked.outputs[..., index, :], ends)
    targets, left = checked.targets[index], checked.n_calibration - n_tuning
    return Pool(index, family, targets, family.score(targets), checked.task_range, left, n_tuning)


# Folds held in memory at a time by the NumPy engine, in bytes.
FOLD_MEMORY = 16_000_000
# Numbers in one block of tables.
TABLE_NUMBERS = 8_000_000


@dataclass(frozen=True)
class Splits:
    """Random splits, defined by the number of units, the size of the test set and a seed."""

    units: int
    n_test: int
    trials: int
    seed: int
    unit_of_case: NDArray[np.int64]
    is_compiled: bool = False

    @property
    def n_cases(self) -> int:
        return len(self.unit_of_case) or self.units

    def folds(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        return test_sets(self.seed, int(numbers[0]), len(numbers), self.units, self.n_test)

    def fold(self, number: int) -> NDArray[np.uint8]:
        if not self.is_compiled:
            return np.asarray(self.folds(np.array([number]))[0])
        from taskuq.conformal import _kernels as kernels

        words, fold = np.empty(-(-self.units // 8), np.uint64), np.empty(self.units, np.uint8)
        kernels.fill_test_fold(np.uint64(self.seed), number, *self.kernel_sizes, words, fold)
        return fold

    @property
    def kernel_sizes(self) -> tuple[int, int, int]:
        return self.units, self.n_test, byte_threshold(self.units, self.n_test)

    @property
    def all_folds(self) -> NDArray[np.uint8]:
        return self.folds(np.arange(self.trials))

    def count_tests(self, row: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
        """Return how often each unit is tested in the trials t with ``row[t] == r``, (r, unit)."""
        counts = np.zeros((rows, self.units), np.int64)
        for t, k in enumerate(row):
            counts[k] += self.fold(t)
        return counts

    def of_cases(self, folds: NDArray[Any]) -> NDArray[Any]:
        """Return values (row, unit) repeated for all cases of each unit, (row, case)."""
        return folds[:, self.unit_of_case] if len(self.unit_of_case) else folds

    def of_units(self, values: np.ndarray) -> np.ndarray:
        """Return sums of values (row, case) over the cases of each unit, (row, unit)."""
        if not len(self.unit_of_case):
            return values
        order = np.argsort(self.unit_of_case, kind="stable")
        starts = np.searchsorted(self.unit_of_case[order], np.arange(self.units))
        return np.asarray(np.add.reduceat(values[:, order], starts, axis=1))

    def case_folds(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return a mask of the test cases of consecutive trials, (trial, case)."""
        return self.of_cases(self.folds(numbers))


@dataclass(frozen=True)
class RankedScores:
    """Sorted scores, among which the quantile of each calibration set is found."""

    scores: FloatArray
    unit: NDArray[np.int64]
    weight: FloatArray
    allowed: float | FloatArray
    test_unit: NDArray[np.int64]
    test_weight: FloatArray
    covered: NDArray[np.int64]
    bets: BettingEProcess | None = None

    @property
    def ends_tie(self) -> BoolArray:
        """Mask of the last score in each run of equal scores."""
        return np.append(self.scores[1:] != self.scores[:-1], True)

    def quantiles(self, position: NDArray[np.int64]) -> FloatArray:
        return np.append(self.scores, np.inf)[position]


def rank_for_guarantee(
    scores: FloatArray,
    guarantee: Guarantee,
    allowed: float | FloatArray,
    unit_of_case: NDArray[np.int64],
    covered_from: FloatArray | None = None,
) -> RankedScores:
    """Return sorted scores, from which :func:`run_splits` computes conformal quantiles."""
    entries = guarantee._unit_per_quantile.entries
    each, unit, weight = entries(scores, unit_of_case)
    order = np.argsort(each, kind="stable")
    ordered, last = each[order], order
    starts = ordered
    if covered_from is not None:
        from_each = entries(covered_from, unit_of_case)[0]
        last = np.argsort(from_each, kind="stable")
        starts = from_each[last]
    covered = np.searchsorted(starts, ordered, side="right")
    return RankedScores(
        ordered, unit[order], weight[order], allowed, unit[last], weight[last], covered,
        guarantee.bets,
    )  # fmt: skip


@dataclass(frozen=True)
class SplitResults:
    position: NDArray[np.int64]
    test_above: FloatArray
    sums: FloatArray


def run_splits(
    splitting: Splits, rankings: list[RankedScores], features: FloatArray
) -> SplitResults:
    """Return quantile positions, uncovered test weights and feature sums for every split."""
    R, T = len(rankings), splitting.trials
    position = np.empty((R, T), dtype=np.int64)
    test_above = np.empty((R, T))
    rows = np.ascontiguousarray(features.reshape(-1, splitting.n_cases))
    added = np.empty((len(rows), T))

    def of_all(name: str) -> np.ndarray:
        return np.stack([getattr(ranking, name) for ranking in rankings])

    entries = of_all("unit"), of_all("weight"), of_all("ends_tie")
    # Weights 1/n_v are not exact in floats; a meeting of sums must count as allowed.
    allowed = np.stack([np.broadcast_to(r.allowed, T) * (1 + 1e-12) for r in rankings])
    tested = of_all("test_unit"), of_all("test_weight"), of_all("covered")
    if splitting.is_compiled:
        from taskuq.conformal import _kernels as kernels

        kernels.run_trials(
            np.uint64(splitting.seed), np.arange(T), splitting.kernel_sizes, splitting.unit_of_case,
            entries, allowed, tested, rows, (position, test_above, added),
        )  # fmt: skip
    else:
        for block in _trial_blocks(splitting):
            folds = splitting.folds(block)
            for s in range(R):
                unit, weight, ends_tie = (part[s] for part in entries)
                found = _scan(folds, unit, weight, ends_tie, allowed[s, block])
                unit, weight, covered = (part[s] for part in tested)
                position[s, block] = found
                test_above[s, block] = _not_covered(folds, found, unit, weight, covered)
            added[:, block] = rows @ splitting.of_cases(folds).astype(float).T
    for s, ranking in enumerate(rankings):
        if ranking.bets is not None:
            position[s], test_above[s] = _certified(splitting, ranking, ranking.bets)
    return SplitResults(position, test_above, added.reshape(*features.shape[:2], T))


def sums_at_quantiles(
    splitting: Splits, quantiles: FloatArray, tables: Callable[[FloatArray], FloatArray]
) -> FloatArray:
    """Sum quantile-dependent values over the test cases of each trial, (table, trial)."""
    axis = 0 if quantiles.ndim > 1 else None
    distinct, row = np.unique(quantiles, axis=axis, return_inverse=True)
    row = row.ravel()
    step = max(1, TABLE_NUMBERS // splitting.n_cases)
    sums: FloatArray | None = None
    for start in range(0, len(distinct), step):
        # Whole units are tested, so that their cases are added up once for all trials.
        block = np.stack([splitting.of_units(t) for t in tables(distinct[start : start + step])])
        if sums is None:
            sums = np.empty((len(block), splitting.trials))
        numbers = np.nonzero((row >= start) & (row < start + step))[0]
        if splitting.is_compiled:
            from taskuq.conformal import _kernels as kernels

            some = np.empty((len(block), len(numbers)))
            random = np.uint64(splitting.seed), numbers, splitting.kernel_sizes
            kernels.sum_table_rows(*random, row[numbers] - start, block, some)
            sums[:, numbers] = some
            continue
        for t in numbers:
            sums[:, t] = block[:, row[t] - start] @ splitting.fold(int(t)).astype(float)
    assert sums is not None
    return sums


def _scan(
    folds: NDArray[np.uint8],
    unit: NDArray[np.int64],
    weight: FloatArray,
    ends_tie: BoolArray,
    allowed: FloatArray,
) -> NDArray[np.int64]:
    """Return the position of the quantile among the sorted scores in each split; -1 if none."""
    in_calibration = folds[:, unit] == 0
    last = np.flatnonzero(ends_tie)
    end_of_tie = last[np.searchsorted(last, np.arange(len(unit)))]
    above = _from_top(weight * in_calibration)[:, end_of_tie + 1]
    valid = in_calibration & (above <= allowed[:, None])
    return np.asarray(np.where(valid.any(axis=1), valid.argmax(axis=1), -1))


def _not_covered(
    folds: NDArray[np.uint8],
    position: NDArray[np.int64],
    unit: NDArray[np.int64],
    weight: FloatArray,
    covered: NDArray[np.int64],
) -> FloatArray:
    """Return the weight of uncovered test cases in each split; 0 where the position is -1."""
    beyond = _from_top(weight * folds[:, unit])[np.arange(len(folds)), covered[position]]
    return np.where(position < 0, 0.0, beyond)


def _from_top(weights: FloatArray) -> FloatArray:
    """Return cumulative sums over the columns, from the last to the first, plus a zero column."""
    # Summed from the top, in the order of the compiled loop, for equal rounding.
    from_top = np.cumsum(weights[:, ::-1], axis=1)[:, ::-1]
    return np.concatenate([from_top, np.zeros((len(weights), 1))], axis=1)


def _certified(
    splitting: Splits, ranking: RankedScores, bets: BettingEProcess
) -> tuple[NDArray[np.int64], FloatArray]:
    """Return, for each split, the position of the certified quantile and the uncovered weight."""
    position, test_above = np.full(splitting.trials, -1), np.zeros(splitting.trials)
    for block in _trial_blocks(splitting):
        folds = splitting.folds(block)
        for t, fold in zip(block, folds.astype(bool), strict=True):
            in_test = fold[ranking.unit]
            number = np.cumsum(~fold) - 1
            found = smallest_certified(
                ranking.scores[~in_test], number[ranking.unit[~in_test]],
                ranking.weight[~in_test], bets,
            )  # fmt: skip
            if found < np.inf:
                position[t] = np.flatnonzero(~in_test & (ranking.scores == found))[0]
        test_above[block] = _not_covered(
            folds, position[block], ranking.test_unit, ranking.test_weight, ranking.covered
        )
    return position, test_above


def _trial_blocks(splitting: Splits) -> list[NDArray[np.int64]]:
    step = max(1, FOLD_MEMORY // (8 * splitting.n_cases))
    numbers = np.arange(splitting.trials)
    return [numbers[start : start + step] for start in range(0, splitting.trials, step)]
