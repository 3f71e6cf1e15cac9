"""Sums of widths and of distances over the cases below and above a quantile, for all quantiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from taskuq.evaluation.pools import Pool
from taskuq.interval import BoolArray, FloatArray, Interval

# Numbers of a table that stay in cache: a few dozen quantiles at a time for thousands of cases.
TABLE = 24_576


def pool_sums(pool: Pool, position: NDArray[np.int64]) -> FloatArray:
    r"""Return sums of widths and of distances from the centre, at each position of the quantile.

    As the quantile :math:`q` grows, the ends of an interval move along lines until they meet the
    task's range. Between the smallest and the largest quantile most cases meet nothing: their
    numbers are :math:`b_i + d_i \theta`, with :math:`\theta` the share of the way, and

    .. math:: \sum_i b_i + \theta \sum_i d_i, \qquad
        \sum_i b_i^2 + 2 \theta \sum_i b_i d_i + \theta^2 \sum_i d_i^2

    need no look at single cases. The others are asked again in either half of the quantiles, and
    again, until a few remain. For :math:`N` cases that is work of order :math:`N \log N`, and what
    comes out is exact. Families whose ends do not move along lines are tabulated.

    Arguments:
        pool: Cases in the rising order of their scores.
        position: Successive positions of the quantile among them, from 1.

    Returns:
        Sums (number, power, part, position): of widths and distances; of them and of their squares;
        over the cases before the position, up to it, and over all.

    Example:
        >>> from taskuq.calibration.family import AnchoredFamily
        >>> center, scores = np.zeros(4), np.array([0.1, 0.2, 0.3, 0.4])
        >>> family = AnchoredFamily(center, center, np.ones(4))
        >>> pool = Pool(np.arange(4), family, scores, scores, (-0.3, 1.0), 2, 0)
        >>> widths, distances = pool_sums(pool, np.array([3, 4]))
        >>> widths[0].round(12)  # 0.6 for each case, then 0.7: two cases come before the third
        array([[1.2, 2.1],
               [1.8, 2.8],
               [2.4, 2.8]])
    """
    sums = np.zeros((2, 2, 3, len(position)))
    everyone = np.arange(len(pool.scores))
    _add(sums, _Part(pool, everyone, pool.scores[position - 1], position))
    return sums


@dataclass(frozen=True)
class _Part:
    """Some cases, which stand at these places of the order from 0, at some of the quantiles."""

    pool: Pool
    rank: NDArray[np.int64]
    quantiles: FloatArray
    position: NDArray[np.int64]

    def cases(self, chosen: NDArray[np.int64]) -> _Part:
        return replace(self, pool=self.pool.take(chosen), rank=self.rank[chosen])

    def at(self, which: slice) -> _Part:
        return replace(self, quantiles=self.quantiles[which], position=self.position[which])


def _add(sums: FloatArray, part: _Part) -> None:
    """Add the cases of a part to the sums: lines at once, the others in two halves."""
    count = len(part.position)
    if count == 1 or part.rank.size * count <= TABLE or not part.pool.moves_in_lines:
        _add_tables(sums, part)
        return
    bent = np.nonzero(~_add_lines(sums, part))[0]
    if bent.size:
        others = part.cases(bent)
        for half in (slice(None, count // 2), slice(count // 2, None)):
            _add(sums[..., half], others.at(half))


def _add_lines(sums: FloatArray, part: _Part) -> BoolArray:
    """Add the cases whose numbers are linear from the first quantile to the last; say which."""
    q = part.quantiles
    ends = [part.pool.interval(float(quantile)) for quantile in (q[0], q[-1])]
    offsets = [part.pool.offset(interval) for interval in ends]
    straight = _is_straight(part.pool, ends, offsets)
    way = float(q[-1] - q[0])
    # Where the way is infinite, or none, nothing that is straight moves.
    theta = (q - q[0]) / way if 0 < way < np.inf else np.zeros_like(q)
    edges = _edges(replace(part, rank=part.rank[straight]))
    for number, (first, last) in enumerate(
        ([interval.width for interval in ends], [np.abs(offset) for offset in offsets])
    ):
        b = first[straight]
        d = np.subtract(last[straight], b, out=np.zeros_like(b), where=last[straight] != b)
        base, slope, squares, products, slopes = (
            _sums_at(values[None], *edges) for values in (b, d, b * b, b * d, d * d)
        )
        sums[number, 0] += base + slope * theta
        sums[number, 1] += squares + 2 * products * theta + slopes * theta**2
    return straight


def _is_straight(pool: Pool, ends: list[Interval], offsets: list[FloatArray]) -> BoolArray:
    """Whether width and distance of each case are linear between two quantiles.

    Ends of intervals move one way, so what holds of them at both quantiles holds between.
    """
    first, last = ends
    low, high = (-np.inf, np.inf) if pool.task_range is None else pool.task_range
    straight = (first.is_empty == last.is_empty) & (offsets[0] * offsets[1] >= 0)
    for stop in (low, -np.inf, np.inf):
        straight &= (first.lower == stop) == (last.lower == stop)
    for stop in (high, -np.inf, np.inf):
        straight &= (first.upper == stop) == (last.upper == stop)
    return np.asarray(straight)


def _add_tables(sums: FloatArray, part: _Part) -> None:
    """Add cases by their numbers at every quantile, some quantiles at a time."""
    step = max(1, TABLE // part.rank.size)
    for start in range(0, len(part.position), step):
        block = slice(start, start + step)
        some = part.at(block)
        interval, edges = some.pool.intervals(some.quantiles), _edges(some)
        for number, values in enumerate((interval.width, np.abs(some.pool.offset(interval)))):
            sums[number, 0, :, block] += _sums_at(values, *edges)
            sums[number, 1, :, block] += _sums_at(values, *edges, squared=True)


def _edges(part: _Part) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many of the cases stand before each position, and how many up to it."""
    place = part.position - 1
    return np.searchsorted(part.rank, place), np.searchsorted(part.rank, place, side="right")


def _sums_at(
    values: FloatArray,
    before: NDArray[np.int64],
    upto: NDArray[np.int64],
    *,
    squared: bool = False,
) -> FloatArray:
    """Sums of each row before its position, up to it, and over all, (3, position).

    Arguments:
        values: One row for each position, or one for all of them, (row, case).
        before: How many cases stand before each position.
        upto: How many stand up to it.
        squared: Sum squares.
    """
    low, high = int(before[0]), int(upto[-1])
    near = values[:, low:high]
    near = np.cumsum(near**2 if squared else near, axis=1)
    near = np.concatenate([np.zeros((len(near), 1)), near], axis=1)
    head, tail = (_row_sums(some, squared) for some in (values[:, :low], values[:, high:]))
    row = np.arange(len(before)) % len(values)
    whole = head + near[:, -1] + tail
    return np.stack([head[row] + near[row, before - low], head[row] + near[row, upto - low],
                     whole[row]])  # fmt: skip


def _row_sums(values: FloatArray, squared: bool) -> FloatArray:
    if squared:
        return np.asarray(np.einsum("ij,ij->i", values, values))
    return np.asarray(values @ np.ones(values.shape[1]))
