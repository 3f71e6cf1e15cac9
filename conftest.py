"""What every example may use: a seeded generator, the package and NumPy; and a place to write.

With ``-n 2`` two processes share the tests; what they take at a time is said here too.
"""

import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

# Whose tests share what takes long to make: one process takes all of them.
TOGETHER = ("tests/report/",)
# What takes longest begins first, so that nobody waits for it at the end.
LONGEST = (
    "tests/test_rehearse", "tests/test_documents", "tests/site/",
    "tests/report/", "tests/promises/",
    "tests/demo/", "tests/training/", "tests/pipeline/", "tests/trust/", "tests/decide/",
    "tests/experiments/", "tests/recover/", "tests/calibration/",
)  # fmt: skip


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let processes take whole files, in the order of the tests: files share what they make."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next(filter(file.startswith, TOGETHER), file)

    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put first what takes long, where processes share the tests."""
    if hasattr(config, "workerinput"):
        items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    known = (place for place, begin in enumerate(LONGEST) if item.nodeid.startswith(begin))
    return next(known, len(LONGEST))


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
