import numpy as np
import pytest

import taskuq as tq
from raising import refused

SECONDS, FULL = {"1 s": 1, "2 s": 2, "4 s": 4}, 16
RANGES = {"mean": (0, 1), "height": (0, np.inf)}
WIDTHS = {"mean": 0.2, "height": 1.5}
ASKED = {"costs": SECONDS, "full_cost": FULL, "samples": 4, "seed": 0, "progress": False}


def blurred(signal, acceleration):
    noise = np.random.default_rng(int(1e6 * signal.sum())).standard_normal((16, signal.size))
    seen = round(FULL / acceleration)
    return np.convolve(signal, np.ones(3) / 3, "same") + 0.3 * noise[:seen].mean(0)


def sharpened(measurement, *, samples, seed):
    noise = np.random.default_rng(seed).standard_normal((samples, measurement.size))
    return measurement + 0.2 * noise


def read(signals):
    return np.stack([signals.mean(-1).clip(0, 1), signals.max(-1).clip(0)], axis=-1)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    signals = rng.random((80, 1)) * (rng.random((80, 24)) < 0.7)
    return tq.Pipeline(blurred, sharpened, read).run(
        signals, task_names=list(RANGES), task_range=RANGES, **ASKED
    )


def test_rounds_have_names_and_costs(table):
    assert table.round_names == tuple(SECONDS)
    assert table.accelerations.tolist() == [16, 8, 4]
    assert tq.calibrate(table, acceleration="2 s", task="mean", alpha=0.1).acceleration == 8


def test_tasks_have_widths_and_ranges(table, tmp_path):
    again = tq.TaskOutputs.load(table.save(tmp_path / "rows.csv"), task_range=RANGES)
    assert np.allclose(again.outputs, table.outputs)
    assert again.task_ranges == table.task_ranges == ((0, 1), (0, np.inf))
    one, other = (tq.plan(t, alpha=0.2, max_width=WIDTHS) for t in (table, again))
    assert one.goal == other.goal
    assert one.goal.statement.count("wide") == 2


def too_few(measurement, *, samples, seed):
    return sharpened(measurement, samples=samples - 2, seed=seed)


def without_height(signals):
    return read(signals)[:, : 2 if len(signals) == 1 else 1]


def unreadable(signals):
    return np.full(len(signals), np.nan)


@pytest.mark.parametrize(
    ("recover", "task"), [(too_few, read), (sharpened, without_height), (sharpened, unreadable)]
)
def test_error_names_case_and_round(tmp_path, recover, task):
    with refused("component.invalid", "north"):
        tq.Pipeline(blurred, recover, task).run(
            np.ones((1, 24)), case=["north"], store=tmp_path / "table", **ASKED
        )
