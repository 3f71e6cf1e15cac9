"""Units: quantiles, allowed weights and exact sums of losses."""

from collections import Counter
from fractions import Fraction
from itertools import combinations_with_replacement, product
from math import factorial, inf, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import taskuq as tq
from raising import refused
from taskuq.conformal import _quantiles
from taskuq.conformal._units import (
    CaseUnit,
    RandomCaseUnit,
    _GroupFractionUnit,
    _hierarchical_quantile,
    _worst_scores,
    as_unit,
    case_contents,
    choose_units,
    make_unit,
)

RNG = np.random.default_rng(3)
SCORES = RNG.integers(0, 30, 60).astype(float)
GROUP = RNG.permutation(np.repeat(np.arange(20), 3))
UNITS = (CaseUnit(), RandomCaseUnit(), _GroupFractionUnit("all"), _GroupFractionUnit(0.5))


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.covered)
@pytest.mark.parametrize("delta", [None, 0.3])
@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.02])
def test_quantile_is_the_least_allowed_entry(unit, alpha, delta):
    scores, units, weight = unit.entries(SCORES, unit.index(60, GROUP))
    allowed = unit.allowed(int(units.max()) + 1, alpha, delta)
    above = [weight[scores > q].sum() for q in np.sort(scores)]
    good = np.sort(scores)[np.array(above) <= allowed + 1e-9]
    if unit.bets(alpha, delta) is not None and allowed >= 0:
        # Here the allowance is a limit, and bets decide.
        assert unit.quantile(SCORES, GROUP, alpha, delta) >= good[0]
        return
    assert unit.quantile(SCORES, GROUP, alpha, delta) == (good[0] if allowed >= 0 else np.inf)


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.covered)
@pytest.mark.parametrize("delta", [None, 0.1])
def test_needed_units_are_the_fewest_for_a_finite_quantile(unit, delta):
    needed = unit.needed(0.1, delta)
    assert unit.allowed(needed, 0.1, delta) >= 0 > unit.allowed(needed - 1, 0.1, delta)


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.covered)
def test_weights_sum_to_the_number_of_units(unit):
    index = unit.index(60, GROUP)
    assert unit.weights(index).sum() == pytest.approx(index.max() + 1, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        ("case", "random"),
        *product(["group", "whole-group"], ["random", "all", 0.9, Fraction(1, 2)]),
    ],
)
def test_unit_is_restored_from_its_record(name, cases):
    unit = as_unit(name, cases, has_groups=True, whole=True)
    assert unit.name == name
    assert make_unit(unit.name, unit.record["cases"], whole=True) == unit
    assert unit.stops_together == (name == "whole-group")
    assert unit.counted == ("case" if name == "case" else "group")


@pytest.mark.parametrize("cases", ["all", 0.9])
@pytest.mark.parametrize("unit", ["case", None])
def test_fraction_of_cases_needs_groups(unit, cases):
    with refused("groups.missing"):
        as_unit(unit, cases, has_groups=False)


@pytest.mark.parametrize("cases", [0, 1.5, "most", -0.1, "nan"])
def test_fractions_outside_zero_and_one_are_refused(cases):
    with refused("value.invalid"):
        _GroupFractionUnit(cases)


def brute_force(scores, group, allowed):
    """Lower q from the top, one score at a time, while the exact sum of losses is allowed."""
    sizes = {g: int((group == g).sum()) for g in np.unique(group)}
    best = inf
    for q in np.unique(scores)[::-1]:
        above = {g: int((scores[group == g] > q).sum()) for g in sizes}
        if sum((Fraction(above[g], n) for g, n in sizes.items()), Fraction(0)) > allowed:
            break
        best = float(q)
    return best


@pytest.mark.parametrize("alpha", [0.05, 0.123, 0.1234567, 0.3333333333333333])
@pytest.mark.parametrize("largest", [3, 28, 40, 60])
def test_sums_of_losses_are_exact(alpha, largest):
    sizes = np.tile(np.arange(1, largest + 1), 2)
    group = np.repeat(np.arange(len(sizes)), sizes)
    scores = np.round(np.random.default_rng(largest).random(len(group)), 2)
    allowed = Fraction(str(alpha)) * (len(sizes) + 1) - 1
    expected = brute_force(scores, group, allowed) if allowed >= 0 else inf
    assert _hierarchical_quantile(scores, group, alpha) == expected


@given(
    scores=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    share=st.sampled_from([0.1, 0.5, 0.9, 1]),
)
def test_worst_score_is_the_smallest_that_covers_the_fraction(scores, share):
    values = np.array(scores, dtype=float)
    good = [
        q
        for q in sorted(values)
        if Fraction(int((values <= q).sum()), len(values)) >= Fraction(str(share))
    ]
    assert _worst_scores(values, np.zeros(len(values), int), share).tolist() == [good[0]]


@pytest.mark.parametrize(("groups", "finite"), [(18, False), (19, True)])
def test_too_few_groups_give_the_range(groups, finite):
    group = np.repeat(np.arange(groups), 3)
    targets = np.linspace(0, 1, len(group))
    bound = tq.calibrate(
        np.zeros((len(group), 1)), targets, alpha=0.05, score="ar", group=group, task_range=(0, 1)
    )
    assert bound.is_finite == finite
    if not finite:
        interval = bound(np.zeros((1, 1)))
        assert (interval.lower, interval.upper) == (0, 1)


@pytest.mark.parametrize("missing", [None, float("nan"), ""])
def test_groups_without_a_name_are_refused(missing):
    rng = np.random.default_rng(0)
    truth = rng.random(40)
    group = np.repeat([f"p{i}" for i in range(20)], 2).astype(object)
    group[:6] = missing
    with refused("groups.missing"):
        tq.calibrate(truth[:, None] + rng.random((40, 3)), truth, alpha=0.1, group=group)


def held_out(x, z, group, seed=None, take=5):
    """Targets of the units that are held out."""
    index = as_unit("group", has_groups=True).index(len(z), group)
    return sorted(z[choose_units(index, take, seed, case_contents(x, z))].tolist())


def test_neither_rows_nor_names_nor_units_of_measurement_choose():
    rng = np.random.default_rng(0)
    x, z, group = rng.random((60, 2)), rng.random(60), np.repeat(np.arange(20), 3)
    before, order = held_out(x, z, group), rng.permutation(60)
    names = np.array([f"{'hard' if g % 7 else 'easy'} {g}" for g in rng.permutation(20)])
    assert held_out(x[order], z[order], group[order]) == before
    assert held_out(x, z, names[group]) == before
    scaled = held_out(1e9 * x - 5, 1e9 * z - 5, group)
    assert np.allclose((np.array(scaled) + 5) / 1e9, before)


def test_every_unit_is_held_out_as_often_as_another():
    rng = np.random.default_rng(1)
    x, z, group = rng.random((20, 1)), np.arange(20) // 4.0, np.arange(20)
    x[:8] = 0.5  # copies
    found = Counter(v for seed in range(2000) for v in held_out(x, z, group, seed))
    # 5 of 20 units, four units with each target: 2000 choices, each within 5 standard deviations.
    assert all(abs(found[v] - 2000) < 5 * np.sqrt(2000 * 4 * 0.25 * 0.75) for v in range(5))


def coverage_of_joint(kinds, n, alpha, orders):
    """Exact coverage after calibration on n units, drawn from kinds that are sorted by name."""
    total = Fraction(0)
    for sample in combinations_with_replacement(range(len(kinds)), n):
        ways = factorial(n) // prod(map(factorial, Counter(sample).values()))
        for order in orders:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(_quantiles, "random_order", lambda *_, o=order: np.array(o))
                bound = tq.calibrate_joint(
                    np.zeros((n, 1, 2)), kinds[list(sample)], alpha=alpha, score="ar",
                    method="minimax",
                )  # fmt: skip
            hits = bound(np.zeros((len(kinds), 1, 2))).contains(kinds).all(axis=1).sum()
            total += Fraction(ways * int(hits), len(orders) * len(kinds) ** (n + 1))
    return total


# Difficulty follows the name; one unit of four is held out.
KINDS = np.arange(5.0)[:, None] * [1.0, 2.0]
ORDERS = [(k, *(i for i in range(4) if i != k)) for k in range(4)]


def test_units_held_out_at_random_keep_the_guarantee():
    assert coverage_of_joint(KINDS, 4, 0.25, ORDERS) >= Fraction(3, 4)


def test_units_held_out_by_sorted_names_are_found():
    assert coverage_of_joint(KINDS, 4, 0.25, ORDERS[-1:]) < Fraction(3, 4)
