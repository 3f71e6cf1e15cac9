"""Files exactly as fastMRI distributes them, and the paper's preparation for small ones."""

import pytest
import volumes


@pytest.fixture
def write_volume(tmp_path):
    """Write a volume and return its path and its k-space."""

    def write(name="file1000001.h5", **values):
        return volumes.write_volume(tmp_path / "volumes" / name, **values)

    return write


@pytest.fixture
def small_preparation():
    """The paper's preparation, for small test volumes."""
    from taskuq.data._volume import FastMRIPreprocessing

    return FastMRIPreprocessing(size=32, min_lines=32, first_acceleration=4, slices="all")
