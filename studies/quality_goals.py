"""Stopping at a level of image quality: taskuq's policies and the rule of a second paper.

    python -m studies.quality_goals FOLDER [docs/results/quality-goals.csv]

FOLDER holds ``quality_*.npz``, tables with a target for each round. The levels are the medians of
the targets at R = 8. The second paper, by the authors of the first, calibrates a one-sided bound
for each round; its rule stops in the first round whose bound reaches the level.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

import taskuq as tq

ALPHA, SPLITS = 0.05, 500
POLICIES = {
    "fixed-width": "fixed-width",
    "adaptive": "adaptive",
    "paper:cqr": "second paper's rule",
}
COLUMNS = ("metric", "goal", "splits by", "policy", "guaranteed", "mean R", "coverage", "early")


def main(folder: Path, output: Path | None = None) -> None:
    rows = []
    for path in sorted(folder.glob("quality_*.npz")):
        metric, table = path.stem.removeprefix("quality_"), tq.TaskOutputs.load(path)
        level = float(np.median(table.targets[table.round_index(8)]))
        level = float(f"{level:.4g}")
        for unit in ("case", "group"):
            found = tq.simulate(
                table, alpha=ALPHA, at_least=level, policies=list(POLICIES), splits=SPLITS,
                unit=unit, seed=0,
            )  # fmt: skip
            for policy, one in zip(POLICIES.values(), found, strict=True):
                rows.append(
                    (metric, f"at least {level:g}", unit, policy,
                     "yes" if one.guaranteed else "no", f"{one.mean_acceleration:.3g}",
                     f"{one.coverage:.3f}", f"{one.coverage_early:.3f}")
                )  # fmt: skip
                print(*rows[-1], sep="  ")
    if output is not None:
        with output.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python -m studies.quality_goals FOLDER [OUTPUT.csv]")
    main(*map(Path, sys.argv[1:]))
