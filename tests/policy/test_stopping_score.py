"""The stopping score against brute force: at which thresholds does a policy stop with a miss?"""

from itertools import pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskuq.policy._stopping import stopping_score

# Few whole numbers and infinities bring many ties.
LEVEL = st.sampled_from([-inf, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, inf])
OPEN = st.just(-inf)


def rounds_of(lower_limit):
    """One case: (lowest, largest, score) of one to four rounds."""
    return st.lists(st.tuples(lower_limit, LEVEL, LEVEL), min_size=1, max_size=4)


def candidates(rounds):
    """Every breakpoint, a point between each two, and points beyond all of them."""
    breaks = sorted({v for values in rounds for v in values if np.isfinite(v)} | {0.0})
    between = [(a + b) / 2 for a, b in pairwise(breaks)]
    return sorted([-inf, breaks[0] - 1, *breaks, *between, breaks[-1] + 1, inf])


def misses_at(rounds, threshold):
    """Run the policy at a threshold, round by round."""
    for lowest, largest, score in rounds:
        if lowest <= threshold < largest:
            return score > threshold
    return False


def is_supremum_of_misses(rounds, Lambda):
    """Whether no threshold from Lambda on misses, and the ones just below it do."""
    below = [t for t in candidates(rounds) if t < Lambda]
    above = [t for t in candidates(rounds) if t >= Lambda]
    return not any(misses_at(rounds, t) for t in above) and (
        Lambda == -inf or misses_at(rounds, below[-1])
    )


def score_of(rounds):
    lowest, largest, score = (np.array(values)[:, None] for values in zip(*rounds, strict=True))
    return float(stopping_score(lowest, largest, score)[0])


def spc_score(rounds, *, forget=False):
    """The formula with the running maximum; without it where a fault is planted."""
    found, running = -inf, -inf
    for _, largest, score in rounds:
        if forget or (largest > running and score > running):
            found = max(found, min(largest, score))
        running = max(running, largest)
    return found


@pytest.mark.parametrize("lower_limit", [OPEN, LEVEL], ids=["open", "with lower limits"])
@given(data=st.data())
def test_the_score_is_the_supremum_of_the_thresholds_that_miss(lower_limit, data):
    rounds = data.draw(rounds_of(lower_limit))

    assert is_supremum_of_misses(rounds, score_of(rounds))


@given(rounds=rounds_of(OPEN))
def test_without_lower_limits_it_is_the_formula_of_the_stopped_policy(rounds):
    assert score_of(rounds) == spc_score(rounds)


@given(
    rounds=st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=4),
)
def test_for_windows_it_is_minus_the_smallest_risk_that_reports_a_miss(rounds):
    missed = [
        h
        for k, (h, inside) in enumerate(rounds)
        if not inside and all(h < earlier for earlier, _ in rounds[:k])
    ]
    windows = [(-inf, -float(h), -inf if inside else inf) for h, inside in rounds]

    assert score_of(windows) == -min(missed, default=inf)


@given(rounds=rounds_of(LEVEL))
def test_a_stopped_policy_never_needs_more_than_the_simultaneous_one(rounds):
    assert score_of(rounds) <= max(score for _, _, score in rounds)


@given(cases=st.lists(st.lists(st.tuples(LEVEL, LEVEL, LEVEL), min_size=3, max_size=3), min_size=2))
def test_cases_are_scored_one_by_one(cases):
    lowest, largest, score = np.array(cases).transpose(2, 1, 0)

    together = stopping_score(lowest, largest, score)

    assert together.tolist() == [score_of(rounds) for rounds in cases]


def test_a_score_that_forgets_earlier_rounds_is_caught():
    # Thresholds below 2 stop in the first round, which covers; the second never speaks.
    rounds = [(-inf, 2.0, -inf), (-inf, 1.0, 5.0)]

    assert is_supremum_of_misses(rounds, score_of(rounds))
    assert not is_supremum_of_misses(rounds, spc_score(rounds, forget=True))


def test_a_policy_that_early_stops_equality_is_caught(monkeypatch):
    def stops_at_equality(rounds, threshold):
        for lowest, largest, score in rounds:
            if lowest <= threshold <= largest:
                return score > threshold
        return False

    rounds = [(-inf, 1.0, 3.0)]
    assert is_supremum_of_misses(rounds, score_of(rounds))
    monkeypatch.setitem(globals(), "misses_at", stops_at_equality)
    assert not is_supremum_of_misses(rounds, score_of(rounds))
