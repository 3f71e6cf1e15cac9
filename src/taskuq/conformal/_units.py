"""Exchangeable units: cases, groups, whole groups."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from taskuq.conformal._quantiles import (
    BettingEProcess,
    exact_alpha,
    guaranteed_rank,
    min_calibration_size,
    order_statistic,
    smallest_certified,
)
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray


def group_index(group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the groups 0, 1, ... and count the cases of each.

    Example:
        >>> group_index(np.array(["b", "a", "b"]))
        (array([1, 0, 1]), array([1, 2]))
    """
    _, index, sizes = np.unique(group, return_inverse=True, return_counts=True)
    return index, sizes


def _hierarchical_quantile(
    scores: FloatArray,
    group: np.ndarray,
    alpha: float | Fraction,
    delta: float | Fraction | None = None,
) -> float:
    r"""Return the score that a random case of a new group exceeds with probability at most alpha.

    With :math:`V` groups of :math:`n_v` cases, the smallest calibration score :math:`q` with

    .. math:: \frac{1 + \sum_v L_v(q)}{V + 1} \le \alpha, \qquad
        L_v(q) = \frac1{n_v} \#\{i : s_{vi} > q\}

    or infinity when :math:`\alpha (V + 1) < 1`. Groups must be exchangeable, and cases within a
    group; every group counts the same, whatever its size. With :math:`\delta` it is the smallest
    score from which on the losses are certified by :class:`~taskuq.conformal._quantiles.BettingEProcess`.

    References:
        Lee, Barber and Willett, Distribution-Free Inference with Hierarchical Data, 2023.

    Arguments:
        scores: Calibration scores (case,).
        group: The group of each case.
        alpha: The error rate.
        delta: For a promise given the calibration set.

    Example:
        >>> scores, group = np.arange(1.0, 41.0), np.repeat(np.arange(20), 2)
        >>> _hierarchical_quantile(scores, group, alpha=0.1)
        38.0
        >>> _hierarchical_quantile(scores, group, alpha=0.04)  # 20 groups are too few
        inf
    """
    index, sizes = group_index(group)
    if delta is not None:
        return smallest_certified(scores, index, 1 / sizes[index], BettingEProcess(alpha, delta))
    allowed = _allowed_total_loss(len(sizes), alpha, delta)
    return math.inf if allowed < 0 else quantile_of_mean_loss(scores, index, sizes, allowed)


def _allowed_total_loss(
    groups: int, alpha: float | Fraction, delta: float | Fraction | None
) -> Fraction:
    """Return how much loss so many groups may add up to; negative where none would do.

    With delta this is a limit only: :class:`~taskuq.conformal._quantiles.BettingEProcess` looks at each loss.
    """
    if delta is None:
        return exact_alpha(alpha) * (groups + 1) - 1
    return (
        exact_alpha(alpha) * groups
        if BettingEProcess(alpha, delta).can_certify(groups)
        else Fraction(-1)
    )


def quantile_of_mean_loss(
    scores: FloatArray, index: np.ndarray, sizes: np.ndarray, allowed: Fraction
) -> float:
    r"""Return the smallest score :math:`q` with :math:`\sum_v L_v(q) \le` ``allowed``, exactly.

    .. math:: L_v(q) = \frac1{n_v} \#\{i : s_{vi} > q\}

    Arguments:
        scores: Calibration scores (case,), of all cases of the groups or of some.
        index: The number of each case's group, from 0.
        sizes: The number :math:`n_v` of cases in each group, those without a score included.
        allowed: The largest sum of losses.

    Example:
        >>> quantile_of_mean_loss(np.array([1.0, 2, 3, 4]), np.array([0, 0, 1, 1]),
        ...                       np.array([2, 2]), Fraction(1, 2))
        3.0
    """
    # Counting in units of 1/lcm keeps the comparison free of rounding.
    common = math.lcm(*(int(n) for n in np.unique(sizes)))
    weight = np.array([common // int(n) for n in sizes], dtype=object)
    if common * len(sizes) < 2**62:
        weight = weight.astype(np.int64)
    order = np.argsort(scores, kind="stable")
    ordered = np.asarray(scores)[order]
    at_most = np.cumsum(weight[index[order]])
    # Tied scores are all at most q: read the cumulative weight at the last of them.
    last = np.searchsorted(ordered, ordered, side="right") - 1
    good = np.nonzero(at_most[-1] - at_most[last] <= math.floor(allowed * common))[0]
    return float(ordered[good[0]]) if good.size else math.inf


def _worst_scores(scores: FloatArray, group: np.ndarray, share: float | Fraction) -> FloatArray:
    r"""Return for each group the score that the given share of its cases does not exceed.

    .. math:: S_v = s_{v(k)}, \qquad k = \lceil \mathrm{share} \cdot n_v \rceil

    The conformal quantile of :math:`S_1, \dots, S_V` covers at least that share of the cases of a
    new group with probability at least :math:`1 - \alpha`; share 1 is all of them.

    References:
        Dunn, Wasserman and Ramdas, Distribution-Free Prediction Sets for Two-Layer Hierarchical
        Models, JASA 2022.

    Arguments:
        scores: Calibration scores (case,).
        group: The group of each case.
        share: The share of cases, in (0, 1].

    Example:
        >>> _worst_scores(np.array([1.0, 2, 3, 9, 4]), np.array([0, 0, 0, 1, 1]), share=0.6)
        array([2., 9.])
    """
    index, sizes = group_index(group)
    exact = Fraction(str(share))
    ordered = np.lexsort((scores, index))
    starts = np.cumsum(sizes) - sizes
    rank = np.array([math.ceil(exact * int(n)) for n in sizes])
    return np.asarray(np.asarray(scores)[ordered[starts + rank - 1]])


UnitName: TypeAlias = Literal["case", "group"]
PolicyUnitName: TypeAlias = Literal["case", "group", "whole-group"]
# An error rate: as it was written, or an exact part of one.
Level: TypeAlias = float | Fraction
NO_GROUPS = "unit={unit!r} needs the group of each case; pass group="


class _ScoreEntries(NamedTuple):
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

    def entries(self, scores: FloatArray, index: NDArray[np.int64]) -> _ScoreEntries:
        """Return the scores among which the quantile is sought: of cases, or one of each group."""
        if self.share is None:
            return _ScoreEntries(scores, index, self.weights(index))
        worst = _worst_scores(scores, index, self.share)
        return _ScoreEntries(worst, np.arange(len(worst)), np.ones(len(worst)))

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

    def bets(self, alpha: Level, delta: Level | None) -> BettingEProcess | None:
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
            return min_calibration_size(alpha)
        a, d = float(exact_alpha(alpha)), float(exact_alpha(delta, "delta"))
        units = max(1, math.floor(math.log(d) / math.log(1 - a)))
        while self.allowed(units, alpha, delta) < 0:
            units += 1
        return units


class _RankedUnit(Unit):
    """A unit with one score each: the quantile is a rank among them."""

    def allowed(self, units: int, alpha: Level, delta: Level | None) -> float:
        """Return how many units may score above the quantile."""
        return float(units - guaranteed_rank(units, alpha, delta))

    def quantile(
        self, scores: FloatArray, group: np.ndarray | None, alpha: Level, delta: Level | None
    ) -> float:
        """Return the score of the promised rank."""
        each = self.entries(scores, self.index(len(scores), group)).scores
        return order_statistic(each, guaranteed_rank(len(each), alpha, delta))


@final
@dataclass(frozen=True)
class CaseUnit(_RankedUnit):
    """Cases are exchangeable, and a new one is covered.

    Example:
        >>> CaseUnit().quantile(np.arange(1.0, 10.0), None, alpha=0.1, delta=None)
        9.0
    """

    is_group: ClassVar[bool] = False
    part: ClassVar[str] = "a new case"
    share: ClassVar[None] = None

    cases: float | str = field(default="random", init=False)
    stops_together: bool = field(default=False, init=False)


@final
@dataclass(frozen=True)
class RandomCaseUnit(Unit):
    """Groups are exchangeable, and a random case of a new one is covered.

    Example:
        >>> unit = RandomCaseUnit()
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
        return float(_allowed_total_loss(units, alpha, delta))

    def bets(self, alpha: Level, delta: Level | None) -> BettingEProcess | None:
        """Return what certifies the losses of groups, one by one, given the calibration set."""
        return None if delta is None else BettingEProcess(alpha, delta)

    def quantile(
        self, scores: FloatArray, group: np.ndarray | None, alpha: Level, delta: Level | None
    ) -> float:
        """Return the smallest score above which the groups lose no more than is allowed."""
        assert group is not None
        return _hierarchical_quantile(scores, group, alpha, delta)


@final
@dataclass(frozen=True)
class _GroupFractionUnit(_RankedUnit):
    """Groups are exchangeable, and all cases of a new one, or a share of them, are covered.

    Arguments:
        cases: 'all', or a share in (0, 1].
        stops_together: Whether a policy makes one decision for the group.

    Example:
        >>> unit = _GroupFractionUnit(0.9)
        >>> unit.who
        'at least 0.9 of the cases of a new group'
        >>> unit.entries(np.array([1.0, 3.0, 2.0]), np.array([0, 0, 1])).scores
        array([3., 2.])
    """

    is_group: ClassVar[bool] = True

    cases: float | str
    stops_together: bool = False

    def __post_init__(self) -> None:
        _exact_share(self.cases)

    @property
    def share(self) -> Fraction:
        """The share of a group's cases that are covered at once."""
        return _exact_share(self.cases)

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
    if make_unit(name, whole=whole).is_group and not has_groups:
        raise InputError(missing.format(unit=name))
    return make_unit(name, cases, whole=whole)


def make_unit(name: str, cases: float | str = "random", *, whole: bool = False) -> Unit:
    """Return the unit that a name and a word about cases stand for.

    Arguments:
        name: 'case', 'group', and for policies 'whole-group'.
        cases: With groups: 'random', 'all', or a share.
        whole: Whether a 'whole-group' is acceptable.

    Example:
        >>> make_unit("group").who
        'a random case of a new group'
    """
    if name == "case":
        if cases != "random":
            raise InputError(
                f"cases={cases!r} is about the cases of a new group, but the unit is one case; "
                "give groups and unit='group', or leave cases out"
            )
        return CaseUnit()
    if name != "group" and not (whole and name == "whole-group"):
        known = "'case', 'group' or 'whole-group'" if whole else "'case' or 'group'"
        raise InputError(f"unit must be {known}, got {name!r}")
    together = name == "whole-group"
    return RandomCaseUnit(together) if cases == "random" else _GroupFractionUnit(cases, together)


def _exact_share(cases: float | str) -> Fraction:
    """Read which cases of a new group are to be covered: a share, or 'all'.

    Example:
        >>> _exact_share("all"), _exact_share(0.9)
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


def choose_units(index: NDArray[np.int64], take: int, rng: np.random.Generator | None) -> BoolArray:
    """Return which cases are set aside with so many of the units, at random or at even steps.

    Arguments:
        index: The unit of each case, numbered from 0.
        take: The number of units to take.
        rng: Picks at random; without it units are taken at even steps.

    Example:
        >>> choose_units(np.arange(10), 3, None)
        array([False,  True, False, False, False,  True, False, False,  True, False])
    """
    units = int(index.max()) + 1
    if rng is not None:
        return np.isin(index, rng.permutation(units)[:take])
    steps = np.floor((np.arange(take) + 0.5) * units / max(take, 1)).astype(np.int64)
    return np.isin(index, steps)


def choose_fraction(index: NDArray[np.int64], share: float) -> BoolArray:
    """Return which cases belong to a share of the units, taken at even steps.

    Arguments:
        index: The unit of each case, numbered from 0.
        share: The share of units, in (0, 1); at least one is taken and one is left.

    Example:
        >>> choose_fraction(np.array([0, 0, 0, 1, 2, 3]), 0.5)
        array([False, False, False,  True, False,  True])
    """
    units = int(index.max()) + 1
    take = round(share * units) if 0 < share < 1 else 0
    if not 0 < take < units:
        raise InputError(
            f"a share must lie in (0, 1) and take some of {units} units but not all, got {share}"
        )
    return choose_units(index, take, None)
