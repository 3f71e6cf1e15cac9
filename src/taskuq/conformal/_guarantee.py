"""Finite-sample guarantees, overall and within classes and strata."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from taskuq.conformal._quantiles import (
    BettingEProcess,
    bound_text,
    exact_alpha,
    guaranteed_rank,
    smallest_certified,
)
from taskuq.conformal._units import (
    Level,
    Unit,
    UnitName,
    group_index,
    make_unit,
    quantile_of_mean_loss,
)
from taskuq.errors import InputError
from taskuq.interval import FloatArray

ConditionOn: TypeAlias = Literal["case", "group"]
DeltaScope: TypeAlias = Literal["each", "all"]
WHOLE_RANGE = "the interval is the whole task range"
# Names of fields in stored files, where they differ.
STORED = {
    "weighted": "shifted",
    "quantiles_per_interval": "ends",
    "condition_on": "within",
    "delta_scope": "delta_for",
    "caveat": "shortage",
}


@dataclass(frozen=True)
class Guarantee:
    """Finite-sample guarantee: its unit, error rates and conditions.

    Args:
        alpha: Error rate in (0, 1).
        unit: Exchangeable unit, 'case', 'group' or 'site'.
        n_cases: Number of calibration cases.
        cases: Covered cases of a new group: 'random' for one random case, 'all', or a fraction.
        delta: Largest probability, over calibration sets, of a coverage below 1 - alpha.
        n_groups: Number of calibration groups or sites, if these are the units.
        condition: 'each stratum' or 'each class' if the guarantee holds within each of them.
        weighted: True if calibration scores are weighted for a known shift of the inputs.
        tasks: Number of tasks whose targets are covered jointly.
        quantiles_per_interval: 2 if each end has its own quantile at half the error rate.
        condition_on: 'case' or 'group', as in :func:`taskuq.calibrate`.
        delta_scope: 'each' if delta holds for each stratum separately, 'all' if for all jointly.
        strata: Number of calibrated strata or classes.
        caveat: Reason why some or all intervals are infinite.
        given: 'early' for a guarantee among the scans that stop early, 'round' for a guarantee
            among those that stop in each round.

    Example:
        >>> print(Guarantee(alpha=0.05, unit="case", n_cases=1531).statement)
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
    weighted: bool = False
    tasks: int = 1
    quantiles_per_interval: int = 1
    condition_on: ConditionOn | None = None
    delta_scope: DeltaScope | None = None
    strata: int | None = None
    caveat: str | None = None
    given: str | None = None

    def __post_init__(self) -> None:
        # A float of any kind, or a fraction, becomes the plain float that JSON can hold.
        object.__setattr__(self, "alpha", float(exact_alpha(self.alpha)))
        if self.delta is not None:
            object.__setattr__(self, "delta", float(exact_alpha(self.delta, "delta")))
        if self.condition not in (None, "each stratum", "each class"):
            message = f"condition must be 'each stratum' or 'each class', got {self.condition!r}"
            raise InputError(message, code="choice.unknown")
        if self.given and self.delta is None:
            message = f"given={self.given!r} needs delta; pass e.g. delta=0.1"
            raise InputError(message, code="option.missing")
        if self.given and self._unit.fraction is not None:
            message = f"given={self.given!r} needs cases='random', got {self.cases!r}"
            raise InputError(message, code="option.conflict")
        if self.unit == "site" and (self.delta is not None or self.condition):
            message = "unit='site' excludes delta, label and strata; remove them or use 'group'"
            raise InputError(message, code="option.conflict")
        if self.quantiles_per_interval not in (1, 2):
            message = f"quantiles_per_interval must be 1 or 2, got {self.quantiles_per_interval}"
            raise InputError(message, code="value.invalid")

    @cached_property
    def _unit(self) -> Unit:
        return make_unit(self.unit, self.cases)

    @cached_property
    def _unit_per_quantile(self) -> Unit:
        """Unit for the quantile of one end, such that both ends together have the guarantee."""
        fraction = self._unit.fraction
        if fraction is None or self.quantiles_per_interval == 1:
            return self._unit
        # Ends that lose half of 1 - fraction of the cases each lose no more than 1 - fraction.
        return make_unit(self.unit, str(1 - (1 - fraction) / self.quantiles_per_interval))

    @cached_property
    def levels(self) -> tuple[Fraction, Fraction | None]:
        """Alpha and delta for the quantile of one end, as exact fractions."""
        ends = self.quantiles_per_interval
        delta = None if self.delta is None else exact_alpha(self.delta, "delta") / ends
        return exact_alpha(self.alpha) / ends, delta

    @property
    def kind(self) -> str | None:
        """'stratum' or 'class' if the guarantee holds within each stratum or class, else None."""
        return self.condition and self.condition.removeprefix("each ")

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return {STORED.get(f.name, f.name): getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Guarantee:
        """Return the guarantee stored as JSON values by :meth:`to_dict`."""
        names = {stored: name for name, stored in STORED.items()}
        return cls(**{names.get(key, key): value for key, value in record.items()})

    @property
    def statement(self) -> str:
        """Guarantee in one sentence."""
        likely = f"probability at least {bound_text(1 - exact_alpha(self.alpha), 10)}"
        unit = self._unit
        is_one = self.tasks == 1 and unit.fraction is None
        target = "the target" if is_one else "the targets"
        target = target if self.tasks == 1 else f"all {self.tasks} targets"
        subject = "the interval contains" if is_one else "the intervals contain"
        assumed = "exchangeable with" if self.delta is None else "i.i.d. with"
        covered = unit.covered
        if self.condition_on == "group":
            covered = f"{unit.part} of any one {self._strata_text} in a new group with such cases"
        statement = f"{subject} {target} of {covered} with {likely}{self._condition_text}"
        if self.delta is not None:
            statement += f", {self._delta_text(self.delta)}"
        if self.weighted:
            statement += ", under the shift that the weights describe"
            assumed = "drawn independently of"
        return (
            f"Guaranteed: {statement}, if the new {self.unit} is {assumed} "
            f"{unit.source(self.n_cases, self.n_groups)} and nothing was chosen by looking at "
            "their targets."
        )

    def __str__(self) -> str:
        return self.statement + (f" But {self.caveat}." if self.caveat else "")

    @property
    def _strata_text(self) -> str:
        return f"of the {self.strata} calibrated classes" if self.kind == "class" else "stratum"

    @property
    def _condition_text(self) -> str:
        if self.given == "round":
            return " given the round in which its scan stops, whichever it is"
        if self.given:
            return " given that its scan stops before everything is measured"
        if self.condition_on == "group" or not self.condition:
            return ""
        if self.condition_on is None:
            return f" within each {self._strata_text}"
        known = f", one of the {self.strata} calibrated" if self.kind == "class" else ""
        return f" given the {self.kind} it falls in{known}"

    def _delta_text(self, delta: float) -> str:
        fraction = bound_text(exact_alpha(delta, "delta"), 4, is_upper=True)
        sets = f"for all but a fraction {fraction} of calibration sets"
        if self.delta_scope is None:
            return sets
        if self.delta_scope == "each":
            return f"for {self.condition} by itself {sets}"
        plural = "classes" if self.kind == "class" else "strata"
        return f"for all {self.strata} {plural} at once {sets}"

    @property
    def _levels_text(self) -> str:
        is_divided = self.delta_scope == "all" and self.kind == "stratum"
        over = f" over {self.strata} strata" if is_divided else ""
        extra = "" if self.delta is None else f" and delta={self.delta:g}{over}"
        ends = "" if self.quantiles_per_interval == 1 else " with a quantile for each end"
        return f"alpha={self.alpha:g}{extra}{ends}"

    def _too_few_units(self) -> str:
        have = self.n_groups if self._unit.is_group else self.n_cases
        needed = self._unit_per_quantile.needed(*self.levels)
        return f"{self._levels_text} needs at least {needed} calibration {self.unit}s, got {have}"

    def _infinite_scores(self, scores: FloatArray, where: str = "") -> str:
        return (
            f"{int(np.isposinf(scores).sum())} of {len(scores)} calibration scores{where} are "
            f"infinite (e.g. if all samples agree and are wrong), too many for {self._levels_text}"
        )

    def calibrated(self, scores: FloatArray, group: np.ndarray | None) -> tuple[Guarantee, float]:
        """Return the guarantee, with a caveat if the quantile is infinite, and the quantile."""
        quantile = self.quantile(scores, group)
        if quantile < math.inf:
            return self, quantile
        enough = self.quantile(np.zeros(len(scores)), group) < math.inf
        reason = self._infinite_scores(scores) if enough else self._too_few_units()
        return replace(self, caveat=f"{reason}: {WHOLE_RANGE}"), quantile

    def quantile(self, scores: FloatArray, group: np.ndarray | None) -> float:
        """Return the conformal quantile of scores (case,), which for side 'each' are of one end."""
        return self._unit_per_quantile.quantile(scores, group, *self.levels)

    def allowed(self, units: int) -> float:
        """Return the largest allowed total weight of the calibration scores above the quantile."""
        return self._unit_per_quantile.allowed(units, *self.levels)

    @property
    def bets(self) -> BettingEProcess | None:
        """E-process that certifies the losses of groups; None if it is not needed."""
        return self._unit_per_quantile.bets(*self.levels)

    def rank(self, units: int) -> int:
        return guaranteed_rank(units, *self.levels)

    @property
    def stratum_levels(self) -> tuple[Fraction, Fraction | None]:
        """Alpha and delta that apply to each single stratum or class."""
        alpha, delta = self.levels
        if delta is not None and self.delta_scope == "all" and self.kind == "stratum":
            delta /= self.strata or 1
        return alpha, delta

    def stratum(self, scores: FloatArray, group: np.ndarray | None, inside: np.ndarray) -> Stratum:
        """Return the calibration cases of the stratum selected by the mask ``inside``."""
        index, sizes = group_index(np.arange(len(scores)) if group is None else group)
        by = None if group is None else group[inside]
        return Stratum(self, self.stratum_levels, scores[inside], by, index[inside], sizes)


# Strata named in a caveat; the others are counted.
NAMED = 5


def parse_condition_on(
    condition_on: str | None, unit: Unit, condition: str | None
) -> ConditionOn | None:
    """Return the checked option, 'case' or 'group'; None if no groups or no classes are used."""
    if condition_on not in (None, "case", "group"):
        message = f"condition_on must be 'case' or 'group', got {condition_on!r}"
        raise InputError(message, code="choice.unknown")
    if condition is None or not unit.is_group:
        if condition_on is not None:
            message = f"condition_on={condition_on!r} needs groups, and strata or labels"
            raise InputError(message, code="option.unused")
        return None
    if unit.fraction is None:
        default = "group" if unit.stops_together else "case"
        return "group" if (condition_on or default) == "group" else "case"
    if condition_on == "case":
        message = f"condition_on='case' needs cases='random', got {unit.cases!r}"
        raise InputError(message, code="option.conflict")
    return "group"


def parse_delta_scope(
    scope: str | None, delta: float | None, condition: str | None
) -> DeltaScope | None:
    """Return 'each' or 'all'; None without delta, or if there are neither strata nor classes."""
    if scope not in (None, "each", "all"):
        message = f"delta_scope must be 'each' or 'all', got {scope!r}"
        raise InputError(message, code="choice.unknown")
    if condition is None or delta is None:
        if scope is not None:
            message = f"delta_scope={scope!r} needs delta and strata; pass them or remove it"
            raise InputError(message, code="option.unused")
        return None
    return "all" if scope == "all" or condition == "class" else "each"


@dataclass(frozen=True)
class Stratum:
    guarantee: Guarantee
    # Alpha and delta of the stratum.
    levels: tuple[Fraction, Fraction | None]
    scores: FloatArray
    group: np.ndarray | None
    # The number of each case's group among all groups, and the sizes of those.
    index: np.ndarray
    sizes: np.ndarray

    def quantile(self) -> float:
        if self.guarantee.condition_on == "case":
            return _quantile_given_stratum(self.scores, self.index, self.sizes, *self.levels)
        return self.guarantee._unit_per_quantile.quantile(self.scores, self.group, *self.levels)

    @property
    def is_large_enough(self) -> bool:
        return math.isfinite(replace(self, scores=np.zeros(len(self.scores))).quantile())

    @property
    def needed(self) -> str:
        alpha, delta = self.levels
        if self.guarantee.condition_on != "case":
            needed = self.guarantee._unit_per_quantile.needed(alpha, delta)
            return f"at least {needed} calibration {self.guarantee.unit}s"
        if delta is None:
            return f"cases worth at least {float(1 / alpha - 1):.4g} groups"
        return "cases worth more groups"

    @property
    def count(self) -> str:
        if self.guarantee.condition_on == "case":
            return f"{float(_effective_groups(self.index, self.sizes)):.4g}"
        return str(len(self.scores) if self.group is None else len(np.unique(self.group)))


def quantiles_within(
    guarantee: Guarantee, scores: FloatArray, group: np.ndarray | None, strata: np.ndarray
) -> tuple[Guarantee, dict[str, float]]:
    """Return the guarantee with its caveat, and the quantile of each stratum by name."""
    names = np.unique(strata)
    guarantee = replace(guarantee, strata=len(names))
    by_name = {str(name): guarantee.stratum(scores, group, strata == name) for name in names}
    quantiles = {name: part.quantile() for name, part in by_name.items()}
    lacking = {name: by_name[name] for name, q in quantiles.items() if q == math.inf}
    return replace(guarantee, caveat=_caveat(lacking)), quantiles


def _effective_groups(index: np.ndarray, sizes: np.ndarray) -> Fraction:
    size_of_case, count = np.unique(sizes[index], return_counts=True)
    pairs = zip(count.tolist(), size_of_case.tolist(), strict=True)
    return sum((Fraction(*pair) for pair in pairs), Fraction(0))


def _quantile_given_stratum(
    scores: FloatArray, index: np.ndarray, sizes: np.ndarray, alpha: Level, delta: Level | None
) -> float:
    """Return the score that a random case of the stratum exceeds with probability <= alpha."""
    effective, level = _effective_groups(index, sizes), exact_alpha(alpha)
    if delta is None:
        allowed = level * (effective + 1) - 1
        return math.inf if allowed < 0 else quantile_of_mean_loss(scores, sizes[index], allowed)
    # What a group loses at every finite threshold stands above them all.
    outside = 1 - np.bincount(index, minlength=len(sizes)) / sizes
    return smallest_certified(
        np.concatenate([scores, np.full(len(sizes), math.inf)]),
        np.concatenate([index, np.arange(len(sizes))]),
        np.concatenate([1 / sizes[index], float(level) * outside]),
        BettingEProcess(alpha, delta),
    )


def too_few_within(guarantee: Guarantee, group: np.ndarray | None, strata: np.ndarray) -> str:
    """Return a message that names the strata with too few units; empty if there are none."""
    zeros = np.zeros(len(strata))
    parts = {str(s): guarantee.stratum(zeros, group, strata == s) for s in np.unique(strata)}
    few = {name: part for name, part in parts.items() if not part.is_large_enough}
    return _too_few_within(few) if few else ""


def _too_few_within(few: Mapping[str, Stratum]) -> str:
    first = next(iter(few.values()))
    counts = _listing([f"{part.count} in {name}" for name, part in few.items()])
    levels, condition = first.guarantee._levels_text, first.guarantee.condition
    return f"{levels} needs {first.needed} in {condition}, got {counts}"


def _caveat(lacking: Mapping[str, Stratum]) -> str | None:
    if not lacking:
        return None
    guarantee = next(iter(lacking.values())).guarantee
    few = {name: part for name, part in lacking.items() if not part.is_large_enough}
    reasons = [_too_few_within(few)] if few else []
    for name in [name for name in lacking if name not in few]:
        scores = lacking[name].scores
        reasons.append(guarantee._infinite_scores(scores, f" in {guarantee.kind} {name}"))
    # The largest quantile serves all classes, so what one of them lacks all of them lack.
    where = "" if guarantee.kind == "class" else f" in {_listing(lacking)}"
    return f"{_listing(reasons, '; ')}: {WHOLE_RANGE}{where}"


def _listing(words: Iterable[str], between: str = ", ") -> str:
    named = list(words)
    more = len(named) - NAMED
    return between.join(named[:NAMED]) + (f" and {more} more" if more > 0 else "")
