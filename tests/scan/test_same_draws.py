"""One seed rule: a scan of a case draws what a pipeline draws for its name, seed and round."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

import taskuq as tq
from taskuq.data._atlas import Atlas
from taskuq.measure._mri import MaskConfig, MultiCoilMRI, SimulatedMRIScanner
from taskuq.recover._methods import open_recovery
from taskuq.table._examples import stored_table
from taskuq.task import load
from taskuq.training._weights import locate


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

    def measure(image, acceleration):
        scanner = toy.ToyScanner(np.fft.fft2(image, norm="ortho"))
        rounds = range(toy.ACCELERATIONS.index(acceleration) + 1)
        return scanner.combine([scanner.measure(k) for k in rounds])

    def run(image, **settings):
        pipeline = tq.Pipeline(measure, toy.recover, toy.task)
        rounds = {"accelerations": toy.ACCELERATIONS, "samples": 6, "progress": False}
        return pipeline.run([image], **rounds, **settings).outputs[:, 0]

    return run


@pytest.mark.parametrize("seed", [0, 70])
@pytest.mark.parametrize("name", ["patient-3-slice-2", "0"])
def test_a_scan_repeats_the_row_of_a_table(toy, patient_policy, row, name, seed):
    scan = toy.scan(toy.scanner_of(1000), policy=patient_policy, seed=seed, case=name)

    assert np.array_equal(outputs(scan), row(toy.image(1000), seed=seed, case=[name]))


def test_without_a_name_a_scan_is_the_only_image_of_a_run(toy, patient_policy, row):
    scan = toy.scan(toy.scanner_of(1000), policy=patient_policy)

    assert np.array_equal(outputs(scan), row(toy.image(1000), seed=0))


def test_another_name_or_seed_draws_something_else(toy, patient_policy):
    settings = [{"case": "a"}, {"case": "b"}, {"case": "a", "seed": 1}]
    scans = [outputs(toy.scan(toy.scanner_of(1000), policy=patient_policy, **s)) for s in settings]

    assert not np.array_equal(scans[0], scans[1])
    assert not np.array_equal(scans[0], scans[2])


def test_a_scan_with_the_shipped_networks_repeats_a_stored_case():
    rates, item = (16.0, 4.0), Atlas(1, 1)[0]
    masks = MaskConfig().masks(128)[[0, 2]]
    recover, task = open_recovery("sampler-atlas", device="cpu"), load(locate("classifier-atlas"))
    stored = stored_table("atlas-sampler").select(accelerations=rates, samples=2)
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
