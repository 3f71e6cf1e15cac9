import shutil
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raising import refused
from taskuq._config import read_toml, to_toml_table, toml_text
from taskuq.errors import InputError
from taskuq.experiments._run import RunConfig, read_run
from taskuq.measure._coils import random_sensitivities, rss
from taskuq.measure._fourier import project_measured
from taskuq.measure._mri import MRIMeasurement, MultiCoilMRI
from taskuq.recover import _methods as recoveries
from taskuq.recover import build
from taskuq.recover._cases import _RandomMasks
from taskuq.recover._varnet_training import VarNetRecovery
from taskuq.recover.flow._train import FlowRecovery
from taskuq.training._determinism import gaussian_rows, seeded
from taskuq.training._networks import NETWORKS
from taskuq.training._weights import locate, referenced_files, save_weights, shipped


@pytest.fixture
def methods(small_flow, randomise):
    # Cold latents: a random flow is not a posterior, and its samples would swamp single precision.
    flow = FlowRecovery(small_flow, temperature=0.1)
    return [
        recoveries.ZeroFilled(),
        VarNetRecovery(randomise(build("varnet", preset="tiny"))),
        flow,
    ]


@pytest.fixture
def scanner():
    masks = np.stack([np.arange(32) % 4 == 0, np.arange(32) % 2 == 0])
    return MultiCoilMRI(masks, (4, 2))


@pytest.fixture
def image(draw):
    return torch.complex(draw(2, 32, 32), draw(2, 32, 32)).to(torch.complex64)


def test_full_measurement_is_returned(methods, scanner, image):
    scan = scanner(image, 1)
    for recover in methods:
        found = recover(scan, samples=2, seed=0)
        assert (found - rss(image)).abs().max() < 1e-4 * rss(image).max()


def test_wrong_measurements_are_refused(methods, scanner, image):
    scan = scanner(image, 4)
    bad = {
        "component.invalid": SimpleNamespace(zero_filled=scan.zero_filled),
        "value.nonfinite": replace(scan, zero_filled=scan.zero_filled * float("nan")),
        "shape.axes": replace(scan, zero_filled=scan.zero_filled.real),
    }
    for recover in methods:
        for code, measurement in bad.items():
            with refused(code):
                recover(measurement, samples=1, seed=0)


SIDE = 16


@dataclass
class Member:
    """Samples that depend on the member, the seed and their number."""

    number: int
    rejected: int = 1

    def __call__(self, scan, *, samples, seed):
        drawn = gaussian_rows(torch.empty(1, 64), [seed])[0, :samples]
        return self.number + 0.001 * drawn.view(-1, 1, 1).expand(-1, SIDE, SIDE)


class Batched(Member):
    def batch(self, scans, *, samples, seeds):
        pairs = zip(scans, seeds, strict=True)
        return torch.stack([self(scan, samples=samples, seed=seed) for scan, seed in pairs])


@pytest.fixture
def scans(draw):
    mask = torch.arange(SIDE) % 3 == 1
    images = torch.complex(*draw(2, 3, 4, SIDE, SIDE)).to(torch.complex64)
    return [MRIMeasurement(project_measured(image, mask), mask, 3.0) for image in images]


@pytest.fixture
def samplers(tmp_path):
    paths = []
    for name, seed in (("varnet", 0), ("sampler", 1), ("sampler", 2)):
        with seeded(seed):
            net = recoveries.RECOVERIES.build(name, preset="tiny")
        paths.append(tmp_path / f"{name}-{seed}.safetensors")
        notes = {"estimate": {"weights": str(paths[0])}} if name == "sampler" else {}
        save_weights(net, paths[-1], kind=name, config=net.config, notes=notes)
    return paths


def test_members_alternate_and_samples_depend_on_case_seed_and_number(scans):
    recover = recoveries.Ensemble((Batched(0), Member(1), Batched(2)))
    alternating = recover(scans[0], samples=8, seed=3)[:, 0, 0]
    assert alternating.round().tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert len(alternating.unique()) == 8
    together = recover.batch(scans, samples=7, seeds=[5, 6, 7])
    for k, scan in enumerate(scans):
        for samples in (1, 2, 5):
            alone = recover(scan, samples=samples, seed=5 + k)
            assert torch.equal(alone, together[k, :samples])


def test_point_estimates_have_one_sample(scans):
    recover = recoveries.Ensemble((recoveries.ZeroFilled(), recoveries.ZeroFilled()))
    assert recover(scans[0], samples=2, seed=0).shape == (2, SIDE, SIDE)
    with refused("component.invalid"):
        recover(scans[0], samples=3, seed=0)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda scan: recoveries.Ensemble(()), "config.missing"),
        (lambda scan: recoveries.EnsembleMethod().open("cpu"), "config.missing"),
        (lambda scan: recoveries.Ensemble((Member(0),))(scan, samples=0, seed=0), "value.invalid"),
    ],
)
def test_invalid_ensembles_are_refused(make, code, scans):
    with refused(code):
        make(scans[0])


def test_configuration_opens_its_members_and_provenance_names_them(tmp_path, scans, samplers):
    recover = recoveries.RECOVERIES["ensemble"](members=tuple(samplers[1:])).open("cpu")
    assert recover(scans[0], samples=4, seed=0).shape == (4, SIDE, SIDE)
    assert recover.rejected == 0
    names = ", ".join(f"'{path}'" for path in samplers[1:])
    config = tmp_path / "run.toml"
    config.write_text(f"[recover]\nkind = 'ensemble'\nmembers = [{names}]\n")
    run: RunConfig = read_run(config)
    members = [str(path) for path in samplers[1:]]
    assert to_toml_table(run)["recover"] == {"kind": "ensemble", "members": members}
    assert set(samplers) <= set(referenced_files(run.recover))


CLAIMS = [kind for kind in recoveries.RECOVERIES.networks() if NETWORKS[kind].flexible_input]
SHIPPED = [f"{kind}-atlas" for kind in CLAIMS if f"{kind}-atlas" in shipped()]
SAMPLES = 3


def noise(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.complex(*torch.randn((2, *shape), generator=generator))


def head(seed, coils, height, width):
    """A disc with a hole and sharp edges, seen by a ring of coils."""
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
    drawn = _RandomMasks()(1, width, torch.Generator().manual_seed(width))[0]
    column, centre = torch.arange(width), width // 2
    return [drawn, column == centre, column == 3, column < 0, column >= 0, column != centre]


@cache
def opened(kind, folder):
    paths = {}
    for name in {kind, "varnet"}:
        with seeded(1):
            net = recoveries.RECOVERIES.build(name, preset="tiny")
        paths[name] = folder / f"{name}.safetensors"
        save_weights(net, paths[name], kind=name, config=net.config, notes={})
    method = recoveries.RECOVERIES[kind]
    around = {"estimate": paths["varnet"]} if "estimate" in {f.name for f in fields(method)} else {}
    return method(weights=paths[kind], **around).open("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("any")


def hold(recover, images, mask, seed=0):
    measured = project_measured(images, mask)
    scan = MRIMeasurement(measured, mask, 1.0)
    drawn = recover(scan, samples=SAMPLES, seed=seed)
    assert drawn.shape[1:] == images.shape[1:]
    assert torch.isfinite(drawn).all()
    assert getattr(recover, "rejected", 0) == 0
    if hasattr(recover, "estimator"):
        # Coil images agree with the measurement, whatever the residuals.
        estimate = recover.estimator([scan]).estimate
        residuals = torch.complex(*torch.randn(2, 1, SAMPLES, *images.shape[1:]))
        coils = estimate.coil_images(residuals)[0]
        kept = project_measured(coils, mask.expand(len(coils), -1))
        assert (kept - recoveries.rescale_pow2(measured[None])[0]).abs().max() < 1e-5


@pytest.mark.parametrize("kind", CLAIMS)
@pytest.mark.parametrize("what", IMAGES)
def test_any_measurement_is_recovered(kind, what, folder):
    images = IMAGES[what]()
    first, every = list(IMAGES).index(what), masks(images.shape[-1])
    for seed in (first, first + 3):  # each image has two kinds of masks, each kind several images
        hold(opened(kind, folder), images, every[seed % 6], seed)


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("what", ["a head", "a long one", "nothing"])
def test_shipped_networks_recover_any_measurement(name, what):
    images = IMAGES[what]()
    recover = recoveries.open_recovery(name)
    for mask in masks(images.shape[-1])[:2]:
        hold(recover, images, mask)


@pytest.mark.parametrize("value", ["wide", [[7]], {"weights": [7]}])
@pytest.mark.parametrize("key", ["estimate", "temperatures"])
def test_model_card_with_a_value_of_another_type_is_refused(key, value, tmp_path):
    name = "flow-atlas" if key == "temperatures" else "sampler-atlas"
    for suffix in (".safetensors", ".toml"):
        card = Path(shutil.copy(locate(name).with_suffix(suffix), tmp_path))
    card.write_text(toml_text(read_toml(card) | {key: value}))
    with pytest.raises(InputError):
        recoveries.open_recovery(card.with_suffix(".safetensors"))


@pytest.mark.parametrize("kind", CLAIMS)
@pytest.mark.parametrize("power", [-90, 90])
def test_scaling_by_powers_of_two_is_exact(kind, power, folder):
    images, recover = head(3, 4, 32, 32), opened(kind, folder)
    mask = masks(32)[0]
    measured = project_measured(images, mask)
    plain, changed = (
        recover(MRIMeasurement(y, mask, 1.0), samples=SAMPLES, seed=5)
        for y in (measured, measured * 2.0**power)
    )
    assert torch.equal(changed, plain * 2.0**power)


def test_nonfinite_recovery_is_found():
    images, mask = IMAGES["a head"](), masks(64)[0]
    with pytest.raises(AssertionError):
        hold(lambda scan, samples, seed: torch.full((1, 48, 64), torch.nan), images, mask)
