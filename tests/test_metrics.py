"""Metrics agree with the statistics of the package, in parts and over processes."""

import numpy as np
import pytest

import taskuq as tq

pytest.importorskip("torchmetrics")

import torch

from taskuq.metrics import CRPS, IntervalCoverage, IntervalWidth, RankHistogram


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, 60) / 4
    samples = np.round(truth[:, None] + 0.3 * rng.standard_normal((60, 6)), 1)
    return torch.tensor(samples), torch.tensor(truth)


def merged(metric, *tensors):
    """The value after two processes saw half of the cases each."""
    half = len(tensors[0]) // 2
    parts = [metric.clone(), metric.clone()]
    parts[0].update(*(t[:half] for t in tensors))
    parts[1].update(*(t[half:] for t in tensors))
    for name, reduce in metric._reductions.items():
        states = torch.stack([getattr(part, name) for part in parts])
        setattr(parts[0], name, reduce(states))
    return parts[0].compute()


def test_metrics_equal_the_diagnosis(arrays):
    samples, truth = arrays
    diagnosis = tq.diagnose(samples.numpy(), truth.numpy(), bins=7).results[0]
    assert float(CRPS()(samples, truth)) == pytest.approx(diagnosis.crps.value, rel=1e-12)
    counts = RankHistogram(6)(samples, truth)
    assert counts.sum() == pytest.approx(len(truth))
    fractions = [one.fraction for one in diagnosis.histogram]
    np.testing.assert_allclose(counts / len(truth), fractions, rtol=1e-12)


def test_coverage_and_width_equal_those_of_an_interval(arrays):
    samples, truth = arrays
    interval = tq.Interval(samples.min(1).values, samples.max(1).values - 0.3)
    lower, upper = map(torch.tensor, interval)
    assert float(IntervalCoverage()(lower, upper, truth)) == interval.contains(truth).mean()
    assert float(IntervalWidth()(lower, upper)) == pytest.approx(interval.width.mean())


@pytest.mark.parametrize("make", [CRPS, lambda: RankHistogram(6)])
def test_two_processes_give_the_value_of_one(arrays, make):
    torch.testing.assert_close(merged(make(), *arrays), make()(*arrays))


def test_too_few_samples_are_refused(arrays):
    for metric in (CRPS(), RankHistogram(3)):
        with pytest.raises(tq.InputError) as caught:
            metric.update(arrays[0][:, :1], arrays[1])
        assert caught.value.code == "samples.mismatch"
