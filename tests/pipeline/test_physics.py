"""deepinv's reconstructors, samplers and chains as recoveries."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import taskuq as tq
from raising import refused
from taskuq.measure._adapters import DeepinvMeasure
from taskuq.pipeline._adapters import DeepinvRecover
from taskuq.task._methods import MeanIntensity

SCAN = SimpleNamespace(y=torch.zeros(1, 1, 4, 4), physics=None)


def torch_only(y, physics):
    """Draws from torch's global generator and takes no seed."""
    return y + torch.randn(y.shape)


def seeded_sampler(y, physics, seed=None):
    """Seeds the global generators, as deepinv does, unless the seed is 0."""
    if seed:
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
    return torch_only(y, physics) + float(np.random.rand())  # noqa: NPY002


def test_samples_repeat_and_differ_and_leave_the_generators_alone():
    for model in (torch_only, seeded_sampler):
        recover = DeepinvRecover(model)
        torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
        one, again = (recover(SCAN, samples=3, seed=5) for _ in range(2))
        assert torch.equal(one, again)
        assert not torch.equal(one[0], one[1])
        assert not torch.equal(one, recover(SCAN, samples=3, seed=6))
        assert torch.equal(torch_state, torch.get_rng_state())
        assert np.array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002


def test_a_reconstructor_gives_one_image():
    recover = DeepinvRecover(lambda y, physics: y + 1, kind="point")

    assert recover(SCAN, samples=32, seed=0).tolist() == torch.ones(1, 4, 4).tolist()


def test_samples_can_be_drawn_together():
    sizes = []

    def model(y, physics, seed=None):
        sizes.append(len(y))
        return y

    assert DeepinvRecover(model, together=3)(SCAN, samples=7, seed=0).shape == (7, 4, 4)
    assert sizes == [3, 3, 1]


def test_real_and_imaginary_channels_become_a_magnitude():
    recover = DeepinvRecover(lambda y, physics: torch.tensor([3.0, 4.0]).view(1, 2, 1, 1))

    assert recover(SCAN, samples=1, seed=0).item() == 5.0


def test_what_does_not_fit_is_refused():
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
    pipeline = tq.Pipeline(DeepinvMeasure(physics), models(deepinv)[kind], MeanIntensity())
    run = {"accelerations": (8, 4), "samples": 4, "progress": False}
    one, again, other = (pipeline.run(images, seed=seed, **run) for seed in (0, 0, 1))

    assert one.samples == (1 if kind == "point" else 4)
    assert np.array_equal(one.outputs, again.outputs)
    assert np.array_equal(one.outputs, other.outputs) == (kind == "point")
    assert kind == "point" or (one.outputs.std(axis=2) > 0).all()


@pytest.mark.filterwarnings("ignore")
def test_a_chain_too_short_says_so(deepinv):
    recover = models(deepinv)["chain"]
    physics = deepinv.physics.Inpainting((1, 16, 16), mask=torch.ones(1, 16, 16))
    scan = SimpleNamespace(y=torch.rand(1, 1, 16, 16), physics=physics)

    with refused("samples.mismatch", "8 states", "9 samples"):
        recover(scan, samples=9, seed=0)
