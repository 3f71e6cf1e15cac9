"""CT recoveries: samples, training and shipped networks."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raising import refused
from taskuq.data._arrays import ArrayDataset
from taskuq.data._chest import ChestPhantom
from taskuq.data._dataset import Subset
from taskuq.measure._tomography import ParallelBeamCT, Radon, TomographyConfig, view_angles
from taskuq.recover import _tomography as ct
from taskuq.recover import build, load
from taskuq.recover._methods import open_recovery
from taskuq.recover.sampler._network import SamplerConfig, SamplerNet
from taskuq.recover.sampler._sample import SamplerRecovery
from taskuq.task import load as task_load
from taskuq.training._config import TrainingConfig
from taskuq.training._fit import TrainerOptions, train
from taskuq.training._weights import locate

CPU = TrainerOptions(accelerator="cpu", progress=False)
MEASURE = TomographyConfig((8.0, 4.0), views=32)
SMALL = ct._UnrolledConfig(cascades=1, width=4, pools=2)
CHEST = ChestPhantom(patients=6, seed=0, size=32, slices=2)
SCANNER = ParallelBeamCT(32, 32, (8.0, 4.0))


@pytest.fixture(autouse=True)
def fixed_weights():
    torch.manual_seed(0)


def scan(index, acceleration=4.0):
    return SCANNER(CHEST[index].image, acceleration)


def sampler():
    net = SamplerNet(SamplerConfig(3, 1, width=4, decoder_channels=(4, 4)))
    torch.nn.init.normal_(net.out.weight, std=0.1)
    return SamplerRecovery(net, partial(ct._estimate_scans, ct._UnrolledNet(SMALL)))


def test_samples_differ_in_the_null_space():
    recover = sampler()
    found = recover.estimator([scan(0)])

    def gap(images):
        batch = SimpleNamespace(
            inputs=found.inputs, sampled_fraction=found.sampled_fraction, images=images
        )
        samples = SamplerRecovery(recover.net, lambda _: batch).batch([], samples=6, seeds=[3])
        assert samples.std(1).mean() > 1e-3
        return (found.views.radon(samples) - scan(0).projections).norm()

    loose = gap(lambda residuals: found.image[:, None] + residuals[:, :, 0])
    assert gap(found.images) < 0.25 * loose


def test_training_simulates_the_scanner():
    batch = {"image": CHEST[0].image[None], "round": torch.tensor([0])}
    views, _ = ct._CTTraining(measure=MEASURE).simulate(batch, torch.Generator())
    kept = views.projections[views.mask]
    assert torch.allclose(kept, scan(0, 8.0).projections, atol=1e-4)
    assert not views.projections[~views.mask].any()
    assert views.share.item() == 1 / 8
    data = ArrayDataset(np.ones((1, 2, 8, 8)) + 0j, label=[0], group="image")
    with refused("shape.axes"):  # images of coils
        ct._SinogramDataset(data, 2, seed=None)[0, 0]
    with refused("option.conflict"):  # other channels
        ct._CTSamplerTraining(network=build("sampler", preset="tiny").config)


def test_training_cases_have_random_views():
    images = CHEST[0].image.expand(60, 32, 32)
    rounds = torch.arange(60) % 2
    batch = {"image": images, "round": rounds, "progress": torch.zeros(())}
    anywhere = ct._CTTraining(measure=MEASURE, random_views_fraction=0.5)
    views, _ = anywhere.simulate(batch, torch.Generator().manual_seed(0))
    fixed = torch.as_tensor(MEASURE.masks(0))[rounds]
    own = (views.mask != fixed).any(1)
    assert 15 < own.sum() < 45
    counts = views.mask.sum(1)
    assert torch.allclose(views.share, counts / MEASURE.views)
    assert counts.min() >= fixed[0].sum()
    assert counts.max() <= fixed[1].sum()
    exact = Radon(32, view_angles(np.arange(MEASURE.views), MEASURE.views))(images[:1])
    assert torch.allclose(views.projections, exact * views.mask[:, :, None], atol=1e-4)


def test_counts_in_training_have_the_variance_of_the_scanner():
    noisy = TomographyConfig((8.0, 4.0), views=32, photons=1e3)
    images = CHEST[0].image.expand(200, 32, 32)
    batch = {"image": images, "round": torch.ones(200, dtype=torch.long)}
    views, _ = ct._CTTraining(measure=noisy).simulate(batch, torch.Generator().manual_seed(0))
    exact = scan(0).projections
    variance = noisy.counts.variance(exact, 32)
    # 200 squares in each of 376 bins: the mean ratio has a standard error below 1 %.
    ratio = (views.projections - exact).square().mean(0) / variance
    assert abs(ratio.mean().item() - 1) < 0.1
    assert views.variance.mean().item() == pytest.approx(variance.mean().item(), rel=0.1)


def test_sampler_is_trained_with_its_folds(tmp_path):
    still = TrainingConfig(epochs=1, batch=4, learning_rate=1e-9)
    data = Subset(CHEST, range(10)), Subset(CHEST, (10, 11))
    settings = ct._UnrolledTraining(SMALL, replace(still, seed=1), measure=MEASURE)
    start = train(settings, tmp_path / "start", machine=CPU, data=data)
    estimate = ct._CTEstimateConfig(folds=2, network=SMALL, training=still, init_from=start)
    network = SamplerConfig(3, 1, width=4, decoder_channels=(4, 4))
    settings = ct._CTSamplerTraining(network, still, measure=MEASURE, estimate=estimate)
    sampler = train(settings, tmp_path / "sampler", machine=CPU, data=data)
    assert open_recovery(sampler)(scan(0), samples=2, seed=0).shape == (2, 32, 32)
    paths = list(sampler.parent.glob("*/best.safetensors"))
    assert {p.parent.name for p in paths} == {"estimate", "fold-1-of-2", "fold-2-of-2"}
    for path in paths:
        for mine, theirs in zip(load(path).parameters(), load(start).parameters(), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-6)


def test_shipped_sampler_beats_back_projection_with_a_calibrated_spread():
    images = torch.stack([ChestPhantom(6, seed=11, size=64, slices=1)[k].image for k in range(6)])
    scanner = TomographyConfig((8.0,), views=96, photons=1e5).scanner(64, noise=0.0, seed=0)
    scans = [scanner(image, 8.0) for image in images]
    samples = open_recovery("ct-sampler-chest").batch(scans, samples=16, seeds=range(6))
    error = (samples.mean(1) - images).square().mean()
    simple = ct.FilteredBackProjection().batch(scans, samples=1, seeds=range(6))[:, 0]
    # 5 dB, and a spread of samples that is right to a third.
    assert error < 0.3 * (simple - images).square().mean()
    assert 2 / 3 < (samples.var(1).mean() * (1 + 1 / 16) / error).sqrt() < 3 / 2


def test_shipped_network_predicts_the_air_fraction():
    chest = ChestPhantom(10, seed=12, size=64, slices=2)
    images = torch.stack([chest[k].image for k in range(20)])
    read = task_load(locate("air-chest"))(images).detach().numpy()
    assert np.abs(read - chest.air).mean() < 0.02
