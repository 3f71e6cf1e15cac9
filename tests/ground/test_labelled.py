"""Cases of labelled arrays are matched by their labels; what cannot be matched is refused."""

import numpy as np
import pandas as pd
import pytest

import taskuq as tq
from raising import refused


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    targets = rng.random(80)
    return targets[:, None] + 0.1 * rng.standard_normal((80, 4)), targets


@pytest.fixture
def frames(arrays):
    """Outputs and targets of patients by name, the targets in another order."""
    outputs = pd.DataFrame(arrays[0], index=[f"p{i}" for i in range(80)])
    return outputs, pd.Series(arrays[1], outputs.index).sample(frac=1, random_state=1)


def test_shuffled_index_changes_nothing(arrays, frames):
    bound = tq.calibrate(*arrays, alpha=0.1)
    assert tq.calibrate(*frames, alpha=0.1).to_dict() == bound.to_dict()
    group = frames[1].rank().astype(int) // 8
    aligned = group.loc[frames[0].index].to_numpy()
    by_label = tq.calibrate(*frames, alpha=0.2, group=group)
    assert by_label.to_dict() == tq.calibrate(*arrays, alpha=0.2, group=aligned).to_dict()
    many = {"alpha": 0.1, "splits": 20}
    assert tq.evaluate(*frames, **many).width == tq.evaluate(*arrays, **many).width
    np.testing.assert_array_equal(tq.TaskOutputs(*frames).targets, arrays[1])


def test_intervals_keep_the_labels(frames):
    bound = tq.calibrate(*frames, alpha=0.1)
    frame = bound.predict(frames[0].iloc[3:5]).to_frame()
    assert list(frame.index) == ["p3", "p4"]
    assert list(frame.columns) == ["lower", "upper", "width"]


@pytest.mark.parametrize(
    "change", [lambda z: z.iloc[1:], lambda z: pd.concat([z.iloc[1:], z.iloc[1:2]])]
)
def test_what_cannot_be_matched_is_refused(frames, change):
    with refused("shape.mismatch"):
        tq.calibrate(frames[0], change(frames[1]), alpha=0.1)


def test_objects_that_are_numbers_are_read(arrays):
    bound = tq.calibrate(arrays[0].astype(object), arrays[1].astype(object), alpha=0.1)
    assert bound.to_dict() == tq.calibrate(*arrays, alpha=0.1).to_dict()


def test_xarray_is_read_by_the_names_of_its_dimensions(arrays):
    xarray = pytest.importorskip("xarray")
    names = [f"p{i}" for i in range(80)]
    outputs = xarray.DataArray(arrays[0].T, dims=("sample", "case"), coords={"case": names})
    targets = xarray.DataArray(arrays[1][::-1], dims="case", coords={"case": names[::-1]})
    bound = tq.calibrate(outputs, targets, alpha=0.1)
    assert bound.to_dict() == tq.calibrate(*arrays, alpha=0.1).to_dict()
    with refused("shape.axes"):
        tq.calibrate(outputs.rename(sample="draw"), targets, alpha=0.1)


def test_interval_unpacks_and_is_an_array():
    lower, upper = ends = np.random.default_rng(0).random((2, 3, 2))
    interval = tq.Interval(*ends, task_names=("a", "b"))
    assert all(map(np.array_equal, interval, ends))
    np.testing.assert_array_equal(np.asarray(interval), np.stack([lower, upper], axis=-1))
    assert interval.to_frame().loc[(1, "b"), "upper"] == upper[1, 1]
    assert interval[:, 1].task_names == ()
    assert interval[1:].task_names == ("a", "b")


def test_posterior_samples_are_a_table():
    rng = np.random.default_rng(0)
    theta = rng.standard_normal((60, 2))
    samples = theta + 0.1 * rng.standard_normal((8, 60, 2))  # as sbi returns them
    table = tq.TaskOutputs.from_posterior(samples, theta, task_names=["mass", "spin"])
    bound = tq.calibrate(table, task="spin", alpha=0.1)
    assert bound.to_dict() == tq.calibrate(samples[..., 1].T, theta[:, 1], alpha=0.1).to_dict()
    with refused("shape.axes"):
        tq.TaskOutputs.from_posterior(samples[0], theta)
