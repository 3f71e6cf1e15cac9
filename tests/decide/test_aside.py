"""What a round measured is stored while networks compute, and before anybody hears of the round."""

import threading

import numpy as np
import pytest

import taskuq as tq
from taskuq.decide.aside import beside
from taskuq.decide.audit import read_trail
from taskuq.decide.scan_state import StateFile, load_acquisition
from taskuq.errors import MachineError
from taskuq.fingerprints import fingerprint


@pytest.fixture
def storing(monkeypatch):
    """Do something before a round is stored."""
    keep = StateFile.keep_measured

    def first(act):
        def keep_measured(*arguments):
            act()
            keep(*arguments)

        monkeypatch.setattr(StateFile, "keep_measured", keep_measured)

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
    assert heard == read_trail(tmp_path / "log.jsonl") == []
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
    found = load_acquisition(state, toy_policy)

    assert [piece[0] for piece in found.pieces] == [k + 1.0 for k in range(len(scan.rounds))]


def test_work_beside_has_ended_and_says_what_went_wrong():
    def fail():
        raise MachineError("no disk")

    for work in (None, lambda: None):
        with beside(work):
            pass
    before = threading.active_count()
    with pytest.raises(MachineError, match="no disk"), beside(fail):
        pass
    assert threading.active_count() == before


def test_where_there_is_no_thread_the_work_is_done_first(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    with beside(lambda: done.append(1)):
        assert done == [1]


def test_a_policy_names_what_it_holds(toy_policy):
    assert toy_policy.fingerprint == fingerprint(toy_policy.to_dict())
