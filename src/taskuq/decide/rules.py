"""What a policy looks at in one round: when it would stop, and what it would report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from taskuq.calibration.family import AnchoredFamily, family_of
from taskuq.calibration.link import IDENTITY, Link
from taskuq.calibration.scores import score_from_dict, score_to_dict
from taskuq.calibration.scores.mlwr import MLWR
from taskuq.decide.goal import Goal
from taskuq.decide.opening import opening
from taskuq.errors import InputError
from taskuq.interval import FloatArray, Interval
from taskuq.protocols import Family, Score


@dataclass(frozen=True)
class Examined:
    r"""Cases of one round in the light of a rule.

    At threshold :math:`\lambda` the policy stops a case here if
    :math:`\lambda_\mathrm{low} \le \lambda < \lambda^*`, and reports its interval at
    :math:`\lambda` within the window; from ``window_from`` on it reports the whole window.

    Arguments:
        family: Nested intervals of the cases.
        window: What the report is clipped to: a window, or the task's range.
        lowest: :math:`\lambda_\mathrm{low}`, below which the interval is empty.
        largest: :math:`\lambda^*`.
        window_from: The threshold from which on the window itself is reported.
    """

    family: Family
    window: Interval
    lowest: FloatArray
    largest: FloatArray
    window_from: float = np.inf

    def stops(self, threshold: float) -> np.ndarray:
        """Whether the policy stops each case at a threshold; strict, so that ties go on."""
        return np.asarray((self.lowest <= threshold) & (threshold < self.largest))

    def score(self, targets: FloatArray) -> FloatArray:
        """Return the smallest threshold at which the report contains the target."""
        inside = self.window.contains(targets)
        if self.window_from == -np.inf:
            return np.where(inside, -np.inf, np.inf)
        return np.where(inside, np.minimum(self.family.score(targets), self.window_from), np.inf)

    def report(self, threshold: ArrayLike) -> Interval:
        """Return the interval that is reported when stopping at a threshold."""
        if self.window_from == -np.inf:
            return self.window
        level = np.asarray(threshold, dtype=float)
        inner, low, high = self.family.interval(level), self.window.lower, self.window.upper
        # An interval beyond the window is its nearest end, so that only crossed ends are empty.
        lower = np.minimum(np.maximum(inner.lower, low), high)
        upper = np.maximum(np.minimum(inner.upper, high), low)
        is_window = level >= self.window_from
        return Interval(np.where(is_window, low, lower), np.where(is_window, high, upper))


class Rule(ABC):
    """How the outputs of the rounds so far are examined."""

    @property
    @abstractmethod
    def score(self) -> Score:
        """The score behind the rule."""

    @abstractmethod
    def examine(self, outputs: FloatArray) -> Examined:
        """Examine cases, outputs of all rounds so far (round, case, sample)."""

    @abstractmethod
    def with_score(self, score: Score) -> Rule:
        """Return the rule with a tuned score."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""


@final
@dataclass(frozen=True)
class FamilyRule(Rule):
    """Stop when the calibrated interval achieves the goal, and report it.

    Arguments:
        base: The score whose nested intervals are used.
        goal: When to stop.
        task_range: The range intervals are clipped to, if any.
    """

    base: Score
    goal: Goal
    task_range: tuple[float, float] | None

    @property
    def score(self) -> Score:
        """The score behind the rule."""
        return self.base

    def with_score(self, score: Score) -> FamilyRule:
        """Return the rule with a tuned score."""
        return replace(self, base=score)

    def examine(self, outputs: FloatArray) -> Examined:
        """Examine cases, outputs of all rounds so far (round, case, sample)."""
        family = family_of(self.base, outputs)
        low, high = self.task_range or (-np.inf, np.inf)
        cases = outputs.shape[-2]
        return Examined(
            family=family,
            window=Interval(np.full(cases, low), np.full(cases, high)),
            lowest=opening(family, cases),
            largest=self.goal.largest_threshold(family, self.task_range),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""
        return {"kind": "family", "score": score_to_dict(self.base)}


@final
@dataclass(frozen=True)
class WindowRule(Rule):
    r"""Stop when a window that achieves the goal is safe enough, and report the window.

    The risk statistic of a case is the predicted error over the reach of the window,

    .. math:: h = R^\gamma \cdot \frac{u}{d}

    with the score's scale :math:`u` and the distance :math:`d` from its centre to the nearer end
    of the window. In terms of the threshold :math:`\lambda = -t` the case stops when
    :math:`h < t`. :math:`\gamma > 0` makes later rounds more tolerant, because going on costs
    more there.

    With ``narrowing`` the report shrinks as long as the threshold allows: at
    :math:`\lambda \le 1` it is the window within :math:`g^{-1}[m \pm \lambda B u]`, and the scan
    stops when :math:`h < t_0 / \max(\lambda, 1)`.

    Arguments:
        base: A score around a centre: MLWR for the statistic 'spread', Learned for 'learned'.
        goal: What the window has to achieve.
        task_range: The declared range, if any.
        weight: :math:`R^\gamma`.
        narrowing: :math:`t_0` and :math:`B`, where reports may be narrower than the window.
    """

    base: Score
    goal: Goal
    task_range: tuple[float, float] | None
    weight: float
    narrowing: tuple[float, float] | None = None

    @property
    def score(self) -> Score:
        """The score behind the rule."""
        return self.base

    def with_score(self, score: Score) -> WindowRule:
        """Return the rule with a tuned score."""
        return replace(self, base=score)

    def risk(self, outputs: FloatArray) -> tuple[FloatArray, Interval, AnchoredFamily]:
        """Return the risk statistic, the windows and the families of cases."""
        family = family_of(self.base, outputs)
        if not isinstance(family, AnchoredFamily):
            raise InputError("a fixed-width policy needs the statistic 'spread' or 'learned'")
        window, reach = self.goal.window(family.high, family.link, self._place())
        ratio = np.divide(family.scale, reach, out=np.full(reach.shape, np.inf), where=reach > 0)
        if self.task_range is not None:
            window = window.clip(*self.task_range)
        return self.weight * ratio, window, family

    def _place(self) -> tuple[float, float] | None:
        """Return the range windows are kept in: the declared one, or [0, 1] where it was seen."""
        if self.task_range is not None or self.goal.side != "two":
            return self.task_range
        link: Link = getattr(self.base, "link", IDENTITY)
        return (link.low, link.high) if link.kind == "logit" else None

    def examine(self, outputs: FloatArray) -> Examined:
        """Examine cases, outputs of all rounds so far (round, case, sample)."""
        h, window, family = self.risk(outputs)
        if self.narrowing is None:
            return Examined(family, window, np.full(h.shape, -np.inf), -h, window_from=-np.inf)
        t0, B = self.narrowing
        largest = np.divide(t0, h, out=np.full(h.shape, np.inf), where=h > 0)
        narrowed = replace(family, scale=B * family.scale)
        return Examined(
            family=narrowed,
            window=window,
            lowest=opening(narrowed, len(h)),
            largest=np.where(h < t0, largest, -np.inf),
            window_from=1.0,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""
        return {
            "kind": "window",
            "score": score_to_dict(self.base),
            "weight": self.weight,
            "narrowing": self.narrowing and list(self.narrowing),
        }


def rule_from_dict(
    record: Mapping[str, Any],
    goal: Goal,
    task_range: tuple[float, float] | None,
    custom: Score | None = None,
) -> Rule:
    """Read a rule back from its description."""
    score = score_from_dict(record["score"], custom)
    if record["kind"] == "family":
        return FamilyRule(score, goal, task_range)
    if record["kind"] == "window":
        narrowing = record["narrowing"]
        return WindowRule(
            score, goal, task_range, float(record["weight"]),
            None if narrowing is None else (float(narrowing[0]), float(narrowing[1])),
        )  # fmt: skip
    raise InputError(f"unknown kind of rule {record['kind']!r} in the file")


def spread_score(side: str) -> MLWR:
    """Return the score behind the statistic 'spread': MLWR with half its usual floor."""
    return MLWR(side=side, floor=0.25)  # type: ignore[arg-type]  # checked by Goal
