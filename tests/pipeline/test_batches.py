"""Cases that run together give what they give alone, and bad ones harm only themselves."""

import pickle

import numpy as np
import pytest
import torch
import toy

import taskuq as tq
from taskuq.measure._masks import nested_masks
from taskuq.measure._mri import MultiCoilMRI
from taskuq.pipeline._local import RunLog, batch_size
from taskuq.pipeline._pipeline import status
from taskuq.recover import build
from taskuq.recover._methods import ZeroFilled
from taskuq.recover._varnet_training import VarNetRecovery
from taskuq.recover.flow._train import FlowRecovery
from taskuq.task._methods import MeanIntensity

RUN = {"accelerations": toy.ACCELERATIONS, "samples": 4, "seed": 3, "progress": False}
RATES = (8.0, 4.0)


class Together:
    """The toy recovery, several cases at a time; remembers how many."""

    def __init__(self, fits=100, error=MemoryError):
        self.fits, self.error, self.sizes = fits, error, []

    def __call__(self, measurement, *, samples, seed):
        return self.batch([measurement], samples=samples, seeds=[seed])[0]

    def batch(self, measurements, *, samples, seeds):
        self.sizes.append(len(measurements))
        if len(measurements) > self.fits:
            raise self.error("out of memory")
        if any(np.isnan(m[:, 0]).any() for m in measurements):
            raise ValueError("a measurement of nothing")
        pairs = zip(measurements, seeds, strict=True)
        return np.stack([toy.recover(m, samples=samples, seed=s) for m, s in pairs])


def same(a, b):
    return np.array_equal(a.outputs, b.outputs) and np.array_equal(a.targets, b.targets)


def run(recover, images, **settings):
    return tq.Pipeline(toy.measure, recover, toy.task).run(images, **{**RUN, **settings})


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 100])
def test_the_size_of_batches_changes_nothing(batch):
    recover = Together()
    found = run(recover, toy.images(7), batch=batch)

    assert same(found, run(toy.recover, toy.images(7)))
    # All batches are full, so that arithmetic that depends on their size gives the same bits.
    assert len(set(recover.sizes)) == 1


def test_nothing_is_run_twice():
    recover = Together()
    run(recover, toy.images(6), batch=2)

    assert len(recover.sizes) == 3 * len(toy.ACCELERATIONS)


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_batches_that_do_not_fit_are_halved_until_they_do(tmp_path, error):
    recover = Together(fits=2, error=error)
    found = run(recover, toy.images(32), batch=16, store=tmp_path / "t")

    assert same(found, run(toy.recover, toy.images(32)))
    # Once: what the first cases taught is remembered for the others.
    assert [s for s in recover.sizes if s > 2] == [16, 8, 4]


def test_memory_that_runs_out_later_is_in_the_log(tmp_path):
    recover = Together()
    measure = toy.measure

    def hungry(image, acceleration):
        recover.fits = 1 if np.array_equal(image, toy.images(9)[5]) else recover.fits
        return measure(image, acceleration)

    table = tq.Pipeline(hungry, recover, toy.task).run(
        toy.images(9), batch=3, store=tmp_path / "t", **RUN
    )
    assert same(table, run(toy.recover, toy.images(9)))
    events = [e for e in RunLog(tmp_path / "t").events() if e["event"] == "out of memory"]
    assert [e["batch"] for e in events] == [1]


def test_a_case_that_does_not_fit_alone_fails_alone(tmp_path):
    big = [np.ones((16, 16)), np.ones((16, 32)), np.ones((16, 16))]

    class Big(Together):
        def batch(self, measurements, *, samples, seeds):
            if measurements[0].shape == (16, 32):
                raise torch.OutOfMemoryError("tried to allocate much")
            return super().batch(measurements, samples=samples, seeds=seeds)

    table = run(Big(), big, batch=2, store=tmp_path / "t")
    assert table.missing_cases == ("1",)
    assert "OutOfMemoryError" in status(tmp_path / "t")["failed"]["1"]


@pytest.mark.parametrize("bad", [0, 3, 6])
def test_a_bad_case_fails_alone_and_its_batch_is_finished(tmp_path, bad):
    images = toy.images(7)
    expected = run(toy.recover, images)
    images[bad] = np.nan
    table = run(Together(), images, batch=7, store=tmp_path / "t")

    assert table.missing_cases == (str(bad),)
    assert np.array_equal(table.outputs, np.delete(expected.outputs, bad, axis=1))


def test_a_nan_of_the_network_is_the_failure_of_its_case():
    def recover_nan(measurement, *, samples, seed):
        drawn = toy.recover(measurement, samples=samples, seed=seed)
        return np.where(drawn[:, :1, :1] > 0.9, np.nan, drawn)

    images = toy.images(7)
    broken = [str(i) for i, image in enumerate(images) if image[0, 0] > 0.9]
    recover = Together()
    recover.batch = lambda ms, *, samples, seeds: np.stack(
        [recover_nan(m, samples=samples, seed=s) for m, s in zip(ms, seeds, strict=True)]
    )
    images[2, 0, 0] = 0.95
    assert run(recover, images, batch=4).missing_cases == tuple(sorted({*broken, "2"}))


def test_a_number_outside_the_declared_range_is_the_failure_of_its_case():
    images = toy.images(5)
    images[3] += 5

    assert run(toy.recover, images, task_range=(0, 1)).missing_cases == ("3",)


def networks():
    torch.manual_seed(0)
    flow = build("flow", preset="tiny")
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return {
        "zero-filled": ZeroFilled(),
        "varnet": VarNetRecovery(build("varnet", preset="tiny")),
        "flow": FlowRecovery(flow, temperature=0.5),
    }


@pytest.fixture(scope="module", params=["zero-filled", "varnet", "flow"])
def recovery(request):
    return networks()[request.param]


@pytest.fixture(scope="module")
def coil_images():
    generator = torch.Generator().manual_seed(1)
    return [torch.complex(*torch.randn(2, 1, 32, 32, generator=generator)) for _ in range(7)]


def mri(recover, images, **settings):
    measure = MultiCoilMRI(nested_masks(32, RATES, rng=np.random.default_rng(0)), RATES)
    pipeline = tq.Pipeline(measure, recover, MeanIntensity())
    return pipeline.run(
        images, **{"accelerations": RATES, "samples": 3, "seed": 0, "progress": False, **settings}
    )


def test_networks_give_the_same_bits_whatever_runs_beside_a_case(recovery, coil_images):
    table = mri(recovery, coil_images, batch=3)
    order = [4, 6, 2, 0, 3, 5, 1]
    other = mri(recovery, [coil_images[i] for i in order], batch=3, case=[str(i) for i in order])

    assert np.array_equal(table.outputs[:, order], other.outputs)
    assert np.array_equal(table.targets[order], other.targets)


def test_networks_give_the_same_numbers_in_batches_of_any_size(recovery, coil_images):
    # Up to rounding: convolutions of one image and of several add in different orders.
    tables = [mri(recovery, coil_images, batch=size) for size in (1, 2, 5)]
    for table in tables[1:]:
        assert np.abs(table.outputs / tables[0].outputs - 1).max() < 1e-5


def test_a_resumed_run_gives_the_same_bits(recovery, coil_images, tmp_path):
    whole = mri(recovery, coil_images, batch=3)

    class Stopped(list):
        def __getitem__(self, index):
            if index >= 3:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    with pytest.raises(KeyboardInterrupt):
        mri(recovery, Stopped(coil_images), batch=3, store=tmp_path / "t")
    assert same(mri(recovery, coil_images, batch=3, store=tmp_path / "t"), whole)


def test_a_recovery_that_has_worked_travels_to_another_process(recovery, coil_images):
    before = mri(recovery, coil_images)

    assert same(mri(pickle.loads(pickle.dumps(recovery)), coil_images), before)


def test_batches_follow_from_memory_and_never_exceed_the_cases():
    recover, image = Together(), np.ones((128, 128))

    assert batch_size(recover, image, samples=1, cases=1000) == 16
    assert batch_size(recover, image, samples=10**6, cases=1000) == 1
    assert batch_size(recover, image, samples=1, cases=17) == 9  # two equal batches
    assert batch_size(toy.recover, image, samples=1, cases=1000) == 1
    with pytest.raises(tq.InputError, match="batch must be at least 1"):
        batch_size(recover, image, samples=1, cases=5, batch=0)
