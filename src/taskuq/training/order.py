"""In which order cases are seen: a function of seed and epoch, the same after every restart."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import distributed
from torch.utils.data import Sampler

from taskuq.seeds import Share

Place = tuple[int, int]


class EpochOrder(Sampler[Place]):
    """Yields (epoch, index), so that a data set can draw what belongs to this case and epoch.

    Batches are those of one process, whatever the number of processes: each takes its share of
    every batch.
    """

    def __init__(
        self, length: int, seed: int | None, *, batch: int = 1, most: int | None = None
    ) -> None:
        self.cases = np.arange(length)
        if most is not None and most < length:
            self.cases = np.linspace(0, length - 1, most).astype(int)
        self.seed, self.batch = seed, batch
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer before each epoch."""
        self.epoch = epoch

    def share(self, index: int) -> Share:
        """The share of this process in a batch, which is counted from 0."""
        total = min(self.batch, len(self.cases) - index * self.batch)
        return Share.of(total, *_process())

    def __iter__(self) -> Iterator[Place]:
        order = self.cases
        if self.seed is not None:
            order = np.random.default_rng([self.seed, self.epoch]).permutation(order)
        for index in range(self.batches):
            whole = order[index * self.batch : (index + 1) * self.batch]
            for case in whole[self.share(index).rows]:
                yield self.epoch, int(case)

    @property
    def batches(self) -> int:
        """Number of batches."""
        return -(-len(self.cases) // self.batch)

    def __len__(self) -> int:
        rows = (self.share(index).rows for index in range(self.batches))
        return sum(own.stop - own.start for own in rows)


def _process() -> tuple[int, int]:
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
