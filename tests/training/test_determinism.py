"""Batches from the device, and trainings of two processes, equal those of one loader."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed
from torch.utils.data import DataLoader

from bits import same_bits
from raising import refused
from taskuq._seeds import BatchShard
from taskuq.data._arrays import ArrayDataset
from taskuq.data._dataset import InMemoryDataset, Subset
from taskuq.recover import _estimate as folds
from taskuq.recover import build
from taskuq.recover._cases import MaskedDataset, _volume_maxima
from taskuq.recover._estimate import EstimateDataset
from taskuq.recover._tomography import _SinogramDataset
from taskuq.task import _cases as task_cases
from taskuq.training._checkpoints import _read_log
from taskuq.training._config import Recipe, TrainingConfig
from taskuq.training._determinism import DeviceDataset, DeviceLoader, EpochSampler, preload
from taskuq.training._fit import TrainerOptions, _fit, train_config
from taskuq.training._module import TrainingModule, read_timing
from taskuq.training._weights import read_tensors
from training.conftest import NETWORKS

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
def test_batches_are_those_of_the_loader(kind):
    make, collate = CASES[kind]
    cases = make()
    order = EpochSampler(len(cases), seed=5, batch=4)
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
    pass


@pytest.fixture
def fed(tmp_path, configure):
    def train(kind, feed):
        text = Path(configure(kind)).read_text()
        text = text.replace("[data]", "[data]\nin_memory = true")
        config = tmp_path / f"{feed}.toml"
        config.write_text(text.replace("learning_rate", f"dataloader = '{feed}'\nlearning_rate"))
        train_config(kind.partition("-")[0], config, tmp_path / feed, machine=CPU)
        return tmp_path / feed

    return train


def test_training_from_the_device_is_the_same_and_resumes_to_the_bit(fed, monkeypatch):
    whole = DeviceDataset.batches
    monkeypatch.setattr(DeviceDataset, "batches", lambda *given: _stopped(whole(*given), *given))
    with pytest.raises(StopError):
        fed("varnet", "device")
    monkeypatch.undo()
    folders = [fed("varnet", "device"), fed("varnet", "loader")]
    for name in ("best.safetensors", "last.safetensors"):
        ours, theirs = (read_tensors(folder / name) for folder in folders)
        assert all(same_bits(ours[key], theirs[key]) for key in theirs)
    curves = [_read_log(folder / "metrics.csv") for folder in folders]
    ours, theirs = ([{**row, "seconds": 0} for row in curve] for curve in curves)
    assert ours == theirs
    assert 0 <= read_timing(folders[0])["wait_share"] < 1


def _stopped(batches, stock, places, size):
    yield next(batches)
    if places[0][0] > 0:
        raise StopError
    yield from batches


def test_preload_refuses_unsuitable_data():
    on_disk = measured(source=ArrayDataset(np.ones((2, 16, 16)), label=[0, 1], group="image"))
    mixed = InMemoryDataset((*images().items, *images(size=8).items), np.zeros(22), np.zeros(22))
    for cases, is_alone in ((on_disk, True), (task_of(mixed), True), (measured(), False)):
        with refused("option.conflict", "in_memory"):
            preload(cases, "device", on_gpu=False, is_alone=is_alone)


def task_of(source):
    return task_cases.TaskDataset(source, np.zeros((len(source), 1)))


def test_nonfinite_case_is_named():
    source = images()
    source.items[4].image[3, 3] = torch.nan
    for cases in (task_of(source), measured(source=source)):
        with refused("value.nonfinite", f"case {source.items[4].case} "):
            cases.stock(torch.device("cpu"), 1e9)


SCRIPT = Path(__file__).parent / "two_processes.py"
# 13 cases to train on (15 for a task) and 5 to validate by, in batches of 4: in the last one a
# process has no case of its own, or fewer than the other.
# Steps so small that Adam does not make much of a gradient which is rounding alone.
SMALL = "learning_rate = 1e-6"
COMMON = f"""
[training]
epochs = 2
batch = 4
{SMALL}
clip_norm = 1.0
[data]
kind = "npz"
path = "{{path}}"
"""
RECOVER = """
coils = 2
validation_fraction = 0.26
[measure]
accelerations = [4, 2]
published = false
[network]
"""
TASK = """
[split]
train = 0.625
tune = 0.21
[network]
hidden = {hidden}
[network.backbone]
kind = "small"
width = 4
blocks = [1, 1]
"""
CONFIGS = {
    "flow-mean": RECOVER + NETWORKS["flow-mean"].replace("[pretrain]", f"[pretrain]\n{SMALL}"),
    "simclr": TASK.format(hidden=8),
    "classifier": TASK.format(hidden=[4]),
    "sampler": RECOVER + NETWORKS["sampler"],
}


def configured(folder, name):
    rng, text, path = np.random.default_rng(0), CONFIGS[name], folder / f"{name}.npz"
    count = 24 if "[split]" in text else 18
    images = np.kron(rng.random((count, 8, 8)), np.ones((4, 4)))
    np.savez(path, images=images, label=np.arange(count) % 2, group=np.arange(count))
    config = folder / f"{name}.toml"
    config.write_text(COMMON.format(path=path) + text)
    return config


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    configs = [str(configured(folder, name)) for name in CONFIGS]
    # The store stays open here: no other program can take its port.
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "WORLD_SIZE": 2, "GROUP_RANK": 0,
        "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "both", "OMP_NUM_THREADS": 1,
        "TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0,
    }  # fmt: skip
    command, processes = [sys.executable, str(SCRIPT), str(folder / "two"), *configs], []
    for rank in range(2):
        every = {k: str(v) for k, v in {**common, "RANK": rank, "LOCAL_RANK": rank}.items()}
        pipe = {"stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, env={**os.environ, **every}, **pipe))
    threads = torch.get_num_threads()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrainingModule, "optimizer_step", TrainingModule.optimizer_step)
            patch.setattr(sys, "argv", [str(SCRIPT), str(folder / "one"), *configs])
            runpy.run_path(str(SCRIPT), run_name="__main__")
        for process in processes:
            _, stderr = process.communicate()
            assert process.returncode == 0, stderr
    finally:
        torch.set_num_threads(threads)
        for process in processes:
            process.kill()
            process.wait()
            process.stderr.close()
    return folder


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "sampler"])
def test_gradients_of_two_processes_are_those_of_the_batch(trained, name):
    one, two, other = (
        read_tensors(trained / f"{who}.safetensors")
        for who in (f"one/{name}-0", f"two/{name}-0", f"two/{name}-1")
    )
    assert all(same_bits(two[key], other[key]) for key in two)
    assert one.keys() == two.keys()
    assert len({key.split(".")[1] for key in one}) == 8  # two epochs of four steps
    for step in range(8):
        a, b = (
            torch.cat([each[key].flatten() for key in one if key.split(".")[1] == str(step)])
            for each in (one, two)
        )
        assert (a - b).norm() < 1e-4 * a.norm()
    curves = [_read_log(trained / run / name / "metrics.csv") for run in ("one", "two")]
    for a, b in zip(*curves, strict=True):
        assert {**a, "seconds": 0} == pytest.approx({**b, "seconds": 0}, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    ("batch", "cases", "code"), [(6, 20, "option.conflict"), (8, 7, "units.few")]
)
def test_batch_that_cannot_be_shared_is_refused(tmp_path, batch, cases, code):
    config = TrainingConfig(batch=batch)
    net = torch.nn.Linear(1, 1)
    recipe = Recipe("line", net, config, lambda *_: None, lambda *_: {})
    machine = TrainerOptions("cpu", devices=2, nodes=2, progress=False)
    with refused(code):
        _fit(recipe, range(cases), range(2), config, tmp_path, machine=machine)
    assert not list(tmp_path.iterdir())  # nothing that a better batch would be compared with


@pytest.mark.parametrize(
    ("length", "batch", "world"), [(10, 6, 3), (7, 7, 7), (9, 8, 8), (64, 8, 2)]
)
def test_processes_share_every_batch_of_one(monkeypatch, length, batch, world):
    alone = [index for _, index in EpochSampler(length, seed=0, batch=batch)]
    assert sorted(alone) == list(range(length))
    found = [[] for _ in range(-(-length // batch))]
    for rank in range(world):
        monkeypatch.setattr("taskuq.training._determinism._process", lambda r=rank: (r, world))
        order = EpochSampler(length, seed=0, batch=batch)
        places = [index for _, index in order]
        assert len(places) == len(order)
        for step, seen in enumerate(found):
            taken, share = places[: batch // world], order.share(step)
            places = places[batch // world :]
            assert len(taken) >= 1
            seen += taken if share.counts else []
        assert not places
    assert [index for step in found for index in step] == alone


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("total", [1, 5, 8])
def test_weighted_means_of_processes_are_the_mean_of_all(total, world):
    values = np.random.default_rng(0).random(total)
    shares = [BatchShard.of(total, rank, world) for rank in range(world)]
    means = [share.weight * values[share.rows].mean() for share in shares]
    assert np.mean(means) == pytest.approx(values.mean())
