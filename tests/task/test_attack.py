"""The attack: equal to an independent one, inside its ball, and never blind."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from raising import refused
from taskuq.task import build
from taskuq.task._classifier_training import AttackConfig, adversarial_images, l2_pgd


@pytest.fixture(scope="module")
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build("classifier", preset="tiny").eval()


def images(count=6, size=24, seed=0):
    return torch.rand(count, size, size, generator=torch.Generator().manual_seed(seed))


class TwoLogits(nn.Module):
    """The same classifier as foolbox wants it: one logit for each class."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        logit = self.network.raw(x[:, 0])
        return torch.cat([torch.zeros_like(logit), logit], dim=1)


@pytest.mark.filterwarnings("ignore")  # foolbox is from 2024
@pytest.mark.parametrize("radius", [0.1, 0.6])
def test_the_attack_equals_foolbox(network, radius):
    foolbox = pytest.importorskip("foolbox")
    x, labels = images(), torch.tensor([0, 1, 0, 1, 1, 0])
    model = foolbox.PyTorchModel(TwoLogits(network).eval(), bounds=(0, 1), device="cpu")
    theirs = foolbox.attacks.L2ProjectedGradientDescentAttack(
        abs_stepsize=radius / 4, steps=10, random_start=False
    ).run(model, x[:, None], foolbox.criteria.Misclassification(labels), epsilon=radius)
    config = AttackConfig(radius=radius, reference_size=24)
    ours = adversarial_images(network, x, labels[:, None].float(), config)
    assert (ours - theirs[:, 0]).abs().max() < 1e-6
    assert (ours - x).abs().max() > 0.01


@given(seed=st.integers(0, 50), radius=st.floats(0.01, 20), share=st.floats(0.1, 2))
def test_change_stays_in_its_ball(seed, radius, share):
    x = images(3, 8, seed)
    weight = torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))
    found = l2_pgd(
        lambda v: (weight * v).sin().sum((-2, -1)), x, radius=radius, steps=5, step=share * radius
    )
    assert float((found - x).flatten(1).norm(dim=1).max()) <= radius * (1 + 1e-5)
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1


def test_attack_of_a_linear_score_is_exact():
    x = torch.full((1, 8, 8), 0.5)
    weight = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    found = l2_pgd(lambda v: (weight * v).sum((-2, -1)), x, radius=0.3, steps=10, step=0.075)
    assert torch.allclose(found, x + 0.3 * weight / weight.norm(), atol=1e-6)


def test_confident_network_is_attacked(network):
    """The gradient of its cross entropy is 0 in float32; that of the margin is not."""
    x, config = 0.25 + 0.5 * images(), AttackConfig(radius=0.2, reference_size=24)
    weak = adversarial_images(network, x, torch.ones(6, 1), config)
    with torch.random.fork_rng():
        sure = build("classifier", preset="tiny").eval()
    sure.load_state_dict(network.state_dict())
    with torch.no_grad():
        sure.head[-1].weight.mul_(1e4)
        sure.head[-1].bias.mul_(1e4).add_(1e6)
    assert torch.allclose(adversarial_images(sure, x, torch.ones(6, 1), config), weak, atol=1e-5)


def test_attack_does_not_change_the_network():
    network = build("classifier", preset="tiny").train()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    adversarial_images(network, images(), torch.zeros(6, 1), AttackConfig())
    assert network.training
    assert all(p.grad is None for p in network.parameters())
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())


def test_radius_scales_with_the_image():
    config = AttackConfig(radius=1.5)
    rms = [config.radius_for(n, m) / (n * m) ** 0.5 for n, m in ((320, 320), (128, 128), (64, 96))]
    assert config.radius_for(320, 320) == 1.5
    assert rms == pytest.approx([1.5 / 320] * 3)


@pytest.mark.parametrize(
    "steps", [{"steps": 10, "step_size": 1 / 30}, {"steps": 3, "step_size": 0.33}]
)
def test_steps_that_cannot_reach_the_radius_are_refused(steps):
    with refused("value.invalid"):
        AttackConfig(**steps)
