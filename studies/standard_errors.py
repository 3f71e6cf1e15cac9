"""Standard errors of a simulation, compared with independent synthetic tables.

    python -m studies.standard_errors

For each setting 100 independent tables are simulated with 100 splits each. Printed is the mean
reported standard error over the standard deviation between tables, of the average acceleration and
of coverage. It takes some minutes.
"""

from __future__ import annotations

import numpy as np

from taskuq.policy import Goal, PolicySpec, simulate
from taskuq.table import SyntheticTable, TaskOutputs, synthetic_outputs

TABLES, TRIALS, ALPHA = 100, 100, 0.1
# Policy, score, unit, volumes, whether only one case of each volume is kept, width to stop at.
SETTINGS = (
    ("fixed-width", "mlwr", "group", 20, False, 0.2),
    ("fixed-width", "mlwr", "group", 40, False, 0.2),
    ("adaptive", "lwr", "group", 20, False, 0.2),
    ("adaptive", "lwr", "group", 60, False, 0.2),
    ("fixed-width", "mlwr", "case", 20, False, 0.2),
    ("adaptive", "lwr", "case", 20, False, 0.2),
    ("fixed-width", "mlwr", "case", 150, True, 0.1),
    ("adaptive", "lwr", "case", 80, True, 0.2),
)


def main() -> None:
    print("| policy | unit | table | of R̄ | of coverage |")
    print("|---|---|---|---|---|")
    for kind, score, unit, volumes, is_one_each, width in SETTINGS:
        spec = PolicySpec(kind, ALPHA, Goal(max_width=width), score=score)
        found = []
        for seed in range(TABLES):
            table = synthetic_outputs(SyntheticTable(volumes=volumes, samples=4), seed=seed)
            table = _one_of_each(table) if is_one_each else table
            rng = np.random.default_rng(seed)
            (one,) = simulate(table, [spec], splits=TRIALS, seed=rng, unit=unit)
            errors = one.standard_errors
            found.append(
                (one.mean_acceleration, errors["mean_acceleration"], one.coverage,
                 errors["coverage"])
            )  # fmt: skip
        R, of_R, coverage, of_coverage = np.array(found).T
        what = f"{volumes} cases" if is_one_each else f"{volumes} groups"
        name = kind if kind == "fixed-width" else f"{kind} {score}"
        print(
            f"| {name} | {unit} | {what} | {of_R.mean() / R.std(ddof=1):.2f} | "
            f"{of_coverage.mean() / coverage.std(ddof=1):.2f} |",
            flush=True,
        )


def _one_of_each(table: TaskOutputs) -> TaskOutputs:
    """Return one case of each volume: independent cases."""
    first = np.unique(table.group, return_index=True)[1]
    return TaskOutputs(
        table.outputs[:, first], table.targets[first], table.accelerations, task_range=(0.0, 1.0)
    )


if __name__ == "__main__":
    main()
