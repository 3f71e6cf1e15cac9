"""Tables and figures of the README and of the results pages, compared with their records."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from studies import compare, paper, pictures

import taskuq as tq

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


def test_calibration_in_the_card_is_that_of_the_bundled_table():
    expected = [
        [one.round.removeprefix("R = "), f"{one.crps.value:.4f}", f"{one.outside.value:.3f}",
         f"{one.spread_over_error.value:.2f}", f"{one.bias.value:.3f}"]
        for one in tq.diagnose(tq.TaskOutputs.load("atlas-sampler")).results if one.label is None
    ]  # fmt: skip
    assert rows_of(ROOT / "src/taskuq/training/bundled/sampler-atlas.md") == expected


def test_table_of_samplers_is_that_of_the_csv_file():
    expected = paper.markdown(*compare.summary(RESULTS / "samplers.csv"))
    assert blocks(RESULTS / "samplers.md") == {"samplers": expected}


def test_comparison_finds_planted_spreads(tmp_path):
    rng, shape = np.random.default_rng(0), (4, 80)
    columns = {"group": np.repeat([f"p{i}" for i in range(40)], 2), "label": np.arange(80) % 2}
    for name, spread in (("exact", 1.0), ("wide", 3.0)):
        z, error = rng.normal(0.5, 0.1, 80), rng.uniform(1, 2, shape)
        centre = z + 0.1 * rng.normal(size=shape)
        outputs = centre[..., None] + 0.1 * spread * rng.normal(size=(*shape, 16))
        table = tq.TaskOutputs(outputs, z, compare.RATES, task_range=(-9, 9), **columns)
        table.save(tmp_path / f"{name}.task.0.npz")
        quality = [one.tolist() for one in (30 + error, 29 + error, spread**2 * error, error)]
        record = {"tasks": ["task"], "rows": list(range(80)), "quality": quality}
        (tmp_path / f"{name}.0.json").write_text(json.dumps(record))
        (tmp_path / f"{name}.json").write_text('{"ms": 2, "parameters": 3e6, "minutes": 1.5}')
    compare.judge(tmp_path, 20, None)
    with (tmp_path / "samplers.csv").open(newline="") as file:
        found = {tuple(row.values())[:5]: float(row["value"]) for row in csv.DictReader(file)}
    for name, ratio, of_outputs in (("exact", 1, 1), ("wide", 3, 2.47)):  # 3 (17 / (16 + 9))^½
        assert found[name, "all", "", "image spread/error", "R = 4"] == pytest.approx(ratio)
        assert found[name, "all", "task", "spread/error", "R = 4"] == pytest.approx(of_outputs, 0.2)
    wide, exact = (found[name, "all", "task", "CRPS", "R = 4"] for name in ("wide", "exact"))
    assert wide > exact


def test_jackknife_error_of_a_mean_is_its_standard_error():
    x = np.random.default_rng(0).normal(size=(10, 4))
    found = compare.jackknife(lambda kept: x.ravel()[kept].mean(), np.repeat(np.arange(10), 4))
    assert found == pytest.approx((x.mean(), x.mean(1).std(ddof=1) / 10**0.5))


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
    page, made = tmp_path / "README.md", pictures.headline(RESULTS / "atlas")
    page.write_text((ROOT / "README.md").read_text().replace(made, made.replace("0.", "1.", 1)))
    assert blocks(page)["headline"] != made


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
