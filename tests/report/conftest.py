"""Runs with their pages."""

import sys
from pathlib import Path

import pytest

# The run's folder is imported by tests; it lies beside them.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory):
    """A run with everything, and its page."""
    import run_folder

    from taskuq.report._report import write_report

    folder = run_folder.write_run(tmp_path_factory.mktemp("run") / "knee")
    write_report(folder)
    return folder


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory):
    """A run whose every name tries to be something else, and its page."""
    import run_folder

    return run_folder.write_hostile(tmp_path_factory.mktemp("hostile"))
