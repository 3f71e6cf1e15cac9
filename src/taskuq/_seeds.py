"""Random seeds for each case and round."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeVar

from taskuq.errors import InputError

T = TypeVar("T")
_MASK = (1 << 64) - 1


def as_seed(seed: Any) -> int:
    """Return an integer seed; from a Generator, draw it at random."""
    if hasattr(seed, "integers"):
        return int(seed.integers(2**63))
    if not isinstance(seed, Integral):
        message = f"seed must be an integer or a numpy Generator, got {seed!r:.60}"
        raise InputError(message, code="value.invalid")
    return int(seed)


def case_seed(seed: int, case: str, acceleration: float) -> int:
    text = f"{seed}\x00{case}\x00{float(acceleration)!r}"
    # 63 bits: torch and NumPy both take it.
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def mix_seeds(*numbers: int) -> int:
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        # The finaliser of splitmix64 (Steele et al., OOPSLA 2014) after each number.
        state = (state ^ (number & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state = (state ^ (state >> 31)) + 0x9E3779B97F4A7C15 & _MASK
    return state >> 1


@dataclass(frozen=True)
class BatchShard:
    """Cases of a batch that are assigned to this process."""

    start: int
    stop: int
    total: int
    world: int = 1

    @classmethod
    def of(cls, total: int, rank: int, world: int) -> BatchShard:
        each, more = divmod(total, world)
        start = each * rank + min(rank, more)
        return cls(start, start + each + (rank < more), total, world)

    @property
    def counts(self) -> bool:
        return self.stop > self.start

    @property
    def rows(self) -> slice:
        """Slice of the batch that this process computes; the first case if no case is assigned."""
        return slice(self.start, self.stop) if self.counts else slice(0, 1)

    @property
    def weight(self) -> float:
        """Factor that makes the mean over processes equal to the mean over cases."""
        return (self.stop - self.start) * self.world / self.total


class ShardedGenerator:
    """Random generator for a batch; results do not depend on the number of processes."""

    share: BatchShard
    whole: Any = None


def per_case_random(
    draw: Callable[..., T], shape: Sequence[int], generator: Any, *, axis: int = 0, **options: Any
) -> T:
    """Draw random numbers; a :class:`ShardedGenerator` yields those of this process's cases."""
    if not isinstance(generator, ShardedGenerator):
        return draw(tuple(shape), generator=generator, **options)
    rows, whole = generator.share.rows, list(shape)
    assert whole[axis] == rows.stop - rows.start, "one entry per case of the batch"
    whole[axis] = generator.share.total
    drawn: Any = draw(tuple(whole), generator=generator.whole or generator, **options)
    own: T = drawn.narrow(axis, rows.start, rows.stop - rows.start)
    return own


def batch_seed(generator: Any) -> int:
    """Return the generator's seed, identical in all processes that share a batch."""
    whole = generator.whole if isinstance(generator, ShardedGenerator) else None
    return int((whole or generator).initial_seed())
