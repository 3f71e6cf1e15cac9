"""Tables come back from files as they were, and smaller tables are parts of larger ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import taskuq as tq
from raising import refused

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
    with pytest.raises(tq.InputError, match="no case"):
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
