"""Exact evaluation equals trying every split of small sets, ties, clipping and all."""

from fractions import Fraction
from itertools import combinations
from math import comb, inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import taskuq as tq
from taskuq.conformal import _exact as sums
from taskuq.conformal._exact import quantile_position
from taskuq.conformal._quantiles import CoverageLaw, conformal_quantile, coverage_rank
from taskuq.conformal._splits import fold_sizes
from taskuq.conformal.scores._mlwr import MLWR

SIZES = [(n, m) for n in range(1, 8) for m in range(1, 11 - n) if n + m <= 9]


def every_split(units, n):
    """Each calibration fold with its test fold."""
    for fold in combinations(range(units), n):
        yield list(fold), [i for i in range(units) if i not in fold]


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_the_quantiles_position_has_its_law_over_all_splits(n, m):
    for rank in range(1, n + 1):
        law = quantile_position(n, m, rank)
        found = [fold[rank - 1] + 1 for fold, _ in every_split(n + m, n)]
        counts = [found.count(j) for j in law.position]

        np.testing.assert_allclose(law.probability, np.array(counts) / comb(n + m, n), rtol=1e-10)
        assert sum(counts) == comb(n + m, n)


def covered_counts(scores, n, rank):
    """The number of covered test cases in every split, by counting."""
    for fold, test in every_split(len(scores), n):
        q = np.sort(scores[fold])[rank - 1]
        yield int((scores[test] <= q).sum())


@given(
    scores=st.lists(st.integers(0, 5), min_size=3, max_size=8),
    data=st.data(),
)
def test_the_law_of_coverage_is_exact_with_ties(scores, data):
    values = np.sort(np.array(scores, dtype=float))
    n = data.draw(st.integers(1, len(values) - 1))
    rank = data.draw(st.integers(1, n))
    m = len(values) - n
    law = quantile_position(n, m, rank)
    found = np.array(list(covered_counts(values, n, rank)))
    moments = law.coverage(values)

    np.testing.assert_allclose(
        law.coverage_pmf(values), np.bincount(found, minlength=m + 1) / len(found), atol=1e-12
    )
    assert moments.mean == pytest.approx((found / m).mean(), abs=1e-12)
    assert moments.sd == pytest.approx((found / m).std(), abs=1e-8)


@pytest.mark.parametrize(("n", "m"), [(7, 3), (19, 10), (99, 50), (1531, 657)])
def test_without_ties_the_law_is_beta_binomial(n, m):
    for rank in (1, n // 2, coverage_rank(n, 0.2), n):
        ours = quantile_position(n, m, rank).coverage_pmf(np.arange(n + m, dtype=float))

        np.testing.assert_allclose(ours, CoverageLaw(n, rank, m).pmf, atol=1e-10)


class Lopsided:
    """A user's own score: twice as wide above the first sample as below it."""

    def score(self, outputs, targets):
        gap = targets - outputs[:, 0]
        return np.maximum(gap / 2, -gap)

    def interval(self, outputs, quantile):
        q = np.asarray(quantile)
        return tq.Interval(outputs[:, 0] - q, outputs[:, 0] + 2 * q)


def by_enumeration(outputs, targets, alpha, score, task_range, side):
    """Calibrate and predict, by the public functions, on every split."""
    n, m = fold_sizes(len(targets))
    coverage, width = [], []
    for fold, test in every_split(n + m, n):
        bound = tq.calibrate(
            outputs[fold], targets[fold], alpha=alpha, score=score, task_range=task_range, side=side
        )
        interval = bound(outputs[test])
        coverage.append(interval.contains(targets[test]).mean())
        width.append(interval.width.mean())
    return np.array(coverage), np.array(width)


RNG = np.random.default_rng(21)
SMOOTH = RNG.random(9)
CENTERS, HALF = RNG.random(10), np.r_[np.ones(8), np.full(2, 0.0625)]
AROUND = np.clip(CENTERS + HALF * RNG.uniform(-0.1, 0.1, 10), 0, 1)
POPULATIONS = {
    "smooth": (SMOOTH[:, None] + 0.2 * RNG.standard_normal((9, 4)), SMOOTH),
    "tied": (np.tile([[0.25, 0.5], [0.5, 0.75], [0.0, 1.0]], (3, 1)), np.tile([0.5, 0.25, 1.0], 3)),
    "some without spread": (
        np.r_[np.full((3, 3), 0.5), 0.5 + 0.1 * RNG.standard_normal((6, 3))],
        np.r_[0.5, 0.7, 0.1, RNG.random(6)],
    ),
    "one sample": (RNG.random((8, 1)), RNG.random(8)),
    # Wide samples around most targets make the quantile negative, and narrow intervals cross.
    "crossing": (CENTERS[:, None] + np.outer(HALF, [-1, 1]), AROUND),
}


@pytest.mark.parametrize("side", ["two", "upper"])
@pytest.mark.parametrize("task_range", [None, (-0.5, 1.25), (0.0, 1.0)])
@pytest.mark.parametrize("score", ["ar", "lwr", "cqr", "mlwr", pytest.param(Lopsided(), id="own")])
@pytest.mark.parametrize("kind", POPULATIONS)
def test_exact_evaluation_equals_every_split(kind, score, task_range, side, monkeypatch):
    outputs, targets = POPULATIONS[kind]
    for alpha in (0.3, 0.45):
        # An evaluation tunes mlwr on the outputs of all cases alike.
        same = MLWR(side).fit(outputs, range_=task_range) if score == "mlwr" else score
        coverage, width = by_enumeration(outputs, targets, alpha, same, task_range, side)
        for table in (0, sums.TABLE):  # numbers of cases as lines, and at every quantile
            monkeypatch.setattr(sums, "TABLE", table)
            exact = tq.evaluate_exact(
                outputs, targets, alpha=alpha, score=score, task_range=task_range, side=side
            )

            assert exact.coverage.mean == pytest.approx(coverage.mean(), abs=1e-9)
            assert exact.coverage.sd == pytest.approx(coverage.std(), abs=1e-7)
            if np.isfinite(width).all():
                assert exact.width.mean == pytest.approx(width.mean(), abs=1e-9)
                assert exact.width.sd == pytest.approx(width.std(), abs=1e-7)
            else:
                assert exact.width.mean == inf


def test_some_intervals_of_the_crossing_population_are_empty():
    outputs, targets = POPULATIONS["crossing"]
    bound = tq.calibrate(outputs, targets, alpha=0.45, score="cqr")

    assert bound.quantile < 0
    assert 0 < bound(outputs).is_empty.sum() < 10


def test_mean_coverage_without_ties_is_rank_over_n_plus_one():
    truth = RNG.random(50)
    outputs = truth[:, None] + 0.1 * RNG.standard_normal((50, 5))
    for alpha in (0.05, 0.1, 0.18, 0.45):
        exact = tq.evaluate_exact(outputs, truth, alpha=alpha, score="lwr")
        expected = Fraction(coverage_rank(35, alpha), 36)

        assert exact.coverage.mean == pytest.approx(float(expected), abs=1e-12)


def test_too_few_cases_give_the_range_in_every_split():
    exact = tq.evaluate_exact(RNG.random((10, 3)), RNG.random(10), alpha=0.05, task_range=(0, 1))

    assert (exact.coverage.mean, exact.width.mean, exact.infinite) == (1, 1, 1)


def test_infinite_scores_give_an_infinite_mean_and_their_share_of_splits():
    # Two cases of ten cannot be covered: the quantile is infinite if both calibrate (rank 7 of 7).
    outputs = np.r_[np.full((2, 3), 0.5), 0.5 + 0.1 * RNG.standard_normal((8, 3))]
    targets = np.r_[0.9, 0.9, np.full(8, 0.5)]
    found = [
        conformal_quantile(np.r_[np.full(2, inf), np.ones(8)][fold], 0.2) == inf
        for fold, _ in every_split(10, 7)
    ]
    exact = tq.evaluate_exact(outputs, targets, alpha=0.2, score="lwr")

    assert exact.infinite == pytest.approx(np.mean(found), abs=1e-12)
    assert 0 < exact.infinite < 1
    assert exact.width.mean == inf
    clipped = tq.evaluate_exact(outputs, targets, alpha=0.2, score="lwr", task_range=(0, 1))
    assert clipped.width.mean <= 1
