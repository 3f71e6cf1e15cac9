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
    options = {"alpha": ALPHA, "max_width": 2.0, "round_tolerance": 0.0, **options}
    missed = sum(
        misses(tq.plan(table_of(cases[:i] + cases[i + 1 :]), **options), case)
        for i, case in enumerate(cases)
    )
    return missed <= floor(Fraction(str(ALPHA)) * len(cases))


POPULATIONS = {"tied": TIED, "liars": LIARS, "late": LATE}


@pytest.mark.parametrize("cases", POPULATIONS.values(), ids=POPULATIONS)
@pytest.mark.parametrize("options", [{}, FIXED])
def test_policies_are_valid_on_these_populations(cases, options):
    assert is_valid(cases, **options)


def at_equality(self, t):
    return (self.lowest <= t) & (t <= self.largest)


def with_the_present_round(lowest, largest, score, surely=None):
    running = np.maximum.accumulate(largest)
    counts = (largest > running) & (score > running)
    return np.where(counts, np.minimum(largest, score), -np.inf).max(axis=0)


def of_the_first_round(lowest, largest, score, surely=None):
    return np.minimum(largest[0], score[0])


def from_the_wrong_side(self, scores, group):
    return order_statistic(scores, floor(Fraction(str(self.alpha)) * (len(scores) + 1)))


def without_the_plus_one(self, scores, group):
    return order_statistic(scores, floor((1 - Fraction(str(self.alpha))) * len(scores)))


FAULTS = [
    (RoundStatistics, "stops", at_equality, TIED, {}),
    (stopping, "stopping_score", with_the_present_round, LIARS, {}),
    (stopping, "stopping_score", of_the_first_round, LATE, {}),
    (Guarantee, "quantile", from_the_wrong_side, LIARS, FIXED),
    (Guarantee, "quantile", without_the_plus_one, LIARS, FIXED),
]


@pytest.mark.parametrize(("owner", "name", "fault", "cases", "options"), FAULTS)
def test_fault_is_found(monkeypatch, owner, name, fault, cases, options):
    monkeypatch.setattr(owner, name, fault)
    assert not is_valid(cases, **options)
