"""Kills at random moments, of runs on clusters and of a scan, leave the same numbers."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import toy

import taskuq as tq

HERE = Path(__file__).parent
PATH = os.pathsep.join([toy.PATH, str(HERE.parent / "decide")])

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


def start(what, store):
    return subprocess.Popen(
        [sys.executable, str(HERE / "killed.py"), what, str(store)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": PATH},
    )  # fmt: skip


def finish(what, store):
    """Let it go to its end, and say how long that took."""
    began = time.monotonic()
    said, wrong = start(what, store).communicate(timeout=120)
    assert said == "done", wrong
    return time.monotonic() - began


def kill(what, folder, kills, check, also=lambda k: None):
    """Kill again and again what goes on where it was; what ends meanwhile begins anew."""
    rng, whole, number = np.random.default_rng(7), finish(what, folder / "whole"), 0
    store = folder / "0"
    while kills:
        process = start(what, store)
        try:
            said, wrong = process.communicate(timeout=float(rng.uniform(0.1, 1.0)) * whole)
            assert said == "done", wrong
            check(store)
            number += 1
            store = folder / str(number)
        except subprocess.TimeoutExpired:
            process.kill()
            also(kills)
            process.communicate()
            kills -= 1
    finish(what, store)
    check(store)


@pytest.fixture(scope="module")
def undisturbed():
    from killed import CASES

    pipeline = tq.Pipeline(toy.measure, toy.recover, toy.task)
    return pipeline.run(
        toy.images(CASES), accelerations=toy.ACCELERATIONS, samples=4, seed=3, progress=False
    )


@pytest.fixture
def same_table(undisturbed):
    def check(store):
        found = tq.TaskOutputs.load(store)
        for name in ("outputs", "targets", "case"):
            assert np.array_equal(getattr(found, name), getattr(undisturbed, name))

    return check


def test_kills_of_a_run_on_ray(tmp_path, same_table, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", PATH)
    cluster = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address_info["gcs_address"])
    try:
        kill("ray", tmp_path, 2, same_table)
    finally:
        ray.shutdown()


def test_kills_of_a_run_on_slurm(tmp_path, same_table, slurm):
    def also(number):
        """Now its jobs die with it, now they go on alone."""
        if number % 2:
            subprocess.run(["scancel", "--signal=KILL", f"--user={os.getuid()}"], check=False)

    kill("slurm", tmp_path, 2, same_table, also)


def test_four_kills_of_a_scan(tmp_path):
    def check(store):
        records = [(folder / "record.txt").read_text() for folder in (store, tmp_path / "whole")]
        assert records[0] == records[1]

    kill("scan", tmp_path, 4, check)
