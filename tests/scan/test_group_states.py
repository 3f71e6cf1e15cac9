"""The state of a scan of a group: the same after power cuts, and nobody else's."""

import json

import numpy as np
import pytest
from group_scans import NEW, groups_of, planned, record, toy_scan, toy_scanners
from stored_scanner import recover, scan_stored, scanners_of
from toy_scanner import PowerCutError, failing

import taskuq as tq
from raising import refused
from taskuq._io import write_json
from taskuq.errors import InputError
from taskuq.scan._state import Scan, load_scan


def cut_off(scanners, at_round, at_case):
    """Let the power fail before a case is measured in a round."""
    failing(list(scanners.values())[at_case], at_round)
    return scanners


@pytest.mark.parametrize("at_case", [0, 2])
@pytest.mark.parametrize("at_round", range(4))
def test_a_power_cut_in_any_round_loses_nothing(toy, whole, tmp_path, at_round, at_case):
    (policy, seeds), state = whole, tmp_path / "scan.json"
    scanners = cut_off(toy_scanners(seeds), at_round, at_case)
    with pytest.raises(PowerCutError):
        toy_scan(policy, seeds, scanners=scanners, state=state)
    scanners = toy_scanners(seeds)
    resumed = toy_scan(policy, seeds, scanners=scanners, state=state)

    assert record(resumed) == record(toy_scan(policy, seeds))
    rest = np.concatenate(toy.ADDED[at_round:]).tolist()
    assert [s.measured for s in scanners.values()] == [rest] * 3
    assert record(load_scan(state, policy)) == record(resumed)


@pytest.mark.parametrize("unit", ["case", "group", "whole-group"])
def test_a_cut_after_every_round_gives_the_same_record(tmp_path, unit):
    policy, cases = planned(unit), groups_of(NEW)[0]
    outputs, targets = NEW.outputs[:, cases], NEW.targets[cases]
    steps = {"recover": recover, "task": lambda images: images, "samples": 8, "scan_id": "7"}
    whole, k, scan = scan_stored(policy, outputs, targets), 0, None
    while scan is None:
        scanners = scanners_of(outputs, targets)
        try:
            for i in range(len(cases)):
                cut_off(scanners, k + 1, i)
            scan = tq.acquire(policy, scanners, **steps, state=tmp_path / "scan.json")
        except PowerCutError:
            k += 1
        assert max(len(s.measured) for s in scanners.values()) <= 1

    assert k == max(len(case.rounds) for case in whole.cases.values()) - 1
    assert record(scan) == record(whole)


def half_done(whole, state, **options):
    policy, seeds = whole
    with pytest.raises(PowerCutError):
        toy_scan(policy, seeds, scanners=cut_off(toy_scanners(seeds), 2, 0),
                 state=state, **options)  # fmt: skip
    return policy, seeds


def test_the_state_of_other_cases_is_refused(whole, tmp_path):
    state = tmp_path / "scan.json"
    policy, seeds = half_done(whole, state)

    for other in (range(seeds[0] + 3, seeds[0] + 6), seeds[::-1], seeds[:2]):
        with refused("resume.mismatch"):
            toy_scan(policy, other, state=state)


def test_a_group_and_a_case_do_not_share_a_state(toy, toy_policy, tmp_path):
    scanners = {"a": toy.scanner_of(1000)}
    toy.scan(scanners, policy=toy_policy, state=tmp_path / "group.json")
    toy.scan(scanners["a"], policy=toy_policy, case="a", state=tmp_path / "case.json")

    with refused("resume.mismatch"):
        toy.scan(scanners["a"], policy=toy_policy, case="a", state=tmp_path / "group.json")
    with refused("resume.mismatch"):
        toy.scan(scanners, policy=toy_policy, state=tmp_path / "case.json")
    with refused("resume.mismatch"):
        toy.scan(scanners["a"], policy=toy_policy, case="b", state=tmp_path / "case.json")


def test_the_state_of_one_case_holds_its_rounds(toy, toy_policy, tmp_path):
    state = tmp_path / "scan.json"
    scan = toy.scan(toy.scanner_of(1000), policy=toy_policy, case="a", state=state)
    stored = json.loads(state.read_text())

    assert stored["schema"] == "taskuq.acquisition/1"
    assert stored["rounds"] == [r.to_dict() for r in scan.rounds]
    assert stored["cases"] == ["a"]
    assert isinstance(load_scan(state, toy_policy), Scan)


def damage(state, change):
    stored = json.loads(state.read_text())
    change(stored)
    write_json(state, stored)


DAMAGES = {
    "one case ahead": lambda s: s["scans"][1].pop(),
    "one case stopped": lambda s: s["scans"][1][-1].update(stop=True),
    "out of order": lambda s: s["scans"][2].reverse(),
    "a case lost": lambda s: s["scans"].pop(),
    "a name lost": lambda s: s["cases"].pop(),
    "no names": lambda s: s.pop("cases"),
}


@pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_state_is_refused_in_one_sentence(whole, tmp_path, change):
    state = tmp_path / "scan.json"
    policy, seeds = half_done(whole, state)
    damage(state, change)

    with pytest.raises(InputError) as refused:
        toy_scan(policy, seeds, state=state)
    assert "\n" not in str(refused.value)


def test_pieces_of_fewer_cases_than_the_record_says_are_refused(whole, tmp_path):
    state = tmp_path / "scan.json"
    policy, seeds = half_done(whole, state)
    path = tmp_path / "scan.json-round1.npz"
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored if not name.startswith("case 1 ")}
    np.savez(path, **arrays)

    with refused("file.damaged"):
        toy_scan(policy, seeds, state=state)


def test_a_group_with_a_piece_that_cannot_be_stored_is_not_taken_up(whole, tmp_path):
    (policy, seeds), state = whole, tmp_path / "scan.json"
    scanners = cut_off(toy_scanners(seeds), 2, 0)
    last = scanners[f"slice-{seeds[-1]}"]
    measure, combine = last.measure, last.combine
    last.measure = lambda round: lambda: measure(round)  # a function is no array
    last.combine = lambda pieces: combine([piece() for piece in pieces])

    told = pytest.warns(UserWarning, match="measurement of round 0 is no array")
    with told, pytest.raises(PowerCutError):
        toy_scan(policy, seeds, scanners=scanners, state=state)
    with pytest.raises(InputError, match="cannot be resumed"):
        toy_scan(policy, seeds, state=state)
