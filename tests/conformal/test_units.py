"""Units: the weight allowed above a quantile says the same as the quantile itself."""

from fractions import Fraction
from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import taskuq as tq
from raising import refused
from taskuq.conformal._units import (
    CaseUnit,
    RandomCaseUnit,
    _GroupFractionUnit,
    _hierarchical_quantile,
    _worst_scores,
    as_unit,
    make_unit,
    quantile_of_mean_loss,
)

RNG = np.random.default_rng(3)
SCORES = RNG.integers(0, 30, 60).astype(float)
GROUP = RNG.permutation(np.repeat(np.arange(20), 3))
UNITS = (CaseUnit(), RandomCaseUnit(), _GroupFractionUnit("all"), _GroupFractionUnit(0.5))


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.covered)
@pytest.mark.parametrize("delta", [None, 0.3])
@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.02])
def test_the_quantile_is_the_least_entry_with_no_more_above_than_allowed(unit, alpha, delta):
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
def test_as_many_units_as_needed_and_no_fewer_allow_a_finite_quantile(unit, delta):
    needed = unit.needed(0.1, delta)

    assert unit.allowed(needed, 0.1, delta) >= 0 > unit.allowed(needed - 1, 0.1, delta)


@pytest.mark.parametrize("unit", UNITS[1:], ids=lambda u: u.covered)
def test_losses_at_a_threshold_are_the_weight_of_entries_above_it(unit):
    scores, _, weight = unit.entries(SCORES, GROUP)
    for q in range(30):
        missed = np.array([(SCORES[v == GROUP] > q).sum() for v in range(20)])
        assert unit.loss(missed, np.full(20, 3)).sum() == pytest.approx(
            weight[scores > q].sum(), abs=1e-9
        )


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.covered)
def test_weights_add_up_to_the_number_of_units(unit):
    index = unit.index(60, GROUP)

    assert unit.weights(index).sum() == pytest.approx(index.max() + 1, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        ("case", "random"),
        *product(["group", "whole-group"], ["random", "all", 0.9, Fraction(1, 2)]),
    ],
)
def test_a_unit_is_found_again_by_its_name_and_record(name, cases):
    unit = as_unit(name, cases, has_groups=True, whole=True)

    assert unit.name == name
    assert make_unit(unit.name, unit.record["cases"], whole=True) == unit
    assert unit.stops_together == (name == "whole-group")
    assert unit.counted == ("case" if name == "case" else "group")


@pytest.mark.parametrize("cases", ["all", 0.9])
@pytest.mark.parametrize("unit", ["case", None])
def test_one_new_case_has_no_share_of_cases(unit, cases):
    with refused("groups.missing"):
        as_unit(unit, cases, has_groups=False)


def test_groups_are_the_default_where_they_are_given():
    assert as_unit(None, has_groups=True) == RandomCaseUnit()
    assert as_unit(None, has_groups=False) == CaseUnit()


@pytest.mark.parametrize("cases", [0, 1.5, "most", -0.1, "nan"])
def test_shares_outside_zero_and_one_are_refused(cases):
    with refused("value.invalid"):
        _GroupFractionUnit(cases)


ALPHAS = (0.1, 0.2, 0.25, 0.34, 0.5, 0.8)
# A population is some groups of some whole scores each; small numbers bring many ties.
POPULATIONS = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=3, max_size=8)


def interval_of_a_new_group(population, new, alpha, **promise):
    """Calibrate on all groups but one; with output 0 the AR score is the target itself."""
    rest = [g for g in range(len(population)) if g != new]
    targets = np.concatenate([population[g] for g in rest]).astype(float)
    group = np.repeat(rest, [len(population[g]) for g in rest])
    bound = tq.calibrate(
        np.zeros((len(targets), 1)), targets, alpha=alpha, score="ar", group=group, **promise
    )
    return bound(np.zeros((len(population[new]), 1)))


def missed_share(population, new, alpha, **promise):
    covered = interval_of_a_new_group(population, new, alpha, **promise).contains(population[new])
    return Fraction(int((~covered).sum()), len(covered))


@given(population=POPULATIONS, alpha=st.sampled_from(ALPHAS))
def test_a_random_case_of_a_random_new_group_is_missed_at_most_alpha(population, alpha):
    if sum(map(len, population)) - max(map(len, population)) < 2:
        return
    losses = [missed_share(population, new, alpha) for new in range(len(population))]

    assert sum(losses) / len(population) <= Fraction(str(alpha))


@pytest.mark.parametrize("share", ["all", 1.0, 0.9, 0.5, 0.34])
@given(population=POPULATIONS, alpha=st.sampled_from(ALPHAS))
def test_enough_cases_of_a_random_new_group_are_covered_together(share, population, alpha):
    if sum(map(len, population)) - max(map(len, population)) < 2:
        return
    wanted = Fraction(1) if share == "all" else Fraction(str(share))
    failures = sum(
        missed_share(population, new, alpha, cases=share) > 1 - wanted
        for new in range(len(population))
    )

    assert Fraction(failures, len(population)) <= Fraction(str(alpha))


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
def test_sums_of_losses_are_exact_whatever_the_sizes_of_groups(alpha, largest):
    sizes = np.tile(np.arange(1, largest + 1), 2)
    group = np.repeat(np.arange(len(sizes)), sizes)
    scores = np.random.default_rng(largest).random(len(group))
    allowed = Fraction(str(alpha)) * (len(sizes) + 1) - 1

    expected = brute_force(scores, group, allowed) if allowed >= 0 else inf

    assert _hierarchical_quantile(scores, group, alpha) == expected


@given(
    scores=st.lists(st.integers(0, 9), min_size=4, max_size=20),
    allowed=st.fractions(0, 4, max_denominator=12),
)
def test_the_quantile_of_mean_loss_is_the_smallest_score_that_will_do(scores, allowed):
    values = np.array(scores, dtype=float)
    group = np.arange(len(values)) % 3
    _, index, sizes = np.unique(group, return_inverse=True, return_counts=True)

    assert quantile_of_mean_loss(values, index, sizes, allowed) == brute_force(
        values, group, allowed
    )


@given(
    scores=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    share=st.sampled_from([0.1, 0.5, 0.9, 1]),
)
def test_the_worst_score_is_the_smallest_that_covers_the_share(scores, share):
    values = np.array(scores, dtype=float)
    good = [
        q
        for q in sorted(values)
        if Fraction(int((values <= q).sum()), len(values)) >= Fraction(str(share))
    ]

    assert _worst_scores(values, np.zeros(len(values), int), share).tolist() == [good[0]]


@pytest.mark.parametrize(("groups", "finite"), [(18, False), (19, True)])
def test_too_few_groups_give_the_range_and_say_how_many_are_needed(groups, finite):
    group = np.repeat(np.arange(groups), 3)
    targets = np.linspace(0, 1, len(group))
    bound = tq.calibrate(
        np.zeros((len(group), 1)), targets, alpha=0.05, score="ar", group=group, task_range=(0, 1)
    )

    assert bound.is_finite == finite
    assert ("needs at least 19 calibration groups, got 18" in str(bound)) != finite
    if not finite:
        interval = bound(np.zeros((1, 1)))
        assert (interval.lower, interval.upper) == (0, 1)


def test_single_case_groups_give_the_rank_of_cases():
    scores = np.random.default_rng(3).permutation(40).astype(float)
    for alpha in (0.05, 0.1, 0.3):
        assert _hierarchical_quantile(scores, np.arange(40), alpha) == (
            tq.calibrate(np.zeros((40, 1)), scores, alpha=alpha, score="ar").quantile
        )


@pytest.mark.parametrize("nobody", [None, float("nan"), ""])
def test_groups_without_a_name_are_not_one_group(nobody):
    rng = np.random.default_rng(0)
    truth = rng.random(40)
    group = np.repeat([f"p{i}" for i in range(20)], 2).astype(object)
    group[:6] = nobody

    with refused("groups.missing"):
        tq.calibrate(truth[:, None] + rng.random((40, 3)), truth, alpha=0.1, group=group)
