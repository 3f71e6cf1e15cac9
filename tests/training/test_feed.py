"""Batches from tensors on the device are those of the loader, to the bit, and so is a training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from bits import same_bits
from raising import refused
from taskuq.data._arrays import ArrayDataset
from taskuq.data._atlas import AtlasData
from taskuq.data._dataset import InMemoryDataset, Split, Subset
from taskuq.errors import InputError
from taskuq.recover import _estimate as folds
from taskuq.recover import build
from taskuq.recover._cases import MaskedDataset, _volume_maxima
from taskuq.recover._estimate import EstimateDataset
from taskuq.recover._tomography import _SinogramDataset
from taskuq.task import _cases as task_cases
from taskuq.training._checkpoints import _read_log
from taskuq.training._determinism import DeviceDataset, DeviceLoader, EpochSampler, preload
from taskuq.training._fit import TrainerOptions, train_config
from taskuq.training._module import read_timing
from taskuq.training._weights import read_tensors

CPU = TrainerOptions(accelerator="cpu", progress=False)
MASKS = abs(np.arange(16) - 8) < [[2], [4], [6]]
COUNT = 11


def images(size=16, coils=0):
    rng = np.random.default_rng(0)
    shape = (COUNT, coils, size, size) if coils else (COUNT, size, size)
    made = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if coils else 3)
    data = ArrayDataset(made, label=[0] * COUNT, group=np.arange(COUNT) // 3)
    return InMemoryDataset.of(data)


def measured(seed=7, source=None):
    source = images(coils=2) if source is None else source
    return MaskedDataset(source, MASKS, seed, _volume_maxima(source))


def folded():
    return folds.CrossFitDataset(measured(), np.arange(COUNT) % 3)


def estimated():
    return EstimateDataset.of(measured(), build("varnet", preset="tiny"), quiet=True)


def task():
    return task_cases.TaskDataset(images(coils=2), np.random.default_rng(1).random((COUNT, 2)))


CASES = {
    "training": (measured, None),
    "validation": (lambda: measured(seed=None), None),
    "magnitudes": (lambda: measured(source=images()), None),
    "a fold": (lambda: measured(source=Subset(images(coils=2), (9, 1, 4, 0, 2))), None),
    "folds": (folded, folds.collate),
    "estimates": (estimated, None),
    "task": (task, task_cases.collate),
    "views": (lambda: _SinogramDataset(images(), 4, seed=3), None),
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("seed", [5, None])
def test_batches_are_those_of_the_loader(kind, seed):
    make, collate = CASES[kind]
    cases = make()
    order = EpochSampler(len(cases), seed, batch=4)
    fed = DeviceLoader(preload(cases, "device", on_gpu=False, is_alone=True), order, 4)
    loaded = DataLoader(cases, batch_size=4, sampler=order, collate_fn=collate)
    assert len(fed) == len(loaded)
    for epoch in (0, 3):
        order.set_epoch(epoch)
        for ours, theirs in zip(fed, loaded, strict=True):
            assert ours.keys() == theirs.keys()
            for name, value in theirs.items():
                same = same_bits if isinstance(value, torch.Tensor) else tuple.__eq__
                assert same(ours[name], value), name


class StopError(Exception):
    """A training is killed."""


@pytest.fixture
def fed(tmp_path, configure):
    """Train from the device or by the loader; returns the folder."""

    def train(kind, feed):
        text = Path(configure(kind)).read_text()
        text = text.replace("[data]", "[data]\nin_memory = true")
        config = tmp_path / f"{feed}.toml"
        config.write_text(text.replace("learning_rate", f"feed = '{feed}'\nlearning_rate"))
        train_config(kind.partition("-")[0], config, tmp_path / feed, machine=CPU)
        return tmp_path / feed

    return train


@pytest.mark.parametrize("kind", ["varnet", "sampler", "flow-mean"])
def test_a_training_is_the_same_from_the_device_and_goes_on_to_the_bit(fed, kind, monkeypatch):
    whole = DeviceDataset.batches
    monkeypatch.setattr(DeviceDataset, "batches", lambda *given: _stopped(whole(*given), *given))
    with pytest.raises(StopError):
        fed(kind, "device")
    monkeypatch.undo()
    folders = [fed(kind, "device"), fed(kind, "loader")]
    for name in ("best.safetensors", "last.safetensors"):
        ours, theirs = (read_tensors(folder / name) for folder in folders)
        assert all(same_bits(ours[key], theirs[key]) for key in theirs)
    curves = [_read_log(folder / "metrics.csv") for folder in folders]
    ours, theirs = ([{**row, "seconds": 0} for row in curve] for curve in curves)
    assert ours == theirs
    assert 0 <= read_timing(folders[0])["wait_share"] < 1


def _stopped(batches, stock, places, size):
    """The batches up to the middle of an epoch after the first."""
    yield next(batches)
    if places[0][0] > 0:
        raise StopError
    yield from batches


def test_what_is_not_for_a_device_is_refused():
    on_disk = measured(source=ArrayDataset(np.ones((2, 16, 16)), label=[0, 1], group="each"))
    mixed = InMemoryDataset((*images().items, *images(size=8).items), np.zeros(22), np.zeros(22))
    for cases, is_alone in ((on_disk, True), (task_of(mixed), True), (measured(), False)):
        with refused("option.conflict", "in_memory"):
            preload(cases, "device", on_gpu=False, is_alone=is_alone)


def test_nobody_is_put_on_a_device_unasked_but_few_on_a_gpu(monkeypatch):
    size = COUNT * 2 * 16 * 16 * 8
    asked = []
    monkeypatch.setattr(MaskedDataset, "stock", lambda *given: asked.append(given[1:]))
    for free in (8 * size, 100 * 2**30):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, free))
        preload(measured(), "auto", on_gpu=True, is_alone=True)
    assert asked == [(torch.device("cuda"), 2 * size), (torch.device("cuda"), 8 * 2**30)]
    for feed, on_gpu in (("auto", False), ("loader", True)):
        assert preload(measured(), feed, on_gpu=on_gpu, is_alone=True) is None
    assert len(asked) == 2
    monkeypatch.undo()
    assert measured().stock(torch.device("cpu"), size) is not None
    assert measured().stock(torch.device("cpu"), size - 1) is None


def task_of(source):
    return task_cases.TaskDataset(source, np.zeros((len(source), 1)))


def test_a_case_that_is_not_finite_is_named():
    source = images()
    source.items[4].image[3, 3] = torch.nan
    for cases in (task_of(source), measured(source=source)):
        with pytest.raises(InputError, match=f"case {source.items[4].case} holds NaN"):
            cases.stock(torch.device("cpu"), 1e9)


def test_the_atlas_as_a_task_is_for_a_device():
    data = AtlasData(patients=3, size=32, slices=2, in_memory=True)
    whole = data.open_targets()
    split = Split(*((group,) for group in np.unique(whole.cases.groups)))
    for part in whole.split(split):
        cases = task_cases.TaskDataset(part.cases, part.targets)
        assert cases.stock(torch.device("cpu"), np.inf) is not None
