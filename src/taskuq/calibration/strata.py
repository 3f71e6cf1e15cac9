"""Promises within strata and classes: what is drawn, and the quantile of each of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from taskuq.calibration.betting import Bets, lowest_certified
from taskuq.calibration.groups import group_index, quantile_of_mean_loss
from taskuq.calibration.guarantee import WHOLE_RANGE, DeltaFor, Guarantee, Within
from taskuq.calibration.rank import exact_level
from taskuq.calibration.units import Unit
from taskuq.errors import InputError
from taskuq.interval import FloatArray

# Strata that are named in a sentence; the others are counted.
NAMED = 5


def as_within(within: str | None, whom: Unit, condition: str | None) -> Within | None:
    """Take how strata or classes are read where cases come in groups.

    ``case`` draws a case of a new group and looks at its stratum; ``group`` draws a group that has
    cases of the stratum, and one of those, or all. Where the promise is for one random case, the
    first is the default.

    Arguments:
        within: 'case', 'group', or nothing for the default.
        whom: What is exchangeable, and which of its cases are covered.
        condition: What the promise is conditional on: 'stratum', 'class', or nothing.

    Example:
        >>> from taskuq.calibration.units import RandomCase, ShareOfCases
        >>> as_within(None, RandomCase(), "stratum"), as_within(None, ShareOfCases("all"), "class")
        ('case', 'group')
    """
    if within not in (None, "case", "group"):
        raise InputError(f"within must be 'case' or 'group', got {within!r}")
    if condition is None or not whom.is_group:
        if within is not None:
            raise InputError(
                f"within={within!r} says how strata or labels are read where groups are the unit; "
                "give strata or labels and groups, or leave it out"
            )
        return None
    if whom.share is None:
        return "group" if within == "group" else "case"
    if within == "case":
        raise InputError(
            f"within='case' is about one random case, and cases={whom.cases!r} about several of a "
            "group; use within='group', or cases='random'"
        )
    return "group"


def as_delta_for(asked: str | None, delta: float | None, condition: str | None) -> DeltaFor | None:
    """Take what a share delta of unlucky calibration sets is allowed for.

    ``each`` allows it for each stratum by itself, ``all`` for all strata together. Classes share
    one quantile, the largest, which serves all of them at once without a price.

    Arguments:
        asked: 'each', 'all', or nothing for the default.
        delta: The share of unlucky calibration sets, if any.
        condition: What the promise is conditional on: 'stratum', 'class', or nothing.

    Example:
        >>> as_delta_for(None, 0.1, "stratum"), as_delta_for(None, 0.1, "class")
        ('each', 'all')
    """
    if asked not in (None, "each", "all"):
        raise InputError(f"delta_for must be 'each' or 'all', got {asked!r}")
    if condition is None or delta is None:
        if asked is not None:
            raise InputError(
                f"delta_for={asked!r} says how delta is shared by strata; give delta and strata, "
                "or leave it out"
            )
        return None
    return "all" if asked == "all" or condition == "class" else "each"


@dataclass(frozen=True)
class _Part:
    """The calibration cases of one stratum, and what is left of a promise within it."""

    promise: Guarantee
    # The parts of alpha and delta that the stratum may spend.
    levels: tuple[Fraction, Fraction | None]
    scores: FloatArray
    group: np.ndarray | None
    # The number of each case's group among all groups, and the sizes of those.
    index: np.ndarray
    sizes: np.ndarray

    def quantile(self) -> float:
        if self.promise.within == "case":
            return quantile_given_stratum(self.scores, self.index, self.sizes, *self.levels)
        return self.promise.whom_by_end.quantile(self.scores, self.group, *self.levels)

    @property
    def is_large_enough(self) -> bool:
        """Whether the quantile would be finite if no score were infinite."""
        return math.isfinite(replace(self, scores=np.zeros(len(self.scores))).quantile())

    @property
    def needed(self) -> str:
        """How many units a stratum needs, as a shortage says it."""
        alpha, delta = self.levels
        if self.promise.within != "case":
            needed = self.promise.whom_by_end.needed(alpha, delta)
            return f"at least {needed} calibration {self.promise.unit}s"
        if delta is None:
            return f"cases worth at least {float(1 / alpha - 1):.4g} groups"
        return f"cases worth more of the {len(self.sizes)} groups"

    @property
    def count(self) -> str:
        """How many units the stratum has, as a shortage says it."""
        if self.promise.within == "case":
            return f"{float(groups_worth(self.index, self.sizes)):.4g}"
        return str(len(self.scores) if self.group is None else len(np.unique(self.group)))


def quantiles_within(
    promise: Guarantee, scores: FloatArray, group: np.ndarray | None, strata: np.ndarray
) -> tuple[Guarantee, dict[str, float]]:
    """Return the quantile of each stratum, and the promise with what the strata lack.

    Arguments:
        promise: What is promised; its ``within``, ``delta_for`` and ``condition`` are set.
        scores: Calibration scores (case,).
        group: The group of each case, where groups are the unit.
        strata: The stratum or class of each case.

    Example:
        >>> promise = Guarantee(alpha=0.2, unit="case", n_cases=9, condition="each stratum")
        >>> strata = np.array(["a"] * 6 + ["b"] * 3)
        >>> promise, quantiles = quantiles_within(promise, np.arange(9.0), None, strata)
        >>> quantiles
        {'a': 5.0, 'b': inf}
        >>> print(promise.shortage)
        alpha=0.2 needs at least 4 calibration cases in each stratum, got 3 in b: the interval is
        the whole task range in b
    """
    names = np.unique(strata)
    promise = replace(promise, strata=len(names))
    alpha, delta = promise.levels
    if promise.delta_for == "all" and promise.kind == "stratum" and delta is not None:
        delta /= len(names)
    index, sizes = group_index(np.arange(len(scores)) if group is None else group)
    parts = {
        str(name): _Part(
            promise,
            (alpha, delta),
            scores[inside],
            None if group is None else group[inside],
            index[inside],
            sizes,
        )
        for name in names
        for inside in [strata == name]
    }
    quantiles = {name: part.quantile() for name, part in parts.items()}
    lacking = {name: parts[name] for name, q in quantiles.items() if q == math.inf}
    return replace(promise, shortage=_shortage(lacking)), quantiles


def groups_worth(index: np.ndarray, sizes: np.ndarray) -> Fraction:
    r"""Return how many groups some cases make up: :math:`\sum_v n_{vs} / n_v`, exactly.

    Arguments:
        index: The number of each case's group, from 0.
        sizes: The number of cases in each group.

    Example:
        >>> groups_worth(np.array([0, 1, 1]), np.array([3, 2]))
        Fraction(4, 3)
    """
    size_of_case, count = np.unique(sizes[index], return_counts=True)
    return sum(
        (Fraction(int(c), int(n)) for n, c in zip(size_of_case, count, strict=True)), Fraction(0)
    )


def quantile_given_stratum(
    scores: FloatArray,
    index: np.ndarray,
    sizes: np.ndarray,
    alpha: float | Fraction,
    delta: float | Fraction | None = None,
) -> float:
    r"""Return the score that a random case of a new group exceeds with probability alpha, given s.

    Of :math:`n_v` cases of group :math:`v`, :math:`n_{vs}` lie in stratum :math:`s`. The result is
    the smallest score :math:`q` of the stratum with

    .. math:: \sum_{v \le V} \frac{\#\{i \in s : s_{vi} > q\}}{n_v} \le \alpha (W + 1) - 1, \qquad
        W = \sum_{v \le V} \frac{n_{vs}}{n_v}

    so that the group's loss, its share of missed cases of the stratum less :math:`\alpha` times
    its share of cases there, is at most 0 on average over groups: among all cases of the stratum
    at most :math:`\alpha` are missed. With :math:`\delta` the loss plus :math:`\alpha`, which lies
    in [0, 1], is at most :math:`\alpha` on average for all but :math:`\delta` of calibration sets.

    Arguments:
        scores: Calibration scores of the stratum's cases.
        index: The number of each of these cases' group, from 0, among all groups.
        sizes: The number of cases in each group, those outside the stratum included.
        alpha: The error rate.
        delta: For a promise given the calibration set.

    Example:
        >>> scores, index = np.arange(20.0), np.arange(20)
        >>> quantile_given_stratum(scores, index, np.full(20, 1), alpha=0.1)
        18.0
        >>> quantile_given_stratum(scores, index, np.full(20, 2), alpha=0.1)  # half of each group
        19.0
        >>> quantile_given_stratum(scores, index, np.full(20, 3), alpha=0.1)
        inf
    """
    worth, level = groups_worth(index, sizes), exact_level(alpha)
    if delta is None:
        allowed = level * (worth + 1) - 1
        return math.inf if allowed < 0 else quantile_of_mean_loss(scores, index, sizes, allowed)
    # What a group loses at every finite threshold stands above them all.
    outside = 1 - np.bincount(index, minlength=len(sizes)) / sizes
    return lowest_certified(
        np.concatenate([scores, np.full(len(sizes), math.inf)]),
        np.concatenate([index, np.arange(len(sizes))]),
        np.concatenate([1 / sizes[index], float(level) * outside]),
        Bets(alpha, delta),
    )


def _shortage(lacking: Mapping[str, _Part]) -> str | None:
    """Say which strata have no finite quantile, and why."""
    if not lacking:
        return None
    promise = next(iter(lacking.values())).promise
    few = {name: part for name, part in lacking.items() if not part.is_large_enough}
    reasons = []
    if few:
        needed = next(iter(few.values())).needed
        found = _listing([f"{part.count} in {name}" for name, part in few.items()])
        reasons.append(f"{promise.asked} needs {needed} in {promise.condition}, got {found}")
    reasons += [
        promise.infinite(part.scores, f" in {promise.kind} {name}")
        for name, part in lacking.items()
        if name not in few
    ]
    # The largest quantile serves all classes, so what one of them lacks all of them lack.
    where = "" if promise.kind == "class" else f" in {_listing(lacking)}"
    return f"{_listing(reasons, '; ')}: {WHOLE_RANGE}{where}"


def _listing(words: Iterable[str], between: str = ", ") -> str:
    named = list(words)
    more = len(named) - NAMED
    return between.join(named[:NAMED]) + (f" and {more} more" if more > 0 else "")
