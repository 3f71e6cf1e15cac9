"""Whole programmes at toy size: stopped in the first call, ended on another machine, judged."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import toy_programme as toy
from scripts.programme.carrying import ARRIVED
from scripts.programme.plan import read_plan
from scripts.programme.running import read_status

PROGRAMME = [sys.executable, "-m", "scripts.programme"]
# For dozens of processes, also where the cores are busy.
PATIENCE = 2900
pytestmark = pytest.mark.timeout(3000)


def command(root, *words):
    env = os.environ | {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [str(word) for word in words], cwd=root, env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def done(root, *words):
    process = command(root, *words)
    try:
        said, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.terminate()  # where this test was stopped; jobs end with it
        process.wait()
    assert process.returncode == 0, said
    return said


def logs(work):
    return {path.stem: path.read_text() for path in (work / "logs").glob("*.txt")}


def curve(work):
    with (work / "runs" / toy.STOPPED / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A call that is told to end while a sampler is trained, and what came home of it."""
    folder = tmp_path_factory.mktemp("programme")
    root, carry, work = toy.checkout(folder / "first"), folder / "carry", folder / "first" / "work"
    source = toy.heads(folder / "lgg.npz")
    done(toy.ROOT, *PROGRAMME, "prepare", carry, "--parts", "base,lgg", "--lgg", source)
    process = command(
        root, *PROGRAMME, "run", toy.PLAN, "-o", folder / "out-1", "--work", work,
        "--carried", carry, "--seconds", PATIENCE,
    )  # fmt: skip
    state, until = work / "runs" / toy.STOPPED / "resume.safetensors", time.monotonic() + PATIENCE
    while not state.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=PATIENCE)
    assert state.exists(), said
    archives = sorted((folder / "out-1").iterdir())
    done(toy.ROOT, *PROGRAMME, "unpack", folder / "home", *archives, "--carried", carry)
    return folder


@pytest.fixture(scope="module")
def second(first):
    """The next call, on a machine that has nothing but what came home, to the end of all jobs."""
    home, brought = first / "home", first / "brought"
    done(toy.ROOT, *PROGRAMME, "bring", home, toy.PLAN, brought)
    root = toy.checkout(first / "second")
    packed = sorted(first.glob("brought-*/*.tar"))
    said = done(
        root, *PROGRAMME, "run", toy.PLAN, "-o", first / "out-2", "--work", root / "work",
        "--carried", first / "carry", "--packed", *packed, "--seconds", PATIENCE,
    )  # fmt: skip
    archives = sorted((first / "out-2").iterdir())
    done(toy.ROOT, *PROGRAMME, "unpack", home, *archives, "--carried", first / "carry")
    return said


def test_after_the_first_call_all_that_is_done_is_at_home_and_a_training_is_not(first):
    states = {name: entry.state for name, entry in read_status(first / "home").items()}
    assert states["lgg-estimates"] == "done"
    assert states[toy.STOPPED] == "unfinished"
    assert (first / "home/runs" / toy.STOPPED / "resume.safetensors").exists()
    for name in ("estimate", "fold-1-of-2", "fold-2-of-2"):
        assert (first / "home/runs/lgg-sampler" / name / "best.safetensors").exists()


def test_every_job_of_the_programme_is_done_in_the_end(first, second):
    plan = read_plan(toy.ROOT / toy.PLAN)
    states = {name: entry.state for name, entry in read_status(first / "home").items()}
    assert states == dict.fromkeys(plan.job, "done")
    for name in (file for job in plan.job.values() for file in job.leaves):
        assert (first / "home" / name).exists(), name


@pytest.fixture(scope="module")
def embedded(first, second):
    """The other programme in one call, on the second machine."""
    root, home, carry = first / "second", first / "embedded", first / "carry-other"
    # What the other programme brought home is not at this one's.
    shutil.copytree(first / "carry", carry, ignore=shutil.ignore_patterns(ARRIVED))
    done(
        root, *PROGRAMME, "run", toy.OTHER, "-o", first / "out-3", "--work", root / "other",
        "--carried", carry, "--seconds", PATIENCE,
    )  # fmt: skip
    archives = sorted((first / "out-3").iterdir())
    done(toy.ROOT, *PROGRAMME, "unpack", home, *archives)
    return home


def test_every_job_of_the_embedded_experiment_is_done(embedded):
    plan = read_plan(toy.ROOT / toy.OTHER)
    states = {name: entry.state for name, entry in read_status(embedded).items()}
    assert states == dict.fromkeys(plan.job, "done")
    for name in (file for job in plan.job.values() for file in job.leaves):
        assert (embedded / name).exists(), name


def test_what_task_terms_bring_is_judged(embedded):
    words = ["-m", "scripts.samplers", "judge", embedded / "tables/atlas", "--reference", "without"]
    said = done(toy.ROOT, sys.executable, *words, "--trials", "5")
    assert all(name in said for name in ("sampler", "CRPS", "lesion", "second"))


def test_what_is_replaced_by_toys_stands_in_a_plan():
    plans = "".join((toy.ROOT / name).read_text() for name in (toy.PLAN, toy.OTHER))
    assert all(words in plans for words in toy.INSTEAD)


def test_a_stopped_training_went_on_where_it_was_and_what_was_done_stayed_done(first, second):
    before, after = curve(first / "first" / "work"), curve(first / "home")
    assert len(before) < toy.EPOCHS == len(after)
    assert [row["epoch"] for row in after] == [str(k) for k in range(toy.EPOCHS)]
    assert after[0] == before[0]  # its seconds, too: it was not trained again
    again = logs(first / "second" / "work")
    assert "lgg-estimates" not in again


@pytest.mark.parametrize("data", ["lgg", "atlas"])
def test_what_came_home_is_judged(first, second, data):
    tables, aims = first / "home" / "tables" / data, f"configs/{data}/aims.toml"
    words = ["-m", "scripts.samplers", "judge", tables, "--reference", "flow", "--aims", aims]
    said = done(toy.ROOT, sys.executable, *words, "--trials", "5")
    judges = {"lgg": ("adversarial", "plain"), "atlas": ("lesion", "second")}
    assert all(name in said for name in ("sampler", "CRPS", *judges[data]))


def test_orders_that_came_home_are_shown(first, second):
    folders = [first / "home" / "tables" / f"orders-{data}" for data in ("lgg", "atlas")]
    words = ["-m", "scripts.orders", "show", *folders, "--trials", "5"]
    assert "adaptive" in done(toy.ROOT, sys.executable, *words)
