"""A range that a table may have forgotten to declare: said, never guessed."""

from __future__ import annotations

import numpy as np

from taskuq.outputs.table import TaskOutputs


def undeclared_range(table: TaskOutputs) -> str | None:
    """Say how to declare the range of tasks that look like probabilities; None where none does.

    Nothing is clipped on the strength of it: that all numbers seen lie between 0 and 1 does not
    prove that others will.

    Arguments:
        table: The table.

    Example:
        >>> undeclared_range(TaskOutputs(rng.random((5, 3)), rng.random(5)))
        'All outputs and targets lie between 0 and 1 and no range is declared, so ...'
        >>> undeclared_range(TaskOutputs(rng.random((5, 3)), rng.random(5), task_range=(0, 1)))
    """
    x = table.outputs.reshape(*table.outputs.shape[:3], -1)
    z = table.targets.reshape(-1, table.tasks) if table.has_targets else np.zeros((1, table.tasks))
    found = [
        name
        for k, name in enumerate(table.task_names)
        if table.task_ranges[k] is None and _is_within(x[..., k]) and _is_within(z[:, k])
    ]
    if not found:
        return None
    of = f" of {', '.join(found)}" if table.tasks > 1 else ""
    option = ",".join(f"{name}=0:1" for name in found) if table.tasks > 1 else "0,1"
    return (
        f"All outputs and targets{of} lie between 0 and 1 and no range is declared, so that "
        f"intervals may reach beyond; where it is their range, --range {option} (task_range in "
        "Python) declares it."
    )


def _is_within(values: np.ndarray) -> bool:
    return bool(values.min() >= 0 and values.max() <= 1)
