"""Tables of several tasks, with ranges of their own and rounds that have names."""

import numpy as np
import pandas as pd
import pytest

import taskuq as tq
from raising import refused
from taskuq.errors import InputError
from taskuq.table._formats import _join_tasks
from taskuq.table._table import as_rounds

NAMES = ("12 views", "24 views")
PARTS = ("outputs", "targets", "accelerations", "case", "group", "label")


def made(**changes):
    rng = np.random.default_rng(0)
    parts = {
        "case": ["007", "b", "c", "a"], "group": list("xxyy"), "label": ["no", "yes", "no", "yes"],
        "task_names": ["lesion", "area", "volume"], "round_names": NAMES,
        "task_range": {"lesion": (0, 1), "area": (0, np.inf)},
    }  # fmt: skip
    scale = np.array([1, 40, 300]) / 256
    # Numbers that float32 and decimals hold exactly.
    outputs, targets = rng.integers(257, size=(2, 4, 3, 3)), rng.integers(257, size=(4, 3))
    return tq.TaskOutputs(outputs * scale, targets * scale, (16, 8), **parts | changes)


def same(a, b):
    kept = ("task_names", "round_names")
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in PARTS) and all(
        getattr(a, name) == getattr(b, name) for name in kept
    )


@pytest.mark.parametrize("name", ["table.csv", "table.parquet", "table.npz", "table"])
def test_three_tasks_come_back_from_every_kind_of_file(tmp_path, name):
    table = made()

    assert same(tq.TaskOutputs.load(table.save(tmp_path / name)), table)


@pytest.mark.parametrize("name", ["table.npz", "table"])
def test_ranges_of_tasks_are_kept_where_a_file_can_hold_them(tmp_path, name):
    loaded = tq.TaskOutputs.load(made().save(tmp_path / name))

    assert loaded.task_ranges == ((0.0, 1.0), (0.0, np.inf), None)
    assert loaded.select(task="area").task_range == (0.0, np.inf)
    with refused("range.invalid"):
        _ = loaded.task_range


def test_three_tasks_come_from_pandas(tmp_path):
    table = made()
    frame = pd.read_parquet(table.save(tmp_path / "table.parquet"))

    assert same(tq.TaskOutputs.load(frame.sample(frac=1, random_state=0)).select(
        task=table.task_names, cases=np.arange(4)), shuffled(table, frame))  # fmt: skip


def shuffled(table, frame):
    order = frame.sample(frac=1, random_state=0)
    # Cases come in the order of the first task's rows.
    first = order[order.task == order.task.iloc[0]].case.unique()
    return table.select(cases=[table.case.tolist().index(case) for case in first])


def test_samples_of_several_tasks_come_one_by_row(tmp_path):
    table = made()
    frame = pd.read_parquet(table.save(tmp_path / "table.parquet"))
    samples = [f"output_{k}" for k in range(3)]
    long = frame.melt([c for c in frame if c not in samples], samples, "sample", "output")
    long["sample"] = long["sample"].str.removeprefix("output_").astype(int)

    assert same(tq.TaskOutputs.load(long), table)


def test_a_case_without_one_of_its_tasks_is_missing(tmp_path):
    frame = pd.read_parquet(made().save(tmp_path / "table.parquet"))
    table = tq.TaskOutputs.load(frame[(frame.case != "c") | (frame.task != "area")])

    assert table.missing_cases == ("c",)
    assert table.case.tolist() == ["007", "b", "a"]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda f: f.assign(group=np.where(f.task == "area", "z", f.group)), "entries in group"),
        (lambda f: f[(f.task != "area") | (f.acceleration != 8)], "task area has 1 rounds"),
        (lambda f: f.assign(round=f.case), "two names in round"),
        (lambda f: f.assign(task=None), "task"),
        (lambda f: pd.concat([f, f]), "two rows for one case and round; keep one"),
        (lambda f: f.assign(case=f.case + f.task), "no case has all of the tasks"),
    ],
)
def test_rows_that_do_not_fit_are_refused_in_a_sentence(tmp_path, spoil, sentence):
    frame = pd.read_parquet(made().save(tmp_path / "table.parquet"))

    with pytest.raises(InputError, match=sentence):
        tq.TaskOutputs.load(spoil(frame))


@pytest.mark.parametrize("thing", [3, None, object(), [1, 2]])
def test_what_is_neither_path_nor_frame_is_refused(thing):
    with pytest.raises(InputError, match="from a path or a data frame"):
        tq.TaskOutputs.load(thing)


def test_a_formula_does_not_get_into_a_spreadsheet(tmp_path):
    table = made(case=["=1+1", "b", "c", "a"])

    with pytest.raises(InputError, match="as a formula"):
        table.save(tmp_path / "table.csv")
    assert same(tq.TaskOutputs.load(table.save(tmp_path / "table.parquet")), table)


def test_rounds_are_found_by_name():
    table = made()

    assert table.round_index("24 views") == table.round_index(8) == 1
    assert table.select(accelerations=["24 views"]).round_labels == ("24 views",)
    assert repr(table).startswith("TaskOutputs(2 rounds (12 views, 24 views)")
    with pytest.raises(InputError, match="the table has 12 views, 24 views"):
        table.round_index("13 views")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"accelerations": (8, 4), "costs": (1, 2)}, "give one"),
        ({}, "give one"),
        ({"costs": (12, 24)}, "need full_cost"),
        ({"costs": (24, 12), "full_cost": 192}, "rise"),
        ({"costs": (12, 192), "full_cost": 192}, "below full_cost"),
        ({"accelerations": {"a": 8}, "names": ["b"]}, "names already"),
        ({"accelerations": (8, 4), "names": ["a", "a"]}, "different names"),
        ({"accelerations": (8, 4), "names": "ab"}, "list of names"),
    ],
)
def test_rounds_that_are_none_are_refused(given, sentence):
    asked = {"accelerations": None, "costs": None, "full_cost": None, "names": None}
    with pytest.raises(InputError, match=sentence):
        as_rounds(**asked | given)


@pytest.mark.parametrize(
    ("range_", "sentence"),
    [
        ({"lesoin": (0, 1)}, "names 'lesoin', which is no task; the tasks are lesion, area"),
        ([(0, 1), (0, 50)], "2 entries for the 3 tasks"),
        ((1, 0), "low < high"),
        ({"area": (0, 1)}, "outputs of area|targets of area"),
        ("0,1", "low < high"),
    ],
)
def test_ranges_that_do_not_fit_are_refused(range_, sentence):
    with pytest.raises(InputError, match=sentence):
        made(task_range=range_)


def test_tasks_with_other_rounds_are_not_joined():
    table = made()
    one, other = table.select(task="lesion"), table.select(task="area", accelerations=[8])

    with pytest.raises(InputError, match="every task needs the same"):
        _join_tasks({"lesion": one, "area": other})
