"""deepinv's physics and models in the pipeline, and networks of taskuq as its models."""

import tomllib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import taskuq as tq
from raising import refused
from taskuq._config import from_toml_table
from taskuq.deepinv import (
    DeepinvMeasure,
    DeepinvMeasurement,
    DeepinvModel,
    DeepinvRecover,
    calibrate,
)
from taskuq.measure import CallableMeasure, MRIMeasurement, fft2c, nested_masks, project_measured
from taskuq.protocols import Measure

RATES = (8, 4)


def brightness(images):
    return images.mean(dim=(-2, -1))


def test_callables_by_acceleration():
    measure = CallableMeasure({4: lambda x: x + 4, 2: lambda x: x + 2})
    assert isinstance(measure, Measure)
    assert [measure(0, R) for R in measure.accelerations] == [4, 2]
    with refused("choice.unknown"):
        measure(0, 8)
    for systems in ({}, {2: abs, 4: abs}):
        with refused("rounds.invalid"):
            CallableMeasure(systems)


def test_physics_gets_a_batch_with_channels():
    measure = DeepinvMeasure({2: lambda x: x})
    assert measure(torch.ones(4, 6), 2).y.shape == (1, 1, 4, 6)
    assert measure(torch.ones(3, 4, 6), 2).y.shape == (1, 3, 4, 6)
    assert measure(torch.full((4, 6), 1 + 2j), 2).y[0, :, 0, 0].tolist() == [1, 2]
    with refused("shape.axes"):
        measure(torch.ones(1, 1, 4, 6), 2)


def test_deepinv_mri_equals_ours(deepinv):
    masks = nested_masks(32, RATES, seed=0)
    physics = {
        R: deepinv.physics.MRI(
            mask=torch.as_tensor(mask).float().expand(1, 1, 32, 32), img_size=(32, 32)
        )
        for R, mask in zip(RATES, masks, strict=True)
    }
    real, imaginary = np.random.default_rng(1).normal(size=(2, 32, 32)).astype(np.float32)
    image = torch.as_tensor(real + 1j * imaginary)
    for R, mask in zip(RATES, masks, strict=True):
        y = DeepinvMeasure(physics)(image, R)
        back = y.physics.A_adjoint(y.y)
        ours = torch.view_as_real(project_measured(image, mask)).movedim(-1, 0)[None]
        assert torch.allclose(back, ours, atol=1e-5)


def test_deepinv_noise_depends_on_seed_and_image(deepinv):
    noise = deepinv.physics.GaussianNoise(0.5, rng=torch.Generator())
    physics = {1: deepinv.physics.Denoising(noise)}

    def drawn(image, seed):
        return DeepinvMeasure(physics, seed=seed)(image, 1).y - image

    one = drawn(torch.ones(8, 8), 0)
    assert torch.equal(one, drawn(torch.ones(8, 8), 0))
    assert not torch.allclose(one, drawn(torch.ones(8, 8), 1))
    assert not torch.allclose(one, drawn(torch.zeros(8, 8), 0))


CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "chest"


def table_of(name, operator):
    """The table of a shipped configuration, of six chests, without noise."""
    from taskuq.experiments._run import RunConfig, open_run  # after the fixture: it needs Lightning

    settings = tomllib.loads((CONFIGS / f"{name}.toml").read_text()) | {"samples": 4}
    settings["data"] |= {"patients": 6, "slices": 1}
    settings["measure"] |= {"photons": 0.0, "operator": operator}
    run = open_run(from_toml_table(RunConfig, settings), "cpu")
    rates = settings["measure"]["accelerations"]
    return run.pipeline.run(run.images, accelerations=rates, samples=4, seed=0, progress=False)


@pytest.mark.parametrize("name", ["run-filtered-back-projection", "run-sampler"])
@pytest.mark.filterwarnings("ignore")  # deepinv's own
def test_both_operators_lead_to_the_same_table(deepinv, name):
    ours, theirs = (table_of(name, operator) for operator in ("taskuq", "deepinv"))
    apart = np.abs(ours.outputs - theirs.outputs)
    error = np.abs(ours.outputs.mean(axis=2) - ours.targets).mean(axis=1)
    assert (ours.targets == theirs.targets).all()
    assert apart.max() < 0.01, "of a share of air of a quarter"
    assert (apart.mean(axis=(1, 2)) < 0.75 * error).all(), "less than what few views are off by"


SCAN = DeepinvMeasurement(y=torch.zeros(1, 1, 4, 4), physics=None)


def torch_only(y, physics):
    """Draws from torch's global generator and takes no seed."""
    return y + torch.randn(y.shape)


def seeded_sampler(y, physics, seed=None):
    """Seeds the global generators, as deepinv does, unless the seed is 0."""
    if seed:
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
    return torch_only(y, physics) + float(np.random.rand())  # noqa: NPY002


def test_deepinv_samples_repeat_and_keep_generators():
    for model in (torch_only, seeded_sampler):
        recover = DeepinvRecover(model)
        torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
        one, again = (recover(SCAN, samples=3, seed=5) for _ in range(2))
        assert torch.equal(one, again)
        assert not torch.equal(one[0], one[1])
        assert not torch.equal(one, recover(SCAN, samples=3, seed=6))
        assert torch.equal(torch_state, torch.get_rng_state())
        assert np.array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002


def test_point_estimates_magnitudes_and_batches():
    point = DeepinvRecover(lambda y, physics: y + 1, kind="point")
    assert point(SCAN, samples=32, seed=0).tolist() == torch.ones(1, 4, 4).tolist()
    two = DeepinvRecover(lambda y, physics: torch.tensor([3.0, 4.0]).view(1, 2, 1, 1))
    assert two(SCAN, samples=1, seed=0).item() == 5.0
    sizes = []

    def model(y, physics, seed=None):
        sizes.append(len(y))
        return y

    assert DeepinvRecover(model, together=3)(SCAN, samples=7, seed=0).shape == (7, 4, 4)
    assert sizes == [3, 3, 1]


def test_unknown_deepinv_models_are_refused():
    with refused("component.invalid", "chain"):
        DeepinvRecover(torch_only, kind="chain")
    with refused("choice.unknown", "point, sampler"):
        DeepinvRecover(torch_only, kind="mean")
    with refused("component.invalid", "shape"):
        DeepinvRecover(lambda y, physics: y[0])(SCAN, samples=1, seed=0)


def models(deepinv):
    """One of each kind, with a denoiser that needs no weights."""

    def denoiser(x, sigma, *args, **kwargs):
        return torch.nn.functional.avg_pool2d(x, 3, stride=1, padding=1)

    fidelity = deepinv.optim.L2(sigma=0.1)
    prior = deepinv.optim.ScorePrior(denoiser=denoiser)
    chain = deepinv.sampling.sampling_builder(
        "ULA", data_fidelity=fidelity, prior=prior, max_iter=40, thinning=4, burnin_ratio=0.2,
        history_size=True, params_algo={"step_size": 1e-3, "alpha": 1.0, "sigma": 0.05},
    )  # fmt: skip
    return {
        "point": DeepinvRecover(lambda y, physics: physics.A_dagger(y), kind="point"),
        "sampler": DeepinvRecover(
            deepinv.sampling.DDRM(denoiser=denoiser, sigmas=np.linspace(1, 0, 5), verbose=False)
        ),
        "chain": DeepinvRecover(chain, kind="chain"),
    }


@pytest.mark.parametrize("kind", ["point", "sampler", "chain"])
@pytest.mark.filterwarnings("ignore")  # deepinv's own
def test_deepinv_models_run_in_the_pipeline(deepinv, kind):
    masks = {R: (torch.arange(256).view(1, 16, 16) % R == 0).float() for R in (8, 4)}
    physics = {R: deepinv.physics.Inpainting((1, 16, 16), mask=mask) for R, mask in masks.items()}
    images = [torch.rand(16, 16, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    pipeline = tq.Pipeline(DeepinvMeasure(physics), models(deepinv)[kind], brightness)
    run = {"accelerations": (8, 4), "samples": 4, "progress": False}
    one, again, other = (pipeline.run(images, seed=seed, **run) for seed in (0, 0, 1))
    assert one.samples == (1 if kind == "point" else 4)
    assert np.array_equal(one.outputs, again.outputs)
    assert np.array_equal(one.outputs, other.outputs) == (kind == "point")
    assert kind == "point" or (one.outputs.std(axis=2) > 0).all()


@pytest.mark.filterwarnings("ignore")
def test_short_chain_is_refused(deepinv):
    recover = models(deepinv)["chain"]
    physics = deepinv.physics.Inpainting((1, 16, 16), mask=torch.ones(1, 16, 16))
    scan = DeepinvMeasurement(y=torch.rand(1, 1, 16, 16), physics=physics)
    with refused("samples.mismatch", "8 states", "9 samples"):
        recover(scan, samples=9, seed=0)


@pytest.fixture
def network(request):
    if find_spec("deepinv") is not None:
        request.getfixturevalue("deepinv")  # Lightning imports what torchvision lacks there
    from taskuq.recover import open_recovery

    return open_recovery("varnet-atlas")


def test_network_is_a_deepinv_model(network):
    mask = torch.as_tensor(nested_masks(32, (4,), seed=0)[0])
    coils = torch.randn(2, 4, 32, 32, dtype=torch.complex64)
    y = torch.view_as_real(torch.where(mask, fft2c(coils), 0)).movedim(-1, 1)
    physics = torch.nn.Module()
    physics.mask = mask.float().expand(1, 1, 1, 32, 32)
    found = DeepinvModel(network)(y, physics)
    zero_filled = [project_measured(image, mask.numpy()) for image in coils]
    scans = [MRIMeasurement(image, mask, 4.0) for image in zero_filled]
    expected = torch.stack([network(scan, samples=1, seed=0) for scan in scans])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    physics.mask = torch.eye(32).expand(1, 1, 1, 32, 32)
    with refused("shape.axes"):
        DeepinvModel(network)(y, physics)


def test_seed_of_a_model_decides_its_samples():
    model = DeepinvModel(DeepinvRecover(torch_only), 4, DeepinvMeasurement)
    y = torch.zeros(2, 1, 4, 4)
    assert torch.equal(model(y, None, seed=1), model(y, None, seed=1))
    assert not torch.equal(model(y, None), model(y, None))
    # As any model of deepinv, in the pipeline.
    assert DeepinvRecover(model)(SCAN, samples=3, seed=0).shape == (3, 4, 4)


def test_one_call_calibrates_a_model():
    def noisy(x, seed=None):
        return x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))

    images = torch.rand(60, 4, 4, generator=torch.Generator().manual_seed(0))
    options = {"alpha": 0.2, "samples": 4, "score": "lwr", "group": np.repeat(range(20), 3)}
    bound = calibrate(torch_only, noisy, images, brightness, **options)
    recover, measure = DeepinvRecover(torch_only), DeepinvMeasure({2: noisy}, seed=0)
    pipeline = tq.Pipeline(measure, recover, brightness)
    table = pipeline.run(images, accelerations=(2,), samples=4, seed=0, progress=False)
    del options["samples"]
    assert bound.to_dict() == tq.calibrate(table.outputs[0], table.targets, **options).to_dict()

    def broken(y, physics):
        raise ValueError("no weights")

    with pytest.raises((tq.InputError, RuntimeError)):
        calibrate(broken, noisy, images, brightness, alpha=0.2)


@pytest.mark.filterwarnings("ignore")  # deepinv's own
def test_one_call_calibrates_a_sampler_of_deepinv(deepinv):
    noise = deepinv.physics.GaussianNoise(0.1, rng=torch.Generator())
    mask = (torch.arange(256).view(1, 16, 16) % 2 == 0).float()
    physics = deepinv.physics.Inpainting((1, 16, 16), mask=mask, noise_model=noise)
    images = torch.rand(20, 16, 16, generator=torch.Generator().manual_seed(0))
    model = models(deepinv)["sampler"].model
    bound, again = (
        calibrate(model, physics, images, brightness, alpha=0.2, samples=4) for _ in range(2)
    )
    assert bound.to_dict() == again.to_dict()
    assert np.isfinite(bound.quantile)


def test_network_of_ours_reconstructs_with_deepinvs_physics(deepinv, network):
    mask = torch.as_tensor(nested_masks(32, (2,), seed=0)[0])
    maps = torch.ones(1, 1, 32, 32, dtype=torch.complex64)
    physics = deepinv.physics.MultiCoilMRI(mask=mask.float().expand(1, 1, 32, 32), coil_maps=maps)
    image = torch.rand(1, 2, 32, 32, generator=torch.Generator().manual_seed(0))
    measurement = physics(image)
    found = DeepinvModel(network)(measurement, physics)
    kspace = torch.view_as_complex(measurement[0].movedim(0, -1).contiguous())
    torch.testing.assert_close(
        kspace[0], torch.where(mask, fft2c(torch.complex(*image[0])), 0), atol=1e-5, rtol=1e-4
    )
    assert found.shape == (1, 1, 32, 32)
