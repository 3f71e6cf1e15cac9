"""Results as short tables for terminals and small pictures for notebooks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from textwrap import fill
from typing import Any, NamedTuple

# Rows of long tables, and bars of a picture.
MOST_ROWS, MOST_BARS = 10, 40
_WIDE, _HIGH, _LEFT, _FLOOR = 340, 130, 56, 110  # of a picture, in pixels
_COLOURS = ("#0072b2", "#c4550a", "#00855f", "#b04f86")


class Summary(NamedTuple):
    title: str
    rows: Sequence[Sequence[str]]
    note: str = ""
    columns: Sequence[str] = ()


class Displayed:
    """Base class of results that print as a table and show a picture in notebooks."""

    __slots__ = ()

    def _summary(self) -> Summary:
        raise NotImplementedError

    def _picture(self) -> str:
        return ""

    def __repr__(self) -> str:
        title, rows, note, columns = self._summary()
        table = [columns, *rows] if columns else rows
        widths = [0] * max(map(len, table), default=0)
        for row in table:
            # Without columns, the last cell of a row may be long.
            for k, cell in enumerate(row if columns else row[:-1]):
                widths[k] = max(widths[k], len(cell))
        lines = []
        for first, *rest in table:
            cells = map(str.rjust, rest, widths[1:])
            lines.append("  ".join(["", first.ljust(widths[0]), *cells]).rstrip())
        notes = [fill(one, 100, break_on_hyphens=False) for one in note.splitlines()]
        return "\n".join([*filter(None, [title]), *lines, *notes])

    def _repr_html_(self) -> str:
        title, rows, note, columns = self._summary()
        wide = max(map(len, rows), default=0)
        body = "".join(
            f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in row[:-1])}"
            f'<{tag} colspan="{wide - len(row) + 1 if rows else 1}">{escape(row[-1])}</{tag}></tr>'
            for tag, row in [("th", columns)] * bool(columns) + [("td", row) for row in rows]
        )
        return (
            f"<div><b>{escape(title)}</b>"
            '<div style="display:flex;flex-wrap:wrap;gap:2em;align-items:center">'
            f"<table>{body}</table>{self._picture()}</div>"
            f'<p style="max-width:50em">{escape(note)}</p></div>'
        )


def svg(
    about: str,
    *,
    bars: Iterable[tuple[float, float]] = (),
    labels: Sequence[Any] = (),
    points: Sequence[float] = (),
    lines: Iterable[Sequence[float]] = (),
    reference: float | None = None,
    marked: int | None = None,
) -> str:
    """Return a small SVG plot of lines, or of bars with points and a highlighted bar ``marked``."""
    ends, paths = [*bars][:MOST_BARS], [list(map(float, one)) for one in lines]
    values = [float(v) for of in (*ends, points, *paths) for v in of]
    finite = [v for v in [*values, *([] if reference is None else [reference])] if math.isfinite(v)]
    ends_of_axis = min(finite, default=0.0), max(finite, default=1.0)
    low, high = ends_of_axis
    room = 0.06 * (high - low) or abs(high) or 1.0
    low, high = low - room * (low != 0), high + room

    def y(value: float) -> float:
        inside = min(max(value, low), high)
        return round(_FLOOR - (_FLOOR - 22) * (inside - low) / (high - low), 1)

    def text(x: float, at: float, words: Any, anchor: str) -> str:
        return f'<text x="{x:.1f}" y="{at:.1f}" text-anchor="{anchor}">{escape(f"{words}")}</text>'

    parts = [text(_LEFT, 12, about, "start")]
    parts += [text(_LEFT - 4, y(v) + 4, f"{v:.2g}", "end") for v in dict.fromkeys(ends_of_axis)]
    step = (_WIDE - _LEFT) / max(1, len(ends))
    places = [_LEFT + (k + 0.5) * step for k in range(len(ends))]
    for k, (x, (a, b)) in enumerate(zip(places, ends, strict=True)):
        size = f'width="{0.6 * step:.1f}" height="{max(1.0, y(a) - y(b)):.1f}"'
        colour = _COLOURS[k == marked]
        if a <= b:
            parts.append(f'<rect x="{x - 0.3 * step:.1f}" y="{y(b)}" {size} fill="{colour}"/>')
    parts += [
        f'<circle cx="{x:.1f}" cy="{y(v)}" r="3"/>' for x, v in zip(places, points, strict=False)
    ]
    for k, one in enumerate(paths):
        along = (_WIDE - _LEFT) / max(1, len(one) - 1)
        route = " ".join(f"{_LEFT + i * along:.1f},{y(v)}" for i, v in enumerate(one))
        parts.append(f'<polyline points="{route}" fill="none" stroke="{_COLOURS[k % 4]}"/>')
    if ends and len(ends) <= 8:
        named = zip(places, labels, strict=False)
        parts += [text(x, _HIGH - 4, f"{w}"[: int(step / 6.5)], "middle") for x, w in named]
    elif len(labels):
        parts.append(text(_LEFT, _HIGH - 4, labels[0], "start"))
        parts.append(text(_WIDE, _HIGH - 4, labels[-1], "end"))
    parts.append(f'<path d="M{_LEFT} {y(low)}H{_WIDE}" stroke="currentColor"/>')
    if reference is not None:
        dash = 'stroke="currentColor" stroke-dasharray="5 4"'
        parts.append(f'<path d="M{_LEFT} {y(reference)}H{_WIDE}" {dash}/>')
    return (
        f'<svg viewBox="0 0 {_WIDE} {_HIGH}" width="{_WIDE}" height="{_HIGH}" role="img" '
        f'aria-label="{escape(about)}" font-size="12" fill="currentColor">{"".join(parts)}</svg>'
    )
