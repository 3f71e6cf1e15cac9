"""A run that is killed while it writes leaves nothing that is read, and goes on."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import toy

import taskuq as tq
from taskuq.pipeline._pipeline import status

RUN = {"accelerations": toy.ACCELERATIONS, "samples": 4, "seed": 3, "progress": False}

# In the child the n-th write stops half way: the moment of the kill is certain, not a matter of
# luck.
SCRIPT = """
import sys, time
sys.path.insert(0, {here!r})
from pathlib import Path
import pyarrow.parquet as pq
import toy
import taskuq as tq
import os
from taskuq import _io
from taskuq.pipeline import _local as local

local.SECONDS = 0.0  # a shard for every case
count = 0

def wait_for_the_kill(*message):
    print(*message, flush=True)
    time.sleep(600)

def is_mine():
    global count
    count += 1
    return count == {nth}

def half(table, path, **settings):
    write(table, path, **settings)
    if {where!r} == "half" and is_mine():
        whole = Path(path).read_bytes()
        Path(path).write_bytes(whole[: len(whole) // 2])
        wait_for_the_kill("half of", path)

def after(move, source, target):
    if {where!r} == "before" and is_mine():
        wait_for_the_kill("before", target)
    move(source, target)
    if {where!r} == "after" and is_mine():
        wait_for_the_kill("after", target)

write, pq.write_table = pq.write_table, half
create, replace = _io._create_file, os.replace
_io._create_file = lambda *paths: after(create, *paths)
os.replace = lambda *paths: after(replace, *paths)
pipeline = tq.Pipeline(toy.measure, toy.recover, toy.task)
pipeline.run(toy.images(5), accelerations=toy.ACCELERATIONS, samples=4, seed=3, progress=False,
             store={store!r})
print("done", flush=True)
"""


def killed_at(store, where, nth):
    """Run until a write has come to a certain point, kill, and say where it was."""
    here = str(Path(__file__).parent)
    script = SCRIPT.format(here=here, store=str(store), where=where, nth=nth)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as run:
        said = run.stdout.readline()
        run.kill()
    return said.split()[:2]


# Files get their names in the order: header, roster, first case, the others; halves are of Parquet
# files alone, the roster being the first.
@pytest.mark.parametrize(
    ("where", "nth"),
    [
        ("half", 1),
        ("half", 2),
        ("half", 4),
        ("before", 1),
        ("before", 3),
        ("after", 2),
        ("after", 4),
    ],
)
def test_a_kill_in_the_middle_of_writing_leaves_the_same_table(tmp_path, where, nth):
    store = tmp_path / "t"
    pipeline = tq.Pipeline(toy.measure, toy.recover, toy.task)
    said = killed_at(store, where, nth)

    assert said[0] == where
    if where != "after":
        assert list(store.glob(".*.partial"))
    table = pipeline.run(toy.images(5), store=store, **RUN)
    expected = pipeline.run(toy.images(5), **RUN)
    assert np.array_equal(table.outputs, expected.outputs)
    assert np.array_equal(table.targets, expected.targets)
    assert status(store)["finished"] == 5


def test_what_was_finished_before_the_kill_is_computed_again_to_compare_it_alone(tmp_path):
    killed_at(tmp_path / "t", "half", 4)  # the roster, two cases, half of the third
    ran = []

    def recover(measurement, *, samples, seed):
        ran.append(seed)
        return toy.recover(measurement, samples=samples, seed=seed)

    tq.Pipeline(toy.measure, recover, toy.task).run(toy.images(5), store=tmp_path / "t", **RUN)
    # Two to compare, then the other three.
    assert len(ran) == (2 + 3) * len(toy.ACCELERATIONS)
    assert status(tmp_path / "t")["finished"] == 5
