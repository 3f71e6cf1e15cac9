"""Results of decisions print as sentences and short tables, not as what they are made of."""

import numpy as np

import taskuq as tq
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import PolicySpec
from taskuq.policy._simulate import simulate
from taskuq.table._examples import SyntheticTable, synthetic_outputs

TABLE = synthetic_outputs(SyntheticTable(volumes=20), seed=0)


def test_a_simulation_prints_its_numbers():
    plans = [PolicySpec(kind, 0.2, Goal(max_width=0.3)) for kind in ("fixed-width", "paper")]
    rule, paper = simulate(TABLE, plans, trials=3, rng=np.random.default_rng(0))
    first, *rows = repr(rule).splitlines()

    assert first.startswith("fixed-width, spread, guaranteed: 3 random splits by group, 14 to ")
    assert repr(paper).startswith("paper, mlwr, measured, not guaranteed: ")
    printed = {row[:15].strip(): row[15:].split()[0] for row in rows[:3]}
    assert float(printed["mean R"]) == float(f"{rule.mean_acceleration:.4g}")
    assert float(printed["coverage"]) == float(f"{rule.coverage:.4g}")
    assert rows[-1].count(",") == len(rule.stops) - 1
    assert "everything measured" in rows[-1]


def test_a_monitor_prints_what_it_says():
    policy = tq.plan(TABLE, alpha=0.2, max_width=0.3)
    monitor = tq.Monitor(policy)

    assert repr(monitor) == monitor.statement
    assert "(" not in repr(monitor).split()[0]
