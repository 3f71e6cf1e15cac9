"""Scans of any kind: the truth is kept, and noise, contrast, coils and masks are as asked."""

import math
from dataclasses import replace

import pytest
import torch

from raising import refused
from taskuq.measure._coils import rss
from taskuq.measure._fourier import broadcast_mask, fft2c
from taskuq.recover._cases import (
    CoilAugmentation,
    ScanRandomisation,
    _random_contrast,
    _RandomMasks,
    _resample,
    _shear,
    simulate_scan,
)

PLAIN = ScanRandomisation(fixed_mask_fraction=1.0, noise_fraction=0.0, contrast=0.0)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def batch(draw):
    mask = torch.arange(24).repeat(5, 1) % 3 == 0
    return {"image": draw(5, 1, 32, 24).abs().float() + 0j, "mask": mask}


def test_nothing_to_vary_is_the_plain_measurement(batch):
    plain, varied = (simulate_scan(batch, generator(), randomise=r) for r in (None, PLAIN))
    assert torch.equal(plain["kspace"], varied["kspace"])
    assert torch.equal(varied["mask"], batch["mask"])


def test_coils_keep_the_truth(batch):
    seen = replace(PLAIN, coils=(4, 7, 16))(batch, generator())
    assert seen["image"].shape[1] in (4, 7, 16)
    assert torch.allclose(rss(seen["image"]), batch["image"][:, 0].real, atol=1e-5)
    assert seen["image"].imag.abs().max() > 0.1  # the coils and the head have a phase


def test_every_number_of_coils_comes_up(batch):
    scans = replace(PLAIN, coils=(4, 6, 8))
    counts = {scans(batch, generator(k))["image"].shape[1] for k in range(40)}
    assert counts == {4, 6, 8}


def test_noise_has_the_size_it_was_asked_for_and_the_truth_has_none(batch):
    noisy = replace(PLAIN, noise_fraction=1.0, snr_db=(26.0, 26.0))(batch, generator())
    clean = fft2c(batch["image"])
    assert torch.equal(noisy["image"], batch["image"])
    noise = (noisy["kspace"] - clean)[broadcast_mask(batch["mask"], clean).expand(clean.shape)]
    signal = batch["image"].abs().square().mean((1, 2, 3)).sqrt()
    sigma = math.sqrt(torch.view_as_real(noise).square().mean())
    numbers = 2 * len(noise)
    # Squares of unit normals have variance 2; six deviations of their mean.
    assert sigma**2 == pytest.approx(
        float((signal * 10 ** (-26 / 20)).square().mean()), rel=6 * math.sqrt(2 / numbers) + 0.01
    )


def test_masks_of_their_own_are_never_a_round(batch):
    scans = replace(PLAIN, fixed_mask_fraction=0.0, masks=_RandomMasks(acceleration_range=(6, 6)))
    mask = scans(batch, generator())["mask"]
    assert mask.sum(1).tolist() == [4] * 5
    assert mask[:, 12].all()


@pytest.mark.parametrize("strength", [0.3, 1.0])
def test_a_map_of_magnitudes_is_increasing_and_keeps_zero_and_the_largest(batch, strength):
    images = batch["image"] * torch.polar(torch.ones(()), torch.tensor(0.7))
    images[:, :, 0, 0] = 0
    mapped = _random_contrast(images, strength, generator())
    before, after = images.abs().flatten(1), mapped.abs().flatten(1)
    order = before.argsort(1)
    assert (after.take_along_dim(order, 1).diff(dim=1) >= -1e-6).all()
    assert torch.allclose(after.amax(1), before.amax(1))
    assert (mapped[:, :, 0, 0] == 0).all()
    assert (mapped - images).abs().max() > 0.05
    assert torch.allclose((mapped * images.conj()).imag, torch.zeros(()), atol=1e-5)


def test_an_empty_image_stays_empty(batch):
    empty = {**batch, "image": torch.zeros_like(batch["image"])}
    seen = ScanRandomisation(coils=(4,), noise_fraction=1.0)(empty, generator())
    assert float(seen["kspace"].abs().max()) == 0
    assert torch.isfinite(rss(seen["image"])).all()


@pytest.mark.parametrize(
    "settings", [{"fixed_mask_fraction": 1.5}, {"coils": (0,)}, {"snr_db": (60.0, 20.0)}]
)
def test_bad_settings_are_refused(settings):
    with refused("value.invalid"):
        ScanRandomisation(**settings)
    with refused("value.invalid"):
        CoilAugmentation(rotation=60)


def test_coils_are_not_simulated_upon_coils(batch):
    two = {**batch, "image": batch["image"].expand(-1, 2, -1, -1)}
    with refused("option.conflict"):
        ScanRandomisation(coils=(4,))(two, generator())


STILL = {"rotation": 0.0, "shift": 0.0, "stretch": 0.0, "flip": 0.0}


def blob(x, y, side=48, width=3.0):
    """A Gaussian at a place, from the centre of the image, as one coil."""
    axis = torch.arange(side) - (side - 1) / 2
    image = torch.exp(-((axis - x) ** 2 + (axis[:, None] - y) ** 2) / (2 * width**2))
    return (image + 0j)[None, None]


def test_no_move_changes_the_phase_alone(draw):
    x = torch.complex(draw(2, 3, 16, 16), draw(2, 3, 16, 16)).to(torch.complex64)
    factor = CoilAugmentation(**STILL)(x, generator(3)) / x
    assert torch.allclose(factor.abs(), torch.ones(()), atol=1e-4)
    assert (factor - factor[:, :1, :1, :1]).abs().max() < 1e-3


def test_turning_keeps_all_energy_and_can_be_undone(draw):
    x = torch.complex(draw(2, 3, 16, 16), draw(2, 3, 16, 16)).to(torch.complex64)
    turned = CoilAugmentation(**(STILL | {"rotation": 20.0}))(x, generator(3))
    assert turned.norm().item() == pytest.approx(x.norm().item(), rel=1e-5)
    slope = torch.tensor([0.2, -0.3])
    for axis in (-1, -2):
        assert torch.allclose(_shear(_shear(x, slope, axis), -slope, axis), x, atol=1e-5)


def test_three_shears_are_a_rotation():
    angle = torch.tensor([math.radians(20)])
    across, along = -torch.tan(angle / 2), torch.sin(angle)
    image = blob(8.0, 3.0)
    for axis, slope in ((-1, across), (-2, along), (-1, across)):
        image = _shear(image, slope, axis)
    c, s = math.cos(angle), math.sin(angle)
    expected = blob(c * 8 - s * 3, s * 8 + c * 3)
    assert (image - expected).abs().max() < 1e-3


@pytest.mark.parametrize("scale", [0.9, 1.0, 1.1])
def test_stretching_and_shifting_put_things_where_they_belong(scale):
    moved = _resample(blob(5.0, 2.0), -1, torch.tensor([scale]), torch.tensor([2.5]))
    axis = torch.arange(48) - 23.5
    row = torch.exp(-((((axis - 2.5) / scale) - 5.0) ** 2) / 18)
    found = moved[0, 0].abs().amax(0)
    assert (found / found.max() - row / row.max()).abs().max() < 1e-2
