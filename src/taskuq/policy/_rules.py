"""Rules: examination and report of a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq.conformal._family import LinearFamily, interval_family, stack_intervals
from taskuq.conformal.scores import score_to_dict
from taskuq.interval import FloatArray, Interval, TaskRange
from taskuq.policy._goal import Goal, bisect_threshold
from taskuq.protocols import IntervalFamily, Score

# What a file says of a rule.
Record: TypeAlias = Mapping[str, Any]
# Every finite threshold is above this; minus infinity is not, where every interval is empty.
LEAST = -float(np.finfo(float).max)


@dataclass(frozen=True)
class RoundStatistics:
    """Stopping statistics of the cases of one round."""

    family: IntervalFamily
    window: Interval
    lowest: FloatArray
    largest: FloatArray
    window_from: float = np.inf

    @property
    def is_risk(self) -> bool:
        r"""Return True if :math:`-\lambda^*` is a risk statistic: the window is reported anyway."""
        return self.window_from == -np.inf

    def rescaled(self, scale: FloatArray, scaling: int) -> RoundStatistics:
        """Return cases that were examined at scale 1 as they are at another."""
        family = replace(self.family, scale=scale)  # type: ignore[type-var]  # an anchored one
        largest = self.largest / scale if scaling < 0 else self.largest * scale
        return replace(self, family=family, largest=largest)

    def take(self, cases: NDArray[np.int64]) -> RoundStatistics:
        """Return some of the cases, in the given order."""
        return RoundStatistics(
            self.family.select(cases), self.window[cases], self.lowest[cases], self.largest[cases],
            self.window_from,
        )  # fmt: skip

    def stops(self, threshold: float) -> np.ndarray:
        """Return True if the policy stops each case at a threshold; strict, so that ties go on."""
        return np.asarray((self.lowest <= threshold) & (threshold < self.largest))

    def score(self, targets: FloatArray) -> FloatArray:
        """Return the smallest threshold at which the report contains the target."""
        inside = self.window.contains(targets)
        if self.is_risk:
            return np.where(inside, -np.inf, np.inf)
        return np.where(inside, np.minimum(self.family.score(targets), self.window_from), np.inf)

    def report(self, threshold: ArrayLike) -> Interval:
        """Return the interval that is reported when stopping at a threshold."""
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
    """Stopping statistic and reported interval of one task and round."""

    # What files call it.
    name: ClassVar[str]
    # Whether the largest threshold is divided (-1) or multiplied (1) by the scale of the intervals;
    # 0 where it is not so simple.
    scaling: ClassVar[int] = 0
    # The score behind it.
    score: Score

    def examine(self, outputs: FloatArray) -> RoundStatistics:
        """Examine cases, outputs of all rounds so far (round, case, sample)."""
        return self.examined(interval_family(self.score, outputs), outputs.shape[-2])

    @abstractmethod
    def examined(self, family: IntervalFamily, cases: int) -> RoundStatistics:
        """Examine so many cases by their nested intervals."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""

    @classmethod
    @abstractmethod
    def from_dict(cls, record: Record, score: Score, goal: Goal, range_: TaskRange) -> StoppingRule:
        """Read a rule back from its description, its score read already."""


# The rules of a policy, rules[round][task].
Rules: TypeAlias = tuple[tuple[StoppingRule, ...], ...]


@final
@dataclass(frozen=True)
class IntervalRule(StoppingRule):
    """Stop when the calibrated interval reaches the goal."""

    name: ClassVar[str] = "family"
    scaling: ClassVar[int] = -1

    score: Score
    goal: Goal
    task_range: TaskRange

    def examined(self, family: IntervalFamily, cases: int) -> RoundStatistics:
        """Examine so many cases by their nested intervals."""
        low, high = self.task_range or (-np.inf, np.inf)
        return RoundStatistics(
            family=family,
            window=Interval(np.full(cases, low), np.full(cases, high)),
            lowest=opening_threshold(family, cases),
            largest=self.goal.largest_threshold(family, self.task_range),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""
        return {"kind": self.name, "score": score_to_dict(self.score)}

    @classmethod
    def from_dict(cls, record: Record, score: Score, goal: Goal, range_: TaskRange) -> IntervalRule:
        """Read a rule back from its description."""
        return cls(score, goal, range_)


@dataclass(frozen=True)
class StoppingStatistics:
    """Stopping statistics of all cases and rounds."""

    lowest: FloatArray
    largest: FloatArray
    score: FloatArray
    rounds: tuple[tuple[RoundStatistics, ...], ...]
    surely: FloatArray | None = None

    @property
    def cases(self) -> int:
        """The number of cases."""
        return int(self.score.shape[1])

    @property
    def is_always_open(self) -> bool:
        """Return True if no interval is empty at any threshold that can occur."""
        return bool(((self.lowest == 0) | (self.lowest <= LEAST)).all())

    def allowance(self, index: NDArray[np.int64]) -> FloatArray:
        """Return the threshold below which each round stops each group as a whole (round, group)."""
        return self.of_groups(self.largest, index)

    def sure_allowance(self, index: NDArray[np.int64]) -> FloatArray | None:
        """Return the lower ends of the allowances, where rules are known within a range only."""
        return None if self.surely is None else self.of_groups(self.surely, index)

    def of_groups(self, largest: FloatArray, index: NDArray[np.int64]) -> FloatArray:
        """Return what thresholds of cases (round, case) are for each group (round, group)."""
        is_risk = self.rounds[0][0].is_risk
        return np.stack([group_allowance(a, index, is_risk) for a in largest])


def stopping_statistics(
    rules: Sequence[Sequence[StoppingRule]], outputs: FloatArray, targets: FloatArray
) -> StoppingStatistics:
    """Compute stopping statistics of all rounds and tasks."""
    return examination(
        [
            [rule.examine(outputs[: k + 1, ..., t]) for t, rule in enumerate(of_round)]
            for k, of_round in enumerate(rules)
        ],
        targets,
    )


def examination(
    rounds: Sequence[Sequence[RoundStatistics]], targets: FloatArray
) -> StoppingStatistics:
    """Put together what each task looked like in each round."""
    scores = [
        np.max([e.score(targets[k, :, t]) for t, e in enumerate(seen)], axis=0)
        for k, seen in enumerate(rounds)
    ]
    return StoppingStatistics(
        lowest=np.stack([np.max([e.lowest for e in seen], axis=0) for seen in rounds]),
        largest=np.stack([np.min([e.largest for e in seen], axis=0) for seen in rounds]),
        score=np.stack(scores),
        rounds=tuple(map(tuple, rounds)),
    )


def joint_report(examined: Sequence[RoundStatistics], threshold: ArrayLike) -> Interval:
    """Return what is reported of all tasks in a round; (case,) or (case, task)."""
    reports = [e.report(threshold) for e in examined]
    return reports[0] if len(reports) == 1 else stack_intervals(reports, axis=-1)


def group_allowance(largest: FloatArray, index: NDArray[np.int64], is_risk: bool) -> FloatArray:
    """Return the threshold below which each group stops, (group,)."""
    groups = int(index.max()) + 1
    if is_risk:
        sizes = np.bincount(index, minlength=groups)
        return -np.sqrt(np.bincount(index, weights=largest**2, minlength=groups) / sizes)
    result = np.full(groups, np.inf)
    np.minimum.at(result, index, largest)
    return result


def opening_threshold(family: IntervalFamily, cases: int) -> FloatArray:
    """Return the threshold below which an interval is empty."""
    if not isinstance(family, LinearFamily):
        found = bisect_threshold(lambda threshold: ~family.interval(threshold).is_empty, (cases,))
        return np.where(found.everywhere, LEAST, np.where(found.nowhere, np.inf, found.high))
    lowest = np.full(cases, LEAST)
    if family.side == "two":
        np.divide(family.low - family.high, 2 * family.scale, out=lowest, where=family.scale > 0)
    return lowest
