"""Units: what is exchangeable, how it is counted, and which of its cases a promise covers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from taskuq.calibration.betting import Bets
from taskuq.calibration.groups import (
    group_index,
    hierarchical_quantile,
    mean_loss_allowed,
    worst_scores,
)
from taskuq.calibration.rank import cases_needed, exact_level, order_statistic, promised_rank
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray

UnitName: TypeAlias = Literal["case", "group"]
PolicyUnitName: TypeAlias = Literal["case", "group", "whole-group"]
# An error rate: as it was written, or an exact part of one.
Level: TypeAlias = float | Fraction
NO_GROUPS = "unit={unit!r} needs the group of each case; pass group="


class Entries(NamedTuple):
    """The scores among which a quantile is sought, the unit of each, and what each weighs."""

    scores: FloatArray
    unit: NDArray[np.int64]
    weight: FloatArray


class Unit(ABC):
    """What is exchangeable, and which of its cases a promise covers.

    Below, ``group`` is the group of each case, or None where cases come in no groups; ``index`` is
    the unit of each case, numbered from 0; ``alpha`` and ``delta`` are those of the promise.
    """

    is_group: ClassVar[bool]
    # Which cases of a new group are covered, as the user said it.
    cases: float | str
    # Whether a policy makes one decision for all cases of a group.
    stops_together: bool

    @property
    def name(self) -> PolicyUnitName:
        """What users call it."""
        return "whole-group" if self.stops_together else self.counted

    @property
    def counted(self) -> UnitName:
        """What is exchangeable and counted: the ``unit`` of a guarantee."""
        return "group" if self.is_group else "case"

    @property
    def record(self) -> dict[str, Any]:
        """What a guarantee says about its unit."""
        return {"unit": self.counted, "cases": self.cases}

    @property
    @abstractmethod
    def part(self) -> str:
        """Which cases are covered, in a sentence."""

    @property
    def who(self) -> str:
        """Whose targets are covered, in a sentence."""
        return f"{self.part} of a new group" if self.is_group else self.part

    @property
    def mean_over(self) -> str:
        """What is drawn at random where something is averaged, in a sentence."""
        if self.stops_together:
            return "a new group"
        return "a random case of a new group" if self.is_group else "a new case"

    @property
    @abstractmethod
    def share(self) -> Fraction | None:
        """The share of a group's cases that are covered at once, or None where it is one case."""

    def source(self, n_cases: int, n_groups: int | None) -> str:
        """Return what a promise rests on, in a sentence."""
        if self.is_group:
            return f"the {n_groups} calibration groups ({n_cases} cases)"
        return f"the {n_cases} calibration cases"

    def groups(self, group: np.ndarray | None) -> np.ndarray | None:
        """Return what cases are counted, split and set aside by: their groups, or None."""
        return group if self.is_group else None

    def index(self, cases: int, group: np.ndarray | None) -> NDArray[np.int64]:
        """Number the unit of each of so many cases."""
        return unit_index(cases, self.groups(group))

    def weights(self, index: NDArray[np.int64]) -> FloatArray:
        """Return what each case weighs in a mean over units: every group counts the same."""
        return 1 / np.bincount(index)[index] if self.is_group else np.ones(len(index))

    def entries(self, scores: FloatArray, index: NDArray[np.int64]) -> Entries:
        """Return the scores among which the quantile is sought: of cases, or one of each group."""
        if self.share is None:
            return Entries(scores, index, self.weights(index))
        worst = worst_scores(scores, index, self.share)
        return Entries(worst, np.arange(len(worst)), np.ones(len(worst)))

    def loss(self, missed: NDArray[np.int64], cases: NDArray[np.int64]) -> FloatArray:
        """Return the loss of units with so many of their cases missed, from 0 to 1."""
        if self.share is None:
            return np.asarray(missed / cases)
        return np.asarray(cases - missed < self.enough(cases), dtype=float)

    def enough(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many covered cases keep the promise to groups; none where it is one case."""
        if self.share is None:
            return np.empty(0, dtype=np.int64)
        return np.asarray(-(-self.share.numerator * sizes // self.share.denominator))

    @abstractmethod
    def allowed(self, units: int, alpha: Level, delta: Level | None) -> float:
        """Return the weight that may lie above the quantile of so many calibration units.

        It is negative where no finite quantile keeps the promise.
        """

    def bets(self, alpha: Level, delta: Level | None) -> Bets | None:
        """Return what has to certify the losses besides, where no fixed weight allows them."""
        return None

    @abstractmethod
    def quantile(
        self, scores: FloatArray, group: np.ndarray | None, alpha: Level, delta: Level | None
    ) -> float:
        """Return the quantile of calibration scores that keeps the promise."""

    def needed(self, alpha: Level, delta: Level | None) -> int:
        """Return how many calibration units a finite quantile needs."""
        if delta is None:
            return cases_needed(alpha)
        a, d = float(exact_level(alpha)), float(exact_level(delta, "delta"))
        units = max(1, math.floor(math.log(d) / math.log(1 - a)))
        while self.allowed(units, alpha, delta) < 0:
            units += 1
        return units


class RankedUnit(Unit):
    """A unit with one score each: the quantile is a rank among them."""

    def allowed(self, units: int, alpha: Level, delta: Level | None) -> float:
        """Return how many units may score above the quantile."""
        return float(units - promised_rank(units, alpha, delta))

    def quantile(
        self, scores: FloatArray, group: np.ndarray | None, alpha: Level, delta: Level | None
    ) -> float:
        """Return the score of the promised rank."""
        each = self.entries(scores, self.index(len(scores), group)).scores
        return order_statistic(each, promised_rank(len(each), alpha, delta))


@final
@dataclass(frozen=True)
class NewCase(RankedUnit):
    """Cases are exchangeable, and a new one is covered.

    Example:
        >>> NewCase().quantile(np.arange(1.0, 10.0), None, alpha=0.1, delta=None)
        9.0
    """

    is_group: ClassVar[bool] = False
    part: ClassVar[str] = "a new case"
    share: ClassVar[None] = None

    cases: float | str = field(default="random", init=False)
    stops_together: bool = field(default=False, init=False)


@final
@dataclass(frozen=True)
class RandomCase(Unit):
    """Groups are exchangeable, and a random case of a new one is covered.

    Example:
        >>> unit = RandomCase()
        >>> unit.entries(np.array([1.0, 3.0, 2.0]), np.array([0, 0, 1])).weight
        array([0.5, 0.5, 1. ])
        >>> unit.allowed(29, alpha=0.1, delta=None)  # of 29 groups
        2.0
    """

    is_group: ClassVar[bool] = True
    part: ClassVar[str] = "a random case"
    share: ClassVar[None] = None

    cases: float | str = field(default="random", init=False)
    stops_together: bool = False

    def allowed(self, units: int, alpha: Level, delta: Level | None) -> float:
        """Return how much loss so many groups may add up to; with delta a limit, see ``bets``."""
        return float(mean_loss_allowed(units, alpha, delta))

    def bets(self, alpha: Level, delta: Level | None) -> Bets | None:
        """Return what certifies the losses of groups, one by one, given the calibration set."""
        return None if delta is None else Bets(alpha, delta)

    def quantile(
        self, scores: FloatArray, group: np.ndarray | None, alpha: Level, delta: Level | None
    ) -> float:
        """Return the smallest score above which the groups lose no more than is allowed."""
        assert group is not None
        return hierarchical_quantile(scores, group, alpha, delta)


@final
@dataclass(frozen=True)
class ShareOfCases(RankedUnit):
    """Groups are exchangeable, and all cases of a new one, or a share of them, are covered.

    Arguments:
        cases: 'all', or a share in (0, 1].
        stops_together: Whether a policy makes one decision for the group.

    Example:
        >>> unit = ShareOfCases(0.9)
        >>> unit.who
        'at least 0.9 of the cases of a new group'
        >>> unit.entries(np.array([1.0, 3.0, 2.0]), np.array([0, 0, 1])).scores
        array([3., 2.])
    """

    is_group: ClassVar[bool] = True

    cases: float | str
    stops_together: bool = False

    def __post_init__(self) -> None:
        exact_share(self.cases)

    @property
    def share(self) -> Fraction:
        """The share of a group's cases that are covered at once."""
        return exact_share(self.cases)

    @property
    def part(self) -> str:
        """Which cases of a group are covered."""
        return "every case" if self.share == 1 else f"at least {float(self.share):.4g} of the cases"


def as_unit(
    unit: str | None,
    cases: float | str = "random",
    *,
    has_groups: bool,
    whole: bool = False,
    missing: str = NO_GROUPS,
) -> Unit:
    """Take what a user calls a unit; where groups are given, they are the default.

    Arguments:
        unit: 'case', 'group', and for policies 'whole-group'.
        cases: With groups: a 'random' case of a new group is covered, 'all', or a share.
        has_groups: Whether the group of each case is known.
        whole: Whether a 'whole-group' is acceptable.
        missing: What to say where groups are asked for and not given.

    Example:
        >>> as_unit(None, "all", has_groups=True).who
        'every case of a new group'
        >>> as_unit("group", has_groups=False)
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: unit='group' needs the group of each case; pass group=
    """
    name = unit or ("group" if has_groups else "case")
    if unit_named(name, whole=whole).is_group and not has_groups:
        raise InputError(missing.format(unit=name))
    return unit_named(name, cases, whole=whole)


def unit_named(name: str, cases: float | str = "random", *, whole: bool = False) -> Unit:
    """Return the unit that a name and a word about cases stand for.

    Arguments:
        name: 'case', 'group', and for policies 'whole-group'.
        cases: With groups: 'random', 'all', or a share.
        whole: Whether a 'whole-group' is acceptable.

    Example:
        >>> unit_named("group").who
        'a random case of a new group'
    """
    if name == "case":
        if cases != "random":
            raise InputError(
                f"cases={cases!r} is about the cases of a new group, but the unit is one case; "
                "give groups and unit='group', or leave cases out"
            )
        return NewCase()
    if name != "group" and not (whole and name == "whole-group"):
        known = "'case', 'group' or 'whole-group'" if whole else "'case' or 'group'"
        raise InputError(f"unit must be {known}, got {name!r}")
    together = name == "whole-group"
    return RandomCase(together) if cases == "random" else ShareOfCases(cases, together)


def exact_share(cases: float | str) -> Fraction:
    """Read which cases of a new group are to be covered: a share, or 'all'.

    Example:
        >>> exact_share("all"), exact_share(0.9)
        (Fraction(1, 1), Fraction(9, 10))
    """
    try:
        share = Fraction(1) if cases == "all" else Fraction(str(cases))
    except ValueError:
        share = Fraction(0)
    if not 0 < share <= 1:
        raise InputError(f"cases must be 'random', 'all' or a share in (0, 1], got {cases!r}")
    return share


def unit_index(cases: int, group: np.ndarray | None) -> NDArray[np.int64]:
    """Number the units of so many cases from 0: the groups, or the cases themselves.

    Example:
        >>> unit_index(3, np.array(["b", "a", "b"]))
        array([1, 0, 1])
    """
    return np.arange(cases) if group is None else group_index(group)[0]


def take_units(index: NDArray[np.int64], take: int, rng: np.random.Generator | None) -> BoolArray:
    """Return which cases are set aside with so many of the units, at random or at even steps.

    Arguments:
        index: The unit of each case, numbered from 0.
        take: The number of units to take.
        rng: Picks at random; without it units are taken at even steps.

    Example:
        >>> take_units(np.arange(10), 3, None)
        array([False,  True, False, False, False,  True, False, False,  True, False])
    """
    units = int(index.max()) + 1
    if rng is not None:
        return np.isin(index, rng.permutation(units)[:take])
    steps = np.floor((np.arange(take) + 0.5) * units / max(take, 1)).astype(np.int64)
    return np.isin(index, steps)


def take_share(index: NDArray[np.int64], share: float) -> BoolArray:
    """Return which cases belong to a share of the units, taken at even steps.

    Arguments:
        index: The unit of each case, numbered from 0.
        share: The share of units, in (0, 1); at least one is taken and one is left.

    Example:
        >>> take_share(np.array([0, 0, 0, 1, 2, 3]), 0.5)
        array([False, False, False,  True, False,  True])
    """
    units = int(index.max()) + 1
    take = round(share * units) if 0 < share < 1 else 0
    if not 0 < take < units:
        raise InputError(
            f"a share must lie in (0, 1) and take some of {units} units but not all, got {share}"
        )
    return take_units(index, take, None)
