"""A rule that asks for outputs which were read already is told them, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import taskuq as tq
from orders.toy import RATES, Draws, corner, patients, scanner
from taskuq.decide.already_read import AlreadyRead
from taskuq.measure.adaptive import AdaptiveLines
from taskuq.measure.mri import AskedMRI

CASES = patients(8, seed=6)
NAMES = [f"patient-{k}" for k in range(8)]


class Asked:
    """A task that counts how often it is run on samples."""

    def __init__(self):
        self.times = 0

    def __call__(self, images):
        self.times += len(images) > 1
        return corner(images)


@pytest.mark.parametrize(
    ("aim", "looks", "times"),
    [("outputs", None, 3), ("variance", None, 3), ("outputs", 4, 5), ("gradient", None, 5)],
)
def test_a_scan_runs_the_task_again_only_for_what_it_has_not_read(aim, looks, times):
    rule, task = AdaptiveLines(scanner(), scanner().masks, RATES, aim, looks=looks), Asked()
    table = tq.Pipeline(rule, Draws(), corner).run(
        CASES, accelerations=RATES, samples=6, seed=0, case=NAMES, task_range=(0, 1), quiet=True
    )
    policy = tq.plan(table, alpha=0.3, max_width=1e-6)  # so narrow that no scan stops early
    scan = tq.acquire(
        policy, AskedMRI(CASES[1], RATES), recover=Draws(), task=task, samples=6, case=NAMES[1],
        rule=rule,
    )  # fmt: skip
    assert len(RATES) == 3
    assert task.times == times  # once for each round, and for each choice that needs it
    added = [np.isin(np.arange(table.lines.shape[-1]), piece["columns"]) for piece in scan.pieces]
    assert np.array_equal(np.logical_or.accumulate(added)[: len(RATES)], table.lines[:, 1])


def test_images_with_other_numbers_are_read_again():
    images, task = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(0)), Asked()
    told = AlreadyRead(task, images, task(images))
    with torch.no_grad():
        known = told(images.detach()[:])
        assert task.times == 1
        assert torch.equal(known, corner(images))
        known += 1  # a rule's own
        assert torch.equal(told(images), corner(images))
        assert task.times == 1
        assert torch.equal(told(images.clone()), corner(images))
        assert task.times == 2
        images *= 2
        assert torch.equal(told(images), corner(images))
        assert task.times == 3


def test_gradients_and_arrays_are_left_to_the_task():
    images, task = torch.ones(3, 4, 4), Asked()
    told = AlreadyRead(task, images, task(images))
    told(images.requires_grad_()).sum().backward()
    assert images.grad is not None
    with torch.no_grad():
        arrays = AlreadyRead(task, np.ones((3, 4, 4)), np.ones(3))
        before = task.times
        arrays(torch.ones(3, 4, 4))
    assert task.times == before + 1


def test_what_a_task_says_of_itself_is_still_said():
    class Named(Asked):
        range = (0, 1)

    told = AlreadyRead(Named(), torch.ones(3, 4, 4), torch.ones(3))
    assert told.range == (0, 1)
    with pytest.raises(AttributeError, match="names"):
        told.names  # noqa: B018  # asking is what is tested
