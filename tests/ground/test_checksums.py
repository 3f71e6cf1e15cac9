"""Checksums: one flipped bit is found, or it changes nothing."""

import json
import shutil
from operator import eq

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import taskuq as tq
from raising import refused
from taskuq._io import fingerprint, read_json, verify_checksum, with_checksum, write_json
from taskuq.cli import calibrate
from taskuq.cli.app import main
from taskuq.errors import ChecksumWarning
from taskuq.scan._state import load_scan
from taskuq.table import _parquet as parquet
from taskuq.table._examples import SyntheticTable, synthetic_outputs
from taskuq.table._parquet import CASE_LIST, TableHeader, TableWriter, _shard_paths

FLIPS = 160
TABLE = synthetic_outputs(SyntheticTable(volumes=12, samples=6), seed=0)


def flips(content, count=FLIPS, seed=0):
    """The same bytes with one bit turned, at places spread over all of them."""
    rng = np.random.default_rng(seed)
    for place in np.linspace(0, len(content) - 1, count).astype(int):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        yield bytes(damaged)


def ends(path, read, same):
    """How often a turned bit was found, and how often it changed nothing."""
    found = harmless = 0
    content = path.read_bytes()
    for damaged in flips(content):
        path.write_bytes(damaged)
        try:
            assert same(read())
            harmless += 1
        except (tq.InputError, ChecksumWarning):
            found += 1
    path.write_bytes(content)
    assert same(read())
    return found, harmless


def same_table(table, other):
    arrays = ("outputs", "targets", "accelerations", "group", "case")
    return (
        all(np.array_equal(getattr(table, a), getattr(other, a)) for a in arrays)
        and (table.task_range, table.task_names) == (other.task_range, other.task_names)
        and fingerprint(dict(table.provenance)) == fingerprint(dict(other.provenance))
    )


def folder_of(tmp_path):
    header = TableHeader(
        tuple(map(float, TABLE.accelerations)), TABLE.samples, task_ranges=TABLE.task_ranges,
        order="roster", provenance={"seed": 3},
    )  # fmt: skip
    writer = TableWriter(tmp_path / "t", header)
    case = [f"case {i}" for i in range(TABLE.cases)]
    parquet._write_parquet(pa.table({"case": case}), tmp_path / "t" / CASE_LIST)
    for k, R in enumerate(TABLE.accelerations):
        writer.write(case, float(R), TABLE.outputs[k], TABLE.targets_at(k), group=TABLE.group)
    return tmp_path / "t"


def bounds():
    outputs, targets = TABLE.outputs[0], TABLE.targets_at(0)
    return {
        "mlwr": tq.calibrate(outputs, targets, alpha=0.2, task_range=(0, 1)),
        "learned": tq.calibrate(outputs, targets, alpha=0.2, score="learned"),
    }


def a_folder(tmp_path, part):
    folder = folder_of(tmp_path)
    path = _shard_paths(folder)[1] if part == "shard" else folder / part
    return path, lambda: tq.TaskOutputs.load(folder), same_table


def a_file(tmp_path, part):
    path = TABLE.save(tmp_path / "t.npz")
    return path, lambda: tq.TaskOutputs.load(path), same_table


def a_bound(tmp_path, part):
    path = bounds()[part].save(tmp_path / "bound.json")
    return path, lambda: tq.load_bound(path), eq


def a_policy(tmp_path, part):
    path = tq.plan(TABLE, alpha=0.2, max_width=0.3).save(tmp_path / "policy.json")
    return path, lambda: tq.load_policy(path).to_dict(), eq


def a_stored_scan(tmp_path, part):
    policy = a_scan(tmp_path / "scan.json")

    def read():
        scan = load_scan(tmp_path / "scan.json", policy)
        rounds = [record.to_dict() for record in scan.rounds]
        return json.dumps(rounds), [np.asarray(piece).tolist() for piece in scan.measurements]

    return sorted(tmp_path.glob(part))[0], read, eq


# Most bits count; what does not is room that Parquet, JSON or archives leave.
@pytest.mark.parametrize(
    ("make", "part", "least"),
    [
        (a_folder, "shard", 3 / 4), (a_folder, "table.json", 3 / 4), (a_folder, CASE_LIST, 3 / 4),
        (a_file, "", 0), (a_bound, "mlwr", 3 / 4), (a_bound, "learned", 3 / 4),
        (a_policy, "", 3 / 4), (a_stored_scan, "scan.json", 1 / 2),
        (a_stored_scan, "scan.json-round*.npz", 1 / 2),
    ],
)  # fmt: skip
def test_flipped_bits_are_found_or_harmless(tmp_path, make, part, least):
    path, read, same = make(tmp_path, part)
    whole = read()
    found, harmless = ends(path, read, lambda result: same(result, whole))
    assert found + harmless == FLIPS
    assert found >= FLIPS * least


def test_without_checksums_flipped_bits_are_missed(tmp_path, monkeypatch):
    """The planted fault: it is the checksums that find them."""
    opened = pq.ParquetFile
    monkeypatch.setattr(pq, "ParquetFile", lambda path, **settings: opened(path))
    monkeypatch.setattr(parquet, "_read_note", lambda path, schema: {})
    folder = folder_of(tmp_path)
    whole = tq.TaskOutputs.load(folder)
    shard = _shard_paths(folder)[1]

    def is_missed(damaged):
        shard.write_bytes(damaged)
        try:
            return not same_table(tq.TaskOutputs.load(folder), whole)
        except tq.InputError:
            return False

    assert any(map(is_missed, flips(shard.read_bytes())))


def test_missing_checksum_of_policy_or_bound_is_refused(tmp_path):
    made = {
        tq.load_policy: (tq.plan(TABLE, alpha=0.2, max_width=0.3), "plan again"),
        tq.load_bound: (bounds()["mlwr"], "calibrate again"),
    }
    for load, (one, remedy) in made.items():
        path = tmp_path / "one.json"
        path.write_text(json.dumps(one.to_dict()))
        with refused("file.damaged", remedy):
            load(path)


@pytest.mark.filterwarnings("always::taskuq.errors.ChecksumWarning")
def test_table_without_checksums_is_read_with_a_warning(tmp_path, capsys):
    folder = folder_of(tmp_path)
    header = folder / "table.json"
    record = json.loads(header.read_text())
    del record["sha256"]
    header.write_text(json.dumps(record))
    with pytest.warns(ChecksumWarning, match="SHA-256"):
        assert tq.TaskOutputs.load(folder).cases == TABLE.cases
    main(["table", str(folder), "-o", str(tmp_path / "copy.npz")])
    said = capsys.readouterr().err.splitlines()
    assert len([line for line in said if line.startswith("taskuq: ") and "no SHA-256" in line]) == 1


def test_shard_of_another_run_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = folder_of(tmp_path / "a"), folder_of(tmp_path / "b")
    header = json.loads((second / "table.json").read_text())
    write_json(second / "table.json", header | {"provenance": {"seed": 4}})
    stray = _shard_paths(first)[0]
    shutil.copy(stray, second / "part-000009-stray.parquet")
    with refused("resume.mismatch", "part-"):
        tq.TaskOutputs.load(second)


def test_checksum_ignores_order_and_kind_of_keys(tmp_path):
    record = {"schema": "taskuq.x/1", "b": {2: (1, 0.1)}, "a": None}
    path = write_json(tmp_path / "a.json", record)
    assert read_json(path, "taskuq.x/1") == {**record, "b": {"2": [1, 0.1]}}
    verify_checksum(dict(reversed(json.loads(path.read_text()).items())), path)


@pytest.mark.parametrize(
    "change", [{"a": 1}, {"a": True}, {"a": "1.0"}, {"b": 1}, {"sha256": None}]
)
def test_changed_record_is_refused(change):
    with refused("file.damaged"):
        verify_checksum(with_checksum({"a": 1.0}) | change, "a.json")


def test_report_lists_changed_and_unchecked_records(tmp_path):
    from taskuq.report._report import write_report

    good = {"schema": "taskuq.status/1", "cases": 1, "finished": 1, "failed": {}, "left": 0}
    (tmp_path / "changed.json").write_text(json.dumps(with_checksum(good) | {"finished": 0}))
    (tmp_path / "plain.json").write_text(json.dumps(good))
    page = write_report(tmp_path).read_text()
    assert all(name in page for name in ("changed.json", "SHA-256", "plain.json"))


class Scanner:
    """Measures a few numbers of one patient in each round."""

    def measure(self, round):
        return np.random.default_rng(round).random(5) + 1

    def combine(self, pieces):
        return np.concatenate(pieces)


def a_scan(state):
    """A policy that goes on to the end, and a scan under it."""
    policy = tq.plan(TABLE, alpha=0.05, max_width=0.0001)

    def recover(measurement, *, samples, seed):
        return np.random.default_rng(seed).random((samples, 2, 2)) * measurement.mean() / 4

    tq.acquire(
        policy, Scanner(), recover=recover, task=lambda x: x.mean(axis=(1, 2)).clip(0, 1),
        samples=TABLE.samples, scan_id="one", state=state,
    )  # fmt: skip
    return policy


@pytest.mark.parametrize("wrong", [0.1, "abc", [1, 2]])
def test_provenance_that_is_no_table_is_refused(tmp_path, wrong):
    both = np.stack([TABLE.outputs[0]] * 2, axis=-1), np.stack([TABLE.targets_at(0)] * 2, axis=-1)
    joint = tq.calibrate_joint(*both, alpha=0.2)
    made = {
        tq.load_policy: tq.plan(TABLE, alpha=0.2, max_width=0.3), tq.load_bound: bounds()["mlwr"],
        calibrate._load: joint,
    }  # fmt: skip
    for load, one in made.items():
        path = write_json(tmp_path / "one.json", one.to_dict() | {"provenance": wrong})
        with refused("file.format"):
            load(path)
