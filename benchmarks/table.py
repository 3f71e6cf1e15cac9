"""Table of a million cases, written and read back: seconds, bytes and peak memory.

python -m benchmarks table                # 50 000 cases
python -m benchmarks.table 1000000        # 10⁶ cases × 4 rounds × 32 samples

Writing and reading run in separate processes, whose peak resident memory is printed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from taskuq import TaskOutputs
from taskuq.pipeline._executor import peak_host_bytes
from taskuq.table import TableWriter
from taskuq.table._parquet import TableHeader

ROUNDS, SAMPLES = (16.0, 8.0, 4.0, 2.0), 32


def outputs_of(start: int, stop: int, round: int) -> np.ndarray:
    """Return outputs that depend on case, round and sample, so that each can be checked."""
    case = np.arange(start, stop, dtype=np.uint32)[:, None]
    sample = np.arange(SAMPLES, dtype=np.uint32)
    mixed = (case * np.uint32(2654435761)) ^ (sample * np.uint32(40503) + np.uint32(round))
    return (mixed & np.uint32(0xFFFFFF)).astype(np.float32) / np.float32(2**24)


def names_of(start: int, stop: int) -> np.ndarray:
    return np.char.add("patient-", np.char.zfill(np.arange(start, stop).astype(str), 8))


def write_whole(folder: Path, cases: int) -> None:
    """Write a table that is in memory, as ``TaskOutputs.save`` does."""
    outputs = np.empty((len(ROUNDS), cases, SAMPLES), dtype=np.float32)
    for k in range(len(ROUNDS)):
        outputs[k] = outputs_of(0, cases, k)
    table = TaskOutputs(
        outputs, outputs[-1, :, 0], ROUNDS, case=names_of(0, cases), group=np.arange(cases) // 8,
        label=np.arange(cases) % 2, task_range=(0, 1),
    )  # fmt: skip
    table.save(folder)


def write_shards(folder: Path, cases: int, each: int = 10_000) -> None:
    """Write shards as the workers of a run do."""
    writer = TableWriter(folder, TableHeader(ROUNDS, SAMPLES, task_ranges=((0.0, 1.0),)))
    for start in range(0, cases, each):
        stop = min(start + each, cases)
        targets = outputs_of(start, stop, len(ROUNDS) - 1)[:, 0]
        for k, R in enumerate(ROUNDS):
            writer.write(
                names_of(start, stop), R, outputs_of(start, stop, k), targets,
                group=np.arange(start, stop) // 8, label=np.arange(start, stop) % 2,
            )  # fmt: skip


def read(folder: Path, cases: int) -> None:
    """Read the table and check every number."""
    table = TaskOutputs.load(folder)
    assert table.outputs.shape == (len(ROUNDS), cases, SAMPLES)
    for start in range(0, cases, 10_000):
        stop = min(start + 10_000, cases)
        for k in range(len(ROUNDS)):
            assert np.array_equal(table.outputs[k, start:stop], outputs_of(start, stop, k))
        assert np.array_equal(table.case[start:stop], names_of(start, stop))
        assert np.array_equal(table.group[start:stop], np.arange(start, stop) // 8)


PARTS = {"write_whole": write_whole, "write_shards": write_shards, "read": read}


def measured(part: str, folder: Path, cases: int) -> tuple[float, float]:
    """Return seconds and GB of a step in a separate process."""
    command = [sys.executable, "-m", "benchmarks.table", part, str(folder), str(cases)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, peak = json.loads(ended.stdout.splitlines()[-1])
    return seconds, peak


def main(cases: int = 50_000) -> None:
    numbers = f"{cases} cases × {len(ROUNDS)} rounds × {SAMPLES} samples"
    print(f"{numbers}: outputs are {cases * len(ROUNDS) * SAMPLES * 4 / 1e9:.3f} GB")
    with tempfile.TemporaryDirectory() as scratch:
        for way, what in (("write_whole", "a whole table"), ("write_shards", "shards of a run")):
            folder = Path(scratch) / way
            for part in (way, "read"):
                seconds, peak = measured(part, folder, cases)
                verb = "read" if part == "read" else "write"
                print(f"{verb:6s}{what:18s}{seconds:7.1f} s   peak {peak:.3f} GB", flush=True)
            size = sum(f.stat().st_size for f in folder.iterdir())
            print(
                f"      {what:18s}{size / 1e9:7.3f} GB on disk, {len(list(folder.iterdir()))} files"
            )


if __name__ == "__main__":
    if len(sys.argv) == 4:
        begin = time.perf_counter()
        PARTS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
        print(json.dumps([time.perf_counter() - begin, peak_host_bytes() / 1e9]))
    else:
        main(*map(int, sys.argv[1:]))
