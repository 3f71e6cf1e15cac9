"""The law of validity can fail: faults planted in the policies turn it red."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest

import taskuq as tq
from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal._quantiles import order_statistic
from taskuq.policy import _stopping as stopping
from taskuq.policy._rules import RoundStatistics

ALPHA = 0.25
# Spreads per round, and whether the target lies in the window (of half width 1) around 0.
# The statistic is adversarial: in the first round it is smallest where the window misses.
TIED = [([1, 2], 3.0)] * 8
LIARS = [([k, 9], 3.0) for k in range(1, 9)]
LATE = [([5, k], 3.0) for k in range(1, 9)]
# A rule that is fixed beforehand has no slack that could hide a wrong rank.
FIXED = {"policy": "adaptive", "score": "lwr"}


def table_of(cases):
    spread = np.array([-1.0, 1.0])
    outputs = np.array([[d * spread for d in spreads] for spreads, _ in cases])
    return tq.TaskOutputs(np.swapaxes(outputs, 0, 1), [z for _, z in cases], (4, 2))


def misses(policy, case):
    table = table_of([case])
    for k in range(table.rounds):
        decision = policy.decide(k, table.outputs[: k + 1, 0])
        if decision.stop:
            return not decision.interval.contains(case[1])
    return False


def is_valid(cases, **options):
    """Whether at most alpha of the cases are missed, each planned for by all the others."""
    options = {"alpha": ALPHA, "max_width": 2.0, "round_tolerance": 0.0, **options}
    missed = sum(
        misses(tq.plan(table_of(cases[:i] + cases[i + 1 :]), **options), case)
        for i, case in enumerate(cases)
    )
    return missed <= floor(Fraction(str(ALPHA)) * len(cases))


POPULATIONS = {"tied": TIED, "liars": LIARS, "late": LATE}


@pytest.mark.parametrize("cases", POPULATIONS.values(), ids=POPULATIONS)
@pytest.mark.parametrize("options", [{}, FIXED])
def test_the_policies_are_valid_on_these_populations(cases, options):
    assert is_valid(cases, **options)


def test_stopping_at_equality_is_caught(monkeypatch):
    monkeypatch.setattr(
        RoundStatistics, "stops", lambda self, t: (self.lowest <= t) & (t <= self.largest)
    )

    assert not is_valid(TIED)


def test_a_running_extreme_that_includes_the_present_round_is_caught(monkeypatch):
    def faulty(lowest, largest, score, surely=None):
        running = np.maximum.accumulate(largest)
        counts = (largest > running) & (score > running)
        return np.where(counts, np.minimum(largest, score), -np.inf).max(axis=0)

    monkeypatch.setattr(stopping, "stopping_score", faulty)

    assert not is_valid(LIARS)


def test_a_score_that_only_looks_at_the_first_round_is_caught(monkeypatch):
    def faulty(lowest, largest, score, surely=None):
        return np.minimum(largest[0], score[0])

    monkeypatch.setattr(stopping, "stopping_score", faulty)

    assert not is_valid(LATE)


def test_a_quantile_from_the_wrong_side_is_caught(monkeypatch):
    def faulty(self, scores, group):
        return order_statistic(scores, floor(Fraction(str(self.alpha)) * (len(scores) + 1)))

    monkeypatch.setattr(Guarantee, "quantile", faulty)

    assert not is_valid(LIARS, **FIXED)


def test_a_rank_without_the_plus_one_is_caught(monkeypatch):
    def faulty(self, scores, group):
        return order_statistic(scores, floor((1 - Fraction(str(self.alpha))) * len(scores)))

    monkeypatch.setattr(Guarantee, "quantile", faulty)

    assert not is_valid(LIARS, **FIXED)
