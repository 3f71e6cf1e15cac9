"""What a round measured is stored while networks compute, and before anybody hears of the round."""

import threading
import time

import numpy as np
import pytest

import taskuq as tq
from taskuq._io import fingerprint
from taskuq.errors import MachineError
from taskuq.scan import _acquire as acquisition
from taskuq.scan._audit import append_entries, read_audit_log
from taskuq.scan._state import ScanState, background, load_scan


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


def test_a_round_is_stored_while_it_is_recovered_and_told_afterwards(
    toy, toy_policy, tmp_path, storing
):
    recovering, told = threading.Event(), []

    def recover(measurement, **options):
        recovering.set()
        return toy.recover(measurement, **options)

    def stored():
        assert recovering.wait(20)
        recovering.clear()
        told.append("stored")

    storing(stored)
    watching = {"state": tmp_path / "scan.json", "on_round": lambda record: told.append("told")}
    scan = toy.scan(toy.scanner_of(5), policy=toy_policy, recover=recover, **watching)

    assert told == ["stored", "told"] * len(scan.rounds)


def test_nobody_hears_of_a_round_that_cannot_be_stored(toy, toy_policy, tmp_path, storing):
    monitor, heard = tq.Monitor(toy_policy, delta=0.01), []

    def full():
        raise MachineError("the disk is full")

    storing(full)
    with pytest.raises(MachineError, match="full"):
        toy.scan(toy.scanner_of(5), policy=toy_policy, state=tmp_path / "scan.json",
                 monitor=monitor, on_round=heard.append)  # fmt: skip
    assert heard == read_audit_log(tmp_path / "log.jsonl") == []
    assert monitor.units == 0


def test_what_is_stored_was_measured_whatever_a_recovery_writes_into_it(
    toy, toy_policy, tmp_path, storing
):
    written = threading.Event()

    class Bare:
        def measure(self, round):
            return np.array([round + 1.0, 2.0])

    def recover(pieces, *, samples, seed):
        pieces[-1][:] = 7
        written.set()
        return np.random.default_rng(seed).random((samples, toy.SIZE, toy.SIZE))

    storing(lambda: written.wait(20))
    state = tmp_path / "scan.json"
    scan = toy.scan(Bare(), policy=toy_policy, recover=recover, state=state)
    found = load_scan(state, toy_policy)

    assert [piece[0] for piece in found.measurements] == [k + 1.0 for k in range(len(scan.rounds))]


def test_work_beside_has_ended_and_says_what_went_wrong():
    def fail():
        raise MachineError("no disk")

    for work in (None, lambda: None):
        with background(work):
            pass
    before = threading.active_count()
    with pytest.raises(MachineError, match="no disk"), background(fail):
        pass
    assert threading.active_count() == before


def test_where_there_is_no_thread_the_work_is_done_first(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    with background(lambda: done.append(1)):
        assert done == [1]


def test_work_that_waits_begins_when_it_is_told_to_or_is_done_in_the_end():
    done = []
    with background(lambda: done.append(threading.current_thread()), waits=True) as begin:
        assert done == []
        begin()
        begin()
    assert len(done) == 1
    assert done[0] is not threading.main_thread()
    with background(lambda: done.append("late"), waits=True) as begin:
        pass
    begin()
    assert done[1:] == ["late"]


def test_a_measurement_is_put_together_before_the_disk_is_asked_for_anything(
    toy, toy_policy, tmp_path, storing, monkeypatch
):
    happened, combine = [], toy.ToyScanner.combine

    def combined(self, pieces):
        happened.append("combined")
        return combine(self, pieces)

    monkeypatch.setattr(toy.ToyScanner, "combine", combined)
    storing(lambda: happened.append("stored"))
    scan = toy.scan(toy.scanner_of(5), policy=toy_policy, state=tmp_path / "scan.json")
    assert happened == ["combined", "stored"] * len(scan.rounds)


def test_a_state_has_no_round_before_the_trail_tells_of_it(toy, toy_policy, tmp_path, monkeypatch):
    state, seen = tmp_path / "scan.json", []

    def told(path, lines):
        if lines:
            time.sleep(0.05)  # time enough for whoever writes the state meanwhile
            seen.append(len(load_scan(state, toy_policy).rounds))
        append_entries(path, lines)

    monkeypatch.setattr(acquisition, "append_entries", told)
    scan = toy.scan(toy.scanner_of(5), policy=toy_policy, state=state)
    assert seen == [*range(len(scan.rounds))]


def test_a_round_that_the_trail_cannot_tell_is_not_in_the_state(
    toy, toy_policy, tmp_path, monkeypatch
):
    state = tmp_path / "scan.json"

    def full(path, lines):
        if lines:
            raise MachineError("the disk is full")

    monkeypatch.setattr(acquisition, "append_entries", full)
    with pytest.raises(MachineError, match="full"):
        toy.scan(toy.scanner_of(5), policy=toy_policy, state=state)
    assert load_scan(state, toy_policy).rounds == ()


def test_a_policy_names_what_it_holds(toy_policy):
    assert toy_policy.fingerprint == fingerprint(toy_policy.to_dict())
