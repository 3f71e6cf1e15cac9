"""Tables at the edge: exact outputs, identical samples, hardly anything that ever stops."""

import numpy as np
import pytest

import taskuq as tq
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import PolicySpec
from taskuq.policy._simulate import simulate


def exact_table():
    truth = np.linspace(0.1, 0.9, 60)
    outputs = np.broadcast_to(truth[None, :, None], (2, 60, 4))
    return tq.TaskOutputs(outputs, truth, (4, 2), group=np.arange(60) // 3, task_range=(0, 1))


@pytest.mark.parametrize("score", ["ar", "lwr", "cqr", "mlwr"])
@pytest.mark.parametrize("kind", ["adaptive", "anytime", "paper"])
@pytest.mark.parametrize("unit", ["case", "group"])
def test_exact_outputs_stop_at_once(kind, score, unit):
    policy = tq.plan(exact_table(), alpha=0.2, max_width=0.1, policy=kind, score=score, unit=unit)

    decision = policy.decide(0, [0.5, 0.5, 0.5, 0.5])

    assert decision.stop
    assert decision.interval.contains(0.5)


@pytest.mark.parametrize("unit", ["case", "group", "whole-group"])
@pytest.mark.parametrize("budget", [1.0, 0.5])
def test_exact_outputs_stop_at_once_with_windows(budget, unit):
    policy = tq.plan(exact_table(), alpha=0.2, max_width=0.1, budget=budget, unit=unit)

    assert policy.decide(0, np.full((1, 3, 4), 0.5)).stop


@pytest.mark.parametrize("unit", ["case", "group"])
def test_replays_of_exact_outputs_stop_at_once_too(unit):
    goal = Goal(max_width=0.1)
    plans = [PolicySpec("adaptive", 0.2, goal, score=s) for s in ("ar", "cqr")]

    found = simulate(exact_table(), plans, splits=3, unit=unit)

    assert [r.early_fraction for r in found] == pytest.approx([1.0, 1.0])


def test_a_whole_group_is_never_stopped_with_an_empty_report():
    # Nearly every group has a case that is too uncertain, so hardly any group ever stops.
    rng = np.random.default_rng(1)
    truth = rng.random(90)
    spread = np.where(np.arange(90) % 3 == 0, 0.3, 0.001)
    spread[:3] = 0.001
    outputs = truth[:, None] + spread[:, None] * rng.standard_normal((1, 90, 4))
    table = tq.TaskOutputs(outputs, truth, (4,), group=np.arange(90) // 3)

    policy = tq.plan(table, alpha=0.3, max_width=0.1, budget=0.5, unit="whole-group")
    decision = policy.decide(0, outputs[:, :3])

    assert not (decision.stops & decision.interval.is_empty).any()
