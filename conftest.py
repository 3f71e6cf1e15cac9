"""What every example may use: a seeded generator, the package and NumPy."""

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _example_namespace(doctest_namespace: dict) -> None:
    import taskuq as tq

    doctest_namespace["np"] = np
    doctest_namespace["tq"] = tq
    doctest_namespace["rng"] = np.random.default_rng(0)
