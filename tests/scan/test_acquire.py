"""Acquisition loop: new lines only, resuming after power cuts, draws of a pipeline."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
import torch
from toy_scanner import PowerCutError, failing

import taskuq as tq
from raising import refused
from taskuq.data._atlas import Atlas
from taskuq.measure._mri import MaskConfig, MultiCoilMRI, SimulatedMRIScanner
from taskuq.recover._methods import open_recovery
from taskuq.task import load
from taskuq.training._weights import locate

# Scans of different lengths.
SEEDS = range(1000, 1008)


def record(scan):
    return [r.to_dict() for r in scan.rounds]


@pytest.mark.parametrize("seed", SEEDS)
def test_scan_measures_new_lines_and_decides_as_its_policy(toy, toy_policy, seed):
    scanner, seen = toy.scanner_of(seed), []

    def watched(measurement, **options):
        seen.append(measurement[1].sum())
        assert (measurement[0][:, measurement[1]] == scanner.kspace[:, measurement[1]]).all()
        return toy.recover(measurement, **options)

    scan = toy.scan(scanner, policy=toy_policy, recover=watched)
    wanted = np.concatenate(toy.ADDED[: len(scan.rounds)]).tolist()
    assert scanner.measured == wanted
    assert seen == [2, 4, 8, 16][: len(scan.rounds)]
    assert len(set(wanted)) == round(toy.SIZE / scan.acceleration)
    early = [r for r in scan.rounds if r.acceleration > 1]
    outputs = np.stack([r.outputs for r in early])
    for r in early:
        decision = toy_policy.decide(r.round, outputs[: r.round + 1])
        assert (r.stop, r.reason) == (decision.stop, decision.reason)
        assert (r.lower, r.upper) == (decision.interval.lower, decision.interval.upper)
    assert [r.stop for r in scan.rounds] == [False] * (len(scan.rounds) - 1) + [True]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("round_", range(4))
def test_power_cut_in_any_round_is_resumed(toy, toy_policy, longest, tmp_path, round_, when):
    state = tmp_path / "scan.json"
    scanner = failing(toy.scanner_of(longest), round_, when)
    with pytest.raises(PowerCutError):
        toy.scan(scanner, policy=toy_policy, state=state)
    scanner = toy.scanner_of(longest)
    resumed = toy.scan(scanner, policy=toy_policy, state=state)
    assert record(resumed) == record(toy.scan(toy.scanner_of(longest), policy=toy_policy))
    assert scanner.measured == np.concatenate(toy.ADDED[round_:]).tolist()


def test_finished_scan_is_not_measured_again(toy, toy_policy, longest, tmp_path):
    state = tmp_path / "scan.json"
    first = toy.scan(toy.scanner_of(longest), policy=toy_policy, state=state)
    scanner = toy.scanner_of(longest)
    assert record(toy.scan(scanner, policy=toy_policy, state=state)) == record(first)
    assert scanner.measured == []


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
def test_resumed_recovery_gets_the_same_pieces(bare_scan, tmp_path, wrap):
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
def test_unstorable_piece_cannot_be_resumed(toy, bare_scan, tmp_path, lost):
    state, pieces = tmp_path / "scan.json", [np.ones(3), np.ones(3)]
    pieces[lost] = object()
    with pytest.warns(UserWarning, match=f"measurement of round {lost} is not an array") as told:
        given = bare_scan(state, lambda lines: pieces.pop(0), cut_in=2)
    assert len(told) == 1
    assert told[0].filename == toy.__spec__.origin  # who called
    with refused("resume.mismatch"):
        bare_scan(state, PIECES["array"])
    assert len(given) == 2


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nonfinite_value_is_refused(toy, toy_policy, longest, value):
    calls = []

    def broken(images):
        calls.append(None)
        return toy.task(images) * (value if len(calls) == 4 else 1)

    with refused("value.nonfinite"):
        toy.scan(toy.scanner_of(longest), policy=toy_policy, task=broken)
    assert len(calls) == 4


def test_other_number_of_samples_is_refused(toy, toy_policy):
    scanner = toy.scanner_of(1000)
    with refused("samples.mismatch"):
        toy.scan(scanner, policy=toy_policy, samples=5)
    assert scanner.measured == []


@pytest.mark.parametrize("part", ["policy", "scanner", "recover", "task"])
def test_component_of_another_kind_is_refused(toy, toy_policy, part):
    scanner = toy.scanner_of(1000)
    with refused("component.invalid"):
        tq.acquire(**{"policy": toy_policy, "scanner": scanner, **toy.STEPS, part: 3})
    assert scanner.measured == []


def outputs(scan):
    """The outputs of all rounds but the last, which measures everything, as a table holds them."""
    return np.stack([r.outputs for r in scan.rounds[:-1]]).astype(np.float32)


@pytest.fixture
def patient_policy(toy_policy):
    """A policy that goes through all rounds."""
    return replace(toy_policy, thresholds=(inf, inf, inf))


@pytest.fixture
def row(toy):
    """Run a pipeline over one image of the toy scanner, and return the outputs of all rounds."""

    def run(image, **settings):
        pipeline = tq.Pipeline(toy.measure, toy.recover, toy.task)
        rounds = {"accelerations": toy.ACCELERATIONS, "samples": 6, "progress": False}
        return pipeline.run([image], **rounds, **settings).outputs[:, 0]

    return run


@pytest.mark.parametrize("seed", [0, 70])
@pytest.mark.parametrize("name", ["patient-3-slice-2", "0"])
def test_scan_repeats_the_row_of_a_table(toy, patient_policy, row, name, seed):
    scan = toy.scan(toy.scanner_of(1000), policy=patient_policy, seed=seed, case=name)
    assert np.array_equal(outputs(scan), row(toy.image(1000), seed=seed, case=[name]))


def test_bundled_networks_repeat_a_stored_case():
    rates, item = (16.0, 4.0), Atlas(1, 1)[0]
    masks = MaskConfig().masks(128)[[0, 2]]
    recover, task = open_recovery("sampler-atlas", device="cpu"), load(locate("classifier-atlas"))
    stored = tq.TaskOutputs.load("atlas-sampler").select(accelerations=rates, samples=2)
    policy = replace(tq.plan(stored, alpha=0.1, max_width=0.2), thresholds=(inf, inf))
    steps = {"recover": recover, "task": task}
    scan = tq.acquire(
        policy, SimulatedMRIScanner(item.image, masks, rates), **steps, samples=2, case=item.case
    )
    table = tq.Pipeline(MultiCoilMRI(masks, rates), **steps).run(
        [item.image], accelerations=rates, samples=2, seed=0, case=[item.case], progress=False
    )
    assert np.array_equal(outputs(scan), table.outputs[:, 0])
    # The stored one was made in batches, partly on a GPU: the same draws, but for rounding.
    assert outputs(scan) == pytest.approx(stored.outputs[:, 0], abs=1e-5)
    assert stored.case[0] == item.case
