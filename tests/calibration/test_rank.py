"""The rank, the quantile and what they promise, by exact counting."""

from fractions import Fraction
from math import ceil, comb, inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raising import refused

import taskuq as tq
from taskuq.conformal._quantiles import (
    _pac_rank,
    conformal_quantile,
    coverage_rank,
    exact_alpha,
    min_calibration_size,
    order_statistic,
)

ALPHAS = (0.01, 0.05, 0.059, 0.1, 0.18, 0.25, 0.44, 0.45, 0.5, 0.7, 0.9, 0.99)
# Dyadic scores are exact in floats, so that the order is never decided by rounding.
DYADIC = st.integers(-64, 64).map(lambda i: i / 8)


@given(scores=st.lists(DYADIC, min_size=2, max_size=40, unique=True), alpha=st.sampled_from(ALPHAS))
def test_every_rotation_of_distinct_scores_is_covered_rank_times(scores, alpha):
    n = len(scores) - 1
    covered = sum(
        score <= conformal_quantile(np.delete(scores, i), alpha) for i, score in enumerate(scores)
    )

    assert covered == min(coverage_rank(n, alpha), n + 1)


@given(scores=st.lists(DYADIC, min_size=2, max_size=40), alpha=st.sampled_from(ALPHAS))
def test_ties_never_lower_the_number_of_covered_rotations(scores, alpha):
    covered = sum(
        score <= conformal_quantile(np.delete(scores, i), alpha) for i, score in enumerate(scores)
    )

    assert covered >= (1 - Fraction(str(alpha))) * len(scores)


@given(scores=st.lists(DYADIC, min_size=1, max_size=60), alpha=st.sampled_from(ALPHAS))
def test_the_quantile_is_the_smallest_value_that_enough_scores_do_not_exceed(scores, alpha):
    # From the definition alone: mass 1/(n+1) on each score and on infinity.
    level = (1 - Fraction(str(alpha))) * (len(scores) + 1)
    reached = [q for q in sorted(scores) if sum(s <= q for s in scores) >= level]

    assert conformal_quantile(scores, alpha) == (reached[0] if reached else inf)


# (n, alpha, rank): floats get each of these wrong by one, in one direction or the other.
TREACHEROUS = [(999, 0.059, 941), (149, 0.18, 123), (24, 0.44, 14), (9, 0.7, 3), (99, 0.45, 55)]


@pytest.mark.parametrize(("n", "alpha", "rank"), TREACHEROUS)
def test_the_rank_is_exact_where_floats_are_not(n, alpha, rank):
    by_floats = {
        ceil((n + 1) * (1 - alpha)),
        ceil((1 - alpha) * (n + 1)),
        ceil(n + 1 - alpha * (n + 1)),
    }

    assert coverage_rank(n, alpha) == rank
    assert by_floats != {rank}


def test_the_rank_is_right_on_a_grid_of_percentages():
    for percent in range(1, 100):
        for n in (*range(1, 60), 99, 149, 999, 1531):
            assert coverage_rank(n, percent / 100) == n + 1 - (percent * (n + 1)) // 100


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.3, 0.5])
def test_a_finite_bound_exists_from_cases_needed_on(alpha):
    n = min_calibration_size(alpha)

    assert coverage_rank(n, alpha) <= n
    assert n == 1 or coverage_rank(n - 1, alpha) > n - 1


@pytest.mark.parametrize("n", [10, 44, 45, 230, 300])
@pytest.mark.parametrize(("alpha", "delta"), [(0.05, 0.1), (0.1, 0.1), (0.2, 0.01), (0.5, 0.5)])
def test_the_pac_rank_is_the_smallest_whose_binomial_tail_is_allowed(n, alpha, delta):
    # Exact: P(Beta(k, n+1-k) < 1-alpha) = P(Bin(n, 1-alpha) >= k), in integers.
    good = 1 - exact_alpha(alpha)
    tail = [
        sum(comb(n, j) * good**j * (1 - good) ** (n - j) for j in range(k, n + 1))
        for k in range(1, n + 1)
    ]
    allowed = [k for k, chance in enumerate(tail, start=1) if chance <= exact_alpha(delta)]

    assert _pac_rank(n, alpha, delta) == (allowed[0] if allowed else n + 1)


def test_the_pac_promise_holds_by_enumeration_of_a_discrete_population():
    # Scores uniform on {0..5}: conditional coverage of q is (q+1)/6; enumerate all 6^5 sets.
    n, alpha, delta = 5, 0.4, 0.3
    rank = _pac_rank(n, alpha, delta)
    draws = np.indices((6,) * n).reshape(n, -1)
    coverage = (np.sort(draws, axis=0)[rank - 1] + 1) / 6

    assert rank <= n
    assert (coverage < 1 - alpha - 1e-9).mean() <= delta


def test_a_rank_beyond_the_scores_is_infinity_and_never_the_largest():
    assert order_statistic([1.0, 5.0], 3) == inf
    assert conformal_quantile(np.arange(18.0), 0.05) == inf
    assert conformal_quantile(np.arange(19.0), 0.05) == 18.0


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, float("nan"), float("inf"), "0.1", None, True])
def test_an_alpha_that_is_no_rate_is_refused(alpha):
    with refused("alpha.invalid"):
        coverage_rank(10, alpha)
