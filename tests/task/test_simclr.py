"""The contrastive loss: the definition, its symmetries, its range, and several processes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import distributed, multiprocessing

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
def test_the_loss_is_what_its_formula_says(temperature, count):
    first, second = embeddings(count)
    wanted = by_definition(first.numpy(), second.numpy(), temperature)

    assert _nt_xent(first, second, temperature).numpy() == pytest.approx(wanted, abs=2e-6)


def test_the_loss_sees_directions_not_lengths():
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


SHARES = slice(0, 4), slice(4, 6)


def share_of_one_process(rank, port, first, second, found):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    own = [v[SHARES[rank]].clone().requires_grad_() for v in (first, second)]
    loss = _nt_xent(*own, temperature=0.2)
    # What DistributedDataParallel differentiates: the mean over processes of what each hands it.
    (len(own[0]) * 2 / 6 * loss.mean() / 2).backward()
    # The second process keeps step with a case of the first, which counts there alone.
    filled = _nt_xent(*(v.detach()[:1] for v in own), temperature=0.2, counts=rank == 0)
    found[rank] = [v.detach().numpy() for v in (loss, own[0].grad, own[1].grad, filled)]
    distributed.destroy_process_group()


def test_two_processes_see_the_loss_and_the_gradients_of_the_whole_batch(unused_port):
    first, second = embeddings(6)
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        found = manager.dict()
        arguments = (unused_port, first, second, found)
        multiprocessing.spawn(share_of_one_process, arguments, nprocs=2)
        losses, *gradients, filled = (
            np.concatenate(parts) for parts in zip(found[0], found[1], strict=True)
        )
    first.requires_grad_(), second.requires_grad_()
    whole = _nt_xent(first, second, temperature=0.2)
    whole.mean().backward()

    order = [0, 1, 2, 3, 6, 7, 8, 9, 4, 5, 10, 11]  # each process: its first views, its second
    assert losses == pytest.approx(whole.detach().numpy()[order], abs=1e-6)
    for ours, theirs in zip(gradients, (first.grad, second.grad), strict=True):
        assert ours == pytest.approx(theirs.numpy(), abs=1e-6)
    alone = _nt_xent(first[:1], second[:1], temperature=0.2).detach().numpy()
    assert filled == pytest.approx([*alone, 0, 0], abs=1e-6)
