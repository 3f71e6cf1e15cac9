"""Policies that learn from each calibration fold: compiled and NumPy loops give the same bits."""

from dataclasses import replace

import numpy as np
import pytest

import taskuq as tq
from taskuq.calibration import median_kernels
from taskuq.calibration.scores.mlwr import SteadyMLWR
from taskuq.decide.folds import learn_folds
from taskuq.decide.goal import Goal
from taskuq.decide.kinds import PolicyPlan
from taskuq.decide.learning import steady_rules
from taskuq.evaluation.splits import test_folds as make_folds
from taskuq.outputs.synthetic import SyntheticScanner, synthetic_outputs

TABLE = synthetic_outputs(SyntheticScanner(volumes=9, samples=3), seed=4)
TWO = Goal(max_width=0.2)
PLANS = {
    "fixed-width": PolicyPlan("fixed-width", 0.1, TWO),
    "adaptive": PolicyPlan("adaptive", 0.1, TWO),
    "one-sided": PolicyPlan("adaptive", 0.1, Goal(max_width=0.1, side="lower")),
    "level": PolicyPlan("fixed-width", 0.1, Goal(level=0.5, side="upper")),
}


def changed(outputs, targets, task_range=(0.0, 1.0)):
    return tq.TaskOutputs(
        outputs, targets, TABLE.accelerations, group=TABLE.group, task_range=task_range
    )


TABLES = {
    "plain": TABLE,
    "tied": changed(np.round(TABLE.outputs * 4) / 4, np.round(TABLE.targets * 4) / 4),
    "no range": changed(TABLE.outputs, TABLE.targets, None),
    "two tasks": changed(
        np.stack([TABLE.outputs, 1 - TABLE.outputs**2], axis=-1),
        np.stack([TABLE.targets, 1 - TABLE.targets**2], axis=-1),
    ),
    "one sample": changed(TABLE.outputs[..., :1], TABLE.targets),
}


def arrays(learning):
    """All numbers of what a fold gives."""
    for seen in (learning.seen, learning.shown):
        yield from (seen.lowest, seen.largest, seen.score)
        yield np.zeros(0) if seen.surely is None else seen.surely
        for of_round in seen.rounds:
            for e in of_round:
                yield from (e.family.low, e.family.high, e.family.scale, e.largest)
                yield from (e.window.lower, e.window.upper)
    yield learning.units


def units(by_group):
    group = np.unique(TABLE.group, return_inverse=True)[1]
    return group if by_group else np.arange(TABLE.cases)


def same(table, plan, by_group, n_test):
    index = units(by_group)
    steady = steady_rules(PLANS[plan], TABLES[table], None)
    engines = [learn_folds(steady, index, is_compiled=c) for c in (True, False)]
    for fold in make_folds(5, 0, 4, int(index.max()) + 1, n_test):
        one, other = (list(arrays(learn(fold))) for learn in engines)
        if not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True)):
            return False
    return True


@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("table", TABLES)
def test_compiled_and_numpy_folds_are_the_same_to_the_last_bit(table, plan, by_group):
    units_left = (8, 5, 3, 2, 1)  # down to where nothing bounds a median

    assert all(same(table, plan, by_group, int(units(by_group).max()) + 1 - n) for n in units_left)


def wrong_medians(monkeypatch):
    medians = median_kernels.unit_medians

    def off(*arguments):
        medians(*arguments)
        arguments[-1][:] = arguments[-2]

    monkeypatch.setattr(median_kernels, "unit_medians", off)


def wrong_floor(monkeypatch):
    pieces = SteadyMLWR.pieces

    def off(self):
        found = pieces(self)
        return found._replace(typical=np.nextafter(found.typical, np.inf))

    monkeypatch.setattr(SteadyMLWR, "pieces", off)


@pytest.mark.parametrize("fault", [wrong_medians, wrong_floor])
@pytest.mark.parametrize("by_group", [False, True])
def test_the_comparison_of_folds_can_fail(monkeypatch, fault, by_group):
    fault(monkeypatch)

    assert not same("plain", "adaptive", by_group, 3)


class Plain:
    """A learner that has no pieces, as one of your own may be."""

    def __init__(self, learner):
        self.learn = learner.learn


def test_a_learner_without_pieces_learns_in_numpy():
    steady = steady_rules(PLANS["adaptive"], TABLE, None)
    parts = tuple((replace(part, learner=Plain(part.learner)),) for (part,) in steady.parts)
    fold = make_folds(5, 0, 1, 9, 3)[0]
    one, other = (
        list(arrays(learn_folds(each, units(True), is_compiled=True)(fold)))
        for each in (steady, replace(steady, parts=parts))
    )

    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
