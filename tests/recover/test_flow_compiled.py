"""Compiled for training: the same losses and gradients, and plain wherever else."""

from __future__ import annotations

import pytest
import torch

from taskuq.recover._varnet import _InstanceNorm
from taskuq.recover.flow._model import ConditionalFlow, bits_per_dimension
from taskuq.recover.flow._train import _compile_flow


@pytest.fixture
def counted(monkeypatch):
    """A compiler that compiles nothing and counts calls."""
    calls = []

    def compiler(function, **options):
        return lambda *given: calls.append(function) or function(*given)

    monkeypatch.setattr(torch, "compile", compiler)
    return calls


def steps(flow):
    return sum(len(layer.steps) for layer in flow.layers)


def loss_and_gradients(flow, x, y):
    flow.zero_grad()
    latents, log_det = flow(x, flow.condition(y))
    loss = bits_per_dimension(latents, log_det).mean()
    loss.backward()
    return [loss.detach(), *(p.grad for p in flow.parameters() if p.grad is not None)]


def test_training_is_compiled_and_the_same(counted, small_flow, draw):
    x, y = (draw(3, 4, 16, 16, dtype=torch.float32) for _ in range(2))
    expected = loss_and_gradients(small_flow, x, y)
    _compile_flow(small_flow)
    found = loss_and_gradients(small_flow, x, y)
    assert len(counted) == 1 + steps(small_flow)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert small_flow.state_dict().keys() == ConditionalFlow(small_flow.config).state_dict().keys()


def test_other_batches_and_validation_are_not_compiled(counted, small_flow, draw):
    x, y = (draw(3, 4, 16, 16, dtype=torch.float32) for _ in range(2))
    _compile_flow(small_flow)
    with torch.no_grad():
        small_flow(x, small_flow.condition(y), start=True)
    assert not counted
    loss_and_gradients(small_flow, x, y)
    whole = len(counted)
    loss_and_gradients(small_flow, x[:2], y[:2])
    assert len(counted) == whole


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_normalisation_is_the_same_where_it_is_compiled(monkeypatch, draw, dtype, tolerance):
    x = (3 + 2 * draw(2, 5, 7, 9)).to(dtype).contiguous(memory_format=torch.channels_last)
    expected = _InstanceNorm()(x)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    found = _InstanceNorm()(x)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert (found - expected).abs().max() < tolerance * expected.abs().max()
