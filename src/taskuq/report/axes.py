"""Where numbers fall on an axis, and which of them get a tick."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from taskuq.report.figure import Figure, Series, is_number

# What is smaller has no place of its own on any axis.
SMALLEST = 1e-280


@dataclass(frozen=True)
class Axis:
    """A map from values to positions between two ends, with ticks.

    Arguments:
        low: The value at the start.
        high: The value at the end.
        start: The position of the start.
        end: The position of the end.
        ticks: Values and what is written at them.
        is_log: Whether equal ratios are equally far apart.
        categories: The categories, where values are none.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False
    categories: tuple[float | str, ...] = ()

    def at(self, value: float) -> float:
        """Return the position of a value."""
        low, high, v = self.low, self.high, value
        if self.is_log:
            low, high, v = math.log(low), math.log(high), math.log(value)
        return self.start + (v - low) / (high - low) * (self.end - self.start)


def nice_ticks(low: float, high: float) -> list[float]:
    """Return round numbers that span two values.

    Example:
        >>> nice_ticks(0.0, 0.93)
        [0.0, 0.2, 0.4, 0.6, 0.8]
    """
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def offset(figure: Figure, series: Series) -> float:
    """Return how far aside a series stands within its category, so that none hides another.

    Example:
        >>> bars = [Series(name, ("a",), (1.0,), style="bars") for name in ("one", "two")]
        >>> figure = Figure("f", "It falls.", "x", "y", tuple(bars), x_scale="category")
        >>> [offset(figure, s) for s in bars]
        [-0.2, 0.2]
    """
    if figure.x_scale != "category" or series.style not in ("bars", "points"):
        return 0.0
    beside = [s for s in figure.series if s.style == series.style]
    place = next(i for i, s in enumerate(beside) if s is series)
    return (place - (len(beside) - 1) / 2) * 0.8 / len(beside)


def x_axis(figure: Figure, start: float, end: float) -> Axis:
    """Return the horizontal axis of a figure between two positions."""
    if figure.x_reversed:
        start, end = end, start
    values = [x for s in figure.series for x in s.x]
    if figure.x_scale == "category":
        names = tuple(dict.fromkeys(values))
        ticks = tuple((float(i), str(name)) for i, name in enumerate(names))
        return Axis(-0.5, len(names) - 0.5, start, end, ticks, categories=names)
    numbers = [float(x) for x in values if is_number(x)]
    if figure.x_scale == "log2":
        positive = sorted({x for x in numbers if x > SMALLEST}) or [1.0]
        low, high = positive[0] / 1.15, positive[-1] * 1.15
        return Axis(low, high, start, end, tuple((x, f"{x:g}") for x in positive), is_log=True)
    low, high = min(numbers, default=0.0), max(numbers, default=1.0)
    pad = 0.02 * (high - low)
    if any(s.style in ("bars", "points") for s in figure.series):
        pad = 0.06 * (high - low)
    low, high = _apart(low - pad, high + pad)
    return Axis(low, high, start, end, _labelled(nice_ticks(low, high)))


def y_axis(figure: Figure, start: float, end: float) -> Axis:
    """Return the vertical axis of a figure between two positions."""
    numbers = [reference for _, reference in figure.reference]
    for series in figure.series:
        for i, y in enumerate(series.y):
            if is_number(y):
                assert y is not None
                reach = (series.error[i] if series.error else 0.0) or 0.0
                numbers += [y - reach, y, y + reach]
    if figure.y_scale == "log":
        positive = [y for y in numbers if y > SMALLEST] or [1.0, 10.0]
        first = math.floor(math.log10(min(positive)) + 1e-9)
        last = math.ceil(math.log10(max(positive)) - 1e-9)
        ends = 10.0**first, 10.0 ** max(last, first + 1)
        ticks = tuple((10.0**k, f"{10.0**k:g}") for k in range(first, max(last, first + 1) + 1))
        return Axis(*ends, start, end, ticks, is_log=True)
    low, high = min(numbers, default=0.0), max(numbers, default=1.0)
    # The length of a bar is read from zero; points and lines may leave zero out.
    if any(s.style == "bars" for s in figure.series):
        low, high = min(low, 0.0), max(high, 0.0)
    elif 0 <= low < 0.5 * high:
        low = 0.0
    pad = 0.06 * (high - low)
    low, high = _apart(low if low == 0 else low - pad, high + pad)
    return Axis(low, high, start, end, _labelled(nice_ticks(low, high)))


def _apart(low: float, high: float) -> tuple[float, float]:
    """Keep the ends of an axis so far apart that round numbers fit between them."""
    size = max(abs(low), abs(high))
    if high - low > 1e-9 * size and high - low > SMALLEST:
        return low, high
    size = size if size > SMALLEST else 1.0
    return low - 0.1 * size, high + 0.1 * size


def _labelled(values: Sequence[float]) -> tuple[tuple[float, str], ...]:
    return tuple((v, f"{v:.10g}") for v in values)
