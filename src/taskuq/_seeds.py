"""Seeds by case and round."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
_MASK = (1 << 64) - 1


def case_seed(seed: int, case: str, acceleration: float) -> int:
    """Return the seed of the samples of one case in one round.

    It is a hash of the seed, the case and the acceleration, so that batches, workers and the
    order of cases change nothing, and so that a scan draws what a pipeline draws.

    Arguments:
        seed: The seed of the run, or of the scan.
        case: The identity of the case.
        acceleration: The round's acceleration.

    Example:
        >>> case_seed(0, "patient-3-slice-2", 8.0) == case_seed(0, "patient-3-slice-2", 8.0)
        True
        >>> case_seed(0, "patient-3-slice-2", 8.0) == case_seed(0, "patient-3-slice-2", 4.0)
        False
    """
    text = f"{seed}\x00{case}\x00{float(acceleration)!r}"
    # 63 bits: torch and NumPy both take it.
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def mix_seeds(*numbers: int) -> int:
    """Mix whole numbers into one seed of 63 bits; another order gives an unrelated one."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        # The finaliser of splitmix64 (Steele et al., OOPSLA 2014) after each number.
        state = (state ^ (number & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state = (state ^ (state >> 31)) + 0x9E3779B97F4A7C15 & _MASK
    return state >> 1


@dataclass(frozen=True)
class BatchShard:
    """Which cases of a batch are this process's own.

    A process for which there is none takes one that is another's: it has to take the step with the
    others, and what it finds counts for nothing.

    Arguments:
        start: The first of them.
        stop: The one after the last.
        total: How many the batch has.
        world: How many processes share it.

    Example:
        >>> [BatchShard.of(5, rank, world=2) for rank in range(2)]
        [BatchShard(start=0, stop=3, total=5, world=2), BatchShard(start=3, stop=5, total=5, world=2)]
        >>> BatchShard.of(5, 0, world=2).weight, BatchShard.of(1, 1, world=2).weight
        (1.2, 0.0)
    """

    start: int
    stop: int
    total: int
    world: int = 1

    @classmethod
    def of(cls, total: int, rank: int, world: int) -> BatchShard:
        """The share of a process in a batch."""
        each, more = divmod(total, world)
        start = each * rank + min(rank, more)
        return cls(start, start + each + (rank < more), total, world)

    @property
    def counts(self) -> bool:
        """True if any case is this process's own."""
        return self.stop > self.start

    @property
    def rows(self) -> slice:
        """The cases that the process takes, one of them at least."""
        return slice(self.start, self.stop) if self.counts else slice(0, 1)

    @property
    def weight(self) -> float:
        """Return what makes the mean over processes of their means that over all cases."""
        return (self.stop - self.start) * self.world / self.total


class ShardedGenerator:
    """A generator of torch's for the cases of a batch, of which a process may have a share alone.

    What :func:`per_case_random` draws by it is drawn for all cases of the batch: a case has the
    same numbers however many processes there are. What is drawn from it directly is drawn for this
    process alone.

    Attributes:
        share: Which cases of the batch are this process's own.
        whole: Draws for all of them, the same in all processes; none where there is one process.
    """

    share: BatchShard
    whole: Any = None


def per_case_random(
    draw: Callable[..., T], shape: Sequence[int], generator: Any, *, axis: int = 0, **options: Any
) -> T:
    """Draw random numbers for the cases of a batch."""
    if not isinstance(generator, ShardedGenerator):
        return draw(tuple(shape), generator=generator, **options)
    rows, whole = generator.share.rows, list(shape)
    assert whole[axis] == rows.stop - rows.start, "numbers are drawn for each case of a batch"
    whole[axis] = generator.share.total
    drawn: Any = draw(tuple(whole), generator=generator.whole or generator, **options)
    own: T = drawn.narrow(axis, rows.start, rows.stop - rows.start)
    return own


def batch_seed(generator: Any) -> int:
    """Return the seed of a generator, which all processes that share a batch agree about."""
    whole = generator.whole if isinstance(generator, ShardedGenerator) else None
    return int((whole or generator).initial_seed())
