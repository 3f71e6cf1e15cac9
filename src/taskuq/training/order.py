"""In which order cases are seen: a function of seed and epoch, the same after every restart."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import distributed
from torch.utils.data import Sampler

Place = tuple[int, int]


class EpochOrder(Sampler[Place]):
    """Yields (epoch, index), so that a data set can draw what belongs to this case and epoch.

    Each process of a distributed training takes every n-th place of one common order. The order
    is filled up from its beginning, so that all processes take the same number of steps.

    Arguments:
        length: The number of cases.
        seed: Where the order comes from; None keeps the cases in their own order.
        pad: Whether to fill up. Without it every case is seen exactly once, as validation needs.
        most: At most so many cases, taken at even steps, for a trial.

    Example:
        >>> order = EpochOrder(4, seed=0)
        >>> order.set_epoch(7)
        >>> places = list(order)
        >>> sorted(index for _, index in places), {epoch for epoch, _ in places}
        ([0, 1, 2, 3], {7})
    """

    def __init__(
        self, length: int, seed: int | None, *, pad: bool = True, most: int | None = None
    ) -> None:
        self.cases = np.arange(length)
        if most is not None and most < length:
            self.cases = np.linspace(0, length - 1, most).astype(int)
        self.length, self.seed, self.pad = len(self.cases), seed, pad
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer before each epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Place]:
        rank, world = _process()
        order = self.cases
        if self.seed is not None:
            order = np.random.default_rng([self.seed, self.epoch]).permutation(order)
        if self.pad:
            order = np.resize(order, len(self) * world)
        return ((self.epoch, int(index)) for index in order[rank::world])

    def __len__(self) -> int:
        rank, world = _process()
        return -(-self.length // world) if self.pad else len(range(rank, self.length, world))


def _process() -> tuple[int, int]:
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
