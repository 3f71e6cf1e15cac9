"""Report of a run with many patients: seconds to write it, and its size.

python -m benchmarks page                # 40 and 500 patients, 20 slices with pictures
python -m benchmarks.page 2000           # any number of patients

A run holds a table (4 rounds, 32 samples), a policy, and pictures of 20 slices of 128 × 128 with 8
samples each; the report applies the policy to every patient.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import taskuq as tq
from taskuq.data import Atlas, PatientDistribution
from taskuq.report import save_explorer, write_report
from taskuq.table import SyntheticTable, synthetic_outputs

SHOWN, SIZE, SAMPLES, DRAWN = 20, 128, 32, 8


def pictures(rounds: int) -> dict[str, np.ndarray]:
    """Return atlas slices and simulated posterior samples, whose spread shrinks over the rounds."""
    rng = np.random.default_rng(0)
    atlas = Atlas(SHOWN // 2, seed=0, coils=0, plan=PatientDistribution(size=SIZE, slices=2))
    truth = np.concatenate([atlas.patient(k).images for k in range(atlas.patients)])
    spread = 0.1 / np.arange(1, rounds + 1)[:, None, None, None]
    noise = rng.standard_normal((SHOWN, rounds, DRAWN, SIZE, SIZE)).astype(np.float32)
    drawn = np.abs(truth[:, None, None] + spread * noise)
    return {"truth": truth, "estimate": drawn[:, :, 0], "mean": drawn.mean(2),
            "sd": drawn.std(2), "samples": drawn}  # fmt: skip


def write_run(folder: Path, patients: int) -> int:
    """Write a run and return the number of slices of its table."""
    table = synthetic_outputs(SyntheticTable(volumes=patients, samples=SAMPLES), seed=0)
    table.save(folder / "table.npz")
    tq.plan(table, alpha=0.1, max_width=0.1, unit="group").save(folder / "policy.json")
    outputs = np.moveaxis(table.outputs, 0, 1)
    save_explorer(
        folder / "explorer.npz", **pictures(table.rounds), accelerations=table.accelerations,
        case=np.arange(SHOWN), group=table.group[:SHOWN], outputs=outputs[:SHOWN],
        targets=table.targets[:SHOWN], calibration_outputs=outputs,
        calibration_targets=table.targets, calibration_group=table.group, task_range=(0.0, 1.0),
    )  # fmt: skip
    return table.cases


def measure(patients: int) -> float:
    """Print the seconds needed to write the report of a run; return the report's size in MB."""
    with tempfile.TemporaryDirectory() as folder:
        slices = write_run(Path(folder), patients)
        clocks = time.perf_counter(), time.process_time()
        page = write_report(folder)
        seconds, busy = time.perf_counter() - clocks[0], time.process_time() - clocks[1]
        megabytes = page.stat().st_size / 1e6
    print(
        f"{patients} patients, {slices} slices: {seconds:.2f} s ({busy:.2f} s of the processor), "
        f"{megabytes:.1f} MB",
        flush=True,
    )
    return megabytes


def main(patients: tuple[int, ...] = (40, 500)) -> None:
    """Print the time and size of a report for each number of patients."""
    for count in patients:
        measure(count)


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or (40, 500))
