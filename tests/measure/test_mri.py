"""The scanner keeps its noise over rounds and refuses what it is not for."""

import numpy as np
import pytest
import torch

from raising import refused
from taskuq.measure._coils import coil_sensitivities, rss, simulate_coils, smooth_phase
from taskuq.measure._fourier import fft2c, project_measured
from taskuq.measure._masks import nested_masks
from taskuq.measure._mri import MultiCoilMRI, SimulatedMRIScanner
from taskuq.protocols import Measure

RATES = (8, 4, 2)


@pytest.fixture
def masks():
    return nested_masks(64, RATES, seed=0)


@pytest.fixture
def image():
    real, imaginary = np.random.default_rng(1).normal(size=(2, 3, 48, 64))
    return torch.as_tensor(real + 1j * imaginary)


def test_noiseless_measurement_is_the_zero_filled_image(masks, image):
    scanner = MultiCoilMRI(masks, RATES)
    assert isinstance(scanner, Measure)
    for mask, R in zip(masks, RATES, strict=True):
        assert torch.equal(scanner(image, R).zero_filled, project_measured(image, mask))
    assert torch.allclose(scanner(image, 1).zero_filled, image)
    y = MultiCoilMRI(masks, RATES, noise=0.1, seed=0)(image, 4)
    assert torch.equal(y.kspace.abs().amax((0, 1)) > 0, y.mask)


def test_line_keeps_its_noise_in_later_rounds(masks, image):
    scanner = MultiCoilMRI(masks, RATES, noise=0.5, seed=3)
    early, late = (fft2c(scanner(image, R).zero_filled) for R in (8, 2))
    assert torch.allclose(early[..., masks[0]], late[..., masks[0]])
    assert not torch.allclose(late[..., masks[0]], fft2c(image)[..., masks[0]])


def test_noise_has_its_level_and_depends_on_image_and_seed(masks, image):
    def noise(x, seed):
        return fft2c(MultiCoilMRI(masks, RATES, noise=0.5, seed=seed)(x, 1).zero_filled - x)

    first = noise(image, 0)
    # 9216 numbers: the standard error of the deviation is 0.0037, far inside the tolerance.
    assert first.real.std().item() == pytest.approx(0.5, abs=0.025)
    assert first.imag.std().item() == pytest.approx(0.5, abs=0.025)
    assert not torch.allclose(first, noise(image, 1))
    assert not torch.allclose(first, noise(2 * image, 0))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"masks": np.eye(3, 64, dtype=bool)}, "rounds.invalid"),
        ({"accelerations": (8, 4)}, "shape.mismatch"),
        ({"noise": 0.1}, "value.invalid"),
        ({"noise": -1.0, "seed": 0}, "value.invalid"),
    ],
)
def test_impossible_scanners_sizes_and_rates_are_refused(masks, image, change, code):
    with refused(code):
        MultiCoilMRI(**({"masks": masks, "accelerations": RATES} | change))
    scanner = MultiCoilMRI(masks, RATES)
    with refused("shape.mismatch"):
        scanner(image[..., :32], 8)
    with refused("choice.unknown"):
        scanner(image, 3)


@pytest.mark.parametrize("coils", [1, 4, 8, 15])
@pytest.mark.parametrize("size", [(64, 64), (96, 80), (31, 47)])
def test_rss_of_simulated_coils_is_the_image(coils, size):
    rng = np.random.default_rng(0)
    image = torch.as_tensor(rng.uniform(size=size).astype(np.float32))
    phase = smooth_phase(*size, rng=rng)
    images = simulate_coils(image, coil_sensitivities(coils, *size, rng=rng), phase)
    assert images.shape == (coils, *size)
    assert torch.allclose(rss(images), image, atol=1e-6)


def test_sensitivities_are_smooth_and_different():
    maps = coil_sensitivities(8, 128, 128, rng=np.random.default_rng(0))
    assert maps.diff(dim=-1).abs().max() < 0.1
    assert maps.diff(dim=-2).abs().max() < 0.1
    brightest = maps.abs().flatten(1).argmax(1)
    assert len(set(brightest.tolist())) == 8


@pytest.mark.parametrize(("height", "width"), [(64, 64), (63, 64), (64, 61)])
def test_combined_pieces_are_the_measurement(image, masks, height, width):
    image = image[..., :height, :width].to(torch.complex64)
    scanner = SimulatedMRIScanner(image, masks[:, :width], RATES)
    operator = MultiCoilMRI(scanner.masks, RATES)
    pieces = []
    for k, R in enumerate((*RATES, 1.0)):
        pieces.append(scanner.measure(k))
        joined, at_once = scanner.combine(pieces), operator(scanner.image, R)
        assert joined.acceleration == R
        assert torch.equal(joined.mask, at_once.mask)
        assert torch.equal(joined.zero_filled, at_once.zero_filled)
    assert torch.allclose(joined.zero_filled, scanner.image, atol=1e-5)
    columns = np.concatenate([piece["columns"] for piece in pieces])
    assert sorted(columns) == list(range(width))  # each line is measured once
    with refused("value.invalid"):
        scanner.measure(4)
