"""Laws over the random order of units.

All orders of a sample are enumerated: taking the units by their place is then a random choice.
"""

import numpy as np
import pytest

from taskuq.conformal import _quantiles


def by_place(contents, seed=0):
    return np.arange(len(contents))


@pytest.fixture(autouse=True)
def units_by_place(monkeypatch):
    monkeypatch.setattr(_quantiles, "random_order", by_place)
