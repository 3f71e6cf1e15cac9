import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import taskuq as tq
from measure.adaptive_toy import RATES, AdaptiveMRIScanner, Draws, corner, patients, scanner
from pipeline import toy
from raising import refused
from taskuq.measure._adaptive import AdaptiveLines
from taskuq.pipeline._executor import Executor

SOURCE = Path(tq.__file__).parent
# A task of tasks is a task.
ALLOWED = {"pipeline/_executor.py", "task/_methods.py"}


def direct_calls(source):
    """Return the lines that call an object named recover or task, or a recovery's batch."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr in ("batch", "load"):
            function = function.value
            names = ("recover",)
        else:
            names = ("recover", "recovery", "task")
        name = getattr(function, "id", None) or getattr(function, "attr", None)
        if name in names:
            lines.append(node.lineno)
    return lines


def test_executor_alone_calls_recovery_and_task():
    calls = {
        str(path.relative_to(SOURCE)): lines
        for path in SOURCE.rglob("*.py")
        if (lines := direct_calls(path.read_text()))
    }
    assert set(calls) <= ALLOWED
    assert "pipeline/_executor.py" in calls


@pytest.mark.parametrize(
    "fault",
    ["recover(y, samples=1, seed=0)", "self.task(images)", "networks.recover.batch(y)",
     "def f(task):\n    return task(1)"],
)  # fmt: skip
def test_planted_call_is_found(fault):
    assert direct_calls(fault)


def test_samples_depend_on_seed_case_and_round():
    one, again = (Executor(toy.recover, toy.task, seed=3) for _ in range(2))
    y = toy.measure(toy.images(1)[0], 8.0)
    assert np.array_equal(one.sample(y, "a", 8.0, 4), again.sample(y, "a", 8.0, 4))
    assert not np.array_equal(one.sample(y, "a", 8.0, 4), one.sample(y, "b", 8.0, 4))
    assert not np.array_equal(one.sample(y, "a", 8.0, 4), one.sample(y, "a", 4.0, 4))


def test_fingerprints_and_names_of_components():
    class Network:
        fingerprint = "abc"

        def __call__(self, images):
            return images

    executor = Executor(toy.recover, Network(), fingerprints={"recover": "def"})
    assert (executor.fingerprint("recover"), executor.fingerprint("task")) == ("def", "abc")
    assert Executor(toy.recover, toy.task).name("recover") == "recover"
    assert Executor(toy.recover, toy.task).fingerprint("task") == ""


class Declared:
    """Task with attributes of any kind."""

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __call__(self, images):
        return toy.task(images)


def run(task, **options):
    return tq.Pipeline(toy.measure, toy.recover, task).run(toy.images(3), **toy.RUN, **options)


def test_task_declares_names_and_range():
    table = run(Declared(names=("area",), range=(-9.0, 9.0)))
    assert table.task_names == ("area",)
    assert table.task_range == (-9.0, 9.0)
    table = run(Declared(names=("area",), range=(-9.0, 9.0)), task_names=["a"], task_range=(-8, 8))
    assert (table.task_names, table.task_range) == (("a",), (-8.0, 8.0))
    # Methods declare nothing.
    table = run(Declared(range=lambda: (0, 1), names=lambda: ["a"]))
    assert (table.task_range, table.task_names) == (None, ("task",))


@pytest.mark.parametrize("names", [{"a": 1}, "area", [1], 3])
def test_invalid_names_are_refused(names):
    with refused("component.invalid", "task_names="):
        run(Declared(names=names))


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
def test_scan_reuses_task_outputs(aim, looks, times):
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


def test_other_images_are_not_cached():
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
        images = torch.complex(images, images.flip(0))
        told = cached(lambda x: x.imag.mean((1, 2)), images)
        assert torch.allclose(told(images.conj()), -told(images))


def test_task_that_writes_into_images():
    def writing(images):
        return images.sub_(0.5).square_().mean((1, 2))

    images, alone = rendered(), rendered()
    with torch.no_grad():
        told = cached(writing, images)
        assert torch.equal(told.outputs, writing(alone))
        assert torch.equal(told(images), writing(alone))


@pytest.mark.parametrize("kind", [torch.clone, lambda x: x.numpy().copy()])
def test_cached_outputs_are_copies(kind):
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
def test_gradients_pass_the_cache(is_remembering):
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


def test_arrays_and_inference_tensors_are_not_cached():
    task = Asked()
    with torch.inference_mode():
        images = rendered()
        told = cached(task, images)
        told(images)
    arrays = cached(task, rendered().numpy())
    arrays(rendered().numpy())
    assert task.times == 4
