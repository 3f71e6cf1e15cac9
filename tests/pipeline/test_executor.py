"""Executor of recovery and task."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import taskuq as tq
from pipeline import toy
from raising import refused
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


def test_recovery_and_task_are_called_by_the_executor_alone():
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
def test_a_planted_call_is_found(fault):
    assert direct_calls(fault)


def test_samples_depend_on_seed_case_and_round_alone():
    one, again = (Executor(toy.recover, toy.task, seed=3) for _ in range(2))
    y = toy.measure(toy.images(1)[0], 8.0)

    assert np.array_equal(one.sample(y, "a", 8.0, 4), again.sample(y, "a", 8.0, 4))
    assert not np.array_equal(one.sample(y, "a", 8.0, 4), one.sample(y, "b", 8.0, 4))
    assert not np.array_equal(one.sample(y, "a", 8.0, 4), one.sample(y, "a", 4.0, 4))


def test_callbacks_get_every_draw_and_its_seed():
    draws = []
    executor = Executor(toy.recover, toy.task, on_samples=lambda x, seed: draws.append(seed))
    executor.sample_with_seed(toy.measure(toy.images(1)[0], 8.0), 2, 7)

    assert draws == [7]


def test_fingerprints_are_declared_or_given_and_names_hold_no_module_path():
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
    settings = {"accelerations": toy.ACCELERATIONS, "samples": 4, "seed": 3, "progress": False}
    return tq.Pipeline(toy.measure, toy.recover, task).run(toy.images(3), **settings, **options)


def test_a_task_declares_names_and_range():
    table = run(Declared(names=("area",), range=(-9.0, 9.0)))

    assert table.task_names == ("area",)
    assert table.task_range == (-9.0, 9.0)
    table = run(Declared(names=("area",), range=(-9.0, 9.0)), task_names=["a"], task_range=(-8, 8))
    assert (table.task_names, table.task_range) == (("a",), (-8.0, 8.0))


def test_a_method_called_range_declares_nothing():
    table = run(Declared(range=lambda: (0, 1), names=lambda: ["a"]))

    assert (table.task_range, table.task_names) == (None, ("task",))


@pytest.mark.parametrize("names", [{"a": 1}, "area", [1], 3])
def test_names_that_are_no_sequence_of_strings_are_refused(names):
    with refused("component.invalid", "task_names="):
        run(Declared(names=names))
