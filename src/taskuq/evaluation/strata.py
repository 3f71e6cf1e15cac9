"""Coverage within classes, within ranges of widths, and of whole groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np

from taskuq.calibration.units import Unit
from taskuq.errors import InputError
from taskuq.evaluation.pools import Checked, Pool
from taskuq.evaluation.result import Stratum
from taskuq.evaluation.trials import Splitting, sums_at_quantiles
from taskuq.interval import FloatArray

PAPER_SIZE_BINS = (0.0, 0.05, 0.1, 0.15, 0.2, math.inf)


# Test cases of each stratum, what they weigh and what the covered ones weigh, (3, trial); a stratum
# is a pair of 'class' or 'width' and the name of the class or the range.
StratumCounts = dict[tuple[str, str], FloatArray]


def stratum_coverage(parts: Sequence[StratumCounts], kind: str, unit: Unit) -> tuple[Stratum, ...]:
    """Average over the trials in which a stratum is not empty: empty is missing, not zero.

    With groups all trials are added up first: a random case of a test group, given its stratum.

    Arguments:
        parts: What was counted.
        kind: 'class' or 'width'.
        unit: What was split.
    """
    found = []
    for stratum in (stratum for stratum in parts[0] if stratum[0] == kind):
        cases, inside, covered = np.concatenate([part[stratum] for part in parts], axis=1)
        there = cases > 0
        coverage = math.nan
        if there.any():
            # A mean of the shares of small folds would count groups, not cases of groups, alike.
            shares = (
                covered.sum() / inside.sum() if unit.is_group else covered[there] / inside[there]
            )
            coverage = float(np.mean(shares))
        found.append(Stratum(stratum[1], coverage, float(cases.mean()), int(there.sum())))
    return tuple(found)


def count_strata(
    checked: Checked,
    pool: Pool,
    edges: tuple[float, ...],
    splitting: Splitting,
    quantile: FloatArray,
) -> StratumCounts:
    """Count and weigh test cases, and covered ones, in each class and each range of widths.

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
        return {}

    def tables(q: FloatArray) -> FloatArray:
        covered = pool.covered(q)
        inside = [np.broadcast_to(labels == c, covered.shape) for c in classes]
        if edges:
            width = pool.intervals(q).width
            inside += [
                (width >= low) & ((width < high) | (high == math.inf))
                for low, high in pairwise(edges)
            ]
        counted = np.stack([*inside, *(i & covered for i in inside)]).astype(float)
        return counted if weight is None else np.concatenate([counted, counted * weight])

    unit = checked.unit
    weight = unit.weights(splitting.unit_of_case) if unit.is_group else None
    sums = sums_at_quantiles(splitting, quantile, tables)
    titles = [("class", str(c)) for c in classes]
    titles += [("width", f"[{low:g}, {high:g})") for low, high in pairwise(edges)]
    last, strata = len(sums), len(titles)
    return {
        title: sums[[i, last - 2 * strata + i, last - strata + i]] for i, title in enumerate(titles)
    }


def group_coverage(
    pool: Pool, splitting: Splitting, quantile: FloatArray, share: Fraction
) -> FloatArray:
    """Return the share of test groups of which at least a share of cases is covered, (trial,).

    Arguments:
        pool: The pool that is split.
        splitting: How groups are split.
        quantile: The quantile of each trial.
        share: The share of a group's cases.
    """
    enough = [math.ceil(share * int(size)) for size in np.bincount(splitting.unit_of_case)]
    by_group = replace(splitting, unit_of_case=np.empty(0, np.int64))

    def tables(q: FloatArray) -> FloatArray:
        covered = splitting.of_units(pool.covered(q).astype(np.int64))
        return (covered >= np.array(enough))[None].astype(float)

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
