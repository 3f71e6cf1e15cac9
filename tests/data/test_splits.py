"""Splits of patients: complete, disjoint, repeatable, stored once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raising import refused
from taskuq._io import write_json
from taskuq.data._arrays import ArrayDataset
from taskuq.data._dataset import Split, SplitConfig, load_split, save_split, split_groups

names = st.sets(st.text("abcdefg", min_size=1, max_size=4), min_size=10, max_size=40)


@given(names, st.integers(0, 9))
def test_each_patient_is_in_one_part(groups, seed):
    split = split_groups(groups, 0.6, 0.1, seed=seed)
    assert sorted(split.train + split.tune + split.judge) == sorted(groups)
    assert len(split.train) == int(0.6 * len(groups) + 1e-9)


@given(names, st.integers(0, 9), st.randoms(use_true_random=False))
def test_split_does_not_depend_on_order(groups, seed, shuffler):
    some = list(groups) * 2
    shuffler.shuffle(some)
    assert split_groups(some, 0.5, 0.2, seed=seed) == split_groups(groups, 0.5, 0.2, seed=seed)


def test_parts_hold_whole_patients():
    groups = np.repeat(["a", "b", "c", "d"], 3)
    data = ArrayDataset(np.ones((12, 4, 4)), label=[0, 1, 0] * 4, group=groups)
    parts = Split(("c", "a"), ("d",), ("b",)).of(data)
    assert [sorted(set(part.groups)) for part in parts] == [["a", "c"], ["d"], ["b"]]
    assert [len(part) for part in parts] == [6, 3, 3]
    with refused("resume.mismatch"):  # an unknown patient
        Split(("c", "a"), ("d",), ()).of(data)


@pytest.mark.parametrize(
    "parts", [(("a",), ("a",), ()), (("a",), (), ("b", "a")), ((), ("a",), ("a",))]
)
def test_patient_in_two_parts_is_refused(parts, tmp_path):
    with refused("data.leak"):
        Split(*parts)
    record = dict(zip(("train", "tune", "judge"), map(list, parts), strict=True))
    path = tmp_path / "split.json"
    write_json(path, {"schema": "taskuq.split/1", **record})
    with refused("data.leak"):
        load_split(path)


def test_stored_split_stays(tmp_path):
    groups = np.array([f"p{k}" for k in range(20)])
    config = SplitConfig(path=tmp_path / "split.json", seed=1)
    first = config.split(groups, is_stored=False)
    assert not config.path.exists()
    assert config.split(groups) == config.split(groups[::-1]) == first
    assert load_split(tmp_path / "split.json") == first
    for other in (SplitConfig(tmp_path / "split.json", seed=2), SplitConfig(config.path, 0.5)):
        for is_stored in (True, False):
            with refused("resume.mismatch"):
                other.split(groups, is_stored=is_stored)
    with refused("resume.mismatch"):
        config.split(groups[:-1])


@pytest.mark.filterwarnings("ignore::taskuq.errors.ChecksumWarning")  # written by hand
@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("{", "file.format"),
        ('{"schema": "taskuq.split/1", "train": 3}', "file.format"),
        ("[]", "file.schema"),
    ],
)
def test_broken_file_is_refused(content, code, tmp_path):
    path = tmp_path / "split.json"
    path.write_text(content)
    with refused(code, "split.json"):
        save_split(Split(("a",), ("b",), ("c",)), path)


@pytest.mark.parametrize(
    ("shares", "code"),
    [((0.0, 0.5), "value.invalid"), ((0.9, 0.2), "value.invalid"), ((0.1, 0.1), "units.few")],
)
def test_empty_parts_are_refused(shares, code):
    with refused(code):
        split_groups("abcde", *shares, seed=0)
