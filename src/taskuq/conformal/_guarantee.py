"""Guarantees, also within classes and strata."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np

from taskuq.conformal._quantiles import (
    BettingEProcess,
    exact_alpha,
    guaranteed_rank,
    smallest_certified,
)
from taskuq.conformal._units import Unit, UnitName, group_index, make_unit, quantile_of_mean_loss
from taskuq.errors import InputError
from taskuq.interval import FloatArray

Within: TypeAlias = Literal["case", "group"]
DeltaFor: TypeAlias = Literal["each", "all"]
WHOLE_RANGE = "the interval is the whole task range"


@dataclass(frozen=True)
class Guarantee:
    """A promise in terms of its unit, ready to be said in a sentence.

    Arguments:
        alpha: The error rate.
        unit: Whether cases or groups are exchangeable.
        cases: For groups, which cases of a new group: 'random', 'all' or a share.
        delta: For a promise given the calibration set, the probability of an unlucky one.
        n_cases: The calibration cases behind it.
        n_groups: The calibration groups behind it, where groups are the unit.
        condition: What the promise is conditional on: 'each stratum' or 'each class'.
        shifted: Whether the new inputs are reweighted for a known shift.
        tasks: How many tasks are covered jointly.
        ends: How many quantiles share the error rate: 2 where each end of an interval has its own.
        within: For strata or classes with groups, what is drawn: a 'case' of a new group, which
            falls in a stratum, or a 'group' that has cases of the stratum.
        delta_for: For strata or classes, whether ``delta`` is for 'each' or for 'all' of them.
        strata: The number of strata or classes that were calibrated.
        shortage: Why some or all intervals are not finite, where they are not.
        given: 'early' where a policy promises it of the scans that stop early.

    Example:
        >>> print(Guarantee(alpha=0.05, unit="case", n_cases=1531).sentence)
        Guaranteed: the interval contains the target of a new case with probability at least 0.95,
        if the new case is exchangeable with the 1531 calibration cases and nothing was chosen by
        looking at their targets.
    """

    alpha: float
    unit: UnitName
    n_cases: int
    cases: float | str = "random"
    delta: float | None = None
    n_groups: int | None = None
    condition: str | None = None
    shifted: bool = False
    tasks: int = 1
    ends: int = 1
    within: Within | None = None
    delta_for: DeltaFor | None = None
    strata: int | None = None
    shortage: str | None = None
    given: str | None = None

    def __post_init__(self) -> None:
        # A float of any kind, or a fraction, becomes the plain float that JSON can hold.
        object.__setattr__(self, "alpha", float(exact_alpha(self.alpha)))
        if self.delta is not None:
            object.__setattr__(self, "delta", float(exact_alpha(self.delta, "delta")))
        make_unit(self.unit, self.cases)
        if self.condition not in (None, "each stratum", "each class"):
            raise InputError(f"a promise is within each stratum or class, got {self.condition!r}")
        if self.given and self.delta is None:
            raise InputError(
                "a promise about the scans that stop early is one given the calibration set; say "
                "for how few sets it may fail, e.g. delta=0.1"
            )
        if self.given and self.whom.share is not None:
            raise InputError(
                f"a promise about the scans that stop early is about a random case, got "
                f"cases={self.cases!r}; leave cases out"
            )
        if self.ends not in (1, 2):
            raise InputError(f"an interval has 1 or 2 quantiles of its own, got ends={self.ends}")

    @property
    def whom(self) -> Unit:
        """What is exchangeable, and which of its cases are covered."""
        return make_unit(self.unit, self.cases)

    @property
    def whom_by_end(self) -> Unit:
        """Whom each end covers by itself, so that both ends together keep the promise."""
        whom = self.whom
        if whom.share is None:
            return whom
        # Ends that lose half of 1 - share of the cases each lose no more than 1 - share.
        return make_unit(self.unit, str(1 - (1 - whom.share) / self.ends))

    @property
    def levels(self) -> tuple[Fraction, Fraction | None]:
        """What each end may spend of alpha and of delta, exactly."""
        delta = None if self.delta is None else exact_alpha(self.delta, "delta") / self.ends
        return exact_alpha(self.alpha) / self.ends, delta

    @property
    def kind(self) -> str | None:
        """What the promise is conditional on, in one word: a 'stratum' or a 'class'."""
        return self.condition and self.condition.removeprefix("each ")

    @property
    def sentence(self) -> str:
        """The promise in one sentence."""
        likely = f"probability at least {float(1 - exact_alpha(self.alpha)):.10g}"
        whom = self.whom
        is_one = self.tasks == 1 and whom.share is None
        target = "the target" if is_one else "the targets"
        target = target if self.tasks == 1 else f"all {self.tasks} targets"
        subject = "the interval contains" if is_one else "the intervals contain"
        source = whom.source(self.n_cases, self.n_groups)
        assumed = "exchangeable with" if self.delta is None else "independent of and alike to"
        promise = f"{subject} {target} of {self._who} with {likely}{self._given}"
        if self.delta is not None:
            promise += f", {self._sets}"
        if self.shifted:
            promise += ", under the shift that the weights describe"
            assumed = "drawn independently of"
        return (
            f"Guaranteed: {promise}, if the new {self.unit} is {assumed} {source} and nothing was "
            "chosen by looking at their targets."
        )

    @property
    def said(self) -> str:
        """The promise, and what is short of it."""
        return self.sentence + (f" But {self.shortage}." if self.shortage else "")

    @property
    def _which(self) -> str:
        """A stratum or class, after 'each' or 'any one'; only calibrated classes are served."""
        return f"of the {self.strata} calibrated classes" if self.kind == "class" else "stratum"

    @property
    def _who(self) -> str:
        if self.within == "group":
            return f"{self.whom.part} of any one {self._which} in a new group that has some"
        return self.whom.who

    @property
    def _given(self) -> str:
        if self.given:
            return " given that its scan stops before everything is measured"
        if self.within == "group" or not self.condition:
            return ""
        if self.within is None:
            return f" within each {self._which}"
        return f" given the {self.kind} it falls in" + (
            f", one of the {self.strata} calibrated" if self.kind == "class" else ""
        )

    @property
    def _sets(self) -> str:
        """Which calibration sets keep the promise."""
        assert self.delta is not None
        sets = f"for all but {float(exact_alpha(self.delta, 'delta')):.4g} of calibration sets"
        if self.delta_for is None:
            return sets
        plural = "classes" if self.kind == "class" else "strata"
        which = f"{self.condition} by itself" if self.delta_for == "each" else (
            f"all {self.strata} {plural} at once"
        )  # fmt: skip
        return f"for {which} {sets}"

    @property
    def asked(self) -> str:
        """The error rates that were asked for, as a shortage says them."""
        shared = self.delta_for == "all" and self.kind == "stratum"
        over = f" over {self.strata} strata" if shared else ""
        extra = "" if self.delta is None else f" and delta={self.delta:g}{over}"
        ends = "" if self.ends == 1 else " with a quantile for each end"
        return f"alpha={self.alpha:g}{extra}{ends}"

    def too_few(self) -> str:
        """Say how many calibration units there are, and how many are needed."""
        have = self.n_groups if self.whom.is_group else self.n_cases
        needed = self.whom_by_end.needed(*self.levels)
        return f"{self.asked} needs at least {needed} calibration {self.unit}s, got {have}"

    def infinite(self, scores: FloatArray, where: str = "") -> str:
        """Say that too many scores are infinite for a finite quantile."""
        return (
            f"{int(np.isposinf(scores).sum())} of {len(scores)} calibration scores{where} are "
            f"infinite (as where all samples agree and are wrong), too many for {self.asked}"
        )

    def calibrated(self, scores: FloatArray, group: np.ndarray | None) -> tuple[Guarantee, float]:
        """Return the promise, with the reason where no finite interval keeps it, and the quantile.

        Arguments:
            scores: Calibration scores (case,).
            group: The group of each case, where groups are the unit.

        Example:
            >>> promise = Guarantee(alpha=0.05, unit="case", n_cases=18)
            >>> print(promise.calibrated(np.arange(18.0), None)[0].shortage)
            alpha=0.05 needs at least 19 calibration cases, got 18: the interval is the whole task
            range
        """
        quantile = self.quantile(scores, group)
        if quantile < math.inf:
            return self, quantile
        enough = self.quantile(np.zeros(len(scores)), group) < math.inf
        reason = self.infinite(scores) if enough else self.too_few()
        return replace(self, shortage=f"{reason}: {WHOLE_RANGE}"), quantile

    def quantile(self, scores: FloatArray, group: np.ndarray | None) -> float:
        """Return the quantile of calibration scores that keeps this promise, or one end's part.

        Arguments:
            scores: Calibration scores (case,), of one end where each has a quantile.
            group: The group of each case, where groups are the unit.

        Example:
            >>> Guarantee(alpha=0.1, unit="case", n_cases=9).quantile(np.arange(1.0, 10.0), None)
            9.0
        """
        return self.whom_by_end.quantile(scores, group, *self.levels)

    def allowed(self, units: int) -> float:
        """Return the weight of scores that may lie above the quantile of so many units."""
        return self.whom_by_end.allowed(units, *self.levels)

    @property
    def bets(self) -> BettingEProcess | None:
        """What has to certify losses besides, where no fixed weight allows them."""
        return self.whom_by_end.bets(*self.levels)

    def rank(self, units: int) -> int:
        """Return the rank of the quantile among the scores of so many units."""
        return guaranteed_rank(units, *self.levels)


# Strata that are named in a sentence; the others are counted.
NAMED = 5


def parse_within(within: str | None, whom: Unit, condition: str | None) -> Within | None:
    """Validate `within`."""
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
    """Take what a share delta of unlucky calibration sets is allowed for."""
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
class _Stratum:
    """Calibration cases of one stratum."""

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
            return _quantile_given_stratum(self.scores, self.index, self.sizes, *self.levels)
        return self.promise.whom_by_end.quantile(self.scores, self.group, *self.levels)

    @property
    def is_large_enough(self) -> bool:
        """Return True if the quantile would be finite if no score were infinite."""
        return math.isfinite(replace(self, scores=np.zeros(len(self.scores))).quantile())

    @property
    def needed(self) -> str:
        alpha, delta = self.levels
        if self.promise.within != "case":
            needed = self.promise.whom_by_end.needed(alpha, delta)
            return f"at least {needed} calibration {self.promise.unit}s"
        if delta is None:
            return f"cases worth at least {float(1 / alpha - 1):.4g} groups"
        return f"cases worth more of the {len(self.sizes)} groups"

    @property
    def count(self) -> str:
        if self.promise.within == "case":
            return f"{float(_effective_groups(self.index, self.sizes)):.4g}"
        return str(len(self.scores) if self.group is None else len(np.unique(self.group)))


def quantiles_within(
    promise: Guarantee, scores: FloatArray, group: np.ndarray | None, strata: np.ndarray
) -> tuple[Guarantee, dict[str, float]]:
    """Return the quantile of each stratum, and the promise with what the strata lack."""
    names = np.unique(strata)
    promise = replace(promise, strata=len(names))
    alpha, delta = promise.levels
    if promise.delta_for == "all" and promise.kind == "stratum" and delta is not None:
        delta /= len(names)
    index, sizes = group_index(np.arange(len(scores)) if group is None else group)
    parts = {
        str(name): _Stratum(
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


def _effective_groups(index: np.ndarray, sizes: np.ndarray) -> Fraction:
    """Return the effective number of groups in a stratum."""
    size_of_case, count = np.unique(sizes[index], return_counts=True)
    return sum(
        (Fraction(int(c), int(n)) for n, c in zip(size_of_case, count, strict=True)), Fraction(0)
    )


def _quantile_given_stratum(
    scores: FloatArray,
    index: np.ndarray,
    sizes: np.ndarray,
    alpha: float | Fraction,
    delta: float | Fraction | None = None,
) -> float:
    """Return the score that a random case of a new group exceeds with probability alpha, given s."""
    worth, level = _effective_groups(index, sizes), exact_alpha(alpha)
    if delta is None:
        allowed = level * (worth + 1) - 1
        return math.inf if allowed < 0 else quantile_of_mean_loss(scores, index, sizes, allowed)
    # What a group loses at every finite threshold stands above them all.
    outside = 1 - np.bincount(index, minlength=len(sizes)) / sizes
    return smallest_certified(
        np.concatenate([scores, np.full(len(sizes), math.inf)]),
        np.concatenate([index, np.arange(len(sizes))]),
        np.concatenate([1 / sizes[index], float(level) * outside]),
        BettingEProcess(alpha, delta),
    )


def _shortage(lacking: Mapping[str, _Stratum]) -> str | None:
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
