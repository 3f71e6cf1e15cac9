"""Promises within classes, within strata, under a known shift, and given the calibration set."""

from fractions import Fraction
from itertools import pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import taskuq as tq
from taskuq.conformal._bound import WeightedQuantile
from taskuq.conformal._quantiles import _pac_rank, coverage_rank

ALPHAS = (0.1, 0.2, 0.25, 0.34, 0.5, 0.8)
# (score, class) of each case; with output 0 the AR score is the target itself.
POPULATIONS = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from("abc")), min_size=4, max_size=14
)


def calibrated_without(population, new, alpha, **condition):
    scores = np.array([s for i, (s, _) in enumerate(population) if i != new], dtype=float)
    kinds = np.array([c for i, (_, c) in enumerate(population) if i != new])
    given_by = dict.fromkeys(condition, kinds)
    return tq.calibrate(np.zeros((len(scores), 1)), scores, alpha=alpha, score="ar", **given_by)


@given(population=POPULATIONS, alpha=st.sampled_from(ALPHAS))
def test_each_class_is_covered_whichever_it_is(population, alpha):
    for kind in {c for _, c in population}:
        members = [i for i, (_, c) in enumerate(population) if c == kind]
        assume(len(members) > 1)
        covered = sum(
            bool(
                calibrated_without(population, i, alpha, label=True)(np.zeros(1)).contains(
                    population[i][0]
                )
            )
            for i in members
        )

        assert covered >= (1 - Fraction(str(alpha))) * len(members)


@given(population=POPULATIONS, alpha=st.sampled_from(ALPHAS))
def test_each_stratum_is_covered_rank_times_of_its_own(population, alpha):
    for kind in {c for _, c in population}:
        members = [i for i, (_, c) in enumerate(population) if c == kind]
        covered = 0
        for i in members:
            bound = calibrated_without(population, i, alpha, strata=True)
            interval = bound(np.zeros((1, 1)), strata=[kind])
            covered += bool(interval.contains(population[i][0])[0])

        assert covered >= (1 - Fraction(str(alpha))) * len(members)


def test_a_stratum_that_was_never_calibrated_gets_everything():
    bound = tq.calibrate(
        np.zeros((40, 1)), np.arange(40.0), alpha=0.1, score="ar", strata=["a", "b"] * 20
    )

    assert bound(np.zeros((2, 1)), strata=["a", "new"]).is_unbounded.tolist() == [False, True]


@given(
    population=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5)), min_size=3, max_size=10),
    alpha=st.sampled_from(ALPHAS),
)
def test_weighted_exchangeable_cases_are_missed_at_most_alpha(population, alpha):
    # The new case is case i with probability proportional to its weight.
    missed = 0
    for i, (score, weight) in enumerate(population):
        rest = [case for j, case in enumerate(population) if j != i]
        scores, weights = (np.array(part, dtype=float) for part in zip(*rest, strict=True))
        bound = tq.calibrate(
            np.zeros((len(rest), 1)), scores, alpha=alpha, score="ar", weights=weights
        )
        missed += weight * (not bound(np.zeros(1), weights=[weight]).contains(score))

    assert Fraction(missed, sum(w for _, w in population)) <= Fraction(str(alpha))


@pytest.mark.parametrize("weight", [1.0, 0.1, 1 / 3, 7e5])
def test_equal_weights_give_the_unweighted_rank(weight):
    for n in (9, 19, 24, 99, 149, 999):
        for alpha in (0.05, 0.059, 0.1, 0.18, 0.44, 0.45, 0.7):
            rank = coverage_rank(n, alpha)
            threshold = WeightedQuantile(np.arange(1.0, n + 1), np.full(n, weight), alpha)

            assert threshold.at(1, None, [weight])[0] == (rank if rank <= n else inf)


def test_a_heavier_new_case_never_gets_a_shorter_interval():
    rng = np.random.default_rng(5)
    threshold = WeightedQuantile(np.sort(rng.random(60)), rng.random(60) + 0.1, 0.1)
    quantiles = threshold.at(50, None, np.linspace(0.01, 20, 50))

    assert all(a <= b for a, b in pairwise(quantiles))
    assert quantiles[-1] == inf


def test_the_effective_size_is_the_number_of_equally_weighted_cases():
    assert WeightedQuantile(np.arange(4.0), np.full(4, 2.5), 0.1).effective_size == 4
    assert (
        WeightedQuantile(np.arange(4.0), np.array([1.0, 1e-9, 1e-9, 1e-9]), 0.1).effective_size
        < 1.01
    )


def test_a_weighted_bound_survives_a_file(tmp_path):
    rng = np.random.default_rng(2)
    x, z = rng.random((60, 3)), rng.random(60)
    bound = tq.calibrate(x, z, alpha=0.1, score="lwr", weights=rng.random(60) + 0.5)
    again = tq.load_bound(bound.save(tmp_path / "bound.json"))

    assert again == bound
    assert (again(x, weights=np.ones(60)).upper == bound(x, weights=np.ones(60)).upper).all()


@pytest.mark.parametrize("n", [30, 60, 200])
def test_a_pac_bound_uses_the_pac_rank(n):
    bound = tq.calibrate(np.zeros((n, 1)), np.arange(1.0, n + 1), alpha=0.1, delta=0.1, score="ar")

    assert bound.quantile == _pac_rank(n, 0.1, 0.1)
    assert bound.quantile > coverage_rank(n, 0.1)
    assert bound.coverage_law(10).rank == _pac_rank(n, 0.1, 0.1)


def test_a_pac_bound_of_too_few_cases_says_how_many_are_needed():
    bound = tq.calibrate(np.zeros((44, 1)), np.arange(44.0), alpha=0.05, delta=0.1, score="ar")

    assert not bound.is_finite
    assert "needs at least 45 calibration cases, got 44" in str(bound)
