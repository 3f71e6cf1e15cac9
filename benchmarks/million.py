"""A million cases at the command line: CPU seconds to predict and judge exactly, reading included.

python -m benchmarks million              # 100 000 cases
python -m benchmarks.million 1000000      # 10⁶ cases × 32 samples

Each command runs in a process of its own with one thread. Beside it stands the way it was done
before, in the same kind of process: for predict, each line asked for the width and the centre of
all intervals; for evaluate --exact, each case was asked at every quantile. The former is quadratic
and is shown for a tenth of the cases.
"""

from __future__ import annotations

import csv
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from benchmarks.core import synthetic, table

from taskuq import TaskOutputs
from taskuq.cli.app import main as taskuq
from taskuq.cli.calibrate import _load as load_bound
from taskuq.conformal._splits import Pool

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
EVALUATE = ("--exact", "--score", "lwr,mlwr", "--alpha", "0.05")


def write_tables(folder: Path, cases: int) -> None:
    """A table with a task range, as .npz and as a folder of shards, and a bound for it."""
    outputs, targets = synthetic(cases, 32)
    names = np.char.add("case-", np.arange(cases).astype(str))
    whole = TaskOutputs(
        np.clip(outputs, 0, 1).astype(np.float32), targets, (8.0,), case=names, task_range=(0, 1)
    )
    whole.save(folder / "table.npz")
    whole.save(folder / "shards")
    whole.select(cases=np.arange(cases // 10)).save(folder / "tenth.npz")
    seconds("taskuq", "calibrate", folder / "tenth.npz", "-o", folder / "bound.json")


def predict_by_lines(bound: str, path: str, output: str) -> None:
    """Predict as before: every line computes all widths and all centres."""
    loaded = TaskOutputs.load(path)
    interval = load_bound(Path(bound))(loaded.outputs[0])
    covered = interval.contains(loaded.targets)
    with open(output, "w", newline="") as file:
        rows = csv.writer(file)
        for i in range(len(interval)):
            ends = (interval.lower, interval.upper, interval.width, interval.center, loaded.targets)
            rows.writerow([loaded.case[i], *(repr(float(v[i])) for v in ends), int(covered[i])])


def evaluate_by_tables(path: str) -> None:
    """Evaluate as before: no number is taken to be linear in the quantile."""
    Pool.moves_in_lines = property(lambda self: False)
    taskuq(["evaluate", path, *EVALUATE])


PARTS: dict[str, Callable[..., None]] = {
    "taskuq": lambda *arguments: taskuq([*arguments]),
    "predict_by_lines": predict_by_lines,
    "evaluate_by_tables": evaluate_by_tables,
}


def seconds(part: str, *arguments: str | Path) -> float:
    """Return the CPU seconds of a part in a process of its own, start and end included.

    With one thread these are the seconds on a core that nobody else wants.
    """
    command = [sys.executable, "-m", "benchmarks.million", part, *map(str, arguments)]
    environment = os.environ | dict.fromkeys(THREADS, "1")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(cases: int = 100_000) -> None:
    print(f"{cases} cases × 32 samples, clipped to [0, 1], lwr and mlwr; CPU seconds")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_tables(folder, cases)
        bound, output = folder / "bound.json", folder / "intervals.csv"
        rows = [("", "cases", "now", "before")]
        for name, count, compared in (
            ("tenth.npz", cases // 10, True), ("table.npz", cases, False), ("shards", cases, False)
        ):  # fmt: skip
            now = seconds("taskuq", "predict", bound, folder / name, "-o", output)
            before = "-"
            if compared:
                before = f"{seconds('predict_by_lines', bound, folder / name, output):.1f}"
            rows.append((f"predict {name}", str(count), f"{now:.1f}", before))
        for name in ("table.npz", "shards"):
            now = seconds("taskuq", "evaluate", folder / name, *EVALUATE)
            before = seconds("evaluate_by_tables", folder / name)
            row = (f"evaluate --exact {name}", str(cases), f"{now:.1f}", f"{before:.1f}")
            rows.append(row)
        table(*rows)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        PARTS[sys.argv[1]](*sys.argv[2:])
    else:
        main(*map(int, sys.argv[1:]))
