from dataclasses import replace

import numpy as np
import pytest
import torch

import taskuq as tq
from measure.adaptive_toy import (
    RATES,
    SIZE,
    AdaptiveCTScanner,
    AdaptiveMRIScanner,
    Draws,
    corner,
    patients,
    scanner,
)
from raising import refused
from taskuq.measure._adaptive import AdaptiveLines
from taskuq.measure._mri import SimulatedMRIScanner
from taskuq.measure._tomography import ParallelBeamCT, PhotonNoise

CASES = patients(12, seed=5)
NAMES = [f"patient-{k}" for k in range(12)]
RULE = AdaptiveLines(scanner(), scanner().masks, RATES)


@pytest.fixture(scope="module")
def table():
    pipeline = tq.Pipeline(RULE, Draws(), corner)
    return pipeline.run(
        CASES, accelerations=RATES, samples=6, seed=0, case=NAMES, task_range=(0, 1), progress=False
    )


@pytest.fixture(scope="module")
def policy(table):
    # Too few units for this alpha: no scan stops early, and all rounds are seen.
    return tq.plan(table, alpha=0.01, max_width=1e-6)


def acquired(policy, k, rule=RULE, recover=None, scanner=None, **options):
    return tq.acquire(
        policy, scanner or AdaptiveMRIScanner(CASES[k], RATES), recover=recover or Draws(),
        task=corner,
        samples=6, case=NAMES[k], adaptive=rule, **options,
    )  # fmt: skip


def lines_of(scan):
    added = [np.isin(np.arange(SIZE), piece["columns"]) for piece in scan.measurements]
    return np.logical_or.accumulate(added)[: len(RATES)]


@pytest.mark.parametrize("k", [0, 7])
def test_adaptive_scan_repeats_the_row_of_a_table(policy, table, k):
    scan = acquired(policy, k)
    assert np.array_equal(lines_of(scan), table.sampled_lines[:, k])
    for one, outputs in zip(scan.rounds, table.outputs[:, k], strict=False):
        assert np.allclose(one.outputs, outputs, atol=1e-5)
    # After the last round everything is measured.
    assert sum(len(piece["columns"]) for piece in scan.measurements) == SIZE
    assert scan.rounds[-1].acceleration == 1
    assert scan.rounds[-1].next_lines == ()


def test_resumed_scan_measures_the_same_lines(policy, tmp_path):
    options = {"scan_id": "a", "state": tmp_path / "scan.json"}
    with pytest.raises(KeyboardInterrupt):
        acquired(policy, 2, on_round=_interrupt_after(1), **options)
    scan = acquired(policy, 2, **options)
    assert np.array_equal(lines_of(scan), lines_of(acquired(policy, 2)))
    assert [r.next_lines for r in scan.rounds] == [r.next_lines for r in acquired(policy, 2).rounds]


def _interrupt_after(round_):
    def on_round(record):
        if record.round == round_:
            raise KeyboardInterrupt

    return on_round


class Failing(AdaptiveLines):
    """A rule that cannot choose after the first round."""

    def next_lines(self, round, *given):
        if round == 0:
            raise ArithmeticError("no samples to look at")
        return super().next_lines(round, *given)


@pytest.mark.parametrize("kind", ["fixed-width", "anytime"])
def test_failed_line_choice_stops_no_scan_and_falls_back_to_masks(table, kind):
    eager = tq.plan(table, alpha=0.3, max_width=1.0, policy=kind)
    scan = acquired(eager, 0, Failing(scanner(), scanner().masks, RATES))
    assert acquired(eager, 0).rounds[0].stop
    # The lines of round 0 are not the replayed rule's, nor is any round after it.
    assert [r.stop for r in scan.rounds] == [False, False, False, True]
    assert "no samples to look at" in scan.rounds[0].fault
    assert np.array_equal(lines_of(scan)[:2], scanner().masks[:2])


def test_other_line_rule_is_refused_on_resuming(policy, tmp_path):
    other = AdaptiveLines(scanner(), scanner().masks, RATES, "variance")
    fixed = SimulatedMRIScanner(CASES[2], scanner().masks, RATES)
    # What is looked at here is the state, not whether the policy is about the rule.
    known = {n: v for n, v in policy.provenance.items() if n != "fingerprints"}
    policy = replace(policy, provenance=known)
    ways = {"own": {}, "other": {"rule": other}, "none": {"rule": None, "scanner": fixed}}
    for begun, first in ways.items():
        options = {"scan_id": "a", "state": tmp_path / f"{begun}.json"}
        with pytest.raises(KeyboardInterrupt):
            acquired(policy, 2, on_round=_interrupt_after(0), **options, **first)
        for resumed, second in ways.items():
            if resumed != begun:
                with refused("resume.mismatch"):
                    acquired(policy, 2, **options, **second)
        assert acquired(policy, 2, **options, **first).is_finished


class Namesake(AdaptiveLines):
    """A rule that is called like every other one of its kind."""

    fingerprint = "the same"


def test_chosen_lines_are_compared_on_resuming(policy, tmp_path):
    options = {"scan_id": "a", "state": tmp_path / "scan.json"}
    own, other = (
        Namesake(scanner(), scanner().masks, RATES, aim) for aim in ("gradient", "variance")
    )
    with pytest.raises(KeyboardInterrupt):
        acquired(policy, 2, own, on_round=_interrupt_after(0), **options)
    with refused("resume.mismatch"):
        acquired(policy, 2, other, **options)
    assert acquired(policy, 2, own, **options).is_finished


class Stubborn(AdaptiveMRIScanner):
    """A scanner that measures other lines than it is asked for."""

    def request(self, round, lines):
        super().request(round, (np.asarray(lines) + (round == 1)) % SIZE)


def test_scanner_with_other_lines_or_without_requests_is_refused(policy):
    with refused("component.invalid"):
        acquired(policy, 1, scanner=Stubborn(CASES[1], RATES))
    fixed = SimulatedMRIScanner(CASES[0], scanner().masks, RATES)
    for options in ({"scanner": fixed}, {"rule": scanner()}):
        with refused("component.invalid"):
            acquired(policy, 0, **options)


def test_other_line_rule_is_warned_of(table, policy):
    assert "fingerprints" not in table.provenance["configuration"]
    fixed = SimulatedMRIScanner(CASES[0], scanner().masks, RATES)
    with pytest.warns(UserWarning, match="with adaptive lines"):
        acquired(policy, 0, rule=None, scanner=fixed)
    made = {"configuration": {"fingerprints": {"masks": "0"}}}
    plain = tq.TaskOutputs(table.outputs, table.targets, RATES, provenance=made)
    with pytest.warns(UserWarning, match="with fixed lines"):
        acquired(tq.plan(plain, alpha=0.3, max_width=0.5), 0)


def test_tomograph_measures_the_views_of_its_row():
    ct = ParallelBeamCT(16, 32, (8.0, 4.0), PhotonNoise(1e4), seed=0)
    masks = np.stack([ct.initial_lines(4), ct.initial_lines(8)])
    rule = AdaptiveLines(ct, masks, (8.0, 4.0), "outputs")
    images = torch.rand(10, 16, 16, generator=torch.Generator().manual_seed(0))
    table = tq.Pipeline(rule, back_projected, corner).run(
        images, accelerations=(8, 4), samples=5, seed=0, task_range=(0, 1), progress=False
    )
    policy = tq.plan(table, alpha=0.3, max_width=1e-9)
    scan = tq.acquire(
        policy, AdaptiveCTScanner(images[3], ct), recover=back_projected, task=corner, samples=5,
        case="3",
        adaptive=rule,
    )  # fmt: skip
    assert np.array_equal(
        np.sort(scan.measurements[0]["views"]), np.flatnonzero(table.sampled_lines[0, 3])
    )
    added = np.flatnonzero(table.sampled_lines[1, 3] & ~table.sampled_lines[0, 3])
    assert np.array_equal(np.sort(scan.measurements[1]["views"]), added)
    assert np.allclose(scan.rounds[1].outputs, table.outputs[1, 3], atol=1e-5)


def back_projected(measurement, *, samples, seed):
    generator = torch.Generator().manual_seed(seed % 2**31)
    noise = torch.randn(samples, 16, 16, generator=generator)
    return measurement.preview + 0.3 * noise / len(measurement.angles)


def test_group_measures_the_lines_of_its_rows(policy, table):
    scanners = {NAMES[k]: AdaptiveMRIScanner(CASES[k], RATES) for k in (4, 5)}
    scan = tq.acquire(
        policy, scanners, recover=Draws(), task=corner, samples=6, adaptive=RULE, scan_id="g"
    )
    for k in (4, 5):
        assert np.array_equal(lines_of(scan.cases[NAMES[k]]), table.sampled_lines[:, k])
