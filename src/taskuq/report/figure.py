"""A figure as data: what is shown, before any ink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Series:
    """One line, or one set of bars.

    Arguments:
        name: What the legend calls it.
        x: Positions, numbers or categories.
        y: Values; None where missing.
        error: The length of error bars on both sides, if any.
        style: 'line', 'bars', 'points' or 'step'.
    """

    name: str
    x: tuple[float | str, ...]
    y: tuple[float | None, ...]
    error: tuple[float, ...] | None = None
    style: Literal["line", "bars", "points", "step"] = "line"


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
        reference: Horizontal lines with a name, e.g. the target coverage.
    """

    name: str
    caption: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_scale: Literal["linear", "log2", "category"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    x_reversed: bool = False
    reference: tuple[tuple[str, float], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the figure's numbers as JSON can hold them."""
        return asdict(self)


def rows(figure: Figure) -> list[Mapping[str, float | str | None]]:
    """Return the numbers of a figure as a table.

    Example:
        >>> figure = Figure("f", "Widths fall.", "R", "width", (Series("ar", (16, 8), (0.2, 0.1)),))
        >>> rows(figure)[0]
        {'series': 'ar', 'R': 16, 'width': 0.2}
    """
    return [
        {"series": series.name, figure.x_label: x, figure.y_label: y}
        for series in figure.series
        for x, y in zip(series.x, series.y, strict=True)
    ]
