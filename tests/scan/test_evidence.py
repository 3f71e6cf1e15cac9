"""Evidence against exchangeability: no order of a population is bet on with profit."""

from fractions import Fraction
from itertools import combinations, permutations, product

import numpy as np
import pytest

from taskuq.scan._monitor import (
    BETS,
    _betting_payoffs,
    _MartingaleStream,
    _total_wealth,
    _update_wealth,
)

CALIBRATION, NEW = 3, 5
POPULATIONS = {
    "all different": (3, 1, 4, 8, 5, 9, 2),
    "some alike": (1, 1, 2, 2, 3, 4, 4),
    "one apart": (0, 0, 0, 0, 0, 0, 1),
    "all alike": (7,) * 7,
}


def largest(ranks, units):
    """The evidence after each unit for sequences of ranks (sequence, unit)."""
    capital, found = np.zeros((len(ranks), BETS)), []
    for k in range(ranks.shape[1]):
        capital = _update_wealth(capital, k, ranks[:, k], ranks[:, k], units[k])
        found.append(_total_wealth(capital, k + 1))
    return np.stack(found, axis=1)


def broken(tops):
    """By how much the largest evidence of equally likely orders breaks Ville's inequality."""
    tops = np.sort(tops)
    reached = len(tops) - np.searchsorted(tops, tops * (1 - 1e-12))
    return float((tops * reached / len(tops)).max())


@pytest.mark.parametrize("units", [1, 2, 3, 10, 63, 64, 65, 1000])
def test_every_bet_is_fair_over_the_ranks(units):
    ranks = np.arange(1, units + 1)

    assert np.allclose(_betting_payoffs(ranks, ranks, units).mean(axis=0), 1, rtol=1e-12)


def test_over_all_ranks_the_evidence_is_worth_1_at_any_time_and_seldom_large():
    sizes = [CALIBRATION + 1 + k for k in range(NEW)]
    every = np.array(list(product(*(range(1, m + 1) for m in sizes))))
    found = largest(every, sizes)

    assert np.allclose(found.mean(axis=0), 1, rtol=1e-12)
    assert broken(found.max(axis=1)) <= 1 + 1e-9
    assert found.max() > 20


@pytest.mark.parametrize("population", POPULATIONS.values(), ids=POPULATIONS)
def test_no_order_of_a_population_breaks_the_law(population):
    tops, last = [], Fraction(0)
    for chosen in combinations(range(7), CALIBRATION):
        calibration = tuple(sorted(population[k] for k in chosen))
        for order in permutations(set(range(7)) - set(chosen)):
            stream = _MartingaleStream(calibration)
            for k in order:
                stream.add(population[k], None)
            tops.append(stream.largest)
            last += Fraction(stream.evidence[-1])

    assert broken(np.array(tops)) <= 1 + 1e-9
    assert last / len(tops) <= 1 + Fraction(1, 10**9)


def test_ranks_among_the_calibration_units_alone_would_break_the_law():
    # The fault: each new unit is compared with the calibration units, as if it came alone.
    every = np.array(list(permutations(range(CALIBRATION + NEW))))
    every = every[(np.diff(every[:, :CALIBRATION]) > 0).all(axis=1)]
    old, new = every[:, :CALIBRATION], every[:, CALIBRATION:]
    alone = 1 + (old[:, None] < new[:, :, None]).sum(axis=2)

    # A fair bet is worth 1 on average, at any time.
    assert largest(alone, [CALIBRATION + 1] * NEW)[:, -1].mean() > 1.5


def test_a_tie_is_paid_for_its_worst_rank():
    low, high, units = 4, 9, 20
    inside = _betting_payoffs(np.arange(low, high + 1), np.arange(low, high + 1), units)

    assert (_betting_payoffs(low, high, units) <= inside.min(axis=0) + 1e-12).all()


def test_evidence_ends_before_floats_do():
    capital = np.zeros(BETS)
    for k in range(3000):
        capital = _update_wealth(capital, k, 1, 1, 10**6)

    assert np.isfinite(_total_wealth(capital, 3000))
