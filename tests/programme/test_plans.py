"""The plans of the repository: their commands are there, and what they use was made before."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from scripts.programme.plan import read_plan

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
