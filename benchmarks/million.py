"""CPU seconds of ``taskuq predict`` and ``taskuq evaluate --exact`` for many cases.

python -m benchmarks million              # 100 000 cases
python -m benchmarks.million 1000000      # 10⁶ cases × 32 samples

Each command runs in a separate process with one thread; its time includes reading the table.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
# Before NumPy is loaded: threads would flatter whoever uses more of them.
for _name in THREADS:
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 after the number of threads is set

from taskuq import TaskOutputs  # noqa: E402 the same

EVALUATE = ("--exact", "--score", "lwr,mlwr", "--alpha", "0.05")


def synthetic(cases: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    truth = rng.random(cases)
    spread = rng.uniform(0.02, 0.2, cases)
    outputs = rng.standard_normal((cases, samples))
    outputs *= spread[:, None]
    outputs += (truth + spread * rng.standard_normal(cases))[:, None]
    return outputs, truth


def table(*rows: tuple[str, ...]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        head, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("    " + row[0].ljust(len(head)) + "  " + "  ".join(rest), flush=True)


def write_tables(folder: Path, cases: int) -> None:
    """Write a table as .npz and as shards, and a bound calibrated on a tenth of the cases."""
    outputs, targets = synthetic(cases, 32)
    names = np.char.add("case-", np.arange(cases).astype(str))
    whole = TaskOutputs(
        np.clip(outputs, 0, 1).astype(np.float32), targets, (8.0,), case=names, task_range=(0, 1)
    )
    whole.save(folder / "table.npz")
    whole.save(folder / "shards")
    whole.select(cases=np.arange(cases // 10)).save(folder / "tenth.npz")
    seconds("calibrate", folder / "tenth.npz", "-o", folder / "bound.json")


def seconds(*arguments: str | Path) -> float:
    """Return the CPU seconds of a command in a separate process, including start-up and exit."""
    command = [sys.executable, "-m", "taskuq", *map(str, arguments)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(cases: int = 100_000) -> None:
    print(f"{cases} cases × 32 samples, clipped to [0, 1], lwr and mlwr; CPU seconds")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_tables(folder, cases)
        bound, output = folder / "bound.json", folder / "intervals.csv"
        rows = [("", "cases", "seconds")]
        for name, count in (("tenth.npz", cases // 10), ("table.npz", cases), ("shards", cases)):
            took = seconds("predict", bound, folder / name, "-o", output)
            rows.append((f"predict {name}", str(count), f"{took:.1f}"))
        for name in ("table.npz", "shards"):
            took = seconds("evaluate", folder / name, *EVALUATE)
            rows.append((f"evaluate --exact {name}", str(cases), f"{took:.1f}"))
        table(*rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
