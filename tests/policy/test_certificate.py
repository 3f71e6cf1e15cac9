"""The certified acceleration: its inequality, computed exactly over all calibration sets."""

from itertools import combinations_with_replacement
from math import factorial, inf, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import taskuq as tq
from taskuq.policy._stopping import _certified_acceleration, mean_cost
from taskuq.table._examples import SyntheticTable, synthetic_outputs

RATES = np.array([8.0, 2.0])
# Thresholds below which each of five kinds of case stops, in two rounds.
KINDS = np.array([[3.0, 1.0, 2.0, 0.0, 5.0], [3.0, 4.0, 1.0, 0.5, 0.0]])
OPEN = np.full(KINDS.shape, -inf)


def weights_and_draws(n, kinds=5):
    """All sets of n independent draws, with their probabilities."""
    for draws in combinations_with_replacement(range(kinds), n):
        orders = factorial(n) // prod(factorial(draws.count(d)) for d in set(draws))
        yield orders / kinds**n, list(draws)


def failure(n, delta, *, slack=1.0):
    """The probability that some threshold's true mean acceleration is below its certificate."""
    total = 0.0
    thresholds = np.unique(KINDS)
    truth = {t: 1 / mean_cost(OPEN, KINDS, RATES, t) for t in thresholds}
    for weight, draws in weights_and_draws(n):
        total += weight * any(
            truth[t] * slack
            < _certified_acceleration(
                mean_cost(OPEN[:, draws], KINDS[:, draws], RATES, t), RATES, n, delta, groups=False
            )
            - 1e-12
            for t in thresholds
        )
    return total


@pytest.mark.parametrize("delta", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("n", [2, 5, 9])
def test_the_certificate_fails_for_at_most_delta_of_calibration_sets(n, delta):
    assert failure(n, delta) <= delta


def test_the_check_of_certificates_can_fail():
    assert failure(5, 0.5, slack=0.4) > 0.5


@pytest.mark.parametrize("delta", [0.1, 0.3])
def test_groups_are_certified_too(delta):
    # A group is a pair of kinds; six groups are drawn from four such pairs.
    pairs, n = [(0, 1), (2, 3), (4, 4), (1, 3)], 6
    failed = 0.0
    thresholds = np.unique(KINDS)
    every = [k for pair in pairs for k in pair]
    for weight, draws in weights_and_draws(n, kinds=4):
        cases = [k for d in draws for k in pairs[d]]
        failed += weight * any(
            1 / mean_cost(OPEN[:, every], KINDS[:, every], RATES, t)
            < _certified_acceleration(
                mean_cost(OPEN[:, cases], KINDS[:, cases], RATES, t), RATES, n, delta, groups=True
            )
            - 1e-12
            for t in thresholds
        )
    assert failed <= delta


@given(
    largest=st.lists(st.lists(st.integers(-2, 4), min_size=3, max_size=3), min_size=1, max_size=6),
    t=st.integers(-2, 4),
)
def test_the_mean_cost_is_the_sum_over_rounds_of_those_who_go_on(largest, t):
    allowed = np.array(largest, float).T
    rates = np.array([16.0, 4.0, 2.0])
    steps = np.diff(1 / np.append(rates, 1.0))
    going_on = np.maximum.accumulate(allowed, axis=0) <= t

    expected = 1 / 16 + (steps * going_on.mean(axis=1)).sum()
    assert mean_cost(np.full(allowed.shape, -inf), allowed, rates, float(t)) == pytest.approx(
        expected
    )


@pytest.mark.parametrize("groups", [False, True])
def test_a_certificate_grows_with_the_units_and_stays_below_the_estimate(groups):
    found = [_certified_acceleration(0.1, RATES, n, 0.1, groups=groups) for n in (10, 100, 10**6)]

    assert 1 <= found[0] < found[1] < found[2] < 10


@pytest.mark.parametrize("options", [{}, {"unit": "group"}, {"unit": "whole-group"},
                                     {"policy": "adaptive"}])  # fmt: skip
def test_a_planned_policy_carries_its_certificate(options):
    table = synthetic_outputs(SyntheticTable(volumes=40, samples=4), seed=2)
    policy = tq.plan(table, **{"alpha": 0.1, "max_width": 0.2, "unit": "case", **options})

    assert 1 <= policy.certificate["certified"] < policy.certificate["mean_acceleration"]


@pytest.mark.parametrize("options", [{"policy": "paper"}, {"policy": "adaptive", "score": "cqr"}])
def test_no_certificate_where_going_on_is_not_monotone(options):
    table = synthetic_outputs(SyntheticTable(volumes=40, samples=4), seed=2)
    policy = tq.plan(table, alpha=0.1, max_width=0.2, unit="case", **options)

    assert "certified" not in policy.certificate
