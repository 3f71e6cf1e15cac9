"""Numbers that mean what they say: for whom a mean is, what coverage counts, who was left out."""

from fractions import Fraction

import numpy as np
import pytest
from watching import watched

import taskuq as tq
from taskuq.policy import _replay as replay
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import PolicySpec
from taskuq.policy._simulate import simulate
from taskuq.table._examples import SyntheticTable, synthetic_outputs

GOAL = Goal(max_width=0.3)
SCORED = {
    "paper ar": ("paper", {"score": "ar"}),
    "adaptive ar": ("adaptive", {"score": "ar"}),
    "adaptive lwr": ("adaptive", {"score": "lwr"}),
    "adaptive cqr": ("adaptive", {"score": "cqr"}),
    "anytime lwr": ("anytime", {"score": "lwr"}),
}


def on_a_grid(steps, seed, cases=30, group=None):
    """Few shapes in many places: scores that tie in fractions, and differ in their last bits."""
    rng = np.random.default_rng(seed)
    center = rng.integers(1, steps, cases)
    shapes = rng.integers(-1, 2, (2, 2, 3)) * max(1, steps // 20)
    outputs = center[:, None] + shapes[:, rng.integers(0, 2, cases)]
    targets = center + rng.choice([-2, -1, 1, 2], cases) * max(1, steps // 30)
    parts = (np.clip(v, 0, steps) / steps for v in (outputs, targets))
    return tq.TaskOutputs(*parts, (4.0, 2.0), group=group, task_range=(0.0, 1.0))


def scanned(policy, table):
    """Scan every case of a table with a policy: what it cost, and whether the report is right."""
    cost, hit = np.ones(table.cases), np.ones(table.cases, bool)
    scanning = np.ones(table.cases, bool)
    for k, R in enumerate(table.accelerations):
        decision = policy.decide(k, table.outputs[: k + 1])
        stops = scanning & decision.stops
        cost[stops] = 1 / R
        hit[stops] = decision.interval.contains(table.targets)[stops]
        scanning &= ~stops
    return cost, hit


def with_folds(monkeypatch, table, spec, trials, is_compiled=False, **options):
    """Simulate, and return the result with the test folds."""
    found, _, split, _ = watched(monkeypatch, table, spec, trials, is_compiled, **options)
    return found, [fold == 1 for fold in split.case_folds(np.arange(trials))]


def gap(monkeypatch, steps, name, is_compiled, trials=12):
    """How far a simulation is from planning and scanning in each of its splits."""
    kind, options = SCORED[name]
    table = on_a_grid(steps, steps)
    found, folds = with_folds(
        monkeypatch, table, PolicySpec(kind, 0.3, GOAL, **options), trials, is_compiled, unit="case"
    )
    cost, covered = [], []
    for test in folds:
        policy = tq.plan(
            table.select(cases=~test), alpha=0.3, max_width=0.3, policy=kind, unit="case", **options
        )
        costs, hits = scanned(policy, table.select(cases=test))
        cost.append(1 / costs.mean())
        covered.append(hits.mean())
    return max(abs(found.coverage - np.mean(covered)), abs(found.mean_acceleration - np.mean(cost)))


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("name", SCORED)
@pytest.mark.parametrize("steps", [255, 10, 3])
def test_a_simulation_on_a_grid_is_planning_and_scanning(monkeypatch, steps, name, is_compiled):
    assert gap(monkeypatch, steps, name, is_compiled) < 1e-9


def test_scores_compared_exactly_would_miss_what_reports_contain(monkeypatch):
    monkeypatch.setattr(replay, "covering_quantile", lambda scores, thresholds, contains: scores)

    assert (
        max(gap(monkeypatch, steps, name, False) for steps in (255, 10) for name in SCORED) > 0.01
    )


SIZES = np.r_[[40, 30], np.full(22, 3), np.full(6, 7)]
GROUP = np.repeat(np.arange(len(SIZES)), SIZES)
UNEQUAL = synthetic_outputs(SyntheticTable(volumes=10, samples=4), seed=4)
UNEQUAL = tq.TaskOutputs(
    UNEQUAL.outputs[:, : len(GROUP)], UNEQUAL.targets[: len(GROUP)], UNEQUAL.accelerations,
    group=GROUP, task_range=(0.0, 1.0),
)  # fmt: skip


# The share of a group's cases that keeps each promise.
LEAST = {"all": 1, 0.7: Fraction(7, 10)}


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("unit", ["group", "whole-group"])
@pytest.mark.parametrize("cases", ["random", "all", 0.7])
def test_coverage_is_what_is_promised_and_means_are_for_what_they_name(
    monkeypatch, unit, cases, is_compiled
):
    options = {"alpha": 0.2, "max_width": 0.25, "policy": "adaptive", "score": "lwr"}
    spec = PolicySpec("adaptive", 0.2, Goal(max_width=0.25), score="lwr")
    found, folds = with_folds(monkeypatch, UNEQUAL, spec, 6, is_compiled, unit=unit, cases=cases)
    kept, alike, plain, by_case = [], [], [], []
    for test in folds:
        policy = tq.plan(UNEQUAL.select(cases=~test), unit=unit, cases=cases, **options)
        shares, costs, everybody = [], [], []
        for v in np.unique(GROUP[test]):
            cost, hit = scanned(policy, UNEQUAL.select(cases=v == GROUP))
            shares.append(Fraction(int(hit.sum()), len(hit)))
            costs.append(cost.mean())
            everybody += list(cost)
        kept.append(np.mean([s if cases == "random" else s >= LEAST[cases] for s in shares]))
        by_case.append(np.mean([float(s) for s in shares]))
        alike.append(1 / np.mean(costs))
        plain.append(1 / np.mean(everybody))

    assert found.coverage == pytest.approx(float(np.mean(kept)))
    assert found.case_coverage == pytest.approx(np.mean(by_case))
    assert found.mean_acceleration == pytest.approx(np.mean(alike))
    assert found.case_mean_acceleration == pytest.approx(np.mean(plain))
    assert (found.coverage == found.case_coverage) == (cases == "random")


@pytest.mark.parametrize(
    ("unit", "over"),
    [("case", "a new case"), ("group", "a random case of a new group"),
     ("whole-group", "a new group")],
)  # fmt: skip
def test_the_certificate_and_the_simulation_name_the_same_random_thing(unit, over):
    policy = tq.plan(UNEQUAL, alpha=0.2, max_width=0.25, unit=unit)
    spec = PolicySpec("fixed-width", 0.2, Goal(max_width=0.25))
    (found,) = simulate(UNEQUAL, [spec], trials=5, rng=np.random.default_rng(0), unit=unit)

    assert policy.certificate["mean_over"] == found.mean_over == over


def test_the_certificate_counts_groups_alike_and_cases_alike_beside_it():
    # Half the groups, with a tenth of the cases, stop in the first round; the others never do.
    group = np.r_[np.arange(20), np.repeat(np.arange(20, 40), 9)]
    spread = np.where(group < 20, 0.01, 0.4)
    outputs = 0.5 + np.outer(spread, [-1, 1])
    table = tq.TaskOutputs(outputs[None], 0.5 + spread, (8.0,), group=group)
    found = tq.plan(table, alpha=0.2, max_width=0.2, policy="adaptive", score="lwr").certificate

    assert found["mean_over"] == "a random case of a new group"
    assert found["mean_acceleration"] == pytest.approx(1 / (0.5 / 8 + 0.5))
    assert found["mean_acceleration_of_cases"] == pytest.approx(1 / (0.1 / 8 + 0.9))
    assert 1 <= found["certified"] < found["mean_acceleration"]


def test_missing_errors_are_null_and_everything_else_is_a_number():
    one = tq.TaskOutputs(UNEQUAL.outputs, UNEQUAL.targets, UNEQUAL.accelerations,
                         group=np.zeros(len(GROUP), int), task_range=(0.0, 1.0))  # fmt: skip
    spec = PolicySpec("adaptive", 0.2, Goal(max_width=0.25), score="lwr")
    for table, unit in ((one, "case"), (UNEQUAL, "case")):
        (found,) = simulate(table, [spec], trials=5, rng=np.random.default_rng(0), unit=unit)
        errors = found.to_dict()["standard_errors"]
        assert (errors == {"mean_acceleration": None, "coverage": None}) == (table is one)
