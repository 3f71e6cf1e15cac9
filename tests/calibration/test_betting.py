"""Bets certify a mean loss: valid by exact enumeration, and never longer than the bound before."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from hoeffding_bentkus import hoeffding_bentkus
from taskuq.conformal import _quantiles as betting
from taskuq.conformal._quantiles import BettingEProcess, _low_discrepancy_order, smallest_certified
from taskuq.conformal._units import _hierarchical_quantile, quantile_of_mean_loss

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


def test_a_mean_loss_of_alpha_is_certified_with_probability_delta_at_most():
    assert Fraction("0.1") < largest_chance(BettingEProcess(ALPHA, DELTA)) <= Fraction("0.2")


def test_bets_on_groups_in_the_order_of_their_losses_are_caught(monkeypatch):
    monkeypatch.setattr(betting, "_low_discrepancy_order", lambda groups: np.arange(groups))
    # Each column is still counted with the chance of the sequence that it came from.
    monkeypatch.setitem(globals(), "SEQUENCES", np.sort(SEQUENCES, axis=0))

    assert largest_chance(BettingEProcess(ALPHA, DELTA)) > Fraction("0.2")


def test_bets_for_a_larger_delta_are_caught():
    assert largest_chance(BettingEProcess(ALPHA, 0.35)) > Fraction("0.2")


# One group in three loses everything below 9: at alpha = 0.3 that is too much.
POPULATION = ((1.0, 2.0), (1.0, 1.0), (9.0, 9.0))


def unlucky(delta, quantile):
    """The share of calibration sets of seven groups whose true miss is above alpha, exactly."""
    alpha, bad = Fraction(3, 10), 0
    everyone = np.array(POPULATION).ravel()
    for drawn in product(POPULATION, repeat=7):
        q = quantile(np.array(drawn).ravel(), np.repeat(np.arange(7), 2), float(alpha), delta)
        bad += Fraction(int((everyone > q).sum()), 6) > alpha
    return Fraction(bad, 3**7)


def test_calibration_sets_are_unlucky_with_probability_delta_at_most():
    assert 0 < unlucky(0.2, _hierarchical_quantile) <= Fraction("0.2")


def test_a_quantile_without_delta_is_unlucky_more_often():
    def mean_only(scores, group, alpha, delta):
        return _hierarchical_quantile(scores, group, alpha)

    assert unlucky(0.2, mean_only) > Fraction("0.2")


@pytest.mark.parametrize("alike", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(
    ("groups", "alpha"),
    [(22, 0.1), (22, 0.2), (40, 0.1), (70, 0.05), (70, 0.1), (100, 0.05), (200, 0.05), (200, 0.1)],
)
def test_no_quantile_is_longer_than_by_hoeffding_and_bentkus(groups, alpha, alike):
    rng = np.random.default_rng(groups)
    allowed = hoeffding_bentkus(groups, alpha, 0.1)
    for _ in range(5):
        index, sizes = np.repeat(np.arange(groups), 20), np.full(groups, 20)
        scores = (
            rng.standard_gamma(1 / alike, groups)[index] * alike * rng.exponential(size=20 * groups)
        )
        before = quantile_of_mean_loss(scores, index, sizes, allowed)
        assert _hierarchical_quantile(scores, index, alpha, 0.1) <= before < np.inf


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2])
def test_groups_that_lose_all_or_nothing_are_certified_as_often_as_by_bentkus(alpha):
    rng = np.random.default_rng(0)
    for groups in (70, 100, 200):
        losses = (rng.random((groups, 4000)) < 0.4 * alpha).astype(float)
        before = losses.sum(axis=0) <= float(hoeffding_bentkus(groups, alpha, 0.1))
        assert BettingEProcess(alpha, 0.1).certify(losses).mean() >= before.mean()


@pytest.mark.parametrize(("alpha", "delta"), [(0.1, 0.1), (0.05, 0.1), (0.5, 0.25), (0.3, 0.01)])
def test_groups_without_a_loss_certify_as_soon_as_chance_alone_could_not(alpha, delta):
    bets = BettingEProcess(alpha, delta)
    for groups in range(1, 120):
        certified = bool(bets.certify(np.zeros((groups, 1)))[0])
        assert certified == bets.can_certify(groups)
        assert certified == (Fraction(str(1 - alpha)) ** groups <= Fraction(str(delta)))


def test_blocks_of_thresholds_are_walked_as_one(monkeypatch):
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


def test_the_order_of_bets_is_a_permutation():
    assert all(sorted(_low_discrepancy_order(n)) == list(range(n)) for n in range(1, 200))
