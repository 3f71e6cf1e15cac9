"""Any callable and any deepinv physics can be the measurement."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from raising import refused
from taskuq._config import from_toml_table
from taskuq.experiments._run import RunConfig, open_run
from taskuq.measure._adapters import CallableMeasure, DeepinvMeasure
from taskuq.measure._fourier import project_measured
from taskuq.measure._masks import nested_masks
from taskuq.protocols import Measure

RATES = (8, 4)


def test_callables_by_acceleration():
    measure = CallableMeasure({4: lambda x: x + 4, 2: lambda x: x + 2})
    assert isinstance(measure, Measure)
    assert [measure(0, R) for R in measure.accelerations] == [4, 2]
    with refused("choice.unknown"):
        measure(0, 8)


@pytest.mark.parametrize("systems", [{}, {2: abs, 4: abs}])
def test_increasing_accelerations_are_refused(systems):
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
    masks = nested_masks(32, RATES, rng=np.random.default_rng(0))
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


CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "chest"


def table_of(name, operator):
    """The table of a shipped configuration, of six chests, without noise."""
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
