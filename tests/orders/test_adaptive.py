"""Rounds chosen for each case: replayed the same, stored with the table, and what was measured."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import taskuq as tq
from orders.toy import RATES, SIZE, Draws, corner, patients, scanner
from taskuq._seeds import case_seed
from taskuq.errors import InputError
from taskuq.measure._adaptive import AdaptiveConfig, AdaptiveLines
from taskuq.table._formats import _join_tasks
from taskuq.table._table import TaskOutputs

CASES = patients(5, seed=3)
NAMES = list("abcde")


def rule(**settings) -> AdaptiveLines:
    return AdaptiveLines(scanner(), scanner().masks, RATES, **settings)


class Together(Draws):
    """Draws of several cases at once."""

    def batch(self, measurements, *, samples, seeds):
        each = zip(measurements, seeds, strict=True)
        return torch.stack([self(one, samples=samples, seed=seed) for one, seed in each])


def run(recover, store=None, measure=None, **options):
    pipeline = tq.Pipeline(measure or rule(), recover, corner)
    return pipeline.run(
        CASES, accelerations=RATES, samples=6, seed=0, store=store, case=NAMES, progress=False,
        **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def table():
    return run(Draws())


def test_rounds_nest_have_their_number_of_lines_and_begin_alike(table):
    assert (table.sampled_lines[1:] >= table.sampled_lines[:-1]).all()
    assert np.array_equal(table.sampled_lines.sum(axis=2), np.tile([[2], [4], [8]], 5))
    assert (table.sampled_lines[0] == scanner().masks[0]).all()


def test_cases_are_measured_by_lines_of_their_own(table):
    assert len({row.tobytes() for row in table.sampled_lines[-1]}) > 1


def test_outputs_are_those_of_the_lines_that_are_stored(table):
    for k, R in enumerate(RATES):
        for i, image in enumerate(CASES):
            scan = scanner().measure_lines(image, R, table.sampled_lines[k, i])
            drawn = Draws()(scan, samples=6, seed=case_seed(0, NAMES[i], R))
            assert np.allclose(corner(drawn), table.outputs[k, i], atol=1e-6)


def test_lines_are_chosen_by_what_the_case_itself_has_shown(table):
    again = rule()
    for i, image in enumerate(CASES):
        scan = again.measure_lines(image, RATES[0], again.initial_lines())
        drawn = Draws()(scan, samples=6, seed=case_seed(0, NAMES[i], RATES[0]))
        lines = again.next_lines(0, scan, drawn, corner, again.initial_lines())
        assert np.array_equal(lines, table.sampled_lines[1, i])


def test_a_share_of_the_lines_is_chosen_and_the_others_are_the_masks(table):
    masks = scanner().masks
    none, half = (run(Draws(), measure=rule(share=share)) for share in (0.0, 0.5))
    assert (none.sampled_lines == masks[:, None]).all()
    outside = [(t.sampled_lines & ~masks[:, None]).sum(axis=2) for t in (none, half, table)]
    added = np.diff(masks.sum(axis=1))
    assert (np.diff(outside[1], axis=0) <= np.ceil(added / 2)[:, None]).all()
    assert 0 < outside[1].sum() < outside[2].sum()
    assert (half.sampled_lines.sum(axis=2) == masks.sum(axis=1)[:, None]).all()
    assert len({rule(share=share).fingerprint for share in (0.0, 0.5, 1.0)}) == 3
    assert rule(share=1.0).fingerprint == rule().fingerprint
    with pytest.raises(InputError, match="between 0 and 1"):
        rule(share=1.5)


def test_lines_are_chosen_among_those_that_the_masks_have_some_rounds_later(table):
    masks = scanner().masks.copy()
    masks[1] = masks[0]
    masks[1, np.flatnonzero(masks[2] & ~scanner().masks[1])[:2]] = True  # not the best of them
    rules = [AdaptiveLines(scanner(), masks, RATES, ahead=ahead) for ahead in (0, 1)]
    now, later = (run(Draws(), measure=rule) for rule in rules)
    assert (now.sampled_lines == masks[:, None]).all()
    assert (later.sampled_lines[1] <= masks[2]).all()
    assert (later.sampled_lines[1] != masks[1]).any()
    assert (
        later.sampled_lines[2] == masks[2]
    ).all()  # in the last round the masks' lines are measured
    assert (later.sampled_lines.sum(axis=2) == masks.sum(axis=1)[:, None]).all()
    every = [rule(ahead=ahead, share=share) for ahead in (None, 0, 1) for share in (0.5, 1)]
    assert len({one.fingerprint for one in every}) == 6
    with pytest.raises(InputError, match="ahead is -1"):
        rule(ahead=-1)


@pytest.mark.parametrize("options", [{}, {"batch": 2}, {"batch": 3}])
def test_a_case_has_the_same_lines_whatever_runs_beside_it(table, options):
    assert np.array_equal(run(Together(), **options).sampled_lines, table.sampled_lines)


def test_a_killed_run_goes_on_with_the_same_lines(table, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(Draws(fails_at=8), tmp_path / "t")
    assert np.array_equal(run(Draws(), tmp_path / "t").sampled_lines, table.sampled_lines)


@pytest.mark.parametrize("name", ["folder", "table.npz"])
def test_a_table_keeps_its_lines(table, tmp_path, name):
    table.save(tmp_path / name)
    assert np.array_equal(TaskOutputs.load(tmp_path / name).sampled_lines, table.sampled_lines)


def test_smaller_tables_keep_theirs(table):
    small = table.select(accelerations=[4, 2], cases=[3, 1])
    assert np.array_equal(small.sampled_lines, table.sampled_lines[1:][:, [3, 1]])
    assert np.array_equal(_join_tasks({"a": table, "b": table}).sampled_lines, table.sampled_lines)


def test_a_table_with_lines_plans_and_decides_as_any_other(table):
    policy = tq.plan(table, alpha=0.3, max_width=0.5)
    assert policy.decide(0, table.outputs[:1, 0]).round == 0


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (np.zeros((3, 5, SIZE)), "booleans"),
        (np.zeros((2, 5, SIZE), bool), "booleans"),
        (np.ones((3, 5, SIZE), bool) & (np.arange(3) < 2)[:, None, None], "leave out"),
    ],
)
def test_lines_that_cannot_be_are_refused(table, lines, said):
    with pytest.raises(InputError, match=said):
        TaskOutputs(table.outputs, table.targets, RATES, sampled_lines=lines)


class Forgetful(AdaptiveLines):
    """A rule that gives up a line it has measured."""

    def next_lines(self, round, measurement, recoveries, task, lines):
        lines[np.flatnonzero(lines)[0]] = False
        return lines


@pytest.mark.parametrize("ridge", [0.0, -1.0, float("nan"), float("inf")])
def test_a_ridge_that_is_none_is_refused_before_anything_is_drawn(ridge):
    system = scanner()
    with pytest.raises(InputError, match=r"the ridge is .*; give a number above 0"):
        AdaptiveLines(system, system.masks, RATES, ridge=ridge)


@pytest.mark.parametrize(("aim", "needed"), [("gradient", 2), ("variance", 2), ("outputs", 3)])
def test_fewer_samples_than_lines_are_chosen_by_are_refused_by_their_number(aim, needed):
    AdaptiveConfig(aim).require_samples(needed)
    with pytest.raises(InputError, match=f"samples is {needed - 1}.*draw at least {needed}"):
        AdaptiveConfig(aim).require_samples(needed - 1)


def test_nobody_looks_at_more_samples_than_are_drawn():
    AdaptiveConfig(looks=4).require_samples(4)
    with pytest.raises(InputError, match=r"looks is 5 of .choose., and 4 samples are drawn"):
        AdaptiveConfig(looks=5).require_samples(4)


def test_a_rule_that_forgets_a_line_is_refused():
    pipeline = tq.Pipeline(Forgetful(scanner(), scanner().masks, RATES), Draws(), corner)
    with pytest.raises(InputError, match="keep all lines measured so far"):
        pipeline.chain(RATES, samples=3, seed=0).scan(CASES[:1], ["a"])


def test_a_round_by_itself_is_refused_unless_it_is_the_first_or_all():
    one = rule()
    assert torch.equal(one(CASES[0], 8.0).mask, torch.as_tensor(one.initial_lines()))
    assert one(CASES[0], 1.0).mask.all()
    with pytest.raises(InputError, match="depends on the samples"):
        one(CASES[0], 4.0)


def test_where_a_scan_cannot_choose_the_masks_are_next():
    one = rule()
    assert np.array_equal(one.fallback_lines(0, one.initial_lines()), one.masks[1])
    other = np.arange(SIZE) % 8 == 3
    lines = one.fallback_lines(0, other)
    assert lines.sum() == 4
    assert (lines >= other).all()


def test_looking_at_fewer_samples_chooses_by_the_first_of_them():
    scan = scanner().measure_lines(CASES[0], 8.0, rule().initial_lines())
    drawn = Draws()(scan, samples=6, seed=1)
    few = rule(looks=3).next_lines(0, scan, drawn, corner, rule().initial_lines())
    assert np.array_equal(
        few, rule().next_lines(0, scan, drawn[:3], corner, rule().initial_lines())
    )


def test_pictures_show_the_lines_of_their_case(table, tmp_path):
    run(Draws(), tmp_path / "t", keep_images=2)
    with np.load(tmp_path / "t" / "pictures.npz") as kept:
        for case, lines in zip(kept["case"], kept["masks"], strict=True):
            assert np.array_equal(lines, table.sampled_lines[:, NAMES.index(str(case))])
