"""Whatever was measured: finite images that agree with it, and never an error.

Every recovery network that claims it is held to it, with random weights and with those shipped.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache

import numpy as np
import pytest
import torch

from taskuq.errors import InputError
from taskuq.measure._coils import random_sensitivities, rss
from taskuq.measure._fourier import project_measured
from taskuq.measure._mri import MRIMeasurement
from taskuq.recover._cases import _RandomMasks
from taskuq.recover._estimate import varnet_estimate
from taskuq.recover._methods import RECOVERIES, _SamplesCoilImages, open_recovery, rescale_pow2
from taskuq.recover._varnet import VarNet, VarNetConfig
from taskuq.training._determinism import seeded
from taskuq.training._networks import NETWORKS
from taskuq.training._weights import save_weights, shipped

CLAIMS = [kind for kind in RECOVERIES.networks() if NETWORKS[kind].flexible_input]
SHIPPED = [f"{kind}-atlas" for kind in CLAIMS if f"{kind}-atlas" in shipped()]
SAMPLES = 3


def noise(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.complex(*torch.randn((2, *shape), generator=generator))


def head(seed, coils, height, width):
    """A disc with a hole, seen by a ring of coils: sharp edges and a scale of its own."""
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    radius = np.hypot(x / 0.8, y / 0.7)
    image = torch.as_tensor((radius < 1) * (1 - 0.5 * (radius < 0.3)), dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    return image * random_sensitivities(1, coils, height, width, generator)[0]


IMAGES = {
    "a head": lambda: head(0, 4, 48, 64),
    "many coils": lambda: head(1, 16, 32, 32),
    "a small head": lambda: head(2, 3, 16, 16),
    "a long one": lambda: head(3, 2, 80, 16),
    "no multiple of 16": lambda: head(4, 5, 37, 50),
    "one coil": lambda: head(5, 1, 32, 48),
    "a dead coil": lambda: torch.cat([head(6, 3, 32, 32), torch.zeros(1, 32, 32) + 0j]),
    "noise alone": lambda: noise(7, 4, 32, 48),
    "nothing": lambda: torch.zeros(4, 32, 32) + 0j,
    "one number": lambda: torch.full((4, 32, 32), 2 - 1j),
    "one pixel": lambda: torch.nn.functional.one_hot(torch.tensor(99), 1024).view(1, 32, 32) * 5j,
    "huge": lambda: 1e30 * head(8, 4, 32, 32),
    "tiny": lambda: 1e-30 * head(9, 4, 32, 32),
    "hardly numbers": lambda: 1e-41 * head(10, 4, 32, 32),
    "double precision": lambda: head(11, 4, 32, 32).to(torch.complex128),
}


def masks(width):
    """Random ones, and those that nobody would measure."""
    drawn = list(_RandomMasks()(3, width, torch.Generator().manual_seed(width))[:, 0])
    column = torch.arange(width)
    return [
        *drawn,
        column == width // 2,
        column == 3,
        column < 0,
        column >= 0,
        column != width // 2,
    ]


@cache
def opened(kind, folder):
    """A recovery with random weights, around estimates of such a network where it needs one."""
    paths = {}
    for name in {kind, "varnet"}:
        with seeded(1):
            net = RECOVERIES.build(name, preset="tiny")
        paths[name] = folder / f"{name}.safetensors"
        save_weights(net, paths[name], kind=name, config=net.config, notes={})
    method = RECOVERIES[kind]
    around = {"estimate": paths["varnet"]} if "estimate" in {f.name for f in fields(method)} else {}
    return method(weights=paths[kind], **around).open("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("any")


def hold(recover, images, mask, seed=0):
    """A recovery's claim, for one measurement."""
    measured = project_measured(images, mask)
    scan = MRIMeasurement(measured, mask, 1.0)
    drawn = recover(scan, samples=SAMPLES, seed=seed)
    assert drawn.shape[1:] == images.shape[1:]
    assert torch.isfinite(drawn).all()
    assert getattr(recover, "rejected", 0) == 0
    if isinstance(recover, _SamplesCoilImages):
        coils = recover.coil_images(scan, samples=SAMPLES, seed=seed)
        kept = project_measured(coils, mask.expand(len(coils), -1))
        expected, size = rescale_pow2(measured[None])
        assert (kept.to(torch.complex64) / size - expected).abs().max() < 1e-5


@pytest.mark.parametrize("kind", CLAIMS)
@pytest.mark.parametrize("what", IMAGES)
def test_any_measurement_is_recovered(kind, what, folder):
    images = IMAGES[what]()
    for seed, mask in enumerate(masks(images.shape[-1])):
        hold(opened(kind, folder), images, mask, seed)


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("what", ["a head", "a long one", "noise alone", "nothing", "one coil"])
def test_shipped_networks_take_any_measurement(name, what):
    images = IMAGES[what]()
    recover = open_recovery(name)
    for mask in masks(images.shape[-1])[1:6:2]:
        hold(recover, images, mask)


@pytest.mark.parametrize("kind", CLAIMS)
@pytest.mark.parametrize("power", [-90, 90])
def test_the_size_of_numbers_changes_no_digit(kind, power, folder):
    images, recover = head(3, 4, 32, 32), opened(kind, folder)
    mask = masks(32)[0]
    measured = project_measured(images, mask)
    plain, changed = (
        recover(MRIMeasurement(y, mask, 1.0), samples=SAMPLES, seed=5)
        for y in (measured, measured * 2.0**power)
    )
    assert torch.equal(changed, plain * 2.0**power)


@pytest.mark.parametrize("kind", CLAIMS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused_in_a_sentence(kind, value, folder):
    images = head(3, 4, 32, 32)
    images[1, 4, 4] = value
    with pytest.raises(InputError, match="NaN or infinite values; measure that case again"):
        opened(kind, folder)(MRIMeasurement(images, masks(32)[0], 1.0), samples=2, seed=0)


def test_samplers_show_whether_they_agree(folder):
    """Whoever draws more than one image is asked; a point estimate promises no agreement."""
    recoveries = [opened(kind, folder) for kind in CLAIMS]
    scan = MRIMeasurement(project_measured(head(3, 4, 32, 32), masks(32)[0]), masks(32)[0], 1.0)
    many = [r for r in recoveries if len(r(scan, samples=2, seed=0)) == 2]
    assert all(isinstance(recover, _SamplesCoilImages) for recover in many)
    for recover in many:
        coils = recover.coil_images(scan, samples=2, seed=0)
        assert torch.allclose(rss(coils), recover(scan, samples=2, seed=0), atol=1e-5)
        assert (coils[0] - coils[1]).abs().max() > 0


def test_a_network_of_many_halvings_takes_a_small_image():
    net = VarNet(VarNetConfig(cascades=1, width=2, pools=4, sensitivity_width=2)).eval()
    images, mask = head(2, 3, 16, 16), masks(16)[0]
    found = varnet_estimate(net, project_measured(images, mask)[None], mask[None])
    assert torch.isfinite(found.inputs()).all()
    assert found.inputs().shape == (1, 6, 16, 16)


def test_a_measurement_that_is_disagreed_with_is_noticed():
    """The check can fail: a recovery that forgets what was measured, and one that is not finite."""

    class Wrong:
        def __call__(self, scan, *, samples, seed):
            return torch.ones(samples, *scan.zero_filled.shape[1:])

        def coil_images(self, scan, *, samples, seed):
            return 1.001 * scan.zero_filled.expand(samples, -1, -1, -1)

    images, mask = IMAGES["a head"](), masks(64)[0]
    with pytest.raises(AssertionError):
        hold(Wrong(), images, mask)
    with pytest.raises(AssertionError):
        hold(lambda scan, samples, seed: torch.full((1, 48, 64), torch.nan), images, mask)
