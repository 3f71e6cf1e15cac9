"""Cases in memory, read by one process of a training and shared by all."""

import gc
import itertools
import os
import re
import signal
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch

from taskuq.data import _dataset as memory
from taskuq.data._arrays import ArrayDataset
from taskuq.data._dataset import InMemoryDataset, Subset, transform_dataset

COUNT, SIDE = 40, 256  # 10 MB


class Counted:
    """A data set that counts how often it is read."""

    def __init__(self, seed=0):
        images = np.random.default_rng(seed).random((COUNT, SIDE, SIDE), dtype=np.float32)
        label, group = np.arange(COUNT) % 2, np.arange(COUNT) // 4
        self.data, self.asked = ArrayDataset(images, label, group, normalise=False), []
        self.labels, self.groups = self.data.labels, self.data.groups

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        self.asked.append(index)
        return self.data[index]


def _sum_elsewhere(pipe, ends_badly):
    source = Counted()
    kept = InMemoryDataset.of(source)
    source.data = None  # only the shared images are left
    gc.collect()
    total = sum(float(item.image.double().sum()) for item in kept)
    # The lines that follow the header of the mapped file.
    maps = Path("/proc/self/smaps").read_text()
    pss = int(re.search(r"\.images\.\d+\n(?:.*\n)*?Pss: +(\d+) kB", maps)[1]) / 1000
    pipe.send((source.asked, total, kept[3][1:], pss))
    pipe.recv()
    if ends_badly:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(autouse=True)
def first(monkeypatch, tmp_path):
    """Number data sets from 0: processes of a training open them in the same order."""
    monkeypatch.setattr(memory, "_made", itertools.count())
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


@pytest.fixture
def elsewhere():
    """Start and end processes that open the same cases."""
    started = []

    def start(ends_badly=False):
        context = get_context("spawn")
        pipe, other = context.Pipe()
        process = context.Process(target=_sum_elsewhere, args=(other, ends_badly))
        process.start()
        started.append((process, pipe))
        return pipe.recv()

    def let_go():
        while started:
            process, pipe = started.pop()
            pipe.send(None)
            process.join()

    yield start, let_go
    let_go()


def test_second_process_shares_the_images(elsewhere):
    start, _ = elsewhere
    source = Counted()
    kept = InMemoryDataset.of(source)
    total = sum(float(item.image.double().sum()) for item in kept)
    kept[0].image.zero_()  # changes are private
    asked, found, item, pss = start()
    assert sorted(set(source.asked)) == list(range(COUNT))
    assert asked == [0, (COUNT - 1) // 2, COUNT - 1]  # compared with those in memory
    assert found == total
    assert item == source.data[3][1:]
    # Pages that two processes map count half for each.
    assert pss < 0.6 * COUNT * SIDE**2 * 4 / 1e6


def test_cases_of_a_killed_process_are_read_again(elsewhere):
    start, let_go = elsewhere
    assert len(set(start(ends_badly=True)[0])) == COUNT
    let_go()
    source = Counted()
    InMemoryDataset.of(source)
    assert len(set(source.asked)) == COUNT


@pytest.mark.parametrize("change", ["first image", "other cases", "another job", "a later one"])
def test_other_cases_are_not_shared(change, monkeypatch):
    kept = InMemoryDataset.of(Counted())
    source = Counted(seed=int(change == "first image"))
    if change == "a later one":
        source.data.images[7] += 1  # 0, 19 and 39 are compared
    else:
        monkeypatch.setattr(memory, "_made", itertools.count())
    if change == "another job":
        monkeypatch.setenv("SLURM_JOB_ID", "17")
        monkeypatch.setenv("SLURM_STEP_ID", "0")
    other = InMemoryDataset.of(Subset(source, range(30)) if change == "other cases" else source)
    assert len(set(source.asked)) == len(other)
    assert torch.equal(kept[0].image, other[0].image) == (change != "first image")
    assert torch.equal(other[7].image, source.data[7].image)


def test_other_labels_are_not_shared():
    images, group = np.random.default_rng(0).random((4, 8, 8)), [0, 0, 1, 1]
    sources = [ArrayDataset(images, label, group) for label in ([0, 1, 0, 1], [0, 1, 1, 1])]
    kept = [InMemoryDataset.of(source) for source in sources]
    assert [one.labels.tolist() for one in kept] == [[0, 1, 0, 1], [0, 1, 1, 1]]
    assert [item.label for item in kept[1]] == [0, 1, 1, 1]


def test_mixed_sizes_and_types():
    data = ArrayDataset(np.ones((3, 9, 7)), label=[0, 1, 0], group="image", normalise=False)
    kinds = [torch.float32, torch.complex64, torch.float16]
    mixed = transform_dataset(data, lambda item: item._replace(
        image=item.image[: 3 + int(item.case)].to(kinds[int(item.case)])))  # fmt: skip
    for one, other in zip(mixed, InMemoryDataset.of(mixed), strict=True):
        assert torch.equal(one.image, other.image)
        assert (one.image.dtype, one[1:]) == (other.image.dtype, other[1:])
