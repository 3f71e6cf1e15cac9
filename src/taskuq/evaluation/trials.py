"""Many random splits of fixed scores: where the quantile falls, and sums over the test folds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.betting import Bets, lowest_certified
from taskuq.calibration.guarantee import Guarantee
from taskuq.evaluation.splits import byte_threshold, test_folds
from taskuq.interval import BoolArray, FloatArray

# Folds held in memory at a time by the NumPy engine, in bytes.
FOLD_MEMORY = 16_000_000
# Numbers in one block of tables.
TABLE_NUMBERS = 8_000_000


@dataclass(frozen=True)
class Splitting:
    """Who is split, how, and how often.

    Arguments:
        units: The number of units, cases or groups.
        n_test: The number of units in each test fold.
        trials: The number of splits.
        seed: Their seed.
        unit_of_case: The group of each case where groups are split; empty where cases are.
        is_compiled: Whether the compiled loops do the work; the numbers are the same.
    """

    units: int
    n_test: int
    trials: int
    seed: int
    unit_of_case: NDArray[np.int64]
    is_compiled: bool = False

    @property
    def n_cases(self) -> int:
        """The number of cases."""
        return len(self.unit_of_case) or self.units

    def folds(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return which units are in the test fold of the given consecutive trials."""
        return test_folds(self.seed, int(numbers[0]), len(numbers), self.units, self.n_test)

    def fold(self, number: int) -> NDArray[np.uint8]:
        """Return which units are in the test fold of one trial."""
        if not self.is_compiled:
            return np.asarray(self.folds(np.array([number]))[0])
        from taskuq.evaluation import kernels

        words, fold = np.empty(-(-self.units // 8), np.uint64), np.empty(self.units, np.uint8)
        threshold = byte_threshold(self.units, self.n_test)
        kernels.fill_test_fold(
            np.uint64(self.seed), number, self.units, self.n_test, threshold, words, fold
        )
        return fold

    @property
    def all_folds(self) -> NDArray[np.uint8]:
        """Which units are in the test fold of every trial."""
        return self.folds(np.arange(self.trials))

    def of_cases(self, folds: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return which cases are in test folds of units."""
        return folds[:, self.unit_of_case] if len(self.unit_of_case) else folds

    def of_units(self, values: np.ndarray) -> np.ndarray:
        """Return numbers of cases (row, case) added up within each unit (row, unit)."""
        if not len(self.unit_of_case):
            return values
        order = np.argsort(self.unit_of_case, kind="stable")
        starts = np.searchsorted(self.unit_of_case[order], np.arange(self.units))
        return np.asarray(np.add.reduceat(values[:, order], starts, axis=1))

    def case_folds(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return which cases are in the test fold of the given consecutive trials."""
        return self.of_cases(self.folds(numbers))


@dataclass(frozen=True)
class Ranking:
    """Ordered scores, of cases or of groups, in which the quantile of a calibration fold is found.

    The quantile is the smallest calibration score with at most ``allowed`` weight of calibration
    scores strictly above it. Who of a test fold is covered at it is a second order of the same
    cases or groups, which differs from the first where scores tie but for their rounding.

    Arguments:
        scores: In rising order.
        unit: The unit of each score.
        weight: The weight of each score.
        allowed: The weight that may lie above, in all trials or in each (trial,); negative where
            no finite quantile exists.
        test_unit: The units in the order of the scores from which on they are covered.
        test_weight: Their weights.
        covered: How many in that order are covered at each of the scores.
        bets: What has to certify the losses of a fold besides, where no fixed weight allows them.
    """

    scores: FloatArray
    unit: NDArray[np.int64]
    weight: FloatArray
    allowed: float | FloatArray
    test_unit: NDArray[np.int64]
    test_weight: FloatArray
    covered: NDArray[np.int64]
    bets: Bets | None = None

    @property
    def ends_tie(self) -> BoolArray:
        """Whether each score is the last of its equals."""
        return np.append(self.scores[1:] != self.scores[:-1], True)

    def quantiles(self, position: NDArray[np.int64]) -> FloatArray:
        """Return the score at each position; infinity at -1."""
        return np.append(self.scores, np.inf)[position]


def promised_ranking(
    scores: FloatArray,
    promise: Guarantee,
    allowed: float | FloatArray,
    unit_of_case: NDArray[np.int64],
    covered_from: FloatArray | None = None,
) -> Ranking:
    """Order scores so that the quantile that keeps a promise can be found in any calibration fold.

    Arguments:
        scores: The scores of all cases (case,).
        promise: What is promised.
        allowed: The weight of calibration scores that may lie above the quantile, in all trials or
            in each (trial,).
        unit_of_case: The unit of each case, numbered from 0.
        covered_from: The score from which on each case is covered; its own where None.

    Example:
        >>> promise = Guarantee(alpha=0.2, unit="case", n_cases=5)
        >>> allowed = promise.allowed(4)
        >>> ranking = promised_ranking(np.array([3.0, 1, 2]), promise, allowed, np.arange(3))
        >>> ranking.scores, ranking.unit, ranking.allowed
        (array([1., 2., 3.]), array([1, 2, 0]), 0.0)
    """
    each, unit, weight = promise.whom_by_end.entries(scores, unit_of_case)
    order = np.argsort(each, kind="stable")
    ordered, last = each[order], order
    starts = ordered
    if covered_from is not None:
        from_each = promise.whom_by_end.entries(covered_from, unit_of_case).scores
        last = np.argsort(from_each, kind="stable")
        starts = from_each[last]
    covered = np.searchsorted(starts, ordered, side="right")
    return Ranking(
        ordered, unit[order], weight[order], allowed, unit[last], weight[last], covered,
        promise.bets,
    )  # fmt: skip


@dataclass(frozen=True)
class Outcomes:
    """What the splits gave for each ranking, or for one of them.

    Arguments:
        position: Where the quantile is among the ordered scores, (ranking, trial); -1 for none.
        test_above: The weight of the test fold that is not covered at it, (ranking, trial).
        sums: Sums of the features over the test cases, (ranking, feature, trial).
    """

    position: NDArray[np.int64]
    test_above: FloatArray
    sums: FloatArray

    def of(self, ranking: int) -> Outcomes:
        """Return what the splits gave for one ranking, without the first axes."""
        return Outcomes(self.position[ranking], self.test_above[ranking], self.sums[ranking])


def run_trials(splitting: Splitting, rankings: list[Ranking], features: FloatArray) -> Outcomes:
    """Split so many times and find the quantile of each ranking in each trial.

    Arguments:
        splitting: Who is split and how.
        rankings: The ordered scores of each score; all of one length.
        features: Numbers to add over the test cases, (ranking, feature, case).
    """
    R, T = len(rankings), splitting.trials
    position = np.empty((R, T), dtype=np.int64)
    test_above = np.empty((R, T))
    # Scores share features, and many are constant: each distinct one is added up once.
    distinct, which = _distinct_rows(features.reshape(-1, splitting.n_cases))
    added = np.empty((len(distinct), T))

    def of_all(name: str) -> np.ndarray:
        return np.stack([getattr(ranking, name) for ranking in rankings])

    entries = of_all("unit"), of_all("weight"), of_all("ends_tie")
    # Weights 1/n_v are not exact in floats; a meeting of sums must count as allowed.
    allowed = np.stack([np.broadcast_to(r.allowed, T) * (1 + 1e-12) for r in rankings])
    tested = of_all("test_unit"), of_all("test_weight"), of_all("covered")
    if splitting.is_compiled:
        from taskuq.evaluation import kernels

        kernels.run_trials(
            np.uint64(splitting.seed), np.arange(T), splitting.units, splitting.n_test,
            byte_threshold(splitting.units, splitting.n_test), splitting.unit_of_case,
            *entries, allowed, *tested, distinct, position, test_above, added,
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
            added[:, block] = distinct @ splitting.of_cases(folds).astype(float).T
    for s, ranking in enumerate(rankings):
        if ranking.bets is not None:
            position[s], test_above[s] = _certified(splitting, ranking, ranking.bets)
    return Outcomes(position, test_above, added[which].reshape(*features.shape[:2], T))


def sums_at_quantiles(
    splitting: Splitting, quantiles: FloatArray, tables: Callable[[FloatArray], FloatArray]
) -> FloatArray:
    """Add numbers that depend on the quantile over the test cases of each trial, (table, trial).

    Arguments:
        splitting: Who is split and how.
        quantiles: The quantile of each trial (trial,), or those of each end (trial, end).
        tables: Maps distinct quantiles to numbers (table, quantile, case).
    """
    distinct, row = np.unique(
        quantiles, axis=0 if quantiles.ndim > 1 else None, return_inverse=True
    )
    row = row.ravel()
    step = max(1, TABLE_NUMBERS // splitting.n_cases)
    sums: FloatArray | None = None
    for start in range(0, len(distinct), step):
        # Whole units are tested, so that their cases are added up once for all trials.
        block = np.stack([splitting.of_units(t) for t in tables(distinct[start : start + step])])
        if sums is None:
            sums = np.empty((len(block), splitting.trials))
        numbers = np.nonzero((row >= start) & (row < start + step))[0]
        sums[:, numbers] = _sum_rows(splitting, numbers, row[numbers] - start, block)
    assert sums is not None
    return sums


def _sum_rows(
    splitting: Splitting, numbers: NDArray[np.int64], row: NDArray[np.int64], tables: FloatArray
) -> FloatArray:
    """Add tables (table, row, unit) over the test units of some trials, each at its row."""
    sums = np.empty((len(tables), len(numbers)))
    if splitting.is_compiled:
        from taskuq.evaluation import kernels

        kernels.sum_table_rows(
            np.uint64(splitting.seed), numbers, splitting.units, splitting.n_test,
            byte_threshold(splitting.units, splitting.n_test), row, tables, sums,
        )  # fmt: skip
        return sums
    for t, (number, k) in enumerate(zip(numbers, row, strict=True)):
        fold = splitting.folds(np.array([number]))[0].astype(float)
        sums[:, t] = tables[:, k] @ fold
    return sums


def _distinct_rows(rows: FloatArray) -> tuple[FloatArray, list[int]]:
    """Return the different rows, and which of them each row is."""
    seen: dict[bytes, int] = {}
    which = [seen.setdefault(row.tobytes(), len(seen)) for row in rows]
    first = [which.index(k) for k in range(len(seen))]
    return np.ascontiguousarray(rows[first]), which


def _scan(
    folds: NDArray[np.uint8],
    unit: NDArray[np.int64],
    weight: FloatArray,
    ends_tie: BoolArray,
    allowed: FloatArray,
) -> NDArray[np.int64]:
    """Find the quantile of each fold; -1 where there is none."""
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
    """Weigh what of each test fold is not covered at a position; nothing where there is none."""
    beyond = _from_top(weight * folds[:, unit])[np.arange(len(folds)), covered[position]]
    return np.where(position < 0, 0.0, beyond)


def _from_top(weights: FloatArray) -> FloatArray:
    """Sums of each row from each place to its end, and 0 beyond it."""
    # Summed from the top, in the order of the compiled loop, for equal rounding.
    from_top = np.cumsum(weights[:, ::-1], axis=1)[:, ::-1]
    return np.concatenate([from_top, np.zeros((len(weights), 1))], axis=1)


def _certified(
    splitting: Splitting, ranking: Ranking, bets: Bets
) -> tuple[NDArray[np.int64], FloatArray]:
    """Find where the quantile is in each trial if bets have to certify the losses of its fold."""
    position, test_above = np.full(splitting.trials, -1), np.zeros(splitting.trials)
    for block in _trial_blocks(splitting):
        folds = splitting.folds(block)
        for t, fold in zip(block, folds.astype(bool), strict=True):
            in_test = fold[ranking.unit]
            number = np.cumsum(~fold) - 1
            found = lowest_certified(
                ranking.scores[~in_test], number[ranking.unit[~in_test]],
                ranking.weight[~in_test], bets,
            )  # fmt: skip
            if found < np.inf:
                position[t] = np.flatnonzero(~in_test & (ranking.scores == found))[0]
        test_above[block] = _not_covered(
            folds, position[block], ranking.test_unit, ranking.test_weight, ranking.covered
        )
    return position, test_above


def _trial_blocks(splitting: Splitting) -> list[NDArray[np.int64]]:
    step = max(1, FOLD_MEMORY // (8 * splitting.n_cases))
    numbers = np.arange(splitting.trials)
    return [numbers[start : start + step] for start in range(0, splitting.trials, step)]
