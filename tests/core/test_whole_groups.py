"""Sums over the cases of a group: whose they are, in which unit, and what is promised for them."""

import math

import numpy as np
import pytest

import taskuq as tq
from taskuq.errors import InputError
from taskuq.table._table import sum_groups


def table(rng, groups=60, **more):
    group = np.repeat(np.arange(groups), rng.integers(1, 9, groups))
    areas = rng.gamma(2.0, 100.0, len(group))
    outputs = areas[:, None] * np.exp(0.2 * rng.normal(size=(2, len(group), 8)))
    return tq.TaskOutputs(
        outputs=outputs, targets=areas, accelerations=[4, 2], group=group, task_range=(0, math.inf),
        task_names=["area"], **more,
    )  # fmt: skip


def test_a_sum_is_that_of_its_group_whatever_the_order():
    areas = table(np.random.default_rng(0))
    order = np.random.default_rng(1).permutation(areas.cases)
    sums, mixed = sum_groups(areas, 5.0), sum_groups(areas.select(cases=order), 5.0)
    of_third = areas.select(group=3)

    assert np.allclose(sums.targets, mixed.targets)
    assert np.allclose(sums.outputs, mixed.outputs)
    assert sums.targets[3] == pytest.approx(5 * of_third.targets.sum())
    assert np.allclose(sums.outputs[1, 3], 5 * of_third.outputs[1].sum(0))
    assert sums.task_range == (0, math.inf)


def test_volumes_of_new_groups_are_covered_as_often_as_promised():
    sums = sum_groups(table(np.random.default_rng(2), groups=80), 5.0)
    exact = tq.evaluate_exact(sums.outputs[0], sums.targets, alpha=0.2, score="mlwr")
    # Over all splits coverage is k / (n + 1) for 56 groups that calibrate: exactly, without ties.
    assert exact.coverage.mean == pytest.approx(math.ceil(0.8 * 57) / 57)


def test_several_tasks_are_summed_each(tmp_path):
    one = table(np.random.default_rng(0))
    both = tq.TaskOutputs(
        outputs=np.stack([one.outputs, 2 * one.outputs], -1),
        targets=np.stack([one.targets, 2 * one.targets], -1),
        accelerations=[4, 2], group=one.group, task_names=["a", "b"],
    )  # fmt: skip
    sums = sum_groups(both)
    assert np.allclose(sums.targets[:, 1], 2 * sum_groups(one).targets)
    assert sums.task_ranges == (None, None)


def test_sums_that_mean_nothing_are_refused():
    areas = table(np.random.default_rng(0))
    with pytest.raises(InputError, match="no groups"):
        sum_groups(
            tq.TaskOutputs(outputs=areas.outputs, targets=areas.targets, accelerations=[4, 2])
        )
    with pytest.raises(InputError, match="weight is 0"):
        sum_groups(areas, 0)
    with pytest.raises(InputError, match="another quantity"):
        sum_groups(table(np.random.default_rng(0), missing_cases=("patient-7",)))


def test_sums_are_called_what_groups_were_called():
    said = {"words": {"case": "slice", "group": "patient", "measurement": "view"}, "seed": 3}
    sums = sum_groups(table(np.random.default_rng(0), provenance=said))

    assert sums.provenance["words"] == said["words"] | {"case": "patient"}
    assert sums.provenance["seed"] == 3
    assert said["words"]["case"] == "slice"
