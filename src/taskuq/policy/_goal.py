"""Goals for the reported interval: a largest width, or a level that a bound must cross."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from taskuq._arrays import per_task
from taskuq.conformal._family import SIDES, LinearFamily, Link, Side, clipped
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray, Interval, TaskRange
from taskuq.protocols import IntervalFamily

BISECTIONS = 60


@dataclass(frozen=True)
class Goal:
    """Goal for the reported interval: a largest width, or a level that a bound must cross.

    Args:
        max_width: Largest width of a two-sided interval; for a one-sided bound, its largest
            distance from the estimate.
        level: Level that a one-sided bound must cross.
        side: 'two' for a two-sided interval, 'upper' or 'lower' for a one-sided bound.

    Example:
        >>> Goal(level=0.5, side="lower").statement
        'the target is at least 0.5'
    """

    max_width: float | None = None
    level: float | None = None
    side: Side = "two"

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise InputError(
                f"side must be 'two', 'upper' or 'lower', got {self.side!r}", code="choice.unknown"
            )
        if self.max_width is None and self.level is None:
            raise InputError(
                "no stopping goal; pass max_width=, at_least= or at_most=", code="option.missing"
            )
        if self.max_width is not None and self.level is not None:
            raise InputError(
                "max_width was passed with at_least or at_most; remove one", code="option.conflict"
            )
        if self.max_width is not None and not 0 < self.max_width < np.inf:
            raise InputError(
                f"max_width must be positive, got {self.max_width}", code="value.invalid"
            )
        if self.level is not None and (self.side == "two" or not np.isfinite(self.level)):
            raise InputError(
                f"a level must be finite and one-sided, got {self.level}", code="value.invalid"
            )

    @property
    def statement(self) -> str:
        """Goal in words, e.g. "the interval is at most 0.2 wide"."""
        if self.level is not None:
            return f"the target is at {'least' if self.side == 'lower' else 'most'} {self.level:g}"
        if self.side == "two":
            return f"the interval is at most {self.max_width:g} wide"
        return f"the bound is at most {self.max_width:g} from the estimate"

    @property
    def has_level(self) -> bool:
        return self.level is not None

    def largest_threshold(self, family: IntervalFamily, task_range: TaskRange) -> FloatArray:
        """Return, for each case, the threshold below which its interval meets the goal."""
        if not isinstance(family, LinearFamily):
            return self._search(family, task_range)
        if self.side != "two":
            anchor = family.high if self.side == "upper" else family.low
            return over(self.bound(anchor, family.link)[1], family.scale)
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
        return over(reach, family.scale)

    def bound(self, anchor: FloatArray, link: Link) -> tuple[FloatArray, FloatArray]:
        """Return one-sided bounds that just meet the goal, and their distances from the anchor."""
        sign = 1.0 if self.side == "upper" else -1.0
        if self.level is not None:
            end = np.full(anchor.shape, self.level)
        else:
            end = link.inverse(anchor) + sign * float(self.max_width or 0.0)
        return end, np.asarray(sign * (link(end) - anchor))

    def is_reached(self, interval: Interval, estimate: FloatArray | float = 0.0) -> np.ndarray:
        """Return a mask of the intervals that are not empty and strictly meet the goal."""
        end = interval.upper if self.side == "upper" else interval.lower
        width = float(self.max_width or 0.0)
        if self.level is not None:
            good = end > self.level if self.side == "lower" else end < self.level
        else:
            good = (interval.width if self.side == "two" else np.abs(end - estimate)) < width
        return np.asarray(good & ~interval.is_empty)

    def _search(self, family: IntervalFamily, task_range: TaskRange) -> FloatArray:
        start = family.interval(0.0)
        has_lower, has_upper = np.isfinite(start.lower), np.isfinite(start.upper)
        with np.errstate(invalid="ignore"):
            center = start.center
        one_end = np.where(has_lower, start.lower, start.upper)
        estimate = np.where(has_lower & has_upper, center, one_end)

        def is_too_wide(threshold: FloatArray) -> BoolArray:
            interval = clipped(family.interval(threshold), task_range)
            # Within the search an empty interval counts as narrow: it only lies lower.
            return ~(self.is_reached(interval, estimate) | interval.is_empty)

        low, _, everywhere, nowhere = bisect_threshold(is_too_wide, estimate.shape)
        return np.where(nowhere, np.inf, np.where(everywhere, -np.inf, low))

    def for_task(self, task: int) -> Goal:
        return self

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Goals:
    """One goal per task; all of them must be met."""

    names: tuple[str, ...]
    each: tuple[Goal, ...]

    @property
    def statement(self) -> str:
        pairs = zip(self.names, self.each, strict=True)
        return "; ".join(f"{name}: {goal.statement}" for name, goal in pairs)

    @property
    def has_level(self) -> bool:
        return any(goal.has_level for goal in self.each)

    def for_task(self, task: int) -> Goal:
        return self.each[task]

    def to_dict(self) -> dict[str, Any]:
        pairs = zip(self.names, self.each, strict=True)
        tasks = [{"task": name, **goal.to_dict()} for name, goal in pairs]
        return {"max_width": None, "level": None, "side": "two", "tasks": tasks}


def goal_from_dict(record: Mapping[str, Any]) -> Goal | Goals:
    if "tasks" not in record:
        return Goal(**record)
    each = [dict(one) for one in record["tasks"]]
    names = tuple(str(one.pop("task")) for one in each)
    return Goals(names, tuple(Goal(**one) for one in each))


def make_goals(
    max_width: Any, at_least: Any, at_most: Any, side: Any, names: Sequence[str]
) -> Goal | Goals:
    """Return one goal if it is the same for all tasks, else one goal per task."""
    arguments = {"max_width": max_width, "at_least": at_least, "at_most": at_most}
    columns = [per_task(v, names, name, partial(_number, name)) for name, v in arguments.items()]
    sides = per_task(side, names, "side", lambda one: one)
    goals = []
    for name, width, least, most, one_side in zip(names, *columns, sides, strict=True):
        try:
            if least is not None and most is not None:
                raise InputError("at_least and at_most exclude each other", code="option.conflict")
            level = most if least is None else least
            bounded: Side = "upper" if least is None else "lower"
            goals.append(Goal(width, level, one_side or "two" if level is None else bounded))
        except InputError as error:
            message = str(error) if len(names) == 1 else f"task {name}: {error}"
            raise InputError(message, code=error.code) from None
    return goals[0] if len(set(goals)) == 1 else Goals(tuple(names), tuple(goals))


def _number(name: str, value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        message = f"{name} must be a number for each task, got {value!r:.60}"
        raise InputError(message, code="dtype.invalid") from None


def bisect_threshold(
    claim: Callable[[FloatArray], BoolArray], shape: tuple[int, ...]
) -> tuple[FloatArray, FloatArray, BoolArray, BoolArray]:
    """Find, by bisection, an interval that contains the threshold from which a claim holds.

    Return the lower ends, the upper ends, a mask of the claims that hold at every threshold, and
    a mask of the claims that hold at no threshold.
    """
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
    return low, high, everywhere, nowhere


def over(reach: FloatArray, scale: FloatArray) -> FloatArray:
    still = np.where(reach > 0, np.inf, -np.inf)
    return np.divide(reach, scale, out=still, where=scale > 0)
