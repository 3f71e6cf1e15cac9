"""Arrays and .npz files become data sets; groups are required, never guessed."""

import numpy as np
import pytest
import torch
from volumes import save_npz

from raising import refused
from taskuq.data._arrays import ArrayDataset, read_npz
from taskuq.data._dataset import Dataset, Subset, split_by_group
from taskuq.data._readers import simulate_coil_dataset
from taskuq.measure._coils import rss


@pytest.fixture
def data():
    images = np.random.default_rng(0).uniform(0, 200, size=(6, 16, 12)).astype(np.float32)
    images[4:] *= 100
    return ArrayDataset(images, label=[0, 1, 0, 1, 0, 1], group=list("aabbcc"))


def test_groups_are_normalised_together(data):
    assert isinstance(data, Dataset)
    assert len({data[i].scale for i in (0, 1)}) == 1
    assert data[4].scale > 50 * data[0].scale
    for pair in ((0, 1), (2, 3), (4, 5)):
        values = torch.stack([data[i].image for i in pair]).numpy()
        assert np.quantile(values, 0.995) == pytest.approx(1, rel=1e-5)


def test_saved_data_round_trip(data, tmp_path):
    copy = read_npz(save_npz(data, tmp_path / "copy.npz"), normalise=False)
    for one, other in zip(data, copy, strict=True):
        assert torch.equal(one.image, other.image)
        assert one[1:4] == other[1:4]


def test_groups_are_required_or_refused_explicitly(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, images=np.ones((3, 8, 8)), label=[0, 1, 0], site=list("AAB"))
    with refused("table.column", "group"):
        read_npz(path)
    found = Subset(read_npz(path, group="image"), [2, 0])
    assert found.groups.tolist() == ["2", "0"]
    assert found.sites.tolist() == ["B", "A"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"images": np.ones((3, 8))}, "shape.axes"),
        ({"images": np.ones((3, 2, 8, 8))}, "shape.axes"),
        ({"images": np.full((3, 8, 8), np.nan)}, "value.nonfinite"),
        ({"images": np.ones((0, 8, 8))}, "table.incomplete"),
        ({"label": [0, 1]}, "shape.mismatch"),
        ({"label": ["yes", "no", "no"]}, "dtype.invalid"),
        ({"label": [0.5, 0, 0]}, "dtype.invalid"),
        ({"group": [1, 2]}, "shape.mismatch"),
        ({"case": ["a", "a", "b"]}, "table.duplicate"),
    ],
)
def test_wrong_arrays_are_refused(change, code):
    arguments = {"images": np.ones((3, 8, 8)), "label": [0, 1, 0], "group": [0, 0, 1]} | change
    with refused(code):
        ArrayDataset(**arguments)


@pytest.mark.parametrize("fractions", [(0.5, 0.5), (0.6, 0.2, 0.2), (1.0,)])
def test_split_by_group_is_a_partition(fractions):
    groups = np.repeat(np.arange(10), 3)
    data = ArrayDataset(np.ones((30, 4, 4)), label=np.zeros(30), group=groups)
    parts = split_by_group(data, fractions, seed=0)
    seen = [set(part.groups) for part in parts]
    assert sum(len(part) for part in parts) == 30
    assert [len(names) for names in seen] == [round(10 * f) for f in fractions]
    assert len(set.union(*seen)) == sum(len(names) for names in seen)
    with refused("units.few"):
        split_by_group(data, (0.05, 0.95), seed=0)


def test_simulated_coils_depend_on_group_and_seed_and_keep_the_magnitude(data):
    coils = simulate_coil_dataset(data, 4, seed=0)
    for one, other in zip(coils, data, strict=True):
        assert torch.allclose(rss(one.image), other.image, atol=1e-5)
    assert torch.equal(coils[0].image, simulate_coil_dataset(data, 4, seed=0)[0].image)
    assert not torch.allclose(coils[0].image, simulate_coil_dataset(data, 4, seed=1)[0].image)
    share = [item.image.abs() / rss(item.image) for item in (coils[0], coils[1], coils[2])]
    assert torch.allclose(share[0], share[1], atol=1e-4)
    assert not torch.allclose(share[0], share[2], atol=1e-2)
