"""Tables and figures of the README and of the results pages, compared with their records."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from studies import paper, pictures, samplers

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/results"
LGG = ROOT / "../shared/data/lgg/lgg_flair_128_all_dev.npz"


def blocks(document):
    """Return the marked blocks of a document that hold a table."""
    text = document.read_text()
    names = re.findall(r"^<!-- (?!end of )(.+) -->$", text, re.MULTILINE)
    return {name: paper.block(text, name) for name in names}


@pytest.mark.parametrize("run", ["atlas", "fastmri"])
def test_tables_of_the_paper_are_those_of_its_records(run):
    found = blocks(RESULTS / "paper.md")
    expected = paper.tables(paper.read_records(RESULTS / run))
    assert set(expected) == set(paper.TABLES)
    assert {name: found[f"{run} {name}"] for name in expected} == expected


def test_tables_of_samplers_are_those_of_the_bundled_record_and_table():
    assert blocks(RESULTS / "samplers.md") == {
        "quality": samplers.quality(),
        "spread": samplers.spread(),
        "calibration": samplers.calibration(),
    }


def test_the_headline_of_the_readme_is_that_of_its_record():
    assert blocks(ROOT / "README.md")["headline"] == pictures.headline(RESULTS / "atlas")


def test_lengths_on_real_data_are_those_of_the_csv_file():
    with (RESULTS / "lgg-lengths.csv").open(newline="") as file:
        columns, *rows = csv.reader(file)
    adversarial = [row[1:] for row in rows if row[0] == "adversarial"]
    assert blocks(RESULTS / "real-data.md")["lengths"] == paper.markdown(columns[1:], adversarial)


def rows_of(page):
    """Return the cells of each row of the last table of a page."""
    found = re.findall(r"^\| (.*) \|$", page.read_text().rpartition("|---|")[2], re.MULTILINE)
    return [row.split(" | ") for row in found]


def records_of(file):
    with (RESULTS / file).open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_coverage_of_classes_is_that_of_the_csv_file():
    names = ("task", "unit", "alpha", "max_width")
    made = [one for one in records_of("classes.csv") if one["statistic"] == "spread"]
    expected = []
    for average, each in zip(made[::2], made[1::2], strict=True):
        assert (average["guarantee"], each["guarantee"]) == ("all scans", "each class")
        row = [average[name].replace("_", " ").replace("group", "volume") for name in names]
        for one, errors in ((average, False), (each, True)):
            row.append(f"{float(one['mean_acceleration']):.2f}")
            for part in ("positives", "negatives"):
                error = f" ± {float(one[f'{part}_error']):.3f}" if errors else ""
                row.append(f"{float(one[part]):.3f}{error}".replace("0.", "."))
        expected.append(row)
    assert rows_of(RESULTS / "classes.md") == expected


def test_quality_goals_are_those_of_the_csv_file():
    expected = [
        [one[name] for name in one if name != "splits by"]
        for one in records_of("quality-goals.csv")
        if one["splits by"] == "case"
    ]
    assert rows_of(RESULTS / "paper.md") == expected


@pytest.mark.skipif(not LGG.exists(), reason="the slices of low-grade glioma are not here")
def test_volumes_on_real_data_are_those_of_their_study():
    from studies.tumour_volumes import lines, volumes

    found = blocks(RESULTS / "real-data.md")["volumes"]
    assert found == "\n".join(lines(volumes(LGG), 0.2))


def test_a_changed_number_is_detected(tmp_path):
    text = (RESULTS / "samplers.md").read_text()
    page = tmp_path / "samplers.md"
    page.write_text(text.replace("| 16 | ", "| 16 | 1", 1))
    assert blocks(page)["quality"] != samplers.quality()


@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.md")), ids=lambda page: page.stem)
def test_every_downloaded_file_is_there(page):
    linked = re.findall(r"\]\(([\w/-]+\.csv)\)", page.read_text())
    assert [name for name in linked if not (RESULTS / name).is_file()] == []


@pytest.mark.parametrize("name", ["first-screen.png", "scan.png"])
def test_figures_of_the_readme_exist_and_are_small(name):
    path = ROOT / "docs/figures" / name
    assert path.stat().st_size <= pictures.LARGEST
    assert f"docs/figures/{name}" in (ROOT / "README.md").read_text()


def test_a_figure_that_stays_large_is_refused(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (900, 900, 3), dtype=np.uint8)
    with pytest.raises(SystemExit, match="more than"):
        pictures.save_small(Image.fromarray(noise), tmp_path / "noise.png")


def test_a_short_run_is_refused_first(tmp_path, monkeypatch):
    (tmp_path / "simulate.json").write_text(json.dumps({"trials": 999}))
    monkeypatch.setattr(pictures, "first_screen", pytest.fail)
    with pytest.raises(SystemExit, match="999 random splits"):
        pictures.main([str(tmp_path)])
