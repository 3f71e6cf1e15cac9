"""The published experiment rehearsed once, at toy size, for all tests."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "data")]


@pytest.fixture(scope="session")
def rehearsed(tmp_path_factory):
    """A rehearsal that has been run, and its record."""
    from places import CONFIGS

    from taskuq.runs.rehearsal.folder import Settings
    from taskuq.runs.rehearsal.run import Rehearsal

    output = tmp_path_factory.mktemp("rehearsal")
    rehearsal = Rehearsal(output, Settings(CONFIGS, volumes=4, toy=True))
    return rehearsal, rehearsal.run()


@pytest.fixture(scope="session")
def work(rehearsed):
    """The folder in which docs/fastmri.md was followed."""
    return rehearsed[0].work.path
