"""Stopping rules: when a scan stops, and which interval it reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq.conformal._family import IDENTITY, LinearFamily, Link, interval_family, stack_intervals
from taskuq.conformal._quantiles import TAIL
from taskuq.conformal.scores import score_to_dict
from taskuq.conformal.scores._learned import LearnedScore
from taskuq.conformal.scores._mlwr import MLWR
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray, Interval, TaskRange
from taskuq.policy._goal import BISECTIONS, Goal, bisect_threshold, over
from taskuq.protocols import IntervalFamily, Score

Record: TypeAlias = Mapping[str, Any]
# Every finite threshold is above this; minus infinity is not, where every interval is empty.
LEAST = -float(np.finfo(float).max)


@dataclass(frozen=True)
class RoundStatistics:
    family: IntervalFamily
    window: Interval
    lowest: FloatArray
    largest: FloatArray
    window_from: float = np.inf

    @property
    def is_risk(self) -> bool:
        """True if the reported interval does not depend on the threshold."""
        return self.window_from == -np.inf

    def select(self, cases: NDArray[np.int64]) -> RoundStatistics:
        return RoundStatistics(
            self.family.select(cases), self.window[cases], self.lowest[cases], self.largest[cases],
            self.window_from,
        )  # fmt: skip

    def stops(self, threshold: float) -> np.ndarray:
        """Return a mask of the cases that stop, i.e. with ``lowest`` <= threshold < ``largest``."""
        return np.asarray((self.lowest <= threshold) & (threshold < self.largest))

    def score(self, targets: FloatArray) -> FloatArray:
        """Return the smallest threshold at which the reported interval contains the target."""
        inside = self.window.contains(targets)
        if self.is_risk:
            return np.where(inside, -np.inf, np.inf)
        return np.where(inside, np.minimum(self.family.score(targets), self.window_from), np.inf)

    def report(self, threshold: ArrayLike) -> Interval:
        """Return the interval that a scan reports if it stops at the given threshold."""
        if self.is_risk:
            return self.window
        level = np.asarray(threshold, dtype=float)
        inner, low, high = self.family.interval(level), self.window.lower, self.window.upper
        # An interval beyond the window is its nearest end, so that only crossed ends are empty.
        lower = np.minimum(np.maximum(inner.lower, low), high)
        upper = np.maximum(np.minimum(inner.upper, high), low)
        is_window = level >= self.window_from
        return Interval(np.where(is_window, low, lower), np.where(is_window, high, upper))


class StoppingRule(ABC):
    """Rule for one task and round: when a scan stops, and which interval it reports."""

    # Name in stored policies.
    name: ClassVar[str]
    # The largest threshold is monotone in the scale, and in the centre to each side of the middle
    # of the task's range: the score may be fitted to the calibration units themselves.
    is_bracketed: ClassVar[bool] = False
    score: Score
    task_range: TaskRange

    def examine(self, outputs: FloatArray) -> RoundStatistics:
        return self.examine_family(interval_family(self.score, outputs), outputs.shape[-2])

    @abstractmethod
    def examine_family(self, family: IntervalFamily, cases: int) -> RoundStatistics:
        """Return the stopping statistics of cases from their family of intervals."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the rule as JSON values."""

    @classmethod
    @abstractmethod
    def from_dict(cls, record: Record, score: Score, goal: Goal, range_: TaskRange) -> StoppingRule:
        """Return the rule stored as JSON values by :meth:`to_dict`."""


# rules[round][task]
Rules: TypeAlias = tuple[tuple[StoppingRule, ...], ...]


@final
@dataclass(frozen=True)
class IntervalRule(StoppingRule):
    """Rule that stops when the calibrated interval meets the goal."""

    name: ClassVar[str] = "family"
    is_bracketed: ClassVar[bool] = True

    score: Score
    goal: Goal
    task_range: TaskRange

    def examine_family(self, family: IntervalFamily, cases: int) -> RoundStatistics:
        low, high = self.task_range or (-np.inf, np.inf)
        return RoundStatistics(
            family=family,
            window=Interval(np.full(cases, low), np.full(cases, high)),
            lowest=opening_threshold(family, cases),
            largest=self.goal.largest_threshold(family, self.task_range),
        )

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.name, "score": score_to_dict(self.score)}

    @classmethod
    def from_dict(cls, record: Record, score: Score, goal: Goal, range_: TaskRange) -> IntervalRule:
        return cls(score, goal, range_)


# Margins beyond these count as these, so that risks stay positive and finite.
MARGINS = (-300.0, 300.0)
# The log odds of the stored quantiles; between and beyond them the distribution is logistic.
LOG_ODDS = np.arange(-10, 11) / 2


@final
@dataclass(frozen=True)
class ResidualDistribution:
    quantiles: tuple[float, ...]

    def __post_init__(self) -> None:
        q = np.asarray(self.quantiles, dtype=float)
        if q.shape != LOG_ODDS.shape or not np.isfinite(q).all() or not (np.diff(q) > 0).all():
            raise InputError("quantiles must be finite and rising; plan again", code="file.damaged")

    def log_odds(self, residuals: FloatArray) -> FloatArray:
        q = np.asarray(self.quantiles)
        slopes = np.diff(LOG_ODDS) / np.diff(q)
        piece = np.clip(np.searchsorted(q, residuals) - 1, 0, len(slopes) - 1)
        return np.asarray(LOG_ODDS[piece] + slopes[piece] * (residuals - q[piece]))

    def outside(self, below: FloatArray, above: FloatArray) -> FloatArray:
        from scipy.special import expit

        # A sum of two tails: one minus what lies between would lose small ones to rounding.
        return np.asarray(expit(self.log_odds(below)) + expit(-self.log_odds(above)))


@final
@dataclass(frozen=True)
class WindowRule(StoppingRule):
    """Rule that reports an interval of fixed width, and stops if the risk of a miss is small."""

    name: ClassVar[str] = "window"
    is_bracketed: ClassVar[bool] = True

    score: Score
    goal: Goal
    task_range: TaskRange
    weight: float
    narrowing: tuple[float, float] | None = None
    residuals: ResidualDistribution | None = None

    @cached_property
    def _place(self) -> TaskRange:
        return window_place(self.score, self.task_range)

    def examine_family(self, family: IntervalFamily, cases: int) -> RoundStatistics:
        if not isinstance(family, LinearFamily):
            raise InputError("a window needs a linear family", code="component.invalid")
        if self.residuals is not None:
            window, p = _most_probable_window(family, self.residuals, self.goal, self._place)
            with np.errstate(divide="ignore"):  # no risk of missing
                h = self.weight / (np.log(2) - np.log(p))
        else:
            window, reach = goal_window(self.goal, family.high, family.link, self._place)
            if self.goal.level is None:
                steep = np.full(reach.shape, np.inf)
                h = np.divide(self.weight, reach, out=steep, where=reach > 0) * family.scale
            else:
                # A mean on the wrong side of the level may be biased: its margin is negative.
                h = self.weight * np.exp(-np.clip(over(reach, family.scale), *MARGINS))
        window = window if self.task_range is None else window.clip(*self.task_range)
        if self.narrowing is None:
            return RoundStatistics(family, window, np.full(h.shape, -np.inf), -h, -np.inf)
        t0, B = self.narrowing
        largest = np.divide(t0, h, out=np.full(h.shape, np.inf), where=h > 0)
        narrowed = replace(family, scale=B * family.scale)
        return RoundStatistics(
            family=narrowed,
            window=window,
            lowest=opening_threshold(narrowed, cases),
            largest=np.where(h < t0, largest, -np.inf),
            window_from=1.0,
        )

    def to_dict(self) -> dict[str, Any]:
        law, narrowing = self.residuals, self.narrowing
        return {
            "kind": self.name,
            "score": score_to_dict(self.score),
            **({"weight": self.weight} if law is None else {}),
            "narrowing": narrowing and list(narrowing),
            **({"probable": {"weight": self.weight, **asdict(law)}} if law else {}),
        }

    @classmethod
    def from_dict(cls, record: Record, score: Score, goal: Goal, range_: TaskRange) -> WindowRule:
        probable, narrowing, law = record.get("probable"), record["narrowing"], None
        if narrowing is not None:
            narrowing = (float(narrowing[0]), float(narrowing[1]))
        if probable is not None:
            law = ResidualDistribution(tuple(map(float, probable["quantiles"])))
        weight = float((probable or record)["weight"])
        return cls(score, goal, range_, weight, narrowing, law)


def window_place(score: Score, task_range: TaskRange) -> TaskRange:
    """Return the declared task range or, if there is none, the range of the score's link."""
    link = score.link if isinstance(score, MLWR | LearnedScore) else IDENTITY
    return (link.low, link.high) if task_range is None and not link.is_identity else task_range


def _most_probable_window(
    family: LinearFamily, law: ResidualDistribution, goal: Goal, place: TaskRange
) -> tuple[Interval, FloatArray]:
    assert goal.max_width is not None
    tau, link = goal.max_width, family.link
    m, u = family.high[:, None], family.scale[:, None]
    low, high = place or (-np.inf, np.inf)
    top = max(low, high - tau)
    # The window around the centre first: it is kept where no other is better.
    around = goal_window(goal, family.high, link, place)[0].lower[:, None]
    ends = link.inverse(m + u * np.asarray(law.quantiles))
    lower = np.clip(np.concatenate([around, ends, ends - tau], axis=1), low, top)
    # (high - tau) + tau may round to less than high, and would lose a target there.
    upper = np.maximum(lower + tau, np.where(lower >= top, high, -np.inf))
    below = np.where(lower <= low, -np.inf, (link(lower) - m) / u)
    above = np.where(upper >= high, np.inf, (link(upper) - m) / u)
    missed = law.outside(below, above)
    best = np.arange(len(missed)), missed.argmin(axis=1)
    return Interval(lower[best], upper[best]), missed[best]


def goal_window(
    goal: Goal, center: FloatArray, link: Link, place: TaskRange
) -> tuple[Interval, FloatArray]:
    """Return intervals that just meet the goal, and how far the nearer ends are from ``center``."""
    if goal.side != "two":
        end, reach = goal.bound(center, link)
        is_upper = goal.side == "upper"
        return Interval(-np.inf, end) if is_upper else Interval(end, np.inf), reach
    assert goal.max_width is not None
    tau, (low, high) = goal.max_width, place or (-np.inf, np.inf)
    g = partial(np.asarray, dtype=float) if link.is_identity else link
    lower = center - tau / 2 if link.is_identity else _balanced(center, tau, link)
    top = max(low, high - tau)
    lower = np.clip(lower, low, top)
    # (high - tau) + tau may round to less than high, and would lose a target there.
    upper = np.maximum(lower + tau, np.where(lower >= top, high, -np.inf))
    below = np.where(lower <= low, np.inf, center - g(np.where(lower <= low, 0.0, lower)))
    above = np.where(upper >= high, np.inf, g(np.where(upper >= high, 0.0, upper)) - center)
    return Interval(lower, upper), np.minimum(below, above)


def _balanced(center: FloatArray, tau: float, link: Link) -> FloatArray:
    """Return lower ends of intervals of width tau whose images under the link are centred."""
    length = link.high - link.low
    a, w = tau / length, 1 / (1 + np.exp(-2 * np.clip(center, -300, 300)))
    b = a + 2 * w * (1 - a)
    root = np.sqrt(np.maximum(b**2 + 4 * (1 - 2 * w) * w * (1 - a), 0.0))
    t = 2 * w * (1 - a) / (b + root)
    is_pure = (t >= TAIL) & (t + a <= 1 - TAIL)
    lower = link.low + length * t
    if is_pure.all():
        return lower
    return np.where(is_pure, lower, _search_lower_end(center, tau, link))


def _search_lower_end(center: FloatArray, tau: float, link: Link) -> FloatArray:
    middle = link.inverse(center)
    low, high = middle - tau, middle.copy()
    for _ in range(BISECTIONS):
        lower = low / 2 + high / 2
        too_high = link(lower + tau) - center > center - link(lower)
        low, high = np.where(too_high, low, lower), np.where(too_high, lower, high)
    return np.asarray(low / 2 + high / 2)


@dataclass(frozen=True)
class StoppingStatistics:
    lowest: FloatArray
    largest: FloatArray
    score: FloatArray
    rounds: tuple[tuple[RoundStatistics, ...], ...]
    surely: FloatArray | None = None
    # Lower bound of the score.
    least: FloatArray | None = None

    @property
    def cases(self) -> int:
        return int(self.score.shape[1])

    @property
    def is_always_open(self) -> bool:
        """True if no interval is empty at any threshold that can occur."""
        return bool(((self.lowest == 0) | (self.lowest <= LEAST)).all())

    def select(self, cases: BoolArray) -> StoppingStatistics:
        """Return the statistics of the cases in a mask; the field ``rounds`` keeps all cases."""
        surely, least = (None if a is None else a[:, cases] for a in (self.surely, self.least))
        lowest, largest, score = (a[:, cases] for a in (self.lowest, self.largest, self.score))
        return StoppingStatistics(lowest, largest, score, self.rounds, surely, least)

    def stops(
        self,
        thresholds: FloatArray,
        together: NDArray[np.int64] | None = None,
        largest: FloatArray | None = None,
    ) -> BoolArray:
        """Return a mask of the cases (or groups, given ``together``) that may stop in each round.

        The mask is (round, case) or (round, group); ``thresholds`` are (round,) or (round, case).
        """
        q = thresholds.reshape(len(thresholds), -1)
        largest = self.largest if largest is None else largest
        if together is None:
            return np.asarray((self.lowest <= q) & (q < largest))
        if q.shape[1] > 1:
            q = q[:, np.unique(together, return_index=True)[1]]
        return np.asarray(q < self.group_thresholds(largest, together))

    def outcomes(
        self,
        thresholds: FloatArray,
        together: NDArray[np.int64] | None = None,
        covered_from: FloatArray | None = None,
    ) -> tuple[NDArray[np.int64], BoolArray]:
        """Return each case's stopping round, and a mask of the cases whose target is covered."""
        q, everyone = thresholds.reshape(len(thresholds), -1), np.ones((1, self.cases), bool)
        stops = self.stops(q, together)
        stopped = first_stop(stops if together is None else stops[:, together])
        hits = (self.score if covered_from is None else covered_from) <= q
        return stopped, np.vstack([hits, everyone])[stopped, np.arange(self.cases)]

    def allowance(self, index: NDArray[np.int64]) -> FloatArray:
        return self.group_thresholds(self.largest, index)

    def group_thresholds(self, largest: FloatArray, index: NDArray[np.int64]) -> FloatArray:
        """Return the thresholds (round, group) below which groups stop, from those of the cases."""
        is_risk = self.rounds[0][0].is_risk
        return np.stack([group_allowance(a, index, is_risk) for a in largest])


def first_stop(stops: BoolArray) -> NDArray[np.int64]:
    """Return the first stopping round of each case; the number of rounds if there is none."""
    return np.asarray(np.vstack([stops, np.ones((1, stops.shape[1]), bool)]).argmax(axis=0))


def stopping_statistics(
    rules: Sequence[Sequence[StoppingRule]], outputs: FloatArray, targets: FloatArray
) -> StoppingStatistics:
    rounds = [
        [rule.examine(outputs[: k + 1, ..., t]) for t, rule in enumerate(of_round)]
        for k, of_round in enumerate(rules)
    ]
    return combine_tasks(rounds, targets)


def combine_tasks(
    rounds: Sequence[Sequence[RoundStatistics]], targets: FloatArray
) -> StoppingStatistics:
    scores = [
        np.max([e.score(targets[k, :, t]) for t, e in enumerate(tasks)], axis=0)
        for k, tasks in enumerate(rounds)
    ]
    return StoppingStatistics(
        lowest=np.stack([np.max([e.lowest for e in tasks], axis=0) for tasks in rounds]),
        largest=np.stack([np.min([e.largest for e in tasks], axis=0) for tasks in rounds]),
        score=np.stack(scores),
        rounds=tuple(map(tuple, rounds)),
    )


def joint_report(tasks: Sequence[RoundStatistics], threshold: ArrayLike) -> Interval:
    if len(tasks) == 1:
        return tasks[0].report(threshold)
    return stack_intervals([e.report(threshold) for e in tasks], axis=-1)


def group_allowance(largest: FloatArray, index: NDArray[np.int64], is_risk: bool) -> FloatArray:
    """Return the threshold below which all cases of a group stop together, (group,)."""
    groups = int(index.max()) + 1
    if is_risk:
        sizes = np.bincount(index, minlength=groups)
        return -np.sqrt(np.bincount(index, weights=largest**2, minlength=groups) / sizes)
    result = np.full(groups, np.inf)
    np.minimum.at(result, index, largest)
    return result


def opening_threshold(family: IntervalFamily, cases: int) -> FloatArray:
    if not isinstance(family, LinearFamily):
        _, high, everywhere, nowhere = bisect_threshold(
            lambda threshold: ~family.interval(threshold).is_empty, (cases,)
        )
        return np.where(everywhere, LEAST, np.where(nowhere, np.inf, high))
    lowest = np.full(cases, LEAST)
    if family.side == "two":
        np.divide(family.low - family.high, 2 * family.scale, out=lowest, where=family.scale > 0)
    return lowest
