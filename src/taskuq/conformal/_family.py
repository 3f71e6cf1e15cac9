"""Families of nested intervals, link functions and statistics of samples."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taskuq.conformal._quantiles import TAIL
from taskuq.errors import InputError
from taskuq.interval import FloatArray, Interval, TaskRange
from taskuq.protocols import IntervalFamily, NestedScore, Score


@dataclass(frozen=True)
class Link:
    """Strictly increasing map :math:`g` of the real line, with its inverse."""

    kind: Literal["identity", "logit"] = "identity"
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in ("identity", "logit"):
            message = f"a link is 'identity' or 'logit', got {self.kind!r}"
            raise InputError(message, code="choice.unknown")
        if self.kind == "logit" and not -np.inf < self.low < self.high < np.inf:
            message = f"a logit link needs a finite range, got [{self.low}, {self.high}]"
            raise InputError(message, code="range.invalid")

    @cached_property
    def is_identity(self) -> bool:
        return self.kind == "identity"

    def __call__(self, values: ArrayLike) -> FloatArray:
        z = np.asarray(values, dtype=float)
        if self.is_identity:
            return z
        t = (z - self.low) / (self.high - self.low)
        inner = np.clip(t, TAIL, 1 - TAIL)
        return np.asarray(np.log(inner / (1 - inner)) + (t - inner) / (TAIL * (1 - TAIL)))

    def inverse(self, images: ArrayLike) -> FloatArray:
        w = np.asarray(images, dtype=float)
        if self.is_identity:
            return w
        edge = np.log((1 - TAIL) / TAIL)
        inner = np.clip(w, -edge, edge)
        t = 1 / (1 + np.exp(-inner)) + (w - inner) * (TAIL * (1 - TAIL))
        return np.asarray(self.low + (self.high - self.low) * t)


IDENTITY = Link()


def natural_link(range_: TaskRange) -> Link:
    """Return a logit on the task range if it is declared and finite, else the identity."""
    if range_ is not None and np.isfinite(range_).all():
        return Link("logit", *map(float, range_))
    return IDENTITY


Side: TypeAlias = Literal["two", "upper", "lower"]
SidePerTask: TypeAlias = Side | Sequence[Side | None] | Mapping[str, Side] | None
SIDES = ("two", "upper", "lower")
# A bound may also have a quantile of its own for each end of its intervals.
BoundSide: TypeAlias = Literal["two", "upper", "lower", "each"]
# A few units in the last place: more than score and interval lose between them.
ROUNDING = 4 * float(np.finfo(float).eps)


@dataclass(frozen=True)
class LinearFamily:
    """Nested intervals whose ends, after applying a link, are linear in the quantile."""

    low: FloatArray
    high: FloatArray
    scale: FloatArray
    side: Side = "two"
    link: Link = IDENTITY
    # The sample mean, if the anchors are shifted from it.
    mean: FloatArray | None = None

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            message = f"side must be 'two', 'upper' or 'lower', got {self.side!r}"
            raise InputError(message, code="choice.unknown")

    def select(self, index: NDArray[np.int64]) -> LinearFamily:
        low, high, scale = self.low[index], self.high[index], self.scale[index]
        mean = None if self.mean is None else self.mean[index]
        return replace(self, low=low, high=high, scale=scale, mean=mean)

    def score(self, targets: FloatArray) -> FloatArray:
        g = targets if self.link is IDENTITY else self.link(targets)
        if self.side == "two":
            residual = np.maximum(self.low - g, g - self.high)
        else:
            residual = g - self.high if self.side == "upper" else self.low - g
        known = self.scale > 0
        # A spread of next to nothing makes the score infinite, as no spread at all does.
        with np.errstate(over="ignore"):
            score = np.full(residual.shape, np.inf)
            np.divide(residual, self.scale, out=score, where=known)
        score[~known & (residual <= 0)] = 0.0 if self.side == "two" else -np.inf
        return score

    def interval(self, quantile: ArrayLike) -> Interval:
        q = np.asarray(quantile, dtype=float)
        finite = np.isfinite(q)
        moving = self.scale > 0
        step = np.where(finite, q, 0.0)
        with np.errstate(over="ignore"):  # too wide for a float is as wide as can be
            reach = (step + ROUNDING * np.abs(step)) * self.scale
        # Beyond the anchors their own rounding counts too; at and within them it does not, and
        # intervals stay nested.
        rounding = ROUNDING if (q > 0).all() else np.where(q > 0, ROUNDING, 0.0)
        low, high = np.abs(self.low), np.abs(self.high)
        if self.mean is not None:
            shift = np.abs(self.low - self.mean)
            low, high = low + shift, high + shift
        lower: FloatArray = self.low - rounding * (low * moving) - reach
        upper: FloatArray = self.high + rounding * (high * moving) + reach
        if not self.link.is_identity:
            # The logit and its inverse round too, on the scale of the task's range.
            slack = ROUNDING * (abs(self.link.low) + abs(self.link.high))
            lower = self.link.inverse(lower) - slack
            upper = self.link.inverse(upper) + slack
        if self.side == "upper":
            lower = np.full(lower.shape, -np.inf)
        if self.side == "lower":
            upper = np.full(upper.shape, np.inf)
        if not finite.all():
            everything = q == np.inf
            # Only a one-sided point has a target that scores minus infinity.
            nothing = (q == -np.inf) & (moving | (self.side == "two"))
            lower = np.where(everything, -np.inf, np.where(nothing, np.inf, lower))
            upper = np.where(everything, np.inf, np.where(nothing, -np.inf, upper))
        return Interval(lower, upper)


@dataclass(frozen=True)
class _TwoQuantileFamily:
    lower: LinearFamily
    upper: LinearFamily

    def select(self, index: NDArray[np.int64]) -> _TwoQuantileFamily:
        return _TwoQuantileFamily(self.lower.select(index), self.upper.select(index))

    def score(self, targets: FloatArray) -> FloatArray:
        return np.stack([self.lower.score(targets), self.upper.score(targets)])

    def interval(self, quantile: ArrayLike) -> Interval:
        below, above = np.asarray(quantile, dtype=float)
        return Interval(self.lower.interval(below).lower, self.upper.interval(above).upper)


def parse_side(side: BoundSide) -> tuple[Side, int]:
    """Return the side of the score, and the number of quantiles: 2 for 'each', else 1."""
    if side not in (*SIDES, "each"):
        message = f"side must be 'two', 'upper', 'lower' or 'each', got {side!r}"
        raise InputError(message, code="choice.unknown")
    return ("two", 2) if side == "each" else (side, 1)


def each_end(family: IntervalFamily) -> _TwoQuantileFamily:
    if not isinstance(family, LinearFamily) or family.side != "two":
        message = "side='each' needs a built-in, two-sided score; use side='two' for other scores"
        raise InputError(message, code="option.conflict")
    return _TwoQuantileFamily(replace(family, side="lower"), replace(family, side="upper"))


@dataclass(frozen=True)
class _CallableFamily:
    """Nested intervals computed by the methods of a user-defined score."""

    source: Score
    outputs: FloatArray

    def select(self, index: NDArray[np.int64]) -> _CallableFamily:
        return _CallableFamily(self.source, self.outputs[..., index, :])

    def score(self, targets: FloatArray) -> FloatArray:
        values = np.asarray(self.source.score(self.outputs, targets), dtype=float)
        name, missing = type(self.source).__name__, int(np.isnan(values).sum())
        if values.shape != targets.shape:
            message = f"{name}.score returned shape {values.shape} for {len(targets)} cases"
            raise InputError(message, code="component.invalid")
        if missing:
            message = f"{name}.score returned NaN for {missing} of {len(targets)} cases"
            raise InputError(f"{message}; return infinity", code="component.invalid")
        return values

    def interval(self, quantile: ArrayLike) -> Interval:
        q = np.broadcast_to(np.asarray(quantile, dtype=float), self.outputs.shape[:1])
        everything = q == np.inf
        inner = self.source.interval(self.outputs, np.where(everything, 0.0, q))
        return Interval(
            np.where(everything, -np.inf, inner.lower), np.where(everything, np.inf, inner.upper)
        )


@dataclass(frozen=True)
class BracketedFamily:
    """Nested intervals for several parameter values; the score is the largest over these values."""

    corners: tuple[IntervalFamily, ...]

    def score(self, targets: FloatArray) -> FloatArray:
        return np.asarray(np.max([family.score(targets) for family in self.corners], axis=0))


def intervals_at(family: IntervalFamily, quantiles: FloatArray) -> Interval:
    """Return the intervals of all cases at each of several quantiles, (quantile, case)."""
    if isinstance(family, LinearFamily | _TwoQuantileFamily):
        return family.interval(np.asarray(quantiles).T[..., None])
    return stack_intervals([family.interval(q) for q in quantiles], axis=0)


def stack_intervals(intervals: Sequence[Interval], axis: int) -> Interval:
    lower, upper = [i.lower for i in intervals], [i.upper for i in intervals]
    return Interval(np.stack(lower, axis), np.stack(upper, axis))


def clipped(interval: Interval, task_range: TaskRange) -> Interval:
    return interval if task_range is None else interval.clip(*task_range)


class NestedIntervalScore(ABC):
    """Base class of scores that are defined by a family of nested intervals."""

    # Whether outputs may carry the earlier rounds, (round, case, sample), the current one last.
    uses_earlier_rounds: ClassVar[bool] = False

    @abstractmethod
    def family(self, outputs: FloatArray) -> LinearFamily:
        """Return the family of nested intervals of the given cases."""

    def score(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return the score of each target (case,) for outputs (case, sample); larger is worse."""
        return self.family(outputs).score(targets)

    def interval(self, outputs: FloatArray, quantile: ArrayLike) -> Interval:
        """Return, for each case, the interval of targets with a score of at most ``quantile``."""
        return self.family(outputs).interval(quantile)


def interval_family(score: Score, outputs: FloatArray, ends: int = 1) -> IntervalFamily:
    x = rounds_for_score(score, outputs)
    family = score.family(x) if isinstance(score, NestedScore) else _CallableFamily(score, x)
    return family if ends == 1 else each_end(family)


def rounds_for_score(score: Score, outputs: FloatArray) -> FloatArray:
    is_whole = outputs.ndim == 2 or getattr(score, "uses_earlier_rounds", False)
    return outputs if is_whole else outputs[-1]


def uses_earlier_rounds(score: Score) -> bool:
    """Return True if a score takes the outputs of all rounds, (round, case, sample)."""
    return bool(getattr(score, "uses_earlier_rounds", False))


# Cases summarised at a time by NumPy, so that temporary arrays stay in cache and memory.
BLOCK = 16_384


def mean_and_deviation(outputs: FloatArray, ddof: int = 0) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation over the samples of each case."""
    cases, p = outputs.shape
    mean, deviation = np.empty(cases), np.empty(cases)
    for start in range(0, cases, BLOCK):
        block = slice(start, start + BLOCK)
        mean[block], deviation[block] = _moments(outputs[block].astype(float), p - ddof)
    # Squares of these may have left the range of floats: in another unit they do not.
    odd = np.flatnonzero(~((deviation > TINY) & (deviation < 1 / TINY)))
    if odd.size:
        x = outputs[odd].astype(float)
        unit = np.ldexp(1.0, np.frexp(np.ptp(x, axis=1))[1] - 1)[:, None]
        deviation[odd] = _moments((x - x[:, :1]) / unit, p - ddof)[1] * unit[:, 0]
    return mean, deviation


def robust_mean_and_deviation(outputs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return trimmed mean and scaled mean absolute deviation over the samples of each case.

    A tenth of the samples is trimmed at each end. The deviation estimates that of normal samples.
    """
    cases, p = outputs.shape
    mean, deviation = np.empty(cases), np.empty(cases)
    kept, factor = slice(p // 10, p - p // 10), np.sqrt(np.pi / 2 * p / max(p - 1, 1))
    for start in range(0, cases, BLOCK):
        block = slice(start, start + BLOCK)
        x = np.sort(outputs[block].astype(float), axis=1)
        unit = np.ldexp(1.0, np.frexp(x[:, -1] - x[:, 0])[1] - 1)
        # From a sample that is not trimmed: identical ones are 0, and outliers cost no digits.
        origin = x[:, p // 2]
        x = (x - origin[:, None]) / unit[:, None]
        center = x[:, kept].mean(axis=1)
        mean[block] = origin + center * unit
        deviation[block] = factor * np.abs(x - center[:, None]).mean(axis=1) * unit
    return mean, deviation


# Squares of smaller numbers, and of their inverses, come near the ends of the range of floats.
TINY = 1e-100


def _moments(x: FloatArray, degrees: int) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation of the samples of each case; overwrite ``x``."""
    first = x[:, :1].copy()
    x -= first
    center = x.mean(axis=1, keepdims=True)
    x -= center
    with np.errstate(over="ignore"):
        squares = np.einsum("ij,ij->i", x, x)
    return (first + center)[:, 0], np.sqrt(squares / max(degrees, 1))


def sample_quantiles(outputs: FloatArray, levels: Sequence[float]) -> tuple[FloatArray, ...]:
    r"""Return the empirical quantiles :math:`\hat z(\omega)` of each case, one array per level."""
    cases, p = outputs.shape
    results = tuple(np.empty(cases) for _ in levels)
    for start in range(0, cases, BLOCK):
        block = slice(start, start + BLOCK)
        # Sorting whole rows is vectorised in NumPy and beats its own quantile function.
        ordered = np.sort(outputs[block], axis=1).astype(float)
        for result, level in zip(results, levels, strict=True):
            position = level * (p - 1)
            index = math.floor(position)
            below, above = ordered[:, index], ordered[:, min(index + 1, p - 1)]
            step, share = above - below, position - index
            # NumPy's own two formulas, so that both agree to the last bit.
            result[block] = below + step * share if share < 0.5 else above - step * (1 - share)
    return results
