"""Ranks, quantiles, bets and sample sizes, by exact counting."""

import math
from fractions import Fraction
from itertools import product
from math import ceil, comb, inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, betabinom

import taskuq as tq
from hoeffding_bentkus import hoeffding_bentkus
from raising import refused
from taskuq.conformal import _quantiles as betting
from taskuq.conformal._quantiles import (
    BettingEProcess,
    CoverageLaw,
    _pac_rank,
    conformal_quantile,
    coverage_rank,
    exact_alpha,
    min_calibration_size,
    smallest_certified,
)
from taskuq.conformal._units import _hierarchical_quantile, quantile_of_mean_loss

ALPHAS = (0.01, 0.05, 0.059, 0.1, 0.18, 0.25, 0.44, 0.45, 0.5, 0.7, 0.9, 0.99)
# Dyadic scores are exact in floats, so that the order is never decided by rounding.
DYADIC = st.integers(-64, 64).map(lambda i: i / 8)


@given(scores=st.lists(DYADIC, min_size=1, max_size=60), alpha=st.sampled_from(ALPHAS))
def test_quantile_has_its_definition(scores, alpha):
    # From the definition alone: mass 1/(n+1) on each score and on infinity.
    level = (1 - Fraction(str(alpha))) * (len(scores) + 1)
    reached = [q for q in sorted(scores) if sum(s <= q for s in scores) >= level]
    assert conformal_quantile(scores, alpha) == (reached[0] if reached else inf)


# (n, alpha, rank): floats get each of these wrong by one, in one direction or the other.
TREACHEROUS = [(999, 0.059, 941), (149, 0.18, 123), (24, 0.44, 14), (9, 0.7, 3), (99, 0.45, 55)]


@pytest.mark.parametrize(("n", "alpha", "rank"), TREACHEROUS)
def test_rank_is_exact_where_floats_are_not(n, alpha, rank):
    by_floats = {
        ceil((n + 1) * (1 - alpha)),
        ceil((1 - alpha) * (n + 1)),
        ceil(n + 1 - alpha * (n + 1)),
    }
    assert coverage_rank(n, alpha) == rank
    assert by_floats != {rank}


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.3, 0.5])
def test_min_calibration_size_is_the_smallest(alpha):
    n = min_calibration_size(alpha)
    assert coverage_rank(n, alpha) <= n
    assert n == 1 or coverage_rank(n - 1, alpha) > n - 1


@pytest.mark.parametrize("n", [10, 44, 45, 120])
@pytest.mark.parametrize(("alpha", "delta"), [(0.05, 0.1), (0.1, 0.1), (0.2, 0.01), (0.5, 0.5)])
def test_pac_rank_has_its_definition(n, alpha, delta):
    # Exact: P(Beta(k, n+1-k) < 1-alpha) = P(Bin(n, 1-alpha) >= k), in integers.
    good = 1 - exact_alpha(alpha)
    tail = [
        sum(comb(n, j) * good**j * (1 - good) ** (n - j) for j in range(k, n + 1))
        for k in range(1, n + 1)
    ]
    allowed = [k for k, chance in enumerate(tail, start=1) if chance <= exact_alpha(delta)]
    assert _pac_rank(n, alpha, delta) == (allowed[0] if allowed else n + 1)


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, float("nan"), float("inf"), "0.1", None, True])
def test_invalid_alpha_is_refused(alpha):
    with refused("alpha.invalid"):
        coverage_rank(10, alpha)


GROUPS, ALPHA, DELTA = 8, 0.3, 0.2
LOSSES = (Fraction(0), Fraction(1, 2), Fraction(1))
# Every sequence of losses that the groups can have, (group, sequence).
SEQUENCES = np.array(list(product((0.0, 0.5, 1.0), repeat=GROUPS))).T


def laws(steps=20):
    """Laws on the three losses whose mean is alpha or more."""
    for half, whole in product(range(steps + 1), repeat=2):
        law = Fraction(steps - half - whole, steps), Fraction(half, steps), Fraction(whole, steps)
        if law[0] >= 0 and sum(p * x for p, x in zip(law, LOSSES, strict=True)) >= Fraction("0.3"):
            yield law


def largest_chance(bets):
    """The largest probability of certifying a mean loss that is alpha or more, exactly."""
    found = SEQUENCES[:, bets.certify(SEQUENCES)]
    counts, times = np.unique(
        np.stack([(found == x).sum(axis=0) for x in (0.0, 0.5, 1.0)]), axis=1, return_counts=True
    )
    return max(
        sum(
            int(n) * math.prod(p ** int(c) for p, c in zip(law, column, strict=True))
            for n, column in zip(times, counts.T, strict=True)
        )
        for law in laws()
    )


def test_mean_loss_of_alpha_is_certified_with_probability_delta():
    assert Fraction("0.1") < largest_chance(BettingEProcess(ALPHA, DELTA)) <= Fraction("0.2")


def test_bets_in_the_order_of_losses_are_found(monkeypatch):
    monkeypatch.setattr(betting, "betting_order", np.arange)
    # Each column is still counted with the chance of the sequence that it came from.
    monkeypatch.setitem(globals(), "SEQUENCES", np.sort(SEQUENCES, axis=0))
    assert largest_chance(BettingEProcess(ALPHA, DELTA)) > Fraction("0.2")


def test_bets_for_a_larger_delta_are_found():
    assert largest_chance(BettingEProcess(ALPHA, 0.35)) > Fraction("0.2")


@pytest.mark.parametrize("alike", [0.1, 0.9])
@pytest.mark.parametrize(("groups", "alpha"), [(22, 0.1), (22, 0.2), (70, 0.05), (200, 0.1)])
def test_quantile_is_at_most_that_of_hoeffding_and_bentkus(groups, alpha, alike):
    rng = np.random.default_rng(groups)
    allowed = hoeffding_bentkus(groups, alpha, 0.1)
    for _ in range(5):
        index, sizes = np.repeat(np.arange(groups), 20), np.full(groups, 20)
        scores = (
            rng.standard_gamma(1 / alike, groups)[index] * alike * rng.exponential(size=20 * groups)
        )
        before = quantile_of_mean_loss(scores, sizes[index], allowed)
        assert _hierarchical_quantile(scores, index, alpha, 0.1) <= before < np.inf


@pytest.mark.parametrize(("alpha", "delta"), [(0.1, 0.1), (0.05, 0.1), (0.5, 0.25), (0.3, 0.01)])
def test_groups_without_a_loss_certify_as_soon_as_possible(alpha, delta):
    bets = BettingEProcess(alpha, delta)
    for groups in range(1, 120):
        certified = bool(bets.certify(np.zeros((groups, 1)))[0])
        assert certified == bets.can_certify(groups)
        assert certified == (Fraction(str(1 - alpha)) ** groups <= Fraction(str(delta)))


def test_blocks_of_thresholds_give_one_result(monkeypatch):
    rng = np.random.default_rng(5)
    scores, unit = rng.integers(0, 40, 600).astype(float), rng.permutation(600) % 60
    whole = smallest_certified(scores, unit, np.full(600, 0.1), BettingEProcess(0.2, 0.1))
    monkeypatch.setattr("taskuq.conformal._quantiles.NUMBERS", 60)
    assert smallest_certified(scores, unit, np.full(600, 0.1), BettingEProcess(0.2, 0.1)) == whole
    assert 20 < whole < 40


def test_every_threshold_above_the_quantile_is_certified():
    rng = np.random.default_rng(6)
    scores, group = rng.exponential(size=400), rng.permutation(400) % 50
    q = _hierarchical_quantile(scores, group, 0.2, 0.1)
    above = [s for s in np.sort(scores) if s >= q]
    losses = np.array([[np.mean(scores[group == v] > s) for s in above] for v in range(50)])
    below = scores[scores < q].max()
    assert BettingEProcess(0.2, 0.1).certify(losses).all()
    assert not BettingEProcess(0.2, 0.1).certify(
        np.array([[np.mean(scores[group == v] > below)] for v in range(50)])
    )


# (alpha, epsilon, delta, two-sided size, one-sided size): worked out apart from this code.
TABLE = [
    (0.01, 0.01, 0.05, 313, 313), (0.05, 0.01, 0.1, 1270, 801), (0.05, 0.02, 0.05, 442, 360),
    (0.05, 0.03, 0.01, 362, 361), (0.1, 0.02, 0.1, 602, 380), (0.1, 0.03, 0.05, 374, 290),
]  # fmt: skip
# Its sixteen decimals times n leave 64 bits.
MANY_DIGITS = (1 / 3, 0.02, 0.05)


@pytest.mark.parametrize(("alpha", "epsilon", "delta", "two_sided", "one_sided"), TABLE)
def test_sizes_agree_with_the_planning_table(alpha, epsilon, delta, two_sided, one_sided):
    assert tq.calibration_size(alpha, epsilon, delta) == two_sided
    assert tq.calibration_size(alpha, epsilon, delta, two_sided=False) == one_sided


def _chance_of_deviation(n, alpha, epsilon, two_sided):
    k = coverage_rank(n, alpha)
    if k > n:
        return inf
    law = beta(k, n + 1 - k)
    return law.cdf(1 - alpha - epsilon) + (law.sf(1 - alpha + epsilon) if two_sided else 0)


@pytest.mark.parametrize("two_sided", [True, False])
@pytest.mark.parametrize(("alpha", "epsilon", "delta"), [*(row[:3] for row in TABLE), MANY_DIGITS])
def test_size_has_its_definition(alpha, epsilon, delta, two_sided):
    n = tq.calibration_size(alpha, epsilon, delta, two_sided=two_sided)
    later = [_chance_of_deviation(m, alpha, epsilon, two_sided) for m in range(n, n + 400)]
    assert max(later) <= delta
    assert _chance_of_deviation(n - 1, alpha, epsilon, two_sided) > delta


def test_groups_multiply_the_size_by_the_design_effect():
    alone = tq.calibration_size(0.1, 0.02, 0.1)
    assert tq.calibration_size(0.1, 0.02, 0.1, group_size=1, icc=0.5) == alone
    assert tq.calibration_size(0.1, 0.02, 0.1, group_size=11, icc=0.1) == 2 * alone


@pytest.mark.parametrize(
    ("epsilon", "options"),
    [(0, {}), (1, {}), (float("nan"), {}), (1e-7, {}), (0.02, {"icc": 2}),
     (0.02, {"group_size": inf})],
)  # fmt: skip
def test_invalid_sizes_are_refused(epsilon, options):
    with refused("value.invalid"):
        tq.calibration_size(0.05, epsilon, 0.05, **options)


@pytest.mark.parametrize(("n", "rank", "m"), [(9, 9, 4), (19, 10, 7), (1531, 1456, 657)])
def test_law_of_coverage_is_beta_binomial(n, rank, m):
    law, known = CoverageLaw(n, rank, m), betabinom(m, rank, n + 1 - rank)
    np.testing.assert_allclose(law.pmf, known.pmf(np.arange(m + 1)), rtol=1e-8, atol=1e-15)
    assert law.mean == pytest.approx(known.mean() / m, rel=1e-12)
    assert law.sd == pytest.approx(known.std() / m, rel=1e-9)
