"""Drawing quickly changes nothing: the folded sampler is the sampler."""

from __future__ import annotations

import pytest
import torch

from taskuq.measure._fourier import _central_window, project_measured
from taskuq.measure._mri import MRIMeasurement
from taskuq.recover._methods import RECOVERIES
from taskuq.recover.sampler._network import SamplerConfig, SamplerNet
from taskuq.recover.sampler._sample import _fold_sampler, _GraphedSampler, _sample_images
from taskuq.recover.sampler._train import _VarNetEstimator


@pytest.fixture
def net(randomise):
    return randomise(SamplerNet(SamplerConfig(width=4, drawn=(8, 12, 16)))).eval()


def scan(seed):
    generator = torch.Generator().manual_seed(seed)
    mask = _central_window(torch.tensor([8]), 24)[0]
    image = torch.complex(*torch.randn(2, 3, 16, 24, generator=generator))
    return MRIMeasurement(project_measured(image, mask), mask, 3.0)


@pytest.mark.parametrize("size", [(16, 24), (13, 18)])  # also sides that are filled up
@pytest.mark.parametrize("numbers", [32, 0])
def test_folded_sampler_is_the_sampler(net, randomise, draw, size, numbers):
    if not numbers:
        config = SamplerConfig(width=4, drawn=(8, 12, 16), numbers=0)
        net = randomise(SamplerNet(config)).eval()
    told, share = draw(2, 6, *size, dtype=torch.float32), torch.tensor([0.1, 0.5])
    noise = draw(2, 3, net.noise_size(*size), dtype=torch.float32)
    folded = _fold_sampler(net, device="cpu", dtype=torch.float32)
    with torch.no_grad():
        known = net.know(told, share)
        expected, found = net.draw(known, noise), folded.draw(folded.rows(known), noise)
    assert found.shape == expected.shape
    assert expected.std(1).min() > 1e-4 * expected.std()  # samples differ
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


def test_replayed_draws_are_draws(net):
    """What a GPU replays, step by step: neither chunks nor the number of samples matter."""
    estimating = _VarNetEstimator(RECOVERIES.build("varnet", preset="tiny"))
    folded = _fold_sampler(net, device="cpu", dtype=torch.float32)
    cases = [scan(seed) for seed in range(2)]
    expected = _sample_images(net, estimating(cases), samples=5, seeds=[3, 4])
    for together in (1, 2 * 2 * 16 * 24, 10**6):
        draws = _GraphedSampler(folded, estimating, together=together, graphs=False)
        for samples in (5, 2):
            found = draws(cases, samples=samples, seeds=[3, 4])
            assert (found - expected[:, :samples]).abs().max() < 1e-4 * expected.max()
        assert (draws(cases[::-1], samples=1, seeds=[4, 3])[0] - expected[1, :1]).abs().max() < 1e-4
        last = draws(cases[1:], samples=5, seeds=[4])  # filled up to two cases
        assert last.shape == expected[1:].shape
        assert (last - expected[1:]).abs().max() < 1e-4 * expected.max()
        assert draws._cases == 2
