"""Task terms are as proper as the images' own score: the true spread stays the best one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from taskuq.recover.sampler._network import SamplerConfig, SamplerNet
from taskuq.recover.sampler._train import (
    ImageLossConfig,
    SamplerLoss,
    TaskLossConfig,
    _update_running_means,
    sampler_recipe,
)

CASES, SIDE = 20_000, 2


class Spread(SamplerNet):
    """Samples are white noise of one deviation, which is all that can be learned."""

    def __init__(self, deviation: float) -> None:
        super().__init__(SamplerConfig(inputs=1, outputs=1, width=4, drawn=(4,), noise=1))
        self.deviation = nn.Parameter(torch.tensor(deviation))

    def forward(self, told, share, noise):
        maps = noise[..., self.config.numbers :]
        return self.deviation * maps.reshape(*noise.shape[:2], 1, SIDE, SIDE)


@dataclass
class Unseen:
    """Nothing is known of an image but the share that was measured."""

    parts: Tensor

    @property
    def scale(self) -> Tensor:
        return torch.ones(len(self.parts))

    def inputs(self) -> Tensor:
        return torch.zeros(len(self.parts), 1, SIDE, SIDE)

    def share(self) -> Tensor:
        return self.parts

    def images(self, residuals: Tensor) -> Tensor:
        return residuals[:, :, 0]


class Steep(nn.Module):
    """A task that is sure of most images: its gradients differ from case to case."""

    def inside(self, images):
        raw = images.flatten(1).sum(1, keepdim=True)
        return 3 * raw, (3 * raw).sigmoid(), torch.relu(images.flatten(1))


def truths(batch, generator):
    return Unseen(batch["share"]), batch["image"]


def slope(deviation: float, terms: TaskLossConfig | None) -> float:
    """How the loss changes with the deviation of samples; truths have deviation 1."""
    net = Spread(deviation)
    task = None if terms is None else Steep()
    scored = SamplerLoss(ImageLossConfig(pools=()), 4, terms, task)
    recipe = sampler_recipe(net.config, scored, truths, lambda *_: net)
    generator = torch.Generator().manual_seed(0)
    batch = {
        "image": torch.randn(CASES, SIDE, SIDE, generator=generator),
        "share": torch.tensor([0.5, 0.125]).repeat(CASES // 2),
        "progress": 1.0,
    }
    recipe.loss(net, batch, generator).backward()
    return float(net.deviation.grad)


def balanced(terms: TaskLossConfig | None) -> float:
    """The deviation at which samples would stay, by halving."""
    low, high = 0.5, 1.6
    for _ in range(9):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle, terms) > 0 else (middle, high)
    return (low + high) / 2


@pytest.mark.parametrize(
    "terms",
    [
        None,
        TaskLossConfig(),
        TaskLossConfig(limit=0.05),
        TaskLossConfig(10.0, 10.0, 10.0, limit=5.0),
    ],
)
def test_the_true_spread_is_the_best_one_with_and_without_task_terms(terms):
    assert balanced(terms) == pytest.approx(1.0, abs=0.02)


class Given(SamplerNet):
    """Samples that are weights themselves: their gradients are seen one by one."""

    def __init__(self, samples: Tensor) -> None:
        super().__init__(SamplerConfig(inputs=1, outputs=1, width=4, drawn=(4,), noise=1))
        self.samples = nn.Parameter(samples)

    def forward(self, told, share, noise):
        return self.samples[:, :, None]


def test_beyond_the_limit_terms_count_by_how_uncertain_the_output_is():
    """The task's share of the gradient is limit times uncertainty times that of the images."""
    generator, shares = torch.Generator().manual_seed(0), torch.tensor([0.5, 0.125]).repeat(50)
    size = torch.where(shares < 0.2, 1.0, 0.01)
    truth = size.view(-1, 1, 1) * torch.randn(100, SIDE, SIDE, generator=generator)
    samples = size.view(-1, 1, 1, 1) * torch.randn(100, 4, SIDE, SIDE, generator=generator)
    batch = {"image": truth, "share": shares, "progress": 1.0}
    gradients = []
    for terms in (None, TaskLossConfig(10.0, 10.0, 10.0, limit=0.5)):
        net = Given(samples)
        scored = SamplerLoss(ImageLossConfig(pools=()), 4, terms, Steep() if terms else None)
        recipe = sampler_recipe(net.config, scored, truths, lambda *_, net=net: net)
        recipe.loss(net, batch, generator).backward()
        gradients.append(net.samples.grad)
    pull, both = gradients
    uncertain = net.sizes[:, 2][net.sizes[:, 2] > 0]
    assert uncertain.min() < 0.1 * uncertain.max()
    for share, part in ((0.125, 1.0), (0.5, float(uncertain.min() / uncertain.max()))):
        norms = [x[shares == share].flatten(1).norm(dim=1).mean() for x in (both - pull, pull)]
        assert float(norms[0] / norms[1]) == pytest.approx(0.5 * part, rel=1e-3)


def test_a_case_is_divided_by_what_was_seen_before_it():
    sizes = torch.zeros(2, 1)
    _update_running_means(sizes, torch.tensor([1]), torch.tensor([[4.0]]))
    loud = _update_running_means(sizes, torch.tensor([1]), torch.tensor([[400.0]]))
    assert loud.tolist() == [[4.0]]
    assert sizes.flatten().tolist() == pytest.approx([0.0, 0.98 * 4 + 0.02 * 400])
