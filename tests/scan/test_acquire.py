"""The acquisition loop: only new lines, the same record after a power cut, errors not decisions."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from math import inf

import numpy as np
import pytest
import torch
from toy_scanner import PowerCutError, failing

import taskuq as tq
from raising import refused
from taskuq._io import write_json
from taskuq._seeds import case_seed
from taskuq.errors import InputError
from taskuq.scan._state import Scan, load_scan

SEEDS = range(1000, 1012)


def record(scan):
    return [r.to_dict() for r in scan.rounds]


def test_scans_stop_in_different_rounds(toy, toy_policy):
    # Otherwise the laws below would look at one kind of scan only.
    rates = {toy.scan(toy.scanner_of(s), policy=toy_policy).acceleration for s in range(1000, 1060)}

    assert len(rates) >= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_no_line_is_measured_twice_and_none_too_many(toy, toy_policy, seed):
    scanner = toy.scanner_of(seed)
    scan = toy.scan(scanner, policy=toy_policy)

    wanted = np.concatenate(toy.ADDED[: len(scan.rounds)]).tolist()
    assert scanner.measured == wanted
    assert len(set(wanted)) == round(toy.SIZE / scan.acceleration)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_recovery_sees_all_lines_so_far(toy, toy_policy, seed):
    scanner, seen = toy.scanner_of(seed), []

    def watched(measurement, **options):
        seen.append(measurement[1].sum())
        assert (measurement[0][:, measurement[1]] == scanner.kspace[:, measurement[1]]).all()
        return toy.recover(measurement, **options)

    scan = toy.scan(scanner, policy=toy_policy, recover=watched)

    assert seen == [2, 4, 8, 16][: len(scan.rounds)]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_loop_decides_as_the_policy_does(toy, toy_policy, seed):
    scan = toy.scan(toy.scanner_of(seed), policy=toy_policy)

    early = [r for r in scan.rounds if r.acceleration > 1]
    outputs = np.stack([r.outputs for r in early])
    for r in early:
        decision = toy_policy.decide(r.round, outputs[: r.round + 1])
        assert (r.stop, r.reason) == (decision.stop, decision.reason)
        assert (r.lower, r.upper) == (decision.interval.lower, decision.interval.upper)
    assert [r.stop for r in scan.rounds] == [False] * (len(scan.rounds) - 1) + [True]


def test_every_round_recovers_with_a_seed_of_its_own(toy, toy_policy, longest):
    seeds = []

    def watched(measurement, *, samples, seed):
        seeds.append((samples, seed))
        return toy.recover(measurement, samples=samples, seed=seed)

    toy.scan(toy.scanner_of(longest), policy=toy_policy, recover=watched)
    toy.scan(toy.scanner_of(longest), policy=toy_policy, recover=watched, seed=70, case="a")

    rates = (*toy.ACCELERATIONS, 1.0)
    drawn = [case_seed(0, "0", R) for R in rates]
    assert seeds[:4] == list(zip((6, 6, 6, 1), drawn, strict=True))
    assert seeds[4:][0] == (6, case_seed(70, "a", rates[0]))


def test_at_the_end_the_value_is_known(toy, toy_policy, longest):
    scan = toy.scan(toy.scanner_of(longest), policy=toy_policy)

    assert float(scan.interval.lower) == float(scan.interval.upper)
    assert float(scan.interval.lower) == pytest.approx(float(toy.task(toy.image(longest))))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("round_", range(4))
def test_a_power_cut_in_any_round_loses_nothing(toy, toy_policy, longest, tmp_path, round_, when):
    state = tmp_path / "scan.json"
    scanner = failing(toy.scanner_of(longest), round_, when)
    with pytest.raises(PowerCutError):
        toy.scan(scanner, policy=toy_policy, state=state)
    scanner = toy.scanner_of(longest)
    resumed = toy.scan(scanner, policy=toy_policy, state=state)

    assert record(resumed) == record(toy.scan(toy.scanner_of(longest), policy=toy_policy))
    assert scanner.measured == np.concatenate(toy.ADDED[round_:]).tolist()


@pytest.mark.parametrize("round_", [1, 3])
def test_a_killed_process_is_taken_up_where_it_stopped(toy, toy_policy, longest, tmp_path, round_):
    state = tmp_path / "scan.json"
    arguments = [toy.__spec__.origin, str(state), str(longest), str(round_)]
    killed = subprocess.run([sys.executable, *arguments], check=False, capture_output=True)
    scanner = toy.scanner_of(longest)
    resumed = toy.scan(scanner, policy=toy_policy, state=state)

    assert killed.returncode == -signal.SIGKILL
    assert record(resumed) == record(toy.scan(toy.scanner_of(longest), policy=toy_policy))
    assert scanner.measured == np.concatenate(toy.ADDED[round_:]).tolist()


def test_a_finished_scan_is_not_measured_again(toy, toy_policy, longest, tmp_path):
    state = tmp_path / "scan.json"
    first = toy.scan(toy.scanner_of(longest), policy=toy_policy, state=state)
    scanner = toy.scanner_of(longest)

    assert record(toy.scan(scanner, policy=toy_policy, state=state)) == record(first)
    assert scanner.measured == []


def half_done(toy, toy_policy, seed, state, rounds=2, **options):
    scanner = failing(toy.scanner_of(seed), rounds)
    with pytest.raises(PowerCutError):
        toy.scan(scanner, policy=toy_policy, state=state, **options)


def test_the_state_of_another_policy_is_refused(toy, toy_policy, longest, tmp_path):
    state = tmp_path / "scan.json"
    half_done(toy, toy_policy, longest, state)
    other = replace(toy_policy, thresholds=(0.0, 0.0, 0.0))

    with refused("resume.mismatch"):
        toy.scan(toy.scanner_of(longest), policy=other, state=state)


@pytest.mark.parametrize("names", [("a.json", "b.json"), ("patient.1", "patient.2")])
def test_two_scans_in_one_folder_do_not_mix(toy, toy_policy, longest, tmp_path, names):
    half_done(toy, toy_policy, longest, tmp_path / names[0])
    half_done(toy, toy_policy, longest + 1, tmp_path / names[1], rounds=1)
    scan = load_scan(tmp_path / names[0], toy_policy)

    assert (scan.measurements[0]["lines"] == toy.scanner_of(longest).measure(0)["lines"]).all()


PIECES = {
    "array": lambda lines: lines,
    "mapping": lambda lines: {"lines": lines, "count": np.array(3)},
    "mapping of one": lambda lines: {"piece": lines},
    "awkward names": lambda lines: {"file": lines, "allow_pickle": lines, "a/b": lines},
    "tensor": lambda lines: torch.from_numpy(lines),
    "list": lambda lines: [lines, lines],
    "single precision": lambda lines: lines.astype(np.complex64),
}


@pytest.fixture(scope="module")
def bare_scan(toy, toy_policy):
    """Scan under a policy that never stops early, and return what the recovery was given."""
    patient = replace(toy_policy, thresholds=(inf, inf, inf))

    def scan(state, wrap, cut_in=None):
        given = []

        def recover(measurement, *, samples, seed):
            given.append([describe(piece) for piece in measurement])
            return np.zeros((samples, toy.SIZE, toy.SIZE))

        scanner = Bare(toy.scanner_of(1000).kspace, toy.ADDED, wrap)
        scanner = scanner if cut_in is None else failing(scanner, cut_in)
        try:
            toy.scan(scanner, policy=patient, state=state, recover=recover)
        except PowerCutError:
            assert cut_in is not None
        return given

    return scan


@pytest.mark.parametrize("wrap", PIECES.values(), ids=PIECES)
def test_the_recovery_is_given_the_same_pieces_after_power_cuts(bare_scan, tmp_path, wrap):
    whole = bare_scan(tmp_path / "whole.json", wrap)
    cuts = [bare_scan(tmp_path / "cut.json", wrap, cut_in) for cut_in in (1, 3, None)]

    assert [len(given) for given in whole] == [1, 2, 3, 4]
    # What was decided before a cut is computed again after it.
    assert [[len(given) for given in part] for part in cuts] == [[1], [1, 2, 3], [1, 2, 3, 4]]
    assert all(given == whole[len(given) - 1] for part in cuts for given in part)


class Bare:
    """A scanner without a way to combine its pieces."""

    def __init__(self, kspace, added, wrap):
        self.kspace, self.added, self.wrap = kspace, added, wrap

    def measure(self, round):
        return self.wrap(np.ascontiguousarray(self.kspace[:, self.added[round]]))


def describe(piece):
    """Type, names, precision and contents."""
    if isinstance(piece, dict):
        return {name: describe(value) for name, value in piece.items()}
    return type(piece).__name__, str(getattr(piece, "dtype", "")), np.asarray(piece).tobytes()


@pytest.mark.parametrize("lost", [0, 1])
def test_a_scan_with_a_piece_that_cannot_be_stored_is_not_taken_up(toy, bare_scan, tmp_path, lost):
    state, pieces = tmp_path / "scan.json", [np.ones(3), np.ones(3)]
    pieces[lost] = object()
    with pytest.warns(UserWarning, match=f"measurement of round {lost} is no array") as told:
        given = bare_scan(state, lambda lines: pieces.pop(0), cut_in=2)
    assert len(told) == 1
    assert told[0].filename == toy.__spec__.origin  # who called

    with pytest.raises(InputError, match="cannot be resumed") as refused:
        bare_scan(state, PIECES["array"])
    assert "\n" not in str(refused.value)
    assert len(given) == 2


DAMAGES = {
    "cut short": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "garbled": lambda data: data[:40] + bytes(200) + data[240:],
    "something else": lambda data: b"not an archive",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("which", ["record", "piece"])
def test_a_damaged_state_is_refused_in_one_sentence(
    toy, toy_policy, longest, tmp_path, which, damage
):
    state = tmp_path / "scan.json"
    half_done(toy, toy_policy, longest, state)
    path = state if which == "record" else next(tmp_path.glob("*round1.npz"))
    path.write_bytes(damage(path.read_bytes()))

    with refused("file.format"):
        toy.scan(toy.scanner_of(longest), policy=toy_policy, state=state)


def test_rounds_out_of_order_in_the_state_are_refused(toy, toy_policy, longest, tmp_path):
    state = tmp_path / "scan.json"
    half_done(toy, toy_policy, longest, state)
    stored = json.loads(state.read_text())
    stored["rounds"].reverse()
    write_json(state, stored)

    with refused("file.damaged"):
        load_scan(state, toy_policy)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_no_number_ends_in_an_error(toy, toy_policy, longest, value):
    calls = []

    def broken(images):
        calls.append(None)
        return toy.task(images) * (value if len(calls) == 4 else 1)

    with refused("value.nonfinite"):
        toy.scan(toy.scanner_of(longest), policy=toy_policy, task=broken)
    assert len(calls) == 4


def test_another_number_of_samples_is_refused_before_anything_is_measured(toy, toy_policy):
    scanner = toy.scanner_of(1000)
    with refused("samples.mismatch"):
        toy.scan(scanner, policy=toy_policy, samples=5)
    assert scanner.measured == []


@pytest.mark.parametrize("policy", ["policy.json", None])
def test_the_file_of_a_policy_is_not_a_policy(toy, policy):
    with refused("component.invalid"):
        tq.acquire(policy, toy.scanner_of(1000), **toy.STEPS)


def test_every_round_is_shown_as_it_happens(toy, toy_policy, longest):
    shown = []
    scan = toy.scan(toy.scanner_of(longest), policy=toy_policy, on_round=shown.append)

    assert tuple(shown) == scan.rounds
    assert isinstance(scan, Scan)


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ("scanner", "scanner is a int, which cannot measure a round; give an object with a method"),
        ("recover", "recover is a int, which cannot be called; give a function"),
        ("task", "task is a int, which cannot be called; give a function"),
    ],
)
def test_a_part_that_cannot_do_its_work_is_refused_before_anything_is_measured(
    toy, toy_policy, part, sentence
):
    scanner = toy.scanner_of(1000)
    with refused("component.invalid"):
        toy.scan(**{"scanner": scanner, "policy": toy_policy, part: 3})

    assert scanner.measured == []
