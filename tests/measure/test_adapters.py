"""Any callable and any deepinv physics can be the measurement."""

import numpy as np
import pytest
import torch

from raising import refused
from taskuq.measure._adapters import CallableMeasure, DeepinvMeasure
from taskuq.measure._fourier import project_measured
from taskuq.measure._masks import nested_masks
from taskuq.protocols import Measure

RATES = (8, 4)


def test_rounds_pick_the_callable_of_an_acceleration():
    measure = CallableMeasure({4: lambda x: x + 4, 2: lambda x: x + 2})
    assert isinstance(measure, Measure)
    assert [measure(0, R) for R in measure.accelerations] == [4, 2]
    with refused("choice.unknown"):
        measure(0, 8)


@pytest.mark.parametrize("systems", [{}, {2: abs, 4: abs}])
def test_rounds_want_decreasing_accelerations(systems):
    with refused("rounds.invalid"):
        CallableMeasure(systems)


def test_images_reach_a_physics_as_a_batch_with_channels():
    measure = DeepinvMeasure({2: lambda x: x})
    assert measure(torch.ones(4, 6), 2).y.shape == (1, 1, 4, 6)
    assert measure(torch.ones(3, 4, 6), 2).y.shape == (1, 3, 4, 6)
    assert measure(torch.full((4, 6), 1 + 2j), 2).y[0, :, 0, 0].tolist() == [1, 2]
    with refused("shape.axes"):
        measure(torch.ones(1, 1, 4, 6), 2)


def test_deepinv_mri_measures_what_ours_measures(deepinv):
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


def test_deepinv_noise_repeats_under_a_seed_and_differs_between_images(deepinv):
    noise = deepinv.physics.GaussianNoise(0.5, rng=torch.Generator())
    physics = {1: deepinv.physics.Denoising(noise)}

    def drawn(image, seed):
        return DeepinvMeasure(physics, seed=seed)(image, 1).y - image

    one = drawn(torch.ones(8, 8), 0)
    assert torch.equal(one, drawn(torch.ones(8, 8), 0))
    assert not torch.allclose(one, drawn(torch.ones(8, 8), 1))
    assert not torch.allclose(one, drawn(torch.zeros(8, 8), 0))
