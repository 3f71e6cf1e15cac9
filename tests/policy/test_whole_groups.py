"""One decision for a group: kept by a scan of all its cases, exactly; broken by one at a time."""

from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from test_validity import ALPHAS, arrays_of, joined, make_policy

import taskuq as tq
from raising import refused
from taskuq.table._examples import SyntheticTable, synthetic_outputs

POPULATIONS = 90
PROMISES = [(name, cases) for name in ("spread", "lwr") for cases in ("random", "all", 0.6)]


@cache
def population(number):
    """A finite population of groups whose sizes are tied to their scores.

    A case is a centre and half a spread for each of three rounds, and a target. Groups from one
    kind are large and hard: beside cases with wide spreads and true centres lie some with narrow
    spreads that miss. The others are small and easy. A few whole numbers bring ties.
    """
    rng = np.random.default_rng(number)
    groups = []
    for _ in range(rng.integers(4, 9)):
        is_hard = rng.random() < 0.4
        size = rng.integers(3, 7) if is_hard else rng.integers(1, 4)
        groups.append([_case(rng, is_hard) for _ in range(size)])
    return groups


def _case(rng, is_hard):
    is_liar = rng.random() < (0.5 if is_hard else 0.1)
    spreads = rng.integers(0, 2, 3) if is_liar else np.sort(rng.integers(0, 4, 3))[::-1]
    centers = rng.integers(-1, 2, 3)
    return list(zip(centers.tolist(), spreads.tolist(), strict=True)), int(rng.integers(-4, 5))


def missed_together(policy, group):
    """Scan the cases of a group together, and return which reports miss."""
    outputs, targets = arrays_of(group)
    for k in range(len(outputs)):
        decision = policy.decide(k, outputs[: k + 1])
        assert (decision.stops == decision.stop).all()
        if decision.stop:
            return ~decision.interval.contains(targets)
    return np.zeros(len(group), dtype=bool)


def missed_one_by_one(policy, group):
    alone = replace(policy, min_group_size=1)
    return np.concatenate([missed_together(alone, [case]) for case in group])


def loss(missed, promise):
    share = Fraction(int(missed.sum()), len(missed))
    if promise == "random":
        return share
    return Fraction(share > (0 if promise == "all" else 1 - Fraction(str(promise))))


def keeps(number, name, promise, judge):
    groups, alpha = population(number), ALPHAS[number % len(ALPHAS)]
    lost = Fraction(0)
    for v, new in enumerate(groups):
        cases, index = joined(groups[:v] + groups[v + 1 :])
        policy = make_policy(name, cases, alpha, group=index, whole=True, cases=promise)
        lost += loss(judge(policy, new), promise)
    return lost <= Fraction(str(alpha)) * len(groups)


@pytest.mark.parametrize(("name", "promise"), PROMISES)
def test_a_group_scanned_together_keeps_the_promise(name, promise):
    assert all(keeps(n, name, promise, missed_together) for n in range(POPULATIONS))


FAULTS = {
    "the most certain case decides": lambda largest, *_: np.array([largest.max()]),
    "the first case decides": lambda largest, *_: largest[:1],
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize(("name", "promise"), PROMISES)
def test_a_group_that_stops_by_one_of_its_cases_is_caught(monkeypatch, name, promise, fault):
    monkeypatch.setattr("taskuq.policy._policy.group_allowance", fault)
    assert not all(keeps(n, name, promise, missed_together) for n in range(POPULATIONS))


@pytest.mark.parametrize(("name", "promise"), PROMISES)
def test_one_case_at_a_time_breaks_it(name, promise):
    assert not all(keeps(n, name, promise, missed_one_by_one) for n in range(POPULATIONS))


LIAR = ([(0, 0), (0, 0), (0, 0)], 4)
WIDE = ([(0, 3), (0, 3), (0, 3)], 0)
SURE = ([(0, 1), (0, 1), (0, 1)], 0)
# In nine of ten groups half the cases look certain and are wrong; their groups look doubtful.
HALF_LIARS = [[LIAR, WIDE]] * 9 + [[SURE, SURE]]


@pytest.fixture
def policy():
    cases, index = joined(HALF_LIARS)
    return make_policy("spread", cases, 0.1, group=index, whole=True)


@pytest.mark.parametrize("round_", range(3))
def test_one_case_without_a_case_axis_is_refused(policy, round_):
    outputs, _ = arrays_of([LIAR])
    for x in (outputs[: round_ + 1, 0], *([outputs[0, 0]] if round_ == 0 else [])):
        with refused("shape.axes"):
            policy.decide(round_, x)


def test_one_case_of_several_tasks_is_refused():
    table = synthetic_outputs(SyntheticTable(volumes=24, samples=4), seed=3)
    two = tq.TaskOutputs(
        np.stack([table.outputs, 1 - table.outputs], axis=-1),
        np.stack([table.targets, 1 - table.targets], axis=-1),
        table.accelerations,
        group=table.group,
    )
    policy = tq.plan(two, alpha=0.1, max_width=0.4, unit="whole-group")
    assert policy.decide(0, two.outputs[:1, :5]).stops.shape == (5,)
    with refused("shape.axes"):
        policy.decide(0, two.outputs[:1, 0])


def test_a_group_of_one_goes_on_where_calibration_had_none(policy):
    outputs, _ = arrays_of([LIAR])
    decision = policy.decide(0, outputs[:1])
    assert policy.min_group_size == 2
    assert not decision.stop
    assert not decision.stops.any()
    assert policy.decide(0, arrays_of([LIAR, LIAR])[0][:1]).stop


def test_a_group_of_one_is_decided_where_calibration_had_one():
    cases, index = joined([*HALF_LIARS[:-1], [SURE]])
    policy = make_policy("spread", cases, 0.1, group=index, whole=True)
    assert policy.min_group_size == 1
    assert policy.decide(0, arrays_of([SURE])[0][:1]).stop


def test_a_planned_policy_knows_its_smallest_group(tmp_path):
    table = synthetic_outputs(SyntheticTable(volumes=24, samples=4), seed=3)
    sizes = np.bincount(np.unique(table.group, return_inverse=True)[1])
    policy = tq.plan(table, alpha=0.1, max_width=0.2, unit="whole-group", policy="adaptive",
                     score="lwr")  # fmt: skip
    assert policy.min_group_size == sizes.min() > 1
    assert tq.load_policy(policy.save(tmp_path / "policy.json")) == policy
