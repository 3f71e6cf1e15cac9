"""Tables on disk: resumed and killed writers, damaged and hostile files."""

import json
import os
import pickle
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import taskuq as tq
from raising import refused, refuses
from taskuq._io import with_checksum, write_json
from taskuq.table._parquet import CASE_LIST, TableHeader, TableWriter, _shard_paths, write_case_list

HEADER = TableHeader(accelerations=(4.0, 2.0), samples=3, provenance={"sizes": (1, 2)})


def rows(cases, acceleration):
    """Outputs and targets that identify their case and round."""
    numbers = np.array([int(c.split()[1]) for c in cases], dtype=float)
    outputs = numbers[:, None] + np.array([0, 0.25, 0.5]) + 100 * (acceleration == 2.0)
    return outputs, numbers


def write(writer, cases, acceleration, **extra):
    return writer.write(cases, acceleration, *rows(cases, acceleration), **extra)


def assert_holds(table, cases):
    assert table.case.tolist() == sorted(cases)
    for k, R in enumerate((4.0, 2.0)):
        outputs, targets = rows(sorted(cases), R)
        np.testing.assert_array_equal(table.outputs[k], outputs)
        np.testing.assert_array_equal(table.targets, targets)


def test_run_resumes_where_it_stopped(tmp_path):
    first = TableWriter(tmp_path, HEADER)
    write(first, ["case 1", "case 2"], 4.0)
    write(first, ["case 2"], 2.0)
    begun = tq.TaskOutputs.load(tmp_path)
    assert_holds(begun, ["case 2"])
    assert begun.missing_cases == ("case 1",)
    second = TableWriter(tmp_path, HEADER)
    todo = {(c, R) for c in ("case 1", "case 2", "case 3") for R in (4.0, 2.0)} - second.finished()
    assert todo == {("case 1", 2.0), ("case 3", 4.0), ("case 3", 2.0)}
    for case, R in sorted(todo):
        write(second, [case], R)
    assert_holds(tq.TaskOutputs.load(tmp_path), ["case 1", "case 2", "case 3"])


def test_case_written_twice_counts_once_with_its_group(tmp_path):
    writer = TableWriter(tmp_path, HEADER)
    for R in (4.0, 2.0):
        write(writer, ["case 2", "case 1", "case 2"], R, group=["b", "a", "b"], label=[2, 1, 2])
    write(writer, ["case 2", "case 1"], 2.0, group=["b", "a"], label=[2, 1])
    table = tq.TaskOutputs.load(tmp_path)
    assert_holds(table, ["case 1", "case 2"])
    assert (table.group.tolist(), table.label.tolist()) == (["a", "b"], [1, 2])


def test_half_written_files_are_not_part_of_the_table(tmp_path):
    writer = TableWriter(tmp_path, HEADER)
    paths = [write(writer, ["case 1"], R) for R in (4.0, 2.0)]
    (tmp_path / f".{paths[0].name}.abc.partial").write_bytes(paths[0].read_bytes()[:50])
    (tmp_path / "notes.txt").write_text("not a shard")
    assert_holds(tq.TaskOutputs.load(tmp_path), ["case 1"])
    assert _shard_paths(tmp_path) == sorted(paths)


def test_another_header_or_shape_is_refused(tmp_path):
    TableWriter(tmp_path, HEADER)
    with refused("shape.mismatch"):
        TableWriter(tmp_path, HEADER).write(["case 1"], 4.0, np.zeros((1, 2)), [0.0])
    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]
    with refused("resume.mismatch"):
        TableWriter(tmp_path, TableHeader(accelerations=(4.0, 2.0), samples=4))


RNG = np.random.default_rng(5)
X, Z = RNG.random((1, 5, 3)).astype(np.float32), RNG.random(5)


@pytest.fixture
def folder(tmp_path):
    return tq.TaskOutputs(X, Z, [4.0]).save(tmp_path / "table")


def header(folder, **changes):
    path = folder / "table.json"
    path.write_text(json.dumps(with_checksum(json.loads(path.read_text()) | changes)))


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, 0.99])
def test_truncated_shard_is_refused(folder, kept):
    shard = _shard_paths(folder)[0]
    whole = shard.read_bytes()
    shard.write_bytes(whole[: int(kept * len(whole)) if kept < 1 and kept else int(kept)])
    refuses(tq.TaskOutputs.load, folder, "file.damaged")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"schema": "other/1"}, "file.schema"),
        ({"schema": "taskuq.table/2"}, "file.schema"),
        ({"samples": 10**12}, "resume.mismatch"),
        ({"samples": 0}, "resume.mismatch"),
        ({"samples": "three"}, "file.format"),
        ({"accelerations": [8.0]}, "resume.mismatch"),
        ({"accelerations": None}, "file.format"),
        ({"task_names": ["a", "b"]}, "resume.mismatch"),
        ({"task_range": [1, 0]}, "range.invalid"),
        ({"task_range": [5, 6]}, "resume.mismatch"),
        ({"provenance": 3}, "file.format"),
    ],
)
def test_wrong_header_is_refused(folder, changes, code):
    header(folder, **changes)
    refuses(tq.TaskOutputs.load, folder, code)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 10**5])
def test_damaged_header_is_refused(folder, text):
    (folder / "table.json").write_text(text)
    refuses(tq.TaskOutputs.load, folder, "file.schema" if text == "[]" else "file.format")


def test_folder_without_a_table_is_refused(tmp_path, folder):
    for shard in _shard_paths(folder):
        shard.unlink()
    refuses(tq.TaskOutputs.load, tmp_path, "file.missing")
    refuses(tq.TaskOutputs.load, folder, "table.incomplete")
    refuses(tq.TaskOutputs.load, tmp_path / "nowhere", "file.missing")


FLOATS = pa.FixedSizeListArray.from_arrays(pa.array(X[0].ravel()), 3)
COLUMNS = {
    "case": pa.array([f"{i}" for i in range(5)]),
    "acceleration": pa.array([4.0] * 5),
    "target": pa.array(Z),
    "outputs": FLOATS,
}
FOREIGN = {
    "no case": {"case": None},
    "no outputs": {"outputs": None},
    "null case": {"case": pa.array(["a", None, "b", "c", "d"])},
    "lists as cases": {"case": pa.array([[1], [2], [3], [4], [5]])},
    "text as acceleration": {"acceleration": pa.array(["4"] * 5)},
    "null target": {"target": pa.array([0.1, None, 0.1, 0.1, 0.1])},
    "one number as outputs": {"outputs": pa.array(Z)},
    "lists of any length": {"outputs": pa.array([[1.0], [1.0, 2.0], [], [1.0], [2.0]])},
    "text in lists": {"outputs": pa.FixedSizeListArray.from_arrays(pa.array(["a"] * 15), 3)},
    "a null list": {"outputs": pa.array([None] + [[1.0, 2, 3]] * 4, pa.list_(pa.float32(), 3))},
    "a null in a list": {"outputs": pa.array([[None, 2.0, 3.0]] * 5, pa.list_(pa.float32(), 3))},
    "NaN outputs": {"outputs": pa.FixedSizeListArray.from_arrays(pa.array(np.full(15, np.nan)), 3)},
}  # fmt: skip


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_shard_is_refused(folder, kind):
    pq.write_table(pa.table(COLUMNS), _shard_paths(folder)[0])
    np.testing.assert_array_equal(tq.TaskOutputs.load(folder).outputs, X)
    columns = {k: v for k, v in (COLUMNS | FOREIGN[kind]).items() if v is not None}
    pq.write_table(pa.table(columns), _shard_paths(folder)[0])
    codes = ("table.column", "samples.mismatch", "value.nonfinite", "file.damaged")
    refuses(tq.TaskOutputs.load, folder, *codes)


def npy(array, shape=None):
    """The bytes of a .npy file, whose header may claim another shape."""
    file = BytesIO()
    description = {"descr": "<f8", "fortran_order": False, "shape": shape or array.shape}
    np.lib.format.write_array_header_1_0(file, description)
    return file.getvalue() + np.asarray(array, "<f8").tobytes()


@pytest.mark.parametrize(
    ("outputs", "code"),
    [
        (None, "table.column"),
        (b"not an array", "file.format"),
        (npy(np.zeros((4, 3))), "shape.mismatch"),
        (npy(np.zeros((5, 3)), (10**9, 10**5)), "file.damaged"),
    ],
)
def test_incomplete_npz_is_refused(tmp_path, outputs, code):
    path = tmp_path / "some.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("targets.npy", npy(Z))
        if outputs is not None:
            file.writestr("outputs.npy", outputs)
    refuses(tq.TaskOutputs.load, path, code)


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"attributes": np.array("[]")}, "file.format"),
        ({"attributes": np.array('{"task_names": 5}')}, "dtype.invalid"),
        ({"attributes": np.array('{"provenance": [1]}')}, "dtype.invalid"),
        ({"attributes": np.array('{"task_range": ["a", 1]}')}, "range.invalid"),
        ({"accelerations": np.array(["a"])}, "dtype.invalid"),
        ({"accelerations": np.array([1.0])}, "rounds.invalid"),
        ({"accelerations": np.array([4j])}, "dtype.invalid"),
    ],
)
def test_wrong_parts_of_an_npz_are_refused(tmp_path, parts, code):
    np.savez(tmp_path / "odd.npz", **{"outputs": X, "targets": Z, "accelerations": [4.0]} | parts)
    refuses(tq.TaskOutputs.load, tmp_path / "odd.npz", code)


def test_other_files_are_refused(tmp_path):
    for name, content in (("text.npz", b"hello"), ("empty.npz", b""), ("one.npy", npy(Z))):
        (tmp_path / name).write_bytes(content)
        refuses(tq.TaskOutputs.load, tmp_path / name, "file.format")


class Bomb:
    """Unpickling this writes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_bomb_works(tmp_path):
    pickle.loads(pickle.dumps(Bomb(tmp_path / "boom"))).close()
    assert (tmp_path / "boom").exists()


def pickled(path, bomb):
    path.write_bytes(pickle.dumps(bomb))


def objects(path, bomb):
    with path.open("wb") as file:
        np.savez(file, outputs=np.array([bomb], dtype=object), targets=np.zeros(1))


def pickled_npy(path, bomb):
    with path.open("wb") as file:
        np.save(file, np.array([bomb], dtype=object))


@pytest.mark.parametrize("write", [pickled, objects, pickled_npy])
@pytest.mark.parametrize("name", ["t.npz", "t.pkl", "t.csv", "t.parquet"])
def test_table_with_objects_is_refused_and_not_run(tmp_path, write, name):
    write(tmp_path / name, Bomb(tmp_path / "boom"))
    refuses(tq.TaskOutputs.load, tmp_path / name, "file.format", "table.column")
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("part", ["header", "roster", "shard"])
def test_folder_with_a_pickle_is_refused_and_not_run(tmp_path, part):
    folder = tmp_path / "t"
    writer = TableWriter(folder, TableHeader((4.0,), 3, order="roster"))
    shard = writer.write(["a"], 4.0, np.zeros((1, 3)), [0.0])
    names = {"header": "table.json", "roster": "cases.pq", "shard": shard.name}
    pickled(folder / names[part], Bomb(tmp_path / "boom"))
    refuses(tq.TaskOutputs.load, folder, "file.format", "file.damaged")
    assert not (tmp_path / "boom").exists()


def test_only_shards_match_parquet(tmp_path):
    folder = tmp_path / "t"
    writer = TableWriter(folder, TableHeader((4.0,), 3, order="roster"))
    write_case_list(folder, ["a", "b"])
    shard = writer.write(["a"], 4.0, np.zeros((1, 3)), [0.0])
    assert list(folder.glob("*.parquet")) == [shard]
    assert pq.ParquetFile(folder / CASE_LIST).metadata.num_rows == 2


def table_of(folder, samples):
    writer = TableWriter(folder, TableHeader((4.0,), samples))
    writer.write(["a", "b"], 4.0, np.ones((2, samples)), [0.0, 1.0])
    return folder


@pytest.mark.parametrize("claimed", [16, 64, 10**15])
def test_false_number_of_samples_is_refused(tmp_path, claimed):
    folder = table_of(tmp_path / "t", 32)
    (shard,) = _shard_paths(folder)
    # Somebody who means it takes the checksums away.
    pq.write_table(pq.read_table(shard).replace_schema_metadata(None), shard)
    header = folder / "table.json"
    write_json(header, json.loads(header.read_text()) | {"samples": claimed})
    with refused("samples.mismatch"):
        tq.TaskOutputs.load(folder)


def test_unequal_lists_with_a_false_schema_are_refused(tmp_path):
    folder = table_of(tmp_path / "t", 3)
    (shard,) = _shard_paths(folder)
    honest = pq.read_table(shard)
    unequal = honest.set_column(
        honest.column_names.index("outputs"), "outputs",
        pa.array([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0]], pa.list_(pa.float32())),
    )  # fmt: skip
    # The file's own note of what it was written from, which readers believe.
    claim = {b"ARROW:schema": pq.read_metadata(shard).metadata[b"ARROW:schema"]}
    with pq.ParquetWriter(shard, unequal.schema, store_schema=False) as writer:
        writer.write_table(unequal)
        writer.add_key_value_metadata(claim)
    assert pa.types.is_fixed_size_list(pq.read_schema(shard).field("outputs").type)
    with refused("file.damaged"):
        tq.TaskOutputs.load(folder)


def test_very_long_name_is_refused(tmp_path):
    writer = TableWriter(tmp_path / "t", TableHeader((4.0,), 3))
    writer.write(["a", "b" * 10**6], 4.0, np.ones((2, 3)), [0.0, 1.0])
    with refused("value.invalid"):
        tq.TaskOutputs.load(tmp_path / "t")


CASES = 50_000

ALLOWED = 1.5e9 * CASES / 1e6

SCRIPT = """
import json, sys, tempfile
from pathlib import Path
import numpy as np
import taskuq as tq
from taskuq.table._parquet import TableHeader, TableWriter

RATES = (16.0, 8.0, 4.0, 2.0)

def peak():
    # Not getrusage: a child starts with the largest memory of the process that started it.
    (line,) = (l for l in open("/proc/self/status") if l.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024

def write_and_read(folder, cases):
    writer = TableWriter(folder, TableHeader(RATES, 32))
    for start in range(0, cases, 5000):
        names = np.char.add("patient-", np.arange(start, start + 5000).astype(str))
        outputs = np.random.default_rng(start).random((5000, 32), dtype=np.float32)
        for R in RATES:
            writer.write(names, R, outputs, outputs[:, 0], group=names, label=outputs[:, 0] > 0.5)
    writing = peak()
    assert tq.TaskOutputs.load(folder).cases == cases
    return writing

with tempfile.TemporaryDirectory() as scratch:
    write_and_read(Path(scratch) / "small", 5000)  # what libraries take once
    before = peak()
    writing = write_and_read(Path(scratch) / "large", int(sys.argv[1]))
    print(json.dumps([writing - before, peak() - before]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_large_table_is_written_and_read_within_its_share_of_memory():
    command = [sys.executable, "-c", SCRIPT, str(CASES)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    writing, reading = json.loads(ended.stdout)
    assert writing < 0.1 * ALLOWED
    # The outputs themselves are 51 MB: without them in the count it would measure nothing.
    assert 4 * CASES * 32 * 4 < reading < ALLOWED


def test_one_of_two_writers_with_other_seeds_is_accepted(tmp_path):
    together = threading.Barrier(2)

    def begin(name, seed):
        together.wait()
        header = TableHeader((4.0,), 3, provenance={"seed": seed})
        try:
            return TableWriter(tmp_path / name, header) is not None
        except tq.InputError:
            return False

    with ThreadPoolExecutor(2) as pool:
        for pair in range(15):
            assert all(pool.map(begin, [f"same {pair}"] * 2, (1, 1)))
            assert sum(pool.map(begin, [f"other {pair}"] * 2, (1, 2))) == 1


def test_header_is_not_written_through_a_link(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "table.json").symlink_to(tmp_path / "elsewhere.json")
    with refused("file.missing"):
        TableWriter(tmp_path / "t", TableHeader((4.0,), 3))
    assert not (tmp_path / "elsewhere.json").exists()


def test_pipe_among_shards_is_refused(tmp_path):
    tq.TaskOutputs(np.zeros((1, 2, 3)), np.zeros(2), (4.0,)).save(tmp_path / "t")
    os.mkfifo(tmp_path / "t" / "part-000009-pipe.parquet")
    with refused("file.format"):
        tq.TaskOutputs.load(tmp_path / "t")
