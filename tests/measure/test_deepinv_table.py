"""deepinv's operator in the place of ours: the embedded application gives the same table, up to
discretisation."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from taskuq._config import from_toml_table
from taskuq.experiments._run import RunConfig, open_run

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "chest"


def table_of(name, operator):
    """The table of a shipped configuration, of six chests, without noise."""
    settings = tomllib.loads((CONFIGS / f"{name}.toml").read_text()) | {"samples": 4}
    settings["data"] |= {"patients": 6, "slices": 1}
    settings["measure"] |= {"photons": 0.0, "operator": operator}
    run = open_run(from_toml_table(RunConfig, settings), "cpu")
    rates = settings["measure"]["accelerations"]
    return run.pipeline.run(run.images, accelerations=rates, samples=4, seed=0, progress=False)


@pytest.mark.parametrize("name", ["run-filtered-back-projection", "run-sampler"])
@pytest.mark.filterwarnings("ignore")  # deepinv's own
def test_both_operators_lead_to_the_same_table(deepinv, name):
    ours, theirs = (table_of(name, operator) for operator in ("taskuq", "deepinv"))
    apart = np.abs(ours.outputs - theirs.outputs)
    error = np.abs(ours.outputs.mean(axis=2) - ours.targets).mean(axis=1)

    assert (ours.targets == theirs.targets).all()
    assert apart.max() < 0.01, "of a share of air of a quarter"
    assert (apart.mean(axis=(1, 2)) < 0.75 * error).all(), "less than what few views are off by"
