"""Promises about a new group, by trying every group of small populations as the new one."""

from fractions import Fraction
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raising import refused

import taskuq as tq
from taskuq.conformal._units import _hierarchical_quantile, _worst_scores, quantile_of_mean_loss

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
