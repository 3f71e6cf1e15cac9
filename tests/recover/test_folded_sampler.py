"""Drawing quickly changes nothing: the folded sampler is the sampler."""

from __future__ import annotations

import pytest
import torch

from taskuq.measure.mri import Measurement
from taskuq.measure.projections import keep_measured
from taskuq.recover import RECOVERIES
from taskuq.recover.columns import central_window
from taskuq.recover.sampler import SamplerConfig, SamplerNet
from taskuq.recover.sampler.folded import fold_sampler
from taskuq.recover.sampler.recovery import drawn
from taskuq.recover.sampler.replayed import ReplayedDraws
from taskuq.recover.sampler_training import VarNetEstimates


@pytest.fixture
def net(randomise):
    return randomise(SamplerNet(SamplerConfig(width=4, drawn=(8, 12, 16)))).eval()


def scan(seed):
    generator = torch.Generator().manual_seed(seed)
    mask = central_window(torch.tensor([8]), 24)[0]
    image = torch.complex(*torch.randn(2, 3, 16, 24, generator=generator))
    return Measurement(keep_measured(image, mask), mask, 3.0)


@pytest.mark.parametrize("size", [(16, 24), (13, 18)])  # also sides that are filled up
@pytest.mark.parametrize("numbers", [32, 0])
def test_folded_sampler_is_the_sampler(net, randomise, draw, size, numbers):
    if not numbers:
        config = SamplerConfig(width=4, drawn=(8, 12, 16), numbers=0)
        net = randomise(SamplerNet(config)).eval()
    told, share = draw(2, 6, *size, dtype=torch.float32), torch.tensor([0.1, 0.5])
    noise = draw(2, 3, net.noise_size(*size), dtype=torch.float32)
    folded = fold_sampler(net, device="cpu", dtype=torch.float32)
    with torch.no_grad():
        known = net.know(told, share)
        expected, found = net.draw(known, noise), folded.draw(folded.rows(known), noise)
    assert found.shape == expected.shape
    assert expected.std(1).min() > 1e-4 * expected.std()  # samples differ
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


def test_replayed_draws_are_draws(net):
    """What a GPU replays, step by step: neither chunks nor the number of samples matter."""
    estimating = VarNetEstimates(RECOVERIES.build("varnet", preset="tiny"))
    folded = fold_sampler(net, device="cpu", dtype=torch.float32)
    cases = [scan(seed) for seed in range(2)]
    expected = drawn(net, estimating(cases), samples=5, seeds=[3, 4])
    for together in (1, 2 * 2 * 16 * 24, 10**6):
        draws = ReplayedDraws(folded, estimating, together=together, graphs=False)
        for samples in (5, 2):
            found = draws(cases, samples=samples, seeds=[3, 4])
            assert (found - expected[:, :samples]).abs().max() < 1e-4 * expected.max()
        assert (draws(cases[::-1], samples=1, seeds=[4, 3])[0] - expected[1, :1]).abs().max() < 1e-4
        last = draws(cases[1:], samples=5, seeds=[4])  # filled up to two cases
        assert last.shape == expected[1:].shape
        assert (last - expected[1:]).abs().max() < 1e-4 * expected.max()
        assert draws._cases == 2
