import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import run_folder
from hypothesis import given, settings
from hypothesis import strategies as st

from taskuq.cli.app import main
from taskuq.conformal._quantiles import calibration_size
from taskuq.report._contents import build_contents
from taskuq.report._records import read_folder, slug
from taskuq.report.figures import (
    FIGURES,
    Figure,
    FigureKind,
    Series,
    draw_all,
    figure_from_dict,
    figure_svg,
    figures_from_record,
    series_from_rows,
)
from taskuq.report.figures._imaging import calibration_sizes, masks_figure, planner_figure

texts = st.text(max_size=12)
numbers = st.none() | st.floats(-1e6, 1e6)
styles = st.sampled_from(["line", "bars", "points", "step"])


@st.composite
def figures(draw_):
    scale = draw_(st.sampled_from(["linear", "log2", "category"]))
    place = {"linear": st.floats(-1e3, 1e3), "log2": st.floats(0.1, 1e3), "category": texts}[scale]
    series = []
    for _ in range(draw_(st.integers(1, 9))):
        x = tuple(draw_(st.lists(place, min_size=1, max_size=5, unique=True)))
        y = tuple(draw_(numbers) for _ in x)
        error = draw_(st.none() | st.just(tuple(0.5 for _ in x)))
        series.append(Series(draw_(texts), x, y, error, draw_(styles)))
    return Figure(
        draw_(texts), draw_(texts), draw_(texts), draw_(texts), tuple(series), x_scale=scale,
        y_scale=draw_(st.sampled_from(["linear", "log"])), x_reversed=draw_(st.booleans()),
    )  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(figures())
def test_any_figure_comes_back_from_json_and_is_drawn(figure):
    assert figure_from_dict(figure.to_dict()) == figure
    text = str(figure_svg(figure))
    # Control characters are no XML, and a browser reads HTML, where they are harmless.
    root = ET.fromstring("".join(c for c in text if c.isprintable()))
    drawn = " ".join(e.get("d", "") for e in root.iter() if e.tag == "path")
    assert root.tag == "svg"
    assert "nan" not in text.replace(figure.caption, "") or "nan" not in drawn
    # Coordinates lie on the canvas, but for what stands out of the ends of error bars.
    places = [float(v) for v in re.findall(r"-?[\d.]+", drawn)]
    assert all(-20 <= v <= 540 for v in places)


def drawn(*series, **options):
    return str(figure_svg(Figure("f", "c", "x", "y", series, **options), "fig-1"))


def test_text_is_text_colours_follow_the_page_and_ids_are_its_own():
    text = drawn(Series("<a>", (1, 2), (2.0, 1.0)), reference=(("<b>", 1.5),))
    assert "&lt;b&gt; 1.5</text>" in text
    assert "var(--c0)" in text
    assert not re.search(r"#[0-9a-f]{6}", text)
    assert set(re.findall(r'id="([^"]*)"', text)) <= set(re.findall(r'"#([^"]*)"', text))
    assert all(i.startswith("fig-1-") for i in re.findall(r'id="([^"]*)"', text))


def test_bars_start_at_zero_and_their_heights_are_their_values():
    text = drawn(Series("a", ("p", "q"), (0.5, 1.0), style="bars"), x_scale="category")
    (path,) = re.findall(r'd="([^"]*)" style="fill:var\(--c0\)', text)
    low, high = (
        [float(v) for v in re.findall(r"[\d.]+", box)][1::2] for box in path.split("z")[:2]
    )
    (floor,) = {y for y in (*low, *high) if y == max(low)}
    assert ">0</text>" in text
    assert (floor - min(high)) == pytest.approx(2 * (floor - min(low)), abs=0.2)


def test_the_planner_draws_what_the_planner_says():
    figure = planner_figure(calibration_sizes(0.1, delta=0.1, have=500))
    both, lower = figure.series
    for x, y in zip(both.x, both.y, strict=True):
        assert y == calibration_size(0.1, x, 0.1)
    assert lower.y[0] == calibration_size(0.1, lower.x[0], 0.1, two_sided=False)
    assert figure.reference == (("this run", 500.0),)


def test_the_figures_of_a_simulation_hold_its_records_numbers(run_dir):
    stored = read_folder(run_dir).of("taskuq.simulate/1")[0].record
    accepted, coverage, trade_off = (figure for _, figure in figures_from_record(stored))
    for k, row in enumerate(stored["results"]):
        stops = row["stops"]
        assert accepted.series[k].y == tuple(max(0.0, s["fraction"]) for s in stops)
        assert len(coverage.series[k].y) == len(stops) - 1
        assert trade_off.series[k].y == (row["mean_acceleration"],)


def test_every_figure_of_a_run_is_there_and_none_is_empty(run_dir):
    contents = build_contents(read_folder(run_dir))
    names = {f.name for f in contents.all_figures}
    assert {"masks", "calibration-size", "task-roc-finding", "split-groups", "samples-against-p",
            "quality-psnr-against-acceleration", "simulate-acceleration-against-width",
            "evaluate-by-case-coverage-R16-lwr", "evaluate-by-group-class-coverage-R8",
            "simulate-accepted-by-acceleration"} <= names  # fmt: skip
    assert not any(f.is_empty for f in contents.all_figures)
    assert len({slug(name) for name in names}) == len(contents.all_figures)


@pytest.mark.parametrize("ending", [".svg", ".png", ".pdf"])
def test_ink_is_put_on_paper_twice_alike(ending, tmp_path):
    figure = masks_figure(np.eye(4, dtype=bool).cumsum(0).astype(bool), [8, 4, 3, 2])
    paths = [tmp_path / f"{name}{ending}" for name in "ab"]
    first, again = (draw_all(figure, [path])[0].read_bytes() for path in paths)
    assert first == again
    assert first[:4] in (b"<?xm", b"\x89PNG", b"%PDF")


def test_a_figure_of_ones_own_is_shown_and_exported(tmp_path, monkeypatch):
    def days(record):
        return [Figure("days", "Days of the diary.", "day", "scans", series_from_rows(
            record["days"], lambda d: "scans", lambda d: d[0], lambda d: d[1]))]  # fmt: skip

    monkeypatch.setattr(FIGURES, "_known", dict(FIGURES._known))
    FIGURES.register("diary", FigureKind("diary/1", days, "Mine"))
    run_folder.write(tmp_path / "diary.json", {"schema": "diary/1", "days": [[1, 4], [2, 7]]})
    main(["report", str(tmp_path), "--export"])
    page = (tmp_path / "report.html").read_text()
    assert ">Mine</bdi></h3>" in page
    assert "Days of the diary." in page
    assert (tmp_path / "exports/figure-diary-days.csv").exists()
