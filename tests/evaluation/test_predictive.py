"""Scores and ranks of samples, against what exchangeability and proper scores demand."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskuq.conformal._diagnose import (
    _group_statistics,
    _outside_fraction,
    _rank_histogram,
    _rank_histogram_deviation,
    crps,
)
from taskuq.errors import InputError

# Few different numbers: ties are common.
pools = st.lists(st.integers(0, 6), min_size=3, max_size=9)


def each_as_the_truth(pool):
    """Every number of a pool in turn as the target, the others as its samples."""
    values = np.array(pool, float)
    return np.array([np.delete(values, i) for i in range(len(values))]), values


@pytest.mark.parametrize("p", [2, 3])
def test_the_mean_score_over_all_draws_is_that_of_the_law(p):
    law, target = np.array([0.0, 0.0, 1.0, 4.0]), 0.5
    draws = np.array(list(product(law, repeat=p)))
    exact = np.abs(law - target).mean() - np.abs(law[:, None] - law).mean() / 2

    assert crps(draws, np.full(len(draws), target)).mean() == pytest.approx(exact, abs=1e-12)


def test_no_law_scores_better_than_that_of_the_target():
    truth, other = np.array([0.0, 1.0, 3.0]), np.array([0.0, 1.0, 2.0])

    def expected(law):
        draws = np.array(list(product(law, repeat=2)))
        return np.mean([crps(draws, np.full(len(draws), z)).mean() for z in truth])

    assert expected(truth) < expected(other)


@given(pools)
def test_ranks_of_exchangeable_numbers_are_flat(pool):
    outputs, targets = each_as_the_truth(pool)

    np.testing.assert_allclose(_rank_histogram(outputs, targets), 1 / len(pool), atol=1e-12)


def test_exchangeable_numbers_without_ties_are_outside_twice():
    outputs, targets = each_as_the_truth([3, 1, 4, 15, 9, 2, 6])

    assert _outside_fraction(outputs, targets).sum() == 2


def test_flat_shares_are_even_and_one_rank_alone_is_not():
    assert _rank_histogram_deviation(np.full(5, 0.2)) == pytest.approx(0)
    assert _rank_histogram_deviation(np.array([0, 0, 1.0, 0, 0])) == pytest.approx(0.8)


def test_the_error_of_a_ratio_of_equals_is_nothing():
    parts = np.random.default_rng(0).random((6, 2, 3))
    parts[:, 1] = 2 * parts[:, 0]
    value, error = _group_statistics(lambda sums: sums[1] / sums[0], parts)

    np.testing.assert_allclose(value, 2)
    np.testing.assert_allclose(error, 0, atol=1e-12)


def test_one_group_has_no_standard_error():
    assert np.isnan(_group_statistics(lambda sums: sums, np.ones((1, 2)))[1]).all()


@pytest.mark.parametrize("score", [crps, _rank_histogram, _outside_fraction])
def test_one_sample_is_refused(score):
    with pytest.raises(InputError, match="two samples at least"):
        score([[0.5]], [0.5])
