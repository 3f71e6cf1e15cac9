"""The contrastive loss: the definition, its symmetries, its range, and several processes."""

import math

import numpy as np
import pytest
import torch

from taskuq.task._simclr import _nt_xent


def embeddings(count=5, size=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, size, generator=generator) for _ in range(2))


def by_definition(first, second, temperature):
    """Loops and exponentials in float64, straight from the formula."""
    views = [v / np.linalg.norm(v) for v in np.concatenate([first, second]).astype(float)]
    losses = []
    for i, u in enumerate(views):
        partner = (i + len(first)) % len(views)
        terms = [math.exp(u @ w / temperature) for k, w in enumerate(views) if k != i]
        losses.append(-math.log(math.exp(u @ views[partner] / temperature) / sum(terms)))
    return np.array(losses)


@pytest.mark.parametrize("temperature", [0.07, 0.5, 2.0])
@pytest.mark.parametrize("count", [2, 5])
def test_loss_is_its_formula(temperature, count):
    first, second = embeddings(count)
    wanted = by_definition(first.numpy(), second.numpy(), temperature)
    assert _nt_xent(first, second, temperature).numpy() == pytest.approx(wanted, abs=2e-6)


def test_loss_depends_on_directions_only():
    first, second = embeddings()
    scaled = _nt_xent(first * 1000, second * 0.01, 0.1)
    assert torch.allclose(scaled, _nt_xent(first, second, 0.1), atol=1e-5)


@pytest.mark.parametrize("size", [65504.0, 1e-7, 0.0])
@pytest.mark.parametrize("temperature", [0.07, 0.01])
def test_nothing_overflows_in_half_precision(size, temperature):
    first, second = ((v.sign() * size).half().requires_grad_() for v in embeddings())
    loss = _nt_xent(first, second, temperature)
    loss.mean().backward()
    assert loss.dtype == torch.float32
    for value in (loss, first.grad, second.grad):
        assert torch.isfinite(value).all()
