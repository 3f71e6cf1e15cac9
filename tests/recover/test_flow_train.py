from dataclasses import replace

import numpy as np
import pytest
import torch

from raising import refused
from taskuq._seeds import mix_seeds
from taskuq.data._arrays import ArrayDataset
from taskuq.data._readers import simulate_coil_dataset
from taskuq.measure._coils import rss, to_complex
from taskuq.measure._fourier import project_measured, project_null_space
from taskuq.recover._cases import MaskedDataset
from taskuq.recover._varnet import InstanceNorm
from taskuq.recover.flow import _sample as sampling
from taskuq.recover.flow import _train as training
from taskuq.recover.flow._model import ACCELERATIONS, ConditionalFlow, FlowConfig, inflation_at
from taskuq.training._config import TrainingConfig
from taskuq.training._determinism import gaussian_rows, seeded

WHOLE = FlowConfig(
    coils=2, unet_width=4, unet_pools=2, condition_channels=6, layers=2, steps_per_layer=3,
    max_value=1e12, rotate_coils=True,
    mean_passes=2, fill="residual", null_noise=0.01, normalise=True,
)  # fmt: skip


def made(config):
    with seeded(1):
        return ConditionalFlow(config)


@pytest.fixture
def complex_normal(draw):
    return lambda *shape: torch.complex(draw(*shape), draw(*shape))


@pytest.fixture
def flow(randomise):
    whole = randomise(made(WHOLE)).eval()
    whole.widening.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(2))
    return whole


@pytest.fixture
def measurement(complex_normal):
    x = complex_normal(2, 2, 16, 24).to(torch.complex64)
    mask = torch.arange(24) % torch.tensor([[3], [5]]) == 0
    return x, project_measured(x, mask), mask


def test_coil_rotation_is_unitary(complex_normal):
    x, y = complex_normal(2, 4, 8, 12), complex_normal(2, 4, 8, 12)
    turn = sampling._CoilRotation.from_measurement(y)
    assert (rss(turn(x)) - rss(x)).abs().max() < 1e-12
    assert (turn.inverse(turn(x)) - x).abs().max() < 1e-12
    inner = (turn(x).conj() * turn(y)).sum(1) - (x.conj() * y).sum(1)
    assert inner.abs().max() < 1e-12


def test_first_rotated_coil_is_the_combined_image(complex_normal):
    y = complex_normal(1, 3, 16, 16)
    low = sampling.gaussian_blur(y, 2.5 / 128 * 16)
    turned = sampling._CoilRotation.from_measurement(y)(low)
    assert (turned[:, 0] - rss(low)).abs().max() < 1e-9
    assert turned[:, 1:].abs().max() < 1e-9


@pytest.mark.parametrize("turned", [False, True])
def test_posterior_mean_is_data_consistent(flow, measurement, turned):
    _, y, mask = measurement
    with torch.no_grad():
        found = sampling.posterior_mean(replace(WHOLE, rotate_coils=turned), y, mask, flow.predict)
    assert len(found.images) == 2
    assert found.condition.shape[1] == WHOLE.condition_inputs
    for image in found.images:
        assert (project_measured(image, mask) - y).abs().max() < 1e-5 * image.abs().max()
    assert (found.images[0] - found.images[1]).abs().max() > 1e-2


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"rotate_coils": False},
        {"mean_passes": 0},
        {"mean_passes": 0, "rotate_coils": False},
        {"normalise": False},
    ],
)
def test_samples_are_data_consistent(randomise, measurement, change):
    _, y, mask = measurement
    flow = randomise(made(replace(WHOLE, **change))).eval()
    samples = sampling.FlowSampler(flow)(y, mask, samples=3, seeds=[1, 2], temperature=0.5).images
    again = project_measured(samples.transpose(0, 1).contiguous(), mask.expand(3, 2, 24))
    assert (again.transpose(0, 1) - y[:, None]).abs().max() < 1e-5 * samples.abs().max()


def test_sample_is_the_mean_and_an_inflated_residual(flow, measurement):
    _, y, mask = measurement
    flow.config = replace(flow.config, normalise=False)
    sampler = sampling.FlowSampler(flow)
    samples = sampler(y, mask, samples=2, seeds=[1, 2]).images
    shapes = flow.latent_shapes(16, 24)
    numbers = [c * h * w for c, h, w in shapes]
    for case, seed in enumerate((1, 2)):
        one, lines = y[case : case + 1], mask[case : case + 1]
        rows = gaussian_rows(torch.empty(2, sum(numbers)), [mix_seeds(seed, j, 0) for j in (0, 1)])
        z = sampling.split_latents(rows, shapes)
        with torch.no_grad():
            found = sampling.posterior_mean(flow.config, one, lines, flow.predict)
            residual = flow.inverse(z, flow.encode(found.condition))
        residual = residual * inflation_at(flow.widening, lines)[:, :, None, None]
        drawn = found.images[-1] + found.unrotate(to_complex(residual))
        plain = project_null_space(drawn, lines.expand(2, -1)) + one
        assert (samples[case] - plain).abs().max() < 1e-4 * plain.abs().max()


def test_target_is_the_residual_of_the_mean(flow, measurement):
    x, y, mask = measurement
    flow.config = replace(flow.config, normalise=False, null_noise=0.0)
    batch = {"image": x, "mask": mask}
    inputs, target = training._null_space_target(flow, batch, torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = sampling.posterior_mean(flow.config, y, mask, flow.predict)
    missing = project_null_space(found.unrotate(to_complex(target)), mask) + found.images[-1]
    assert (missing - x).abs().max() < 1e-4
    assert torch.allclose(inputs, found.condition)
    assert not target.requires_grad


@pytest.mark.parametrize("every", [2, 4])
def test_fill_lies_in_measured_lines_with_the_density_of_the_residual(complex_normal, every):
    """A residual whose lines shrink away from the centre: the fill's lines shrink with them."""
    mask = (torch.arange(128) % every == 0)[None]
    window = 1 / (1 + ((torch.arange(128) - 64) / 16) ** 2)
    x = torch.fft.ifft2(
        torch.fft.ifftshift(window) * torch.fft.fft2(complex_normal(1, 4, 128, 128))
    )
    residual = project_null_space(x, mask)
    noise = complex_normal(1, 4, 128, 128)
    fill = training._residual_fill(sampling.PosteriorMean(None, (), x.real), residual, mask, noise)
    assert project_null_space(fill, mask).abs().max() < 1e-12 * fill.abs().max()
    in_lines = [
        torch.fft.fftshift(torch.fft.fft2(part), dim=(-1, -2)).abs().square().sum((0, 1, 2))
        for part in (fill, residual)
    ]
    for part in range(0, 64, 16):
        # On one side of the centre measured lines are the inner ones, on the other the outer ones.
        ratio = 1.0
        for near in (slice(part, part + 16), slice(112 - part, 128 - part)):
            filled = in_lines[0][near][mask[0, near]].mean()
            missing = in_lines[1][near][~mask[0, near]].mean()
            ratio *= (filled / missing).item() ** 0.5
        assert ratio == pytest.approx(1, rel=0.2)


def test_full_measurement_leaves_no_residual(flow, measurement):
    x, _, mask = measurement
    full = torch.ones_like(mask)
    flow.config = replace(flow.config, null_noise=0.0)
    _, target = training._null_space_target(flow, {"image": x, "mask": full}, torch.Generator())
    assert target.abs().max() < 1e-5
    assert max(share.max() for share in training._residual_fraction(flow, x, full)) < 1e38


def test_inflation_is_interpolated():
    factors = torch.arange(7.0)[:, None]
    mask = torch.arange(256)[None] % torch.tensor([[1], [4], [128]]) == 0
    assert inflation_at(factors, mask)[:, 0].tolist() == [0, 2, 6]
    assert len(ACCELERATIONS) == 7


def test_inflated_residuals_have_the_size_of_errors(randomise):
    flow = randomise(made(WHOLE), scale=0.05).eval()
    images = np.random.default_rng(0).random((6, 16, 16)) + np.eye(16)
    data = simulate_coil_dataset(ArrayDataset(images, label=6 * [0], group="image"), 2, seed=0)
    cases = MaskedDataset(data, abs(np.arange(16) - 8) < [[2], [4]], seed=None)
    with torch.no_grad():
        flow.size.third.bias.add_(-1.0)
    training._fit_inflation(flow, cases, device="cpu")
    assert (flow.widening[2:4].amax(1) > 1.5).all(), "too narrow at first"
    masks, sampler = torch.as_tensor(cases.masks), sampling.FlowSampler(flow)
    for place, mask in enumerate(masks):
        # Not to the last digit: measured lines tie the channels to each other.
        assert training._inflation(sampler, cases, mask, place) == pytest.approx(
            np.ones(4), abs=0.1
        )


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: training._FlowTraining(network=WHOLE), "option.missing"),
        (
            lambda: training._FlowTraining(estimate="x", pretrain=TrainingConfig()),
            "option.conflict",
        ),
        (lambda: FlowConfig(in_channels=6, rotate_coils=True), "option.conflict"),
        (lambda: FlowConfig(mean_passes=-1), "value.invalid"),
    ],
)
def test_conflicting_settings_are_refused(make, code):
    with refused(code):
        make()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_compiled_instance_norm_is_the_same(monkeypatch, draw, dtype, tolerance):
    x = (3 + 2 * draw(2, 5, 7, 9)).to(dtype).contiguous(memory_format=torch.channels_last)
    expected = InstanceNorm()(x)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    found = InstanceNorm()(x)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert (found - expected).abs().max() < tolerance * expected.abs().max()
