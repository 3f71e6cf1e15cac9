"""Exchangeable units of a guarantee: cases, groups, whole groups and sites."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taskuq.conformal import _quantiles
from taskuq.conformal._quantiles import (
    BettingEProcess,
    exact_alpha,
    guaranteed_rank,
    min_calibration_size,
    order_statistic,
    smallest_certified,
)
from taskuq.errors import GuaranteeWarning, InputError
from taskuq.interval import BoolArray, FloatArray
from taskuq.table._table import TaskOutputs

UnitName: TypeAlias = Literal["case", "group", "site"]
PolicyUnitName: TypeAlias = Literal["case", "group", "whole-group", "site"]
# An error rate: as it was written, or an exact part of one.
Level: TypeAlias = float | Fraction
Delta: TypeAlias = float | Fraction | None
Groups: TypeAlias = np.ndarray | None


def group_index(group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    _, index, sizes = np.unique(group, return_inverse=True, return_counts=True)
    return index, sizes


def _hierarchical_quantile(
    scores: FloatArray, group: np.ndarray, alpha: Level, delta: Level | None = None
) -> float:
    """Return the score that a random case of a new group exceeds with probability <= alpha."""
    index, sizes = group_index(group)
    if delta is not None:
        return smallest_certified(scores, index, 1 / sizes[index], BettingEProcess(alpha, delta))
    allowed = _allowed_total_loss(len(sizes), alpha, delta)
    return math.inf if allowed < 0 else quantile_of_mean_loss(scores, sizes[index], allowed)


def _allowed_total_loss(groups: int, alpha: Level, delta: Level | None) -> Fraction:
    if delta is None:
        return exact_alpha(alpha) * (groups + 1) - 1
    can_certify = BettingEProcess(alpha, delta).can_certify(groups)
    return exact_alpha(alpha) * groups if can_certify else Fraction(-1)


def quantile_of_mean_loss(
    scores: FloatArray, denominator: NDArray[np.int64], allowed: Fraction
) -> float:
    r"""Return the smallest score :math:`q` with :math:`\sum_v L_v(q) \le` ``allowed``, exactly.

    :math:`L_v(q)` is the sum of 1 / ``denominator`` over the cases of unit v with scores above q.
    """
    # Counting in units of 1/lcm keeps the comparison free of rounding.
    common = math.lcm(*(int(n) for n in np.unique(denominator)))
    weight = np.array([common // int(n) for n in denominator], dtype=object)
    if common * len(denominator) < 2**62:
        weight = weight.astype(np.int64)
    order = np.argsort(scores, kind="stable")
    ordered = np.asarray(scores)[order]
    at_most = np.cumsum(weight[order])
    # Tied scores are all at most q: read the cumulative weight at the last of them.
    last = np.searchsorted(ordered, ordered, side="right") - 1
    good = np.nonzero(at_most[-1] - at_most[last] <= math.floor(allowed * common))[0]
    return float(ordered[good[0]]) if good.size else math.inf


def _worst_scores(scores: FloatArray, group: np.ndarray, share: float | Fraction) -> FloatArray:
    """Return the empirical quantile, at level ``share``, of the scores in each group, (group,)."""
    index, sizes = group_index(group)
    exact = Fraction(str(share))
    ordered = np.lexsort((scores, index))
    starts = np.cumsum(sizes) - sizes
    rank = np.array([math.ceil(exact * int(n)) for n in sizes])
    return np.asarray(np.asarray(scores)[ordered[starts + rank - 1]])


class Unit(ABC):
    """Kind of exchangeable unit, with the cases of a new unit that the guarantee covers."""

    is_group: ClassVar[bool]
    # Cases of a new group that are covered, as the user gave them.
    cases: float | str
    # True if a policy makes one decision for all cases of a group.
    stops_together: bool

    @property
    def name(self) -> PolicyUnitName:
        return "whole-group" if self.stops_together else self.counted

    @property
    def counted(self) -> UnitName:
        return "group" if self.is_group else "case"

    @property
    def record(self) -> dict[str, Any]:
        return {"unit": self.counted, "cases": self.cases}

    @property
    @abstractmethod
    def part(self) -> str:
        """Phrase for the covered cases of a new unit, e.g. 'a random case'."""

    @property
    def covered(self) -> str:
        return f"{self.part} of a new group" if self.is_group else self.part

    @property
    def mean_unit(self) -> str:
        if self.stops_together:
            return "a new group"
        return "a random case of a new group" if self.is_group else "a new case"

    @property
    @abstractmethod
    def fraction(self) -> Fraction | None:
        """Fraction of the cases of a group that must be covered; None for one random case."""

    def source(self, n_cases: int, n_groups: int | None) -> str:
        """Return a phrase for the calibration units, e.g. "the 200 calibration cases"."""
        if self.is_group:
            return f"the {n_groups} calibration groups ({n_cases} cases)"
        return f"the {n_cases} calibration cases"

    def groups(self, group: np.ndarray | None) -> np.ndarray | None:
        """Return the group of each case if groups are the units, else None."""
        return group if self.is_group else None

    def index(self, cases: int, group: np.ndarray | None) -> NDArray[np.int64]:
        return unit_index(cases, self.groups(group))

    def weights(self, index: np.ndarray) -> FloatArray:
        """Return the weight of each case in a mean that counts every unit equally."""
        return 1 / np.bincount(index)[index] if self.is_group else np.ones(len(index))

    def entries(
        self, scores: FloatArray, index: NDArray[np.int64]
    ) -> tuple[FloatArray, NDArray[np.int64], FloatArray]:
        """Return the scores to rank (one per case or one per group), their units and weights."""
        if self.fraction is None:
            return scores, index, self.weights(index)
        worst = _worst_scores(scores, index, self.fraction)
        return worst, np.arange(len(worst)), np.ones(len(worst))

    def loss(self, missed: NDArray[np.int64], cases: NDArray[np.int64]) -> FloatArray:
        """Return the loss of each unit, in [0, 1], given its number of misses and its size."""
        if self.fraction is None:
            return np.asarray(missed / cases)
        return np.asarray(cases - missed < self.enough(cases), dtype=float)

    def enough(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many cases of each group must be covered; empty for one random case."""
        if self.fraction is None:
            return np.empty(0, dtype=np.int64)
        # Python's integers: sixteen decimals times a number of cases do not fit 64 bits.
        each, index = np.unique(sizes, return_inverse=True)
        needed = [math.ceil(self.fraction * int(size)) for size in each]
        return np.asarray(needed, dtype=np.int64)[index.reshape(np.shape(sizes))]

    @abstractmethod
    def allowed(self, units: int, alpha: Level, delta: Level | None) -> float:
        """Return the largest allowed total weight of the calibration scores above the quantile."""

    def bets(self, alpha: Level, delta: Level | None) -> BettingEProcess | None:
        """Return the e-process that certifies the losses; None if :meth:`allowed` suffices."""
        return None

    @abstractmethod
    def quantile(self, scores: FloatArray, group: Groups, alpha: Level, delta: Delta) -> float:
        """Return the conformal quantile of scores (case,)."""

    def needed(self, alpha: Level, delta: Level | None) -> int:
        """Return the smallest number of calibration units that gives a finite quantile."""
        if delta is None:
            return min_calibration_size(alpha)
        a, d = float(exact_alpha(alpha)), float(exact_alpha(delta, "delta"))
        units = max(1, math.floor(math.log(d) / math.log(1 - a)))
        while self.allowed(units, alpha, delta) < 0:
            units += 1
        return units


class _RankedUnit(Unit):
    """Base class of units that each have one score, so that the quantile is an order statistic."""

    def allowed(self, units: int, alpha: Level, delta: Level | None) -> float:
        return float(units - guaranteed_rank(units, alpha, delta))

    def quantile(self, scores: FloatArray, group: Groups, alpha: Level, delta: Delta) -> float:
        each = scores
        if self.fraction is not None:
            each = _worst_scores(scores, self.index(len(scores), group), self.fraction)
        return order_statistic(each, guaranteed_rank(len(each), alpha, delta))


@dataclass(frozen=True)
class CaseUnit(_RankedUnit):
    """Exchangeable cases; the guarantee covers a new case."""

    is_group: ClassVar[bool] = False
    part: ClassVar[str] = "a new case"
    fraction: ClassVar[None] = None

    cases: float | str = field(default="random", init=False)
    stops_together: bool = field(default=False, init=False)


@dataclass(frozen=True)
class RandomCaseUnit(Unit):
    """Exchangeable groups; the guarantee covers a random case of a new group."""

    is_group: ClassVar[bool] = True
    part: ClassVar[str] = "a random case"
    fraction: ClassVar[None] = None

    cases: float | str = field(default="random", init=False)
    stops_together: bool = False

    def allowed(self, units: int, alpha: Level, delta: Level | None) -> float:
        return float(_allowed_total_loss(units, alpha, delta))

    def bets(self, alpha: Level, delta: Level | None) -> BettingEProcess | None:
        return None if delta is None else BettingEProcess(alpha, delta)

    def quantile(self, scores: FloatArray, group: Groups, alpha: Level, delta: Delta) -> float:
        assert group is not None
        return _hierarchical_quantile(scores, group, alpha, delta)


@dataclass(frozen=True)
class SiteUnit(RandomCaseUnit):
    """Exchangeable sites; the guarantee covers a random case of a random group of a new site.

    The argument ``group`` of the methods holds ids from :func:`nested_ids`.
    """

    counted: ClassVar[UnitName] = "site"
    covered: ClassVar[str] = "a random case of a random group of a new site"
    mean_unit: ClassVar[str] = covered

    def source(self, n_cases: int, n_groups: int | None) -> str:
        return f"the {n_groups} calibration sites ({n_cases} cases)"

    def index(self, cases: int, group: np.ndarray | None) -> NDArray[np.int64]:
        assert group is not None
        return unit_index(cases, group["site"])

    def weights(self, index: np.ndarray) -> FloatArray:
        """Return the weight of each case, given ids of site and group; all sites weigh the same."""
        return np.asarray(1 / nested_denominators(index))

    def quantile(self, scores: FloatArray, group: Groups, alpha: Level, delta: Delta) -> float:
        assert group is not None
        allowed = _allowed_total_loss(len(np.unique(group["site"])), alpha, None)
        denominator = nested_denominators(group)
        return math.inf if allowed < 0 else quantile_of_mean_loss(scores, denominator, allowed)


def nested_ids(site: np.ndarray, group: np.ndarray | None) -> np.ndarray:
    """Return an id of site and group for each case; without groups, each case is a group."""
    ids = np.empty(len(site), dtype=[("site", np.int64), ("group", np.int64)])
    ids["site"], ids["group"] = unit_index(0, site), unit_index(len(site), group)
    return ids


def nested_denominators(ids: np.ndarray) -> NDArray[np.int64]:
    """Return, for each case, the number of groups in its site times the size of its group."""
    pairs, case_pair, cases = np.unique(ids, return_inverse=True, return_counts=True)
    groups = np.bincount(unit_index(0, pairs["site"]))[unit_index(0, pairs["site"])]
    return np.asarray((groups * cases)[case_pair], dtype=np.int64)


@dataclass(frozen=True)
class _GroupFractionUnit(_RankedUnit):
    """Exchangeable groups; the guarantee covers at least a fraction of a new group's cases."""

    is_group: ClassVar[bool] = True

    cases: float | str
    stops_together: bool = False

    def __post_init__(self) -> None:
        _exact_fraction(self.cases)

    @property
    def fraction(self) -> Fraction:
        return _exact_fraction(self.cases)

    @property
    def part(self) -> str:
        share = self.fraction
        return "every case" if share == 1 else f"at least {float(share):.4g} of the cases"


GROUPED = (
    "cases come in groups, but unit='case' treats them as exchangeable, so nothing is guaranteed "
    "for a new group; use unit='group'"
)


def as_unit(
    unit: str | None,
    cases: float | str = "random",
    *,
    has_groups: bool,
    whole: bool = False,
    has_sites: bool = False,
) -> Unit:
    """Return the unit with the given name; None stands for 'group' with groups, else 'case'."""
    made = make_unit(unit or ("group" if has_groups else "case"), cases, whole=whole)
    if isinstance(made, SiteUnit):
        if not has_sites:
            message = "unit='site' needs the site of each case; pass site= or a table with sites"
            raise InputError(message, code="groups.missing")
        return made
    if made.is_group and not has_groups:
        message = f"unit={unit!r} needs the group of each case; pass group= or use unit='case'"
        raise InputError(message, code="groups.missing")
    if has_groups and not made.is_group:
        warnings.warn(GROUPED, GuaranteeWarning, stacklevel=4)
    return made


def make_unit(name: str, cases: float | str = "random", *, whole: bool = False) -> Unit:
    if name == "case":
        if cases != "random":
            message = f"cases={cases!r} needs groups; pass group= or remove cases="
            raise InputError(message, code="groups.missing")
        return _CASE
    if name == "site":
        if cases != "random":
            message = f"unit='site' covers a random case, got cases={cases!r}; remove cases="
            raise InputError(message, code="option.conflict")
        return SiteUnit()
    if name != "group" and not (whole and name == "whole-group"):
        choices = f"'case', 'group'{', ' + repr('whole-group') if whole else ''} or 'site'"
        raise InputError(f"unit must be {choices}, got {name!r}", code="choice.unknown")
    together = name == "whole-group"
    return RandomCaseUnit(together) if cases == "random" else _GroupFractionUnit(cases, together)


_CASE = CaseUnit()


def _exact_fraction(cases: float | str) -> Fraction:
    try:
        fraction = Fraction(1) if cases == "all" else Fraction(str(cases))
    except ValueError:
        fraction = Fraction(0)
    if not 0 < fraction <= 1:
        message = f"cases must be 'random', 'all' or a fraction in (0, 1], got {cases!r}"
        raise InputError(message, code="value.invalid")
    return fraction


def unit_index(cases: int, group: np.ndarray | None) -> NDArray[np.int64]:
    """Return an index (0, 1, ...) of each case's group or, without groups, of the case itself."""
    return np.arange(cases) if group is None else group_index(group)[0]


def as_generator(seed: int | np.random.Generator) -> np.random.Generator:
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        message = f"seed must be a non-negative integer or a numpy Generator, got {seed!r:.60}"
        raise InputError(message, code="value.invalid") from None


def choose_units(
    index: NDArray[np.int64],
    take: int,
    seed: int | np.random.Generator | None,
    contents: Sequence[bytes],
) -> BoolArray:
    """Return a mask (case,) of ``take`` random units, chosen as in :func:`random_order`."""
    as_generator(0 if seed is None else seed)
    cases: list[list[bytes]] = [[] for _ in range(int(index.max()) + 1)]
    for unit, content in zip(index.tolist(), contents, strict=True):
        cases[unit].append(content)
    order = _quantiles.random_order([b"".join(sorted(each)) for each in cases], seed or 0)
    return np.isin(index, order[:take])


def case_contents(outputs: FloatArray, targets: FloatArray) -> list[bytes]:
    """Return bytes that identify each case: the ranks of its values among all cases."""
    # With ranks, a change of measurement units does not change the choice of units.
    columns = [np.asarray(v, dtype=float).reshape(len(v), -1) for v in (outputs, targets)]
    values = np.concatenate(columns, axis=1)
    order = np.argsort(values, axis=0, kind="stable")
    steps = np.diff(np.take_along_axis(values, order, axis=0), axis=0, prepend=-np.inf) > 0
    ranks = np.empty(values.shape, dtype=np.int64)
    np.put_along_axis(ranks, order, np.cumsum(steps, axis=0), axis=0)
    return [row.tobytes() for row in ranks]


def table_contents(table: TaskOutputs) -> list[bytes]:
    targets = table.targets.swapaxes(0, 1) if table.has_round_targets else table.targets
    # Cases of equal targets and first samples are copies, or coarse.
    return case_contents(table.outputs[:, :, :2].swapaxes(0, 1), targets)


def choose_fraction(table: TaskOutputs, index: NDArray[np.int64], fraction: float) -> BoolArray:
    units = int(index.max()) + 1
    take = round(fraction * units) if 0 < fraction < 1 else 0
    if not 0 < take < units:
        message = (
            f"a fraction of {units} units must leave at least one unit on each side, got {fraction}"
        )
        raise InputError(message, code="units.few")
    return choose_units(index, take, None, table_contents(table))
