"""Random numbers of torch from seeds of their own, not from what was drawn before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from taskuq.seeds import SharedDraws


class CaseDraws(SharedDraws, torch.Generator):
    """What a recipe draws by.

    Example:
        >>> from taskuq.seeds import Share, numbers_of_cases
        >>> def drawn(share):
        ...     draws = CaseDraws("cpu")
        ...     draws.share, draws.whole = share, torch.Generator().manual_seed(3)
        ...     return numbers_of_cases(torch.randn, (share.stop - share.start, 2), draws)
        >>> parts = [drawn(Share.of(5, rank, world=2)) for rank in range(2)]
        >>> torch.equal(torch.cat(parts), drawn(Share.of(5, 0, world=1)))
        True
    """


def gaussian_rows(out: Tensor, seeds: Sequence[int]) -> Tensor:
    """Fill each row with normal numbers from a seed of its own, in place.

    Arguments:
        out: (row, number), filled in place on its own device.
        seeds: One seed for each row.

    Example:
        >>> both = gaussian_rows(torch.empty(2, 5), [3, 4])
        >>> torch.equal(gaussian_rows(torch.empty(1, 5), [4])[0], both[1])
        True
    """
    generator = torch.Generator(out.device)
    for row, seed in zip(out, seeds, strict=True):
        row.normal_(generator=generator.manual_seed(seed))
    return out


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Seed torch's global generator for a while, and give it back as it was.

    Only for what takes no generator: the start of torch's own layers, and dropout.

    Arguments:
        seed: The seed.

    Example:
        >>> from torch import nn
        >>> def start():
        ...     with own_randomness(3):
        ...         return nn.Linear(2, 2).weight
        >>> torch.equal(start(), start())
        True
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
