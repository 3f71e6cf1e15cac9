"""Files that are damaged, foreign or forged: one sentence each, and nothing half read."""

import json
import pickle
import struct
import zipfile
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import taskuq as tq
from taskuq._io import with_checksum
from taskuq.conformal._joint import load_joint_bound
from taskuq.conformal._online import load_online_bound
from taskuq.table._parquet import _shard_paths

RNG = np.random.default_rng(5)
X, Z = RNG.random((1, 5, 3)).astype(np.float32), RNG.random(5)


def refused(load, path, *words):
    with pytest.raises(tq.InputError) as refusal:
        load(path)
    sentence = str(refusal.value)
    assert "\n" not in sentence
    assert len(sentence.replace(str(path), "")) < 300
    assert all(word in sentence for word in words), sentence


@pytest.fixture
def folder(tmp_path):
    return tq.TaskOutputs(X, Z, [4.0]).save(tmp_path / "table")


def header(folder, **changes):
    """A header that somebody changed, and its checksum with it."""
    path = folder / "table.json"
    path.write_text(json.dumps(with_checksum(json.loads(path.read_text()) | changes)))


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, 0.99])
def test_a_truncated_shard_is_named(folder, kept):
    shard = _shard_paths(folder)[0]
    whole = shard.read_bytes()
    shard.write_bytes(whole[: int(kept * len(whole)) if kept < 1 and kept else int(kept)])

    refused(tq.TaskOutputs.load, folder, shard.name, "truncated or damaged", "run again")


def test_a_table_from_a_newer_version_asks_for_an_update(folder):
    header(folder, schema="taskuq.table/2")

    refused(tq.TaskOutputs.load, folder, "taskuq.table/2", "update taskuq")


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "other/1"},
        {"schema": 5},
        {"samples": 10**12},
        {"samples": -1},
        {"samples": 0},
        {"samples": "three"},
        {"samples": float("inf")},
        {"accelerations": [8.0]},
        {"accelerations": []},
        {"accelerations": None},
        {"accelerations": ["a"]},
        {"task_names": []},
        {"task_names": ["a", "b"]},
        {"task_names": 5},
        {"task_range": [1, 0]},
        {"task_range": [5, 6]},
        {"provenance": 3},
    ],
)
def test_a_header_that_does_not_fit_its_rows_is_refused(folder, changes):
    header(folder, **changes)

    refused(tq.TaskOutputs.load, folder)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", json.dumps(with_checksum({"schema": "taskuq.table/1"})), "[" * 10**5],
)
def test_a_header_that_is_no_header_is_refused(folder, text):
    (folder / "table.json").write_text(text)

    refused(tq.TaskOutputs.load, folder)


def test_a_folder_that_is_no_table_says_so(tmp_path, folder):
    for shard in _shard_paths(folder):
        shard.unlink()

    refused(tq.TaskOutputs.load, tmp_path, "not a table")
    refused(tq.TaskOutputs.load, folder, "no rows yet")
    refused(tq.TaskOutputs.load, tmp_path / "nowhere", "there is no table")


FLOATS = pa.FixedSizeListArray.from_arrays(pa.array(X[0].ravel()), 3)
COLUMNS = {
    "case": pa.array([f"{i}" for i in range(5)]),
    "acceleration": pa.array([4.0] * 5),
    "target": pa.array(Z),
    "outputs": FLOATS,
}
FOREIGN = {
    "no case": {"case": None},
    "no acceleration": {"acceleration": None},
    "no target": {"target": None},
    "no outputs": {"outputs": None},
    "null case": {"case": pa.array(["a", None, "b", "c", "d"])},
    "fractional case": {"case": pa.array(np.arange(5.0))},
    "lists as cases": {"case": pa.array([[1], [2], [3], [4], [5]])},
    "text as acceleration": {"acceleration": pa.array(["4"] * 5)},
    "null acceleration": {"acceleration": pa.array([4.0, None, 4.0, 4.0, 4.0])},
    "text as target": {"target": pa.array(["a"] * 5)},
    "null target": {"target": pa.array([0.1, None, 0.1, 0.1, 0.1])},
    "one number as outputs": {"outputs": pa.array(Z)},
    "lists of any length": {"outputs": pa.array([[1.0], [1.0, 2.0], [], [1.0], [2.0]])},
    "text in lists": {"outputs": pa.FixedSizeListArray.from_arrays(pa.array(["a"] * 15), 3)},
    "a null list": {"outputs": pa.array([None] + [[1.0, 2, 3]] * 4, pa.list_(pa.float32(), 3))},
    "a null in a list": {"outputs": pa.array([[None, 2.0, 3.0]] * 5, pa.list_(pa.float32(), 3))},
    "NaN outputs": {"outputs": pa.FixedSizeListArray.from_arrays(pa.array(np.full(15, np.nan)), 3)},
}  # fmt: skip


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_shard_is_refused(folder, kind):
    columns = {k: v for k, v in (COLUMNS | FOREIGN[kind]).items() if v is not None}
    pq.write_table(pa.table(columns), _shard_paths(folder)[0])

    refused(tq.TaskOutputs.load, folder)


def test_a_foreign_shard_of_the_right_columns_is_read(folder):
    pq.write_table(pa.table(COLUMNS), _shard_paths(folder)[0])

    np.testing.assert_array_equal(tq.TaskOutputs.load(folder).outputs, X)


def npy(array, shape=None, version=(1, 0)):
    """The bytes of a .npy file, whose header may claim another shape."""
    file = BytesIO()
    description = {"descr": "<f8", "fortran_order": False, "shape": shape or array.shape}
    write = {
        (1, 0): np.lib.format.write_array_header_1_0,
        (2, 0): np.lib.format.write_array_header_2_0,
    }
    write[version](file, description)
    return file.getvalue() + np.asarray(array, "<f8").tobytes()


def archive(path, **members):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_an_npz_whose_header_lies_is_refused_before_it_is_believed(tmp_path, version):
    path = archive(
        tmp_path / "lie.npz", outputs=npy(np.zeros((5, 3)), (10**9, 10**5), version), targets=npy(Z)
    )

    refused(tq.TaskOutputs.load, path, "array outputs claims shape", "damaged or forged")


def test_an_honest_archive_made_by_hand_is_read(tmp_path):
    path = archive(tmp_path / "true.npz", outputs=npy(np.zeros((5, 3))), targets=npy(Z))

    np.testing.assert_array_equal(tq.TaskOutputs.load(path).targets, Z)


class Bomb:
    """Unpickling this would raise the flag."""

    went_off = False

    def __reduce__(self):
        return (setattr, (Bomb, "went_off", True))


def test_pickled_objects_are_refused_and_never_run(tmp_path):
    content = BytesIO()
    np.save(content, np.array([Bomb()] * 5, dtype=object), allow_pickle=True)
    path = archive(tmp_path / "bomb.npz", outputs=npy(np.zeros((5, 3))), targets=content.getvalue())

    refused(tq.TaskOutputs.load, path, "Python objects")
    assert not Bomb.went_off
    pickle.loads(pickle.dumps(Bomb()))
    assert Bomb.went_off  # the bomb works: loading it would have been seen


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"targets": npy(Z)}, ["no array outputs"]),
        ({}, ["no array outputs", "nothing"]),
        ({"outputs": b"not an array", "targets": npy(Z)}, []),
        ({"outputs": npy(np.zeros((4, 3))), "targets": npy(Z)}, ["(5,)", "(4,)"]),
    ],
)
def test_an_npz_without_what_is_needed_says_what_it_has(tmp_path, members, words):
    refused(tq.TaskOutputs.load, archive(tmp_path / "some.npz", **members), *words)


@pytest.mark.parametrize("attributes", ["[]", "{", '{"task_names": 5}', '{"provenance": [1]}',
                                        '{"missing": 3}', '{"task_range": ["a", 1]}'])  # fmt: skip
def test_attributes_of_another_kind_are_refused(tmp_path, attributes):
    path = tmp_path / "odd.npz"
    np.savez(path, outputs=X, targets=Z, accelerations=[4.0], attributes=np.array(attributes))

    refused(tq.TaskOutputs.load, path)


@pytest.mark.parametrize("accelerations", [np.array(["a"]), np.array([1.0]), np.array([[4.0, 2.0]]),
                                           np.array([4j]), np.array([True])])  # fmt: skip
def test_accelerations_that_are_none_are_refused(tmp_path, accelerations):
    np.savez(tmp_path / "odd.npz", outputs=X, targets=Z, accelerations=accelerations)

    refused(tq.TaskOutputs.load, tmp_path / "odd.npz")


def test_files_that_are_no_archive_are_refused(tmp_path):
    for name, content in (("text.npz", b"hello"), ("empty.npz", b""), ("one.npy", npy(Z))):
        (tmp_path / name).write_bytes(content)
        refused(tq.TaskOutputs.load, tmp_path / name, "cannot be read as a table")


def test_a_damaged_compressed_archive_is_refused(tmp_path):
    path = tq.TaskOutputs(X, Z, [4.0]).save(tmp_path / "table.npz")
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        offset = file.infolist()[0].header_offset
    name, extra = struct.unpack("<HH", content[offset + 26 : offset + 30])
    start = offset + 30 + name + extra
    content[start : start + 20] = b"\xff" * 20
    path.write_bytes(content)

    refused(tq.TaskOutputs.load, path, "truncated")


X2, Z2 = np.stack([X[0], X[0]], axis=2), np.stack([Z, Z], axis=1)
BOUNDS = {
    "bound": (lambda: tq.calibrate(X[0], Z, alpha=0.4, score="mlwr"), tq.load_bound),
    "strata": (lambda: tq.calibrate(X[0], Z, alpha=0.4, strata=[0, 1, 0, 1, 0]), tq.load_bound),
    "weights": (lambda: tq.calibrate(X[0], Z, alpha=0.4, weights=np.ones(5)), tq.load_bound),
    "joint": (lambda: tq.calibrate_joint(X2, Z2, alpha=0.4), load_joint_bound),
    "online": (lambda: tq.calibrate_online(X[0], Z, alpha=0.4), load_online_bound),
}  # fmt: skip


@pytest.mark.parametrize("kind", BOUNDS)
def test_a_bound_with_a_part_missing_or_of_another_kind_is_refused(kind, tmp_path):
    make, load = BOUNDS[kind]
    path = make().save(tmp_path / "bound.json")
    record = json.loads(path.read_text())
    # What is only remembered may be anything.
    used = set(record) - {
        "sentence", "provenance", "acceleration", "method", "alpha", "sha256",
    }  # fmt: skip
    for name in used - {"schema"}:
        for value in ("abc", [[]], {"name": "abc"}, -7.5):
            path.write_text(json.dumps(with_checksum(record | {name: value})))
            if not (
                name in ("level", "step", "audits", "misses", "samples", "rounds") and value == -7.5
            ):
                refused(load, path)
        path.write_text(json.dumps(with_checksum({k: v for k, v in record.items() if k != name})))
        refused(load, path)


@pytest.mark.parametrize("kind", BOUNDS)
def test_a_bound_from_a_newer_version_or_another_kind_is_refused(kind, tmp_path):
    make, load = BOUNDS[kind]
    path = make().save(tmp_path / "bound.json")
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"schema": record["schema"][:-1] + "2"}))
    refused(load, path, "update taskuq")
    path.write_text(json.dumps(record | {"schema": "taskuq.table/1"}))
    refused(load, path, "is needed")
    path.write_text(json.dumps(record)[:-20])
    refused(load, path, "truncated")


@pytest.mark.parametrize("part", ["typical_spreads", "typical_moves", "location", "scale", "prior"])
@pytest.mark.parametrize("value", [[[]], ["a"], {"coefficients": [1]}, 3])
def test_a_learned_score_whose_parts_do_not_fit_is_refused(part, value, tmp_path):
    x, z = RNG.random((60, 3)), RNG.random(60)
    path = tq.calibrate(x, z, alpha=0.2, score="learned").save(tmp_path / "bound.json")
    record = json.loads(path.read_text())
    record["score"]["fit"][part] = value
    path.write_text(json.dumps(with_checksum(record)))

    refused(tq.load_bound, path)
