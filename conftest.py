"""What every example may use: a seeded generator, the package and NumPy; and a place to write."""

import tempfile
from collections.abc import Iterator

import numpy as np
import pytest


@pytest.fixture(scope="session", autouse=True)
def _scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Temporary folders of examples, and of processes that are killed, go with the session."""
    # Those of tests are kept for a while, as usual.
    tmp_path_factory.getbasetemp()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(autouse=True)
def _example_namespace(doctest_namespace: dict) -> None:
    import taskuq as tq

    doctest_namespace["np"] = np
    doctest_namespace["tq"] = tq
    doctest_namespace["rng"] = np.random.default_rng(0)
