"""Figures as SVG for the page: text stays text, colours follow the page's light or dark."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from markupsafe import Markup, escape

from taskuq.report.axes import SMALLEST, Axis, offset, x_axis, y_axis
from taskuq.report.figure import Figure, Series, is_number, shades

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 46
# One shape for each colour, so that print and colour-blind readers can tell series apart.
SHAPES = ("circle", "square", "triangle", "diamond", "down", "plus", "cross")


def figure_svg(figure: Figure) -> Markup:
    """Draw a figure as SVG; its caption is what a screen reader says.

    Example:
        >>> from taskuq.report.figure import Series
        >>> line = Series("<a>", (1, 2), (2, 1))
        >>> text = figure_svg(Figure("f", "It falls.", "R", "width", (line,)))
        >>> str(text[:4]), "It falls." in text
        ('<svg', True)
    """
    if figure.is_strip:
        return _strips(figure)
    x = x_axis(figure, LEFT, WIDTH - RIGHT)
    y = y_axis(figure, HEIGHT - BOTTOM, TOP)
    parts = list(_grid(figure, x, y))
    for k, series in enumerate(figure.series):
        parts += _series(figure, series, k, x, y)
    for name, value in figure.reference:
        at = y.at(value)
        parts.append(
            Markup(
                '<path class="reference" d="M{} {:.1f}H{}"/><text class="note" x="{}" y="{:.1f}" '
                'text-anchor="end">{} {:.4g}</text>'
            ).format(LEFT, at, WIDTH - RIGHT, WIDTH - RIGHT - 2, at - 5, name, value)
        )
    return _wrapped(figure, parts, HEIGHT)


def swatch(series: Series, k: int) -> Markup:
    """Draw what the legend shows beside a series' name."""
    inside = _mark(7, 7, k, 4.2)
    if series.style in ("bars", "strip"):
        inside = Markup('<rect x="2" y="2" width="10" height="10"/>')
    elif series.style == "step":
        inside = Markup('<path class="line" d="M0 7H14"/>')
    return Markup(
        '<svg class="swatch c{}" viewBox="0 0 14 14" width="14" height="14" '
        'aria-hidden="true">{}</svg>'
    ).format(k % 7, inside)


def _wrapped(figure: Figure, parts: list[Markup], height: int) -> Markup:
    # The aspect ratio is said in the box; width follows the column.
    return Markup(
        '<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, height, figure.caption, Markup("").join(parts))


def _grid(figure: Figure, x: Axis, y: Axis) -> Iterator[Markup]:
    bottom = HEIGHT - BOTTOM
    for value, text in y.ticks:
        at = y.at(value)
        yield Markup('<path class="grid" d="M{} {:.1f}H{}"/>').format(LEFT, at, WIDTH - RIGHT)
        yield Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
            LEFT - 8, at + 4, text
        )
    shown = _thinned(x)
    for value, text in shown:
        at = x.at(value)
        yield Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
            at, bottom + 18, _short(text, len(shown))
        )
    yield Markup('<path class="axis" d="M{} {}H{}"/>').format(LEFT, bottom, WIDTH - RIGHT)
    yield Markup('<text class="label" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
        (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, figure.x_label
    )
    yield Markup(
        '<text class="label" transform="translate(13 {:.1f}) rotate(-90)" '
        'text-anchor="middle">{}</text>'
    ).format((TOP + bottom) / 2, figure.y_label)


def _thinned(x: Axis) -> tuple[tuple[float, str], ...]:
    """Leave out ticks that would run into each other."""
    longest = max((len(text) for _, text in x.ticks), default=0)
    room = max(1, int((WIDTH - LEFT - RIGHT) / (7 * min(longest, 10) + 10)))
    step = -(-len(x.ticks) // room)
    return x.ticks[:: max(step, 1)]


def _short(text: str, count: int) -> str:
    room = max(6, int((WIDTH - LEFT - RIGHT) / (6.6 * max(count, 1))))
    return text if len(text) <= room else text[: room - 1] + "…"


def _series(figure: Figure, series: Series, k: int, x: Axis, y: Axis) -> Iterator[Markup]:
    points = []
    for i, (at, value) in enumerate(zip(series.x, series.y, strict=True)):
        if not is_number(value) or (y.is_log and not (value or 0) > SMALLEST):
            continue
        assert value is not None
        place = x.categories.index(at) + offset(figure, series) if x.categories else at
        if not is_number(place) or (x.is_log and not float(place) > SMALLEST):
            continue
        reach = series.error[i] if series.error else None
        points.append((float(place), value, reach if is_number(reach) else None))
    yield Markup('<g class="c{}">').format(k % 7)
    if series.style == "bars":
        yield from _bars(figure, points, x, y)
    else:
        path = _path([(x.at(a), y.at(b)) for a, b, _ in points], steps=series.style == "step")
        if series.style != "points" and len(points) > 1:
            yield Markup('<path class="line" d="{}"/>').format(path)
        for a, b, reach in points:
            if reach:
                yield _error_bar(x.at(a), b, reach, y)
            if series.style != "step" and len(points) <= 60:
                yield _mark(x.at(a), y.at(b), k, 3.6)
    yield Markup("</g>")


def _bars(
    figure: Figure, points: list[tuple[float, float, float | None]], x: Axis, y: Axis
) -> Iterator[Markup]:
    bars = [s for s in figure.series if s.style == "bars"]
    places = sorted(x.at(a) for a, _, _ in points)
    if x.categories:
        width = 0.8 / len(bars) * abs(x.at(1.0) - x.at(0.0))
    else:
        gaps = [b - a for a, b in itertools.pairwise(places) if b - a > 0.01]
        width = 0.96 * (min(gaps) if gaps else (WIDTH - LEFT - RIGHT) / 20)
    floor = y.at(max(y.low, 0.0) if not y.is_log else y.low)
    for a, b, reach in points:
        middle, top = x.at(a), y.at(b)
        yield Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
            middle - width / 2, min(top, floor), max(width - 0.6, 0.6), abs(floor - top)
        )
        if reach:
            yield _error_bar(middle, b, reach, y)


def _error_bar(at: float, value: float, reach: float, y: Axis) -> Markup:
    low = max(value - reach, y.low)
    return Markup('<path class="error" d="M{:.1f} {:.1f}V{:.1f}"/>').format(
        at, y.at(low), y.at(min(value + reach, y.high))
    )


def _path(points: list[tuple[float, float]], *, steps: bool) -> str:
    if not points:
        return ""
    if not steps:
        return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
    commands = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (a, _), (c, d) in itertools.pairwise(points):
        commands.append(f"H{(a + c) / 2:.1f}V{d:.1f}H{c:.1f}")
    return "".join(commands)


def _mark(x: float, y: float, k: int, r: float) -> Markup:
    shape = SHAPES[k % len(SHAPES)]
    if shape == "circle":
        return Markup('<circle cx="{:.1f}" cy="{:.1f}" r="{:.1f}"/>').format(x, y, r)
    corners = {
        "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
        "triangle": [(0, -1.1), (1.05, 0.8), (-1.05, 0.8)],
        "diamond": [(0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)],
        "down": [(0, 1.1), (1.05, -0.8), (-1.05, -0.8)],
        "plus": [
            (-0.35, -1.1), (0.35, -1.1), (0.35, -0.35), (1.1, -0.35), (1.1, 0.35), (0.35, 0.35),
            (0.35, 1.1), (-0.35, 1.1), (-0.35, 0.35), (-1.1, 0.35), (-1.1, -0.35), (-0.35, -0.35),
        ],
        "cross": [
            (-1, -0.6), (-0.6, -1), (0, -0.4), (0.6, -1), (1, -0.6), (0.4, 0), (1, 0.6), (0.6, 1),
            (0, 0.4), (-0.6, 1), (-1, 0.6), (-0.4, 0),
        ],
    }[shape]  # fmt: skip
    dots = " ".join(f"{x + r * a:.1f},{y + r * b:.1f}" for a, b in corners)
    return Markup('<polygon points="{}"/>').format(dots)


def _strips(figure: Figure) -> Markup:
    """Draw one row of marks for each series, as masks are shown."""
    # Many rows are narrow ones.
    row, gap = (30, 12) if len(figure.series) <= 8 else (10, 2)
    numbers = [float(x) for s in figure.series for x in s.x if is_number(x)]
    low, high = min(numbers, default=0.0), max(numbers, default=1.0)
    left, right = 12, WIDTH - 12
    unit = (right - left) / (high - low + 1)
    parts = []
    top = 6
    for k, series in enumerate(figure.series):
        wide = 0.82 * unit
        parts.append(
            Markup(
                '<text class="tick" x="{}" y="{}">{}</text><rect class="bed" x="{}" y="{}" '
                'width="{}" height="{}"/>'
            ).format(left, top + 11, series.name, left, top + 16, right - left, row)
        )
        for shade, places in shades(series):
            marks = "".join(
                f"M{left + (x - low) * unit:.2f} {top + 16}h{wide:.2f}v{row}h{-wide:.2f}z"
                for x in places
            )
            faint = Markup("") if shade == 1 else Markup(' fill-opacity="{:g}"').format(shade)
            parts.append(
                Markup('<path class="c{} strip"{} d="{}"/>').format(
                    0 if len(figure.series) > 8 else k % 7, faint, marks
                )
            )
        top += row + gap + 16
    parts.append(
        Markup('<text class="label" x="{}" y="{}" text-anchor="middle">{}</text>').format(
            WIDTH / 2, top + 8, escape(figure.x_label)
        )
    )
    return _wrapped(figure, parts, top + 18)
