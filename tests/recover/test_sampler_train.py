"""Losses of samplers: fair and proper scores, task terms and their limits."""

from itertools import combinations, product
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from raising import refused
from taskuq.recover.sampler import _train as losses
from taskuq.recover.sampler._network import SamplerConfig, SamplerNet

# Finite distributions of pairs of numbers: support and probabilities.
SUPPORT = torch.tensor([[0.0, 1.0], [2.0, -1.0], [0.5, 3.0]], dtype=torch.float64)
CHANCES = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)


def brute_force(samples, truth, distance):
    count = len(samples)
    off = sum(distance(x - truth) for x in samples) / count
    pairs = sum(distance(a - b) for a, b in combinations(samples, 2))
    return off - pairs / (count * (count - 1))


def absolute(x):
    return x.abs().mean()


def euclidean(x):
    return x.norm() / len(x) ** 0.5


SCORES = [(losses._fair_crps, absolute), (losses._energy_score, euclidean)]


@pytest.mark.parametrize(("score", "distance"), SCORES)
@pytest.mark.parametrize("count", [2, 3, 5])
def test_scores_are_their_formulas(score, distance, count):
    generator = torch.Generator().manual_seed(count)
    samples = torch.randn(4, count, 7, generator=generator, dtype=torch.float64)
    truth = torch.randn(4, 7, generator=generator, dtype=torch.float64)
    expected = [brute_force(samples[k], truth[k], distance) for k in range(4)]
    assert torch.allclose(score(samples, truth), torch.stack(expected))


@pytest.mark.parametrize(("score", "distance"), SCORES)
@pytest.mark.parametrize("count", [2, 3])
def test_scores_are_fair(score, distance, count):
    truth = torch.tensor([1.0, 0.5], dtype=torch.float64)
    pairs = list(product(range(3), repeat=2))
    off = sum(CHANCES[i] * distance(SUPPORT[i] - truth) for i in range(3))
    spread = sum(CHANCES[i] * CHANCES[j] * distance(SUPPORT[i] - SUPPORT[j]) for i, j in pairs)
    mean = torch.zeros((), dtype=torch.float64)
    for which in product(range(3), repeat=count):
        drawn = SUPPORT[list(which)]
        mean += CHANCES[list(which)].prod() * score(drawn[None], truth[None])[0]
    assert mean.item() == pytest.approx((off - spread / 2).item(), rel=1e-12)


@pytest.mark.parametrize(("score", "distance"), SCORES)
def test_scores_are_proper(score, distance):
    def expected(drawn, true):
        total = 0.0
        for i, j, k in product(range(3), repeat=3):
            value = score(SUPPORT[[i, j]][None], SUPPORT[k][None])[0]
            total += float(drawn[i] * drawn[j] * true[k] * value)
        return total

    best = expected(CHANCES, CHANCES)
    for other in ([1, 0, 0], [1 / 3, 1 / 3, 1 / 3], [0.45, 0.25, 0.3], [0.5, 0.3, 0.2]):
        assert expected(torch.tensor(other, dtype=torch.float64), CHANCES) > best + 1e-5


def test_pooled_scores_find_independent_pixels():
    generator = torch.Generator().manual_seed(0)
    truth = torch.ones(64, 1, 1) * torch.randn(64, 1, 1, generator=generator)
    truth = truth.expand(-1, 16, 16)
    together = torch.randn(64, 4, 1, 1, generator=generator).expand(-1, -1, 16, 16)
    alone = torch.randn(64, 4, 16, 16, generator=generator)
    pixels = losses.ImageLossConfig(energy=0.0, pooled_crps=0.0)
    assert pixels(alone, truth).mean().item() == pytest.approx(
        pixels(together, truth).mean().item(), abs=0.1
    )
    for other in ("energy", "pooled_crps"):
        score = losses.ImageLossConfig(**{"crps": 0.0, other: 0.0})
        assert score(together, truth).mean() < score(alone, truth).mean() - 0.03


def test_one_sample_cannot_be_scored():
    with refused("shape.mismatch"):
        losses._fair_crps(torch.zeros(3, 1), torch.zeros(3))
    with refused("value.invalid"):
        losses.ImageLossConfig(0.0, 0.0, 0.0)
    with refused("value.invalid"):
        losses.TaskLossConfig(ramp_start=2.0)


def test_task_terms_fade_in():
    found = [losses.TaskLossConfig().fade(p) for p in (0.3, 0.5, 0.625, 0.75, 1)]
    assert found == [0, 0, 0.5, 1, 1]


def test_task_terms_are_scores_of_task_outputs():
    generator = torch.Generator().manual_seed(0)
    images, truth = torch.randn(5, 4, 6, 6, generator=generator), torch.zeros(5, 6, 6)
    pairs = losses.SamplerLoss(truths, task=Steep())._task_values(images, truth)
    found = losses._task_scores(pairs)
    assert torch.allclose(found[:, 0], losses._fair_crps(3 * images.sum((2, 3)), torch.zeros(5)))
    assert torch.allclose(found[:, 2], losses._energy_score(images.relu(), truth))


CASES, SIDE = 20_000, 2
TINY = SamplerConfig(1, 1, width=4, decoder_channels=(4,), noise_channels=1)


class Spread(SamplerNet):
    """Samples are white noise of one deviation, which is all that can be learned."""

    def __init__(self, deviation: float) -> None:
        super().__init__(TINY)
        self.deviation = nn.Parameter(torch.tensor(deviation))

    def forward(self, inputs, share, noise):
        maps = noise[..., self.config.global_noise :]
        return self.deviation * maps.reshape(*noise.shape[:2], 1, SIDE, SIDE)


class Steep(nn.Module):
    """A task that is sure of most images: its gradients differ from case to case."""

    def inside(self, images):
        raw = images.flatten(1).sum(1, keepdim=True)
        return 3 * raw, (3 * raw).sigmoid(), torch.relu(images.flatten(1))


def truths(batch, generator):
    unseen = SimpleNamespace(
        scale=torch.ones(len(batch["share"])),
        inputs=lambda: torch.zeros(len(batch["share"]), 1, SIDE, SIDE),
        sampled_fraction=lambda: batch["share"],
        images=lambda residuals: residuals[:, :, 0],
    )
    return unseen, batch["image"]


def slope(deviation: float, terms: losses.TaskLossConfig | None) -> float:
    """Return the derivative of the loss by the deviation of samples; truths have deviation 1."""
    net = Spread(deviation)
    task = None if terms is None else Steep()
    loss = losses.SamplerLoss(truths, losses.ImageLossConfig(pool_sizes=()), 4, terms, task)
    generator = torch.Generator().manual_seed(0)
    batch = {
        "image": torch.randn(CASES, SIDE, SIDE, generator=generator),
        "share": torch.tensor([0.5, 0.125]).repeat(CASES // 2),
        "progress": 1.0,
    }
    loss(net, batch, generator).backward()
    return float(net.deviation.grad)


@pytest.mark.parametrize(
    "terms",
    [
        None,
        losses.TaskLossConfig(),
        losses.TaskLossConfig(gradient_limit=0.05),
        losses.TaskLossConfig(None, 10.0, 10.0, 10.0, gradient_limit=5.0),
    ],
)
def test_true_spread_is_the_best(terms):
    assert slope(0.98, terms) < 0 < slope(1.02, terms)


@pytest.mark.parametrize("score", [losses._fair_crps, losses._energy_score])
def test_gradients_of_scores(score):
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    truth = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: score(x, truth), samples)


class Given(SamplerNet):
    """Samples that are weights themselves, each with its gradient."""

    def __init__(self, samples: Tensor) -> None:
        super().__init__(TINY)
        self.samples = nn.Parameter(samples)

    def forward(self, inputs, share, noise):
        return self.samples[:, :, None]


@pytest.mark.parametrize(("deviation", "sign"), [(0.8, 1), (1.0, 0), (1.25, -1)])
def test_spread_is_rewarded_where_task_outputs_lack_it(deviation, sign):
    generator, share = torch.Generator().manual_seed(0), torch.full((CASES,), 0.25)
    batch = {"share": share, "progress": 1.0}
    batch["image"] = torch.randn(CASES, SIDE, SIDE, generator=generator)
    net, terms = Spread(deviation), losses.TaskLossConfig(gradient_limit=1e6)
    loss = losses.SamplerLoss(truths, losses.ImageLossConfig(pool_sizes=()), 4, terms, Steep())
    slopes = []
    for _ in range(20):
        net.deviation.grad = None
        loss(net, batch, generator.manual_seed(1)).backward()
        slopes.append(float(net.deviation.grad))
    reward = net.sizes[:, -1] / (20 * losses.REWARD_RATE)
    assert torch.equal(reward.nonzero().flatten(), torch.tensor([2]))
    assert float(reward[2]) == pytest.approx(0.08 * sign, abs=0.05)
    assert not sign or sign * (slopes[0] - slopes[-1]) > 0


def test_limited_task_term_is_as_strong_at_every_acceleration():
    generator, shares = torch.Generator().manual_seed(0), torch.tensor([0.5, 0.125]).repeat(50)
    size = torch.where(shares < 0.2, 1.0, 0.01)
    truth = size.view(-1, 1, 1) * torch.randn(100, SIDE, SIDE, generator=generator)
    samples = size.view(-1, 1, 1, 1) * torch.randn(100, 4, SIDE, SIDE, generator=generator)
    batch = {"image": truth, "share": shares, "progress": 1.0}
    gradients = []
    for terms in (None, losses.TaskLossConfig(None, 10.0, 10.0, 10.0, gradient_limit=0.5)):
        net = Given(samples)
        image, task = losses.ImageLossConfig(pool_sizes=()), Steep() if terms else None
        losses.SamplerLoss(truths, image, 4, terms, task)(net, batch, generator).backward()
        gradients.append(net.samples.grad)
    pull, both = gradients
    for share in (0.125, 0.5):
        norms = [x[shares == share].flatten(1).norm(dim=1).mean() for x in (both - pull, pull)]
        assert float(norms[0] / norms[1]) == pytest.approx(0.5, rel=1e-3)
