"""A state belongs to one scan, one policy, one recovery, one task, one seed and one process."""

import json
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
from toy_scanner import PowerCutError, failing

from raising import refused
from taskuq._io import file_lock, write_json
from taskuq.cli.app import main
from taskuq.errors import InputError
from taskuq.scan._audit import append_entries, read_audit_log
from taskuq.scan._state import ScanState


@pytest.fixture
def half_done(toy, toy_policy, longest, tmp_path):
    """The state of a scan whose power was cut in its third round."""
    scanner = failing(toy.scanner_of(longest), 2)
    with pytest.raises(PowerCutError):
        toy.scan(scanner, policy=toy_policy, state=tmp_path / "scan.json")
    return tmp_path / "scan.json"


def state_is_refused(toy, toy_policy, state, match, seed=1001, **options):
    scanner = toy.scanner_of(seed)
    with pytest.raises(InputError):
        toy.scan(scanner, policy=toy_policy, state=state, **options)
    assert scanner.measured == []


def test_another_patients_scan_is_refused_finished_or_not(toy, toy_policy, half_done, longest):
    state_is_refused(toy, toy_policy, half_done, "scan_id 'toy', got 'other'", scan_id="other")
    toy.scan(toy.scanner_of(longest), policy=toy_policy, state=half_done)
    state_is_refused(toy, toy_policy, half_done, "scan_id 'toy', got 'other'", scan_id="other")


def test_a_scanner_that_can_shows_first_that_a_stored_scan_is_its_own(
    toy, toy_policy, half_done, longest
):
    def not_mine(round, piece):
        raise InputError("not mine", code="data.leak")

    other, scanner, shown, heard = toy.scanner_of(1001), toy.scanner_of(longest), [], []
    other.remeasure = not_mine
    scanner.remeasure = lambda round, piece: shown.append(round)
    with refused("data.leak"):
        toy.scan(other, policy=toy_policy, state=half_done, on_round=heard.append)
    assert other.measured == heard == []

    scan = toy.scan(scanner, policy=toy_policy, state=half_done, on_round=heard.append)
    assert shown == [0, 1]
    assert [record.round for record in heard] == [*range(len(scan.rounds))]


def test_a_state_needs_a_name(toy, toy_policy, tmp_path):
    state_is_refused(toy, toy_policy, tmp_path / "s.json", "scan_id=", scan_id=None)


def test_another_seed_is_refused(toy, toy_policy, half_done):
    with refused("resume.mismatch"):
        toy.scan(toy.scanner_of(1001), policy=toy_policy, state=half_done, seed=5)


def test_another_recovery_or_task_is_refused(toy, toy_policy, half_done, longest):
    def duller(images):
        return 0.99 * toy.task(images)

    def noisier(measurement, *, samples, seed):
        return toy.recover(measurement, samples=samples, seed=seed + 1)

    state_is_refused(toy, toy_policy, half_done, "other outputs now", task=duller)
    state_is_refused(toy, toy_policy, half_done, "other outputs now", recover=noisier)
    scan = toy.scan(toy.scanner_of(longest), policy=toy_policy, state=half_done)
    assert scan.is_finished
    state_is_refused(toy, toy_policy, half_done, "other outputs now", task=duller)


EDITS = {
    "stop": lambda r: r["rounds"][0].update(stop=True),
    "stop as text": lambda r: r["rounds"][1].update(stop="false"),
    "interval": lambda r: r["rounds"][0].update(lower=[0.0]),
    "outputs": lambda r: r["rounds"][0].update(outputs=[0.5] * 6),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_decision_is_refused_even_with_a_new_seal(toy, toy_policy, half_done, edit):
    record = json.loads(half_done.read_text())
    edit(record)
    write_json(half_done, record)

    if edit is EDITS["stop as text"]:
        # Only the word true stops a scan.
        assert toy.scan(toy.scanner_of(1001), policy=toy_policy, state=half_done)
    else:
        state_is_refused(
            toy, toy_policy, half_done, "other outputs now|not decided as|out of order"
        )


def test_an_edit_without_a_new_seal_is_refused(toy, toy_policy, half_done):
    half_done.write_text(half_done.read_text().replace('"seed": 0', '"seed": 1'))

    state_is_refused(toy, toy_policy, half_done, "not as it was written")


def test_pieces_of_another_scan_are_refused(toy, toy_policy, half_done, tmp_path, longest):
    other = tmp_path / "other"
    toy.scan(toy.scanner_of(longest), policy=toy_policy, state=other / "scan.json", scan_id="b")
    (other / "scan.json-round1.npz").replace(tmp_path / "scan.json-round1.npz")

    state_is_refused(toy, toy_policy, half_done, "another scan or round")


def test_what_was_measured_is_not_measured_again_when_the_recovery_dies(
    toy, toy_policy, longest, tmp_path
):
    class DeadError(BaseException):
        """Nothing that a program survives."""

    def dying(measurement, *, samples, seed):
        if measurement[1].sum() == 8:
            raise DeadError
        return toy.recover(measurement, samples=samples, seed=seed)

    state, scanner = tmp_path / "scan.json", toy.scanner_of(longest)
    with pytest.raises(DeadError):
        toy.scan(scanner, policy=toy_policy, state=state, recover=dying)
    scan = toy.scan(scanner, policy=toy_policy, state=state)

    assert len(scanner.measured) == len(set(scanner.measured)) == toy.SIZE
    whole = toy.scan(toy.scanner_of(longest), policy=toy_policy)
    assert [r.to_dict() for r in scan.rounds] == [r.to_dict() for r in whole.rounds]


LOCKER = """
import sys, time
from pathlib import Path
from taskuq._io import file_lock
with file_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_process_at_a_time(toy, toy_policy, half_done):
    lock = half_done.with_name(f".{half_done.name}.lock")
    command = [sys.executable, "-c", LOCKER, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        state_is_refused(toy, toy_policy, half_done, "another process is working on")
        other.kill()
    # The lock ends with the process that held it.
    with file_lock(lock):
        pass


def test_every_round_is_told_in_a_chain(toy, toy_policy, tmp_path):
    for seed in range(1000, 1005):
        toy.scan(toy.scanner_of(seed), policy=toy_policy, state=tmp_path / f"{seed}.json",
                 scan_id=f"scan-{seed}")  # fmt: skip
    lines = read_audit_log(tmp_path / "log.jsonl")

    assert {line["scan_id"] for line in lines} == {f"scan-{s}" for s in range(1000, 1005)}
    assert sum(line["stop"] for line in lines) == 5
    first = lines[0]
    assert {"time", "round", "policy", "task", "recover", "outputs", "lower", "upper", "reason",
            "latency", "previous", "hash"} <= set(first)  # fmt: skip
    assert first["time"].endswith("+00:00")
    assert first["outputs"]["count"] == 6


def change(lines, at):
    lines[at] = lines[at].replace('"stop": false', '"stop": true').replace('"case"', '"Case"')


def remove(lines, at):
    # A last line that is taken off leaves a shorter chain that is whole: take the one before.
    lines.pop(at if at >= 0 else at - 1)


def repeat(lines, at):
    lines.insert(at, lines[at])


@pytest.mark.parametrize("at", [0, 2, -1])
@pytest.mark.parametrize("edit", [change, remove, repeat])
def test_a_trail_that_was_tampered_with_is_found(toy, toy_policy, tmp_path, at, edit, capsys):
    for seed in (1000, 1001, 1002, 1003):
        toy.scan(toy.scanner_of(seed), policy=toy_policy, audit_log=tmp_path / "log.jsonl",
                 scan_id=str(seed))  # fmt: skip
    path = tmp_path / "log.jsonl"
    main(["audit", str(path)])
    said = capsys.readouterr().out
    assert "1002" in said
    assert "valid" in said
    lines = path.read_text().splitlines()
    edit(lines, at)
    path.write_text("\n".join(lines) + "\n")

    with pytest.raises(SystemExit) as ended:
        main(["audit", str(path)])
    assert ended.value.code == 2
    assert "line" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["not json\n", '{"loss": 1.0}\n', '{"schema": "taskuq.au'])
def test_nothing_is_added_to_a_file_that_is_no_trail(tmp_path, content):
    path = tmp_path / "log.jsonl"
    path.write_text(content)

    with refused("file.schema"):
        append_entries(path, [{"schema": "taskuq.audit/1"}])
    assert path.read_text() == content


def test_a_log_of_something_else_is_refused_before_anything_is_measured(toy, toy_policy, tmp_path):
    (tmp_path / "log.jsonl").write_text('{"loss": 1.0}\n')

    state_is_refused(toy, toy_policy, tmp_path / "scan.json", "audit trail")


def test_a_line_that_a_power_cut_tore_does_not_stop_the_next_scan(toy, toy_policy, tmp_path):
    path = tmp_path / "log.jsonl"
    toy.scan(toy.scanner_of(1000), policy=toy_policy, audit_log=path)
    before = read_audit_log(path)
    with path.open("ab") as file:
        file.write(b'{"schema": "taskuq.audit/1", "time": "2026')
    toy.scan(toy.scanner_of(1001), policy=toy_policy, audit_log=path)

    assert read_audit_log(path)[: len(before)] == before
    assert len(read_audit_log(path)) > len(before)


def test_a_cut_between_trail_and_state_loses_no_line(
    toy, toy_policy, longest, tmp_path, monkeypatch
):
    state = tmp_path / "scan.json"
    keep = ScanState.store

    def cut(self, scans, *, pieces_stored, first=None):
        if first is not None and len(next(iter(scans.values())).rounds) == 2:
            first()
            raise PowerCutError
        keep(self, scans, pieces_stored=pieces_stored, first=first)

    with monkeypatch.context() as patch:
        patch.setattr(ScanState, "store", cut)
        with pytest.raises(PowerCutError):
            toy.scan(toy.scanner_of(longest), policy=toy_policy, state=state)
    toy.scan(toy.scanner_of(longest), policy=toy_policy, state=state)

    told = [line["round"] for line in read_audit_log(tmp_path / "log.jsonl")]
    assert told == [0, 1, 1, 2, 3]


def test_two_processes_may_tell_one_trail(tmp_path):
    code = (
        "import sys; from taskuq.scan._audit import append_entries\n"
        "for i in range(20): append_entries(sys.argv[1], "
        "[{'schema': 'taskuq.audit/1', 'scan_id': str(i)}])"
    )
    path = tmp_path / "log.jsonl"
    both = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]

    assert len(read_audit_log(path)) == 40
    assert np.unique([line["hash"] for line in read_audit_log(path)]).size == 40


class Marked:
    """A part that says which one it is."""

    def __init__(self, part, fingerprint):
        self.part, self.fingerprint = part, fingerprint

    def __call__(self, *arguments, **options):
        return self.part(*arguments, **options)


@pytest.mark.parametrize(("now", "warns"), [("abc", False), ("xyz", True)])
def test_other_networks_than_those_of_the_calibration_are_warned_of(toy, toy_policy, now, warns):
    made = {**toy_policy.provenance, "fingerprints": {"recover": "abc", "task": "def"}}
    policy = replace(toy_policy, provenance=made)
    parts = {"recover": Marked(toy.recover, now), "task": Marked(toy.task, "def")}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        scan = toy.scan(toy.scanner_of(1000), policy=policy, **parts)

    assert scan.is_finished
    assert [str(w.message)[:71] for w in said] == (
        ["no guarantee: the policy was calibrated with recover abc, this is xyz: "] if warns else []
    )
