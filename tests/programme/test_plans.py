"""The plans of the repository: their commands are there, and what they use was made before."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from scripts.programme.packing import matching
from scripts.programme.plan import Job, Plan, read_plan
from scripts.programme.schedule import AGAIN, BEGINNING, foreseen, words

from taskuq.commands.app import app

ROOT = Path(__file__).resolve().parents[2]
PLANS = sorted((ROOT / "scripts" / "programme").glob("*.toml"))


def before(plan, name):
    """A job and all that it needs, and what these need."""
    return {name}.union(*(before(plan, other) for other in plan.job[name].needs))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_whatever_a_configuration_of_a_plan_names_was_trained_before(path):
    plan = read_plan(path)
    for name, job in plan.job.items():
        made = {
            folder
            for other in before(plan, name)
            for line in plan.job[other].run
            for folder in re.findall(r"-o (?:runs|tables)/([\w-]+)", line)
        }
        for file in re.findall(r"configs/[\w/-]+\.toml", " ".join(job.run)):
            text = (ROOT / file).read_text()
            used = set(re.findall(r'"runs/([\w-]+)/', text))
            if "samplers.toml" in file:  # of which some are drawn at a time
                used &= {folder for folder in used if folder.endswith(tuple(drawn(job)))}
            assert used <= made, f"{name}: {file}"


def drawn(job):
    """Which samplers a job draws from."""
    return re.findall(r"[\w-]+", "".join(re.findall(r"--only (\S+)", " ".join(job.run))))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_all_that_a_job_leaves_is_made_by_it(path):
    for name, job in read_plan(path).job.items():
        for file in job.leaves:
            folder = "/".join(file.split("/")[:2])
            assert folder in " ".join(job.run) or file in " ".join(job.run), name


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_every_command_of_a_plan_is_there(path):
    lines = [line for job in read_plan(path).job.values() for line in job.run]
    for line in lines:
        words = shlex.split(line)
        if words[0] == "taskuq":
            app.parse_args(words[1:], exit_on_error=False, print_error=False)
        else:
            assert words[1] == "-m"
            assert find_spec(words[2]) is not None, line


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_all_that_jobs_leave_is_brought_home(path, tmp_path):
    plan = read_plan(path)
    left = [name for job in plan.job.values() for name in job.leaves]
    for name in left:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert set(left) <= set(matching(plan.keep, tmp_path))


# What must be reached is read off these; latencies need no training.
FIRST = {
    "embedded": {"scanner", "atlas-classifier-plain", "atlas-sampler-on"},
    "samplers": {"lgg-classifiers", "lgg-estimates", "lgg-flow"},
}


@pytest.mark.parametrize("name", FIRST)
def test_everything_is_expected_in_three_calls_and_what_matters_first(name):
    plan = read_plan(ROOT / "scripts" / "programme" / f"{name}.toml")
    done = [
        {stay.name for stay in stays if stay.is_done} for stays in foreseen(plan, (9.3, 9.3, 7.3))
    ]
    assert done[0] >= FIRST[name]
    assert set().union(*done) == set(plan.job)


PLAN = Plan({
    "long": Job(("python long",), minutes=9, expected=4),
    "alone": Job(("python alone",), minutes=1, takes=2),
    "late": Job(("python late",), minutes=2, left=5),
    "after": Job(("python after",), minutes=1, needs=("long",), each_call=True),
}, places=2)  # fmt: skip


def test_a_schedule_keeps_to_places_needs_and_calls():
    first, second, third = foreseen(PLAN, (3, 6, 6))
    assert [(s.name, s.is_done) for s in first] == [("long", False)]  # the other would overtake
    rest = 4 - (3 - BEGINNING) + AGAIN
    assert [s.name for s in second] == ["long", "alone", "after"]
    assert second[0].end == pytest.approx(BEGINNING + rest)
    assert second[1].begin == second[0].end
    assert {s.name for s in third} == {"late", "after"}


def test_what_is_done_before_is_not_foreseen_again_but_for_what_every_call_does():
    (stays,) = foreseen(PLAN, (6,), before={"long", "after"})
    assert [s.name for s in stays] == ["alone", "after"]
    assert words(PLAN, (6,), before={"long"})[-1] == "not reached: late"


def test_fewer_places_than_a_job_takes_are_all_of_them(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text("places = 4\n[job.alone]\ntakes = 4\nrun = ['python alone']\n")
    assert (read_plan(file).job["alone"].takes, read_plan(file, 2).job["alone"].takes) == (4, 2)


def test_a_schedule_says_what_is_not_reached():
    assert words(PLAN, (3,))[-1] == "not reached: long, alone, late, after"
