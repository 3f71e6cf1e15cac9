"""What policies did over random splits, as a record that the report reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taskuq.decide.goal import Goal, Goals
from taskuq.decide.simulation import Simulation
from taskuq.outputs import TaskOutputs
from taskuq.outputs.rounds import called_rounds
from taskuq.ranges import ranges_to_json

CHOOSING = (
    "Whoever chooses by this table and plans on the same cases has no promise left: taskuq plan "
    "--choose compares on cases of their own, taskuq table --share parts a table."
)


def simulation_record(
    table: TaskOutputs,
    goal: Goal | Goals,
    found: Sequence[tuple[int, Simulation]],
    inputs: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the record ``taskuq.simulate/1``.

    Arguments:
        table: What was replayed.
        goal: Until when scans went on.
        found: Numbers of posterior samples, and what a policy did with as many.
        inputs: What else decided the numbers.
    """
    first = found[0][1]
    return {
        "schema": "taskuq.simulate/1",
        "alpha": first.alpha,
        "goal": goal.to_dict(),
        "unit": first.unit,
        "coverage_of": first.coverage_of,
        "mean_over": first.mean_over,
        "trials": first.trials,
        "n": first.n,
        "n_calibration": first.n_calibration,
        "n_test": first.n_test,
        "inputs": {
            "table": repr(table),
            "task_names": list(table.task_names),
            **ranges_to_json(table.task_ranges),
            "provenance": dict(table.provenance),
            "missing_cases": list(table.missing),
            "round_names": called_rounds(table.accelerations, table.round_names),
            **inputs,
        },
        "choosing": CHOOSING,
        "results": [{"samples": p, **result.to_dict()} for p, result in found],
    }
