"""Small tables of the same synthetic cases: posterior samples and a point estimate."""

import numpy as np
import pytest

from taskuq.experiments._claims import ClaimSettings, StoredExample, run_all
from taskuq.table._examples import SyntheticTable, synthetic_outputs
from taskuq.table._table import replace_arrays


@pytest.fixture(scope="session")
def table():
    made = synthetic_outputs(SyntheticTable(volumes=24, samples=8), seed=3)
    return replace_arrays(made, case=[f"slice-{k}" for k in range(made.cases)])


@pytest.fixture(scope="session")
def point(table):
    """One sample of each case: a worse estimate than the mean of all."""
    return table.select(samples=1)


@pytest.fixture(scope="session")
def few():
    return ClaimSettings(
        trials=24, round_trials=6, protocol_trials=4, samples=(2, 8),
        goals=((0.1, 0.1), (0.1, 0.2)), widths=(0.1, 0.2),
    )  # fmt: skip


@pytest.fixture(scope="session")
def quality():
    results = [
        {
            "acceleration": R, "method": method, "psnr": {"mean": psnr, "standard_error": 0.2},
            "ssim": {"mean": psnr / 50, "standard_error": 0.01},
            **({"spread_error_correlation": 0.5} if method == "flow" else {}),
        }
        for R, each in {16.0: (20.0, 27.0, 26.0), 4.0: (25.0, 33.0, 32.0)}.items()
        for method, psnr in zip(("zero-filled", "varnet", "flow"), each, strict=True)
    ]  # fmt: skip
    return {"schema": "taskuq.quality/1", "results": results}


@pytest.fixture(scope="session")
def make_example(table):
    def make(k=0, **others):
        rng = np.random.default_rng(k)
        truth, mean = rng.random((24, 20)), rng.random((4, 24, 20))
        return StoredExample(
            str(table.case[k]), str(table.group[k]), truth, mean, 0.1 * mean, table.outputs[:, k],
            float(table.targets[k]), mean, table.outputs[:, k, 0], **others,
        )  # fmt: skip

    return make


@pytest.fixture(scope="session")
def records(table, point, few, quality, make_example):
    examples = [make_example()]
    return run_all(table, point, few, published=True, quality=quality, examples=examples)
