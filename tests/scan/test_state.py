import json
import stat
import threading
import warnings
from dataclasses import replace

import group_scans as grouped
import numpy as np
import pytest
from group_scans import record, recover
from toy_scanner import PowerCutError, failing

import taskuq as tq
from raising import refused
from taskuq._io import file_lock, write_json
from taskuq.errors import InputError, MachineError
from taskuq.scan import _acquire as acquisition
from taskuq.scan._audit import read_audit_log
from taskuq.scan._state import ScanState, load_scan


@pytest.fixture
def storing(monkeypatch):
    """Do something before a round is stored."""
    keep = ScanState.store_measured

    def first(act):
        def keep_measured(*arguments):
            act()
            keep(*arguments)

        monkeypatch.setattr(ScanState, "store_measured", keep_measured)

    return first


def test_round_is_stored_while_it_is_recovered(toy, toy_policy, tmp_path, storing):
    recovering, told = threading.Event(), []

    def recover(measurement, **options):
        recovering.set()
        return toy.recover(measurement, **options)

    def stored():
        assert recovering.wait(300)
        recovering.clear()
        told.append("stored")

    storing(stored)
    watching = {"state": tmp_path / "scan.json", "on_round": lambda record: told.append("told")}
    scan = toy.scan(toy.scanner_of(5), policy=toy_policy, recover=recover, **watching)
    assert told == ["stored", "told"] * len(scan.rounds)


def test_files_of_a_scan_are_private(toy, toy_policy, tmp_path):
    monitor = tq.Monitor(toy_policy, state=tmp_path / "m.json")
    toy.scan(toy.scanner_of(5), policy=toy_policy, state=tmp_path / "scan.json", monitor=monitor)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("[!.]*")}
    assert {"m.json", "scan.json", "scan.json-round0.npz", "log.jsonl"} <= modes.keys()
    assert set(modes.values()) == {0o600}


def test_unstored_round_is_not_reported(toy, toy_policy, tmp_path, storing):
    monitor, heard = tq.Monitor(toy_policy, delta=0.01), []

    def full():
        raise MachineError("the disk is full")

    storing(full)
    threads = threading.active_count()
    with pytest.raises(MachineError, match="full"):
        toy.scan(toy.scanner_of(5), policy=toy_policy, state=tmp_path / "scan.json",
                 monitor=monitor, on_round=heard.append)  # fmt: skip
    assert heard == read_audit_log(tmp_path / "log.jsonl") == []
    assert monitor.units == 0
    assert threading.active_count() == threads


def test_stored_pieces_are_copies(toy, toy_policy, tmp_path, storing):
    written = threading.Event()

    class Bare:
        def measure(self, round):
            return np.array([round + 1.0, 2.0])

    def recover(pieces, *, samples, seed):
        pieces[-1][:] = 7
        written.set()
        return np.random.default_rng(seed).random((samples, toy.SIZE, toy.SIZE))

    storing(lambda: written.wait(300))
    state = tmp_path / "scan.json"
    scan = toy.scan(Bare(), policy=toy_policy, recover=recover, state=state)
    found = load_scan(state, toy_policy)
    assert [piece[0] for piece in found.measurements] == [k + 1.0 for k in range(len(scan.rounds))]


def test_round_missing_in_the_log_is_not_in_the_state(toy, toy_policy, tmp_path, monkeypatch):
    state = tmp_path / "scan.json"

    def full(path, lines):
        if lines:
            raise MachineError("the disk is full")

    monkeypatch.setattr(acquisition, "append_entries", full)
    with pytest.raises(MachineError, match="full"):
        toy.scan(toy.scanner_of(5), policy=toy_policy, state=state)
    assert load_scan(state, toy_policy).rounds == ()


@pytest.fixture
def half_done(toy, toy_policy, longest, tmp_path):
    """The state of a scan whose power was cut in its third round."""
    scanner = failing(toy.scanner_of(longest), 2)
    with pytest.raises(PowerCutError):
        toy.scan(scanner, policy=toy_policy, state=tmp_path / "scan.json")
    return tmp_path / "scan.json"


def state_is_refused(toy, toy_policy, state, code, **options):
    scanner = toy.scanner_of(1001)
    with refused(code):
        toy.scan(scanner, policy=toy_policy, state=state, **options)
    assert scanner.measured == []


def test_state_of_another_scan_is_refused(toy, toy_policy, half_done, longest, tmp_path):
    state_is_refused(toy, toy_policy, tmp_path / "s.json", "option.missing", scan_id=None)
    (tmp_path / "new").mkdir()
    (tmp_path / "new/log.jsonl").write_text('{"loss": 1.0}\n')
    state_is_refused(toy, toy_policy, tmp_path / "new/scan.json", "file.schema")
    state_is_refused(toy, toy_policy, half_done, "resume.mismatch", scan_id="other")
    other = replace(toy_policy, thresholds=(0.0, 0.0, 0.0))
    state_is_refused(toy, other, half_done, "resume.mismatch")
    toy.scan(toy.scanner_of(longest), policy=toy_policy, state=half_done)
    state_is_refused(toy, toy_policy, half_done, "resume.mismatch", scan_id="other")


def test_scanner_verifies_stored_pieces(toy, toy_policy, half_done, longest):
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


def test_state_of_other_components_is_refused(toy, toy_policy, half_done, longest):
    def duller(images):
        return 0.99 * toy.task(images)

    def noisier(measurement, *, samples, seed):
        return toy.recover(measurement, samples=samples, seed=seed + 1)

    state_is_refused(toy, toy_policy, half_done, "resume.mismatch", task=duller)
    state_is_refused(toy, toy_policy, half_done, "resume.mismatch", recover=noisier)
    scan = toy.scan(toy.scanner_of(longest), policy=toy_policy, state=half_done)
    assert scan.is_finished
    state_is_refused(toy, toy_policy, half_done, "resume.mismatch", task=duller)


EDITS = {
    "stop": lambda r: r["rounds"][0].update(stop=True),
    "stop as text": lambda r: r["rounds"][1].update(stop="false"),
    "interval": lambda r: r["rounds"][0].update(lower=[0.0]),
    "outputs": lambda r: r["rounds"][0].update(outputs=[0.5] * 6),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_edited_decision_is_refused(toy, toy_policy, half_done, edit):
    record = json.loads(half_done.read_text())
    edit(record)
    write_json(half_done, record)
    if edit is EDITS["stop as text"]:
        # Only the word true stops a scan.
        assert toy.scan(toy.scanner_of(1001), policy=toy_policy, state=half_done)
    else:
        is_output = edit is EDITS["outputs"]
        code = "resume.mismatch" if is_output else "file.damaged"
        state_is_refused(toy, toy_policy, half_done, code)


SPOILT = {
    "cut short": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "garbled": lambda data: data[:40] + bytes(200) + data[240:],
    "something else": lambda data: b"not an archive",
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
@pytest.mark.parametrize("name", ["scan.json", "scan.json-round1.npz"])
def test_damaged_state_is_refused(toy, toy_policy, half_done, name, spoil):
    path = half_done.with_name(name)
    path.write_bytes(spoil(path.read_bytes()))
    state_is_refused(toy, toy_policy, half_done, "file.format")


def test_pieces_of_another_scan_are_refused(toy, toy_policy, half_done, tmp_path, longest):
    other = tmp_path / "other"
    toy.scan(toy.scanner_of(longest), policy=toy_policy, state=other / "scan.json", scan_id="b")
    (other / "scan.json-round1.npz").replace(tmp_path / "scan.json-round1.npz")
    state_is_refused(toy, toy_policy, half_done, "file.damaged")


def test_measured_piece_survives_a_dead_recovery(toy, toy_policy, longest, tmp_path):
    class DeadError(BaseException):
        pass

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


def test_one_process_at_a_time(toy, toy_policy, half_done):
    with file_lock(half_done.with_name(f".{half_done.name}.lock")):
        state_is_refused(toy, toy_policy, half_done, "file.exists")


def test_cut_between_log_and_state_loses_nothing(toy, toy_policy, longest, tmp_path, monkeypatch):
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


class Marked:
    """A part that says which one it is."""

    def __init__(self, part, fingerprint):
        self.part, self.fingerprint = part, fingerprint

    def __call__(self, *arguments, **options):
        return self.part(*arguments, **options)


@pytest.mark.parametrize(("now", "warns"), [("abc", False), ("xyz", True)])
def test_other_networks_are_warned_of(toy, toy_policy, now, warns):
    made = {**toy_policy.provenance, "fingerprints": {"recover": "abc", "task": "def"}}
    policy = replace(toy_policy, provenance=made)
    parts = {"recover": Marked(toy.recover, now), "task": Marked(toy.task, "def")}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        scan = toy.scan(toy.scanner_of(1000), policy=policy, **parts)
    assert scan.is_finished
    assert ["recover abc" in str(w.message) and "xyz" in str(w.message) for w in said] == (
        [True] if warns else []
    )


def cut_off(scanners, at_round, at_case):
    """Let the power fail before a case is measured in a round."""
    failing(list(scanners.values())[at_case], at_round)
    return scanners


@pytest.mark.parametrize("unit", ["case", "group", "whole-group"])
def test_cut_after_every_round_gives_the_same_record(tmp_path, unit):
    policy, cases = grouped.planned(unit), grouped.groups_of(grouped.NEW)[0]
    outputs, targets = grouped.NEW.outputs[:, cases], grouped.NEW.targets[cases]
    steps = {"recover": recover, "task": lambda images: images, "samples": 8, "scan_id": "7"}
    whole, k, scan = grouped.scan_stored(policy, outputs, targets), 0, None
    while scan is None:
        scanners = grouped.scanners_of(outputs, targets)
        try:
            for i in range(k % 2, len(cases)):
                cut_off(scanners, k + 1, i)
            scan = tq.acquire(policy, scanners, **steps, state=tmp_path / "scan.json")
        except PowerCutError:
            k += 1
        assert max(len(s.measured) for s in scanners.values()) <= 2
    assert k == max(len(case.rounds) for case in whole.cases.values()) - 1
    assert record(scan) == record(whole)


def half_done_group(whole, state, **options):
    policy, seeds = whole
    with pytest.raises(PowerCutError):
        grouped.toy_scan(policy, seeds, scanners=cut_off(grouped.toy_scanners(seeds), 2, 0),
                 state=state, **options)  # fmt: skip
    return policy, seeds


def test_state_of_other_cases_is_refused(whole, tmp_path):
    state = tmp_path / "scan.json"
    policy, seeds = half_done_group(whole, state)
    for other in (range(seeds[0] + 3, seeds[0] + 6), seeds[::-1], seeds[:2]):
        with refused("resume.mismatch"):
            grouped.toy_scan(policy, other, state=state)


def test_group_and_case_share_no_state(toy, toy_policy, tmp_path):
    scanners = {"a": toy.scanner_of(1000)}
    toy.scan(scanners, policy=toy_policy, state=tmp_path / "group.json")
    toy.scan(scanners["a"], policy=toy_policy, case="a", state=tmp_path / "case.json")
    one = scanners["a"]
    for scanner, case, name in ((one, "a", "group"), (scanners, None, "case"), (one, "b", "case")):
        with refused("resume.mismatch"):
            toy.scan(scanner, policy=toy_policy, case=case, state=tmp_path / f"{name}.json")


DAMAGES = {
    "one case ahead": (lambda s: s["scans"][1].pop(), "file.damaged"),
    "one case stopped": (lambda s: s["scans"][1][-1].update(stop=True), "file.damaged"),
    "out of order": (lambda s: s["scans"][2].reverse(), "file.damaged"),
    "a case lost": (lambda s: s["scans"].pop(), "file.format"),
    "a name lost": (lambda s: s["cases"].pop(), "file.format"),
    "no names": (lambda s: s.pop("cases"), "file.format"),
}


@pytest.mark.parametrize(("change", "code"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_record_of_a_group_is_refused(whole, tmp_path, change, code):
    state = tmp_path / "scan.json"
    policy, seeds = half_done_group(whole, state)
    stored = json.loads(state.read_text())
    change(stored)
    write_json(state, stored)
    with refused(code):
        grouped.toy_scan(policy, seeds, state=state)


def test_pieces_of_fewer_cases_are_refused(whole, tmp_path):
    policy, seeds = half_done_group(whole, tmp_path / "scan.json")
    path = tmp_path / "scan.json-round1.npz"
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored if not name.startswith("case 1 ")}
    np.savez(path, **arrays)
    with refused("file.damaged"):
        grouped.toy_scan(policy, seeds, state=tmp_path / "scan.json")
