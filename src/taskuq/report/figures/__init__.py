"""Figures as data, figures of JSON results, and drawing with matplotlib."""

from __future__ import annotations

import io
import itertools
import math
import re
import warnings
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
from markupsafe import Markup

from taskuq._io import atomic_write, complete_record, image_format
from taskuq._registry import Registry
from taskuq.errors import InputError

Style = Literal["line", "bars", "points", "step", "strip", "interval"]
XScale = Literal["linear", "log2", "category"]
Row = TypeVar("Row")

# One unit is a pixel of the report and a point on paper.
_WIDTH, _HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 18, 40, 56
# The report's light colours, distinct for colour-blind readers; its style sheet has dark
# ones under the same names.
_COLOURS = ("#0072b2", "#c4550a", "#00855f", "#b04f86", "#b07d00", "#3d93c2", "#4a4f57", "#7558ad",
            "#8a5a3c")  # fmt: skip
# One colour for each method throughout the report, in figures, legends and the explorer.
METHOD_COLOURS = {
    "fixed-width": 0, "lwr": 1, "cqr": 2, "mlwr": 3, "learned": 4,
    "fixed-width learned": 5, "ar": 6, "anytime": 7, "fixed-width spread 0.5": 8,
    "adaptive": 3, "zero-filled": 6, "varnet": 7, "flow": 8, "sampler": 4,
    "chance": 6, "ideal": 6,
}  # fmt: skip
_ROUNDS = 6  # rows of marks, one for each round or case
_SOFT, _RULE, _SUNK = "#555f6d", "#e3e0da", "#f2f0ec"
_VARIABLES = {colour: f"var(--c{k})" for k, colour in enumerate(_COLOURS)} | {
    _SOFT: "var(--soft)", _RULE: "var(--rule)", _SUNK: "var(--sunk)",
}  # fmt: skip
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_SWATCHES = ("●", "■", "▲", "◆", "▼", "✚", "✖")
# Font sizes, which the style sheet knows as classes.
_TICK, _LABEL, _NOTE = 12.0, 12.5, 11.5
_CLASSES = {"12": "tick", "12.5": "label", "11.5": "note"}
# Positive values below this cannot be placed on a logarithmic axis.
_SMALLEST = 1e-280
_MOST_MARKERS = 60
_ABREAST = ("bars", "points", "interval")
_Point = tuple[float, float, float]  # position, value, error


@dataclass(frozen=True)
class Series:
    """One line, or one set of bars or marks, of a figure.

    Args:
        name: Name in the legend.
        x: Positions, numbers or categories.
        y: Values; None if missing.
        error: Half-lengths of the error bars.
        style: 'line', 'bars', 'points', 'step', 'interval' (from y - error to y + error) or 'strip'
            (one row of marks, fainter for values further below 1).
    """

    name: str
    x: tuple[float | str, ...]
    y: tuple[float | None, ...]
    error: tuple[float | None, ...] | None = None
    style: Style = "line"


@dataclass(frozen=True)
class Figure:
    """A figure as data.

    Args:
        name: File name of the figure.
        caption: Caption, one sentence.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
        series: Series to plot.
        x_scale: 'linear', 'log2' (accelerations, sample counts) or 'category'.
        y_scale: 'linear' or 'log'.
        x_reversed: True to put large values on the left.
        reference: Named horizontal lines, such as the target coverage.
        title: Finding in a few words; default: the name.
        picture: A PNG file as Base64 text, shown in place of the series.
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
    title: str = ""
    picture: str = ""

    @property
    def is_empty(self) -> bool:
        """True if the figure has no values to plot."""
        return not any(_is_number(y) for series in self.series for y in series.y)

    @property
    def is_strip(self) -> bool:
        """True if the series are drawn as rows of marks."""
        return any(series.style == "strip" for series in self.series)

    def to_dict(self) -> dict[str, Any]:
        """Return the figure as JSON values; values that are not finite are null."""
        return dict(plain_values(asdict(self)))


@dataclass(frozen=True)
class FigureKind:
    """Kind of figure and its place in the report.

    Args:
        schema: Schema of the source records, e.g. ``"taskuq.evaluate/1"``.
        describe: Function that converts a record to figures.
        heading: Heading in the report.
        reading: Function that converts a record to a sentence on how to read the figures.
    """

    schema: str
    describe: Callable[[Mapping[str, Any]], Sequence[Figure]]
    heading: str = "Further figures"
    reading: Callable[[Mapping[str, Any]], str] = lambda record: ""


FIGURES: Registry[FigureKind] = Registry(
    "figure",
    {
        "width-against-acceleration": "taskuq.report.figures._evaluation:AGAINST_ACCELERATION",
        "width-against-samples": "taskuq.report.figures._evaluation:AGAINST_SAMPLES",
        "coverage": "taskuq.report.figures._evaluation:LAW",
        "conditional-coverage": "taskuq.report.figures._evaluation:CONDITIONAL",
        "sample-ranks": "taskuq.report.figures._evaluation:RANKS",
        "accepted-by-acceleration": "taskuq.report.figures._policy:ACCEPTED",
        "coverage-by-stop": "taskuq.report.figures._policy:COVERAGE",
        "acceleration-against-width": "taskuq.report.figures._policy:TRADE_OFF",
        "image-quality": "taskuq.report.figures._imaging:QUALITY",
        "task-network": "taskuq.report.figures._imaging:TASK",
        "split": "taskuq.report.figures._imaging:SPLIT",
        "masks": "taskuq.report.figures._imaging:MASKS",
        "lines": "taskuq.report.figures._policy:LINES",
        "calibration-size": "taskuq.report.figures._imaging:PLANNER",
        "evidence": "taskuq.report.figures._policy:EVIDENCE",
    },
)


def figures_from_record(record: Mapping[str, Any]) -> list[tuple[FigureKind, Figure]]:
    """Return the figures of a JSON result (such as evaluate.json), each with its kind."""
    kinds = [kind for kind in map(FIGURES.__getitem__, FIGURES) if kind.schema == record["schema"]]
    return [(kind, figure) for kind in kinds for figure in kind.describe(record)]


def series_from_rows(
    rows: Iterable[Row],
    by: Callable[[Row], str],
    x: Callable[[Row], float | str],
    y: Callable[[Row], float | None],
    error: Callable[[Row], float | None] | None = None,
    style: Style = "line",
) -> tuple[Series, ...]:
    """Return one series for each name, with one point for each row of that name."""
    named: dict[str, list[Row]] = {}
    for row in rows:
        named.setdefault(by(row), []).append(row)
    return tuple(
        Series(name, tuple(map(x, of)), tuple(map(y, of)), error and tuple(map(error, of)), style)
        for name, of in named.items()
    )


def figure_from_dict(record: Any) -> Figure:
    """Return the figure described by a dictionary in the format of :meth:`Figure.to_dict`."""
    with complete_record("a figure", "record", "write it again"):
        figure = Figure(
            **{name: str(record[name]) for name in ("name", "caption", "x_label", "y_label")},
            series=tuple(map(_series_from_dict, record["series"])),
            x_scale=record.get("x_scale", "linear"),
            y_scale=record.get("y_scale", "linear"),
            x_reversed=bool(record.get("x_reversed", False)),
            reference=tuple((str(n), float(y)) for n, y in record.get("reference", ())),
            title=str(record.get("title", "")),
            picture=str(record.get("picture", "")),
        )
        if figure.picture and not b64decode(figure.picture, validate=True).startswith(b"\x89PNG"):
            raise ValueError("its picture is not a PNG file")
    if figure.x_scale not in get_args(XScale) or figure.y_scale not in ("linear", "log"):
        text = f"figure {figure.name!r:.40} has an unknown scale"
        raise InputError(text, code="choice.unknown")
    return figure


def _series_from_dict(record: Mapping[str, Any]) -> Series:
    def numbers(values: Any) -> tuple[float | None, ...]:
        return tuple(None if v is None else float(v) for v in values)

    x = tuple(v if isinstance(v, int | float) else str(v) for v in record["x"])
    y, error = numbers(record["y"]), record.get("error")
    reach = None if error is None else numbers(error)
    found = Series(str(record["name"]), x, y, reach, record.get("style", "line"))
    lengths = {len(x), len(y), len(y if reach is None else reach)}
    if len(lengths) > 1 or found.style not in get_args(Style):
        raise ValueError(f"series {found.name!r:.40} has positions and values of different lengths")
    return found


def plain_values(value: Any) -> Any:
    """Convert values to JSON types: arrays to lists, numbers that are not finite to null."""
    if isinstance(value, Mapping):
        return {str(k): plain_values(v) for k, v in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple | set):
        return [plain_values(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)


def draw_all(figure: Figure, paths: Sequence[Path]) -> list[Path]:
    """Draw a figure once and write it to several files."""
    with _settings():
        canvas = _drawn(figure, legend=True)
        for path in paths:
            undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
            with atomic_write(path) as partial:
                canvas.savefig(
                    partial, format=image_format(path), dpi=160, metadata=undated.get(path.suffix)
                )
    return list(paths)


def save_figures(
    record: Mapping[str, Any], folder: Path, endings: Sequence[str] = (".svg", ".png")
) -> Path:
    """Save the figures of a JSON result (such as evaluate.json) to a folder; return the folder."""
    for _, figure in figures_from_record(record):
        draw_all(figure, [folder / f"{figure.name}{ending}" for ending in endings])
    return folder


def figure_svg(figure: Figure, identity: str = "fig") -> Markup:
    """Return a figure as an SVG element of the report; its ids begin with ``identity``."""
    if figure.picture:
        return Markup('<img class="plot" alt="{}" src="data:image/png;base64,{}">').format(
            figure.caption, figure.picture
        )
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    file = io.StringIO()
    with _settings():
        canvas = _drawn(figure, legend=False)
        for part in (canvas, *canvas.axes):
            part.patch.set_visible(False)
        canvas.savefig(file, format="svg", metadata=nothing)
        height = round(canvas.get_figheight() * 72)
    # Groups carry no style here. What is left are paths, marks and texts.
    text = re.sub(r"<\?xml.*?<svg.*?>|<defs>\s*<style.*?</defs>|</?g\b[^>]*>|</svg>", "",
                  file.getvalue(), count=0, flags=re.DOTALL)  # fmt: skip
    text = re.sub(r"<[^>]+>\s*", lambda tag: _short_tag(tag[0], identity), text)
    return Markup(
        '<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(_WIDTH, height, figure.caption, Markup(text.strip()))


def legend_of(figure: Figure) -> list[tuple[Markup, str]]:
    """Return (swatch, name) pairs of the series; [] for a single series, strips or a picture."""
    if len(figure.series) < 2 or figure.is_strip or figure.picture:
        return []
    swatch = Markup('<span class="swatch c{}" aria-hidden="true">{}</span>')
    signs = {"bars": "■", "step": "━"}
    return [
        (
            swatch.format(look.colour, signs.get(s.style, _SWATCHES[look.marker])),
            method_label(s.name),
        )
        for s, look in zip(figure.series, _looks(figure), strict=True)
    ]


def method_colour(name: str) -> int | None:
    """Return the colour number of a score, policy or reconstruction, or None."""
    words = name.split()
    keys = name, *words[:1], *(words[1:2] if words[:1] == ["paper"] else ())
    return next((METHOD_COLOURS[key] for key in keys if key in METHOD_COLOURS), None)


def method_label(name: str) -> str:
    """Return the display name of a method; acronyms are capitalised."""
    if method_colour(name) is None:
        return name
    return re.sub(r"\b(m?lwr|cqr|ar)\b", lambda word: word[0].upper(), name)


class _Look(NamedTuple):
    colour: int
    marker: int
    turn: int  # how many series before it share its colour


def _looks(figure: Figure) -> list[_Look]:
    """Return the look of each series; methods have fixed colours, other series unused ones."""
    known = [method_colour(series.name) for series in figure.series]
    free = itertools.cycle([k for k in range(7) if k not in known] or range(7))
    looks: list[_Look] = []
    for own in known:
        colour = next(free) if own is None else own
        turn = sum(look.colour == colour for look in looks)
        looks.append(_Look(colour, (colour + 3 * turn) % 7, turn))
    return looks


def _short_tag(tag: str, identity: str) -> str:
    """Shorten an SVG tag: round numbers to one decimal, use CSS for colours and fonts."""
    tag = re.sub(r"-?\d+\.\d+", lambda n: f"{float(n[0]):.1f}".removesuffix(".0"), tag)
    tag = re.sub(r"#[0-9a-f]{6}\b", lambda c: _VARIABLES.get(c[0], c[0]), tag)
    tag = re.sub(r'(id="|href="#)m', rf"\1{identity}-m", tag).replace("xlink:href", "href")
    tag = re.sub(
        r' transform="rotate\(-0 [^"]*"|; stroke-line\w+: \w+|stroke-dashoffset: 0; ', "", tag
    )
    if style := re.match(r'<text style="font-size: ([\d.]+)px[^"]*"', tag):
        anchor = re.search(r"anchor: (\w+)", style[0])
        place = f' text-anchor="{anchor[1]}"' if anchor else ""
        tag = f'<text class="{_CLASSES[style[1]]}"{place}{tag[style.end() :]}'
    return re.sub(r"\s*\n\s*|(?<=[;:]) ", "", tag)


@contextmanager
def _settings() -> Iterator[None]:
    """Set up matplotlib to write reproducible files that contain text instead of paths."""
    import matplotlib as mpl

    settings: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "taskuq", "text.parse_math": False,
        "path.simplify": False, "axes.unicode_minus": False,
    }  # fmt: skip
    with mpl.rc_context(settings), warnings.catch_warnings():
        # Letters that the font lacks become boxes in PNG and PDF, and stay letters in SVG.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def _drawn(figure: Figure, *, legend: bool) -> Any:
    """Return a matplotlib figure, without a legend if the report has it in HTML."""
    from matplotlib.figure import Figure as MplFigure

    if figure.picture:
        return _drawn_picture(figure)
    if figure.is_strip:
        return _drawn_strips(figure)
    names = [series.name for series in figure.series] if legend and len(figure.series) > 1 else []
    columns = max(1, _WIDTH // (40 + 7 * min(40, max(map(len, names), default=0))))
    top = _TOP + 18 * -(-len(names) // columns)
    bottom = _BOTTOM + 16 * any("\n" in str(x) for x in _categories(figure))
    height = _HEIGHT - _TOP + top
    canvas = MplFigure(figsize=(_WIDTH / 72, height / 72), dpi=72)
    size = (_WIDTH - _LEFT - _RIGHT) / _WIDTH, (height - top - bottom) / height
    axes = canvas.add_axes((_LEFT / _WIDTH, bottom / height, *size))
    _draw(axes, figure)
    axes.tick_params(labelsize=_TICK, labelcolor=_SOFT, pad=7)
    axes.set_xlabel(figure.x_label, color=_SOFT, size=_LABEL, labelpad=8)
    # Upright above the axis, so that no tick is in its way however large the text is.
    axes.annotate(figure.y_label, (0, 1), (4 - _LEFT, 20), xycoords="axes fraction",
                  textcoords="offset points", color=_SOFT, size=_LABEL)  # fmt: skip
    if names:
        canvas.legend(
            *axes.get_legend_handles_labels(), loc="upper left", ncols=columns, frameon=False,
            fontsize=_NOTE, labelcolor=_SOFT, borderpad=0.2, borderaxespad=0, handlelength=1.4,
        )  # fmt: skip
    return canvas


def draw_on(axes: Any, figure: Figure) -> Any:
    """Draw a figure on the user's axes, with labels, title and legend; return the axes."""
    if figure.is_strip:
        _draw_strips(axes, figure)
    else:
        _draw(axes, figure)
        axes.set(xlabel=figure.x_label, ylabel=figure.y_label)
        if len(figure.series) > 1:
            axes.legend(frameon=False)
    axes.set_title(figure.title, loc="left", wrap=True)
    return axes


def _draw(axes: Any, figure: Figure) -> None:
    """Draw the series and reference lines of a figure on matplotlib axes."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set(color=_SOFT, alpha=0.55)
    axes.tick_params(length=0)
    axes.grid(axis="y", color=_RULE, linewidth=1, clip_on=False)
    axes.set_axisbelow(True)
    _scale(axes, figure)
    for series, look in zip(figure.series, _looks(figure), strict=True):
        _draw_series(axes, figure, series, look)
    for name, value in figure.reference:
        axes.axhline(value, color=_SOFT, linewidth=1, linestyle=(0, (5, 4)), clip_on=False)
        axes.annotate(
            f"{name} {value:.3g}", (1, value), (-2, 4), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", color=_SOFT, size=_NOTE,
        )  # fmt: skip


def _drawn_picture(figure: Figure) -> Any:
    import matplotlib.image
    from matplotlib.figure import Figure as MplFigure

    pixels = matplotlib.image.imread(io.BytesIO(b64decode(figure.picture)), format="png")
    canvas = MplFigure(figsize=(pixels.shape[1] / 160, pixels.shape[0] / 160), dpi=160)
    canvas.figimage(pixels)
    return canvas


def _drawn_strips(figure: Figure) -> Any:
    from matplotlib.figure import Figure as MplFigure

    height = len(figure.series) * sum(_strip_size(figure)) + 24
    canvas = MplFigure(figsize=(_WIDTH / 72, height / 72), dpi=72)
    _draw_strips(canvas.add_axes((12 / _WIDTH, 0, 1 - 24 / _WIDTH, 1)), figure)
    return canvas


def _strip_size(figure: Figure) -> tuple[int, int]:
    return (30, 28) if len(figure.series) <= 8 else (10, 18)


def _draw_strips(axes: Any, figure: Figure) -> None:
    """Draw one row of marks per series, with the name of the series above the row."""
    row, gap = _strip_size(figure)
    numbers = [float(x) for s in figure.series for x in s.x if _is_number(x)]
    low, high = min(numbers, default=0.0), max(numbers, default=1.0) + 1
    height = len(figure.series) * (row + gap) + 24
    axes.set(xlim=(low, high), ylim=(height, 0))
    axes.axis("off")
    for k, series in enumerate(figure.series):
        top = 22 + k * (row + gap)
        axes.text(low, top - 5, series.name, color=_SOFT, size=_TICK)
        _draw_boxes(axes, [(low, top, high, top + row)], color=_SUNK)
        for shade, places in _shades(series):
            boxes = [(x, top, x + 0.82, top + row) for x in places]
            _draw_boxes(axes, boxes, color=_COLOURS[_ROUNDS], alpha=None if shade == 1 else shade)
    middle = (low + high) / 2
    axes.text(middle, height - 10, figure.x_label, color=_SOFT, size=_LABEL, ha="center")


def _shades(series: Series) -> list[tuple[float, list[float]]]:
    """Return (darkness, positions) pairs of a row of marks; darkness is in steps of 0.1."""
    found: dict[float, list[float]] = {}
    for x, y in zip(series.x, series.y, strict=True):
        if _is_number(x) and _is_number(y) and y:
            shade = min(1.0, max(0.1, round(float(y), 1)))
            found.setdefault(shade, []).append(float(x))
    return sorted(found.items())


def _draw_series(axes: Any, figure: Figure, series: Series, look: _Look) -> None:
    colour, points = _COLOURS[look.colour], _points(figure, series)
    label = method_label(series.name)
    if not points:
        return
    xs, ys = [x for x, _, _ in points], [y for _, y, _ in points]
    is_line, is_sparse = series.style == "line", len(points) <= _MOST_MARKERS
    if series.style == "bars":
        _draw_bars(axes, figure, series, points, look)
    elif series.style == "interval":
        axes.plot([], [], color=colour, alpha=0.75, linewidth=6, label=label)  # for the legend
    elif series.style == "step":
        axes.step(xs, ys, where="mid", color=colour, label=label, linewidth=2, clip_on=False)
    else:
        axes.plot(
            xs, ys, color=colour, linewidth=2 if is_line else 0, clip_on=False,
            marker=_MARKERS[look.marker] if is_sparse or not is_line else "",
            markersize=7, markeredgewidth=0, alpha=None if is_sparse else 0.5 + 0.5 * is_line,
            label=label, solid_capstyle="butt",
        )  # fmt: skip
    low, high = axes.get_ylim()
    ends = [(x, max(y - e, low), min(y + e, high)) for x, y, e in points if e]
    if ends:
        axes.plot(
            [v for x, _, _ in ends for v in (x, x, math.nan)],
            [v for _, a, b in ends for v in (a, b, math.nan)],
            color=colour, alpha=0.75, linewidth=6 if series.style == "interval" else 1.4,
            clip_on=False, solid_capstyle="butt",
        )  # fmt: skip


def _draw_bars(
    axes: Any, figure: Figure, series: Series, points: list[_Point], look: _Look
) -> None:
    # Bars are equally wide on the scale of the axis.
    scale = axes.xaxis.get_transform()
    places = scale.transform([x for x, _, _ in points])
    if figure.x_scale == "category":
        half = 0.4 / sum(s.style == "bars" for s in figure.series)
    else:
        gaps = np.diff(np.unique(places))
        half = 0.48 * (gaps.min() if len(gaps) else np.ptp(scale.transform(axes.get_xlim())) / 20)
    ends = (scale.inverted().transform(places + side) for side in (-half, half))
    left, right = (np.clip(end, *sorted(axes.get_xlim())) for end in ends)
    floor = axes.get_ylim()[0] if figure.y_scale == "log" else 0.0
    boxes = [(a, floor, b, y) for a, b, (_, y, _) in zip(left, right, points, strict=True)]
    # A colour that repeats is fainter.
    alpha = (0.82, 0.45, 0.25)[look.turn % 3]
    _draw_boxes(
        axes, boxes, color=_COLOURS[look.colour], alpha=alpha, label=method_label(series.name)
    )


def _draw_boxes(axes: Any, boxes: Sequence[tuple[float, ...]], **look: Any) -> None:
    """Draw rectangles as one path to keep the file small."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    corners = [[(a, b), (c, b), (c, d), (a, d), (a, b)] for a, b, c, d in boxes]
    codes = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY]
    outline = Outline(np.reshape(corners, (-1, 2)), codes * len(boxes))
    axes.add_patch(PathPatch(outline, linewidth=0, clip_on=False, **look))


def _points(figure: Figure, series: Series) -> list[_Point]:
    categories, shift = _categories(figure), 0.0
    if categories and series.style in _ABREAST:
        # Series of a kind are next to each other within a category.
        alike = [s is series for s in figure.series if s.style in _ABREAST]
        shift = (alike.index(True) - (len(alike) - 1) / 2) * 0.8 / len(alike)
    found = []
    for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        place = categories.index(x) + shift if categories else x
        if not _is_number(y) or not _is_number(place):
            continue
        is_off = figure.y_scale == "log" and not (y or 0) > _SMALLEST
        if is_off or (figure.x_scale == "log2" and not float(place) > _SMALLEST):
            continue
        reach = series.error[i] if series.error else None
        found.append((float(place), float(y or 0), float(reach or 0) if _is_number(reach) else 0.0))
    return found


def _categories(figure: Figure) -> list[float | str]:
    is_category = figure.x_scale == "category"
    return list(dict.fromkeys(x for s in figure.series for x in s.x)) if is_category else []


def _scale(axes: Any, figure: Figure) -> None:
    from matplotlib.ticker import MaxNLocator

    numbers = [float(x) for s in figure.series for x in s.x if _is_number(x)]
    names = _categories(figure)
    if names:
        axes.set_xlim(-0.5, len(names) - 0.5)
        _name_ticks(axes, list(range(len(names))), list(map(str, names)))
    elif figure.x_scale == "log2":
        places = sorted({x for x in numbers if x > _SMALLEST}) or [1.0]
        axes.set_xscale("log", base=2)
        axes.set_xlim(places[0] / 1.15, places[-1] * 1.15)
        _name_ticks(axes, places, [f"{x:g}" for x in places])
    else:
        has_width = any(s.style in _ABREAST for s in figure.series)
        if any(s.style == "bars" for s in figure.series) and len(set(numbers)) > 1:
            half = float(np.diff(np.unique(numbers)).min()) / 2
            numbers += [min(numbers) - half, max(numbers) + half]
        axes.set_xlim(*_ends(numbers, pad=0.06 if has_width else 0.02))
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter("{x:.6g}")
    if figure.x_reversed:
        axes.invert_xaxis()
    values = [reference for _, reference in figure.reference]
    for series in figure.series:
        values += [v for _, y, e in _points(figure, series) for v in (y - e, y, y + e)]
    if figure.y_scale == "log":
        positive = [y for y in values if y > _SMALLEST] or [1.0, 10.0]
        first = math.floor(math.log10(min(positive)) + 1e-9)
        last = max(math.ceil(math.log10(max(positive)) - 1e-9), first + 1)
        axes.set_yscale("log")
        axes.set_ylim(10.0**first, 10.0**last)
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        # The length of a bar is read from zero; points and lines may leave zero out.
        has_bars = any(s.style == "bars" for s in figure.series)
        if has_bars or 0 <= min(values, default=0.0) < 0.5 * max(values, default=1.0):
            values.append(0.0)
        axes.set_ylim(*_ends(values, pad=0.06))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_major_formatter("{x:.6g}")
    axes.minorticks_off()


def _name_ticks(axes: Any, places: Sequence[float], names: Sequence[str]) -> None:
    """Label positions on the horizontal axis; omit or shorten labels that would overlap."""
    inside = _WIDTH - _LEFT - _RIGHT
    # As wide as the larger letters of a phone.
    lines = [line for name in names for line in name.split("\n")]
    wide = 10 * min(max(map(len, lines)), 12) + 10
    step = max(1, -(-len(names) * wide // inside))
    most = max(6, int(inside / (10 * -(-len(names) // step))))
    short = [
        "\n".join(t if len(t) <= most else f"{t[: most - 1]}…" for t in text.split("\n"))
        for text in names[::step]
    ]
    axes.set_xticks(places[::step], short)


def _ends(values: Sequence[float], pad: float) -> tuple[float, float]:
    """Return the limits of a linear axis, with a margin at each end that is not zero."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low <= max(1e-9 * max(abs(low), abs(high)), _SMALLEST):
        size = max(abs(low), abs(high)) or 1.0
        low, high = low - 0.1 * size, high + 0.1 * size
    room = pad * (high - low)
    return low if low == 0 else low - room, high if high == 0 else high + room


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
