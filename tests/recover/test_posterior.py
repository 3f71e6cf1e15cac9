"""A posterior that is known in closed form is what a trained flow draws from."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from taskuq.recover.flow._model import ConditionalFlow, FlowConfig, bits_per_dimension, squeeze

CONFIG = FlowConfig(
    coils=1, unet_width=2, unet_pools=1, condition_channels=8, layers=1, steps=4, limit=1e3
)
# x given y is Gaussian at each pixel: mean GAIN @ y, covariance ROOT @ ROOT.T.
GAIN = torch.tensor([[0.8, -0.3], [0.0, 0.5]])
ROOT = torch.tensor([[0.6, 0.0], [0.4, 0.2]])


def draw_pairs(count, generator):
    y = torch.randn(count, 2, 4, 4, generator=generator)
    noise = torch.randn(count, 2, 4, 4, generator=generator)
    mix = torch.einsum
    return mix("ij,bjhw->bihw", GAIN, y) + mix("ij,bjhw->bihw", ROOT, noise), y


@pytest.fixture(scope="module")
def trained():
    flow, generator = ConditionalFlow(CONFIG), torch.Generator().manual_seed(0)
    # The condition is given as it is, so that only the flow itself is under test.
    parameters = list(flow.layers.parameters())
    optimiser = torch.optim.Adam(parameters, lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 600)
    for step in range(600):
        x, y = draw_pairs(64, generator)
        loss = bits_per_dimension(*flow(x, [squeeze(y)], start=step == 0)).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        schedule.step()
    return flow


def draw_posterior(flow, y, count):
    generator = torch.Generator().manual_seed(1)
    z = [torch.randn(count, *shape, generator=generator) for shape in flow.latent_shapes(4, 4)]
    with torch.no_grad():
        return flow.inverse(z, [squeeze(y).expand(count, -1, -1, -1)])


def test_mean_and_covariance_are_those_of_the_posterior(trained):
    flow = trained
    _, y = draw_pairs(1, torch.Generator().manual_seed(7))
    samples = draw_posterior(flow, y, 4000)
    mean = torch.einsum("ij,bjhw->bihw", GAIN, y)[0]
    assert (samples.mean(0) - mean).abs().mean() < 0.06
    centred = (samples - samples.mean(0)).flatten(1)
    found = centred.T @ centred / len(samples)
    expected = torch.kron(ROOT @ ROOT.T, torch.eye(16))
    assert (found - expected).norm() / expected.norm() < 0.15


def test_likelihood_is_the_entropy_of_the_posterior(trained):
    flow = trained
    x, y = draw_pairs(2000, torch.Generator().manual_seed(8))
    with torch.no_grad():
        bits = bits_per_dimension(*flow(x, [squeeze(y)])).mean().item()
    # Bits per real number: half of log2 det(2 pi e S) for the two numbers of a pixel.
    log_det = torch.logdet(2 * torch.pi * torch.e * ROOT @ ROOT.T).item()
    entropy = log_det / 4 / math.log(2)
    # No density has fewer bits on average than the truth; sampling error is below 0.01.
    assert entropy - 0.01 < bits < entropy + 0.05


def test_training_noise_fills_the_subspaces_it_is_meant_for():
    from taskuq.measure._coils import to_complex
    from taskuq.measure._fourier import project_measured, project_null_space
    from taskuq.recover.flow._train import _null_space_target

    x = torch.randn(1, 2, 64, 64, generator=torch.Generator().manual_seed(0)) + 0j
    mask = torch.arange(64)[None] % 4 == 0
    for noise, null_noise in ((0.5, 0.0), (0.0, 0.25)):
        config = replace(CONFIG, coils=2, noise=noise, null_noise=null_noise)
        flow = ConditionalFlow(config)
        y, target = _null_space_target(flow, x, mask, torch.Generator().manual_seed(1))
        added = to_complex(target) - project_null_space(x, mask)
        assert torch.allclose(to_complex(y), project_measured(x, mask), atol=1e-6)
        # A projection on a quarter of the lines keeps a quarter of the energy of white noise.
        energies = [
            part(added, mask).abs().square().mean().item()
            for part in (project_measured, project_null_space)
        ]
        assert energies == pytest.approx([noise**2 / 2, null_noise**2 * 3 / 2], rel=0.05, abs=1e-9)
