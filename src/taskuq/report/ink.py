"""Drawing figures with matplotlib: colour-blind safe, readable in print."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taskuq.files import whole_file
from taskuq.report.axes import offset
from taskuq.report.figure import Figure, Series, figures_of, shades

# Okabe and Ito's palette, told apart by most colour-blind readers, with markers for print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def draw(figure: Figure, path: str | Path) -> Path:
    """Draw a figure to a file; its ending picks SVG, PNG or PDF."""
    return draw_all(figure, [Path(path)])[0]


def draw_all(figure: Figure, paths: Sequence[Path]) -> list[Path]:
    """Draw a figure once and write it to several files; their endings pick SVG, PNG or PDF."""
    import matplotlib as mpl

    # A fixed identity and no date: the same numbers make the same file. Names are names, with
    # dollar signs too, and no formulas.
    settings: Any = {"svg.hashsalt": "taskuq", "text.parse_math": False}
    with mpl.rc_context(settings), warnings.catch_warnings():
        # A letter the font does not have is drawn as a box; that is all there is to say.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        canvas = _drawn(figure)
        for path in paths:
            undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
            with whole_file(path) as partial:
                canvas.savefig(
                    partial, format=path.suffix[1:], dpi=160, metadata=undated.get(path.suffix)
                )
    return list(paths)


def draw_record(
    record: Mapping[str, Any], folder: Path, endings: Sequence[str] = (".svg", ".png")
) -> Path:
    """Draw every figure that a record with a ``schema`` supports into a folder; return that."""
    for _, figure in figures_of(record):
        draw_all(figure, [folder / f"{figure.name}{ending}" for ending in endings])
    return folder


def _drawn(figure: Figure) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(5.2, 3.4), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    for k, series in enumerate(figure.series):
        _draw_series(axes, figure, series, k)
    for name, y in figure.reference:
        axes.axhline(y, color="0.35", linewidth=1, linestyle="--", zorder=0)
        axes.annotate(
            name, (1, y), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8,
            color="0.35",
        )  # fmt: skip
    _scale(axes, figure)
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.y_label)
    axes.grid(axis="y", color="0.9", zorder=-1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    if figure.is_strip:
        axes.set_ylabel("")
    elif len(figure.series) > 1:
        # Above the axes the legend hides nothing.
        handles, names = axes.get_legend_handles_labels()
        columns = 3 if max(map(len, names), default=0) > 12 else min(len(figure.series), 6)
        canvas.legend(
            handles, names, loc="outside upper center", ncols=columns, frameon=False, fontsize=8
        )
    return canvas


def _draw_series(axes: Any, figure: Figure, series: Series, k: int) -> None:
    colour = COLOURS[k % len(COLOURS)]
    # Past the seventh series colours come round again, with another marker or hatch.
    again = k // len(COLOURS)
    marker = MARKERS[(k + 3 * again) % len(MARKERS)]
    shown = [
        (x, y, (series.error[i] if series.error else 0.0) or 0.0)
        for i, (x, y) in enumerate(zip(series.x, series.y, strict=True))
        if y is not None and y == y and abs(y) != float("inf")
    ]
    if not shown:
        return
    if series.style == "strip":
        _draw_strip(axes, figure, series, colour)
        return
    xs, ys, errors = zip(*shown, strict=True)
    # A step keeps its categories as they are.
    if figure.x_scale == "category" and series.style != "step":
        categories = list(dict.fromkeys(x for s in figure.series for x in s.x))
        xs = tuple(categories.index(x) + offset(figure, series) for x in xs)
    if series.style == "bars":
        bars = [s for s in figure.series if s.style == "bars"]
        width = (max(xs) - min(xs)) / max(len(xs) - 1, 1)
        width = 0.8 / len(bars) if figure.x_scale == "category" else width
        axes.bar(
            xs, ys, width=width, color=colour, alpha=0.8, label=series.name,
            hatch=(None, "//", "..")[again % 3],
            yerr=errors if series.error else None, error_kw={"linewidth": 1},
        )  # fmt: skip
    elif series.style == "step":
        axes.step(xs, ys, where="mid", color=colour, label=series.name, linewidth=1.4)
    else:
        axes.errorbar(
            xs, ys, yerr=errors if series.error else None, color=colour, marker=marker,
            markersize=4, linewidth=1.4 if series.style == "line" else 0, elinewidth=1, capsize=2,
            label=series.name,
        )  # fmt: skip


def _draw_strip(axes: Any, figure: Figure, series: Series, colour: str) -> None:
    """Draw one row of marks, the first series on top."""
    row = len(figure.series) - 1 - figure.series.index(series)
    for shade, places in shades(series):
        axes.bar(places, 0.8, width=0.82, bottom=row - 0.4, color=colour, linewidth=0, alpha=shade)
    names = [s.name for s in reversed(figure.series)]
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(min(map(float, series.x)) - 1, max(map(float, series.x)) + 1)


def _scale(axes: Any, figure: Figure) -> None:
    positions = [x for s in figure.series for x in s.x]
    if figure.x_scale == "log2":
        axes.set_xscale("log", base=2)
        ticks = sorted({float(x) for x in positions})
        axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axes.xaxis.set_minor_formatter("")
    elif figure.x_scale == "category":
        categories = list(dict.fromkeys(positions))
        axes.set_xticks(range(len(categories)), [str(c) for c in categories])
        axes.set_xlim(-0.5, len(categories) - 0.5)
    if figure.y_scale == "log":
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    if figure.x_reversed:
        axes.invert_xaxis()
