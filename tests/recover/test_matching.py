"""The sampler's rival: the way along a velocity, what it learns, and that it draws as a sampler."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from taskuq.data.arrays import ArrayDataset
from taskuq.data.simulate import simulated_coils
from taskuq.errors import InputError
from taskuq.measure.mri import MultiCoilMRI
from taskuq.measure.projections import keep_measured
from taskuq.recover.folds import HonestEstimates
from taskuq.recover.matching import MatchingConfig, MatchingNet
from taskuq.recover.matching_training import MatchingMethod, MatchingTraining, matching_recipe
from taskuq.recover.sampler.network import SamplerNet, nearest_acceleration
from taskuq.recover.sampler.recovery import SamplerRecovery
from taskuq.recover.sampler_training import SamplerTraining, VarNetEstimates
from taskuq.recover.varnet import VarNet, VarNetConfig
from taskuq.settings import read_settings
from taskuq.training.seeds import own_randomness
from taskuq.weights.files import save_weights

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "lgg"
SIZE = 16
MASK = np.arange(SIZE) // 4 == 1
MASK[6:10] = True
TOY = MatchingConfig(inputs=1, outputs=1, width=8, drawn=(8, 8))


def network(config=None):
    with own_randomness(2):
        net = MatchingNet(config or MatchingConfig(width=4, drawn=(4, 6))).eval()
        torch.nn.init.normal_(net.built.out.weight, std=0.3)
    return net


def varnet():
    with own_randomness(1):
        return VarNet(VarNetConfig(cascades=1, width=4, pools=2, sensitivity_pools=2)).eval()


def scans(count=3):
    pictures = np.random.default_rng(0).random((count, SIZE, SIZE)) + 0.5
    data = simulated_coils(ArrayDataset(pictures, label=[0] * count, group="each"), 4, seed=0)
    scanner = MultiCoilMRI(MASK[None], (2,))
    return [scanner(data[k].image, 2) for k in range(count)]


def far(net, velocity, evaluations, end):
    """How far from where a velocity leads, from noise of 1 to an end, a way of steps ends."""
    net.velocity, net.evaluations = lambda known, state, time: velocity(state, time), evaluations
    known = SimpleNamespace(size=(4, 4), share=torch.ones(1))
    return float((net.draw(known, torch.ones(1, 1, 16, dtype=torch.float64)) - end).abs().max())


@pytest.mark.parametrize("evaluations", [2, 4, 8])
def test_straight_ways_are_exact(evaluations):
    net = MatchingNet(MatchingConfig(outputs=1, width=4, drawn=(4, 4)))

    assert far(net, lambda state, time: torch.full_like(state, 2.5), evaluations, 3.5) < 1e-12


def test_twice_the_evaluations_are_at_least_three_times_as_exact():
    """The velocity between normal laws of deviation 1 and a is known, and scales by a."""
    a, net = 0.3, MatchingNet(MatchingConfig(outputs=1, width=4, drawn=(4, 4)))

    def velocity(state, time):
        return state * (time * (1 + a**2) - 1) / ((1 - time) ** 2 + (a * time) ** 2)

    errors = [far(net, velocity, evaluations, a) for evaluations in (4, 32, 64, 128)]
    assert errors[0] < 0.1 * a
    assert errors[1] > 3 * errors[2] > 9 * errors[3]


@pytest.mark.parametrize("evaluations", [0, 3])
def test_odd_evaluations_are_refused(evaluations):
    net = network()
    net.evaluations = evaluations
    with pytest.raises(InputError, match="give an even number, at least 2"):
        SamplerRecovery(net, VarNetEstimates(varnet()))(scans()[0], samples=2, seed=0)


def told(values):
    return SimpleNamespace(inputs=lambda: values, share=lambda: torch.full((len(values),), 0.5))


def test_the_law_of_residuals_is_learned():
    """In this world the residual is half of what is told, give or take 0.1."""

    def residuals(batch, generator):
        values = torch.randn(16, 1, 1, 1, generator=generator).expand(16, 1, 8, 8)
        return told(values), 0.5 * values + 0.1 * torch.randn(16, 1, 8, 8, generator=generator)

    with own_randomness(0):
        recipe = matching_recipe(TOY, residuals)
    net, generator = recipe.network, torch.Generator().manual_seed(0)
    steps = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(120):
        steps.zero_grad()
        recipe.loss(net, {}, generator).backward()
        steps.step()
    values = torch.tensor([-1.0, 0.0, 1.0]).view(3, 1, 1, 1).expand(3, 1, 8, 8)
    noise = torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        drawn = net.draw(net.know(values, torch.full((3,), 0.5)), noise)

    assert drawn.mean((1, 2, 3, 4)).tolist() == pytest.approx([-0.5, 0.0, 0.5], abs=0.1)
    assert drawn.std(1).mean((1, 2, 3)).tolist() == pytest.approx([0.1] * 3, rel=0.5)


def test_sizes_are_the_root_mean_squares_of_residuals():
    recipe = matching_recipe(TOY, lambda batch, generator: (told(batch), 3 + batch))
    recipe.loss(recipe.network, torch.zeros(2, 1, 8, 8), torch.Generator())
    share = torch.tensor([0.5, 0.06])

    assert nearest_acceleration(share).tolist() == [1, 4]
    assert recipe.network.sizes(share).tolist() == [3.0, 1.0]  # of the other none is known yet


def test_samples_agree_with_the_measurement():
    net, cases = network(), scans()
    found = VarNetEstimates(varnet())(cases)
    noise = torch.randn(3, 5, net.noise_size(SIZE, SIZE), generator=torch.Generator())
    with torch.no_grad():
        drawn = net.draw(net.know(found.inputs(), found.share()), noise)
    assert drawn.std(1).mean() > 1e-2  # samples differ
    kept = keep_measured(found.coils(drawn)[1], MASK)

    assert (kept - cases[1].zero_filled).abs().max() < 1e-5


def test_a_sample_depends_on_its_case_seed_and_number_alone():
    recover, cases = SamplerRecovery(network(), VarNetEstimates(varnet())), scans()
    alone = [recover(scan, samples=2, seed=7 + k) for k, scan in enumerate(cases)]
    together = recover.batch(cases, samples=20, seeds=[7, 8, 9])

    for k in range(3):
        assert torch.allclose(together[k, :2], alone[k], atol=1e-5)


@pytest.mark.parametrize("sides", [(16, 16), (18, 21)])
def test_images_of_any_size_are_drawn(sides):
    net = network()
    known = net.know(torch.randn(1, 6, *sides), torch.ones(1))

    assert net.draw(known, torch.randn(1, 3, net.noise_size(*sides))).shape == (1, 3, 2, *sides)


def test_residuals_are_those_of_the_estimates():
    images = torch.stack([scan.zero_filled for scan in scans()])
    mask = torch.as_tensor(MASK).expand(3, -1)
    batch = {"image": images + 0.1, "mask": mask, "network": (0, 0, 0)}
    honest = HonestEstimates([varnet()], None)
    found, errors = honest.residuals(batch, torch.Generator())

    assert torch.allclose(errors, found.error(images + 0.1), atol=1e-6)


def test_a_method_evaluates_as_often_as_it_says(tmp_path):
    net, guess = network(), varnet()
    path = save_weights(net, tmp_path / "mine.safetensors", kind="matching", config=net.config)
    other = save_weights(guess, tmp_path / "guess.safetensors", kind="varnet", config=guess.config)
    recover = MatchingMethod(path, estimate=other, evaluations=4).open("cpu")
    asked, draw = [], recover.net.built.draw
    recover.net.built.draw = lambda known, noise: asked.append(1) or draw(known, noise)

    assert recover(scans()[0], samples=3, seed=0).shape == (3, SIZE, SIZE)
    assert len(asked) == 4


def test_the_rival_has_the_size_the_cases_and_the_time_of_the_sampler():
    ours = read_settings(SamplerTraining, CONFIGS / "sampler.toml")
    rival = read_settings(MatchingTraining, CONFIGS / "matching.toml")

    for name in ("training", "views", "scans", "data", "measure"):
        assert getattr(rival, name) == getattr(ours, name)
    assert rival.estimate.folder == Path("runs/lgg-sampler")
    assert rival.estimate.folds == ours.estimate.folds
    numbers = [
        sum(p.numel() for p in net.parameters())
        for net in (SamplerNet(ours.network), MatchingNet(rival.network))
    ]
    assert numbers[1] == pytest.approx(numbers[0], rel=0.02)
