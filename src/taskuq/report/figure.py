"""A figure as data: what is shown, before any ink; and the list of all kinds of figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from taskuq.errors import InputError
from taskuq.kinds import Kinds

Style = Literal["line", "bars", "points", "step", "strip"]
XScale = Literal["linear", "log2", "category"]
Row = TypeVar("Row")


@dataclass(frozen=True)
class Series:
    """One line, or one set of bars.

    Arguments:
        name: What the legend calls it.
        x: Positions, numbers or categories.
        y: Values; None where missing.
        error: The length of error bars on both sides, if any.
        style: 'line', 'bars', 'points', 'step', or 'strip': one row of marks at the positions,
            which are the fainter the further values are below 1.
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

    @property
    def is_strip(self) -> bool:
        """Whether its series are rows of marks."""
        return any(series.style == "strip" for series in self.series)

    def to_dict(self) -> dict[str, Any]:
        """Return the figure's numbers as JSON can hold them; what is not a number is null."""
        return dict(drawable(asdict(self)))


@dataclass(frozen=True)
class FigureKind:
    """One kind of figure: which records it is drawn from, how, and where the page puts it.

    Arguments:
        schema: What the records say they are, e.g. ``"taskuq.evaluate/1"``.
        describe: From such a record to its figures; none where the record lacks what they take.
        heading: What they stand under on the page.
        title: What the page calls each of them; their names in words where None.
        reading: A sentence on how they are to be read, if it takes one.
    """

    schema: str
    describe: Callable[[Mapping[str, Any]], Sequence[Figure]]
    heading: str = "Further figures"
    title: str | None = None
    reading: Callable[[Mapping[str, Any]], str] = lambda record: ""


FIGURES: Kinds[FigureKind] = Kinds(
    "figure",
    {
        "width-against-acceleration": "taskuq.report.evaluations:AGAINST_ACCELERATION",
        "width-against-samples": "taskuq.report.evaluations:AGAINST_SAMPLES",
        "coverage": "taskuq.report.evaluations:LAW",
        "conditional-coverage": "taskuq.report.evaluations:CONDITIONAL",
        "accepted-by-acceleration": "taskuq.report.simulations:ACCEPTED",
        "coverage-by-stop": "taskuq.report.simulations:COVERAGE",
        "acceleration-against-width": "taskuq.report.simulations:TRADE_OFF",
        "image-quality": "taskuq.report.networks:QUALITY",
        "task-network": "taskuq.report.networks:TASK",
        "split": "taskuq.report.networks:SPLIT",
        "masks": "taskuq.report.networks:MASKS",
        "lines": "taskuq.report.chosen:LINES",
        "calibration-size": "taskuq.report.networks:PLANNER",
        "evidence": "taskuq.report.watching:EVIDENCE",
    },
)


def shades(series: Series) -> list[tuple[float, list[float]]]:
    """Return the places of a row of marks by how dark they are, in tenths; faint ones first.

    Example:
        >>> shades(Series("R = 8", (0, 1, 2, 3), (1.0, 0.0, 0.31, 1.0), style="strip"))
        [(0.3, [2.0]), (1.0, [0.0, 3.0])]
    """
    found: dict[float, list[float]] = {}
    for x, y in zip(series.x, series.y, strict=True):
        if is_number(x) and is_number(y) and y:
            shade = min(1.0, max(0.1, round(float(y), 1)))
            found.setdefault(shade, []).append(float(x))
    return sorted(found.items())


def figures_of(record: Mapping[str, Any]) -> list[tuple[FigureKind, Figure]]:
    """Return every figure that a record with a ``schema`` supports, with its kind.

    Example:
        >>> split = {"schema": "taskuq.split/1", "train": ["a", "b"], "tune": ["c"], "judge": ["d"]}
        >>> [figure.series[0].y for _, figure in figures_of(split)]
        [(2.0, 1.0, 1.0)]
    """
    kinds = [kind for kind in map(FIGURES.__getitem__, FIGURES) if kind.schema == record["schema"]]
    return [(kind, figure) for kind in kinds for figure in kind.describe(record)]


def series_of(
    rows: Iterable[Row],
    by: Callable[[Row], str],
    x: Callable[[Row], float | str],
    y: Callable[[Row], float | None],
    error: Callable[[Row], float | None] | None = None,
    style: Style = "line",
) -> tuple[Series, ...]:
    """Return one series for each name among some rows.

    Arguments:
        rows: What is drawn, one point each.
        by: The name of a row's series.
        x: Its position.
        y: Its value.
        error: The length of its error bars.
        style: How all of them are drawn.

    Example:
        >>> rows = [("ar", 16, 0.2), ("lwr", 16, 0.1), ("ar", 8, 0.1)]
        >>> series_of(rows, lambda r: r[0], lambda r: r[1], lambda r: r[2])[0]
        Series(name='ar', x=(16, 8), y=(0.2, 0.1), error=None, style='line')
    """
    named: dict[str, list[Row]] = {}
    for row in rows:
        named.setdefault(by(row), []).append(row)
    return tuple(
        Series(name, tuple(map(x, of)), tuple(map(y, of)), error and tuple(map(error, of)), style)
        for name, of in named.items()
    )


def figure_from_dict(record: Any) -> Figure:
    """Return the figure that :meth:`Figure.to_dict` described, perhaps written by somebody else.

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


def is_number(value: Any) -> bool:
    """Whether a value can be drawn: a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def _series(record: Mapping[str, Any]) -> Series:
    def numbers(values: Any) -> tuple[float | None, ...]:
        return tuple(None if v is None else float(v) for v in values)

    x = tuple(v if isinstance(v, int | float) else str(v) for v in record["x"])
    y, error = numbers(record["y"]), record.get("error")
    reach = None if error is None else numbers(error)
    found = Series(str(record["name"]), x, y, reach, record.get("style", "line"))
    if {len(x), len(y)} != {len(y if reach is None else reach)} or found.style not in get_args(
        Style
    ):
        raise ValueError(f"series {found.name!r:.40} does not fit together")
    return found


def drawable(value: Any) -> Any:
    """Return values that JSON can hold: arrays as lists, what is not finite as null.

    Example:
        >>> drawable({"R": np.array([16.0, np.nan]), "n": np.int64(3)})
        {'R': [16.0, None], 'n': 3}
    """
    if isinstance(value, Mapping):
        return {str(k): drawable(v) for k, v in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple | set):
        return [drawable(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)
