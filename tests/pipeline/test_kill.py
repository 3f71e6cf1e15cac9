"""A run that is killed at any moment goes on, and ends in the same table."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import toy

import taskuq as tq
from taskuq.pipeline._pipeline import status

SCRIPT = """
import sys
sys.path.insert(0, {here!r})
import toy
import taskuq as tq
from taskuq.pipeline import _local as local
local.SECONDS = 0.0
pipeline = tq.Pipeline(toy.measure, toy.slow_recover, toy.task)
print("ready", flush=True)
pipeline.run(toy.images(30), accelerations=toy.ACCELERATIONS, samples=4, seed=3, progress=False,
             store={store!r})
print("done", flush=True)
"""


def start(store):
    here = str(Path(__file__).parent)
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(here=here, store=str(store))],
        stdout=subprocess.PIPE,
        text=True,
    )


def undisturbed():
    pipeline = tq.Pipeline(toy.measure, toy.recover, toy.task)
    return pipeline.run(
        toy.images(30), accelerations=toy.ACCELERATIONS, samples=4, seed=3, progress=False
    )


def test_twenty_kills_leave_the_same_table(tmp_path):
    store, rng, kills = tmp_path / "t", np.random.default_rng(5), 0
    while kills < 20:
        process = start(store)
        assert process.stdout.readline() == "ready\n"
        time.sleep(float(rng.uniform(0.0, 0.12)))
        process.kill()
        process.communicate()
        kills += 1
    process = start(store)
    assert "done" in process.communicate()[0]
    found, expected = tq.TaskOutputs.load(store), undisturbed()

    assert np.array_equal(found.outputs, expected.outputs)
    assert np.array_equal(found.targets, expected.targets)
    assert np.array_equal(found.case, expected.case)


def test_a_full_disk_is_said_and_loses_nothing(tmp_path):
    store = tmp_path / "t"
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    ) + SCRIPT.format(here=str(Path(__file__).parent), store=str(store)).replace(
        "local.SECONDS = 0.0", "local.SECONDS = 1e9"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert "the disk is full" in ended.stderr
    assert "finished cases are kept" in ended.stderr
    # The first case was written by itself before the disk was full, the others were not.
    assert status(store)["finished"] == 1
    assert not list(store.glob(".*.partial"))
    process = start(store)
    process.communicate()
    assert np.array_equal(tq.TaskOutputs.load(store).outputs, undisturbed().outputs)
