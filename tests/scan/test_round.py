"""Rounds with bad data, bad outputs or a late recovery stop no scan."""

import threading
from dataclasses import replace

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.policy._kinds import POLICIES
from taskuq.scan._state import measurement_fault

BAD_PIECES = {
    "measured nothing": lambda piece, before: {n: v[..., :0] for n, v in piece.items()},
    "zero everywhere": lambda piece, before: {**piece, "lines": piece["lines"] * 0},
    "NaN or infinity": lambda piece, before: {**piece, "lines": piece["lines"] * np.nan},
    "repeats that": lambda piece, before: before,
    "labelled round '7'": lambda piece, before: {**piece, "round": 7},
    "labelled scan_id 'other'": lambda piece, before: {**piece, "scan_id": "other"},
}


@pytest.fixture(scope="module")
def easy(toy, toy_policy):
    """An image whose scan stops in the first round."""
    return toy.seed_of(toy_policy, 1)


@pytest.fixture(scope="module")
def later(toy, toy_policy):
    """An image whose scan stops early, but not in the first round."""
    return toy.seed_of(toy_policy, 2, 3)


def spoiled(scanner, round_, spoil):
    measure, seen = scanner.measure, []

    def measured(round):
        piece = measure(round)
        seen.append(piece)
        return spoil(piece, seen[max(round - 1, 0)]) if round == round_ else piece

    scanner.measure = measured
    return scanner


@pytest.mark.parametrize("kind", ["fixed-width", "anytime"])
@pytest.mark.parametrize("reason", BAD_PIECES)
def test_bad_piece_stops_no_scan(toy, later, reason, kind):
    policy = tq.plan(toy.table(), alpha=0.1, max_width=0.2, policy=kind)
    scanner = spoiled(toy.scanner_of(later), 1, BAD_PIECES[reason])
    rounds = []
    with refused("component.invalid"):
        toy.scan(scanner, policy=policy, on_round=rounds.append)
    assert [r.stop for r in rounds] == [False] * 3
    assert [reason in r.reason for r in rounds] == [False, True, True]
    assert len(scanner.measured) == toy.SIZE


ONES = np.ones(4)
LOOKED_INTO = {
    "repeats": {"round": 1, "lines": ONES},
    "repeats ": {"columns": np.arange(4, 8), "lines": ONES},
    "zero everywhere": {"columns": np.arange(4), "lines": np.zeros(4, np.int16)},
    "zero everywhere ": {"lines": np.zeros(5), "tr": 2.5},
    "measured nothing": None,
}


@pytest.mark.parametrize("reason", LOOKED_INTO)
def test_faults_of_measurements_are_found(reason):
    earlier = [{"round": 0, "columns": np.arange(4), "lines": ONES}]
    assert reason.strip() in measurement_fault(LOOKED_INTO[reason], earlier, round=1, scan_id="a")
    sound = {"columns": np.arange(4, 8), "lines": 2 * ONES, "scan_id": "a", "tr": 0.0}
    assert measurement_fault(sound, earlier, round=1, scan_id="a") is None
    assert measurement_fault(sound, earlier, round=1, scan_id=None) is None


BAD_OUTPUTS = {
    "5 outputs": lambda outputs: outputs[:5],
    "are NaN": lambda outputs: outputs * np.nan,
    "outside the task's range": lambda outputs: outputs + 3,
    "ValueError: no more": None,
    "of a round agree": lambda outputs: np.full_like(outputs, 0.5),
}


@pytest.mark.parametrize("reason", BAD_OUTPUTS)
def test_bad_outputs_stop_no_scan(toy, toy_policy, easy, reason):
    calls = []

    def task(images):
        calls.append(None)
        if len(calls) > 1:
            return toy.task(images)
        if BAD_OUTPUTS[reason] is None:
            raise ValueError("no more")
        return BAD_OUTPUTS[reason](toy.task(images))

    scan = toy.scan(toy.scanner_of(easy), policy=toy_policy, task=task)
    assert reason in scan.rounds[0].reason
    # The promise of this policy needs every round: it goes on to the end.
    assert [r.stop for r in scan.rounds] == [False, False, False, True]
    assert scan.acceleration == 1
    assert float(scan.interval.lower) == pytest.approx(float(toy.task(toy.image(easy))))


def test_anytime_policy_may_stop_after_a_failed_round(toy, easy):
    policy = tq.plan(toy.table(), alpha=0.1, max_width=0.9, policy="anytime")
    calls = []

    def task(images):
        calls.append(None)
        if len(calls) == 1:
            raise ValueError("no more")
        return toy.task(images)

    scan = toy.scan(toy.scanner_of(easy), policy=policy, task=task)
    assert [r.stop for r in scan.rounds] == [False, True]
    assert POLICIES["anytime"].holds_at_any_stop
    assert not POLICIES["fixed-width"].holds_at_any_stop


def test_identical_samples_stop_only_if_calibration_had_some(toy_policy):
    assert toy_policy.provenance["identical_samples"] == 0
    hasty = replace(toy_policy, thresholds=(-1e9,) * 3)
    had = replace(hasty, provenance={**hasty.provenance, "identical_samples": 1})
    same = np.full((1, 6), 0.5)
    assert not hasty.decide(0, same).stop
    assert had.decide(0, same).stop
    # Those of an earlier round count.
    outputs = np.stack([np.full(6, 0.5), np.linspace(0.499, 0.501, 6)])
    assert not hasty.decide(1, outputs).stop
    assert hasty.decide(1, np.stack([outputs[1], outputs[1]])).stop


class TellsScanner:
    """A scanner that knows whether it has measured everything."""

    def __init__(self, scanner, is_complete):
        self.measure, self.combine = scanner.measure, scanner.combine
        self.is_complete = lambda pieces: is_complete and len(pieces) == 4


@pytest.mark.parametrize("is_complete", [True, False])
def test_incomplete_last_round_is_refused(toy, toy_policy, is_complete):
    patient = replace(toy_policy, thresholds=(np.inf,) * 3)
    scanner = TellsScanner(toy.scanner_of(1000), is_complete)
    if is_complete:
        assert toy.scan(scanner, policy=patient).acceleration == 1
    else:
        with refused("component.invalid"):
            toy.scan(scanner, policy=patient)


@pytest.mark.parametrize(
    ("values", "code"), [([7.0], "range.outside"), ([0.4, 0.5], "component.invalid")]
)
def test_last_round_has_one_value_in_range(toy, toy_policy, values, code):
    patient = replace(toy_policy, thresholds=(np.inf,) * 3)

    def task(images):
        return toy.task(images) if len(images) > 1 else np.array(values)

    with refused(code):
        toy.scan(toy.scanner_of(1000), policy=patient, task=task)


@pytest.mark.parametrize("late_round", [0, 1])
def test_late_recovery_continues_the_scan(toy, toy_policy, later, late_round):
    wait, calls = threading.Event(), []

    def slow(measurement, **options):
        calls.append(None)
        if len(calls) == late_round + 1:
            assert wait.wait(300)
        return toy.recover(measurement, **options)

    def shown(record):
        if record.round == 2:
            wait.set()

    quick = toy.scan(toy.scanner_of(later), policy=toy_policy, deadline=60)
    free = toy.scan(toy.scanner_of(later), policy=toy_policy)
    assert [r.to_dict() for r in quick.rounds] == [r.to_dict() for r in free.rounds]
    scan = toy.scan(toy.scanner_of(later), policy=toy_policy, recover=slow, deadline=0.2,
                    on_round=shown)  # fmt: skip
    assert "longer than 0.2 s" in scan.rounds[late_round].reason
    assert [r.stop for r in scan.rounds] == [False, False, False, True]


@pytest.mark.parametrize("deadline", [0, -1.0, np.inf, "x"])
def test_deadline_must_be_positive(toy, toy_policy, deadline):
    with refused("value.invalid"):
        toy.scan(toy.scanner_of(1000), policy=toy_policy, deadline=deadline)
