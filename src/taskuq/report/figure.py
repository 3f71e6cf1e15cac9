"""A figure as data: what is shown, before any ink."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from taskuq.errors import InputError

Style = Literal["line", "bars", "points", "step", "strip"]
XScale = Literal["linear", "log2", "category"]


@dataclass(frozen=True)
class Series:
    """One line, or one set of bars.

    Arguments:
        name: What the legend calls it.
        x: Positions, numbers or categories.
        y: Values; None where missing.
        error: The length of error bars on both sides, if any.
        style: 'line', 'bars', 'points', 'step', or 'strip': one row of marks at the positions.
    """

    name: str
    x: tuple[float | str, ...]
    y: tuple[float | None, ...]
    error: tuple[float | None, ...] | None = None
    style: Style = "line"


@dataclass(frozen=True)
class Figure:
    """A figure that answers one question.

    Arguments:
        name: A name for files.
        caption: What it shows, as a sentence.
        x_label: What the horizontal axis is.
        y_label: What the vertical axis is.
        series: What is drawn.
        x_scale: 'linear', 'log2' (accelerations, sample counts) or 'category'.
        y_scale: 'linear' or 'log'.
        x_reversed: Whether large values stand on the left.
        reference: Horizontal lines with a name, e.g. the target coverage.
    """

    name: str
    caption: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_scale: XScale = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    x_reversed: bool = False
    reference: tuple[tuple[str, float], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is no number to draw."""
        return not any(is_number(y) for series in self.series for y in series.y)

    def to_dict(self) -> dict[str, Any]:
        """Return the figure's numbers as JSON can hold them; what is not a number is null."""
        return dict(_plain(asdict(self)))


def figure_from_dict(record: Any) -> Figure:
    """Read a figure back from its description.

    Arguments:
        record: What :meth:`Figure.to_dict` returned, perhaps written by somebody else.

    Example:
        >>> figure = Figure("f", "It falls.", "R", "width", (Series("ar", (16, 8), (0.2, None)),))
        >>> figure_from_dict(figure.to_dict()) == figure
        True
    """
    try:
        series = tuple(_series(one) for one in record["series"])
        figure = Figure(
            name=str(record["name"]),
            caption=str(record["caption"]),
            x_label=str(record["x_label"]),
            y_label=str(record["y_label"]),
            series=series,
            x_scale=record.get("x_scale", "linear"),
            y_scale=record.get("y_scale", "linear"),
            x_reversed=bool(record.get("x_reversed", False)),
            reference=tuple((str(n), float(y)) for n, y in record.get("reference", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"a figure is not complete ({error!r:.80}); write it again") from None
    if figure.x_scale not in get_args(XScale) or figure.y_scale not in ("linear", "log"):
        raise InputError(f"figure {figure.name!r:.40} has a scale nobody knows; write it again")
    return figure


def rows(figure: Figure) -> list[Mapping[str, float | str | None]]:
    """Return the numbers of a figure as a table.

    Example:
        >>> figure = Figure("f", "Widths fall.", "R", "width", (Series("ar", (16, 8), (0.2, 0.1)),))
        >>> rows(figure)[0]
        {'series': 'ar', 'R': 16, 'width': 0.2}
    """
    has_error = any(series.error for series in figure.series)
    table: list[Mapping[str, float | str | None]] = []
    for series in figure.series:
        for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            row: dict[str, float | str | None] = {
                "series": series.name, figure.x_label: x, figure.y_label: y,
            }  # fmt: skip
            if has_error:
                row["±"] = series.error[i] if series.error else None
            table.append(row)
    return table


def is_number(value: Any) -> bool:
    """Whether a value can be drawn: a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def _series(record: Mapping[str, Any]) -> Series:
    x = tuple(v if isinstance(v, int | float) else str(v) for v in record["x"])
    y = tuple(None if v is None else float(v) for v in record["y"])
    error = record.get("error")
    found = Series(
        str(record["name"]),
        x,
        y,
        None if error is None else tuple(None if v is None else float(v) for v in error),
        record.get("style", "line"),
    )
    lengths = {len(found.x), len(found.y), *([] if found.error is None else [len(found.error)])}
    if len(lengths) > 1 or found.style not in get_args(Style):
        raise ValueError(f"series {found.name!r:.40} does not fit together")
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "item"):  # a NumPy scalar
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
