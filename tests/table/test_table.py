import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import taskuq as tq
from raising import refused
from taskuq._config import from_toml_table
from taskuq.cli.app import main
from taskuq.table._table import suggest_range, sum_groups
from taskuq.table._terminology import MRI, Terminology, as_terminology

RNG = np.random.default_rng(3)
PARTS = ("outputs", "targets", "accelerations", "group", "site", "label", "case")


def table(rounds=2, cases=6, samples=3, tasks=None, round_targets=False, ids="strings", **extra):
    shape = (rounds, cases, samples) + (() if tasks is None else (tasks,))
    targets = (rounds,) * round_targets + (cases,) + (() if tasks is None else (tasks,))
    names = {} if tasks is None else {"task_names": [f"tear {k}" for k in range(tasks)]}
    if ids is not None:
        numbers = np.arange(cases)
        text = ids == "strings"
        extra |= {
            "case": [f"slice {i}" for i in numbers[::-1]] if text else numbers[::-1] + 7,
            "group": [f"knee {i // 2}" for i in numbers] if text else numbers // 2,
            "site": [f"hospital {i // 4}" for i in numbers] if text else numbers // 4,
            "label": ["tear", "none"] * (cases // 2) if text else numbers % 2,
        }
    given = {"targets": RNG.random(targets), "accelerations": [8.0, 4.0, 2.0][:rounds]}
    return tq.TaskOutputs(RNG.random(shape).astype(np.float32), **given | names | extra)


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
    "missing cases": {"missing_cases": ["b", "d"]},
    "no targets": {"targets": None},
}


@pytest.mark.parametrize("name", ["table.npz", "folder"])
@pytest.mark.parametrize("kind", KINDS)
def test_table_survives_a_file(kind, name, tmp_path):
    before = table(**KINDS[kind])
    after = tq.TaskOutputs.load(before.save(tmp_path / name))
    assert_same(after, before)
    assert after.select(cases=[1, 2]).cases == 2
    assert (after.missing_cases, after.has_targets) == (before.missing_cases, before.has_targets)


def test_table_without_ids_survives_a_file(tmp_path):
    numbered = np.arange(5)  # as a folder numbers cases without names
    before = tq.TaskOutputs(RNG.random((5, 2)).astype(np.float32), RNG.random(5), case=numbered)
    unnamed = tq.TaskOutputs(before.outputs, before.targets)
    assert_same(tq.TaskOutputs.load(unnamed.save(tmp_path / "table.npz")), unnamed)
    assert_same(tq.TaskOutputs.load(unnamed.save(tmp_path / "folder")), before)


def test_folder_is_plain_parquet(tmp_path):
    import pyarrow.parquet as pq

    before = table(tasks=2)
    folder = before.save(tmp_path / "folder")
    rows = pq.read_table(sorted(folder.glob("*.parquet"))[0]).to_pydict()
    assert set(rows) == {
        "case", "group", "site", "label", "acceleration",
        "target_tear 0", "outputs_tear 0", "target_tear 1", "outputs_tear 1",
    }  # fmt: skip
    np.testing.assert_array_equal(rows["outputs_tear 1"], before.outputs[0, :, :, 1])


def test_bare_npz_is_a_table(tmp_path):
    np.savez(bare := tmp_path / "bare.npz", outputs=RNG.random((4, 3)), targets=RNG.random(4))
    assert tq.TaskOutputs.load(bare).task_range is None
    ranged = tq.TaskOutputs.load(bare, task_range=(0, 1)).save(tmp_path / "ranged.npz")
    for path, high, code in ((bare, 1e-9, "range.outside"), (ranged, 2, "range.invalid")):
        with refused(code):
            tq.TaskOutputs.load(path, task_range=(0, high))


@given(
    rounds=st.sets(st.sampled_from([8.0, 4.0, 2.0]), min_size=1),
    samples=st.integers(1, 3),
    cases=st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True),
)
def test_selection_is_the_named_part(rounds, samples, cases):
    whole = table(rounds=3, round_targets=True)
    part = whole.select(accelerations=list(rounds), samples=samples, cases=cases)
    index = [whole.round_index(R) for R in sorted(rounds, reverse=True)]
    np.testing.assert_array_equal(part.outputs, whole.outputs[index][:, cases][:, :, :samples])
    np.testing.assert_array_equal(part.targets, whole.targets[index][:, cases])
    np.testing.assert_array_equal(part.group, whole.group[cases])


def test_selection_by_group_mask_and_task():
    whole = table(tasks=2)
    assert whole.select(group="knee 1").case.tolist() == whole.case[2:4].tolist()
    assert whole.select(group=["knee 0", "knee 2"]).cases == 4
    assert whole.select(cases=np.arange(6) > 3).cases == 2
    one = whole.select(task="tear 1")
    np.testing.assert_array_equal(one.outputs, whole.outputs[..., 1])
    np.testing.assert_array_equal(one.targets, whole.targets[..., 1])


@pytest.mark.parametrize(
    ("selection", "code"),
    [
        ({"accelerations": [3]}, "choice.unknown"),
        ({"samples": 0}, "samples.mismatch"),
        ({"group": "nothing"}, "choice.unknown"),
        ({"task": "nothing"}, "choice.unknown"),
        ({"cases": []}, "value.invalid"),
        ({"cases": [True, False]}, "value.invalid"),
        ({"cases": [0, 0]}, "table.duplicate"),
        ({"cases": ["a"]}, "value.invalid"),
    ],
)
def test_unknown_selection_is_refused(selection, code):
    with refused(code):
        table().select(**selection)


def table_whole_groups(rng, groups=60, **more):
    group = np.repeat(np.arange(groups), rng.integers(1, 9, groups))
    areas = rng.gamma(2.0, 100.0, len(group))
    outputs = areas[:, None] * np.exp(0.2 * rng.normal(size=(2, len(group), 8)))
    return tq.TaskOutputs(
        outputs=outputs, targets=areas, accelerations=[4, 2], group=group, task_range=(0, math.inf),
        task_names=["area"], **more,
    )  # fmt: skip


def test_sum_of_a_group_does_not_depend_on_order():
    areas = table_whole_groups(np.random.default_rng(0))
    order = np.random.default_rng(1).permutation(areas.cases)
    sums, mixed = sum_groups(areas, 5.0), sum_groups(areas.select(cases=order), 5.0)
    of_third = areas.select(group=3)
    assert np.allclose(sums.targets, mixed.targets)
    assert np.allclose(sums.outputs, mixed.outputs)
    assert sums.targets[3] == pytest.approx(5 * of_third.targets.sum())
    assert np.allclose(sums.outputs[1, 3], 5 * of_third.outputs[1].sum(0))
    assert sums.task_range == (0, math.inf)


def test_undefined_sums_are_refused():
    areas = table_whole_groups(np.random.default_rng(0))
    with refused("groups.missing"):
        sum_groups(tq.TaskOutputs(areas.outputs, areas.targets, [4, 2]))
    with refused("value.invalid"):
        sum_groups(areas, 0)
    with refused("table.incomplete"):
        sum_groups(table_whole_groups(np.random.default_rng(0), missing_cases=("patient-7",)))


rng = np.random.default_rng(2)
CASES = [f"quake {k}" for k in range(60)]
ROUNDS = {"3 shots": 30.0, "10 shots": 9.0}


def rows():
    """Two tasks in two rounds, as a data frame."""
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
def test_frames_and_paths_are_accepted_as_tables(tmp_path, ask):
    FRAME.to_csv(tmp_path / "quakes.csv", index=False)
    assert str(ask(TABLE)) == str(ask(FRAME)) == str(ask(tmp_path / "quakes.csv"))


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda: tq.TaskOutputs.load(FRAME.drop(columns="task")), "table.duplicate"),
        (lambda: tq.TaskOutputs.load(FRAME.drop(columns="acceleration")), "rounds.invalid"),
        (lambda: tq.TaskOutputs.load(FRAME.assign(task=["", *FRAME.task[1:]])), "table.column"),
        (lambda: tq.TaskOutputs(np.ones((3, 9)), np.ones(9), (8, 4, 2)), "shape.mismatch"),
        (lambda: tq.TaskOutputs(np.ones((3, 9, 1)), np.ones(9)), "rounds.invalid"),
        (lambda: tq.calibrate(TABLE, **ASKED, task=1), "choice.unknown"),
        (lambda: tq.plan(TABLE, alpha=0.2), "option.missing"),
        (lambda: tq.TaskOutputs(np.ones(3), group=[1, 1, 2], site=[1, 2, 2]), "table.duplicate"),
    ],
)
def test_incomplete_calls_are_refused(ask, code):
    with refused(code):
        ask()


rng_undeclared = np.random.default_rng(0)
OUTPUTS, TARGETS = rng_undeclared.random((2, 60, 4)), rng_undeclared.random(60)
PLAIN = tq.TaskOutputs(OUTPUTS, TARGETS, (8, 4))
HINT = "--range 0,1 "


@pytest.mark.parametrize("command", ["calibrate", "plan"])
def test_commands_suggest_a_range_for_probabilities_only(tmp_path, capsys, command):
    for outputs, targets in ((OUTPUTS - 0.1, TARGETS), (OUTPUTS, TARGETS * 1.1)):
        assert suggest_range(tq.TaskOutputs(outputs, targets, (8, 4))) is None
    path = PLAIN.save(tmp_path / "table.npz")
    options = ["--acceleration", "8"] if command == "calibrate" else ["--max-width", "0.5"]
    ends = ["-o", str(tmp_path / "made")]
    for declared in ([], ["--range", "0,1"]):
        main([command, str(path), "--alpha", "0.2", *options, *declared, *ends])
        assert (HINT in capsys.readouterr().err) == (not declared)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"image": "x"}, "config.key"),
        ({"case": ""}, "value.invalid"),
        ({"case": 3}, "value.invalid"),
        ({"case": "x" * 61}, "value.invalid"),
        (7, "config.type"),
    ],
)
def test_wrong_terminology_is_refused(words, code):
    with refused(code):
        as_terminology(words)


def test_run_has_the_terminology_of_its_system_or_file():
    run_module = pytest.importorskip("taskuq.experiments._run")
    settings = [{}, {"measure": {"kind": "tomography"}}, {"terminology": {"case": "head"}}]
    found = [
        run_module._Run(None, None, from_toml_table(run_module.RunConfig, table), None).terminology
        for table in settings
    ]
    assert found[0] == MRI
    assert found[1].measurement == "view"
    assert found[2] == Terminology(case="head")
