"""Goals: width or level."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from taskuq._arrays import per_task
from taskuq.conformal._family import SIDES, LinearFamily, Link, Side, clipped
from taskuq.conformal._quantiles import TAIL
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray, Interval, TaskRange
from taskuq.protocols import IntervalFamily

BISECTIONS = 60


@dataclass(frozen=True)
class Goal:
    max_width: float | None = None
    level: float | None = None
    side: Side = "two"

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise InputError(f"side must be 'two', 'upper' or 'lower', got {self.side!r}")
        if self.max_width is None and self.level is None:
            raise InputError("when to stop is missing; give max_width, at_least or at_most")
        if self.max_width is not None and self.level is not None:
            raise InputError("a policy needs either a maximal width or a level to reach, not both")
        if self.max_width is not None and not 0 < self.max_width < np.inf:
            raise InputError(f"the maximal width must be positive, got {self.max_width}")
        if self.level is not None and (self.side == "two" or not np.isfinite(self.level)):
            raise InputError(
                f"a level to reach is a number for a one-sided bound, got {self.level}"
            )

    @property
    def sentence(self) -> str:
        """The goal in words."""
        if self.level is not None:
            return f"the target is at {'least' if self.side == 'lower' else 'most'} {self.level:g}"
        if self.side == "two":
            return f"the interval is at most {self.max_width:g} wide"
        return f"the bound is at most {self.max_width:g} from the estimate"

    def largest_threshold(self, family: IntervalFamily, task_range: TaskRange) -> FloatArray:
        """Return for each case the threshold below which its interval achieves the goal."""
        if not isinstance(family, LinearFamily):
            return self._search(family, task_range)
        if self.side != "two":
            anchor = family.high if self.side == "upper" else family.low
            return _over(self._bound(anchor, family.link)[1], family.scale)
        assert self.max_width is not None
        if not family.link.is_identity:
            return self._search(family, task_range)
        rest = self.max_width - (family.high - family.low)
        low, high = task_range or (-np.inf, np.inf)
        near, far = np.sort(
            [np.maximum(family.low - low, 0.0), np.maximum(high - family.high, 0.0)], axis=0
        )
        # Each end moves until it meets the range; then the other one has the rest to itself.
        reach = np.where(rest <= 2 * near, rest / 2, rest - near)
        reach = np.where(rest > near + far, np.inf, reach)
        return _over(reach, family.scale)

    def _bound(self, anchor: FloatArray, link: Link) -> tuple[FloatArray, FloatArray]:
        sign = 1.0 if self.side == "upper" else -1.0
        if self.level is not None:
            end = np.full(anchor.shape, self.level)
        else:
            end = link.inverse(anchor) + sign * float(self.max_width or 0.0)
        return end, np.asarray(sign * (link(end) - anchor))

    def achieved(self, interval: Interval, estimate: FloatArray | float = 0.0) -> np.ndarray:
        end = interval.upper if self.side == "upper" else interval.lower
        width = float(self.max_width or 0.0)
        if self.level is not None:
            good = end > self.level if self.side == "lower" else end < self.level
        else:
            good = (interval.width if self.side == "two" else np.abs(end - estimate)) < width
        return np.asarray(good & ~interval.is_empty)

    def _search(self, family: IntervalFamily, task_range: TaskRange) -> FloatArray:
        """Bisect for the threshold, for families without a formula."""
        estimate = _middle(family)

        def is_too_wide(threshold: FloatArray) -> BoolArray:
            interval = clipped(family.interval(threshold), task_range)
            # Within the search an empty interval counts as narrow: it only lies lower.
            return ~(self.achieved(interval, estimate) | interval.is_empty)

        found = bisect_threshold(is_too_wide, estimate.shape)
        return np.where(found.nowhere, np.inf, np.where(found.everywhere, -np.inf, found.low))

    def window(
        self, center: FloatArray, link: Link, task_range: TaskRange
    ) -> tuple[Interval, FloatArray]:
        """Return windows that achieve the goal, and how far their ends are from the centre."""
        if self.side != "two":
            end, reach = self._bound(center, link)
            is_upper = self.side == "upper"
            return Interval(-np.inf, end) if is_upper else Interval(end, np.inf), reach
        assert self.max_width is not None
        tau = self.max_width
        low, high = task_range or (-np.inf, np.inf)
        lower = center - tau / 2 if link.is_identity else _balanced(center, tau, link)
        top = max(low, high - tau)
        lower = np.clip(lower, low, top)
        # (high - tau) + tau may round to less than high, and would lose a target there.
        upper = np.maximum(lower + tau, np.where(lower >= top, high, -np.inf))
        below = np.where(lower <= low, np.inf, center - link(np.where(lower <= low, 0.0, lower)))
        above = np.where(upper >= high, np.inf, link(np.where(upper >= high, 0.0, upper)) - center)
        return Interval(lower, upper), np.minimum(below, above)

    def of(self, task: int) -> Goal:
        """Return the goal of a task: the same for all."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""
        return asdict(self)


@dataclass(frozen=True)
class Goals:
    """A goal for each of several tasks, all of which have to be achieved."""

    names: tuple[str, ...]
    each: tuple[Goal, ...]

    @property
    def sentence(self) -> str:
        """The goals in words."""
        pairs = zip(self.names, self.each, strict=True)
        return "; ".join(f"{name}: {goal.sentence}" for name, goal in pairs)

    def of(self, task: int) -> Goal:
        """Return the goal of a task."""
        return self.each[task]

    def to_dict(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""
        tasks = [
            {"task": name, **goal.to_dict()}
            for name, goal in zip(self.names, self.each, strict=True)
        ]
        return {"max_width": None, "level": None, "side": "two", "tasks": tasks}


def goal_from_dict(record: Mapping[str, Any]) -> Goal | Goals:
    """Read a goal, or those of several tasks, back from its description."""
    if "tasks" not in record:
        return Goal(**record)
    each = [dict(one) for one in record["tasks"]]
    names = tuple(str(one.pop("task")) for one in each)
    return Goals(names, tuple(Goal(**one) for one in each))


def make_goals(
    max_width: Any, at_least: Any, at_most: Any, side: Any, names: Sequence[str]
) -> Goal | Goals:
    """Return the goal that was asked for: one for all tasks, or one for each."""
    asked = {"max_width": max_width, "at_least": at_least, "at_most": at_most}
    columns = [per_task(v, names, name, partial(_number, name)) for name, v in asked.items()]
    sides = per_task(side, names, "side", lambda one: one)
    goals = []
    for name, *said in zip(names, *columns, sides, strict=True):
        try:
            goals.append(_make_goal(*said))
        except InputError as error:
            raise InputError(str(error) if len(names) == 1 else f"task {name}: {error}") from None
    return goals[0] if len(set(goals)) == 1 else Goals(tuple(names), tuple(goals))


def _number(name: str, value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number for each task, got {value!r:.60}") from None


def _make_goal(
    max_width: float | None, at_least: float | None, at_most: float | None, side: Side | None
) -> Goal:
    """Return the goal that was asked for of one task."""
    if at_least is not None and at_most is not None:
        raise InputError("choose at_least or at_most, not both")
    if at_least is not None:
        return Goal(max_width, at_least, "lower")
    return Goal(max_width, at_most, (side or "two") if at_most is None else "upper")


class _Bracket(NamedTuple):
    """Bracket of the threshold at which a claim starts to hold."""

    low: FloatArray
    high: FloatArray
    everywhere: BoolArray
    nowhere: BoolArray


def bisect_threshold(claim: Callable[[FloatArray], BoolArray], shape: tuple[int, ...]) -> _Bracket:
    """Find by bisection the threshold at which a claim holds."""
    low, high = np.full(shape, -1.0), np.full(shape, 1.0)
    for _ in range(BISECTIONS):
        held, fails = claim(low), ~claim(high)
        if not held.any() and not fails.any():
            break
        low, high = np.where(held, low * 2, low), np.where(fails, high * 2, high)
    everywhere, nowhere = claim(low), ~claim(high)
    for _ in range(BISECTIONS):
        middle = low / 2 + high / 2
        holds = claim(middle)
        low, high = np.where(holds, low, middle), np.where(holds, middle, high)
    return _Bracket(low, high, everywhere, nowhere)


def _over(reach: FloatArray, scale: FloatArray) -> FloatArray:
    """Reach over speed; an interval that does not move achieves the goal always or never."""
    moving = scale > 0
    still = np.where(reach > 0, np.inf, -np.inf)
    return np.divide(reach, scale, out=still, where=moving)


def _middle(family: IntervalFamily) -> FloatArray:
    interval = family.interval(0.0)
    finite = np.isfinite(interval.lower), np.isfinite(interval.upper)
    with np.errstate(invalid="ignore"):
        center = interval.center
    return np.where(
        finite[0] & finite[1], center, np.where(finite[0], interval.lower, interval.upper)
    )


def _balanced(center: FloatArray, tau: float, link: Link) -> FloatArray:
    """Lower ends of windows of width tau with the centre in their middle on the link's scale."""
    length = link.high - link.low
    a, w = tau / length, 1 / (1 + np.exp(-2 * np.clip(center, -300, 300)))
    b = a + 2 * w * (1 - a)
    root = np.sqrt(np.maximum(b**2 + 4 * (1 - 2 * w) * w * (1 - a), 0.0))
    t = 2 * w * (1 - a) / (b + root)
    is_pure = (t >= TAIL) & (t + a <= 1 - TAIL)
    lower = link.low + length * t
    return lower if is_pure.all() else np.where(is_pure, lower, _searched(center, tau, link))


def _searched(center: FloatArray, tau: float, link: Link) -> FloatArray:
    middle = link.inverse(center)
    low, high = middle - tau, middle.copy()
    for _ in range(BISECTIONS):
        lower = low / 2 + high / 2
        too_high = link(lower + tau) - center > center - link(lower)
        low, high = np.where(too_high, low, lower), np.where(too_high, lower, high)
    return np.asarray(low / 2 + high / 2)
