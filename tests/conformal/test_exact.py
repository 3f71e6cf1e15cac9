"""Exact evaluation equals trying every split of small sets, ties, clipping and all."""

from dataclasses import replace
from itertools import combinations, product
from math import inf
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import taskuq as tq
from taskuq.conformal import _evaluate as montecarlo
from taskuq.conformal import _exact as sums
from taskuq.conformal import _splits as pools
from taskuq.conformal._exact import quantile_position
from taskuq.conformal._family import LinearFamily
from taskuq.conformal._quantiles import CoverageLaw, coverage_rank
from taskuq.conformal._splits import Pool, fold_sizes
from taskuq.conformal.scores._mlwr import MLWR


def every_split(units, n):
    """Each calibration fold with its test fold."""
    for fold in combinations(range(units), n):
        yield list(fold), [i for i in range(units) if i not in fold]


def covered_counts(scores, n, rank):
    """The number of covered test cases in every split, by counting."""
    for fold, test in every_split(len(scores), n):
        q = np.sort(scores[fold])[rank - 1]
        yield int((scores[test] <= q).sum())


@given(scores=st.lists(st.integers(0, 5), min_size=3, max_size=8), data=st.data())
def test_law_of_coverage_is_exact_with_ties(scores, data):
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


@pytest.mark.parametrize(
    ("task_range", "side"), [(None, "two"), ((-0.5, 1.25), "two"), ((0.0, 1.0), "upper")]
)
@pytest.mark.parametrize(
    ("kind", "score"),
    [*product(POPULATIONS, ["lwr", "cqr", "mlwr"]), ("smooth", Lopsided()), ("tied", "ar")],
)
def test_exact_evaluation_equals_every_split(kind, score, task_range, side, monkeypatch):
    outputs, targets = POPULATIONS[kind]
    for alpha in [0.45 if kind == "crossing" else 0.3]:
        # An evaluation tunes mlwr on all cases alike.
        same = MLWR(side).fit(outputs, targets, range_=task_range) if score == "mlwr" else score
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


def test_crossing_population_has_empty_intervals():
    outputs, targets = POPULATIONS["crossing"]
    bound = tq.calibrate(outputs, targets, alpha=0.45, score="cqr")
    assert bound.quantile < 0
    assert 0 < bound(outputs).is_empty.sum() < 10


TRUTH = np.random.default_rng(17).random(149)
OUTPUTS = TRUTH[:, None] + 0.1 * np.random.default_rng(18).standard_normal((149, 4))
# 149 cases split into 104 and 45; 4000 trials see a rank that is off by one.
RUN = {"alpha": 0.1, "score": "lwr", "splits": 4000}


def p_value(outputs=OUTPUTS, targets=TRUTH):
    result = tq.evaluate(outputs, targets, seed=np.random.default_rng(7), **RUN)
    return result.histogram.p_value


def test_coverage_of_random_splits_follows_its_law():
    assert p_value() > 1e-6


def test_coverage_follows_its_law_with_ties():
    assert p_value(np.round(OUTPUTS, 1), np.round(TRUTH, 1)) > 1e-6


@pytest.mark.parametrize("shift", [-1, 1])
def test_rank_off_by_one_is_found(shift, monkeypatch):
    ranking = montecarlo.rank_for_guarantee

    def off_by_one(*arguments):
        right = ranking(*arguments)
        return replace(right, allowed=right.allowed - shift)

    monkeypatch.setattr(montecarlo, "rank_for_guarantee", off_by_one)
    assert p_value() < 1e-6


RANGES = [None, (0.0, 1.0), (-0.25, np.inf), (-np.inf, 0.75)]


def drawn_pool(seed, cases, task_range, side, kind):
    """A pool with what is hard: crossing ends, no spread, ties, ends on the range, huge scores."""
    rng = np.random.default_rng(seed)
    low = rng.uniform(-0.1, 1.1, cases)
    high = low + {"center": 0, "crossing": rng.uniform(-0.2, 0.4, cases)}.get(kind, 0)
    scale = rng.choice([0, 1e-9, 0.1, 0.3], cases) if kind == "spread" else np.ones(cases)
    targets = rng.random(cases)
    if kind == "grid":
        low = np.round(low * 8) / 8
        high, scale, targets = low, np.full(cases, 0.25), np.round(targets * 8) / 8
    family = LinearFamily(low, high, scale, side)
    pool = Pool(np.arange(cases), family, targets, family.score(targets), task_range, cases, 0)
    return pool.take(np.argsort(pool.scores, kind="stable"))


def sums_with(pool, table):
    position = np.arange(1, len(pool.scores) + 1)
    with mock.patch.object(sums, "TABLE", table), np.errstate(invalid="ignore"):
        return sums._pool_sums(pool, position)


@given(
    seed=st.integers(0, 10**6),
    cases=st.integers(1, 40),
    task_range=st.sampled_from(RANGES),
    side=st.sampled_from(["two", "upper", "lower"]),
    kind=st.sampled_from(["center", "crossing", "spread", "grid"]),
)
@example(seed=0, cases=40, task_range=(0.0, 1.0), side="two", kind="crossing")
def test_both_ways_of_summing_agree(seed, cases, task_range, side, kind):
    pool = drawn_pool(seed, cases, task_range, side, kind)
    lines, tables = sums_with(pool, 0), sums_with(pool, 10**9)
    # Before and after the position are what matters; where something is infinite both are.
    known = np.isfinite(tables)
    scale = np.abs(tables[known]).max(initial=1.0)
    assert np.isfinite(lines[known]).all()
    assert not np.isfinite(lines[~known]).any()
    np.testing.assert_allclose(lines[known], tables[known], rtol=1e-12, atol=1e-12 * scale)


STEPS = (255, 10, 3)
SCORES = ("ar", "lwr", "cqr", "mlwr")


def on_a_grid(steps, seed, cases=9, samples=4):
    """A small population whose outputs and targets are multiples of 1/steps."""
    rng = np.random.default_rng(seed)
    # Few shapes in many places: scores that tie in fractions, and differ in their last bits.
    shapes = rng.integers(-1, 2, (2, samples)) * max(1, steps // 20)
    center = rng.integers(1, steps, cases)
    outputs = center[:, None] + shapes[rng.integers(0, 2, cases)]
    targets = center + rng.choice([-2, -1, 1, 2], cases) * max(1, steps // 30)
    return np.clip(outputs, 0, steps) / steps, np.clip(targets, 0, steps) / steps


def gaps(steps, score, task_range, side, seeds=range(2)):
    """How far evaluation and counting are apart, in mean and in standard deviation."""
    found = []
    for seed in seeds:
        x, z = on_a_grid(steps, seed)
        same = MLWR(side).fit(x, z, range_=task_range) if score == "mlwr" else score
        options = {"alpha": 0.3, "score": same, "task_range": task_range, "side": side}
        coverage, _ = by_enumeration(x, z, *options.values())
        exact = tq.evaluate_exact(x, z, **options).coverage
        found += [abs(exact.mean - coverage.mean()), abs(exact.sd - coverage.std())]
    return np.array(found)


@pytest.mark.parametrize(("task_range", "side"), [(None, "two"), ((0.0, 1.0), "lower")])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("steps", STEPS)
def test_evaluation_on_a_grid_equals_enumeration(steps, score, task_range, side):
    assert gaps(steps, score, task_range, side).max() < 1e-7


@pytest.mark.parametrize("steps", [255, 10])
def test_exact_comparison_of_scores_is_found(steps, monkeypatch):
    monkeypatch.setattr(pools, "covering_quantile", lambda scores, ordered, contains: scores)
    assert max(gaps(steps, score, None, "two").max() for score in SCORES) > 0.01
