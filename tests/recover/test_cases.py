"""Randomised scans, augmentation and random masks."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom

from raising import refused
from taskuq.measure._coils import rss
from taskuq.measure._fourier import broadcast_mask, fft2c
from taskuq.measure._masks import acs_width, center_lines
from taskuq.recover import _cases as cases

PLAIN = cases.ScanRandomisation(fixed_mask_fraction=1.0, noise_fraction=0.0, contrast=0.0)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def batch(draw):
    mask = torch.arange(24).repeat(5, 1) % 3 == 0
    return {"image": draw(5, 1, 32, 24).abs().float() + 0j, "mask": mask}


def test_no_variation_is_the_plain_measurement(batch):
    plain, varied = (cases.simulate_scan(batch, generator(), randomise=r) for r in (None, PLAIN))
    assert torch.equal(plain["kspace"], varied["kspace"])
    assert torch.equal(varied["mask"], batch["mask"])


def test_coils_keep_the_truth(batch):
    seen = replace(PLAIN, coils=(4, 7, 16))(batch, generator())
    assert seen["image"].shape[1] in (4, 7, 16)
    assert torch.allclose(rss(seen["image"]), batch["image"][:, 0].real, atol=1e-5)
    assert seen["image"].imag.abs().max() > 0.1  # the coils and the head have a phase


def test_noise_has_its_size_and_the_truth_has_none(batch):
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


@pytest.mark.parametrize("strength", [0.3, 1.0])
def test_contrast_is_increasing_and_keeps_the_range(batch, strength):
    images = batch["image"] * torch.polar(torch.ones(()), torch.tensor(0.7))
    images[:, :, 0, 0] = 0
    mapped = cases._random_contrast(images, strength, generator())
    before, after = images.abs().flatten(1), mapped.abs().flatten(1)
    order = before.argsort(1)
    assert (after.take_along_dim(order, 1).diff(dim=1) >= -1e-6).all()
    assert torch.allclose(after.amax(1), before.amax(1))
    assert (mapped[:, :, 0, 0] == 0).all()
    assert (mapped - images).abs().max() > 0.05
    assert torch.allclose((mapped * images.conj()).imag, torch.zeros(()), atol=1e-5)


def test_empty_image_stays_empty(batch):
    empty = {**batch, "image": torch.zeros_like(batch["image"])}
    seen = cases.ScanRandomisation(coils=(4,), noise_fraction=1.0)(empty, generator())
    assert float(seen["kspace"].abs().max()) == 0
    assert torch.isfinite(rss(seen["image"])).all()


def test_coils_are_not_simulated_twice(batch):
    two = {**batch, "image": batch["image"].expand(-1, 2, -1, -1)}
    with refused("option.conflict"):
        cases.ScanRandomisation(coils=(4,))(two, generator())


STILL = {"rotation": 0.0, "shift": 0.0, "stretch": 0.0, "flip": 0.0}


def blob(x, y, side=48, width=3.0):
    axis = torch.arange(side) - (side - 1) / 2
    image = torch.exp(-((axis - x) ** 2 + (axis[:, None] - y) ** 2) / (2 * width**2))
    return (image + 0j)[None, None]


def test_augmentation_without_motion_changes_the_phase_only(draw):
    x = torch.complex(draw(2, 3, 16, 16), draw(2, 3, 16, 16)).to(torch.complex64)
    factor = cases.CoilAugmentation(**STILL)(x, generator(3)) / x
    assert torch.allclose(factor.abs(), torch.ones(()), atol=1e-4)
    assert (factor - factor[:, :1, :1, :1]).abs().max() < 1e-3


def test_rotation_keeps_energy_and_shears_invert(draw):
    x = torch.complex(draw(2, 3, 16, 16), draw(2, 3, 16, 16)).to(torch.complex64)
    turned = cases.CoilAugmentation(**(STILL | {"rotation": 20.0}))(x, generator(3))
    assert turned.norm().item() == pytest.approx(x.norm().item(), rel=1e-5)
    slope = torch.tensor([0.2, -0.3])
    for axis in (-1, -2):
        assert torch.allclose(
            cases._shear(cases._shear(x, slope, axis), -slope, axis), x, atol=1e-5
        )


def test_three_shears_are_a_rotation():
    angle = torch.tensor([math.radians(20)])
    across, along = -torch.tan(angle / 2), torch.sin(angle)
    image = blob(8.0, 3.0)
    for axis, slope in ((-1, across), (-2, along), (-1, across)):
        image = cases._shear(image, slope, axis)
    c, s = math.cos(angle), math.sin(angle)
    expected = blob(c * 8 - s * 3, s * 8 + c * 3)
    assert (image - expected).abs().max() < 1e-3


@pytest.mark.parametrize("scale", [0.9, 1.0, 1.1])
def test_stretch_and_shift(scale):
    moved = cases._resample(blob(5.0, 2.0), -1, torch.tensor([scale]), torch.tensor([2.5]))
    axis = torch.arange(48) - 23.5
    row = torch.exp(-((((axis - 2.5) / scale) - 5.0) ** 2) / 18)
    found = moved[0, 0].abs().amax(0)
    assert (found / found.max() - row / row.max()).abs().max() < 1e-2


@pytest.mark.parametrize("width", [16, 63, 128])
def test_random_masks_have_lines_and_a_centre(width):
    masks = cases._RandomMasks(acceleration_range=(2, 16), acs_fraction=(0.3, 0.6))(
        400, width, generator()
    )
    lines = masks.sum(1)
    assert lines.min() == round(width / 16)
    assert lines.max() <= round(width / 2)
    acs = torch.tensor([acs_width(mask.numpy()) for mask in masks])
    assert bool((acs >= torch.round(0.3 * lines).clamp_min(1)).all())


def test_numbers_of_lines_are_log_uniform():
    """Between R = 2 and 8 half of the cases are below R = 4."""
    lines = cases._RandomMasks(acceleration_range=(2, 8))(4000, 512, generator()).sum(1)
    few = int((lines < 128).sum())
    low, high = binom.ppf([1e-9, 1 - 1e-9], 4000, 0.5)
    assert low <= few <= high


def test_equidistant_lines_differ_by_one_step_at_most():
    draw = cases._RandomMasks(
        acceleration_range=(3, 9), acs_fraction=(0.3, 0.3), patterns=("equidistant",)
    )
    for mask in draw(100, 90, generator()):
        centre = max(1, round(0.3 * int(mask.sum())))
        others = mask.numpy()[~center_lines(90, centre)]
        gaps = np.diff(np.flatnonzero(others))
        assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize("rule", ["uniform", "inverse-distance"])
def test_lines_are_drawn_by_weight(rule):
    """Two lines of 16, one of them the centre: the other is line l with its weight's share."""
    draw = cases._RandomMasks(acceleration_range=(8, 8), acs_fraction=(0.5, 0.5), patterns=(rule,))
    times = draw(20_000, 16, generator()).sum(0).numpy()
    distance = np.abs(np.arange(16) - 8.0)
    weight = np.where(distance > 0, 1.0 if rule == "uniform" else 1 / distance.clip(1), 0)
    share = weight / weight.sum()
    low, high = binom.ppf([[1e-9], [1 - 1e-9]], 20_000, share)
    others = distance > 0
    assert times[8] == 20_000
    assert ((low <= times) & (times <= high))[others].all()


@pytest.mark.parametrize(
    ("kind", "settings", "code"),
    [
        (cases.ScanRandomisation, {"fixed_mask_fraction": 1.5}, "value.invalid"),
        (cases.ScanRandomisation, {"coils": (0,)}, "value.invalid"),
        (cases.ScanRandomisation, {"snr_db": (60.0, 20.0)}, "value.invalid"),
        (cases.CoilAugmentation, {"rotation": 60}, "value.invalid"),
        (cases._RandomMasks, {"acceleration_range": (16, 2)}, "value.invalid"),
        (cases._RandomMasks, {"acs_fraction": (0.2, 1.2)}, "value.invalid"),
        (cases._RandomMasks, {"patterns": ("spiral",)}, "choice.unknown"),
    ],
)
def test_wrong_settings_are_refused(kind, settings, code):
    with refused(code):
        kind(**settings)
