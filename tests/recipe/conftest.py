"""The recipe for fastMRI, followed once for all tests."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "data")]


@pytest.fixture(scope="session")
def recipe(tmp_path_factory):
    """The folder in which docs/fastmri.md was followed."""
    from knee import follow

    folder = tmp_path_factory.mktemp("fastmri")
    follow(folder)
    return folder
