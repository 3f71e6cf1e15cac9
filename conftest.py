"""Names for doctests, a scratch folder, and the order of test modules with ``-n 2``."""

import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

# Test folders whose modules share slow fixtures: one process runs all of them.
TOGETHER = ("tests/report/",)
# Modules whose tests share nothing: any process runs any of them.
APART = ("tests/test_documents.py",)
# The slowest modules start first.
LONGEST = (
    "tests/test_rehearse", "tests/test_documents", "tests/site/", "tests/report/", "tests/laws/",
    "tests/demo/", "tests/training/", "tests/pipeline/", "tests/cli/", "tests/policy/",
    "tests/scan/", "tests/experiments/", "tests/recover/", "tests/conformal/",
)  # fmt: skip


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give processes whole files, in order: the tests of a file share fixtures."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            together = next(filter(file.startswith, TOGETHER), file)
            return nodeid if file in APART else together

    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the slowest modules first if processes share the tests."""
    if hasattr(config, "workerinput"):
        items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    known = (place for place, begin in enumerate(LONGEST) if item.nodeid.startswith(begin))
    return next(known, len(LONGEST))


@pytest.fixture(scope="session", autouse=True)
def _scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Remove temporary folders of examples and of killed processes after the run."""
    # pytest keeps those of tests for a while.
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
