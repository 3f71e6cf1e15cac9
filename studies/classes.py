"""Coverage and acceleration of each class, with and without a guarantee for each class.

    python -m studies.classes FOLDER -o docs/results/classes.csv

FOLDER holds tables of task outputs in [0, 1]; a case is positive if its target is above 0.5.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import taskuq as tq
from taskuq.conformal._units import PolicyUnitName
from taskuq.table._table import replace_arrays

TABLES, GOALS = ("joint_effusion", "meniscus_tear"), ((0.05, 0.1), (0.1, 0.2))
FIELDS = (
    "task", "unit", "alpha", "max_width", "statistic", "guarantee", "mean_acceleration", "coverage",
    "negatives", "negatives_error", "positives", "positives_error",
)  # fmt: skip
# Few volumes have effusion: by volume, the guarantee of a class is for the volumes that have it.
CONDITIONS: dict[PolicyUnitName, dict[str, Any]] = {
    "case": {"label": "label"},
    "group": {"label": "label", "condition_on": "group"},
}


def rows(folder: Path, splits: int) -> Iterator[list[str]]:
    """Yield a row of results for each combination of task, unit, goal, statistic and guarantee."""
    for task in TABLES:
        table = tq.TaskOutputs.load(folder / f"{task}.npz", task_range=(0.0, 1.0))
        table = replace_arrays(table, label=(table.targets > 0.5).astype(np.int64))
        for unit, condition in CONDITIONS.items():
            for alpha, width in GOALS:
                for statistic in ("spread", "learned"):
                    for guarantee, options in (("all scans", {}), ("each class", condition)):
                        (found,) = tq.simulate(
                            table, [f"fixed-width:{statistic}"], alpha=alpha, max_width=width,
                            unit=unit, splits=splits, seed=0, **options,
                        )  # fmt: skip
                        measured = [found.mean_acceleration, found.coverage]
                        for part in found.class_coverage:
                            measured += [part["coverage"], part["standard_error"]]
                        yield [
                            task, unit, f"{alpha:g}", f"{width:g}", statistic, guarantee,
                            *(f"{value:.4g}" for value in measured),
                        ]  # fmt: skip


def main() -> None:
    """Simulate the policies and write the table of results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=200)
    asked = parser.parse_args()
    with asked.output.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(FIELDS)
        for row in rows(asked.folder, asked.splits):
            table.writerow(row)
            file.flush()
            print(" ".join(row), flush=True)


if __name__ == "__main__":
    main()
