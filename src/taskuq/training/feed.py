"""Batches of cases that all lie on the device that trains: nothing is read, copied or waited for.

Reading small images case by case takes longer than a step on a GPU, and every batch that is copied
there may have to wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq.errors import InputError
from taskuq.training.order import EpochOrder, Place

# Limits of feed = 'auto' on a GPU: bytes, and a share of the free memory.
SMALL, SHARE = 8 * 2**30, 1 / 4


@dataclass(frozen=True, eq=False)
class Stock:
    """Cases of all batches as whole tensors on one device."""

    by_case: Mapping[str, Tensor]
    by_draw: Mapping[str, Tensor] = field(default_factory=dict)
    drawn: Callable[[int, int], int] | None = None
    known: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def batches(self, places: Sequence[Place], size: int) -> Iterator[dict[str, Any]]:
        """Batches of the cases at these places, in their order."""
        cases = [case for _, case in places]
        draws = cases if self.drawn is None else [self.drawn(*place) for place in places]
        whole = next(iter([*self.by_case.values(), *self.by_draw.values()]))
        # All rows of an epoch go to the device at once: no batch has to.
        rows, drawn = torch.tensor([cases, draws]).to(whole.device)
        for start in range(0, len(cases), size):
            here = slice(start, start + size)
            yield {
                **{name: x.index_select(0, rows[here]) for name, x in self.by_case.items()},
                **{name: x.index_select(0, drawn[here]) for name, x in self.by_draw.items()},
                **{name: tuple(x[cases[here]].tolist()) for name, x in self.known.items()},
            }


@runtime_checkable
class Stocked(Protocol):
    """Cases by (epoch, index) that may be put on a device all at once."""

    def stock(self, device: torch.device, most: float) -> Stock | None:
        """All of them, where they are in memory, of one size and take ``most`` bytes at most."""


@dataclass(frozen=True, eq=False)
class Feed:
    """The batches of a stock in the order of its epochs, as torch's loader would give them."""

    stock: Stock
    sampler: EpochOrder
    batch: int
    # Lightning reads this attribute of every loader with a sampler.
    batch_sampler: ClassVar[None] = None

    def __len__(self) -> int:
        return -(-len(self.sampler) // self.batch)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # Not before the first batch: a resumed trainer sets the epoch in between.
        yield from self.stock.batches(list(self.sampler), self.batch)


def stock_of(
    cases: Any, feed: Literal["auto", "device", "loader"], *, on_gpu: bool, is_alone: bool
) -> Stock | None:
    """Put all cases on the training device where the settings require or allow it."""
    is_asked = feed == "device"
    if feed == "loader" or not (is_asked or on_gpu):
        return None
    most = math.inf if is_asked else min(SMALL, SHARE * torch.cuda.mem_get_info()[0])
    found = None
    if is_alone and isinstance(cases, Stocked):
        found = cases.stock(torch.device("cuda" if on_gpu else "cpu"), most)
    if is_asked and found is None:
        raise InputError(
            "training.feed is 'device', which is for one process and cases of one size that are in "
            "memory; set in_memory = true in the table data, or leave feed out",
            code="option.conflict",
        )
    return found
