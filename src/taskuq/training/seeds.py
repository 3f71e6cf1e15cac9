"""Random numbers of torch from seeds of their own, not from what was drawn before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from taskuq.seeds import SharedDraws


class CaseDraws(SharedDraws, torch.Generator):
    """Generator of a recipe's random numbers."""


def gaussian_rows(out: Tensor, seeds: Sequence[int]) -> Tensor:
    """Fill each row with normal numbers from a seed of its own, in place."""
    generator = torch.Generator(out.device)
    for row, seed in zip(out, seeds, strict=True):
        row.normal_(generator=generator.manual_seed(seed))
    return out


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Seed torch's global generator for a while, and give it back as it was.

    Only for what takes no generator: the start of torch's own layers, and dropout.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
