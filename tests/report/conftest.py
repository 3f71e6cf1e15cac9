"""Runs with their pages."""

import shutil

import pytest
import run_folder

from taskuq.report._report import write_report


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory):
    """A run with everything, and its page."""
    folder = run_folder.write_run(tmp_path_factory.mktemp("run") / "knee")
    write_report(folder)
    return folder


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory):
    """A run whose every name tries to be something else, and its page."""
    return run_folder.write_hostile(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="session")
def short_run(run_dir, tmp_path_factory):
    """A run whose 30 groups are too few for the error rate of its policy."""
    folder = tmp_path_factory.mktemp("short") / "run"
    shutil.copytree(run_dir, folder)
    table = run_folder.TaskOutputs.load(folder / "table.npz")
    run_folder.tq.plan(table, alpha=0.01, max_width=0.1).save(folder / "policy.json")
    plans = [run_folder.PolicySpec("fixed-width", 0.01, run_folder.GOAL)]
    run_folder.write_simulation(folder / "simulate-short.json", table, plans)
    run_folder.write_report(folder)
    return folder
