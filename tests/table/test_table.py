"""Tables come back from files as they were, and smaller tables are parts of larger ones."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import taskuq as tq
from raising import refused
from taskuq.cli.app import main
from taskuq.table._table import suggest_range, sum_groups

RNG = np.random.default_rng(3)
PARTS = ("outputs", "targets", "accelerations", "group", "label", "case")


def table(rounds=2, cases=6, samples=3, tasks=None, round_targets=False, ids="strings", **extra):
    """A table whose outputs are float32, as files keep them."""
    shape = (rounds, cases, samples) + (() if tasks is None else (tasks,))
    targets = (rounds,) * round_targets + (cases,) + (() if tasks is None else (tasks,))
    names = {} if tasks is None else {"task_names": [f"tear {k}" for k in range(tasks)]}
    if ids is not None:
        numbers = np.arange(cases)
        text = ids == "strings"
        extra |= {
            "case": [f"slice {i}" for i in numbers[::-1]] if text else numbers[::-1] + 7,
            "group": [f"knee {i // 2}" for i in numbers] if text else numbers // 2,
            "label": ["tear", "none"] * (cases // 2) if text else numbers % 2,
        }
    return tq.TaskOutputs(
        RNG.random(shape).astype(np.float32),
        RNG.random(targets),
        accelerations=[8.0, 4.0, 2.0][:rounds],
        **names,
        **extra,
    )


def assert_same(one, other):
    for part in PARTS:
        a, b = getattr(one, part), getattr(other, part)
        assert (a is None) == (b is None), part
        if a is not None:
            np.testing.assert_array_equal(a, b, err_msg=part)
    assert one.task_names == other.task_names
    assert one.task_range == other.task_range
    assert dict(one.provenance) == dict(other.provenance)


KINDS = {
    "one task": {},
    "one round": {"rounds": 1},
    "several tasks": {"tasks": 3},
    "targets by round": {"round_targets": True},
    "several tasks by round": {"tasks": 2, "round_targets": True},
    "numbers as ids": {"ids": "numbers"},
    "range and provenance": {"task_range": (0, 1), "provenance": {"seed": 3, "sizes": [1, 2]}},
    "half-open range": {"task_range": (-1, np.inf)},
}


@pytest.mark.parametrize("name", ["table.npz", "folder"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_read_back_is_the_same_table(kind, name, tmp_path):
    before = table(**KINDS[kind])

    assert_same(tq.TaskOutputs.load(before.save(tmp_path / name)), before)


@pytest.mark.parametrize("name", ["table.npz", "folder"])
def test_a_table_without_ids_or_accelerations_keeps_its_numbers(name, tmp_path):
    before = tq.TaskOutputs(RNG.random((5, 2)).astype(np.float32), RNG.random(5))
    after = tq.TaskOutputs.load(before.save(tmp_path / name))

    np.testing.assert_array_equal(after.outputs, before.outputs)
    np.testing.assert_array_equal(after.targets, before.targets)
    assert np.isnan(after.accelerations).all()
    assert after.group is None
    assert after.label is None


@pytest.mark.parametrize("name", ["table.npz", "folder"])
def test_a_table_of_new_cases_has_no_targets_before_or_after(name, tmp_path):
    before = tq.TaskOutputs(RNG.random((2, 5, 3)).astype(np.float32), accelerations=[4, 2])
    after = tq.TaskOutputs.load(before.save(tmp_path / name))

    assert not before.has_targets
    assert not after.has_targets
    np.testing.assert_array_equal(after.outputs, before.outputs)
    assert after.select(cases=[1, 2]).cases == 2


def test_the_folder_is_parquet_that_others_can_read(tmp_path):
    import pyarrow.parquet as pq

    before = table(tasks=2)
    folder = before.save(tmp_path / "folder")
    rows = pq.read_table(sorted(folder.glob("*.parquet"))[0]).to_pydict()

    assert set(rows) == {
        "case", "group", "label", "acceleration",
        "target_tear 0", "outputs_tear 0", "target_tear 1", "outputs_tear 1",
    }  # fmt: skip
    np.testing.assert_array_equal(rows["outputs_tear 1"], before.outputs[0, :, :, 1])


def test_a_value_at_the_end_of_its_range_survives_single_precision(tmp_path):
    # The float32 next to 0.1 is larger than 0.1.
    before = tq.TaskOutputs(np.full((4, 2), 0.1), np.full(4, 0.1), task_range=(0, 0.1))

    assert tq.TaskOutputs.load(before.save(tmp_path / "folder")).cases == 4


def test_a_bare_npz_is_a_table_and_may_be_given_a_range(tmp_path):
    np.savez(tmp_path / "bare.npz", outputs=RNG.random((4, 3)), targets=RNG.random(4))

    assert tq.TaskOutputs.load(tmp_path / "bare.npz").task_range is None
    assert tq.TaskOutputs.load(tmp_path / "bare.npz", task_range=(0, 1)).task_range == (0, 1)
    with refused("range.outside"):
        tq.TaskOutputs.load(tmp_path / "bare.npz", task_range=(0, 1e-9))


@given(
    rounds=st.sets(st.sampled_from([8.0, 4.0, 2.0]), min_size=1),
    samples=st.integers(1, 3),
    cases=st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True),
)
def test_a_selection_is_the_part_it_names(rounds, samples, cases):
    whole = table(rounds=3, round_targets=True)
    part = whole.select(accelerations=list(rounds), samples=samples, cases=cases)
    index = [whole.round_index(R) for R in sorted(rounds, reverse=True)]

    np.testing.assert_array_equal(part.outputs, whole.outputs[index][:, cases][:, :, :samples])
    np.testing.assert_array_equal(part.targets, whole.targets[index][:, cases])
    np.testing.assert_array_equal(part.group, whole.group[cases])


def test_a_selection_by_group_by_mask_and_by_task():
    whole = table(tasks=2)

    assert whole.select(group="knee 1").case.tolist() == whole.case[2:4].tolist()
    assert whole.select(group=["knee 0", "knee 2"]).cases == 4
    assert whole.select(cases=np.arange(6) > 3).cases == 2
    one = whole.select(task="tear 1")
    np.testing.assert_array_equal(one.outputs, whole.outputs[..., 1])
    np.testing.assert_array_equal(one.targets, whole.targets[..., 1])


def test_a_group_and_cases_together_keep_what_both_name():
    whole = table()

    assert whole.select(group="knee 1", cases=[0, 2]).case.tolist() == [whole.case[2]]
    with refused("choice.unknown"):
        whole.select(group="knee 1", cases=[0])


@pytest.mark.parametrize(
    "selection",
    [
        {"accelerations": [3]},
        {"samples": 4},
        {"samples": 0},
        {"group": "nobody"},
        {"task": "nothing"},
        {"cases": [99]},
        {"cases": []},
        {"cases": [True, False]},
        {"cases": [0, 0]},
        {"cases": ["a"]},
    ],
)
def test_a_selection_of_what_is_not_there_is_refused(selection):
    with pytest.raises(tq.InputError) as refusal:
        table().select(**selection)
    assert "\n" not in str(refusal.value)


def test_targets_of_a_round_are_the_rounds_own():
    by_round, shared = table(round_targets=True), table()

    np.testing.assert_array_equal(by_round.targets_at(1), by_round.targets[1])
    np.testing.assert_array_equal(shared.targets_at(1), shared.targets)
    assert by_round.rounds_up_to(0).shape[0] == 1


def test_a_saved_table_remembers_who_is_missing(tmp_path):
    table = tq.TaskOutputs(
        np.zeros((1, 2, 3)), np.zeros(2), (4.0,), case=["a", "c"], missing_cases=["b", "d"]
    )
    again = tq.TaskOutputs.load(table.save(tmp_path / "t"))

    assert again.missing_cases == ("b", "d")
    assert list(again.case) == ["a", "c"]


def table_whole_groups(rng, groups=60, **more):
    group = np.repeat(np.arange(groups), rng.integers(1, 9, groups))
    areas = rng.gamma(2.0, 100.0, len(group))
    outputs = areas[:, None] * np.exp(0.2 * rng.normal(size=(2, len(group), 8)))
    return tq.TaskOutputs(
        outputs=outputs, targets=areas, accelerations=[4, 2], group=group, task_range=(0, math.inf),
        task_names=["area"], **more,
    )  # fmt: skip


def test_a_sum_is_that_of_its_group_whatever_the_order():
    areas = table_whole_groups(np.random.default_rng(0))
    order = np.random.default_rng(1).permutation(areas.cases)
    sums, mixed = sum_groups(areas, 5.0), sum_groups(areas.select(cases=order), 5.0)
    of_third = areas.select(group=3)

    assert np.allclose(sums.targets, mixed.targets)
    assert np.allclose(sums.outputs, mixed.outputs)
    assert sums.targets[3] == pytest.approx(5 * of_third.targets.sum())
    assert np.allclose(sums.outputs[1, 3], 5 * of_third.outputs[1].sum(0))
    assert sums.task_range == (0, math.inf)


def test_volumes_of_new_groups_are_covered_as_often_as_promised():
    sums = sum_groups(table_whole_groups(np.random.default_rng(2), groups=80), 5.0)
    exact = tq.evaluate_exact(sums.outputs[0], sums.targets, alpha=0.2, score="mlwr")
    # Over all splits coverage is k / (n + 1) for 56 groups that calibrate: exactly, without ties.
    assert exact.coverage.mean == pytest.approx(math.ceil(0.8 * 57) / 57)


def test_several_tasks_are_summed_each(tmp_path):
    one = table_whole_groups(np.random.default_rng(0))
    both = tq.TaskOutputs(
        outputs=np.stack([one.outputs, 2 * one.outputs], -1),
        targets=np.stack([one.targets, 2 * one.targets], -1),
        accelerations=[4, 2], group=one.group, task_names=["a", "b"],
    )  # fmt: skip
    sums = sum_groups(both)
    assert np.allclose(sums.targets[:, 1], 2 * sum_groups(one).targets)
    assert sums.task_ranges == (None, None)


def test_sums_that_mean_nothing_are_refused():
    areas = table_whole_groups(np.random.default_rng(0))
    with refused("groups.missing"):
        sum_groups(
            tq.TaskOutputs(outputs=areas.outputs, targets=areas.targets, accelerations=[4, 2])
        )
    with refused("value.invalid"):
        sum_groups(areas, 0)
    with refused("table.incomplete"):
        sum_groups(table_whole_groups(np.random.default_rng(0), missing_cases=("patient-7",)))


def test_sums_are_called_what_groups_were_called():
    said = {"words": {"case": "slice", "group": "patient", "measurement": "view"}, "seed": 3}
    sums = sum_groups(table_whole_groups(np.random.default_rng(0), provenance=said))

    assert sums.provenance["words"] == said["words"] | {"case": "patient"}
    assert sums.provenance["seed"] == 3
    assert said["words"]["case"] == "slice"


rng = np.random.default_rng(2)
CASES = [f"quake {k}" for k in range(60)]
ROUNDS = {"3 shots": 30.0, "10 shots": 9.0}


def rows():
    """Two tasks in two rounds, as somebody's program writes them."""
    made = []
    for task, unit in (("count", 10.0), ("depth", 1.0)):
        z = unit * rng.random(60)
        for name, R in ROUNDS.items():
            x = z[:, None] + 0.1 * unit * rng.standard_normal((60, 3))
            frame = pd.DataFrame(x, columns=["output_0", "output_1", "output_2"])
            made.append(frame.assign(case=CASES, round=name, acceleration=R, task=task, target=z))
    return pd.concat(made, ignore_index=True)


FRAME = rows()
TABLE = tq.TaskOutputs.load(FRAME)
ASKED = {"alpha": 0.2, "acceleration": "10 shots"}


@pytest.mark.parametrize(
    "ask",
    [
        lambda t: tq.calibrate(t, **ASKED, task="depth"),
        lambda t: tq.calibrate_joint(t, **ASKED),
        lambda t: tq.evaluate_exact(t, **ASKED, task="count"),
        lambda t: tq.plan(t, alpha=0.2, max_width={"count": 8, "depth": 0.8}),
    ],
)
def test_a_frame_and_a_path_do_what_their_table_does(tmp_path, ask):
    FRAME.to_csv(tmp_path / "quakes.csv", index=False)

    assert str(ask(TABLE)) == str(ask(FRAME)) == str(ask(tmp_path / "quakes.csv"))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda f: f.drop(columns="task"), "table.duplicate"),
        (lambda f: f.drop(columns="acceleration"), "rounds.invalid"),
        (lambda f: f.assign(task=["", *f.task[1:]]), "table.column"),
    ],
)
def test_rows_that_lack_something_are_told_which_column(change, code):
    with refused(code):
        tq.TaskOutputs.load(change(FRAME))


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda: tq.TaskOutputs(np.ones((3, 9)), np.ones(9), (8, 4, 2)), "shape.mismatch"),
        (lambda: tq.TaskOutputs(np.ones((3, 9, 1)), np.ones(9)), "rounds.invalid"),
        (lambda: tq.calibrate(TABLE, **ASKED, task=1), "choice.unknown"),
        (lambda: tq.plan(TABLE, alpha=0.2), "option.missing"),
    ],
)
def test_what_is_missing_is_called_by_its_name(ask, code):
    with refused(code):
        ask()


def test_a_round_of_unknown_acceleration_has_no_number():
    assert str(tq.TaskOutputs(np.ones(5), np.ones(5))) == (
        "TaskOutputs(1 round, 5 cases, 1 sample, 1 task)"
    )


rng_undeclared = np.random.default_rng(0)
OUTPUTS, TARGETS = rng_undeclared.random((2, 60, 4)), rng_undeclared.random(60)
PLAIN = tq.TaskOutputs(OUTPUTS, TARGETS, (8, 4))
HINT = "no range is declared"
ASKED_UNDECLARED = {"alpha": 0.2, "max_width": 0.5}


@pytest.mark.parametrize(
    "table",
    [
        tq.TaskOutputs(OUTPUTS, TARGETS, (8, 4), task_range=(0, 1)),
        tq.TaskOutputs(OUTPUTS - 0.1, TARGETS, (8, 4)),
        tq.TaskOutputs(OUTPUTS, TARGETS * 1.1, (8, 4)),
    ],
)
def test_what_is_declared_or_reaches_beyond_is_not_spoken_of(table):
    assert suggest_range(table) is None
    assert "--range 0,1 " in suggest_range(PLAIN)


def test_of_several_tasks_those_are_named_that_may_be_probabilities():
    x, z = np.stack([OUTPUTS, 90 * OUTPUTS], -1), np.stack([TARGETS, 90 * TARGETS], -1)
    said = suggest_range(tq.TaskOutputs(x, z, (8, 4), task_names=["tear", "area"]))

    assert "targets of tear are" in said
    assert "--range tear=0:1 " in said


@pytest.mark.parametrize("command", ["calibrate", "evaluate", "plan", "simulate", "report"])
def test_page_and_command_line_say_it_until_it_is_declared(tmp_path, capsys, command):
    path = PLAIN.save(tmp_path / "table.npz")
    options = {
        "calibrate": ["--acceleration", "8"], "evaluate": ["--splits", "20"],
        "plan": ["--max-width", "0.5"], "simulate": ["--max-width", "0.5", "--splits", "20"],
        "report": ["--splits", "20"],
    }  # fmt: skip
    ends = [] if command in ("evaluate", "simulate") else ["-o", str(tmp_path / "made")]
    for declared in ([], ["--range", "0,1"]):
        main([command, str(path), "--alpha", "0.2", *options[command], *declared, *ends])
        assert (HINT in capsys.readouterr().err) == (not declared)


def test_the_page_says_it_and_clips_nothing(tmp_path):
    page = tq.make_report(PLAIN, tmp_path / "page", **ASKED_UNDECLARED, splits=20)
    policy = tq.load_policy(page.parent / "policy.json")

    assert HINT in page.read_text()
    assert policy.task_ranges == (None,)
