"""A rule that asks for outputs which were read already is told them, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import taskuq as tq
from orders.toy import RATES, Draws, corner, patients, scanner
from taskuq.measure._adaptive import AdaptiveLines
from taskuq.measure._mri import AdaptiveMRIScanner
from taskuq.pipeline._executor import Executor

CASES = patients(8, seed=6)
NAMES = [f"patient-{k}" for k in range(8)]


def cached(task, images):
    return Executor(Draws(), task).cached_task(images)


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
    rule, task = (
        AdaptiveLines(scanner(), scanner().masks, RATES, aim, selection_samples=looks),
        Asked(),
    )
    table = tq.Pipeline(rule, Draws(), corner).run(
        CASES, accelerations=RATES, samples=6, seed=0, case=NAMES, task_range=(0, 1), progress=False
    )
    policy = tq.plan(table, alpha=0.3, max_width=1e-6)  # so narrow that no scan stops early
    scan = tq.acquire(
        policy, AdaptiveMRIScanner(CASES[1], RATES), recover=Draws(), task=task, samples=6,
        case=NAMES[1],
        adaptive=rule,
    )  # fmt: skip
    assert len(RATES) == 3
    assert task.times == times  # once for each round, and for each choice that needs it
    added = [
        np.isin(np.arange(table.sampled_lines.shape[-1]), piece["columns"])
        for piece in scan.measurements
    ]
    assert np.array_equal(np.logical_or.accumulate(added)[: len(RATES)], table.sampled_lines[:, 1])


def rendered():
    return torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(0))


def test_images_with_other_numbers_are_read_again():
    images, task = rendered(), Asked()
    with torch.no_grad():
        told = cached(task, images)
        assert torch.equal(told(images.detach()[:]), corner(images))
        assert task.times == 1
        for times, other in enumerate((images.clone(), images.mT, images[:2], -images), start=2):
            assert torch.equal(told(other), corner(other))
            assert task.times == times
        images *= 2
        assert torch.equal(told(images), corner(images))
        assert task.times == 6


def test_the_conjugate_of_images_is_not_taken_for_them():
    images = torch.complex(rendered(), rendered().flip(0))
    with torch.no_grad():
        told = cached(lambda x: x.imag.mean((1, 2)), images)
        assert torch.allclose(told(images.conj()), -told(images))


def test_a_task_that_writes_into_its_images_is_run_on_what_it_made_of_them():
    def writing(images):
        return images.sub_(0.5).square_().mean((1, 2))

    images, alone = rendered(), rendered()
    with torch.no_grad():
        told = cached(writing, images)
        assert torch.equal(told.outputs, writing(alone))
        assert torch.equal(told(images), writing(alone))


@pytest.mark.parametrize("kind", [torch.clone, lambda x: x.numpy().copy()])
def test_what_a_rule_does_with_outputs_is_its_own_affair(kind):
    images, buffer = rendered(), []

    def task(images):
        """One that gives the same memory every time."""
        buffer.append(kind(corner(images))) if not buffer else None
        buffer[0][...] = kind(corner(images))
        return buffer[0]

    with torch.no_grad():
        told = cached(task, images)
        first, known = told(images), kind(corner(images))
        first -= 1
        told(images[:].clone() * 2)
        assert np.array_equal(told(images), known)
        assert np.array_equal(told.outputs, known)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("is_remembering", [False, True])
def test_gradients_are_left_to_the_task(is_remembering):
    images, task = rendered(), Asked()
    with torch.no_grad():
        told = cached(task, images)
    with torch.set_grad_enabled(is_remembering):
        slopes = torch.func.grad(lambda x: told(x).sum())(images)
        _, along = torch.func.jvp(told, (images,), (torch.ones_like(images),))
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(images, torch.ones_like(images))
        tangent = torch.autograd.forward_ad.unpack_dual(told(dual)).tangent
    known = torch.func.grad(lambda x: corner(x).sum())(images)
    assert torch.equal(slopes, known)
    assert torch.allclose(along, known.sum((1, 2)))
    assert torch.allclose(tangent, known.sum((1, 2)))


def test_arrays_and_inference_tensors_are_left_to_the_task():
    task = Asked()
    with torch.inference_mode():
        images = rendered()
        told = cached(task, images)
        told(images)
    arrays = cached(task, rendered().numpy())
    arrays(rendered().numpy())
    assert task.times == 4


def test_what_a_task_says_of_itself_is_still_said():
    class Named(Asked):
        range = (0, 1)

    told = cached(Named(), rendered())
    assert told.range == (0, 1)
    with pytest.raises(AttributeError, match="names"):
        told.names  # noqa: B018  # asking is what is tested
