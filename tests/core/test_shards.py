"""Shards: written while a run goes on, whole whatever kills it, each case counted once."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import taskuq as tq
from taskuq.table._parquet import TableHeader, TableWriter, _shard_paths

HEADER = TableHeader(accelerations=(4.0, 2.0), samples=3, provenance={"sizes": (1, 2)})


def rows(cases, acceleration):
    """Outputs and targets that say which case and round they belong to."""
    numbers = np.array([int(c.split()[1]) for c in cases], dtype=float)
    outputs = numbers[:, None] + np.array([0, 0.25, 0.5]) + 100 * (acceleration == 2.0)
    return outputs, numbers


def write(writer, cases, acceleration, **extra):
    return writer.write(cases, acceleration, *rows(cases, acceleration), **extra)


def assert_holds(table, cases):
    assert table.case.tolist() == sorted(cases)
    for k, R in enumerate((4.0, 2.0)):
        outputs, targets = rows(sorted(cases), R)
        np.testing.assert_array_equal(table.outputs[k], outputs)
        np.testing.assert_array_equal(table.targets, targets)


def test_a_run_goes_on_where_it_stopped(tmp_path):
    first = TableWriter(tmp_path, HEADER)
    write(first, ["case 1", "case 2"], 4.0)
    write(first, ["case 2"], 2.0)
    second = TableWriter(tmp_path, HEADER)
    todo = {(c, R) for c in ("case 1", "case 2", "case 3") for R in (4.0, 2.0)} - second.finished()

    assert todo == {("case 1", 2.0), ("case 3", 4.0), ("case 3", 2.0)}
    for case, R in sorted(todo):
        write(second, [case], R)
    assert_holds(tq.TaskOutputs.load(tmp_path), ["case 1", "case 2", "case 3"])


def test_a_case_written_twice_counts_once(tmp_path):
    writer = TableWriter(tmp_path, HEADER)
    for R in (4.0, 2.0):
        write(writer, ["case 1", "case 2", "case 1"], R)
    write(writer, ["case 2", "case 1"], 2.0)

    assert_holds(tq.TaskOutputs.load(tmp_path), ["case 1", "case 2"])


def test_cases_without_all_rounds_are_missing_and_named(tmp_path):
    writer = TableWriter(tmp_path, HEADER)
    write(writer, ["case 1", "case 2"], 4.0)
    write(writer, ["case 2"], 2.0)
    table = tq.TaskOutputs.load(tmp_path)

    assert_holds(table, ["case 2"])
    assert table.missing_cases == ("case 1",)


def test_half_written_files_are_not_part_of_the_table(tmp_path):
    writer = TableWriter(tmp_path, HEADER)
    paths = [write(writer, ["case 1"], R) for R in (4.0, 2.0)]
    (tmp_path / f".{paths[0].name}.abc.partial").write_bytes(paths[0].read_bytes()[:50])
    (tmp_path / "notes.txt").write_text("beside the table")

    assert_holds(tq.TaskOutputs.load(tmp_path), ["case 1"])
    assert _shard_paths(tmp_path) == sorted(paths)


def test_a_failed_write_leaves_nothing(tmp_path):
    writer = TableWriter(tmp_path, HEADER)
    with pytest.raises(tq.InputError, match="do not fit a table of 3 samples"):
        writer.write(["case 1"], 4.0, np.zeros((1, 2)), [0.0])

    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]


def test_another_header_is_refused_and_the_same_is_not(tmp_path):
    TableWriter(tmp_path, HEADER)
    TableWriter(tmp_path, HEADER)
    with pytest.raises(tq.InputError, match="samples was 3, but now it is 4"):
        TableWriter(tmp_path, TableHeader(accelerations=(4.0, 2.0), samples=4))


def test_groups_and_labels_travel_with_their_cases(tmp_path):
    writer = TableWriter(tmp_path, HEADER)
    for R in (2.0, 4.0):
        write(writer, ["case 2", "case 1"], R, group=["b", "a"], label=[2, 1])
    table = tq.TaskOutputs.load(tmp_path)

    assert table.group.tolist() == ["a", "b"]
    assert table.label.tolist() == [1, 2]


WRITE_FOR_EVER = """
import itertools, sys
import numpy as np
from taskuq.table._parquet import TableHeader, TableWriter

writer = TableWriter(sys.argv[1], TableHeader(accelerations=(2.0,), samples=64))
for i in itertools.count():
    cases = [f"{i:05d} {j:05d}" for j in range(2000)]
    values = np.repeat(np.arange(2000.0)[:, None], 64, axis=1)
    writer.write(cases, 2.0, values, np.arange(2000.0))
    print(i, flush=True)
"""


def _kill_after(folder, shards, extra_seconds):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITE_FOR_EVER, str(folder)], stdout=subprocess.PIPE
    )
    try:
        for _ in range(shards):
            writer.stdout.readline()
        time.sleep(extra_seconds)
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a system that can kill")
def test_a_killed_writer_leaves_only_whole_shards(tmp_path):
    # Killed at moments spread over the writing of a shard; whatever is there is whole.
    for k, pause in enumerate((0.0, 0.001, 0.002, 0.004, 0.007)):
        _kill_after(tmp_path, 1 + k % 2, pause)
        table = tq.TaskOutputs.load(tmp_path)
        number = np.array([int(case.split()[1]) for case in table.case], dtype=float)

        assert table.cases % 2000 == 0
        assert table.cases > 0
        assert table.missing_cases == ()
        np.testing.assert_array_equal(table.outputs[0], np.repeat(number[:, None], 64, axis=1))
        np.testing.assert_array_equal(table.targets, number)
