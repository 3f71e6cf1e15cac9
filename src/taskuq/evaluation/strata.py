"""Coverage within classes, within ranges of widths, and of whole groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from taskuq.calibration.groups import worst_scores
from taskuq.errors import InputError
from taskuq.evaluation.pools import Checked, Pool
from taskuq.evaluation.result import Stratum
from taskuq.evaluation.trials import Splitting, sums_at_quantiles
from taskuq.interval import FloatArray

PAPER_SIZE_BINS = (0.0, 0.05, 0.1, 0.15, 0.2, math.inf)


@dataclass(frozen=True)
class StratumCounts:
    """Test cases of one stratum in each trial.

    Arguments:
        kind: 'class' or 'width'.
        name: The class, or the range of widths.
        inside: Test cases in the stratum (trial,).
        covered: Those of them that are covered (trial,).
    """

    kind: str
    name: str
    inside: FloatArray
    covered: FloatArray

    def summary(self) -> Stratum:
        """Average over the trials in which the stratum is not empty: empty is missing, not zero."""
        there = self.inside > 0
        share = self.covered[there] / self.inside[there]
        return Stratum(
            name=self.name,
            coverage=float(share.mean()) if there.any() else math.nan,
            cases=float(self.inside.mean()),
            trials=int(there.sum()),
        )


def join(parts: Sequence[StratumCounts]) -> StratumCounts:
    """Put the trials of several parts one after the other."""
    return replace(
        parts[0],
        inside=np.concatenate([part.inside for part in parts]),
        covered=np.concatenate([part.covered for part in parts]),
    )


def count_strata(
    checked: Checked,
    pool: Pool,
    edges: tuple[float, ...],
    splitting: Splitting,
    quantile: FloatArray,
) -> list[StratumCounts]:
    """Count test cases, and covered ones, in each class and each range of widths.

    Arguments:
        checked: The checked inputs.
        pool: The pool that is split.
        edges: Rising edges of the ranges of widths; none for no ranges.
        splitting: Who is split and how.
        quantile: The quantile of each trial.
    """
    labels = None if checked.label is None else checked.label[pool.index]
    classes = [] if labels is None else list(np.unique(labels))
    if not classes and not edges:
        return []

    def tables(q: FloatArray) -> FloatArray:
        covered = pool.scores <= q[:, None]
        inside = [np.broadcast_to(labels == c, covered.shape) for c in classes]
        if edges:
            width = pool.intervals(q).width
            inside += [
                (width >= low) & ((width < high) | (high == math.inf))
                for low, high in pairwise(edges)
            ]
        return np.stack([*inside, *(i & covered for i in inside)]).astype(float)

    sums = sums_at_quantiles(splitting, quantile, tables)
    half = len(sums) // 2
    titles = [("class", str(c)) for c in classes]
    titles += [("width", f"[{low:g}, {high:g})") for low, high in pairwise(edges)]
    return [StratumCounts(*titles[i], sums[i], sums[half + i]) for i in range(half)]


def whole_group_coverage(
    checked: Checked, pool: Pool, splitting: Splitting, quantile: FloatArray
) -> FloatArray | None:
    """Return the share of test groups whose cases are all covered, in each trial."""
    if not checked.unit.is_group:
        return None
    worst = worst_scores(pool.scores, splitting.unit_of_case, 1)
    by_group = replace(splitting, unit_of_case=np.empty(0, np.int64))

    def tables(q: FloatArray) -> FloatArray:
        return (worst <= q[:, None])[None].astype(float)

    return np.asarray(sums_at_quantiles(by_group, quantile, tables)[0] / splitting.n_test)


def as_size_bins(edges: Sequence[float] | None) -> tuple[float, ...]:
    """Take rising edges of ranges of widths, or none."""
    if edges is None:
        return ()
    try:
        given = tuple(float(e) for e in edges)
    except (TypeError, ValueError):
        raise InputError(f"size bins are rising numbers, got {edges!r}") from None
    if len(given) < 2 or any(not a < b for a, b in pairwise(given)):
        raise InputError(f"size bins are rising edges, at least two, got {given}")
    return given
