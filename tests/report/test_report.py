import json
import re

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.cli.app import main
from taskuq.report._answer import answer_of
from taskuq.report._contents import build_contents, patient_table, task_table
from taskuq.report._records import read_folder
from taskuq.report.figures._evaluation import SAMPLES

# Words that only users of scanners expect.
SCANNER = re.compile(
    r"zero-filled|patient|\bslices?\b|k-space|volumes?\b|fully measured|task network|scanner", re.I
)


def made(tasks=1, rounds=2, cases=80, **described):
    rng = np.random.default_rng(1)
    z = rng.random((cases, tasks))
    spread = np.array([0.15, 0.05])[:rounds, None, None, None]
    x = np.clip(z[:, None] + spread * rng.standard_normal((rounds, cases, 5, tasks)), 0, 1)
    x, z = (x, z) if tasks > 1 else (x[..., 0], z[..., 0])
    rates = (6, 2)[:rounds] if rounds > 1 else None
    return tq.TaskOutputs(x, z, rates, task_range=(0, 1), **described)


def visible(page):
    """Return all text of a report, and the labels of elements without text."""
    body = page.read_text().partition("<body")[2].partition('<script type="application/json"')[0]
    return " ".join([re.sub("<[^>]*>", " ", body), *re.findall(r'aria-label="([^"]*)"', body)])


ASKED = {"alpha": 0.2, "max_width": 0.5, "splits": 30}


def test_a_table_becomes_a_page_without_a_word_of_mri(tmp_path):
    words = {"case": "scene", "group": "film", "measurement": "exposure"}
    table = made(group=np.arange(80) // 4, round_names=["short", "long"])
    page = tq.make_report(table, tmp_path / "page", **ASKED, terminology=words, title="Scenes")
    text = visible(page)
    assert not SCANNER.findall(text)
    assert "Scenes" in text
    assert "Film by film" in re.sub(r"\s+", " ", text)
    assert "short" in text
    assert "nan" not in text.lower().split()


def test_a_page_holds_what_its_functions_give(tmp_path):
    table = made()
    tq.make_report(table, tmp_path / "page", **ASKED, seed=3)
    policy = tq.load_policy(tmp_path / "page" / "policy.json")
    judged = json.loads((tmp_path / "page" / "evaluate.json").read_text())["results"]
    again = tq.evaluate(
        table, acceleration=2, alpha=0.2, score="lwr", splits=30, seed=np.random.default_rng(3)
    )
    (row,) = [r for r in judged if r["score"] == "lwr" and r["acceleration"] == 2]
    assert policy.thresholds == tq.plan(table, alpha=0.2, max_width=0.5).thresholds
    assert row["width"]["mean"] == again.width.mean
    replayed = json.loads((tmp_path / "page" / "simulate.json").read_text())
    assert {r["policy"] for r in replayed["results"]} == {"fixed-width", "adaptive", "paper"}


def test_one_round_is_evaluated_and_nothing_is_planned(tmp_path):
    page = tq.make_report(made(rounds=1), tmp_path / "page", **ASKED)
    assert sorted(p.name for p in page.parent.iterdir()) == [
        "diagnose.json", "evaluate.json", "report.html", "run.json", "table.npz",
    ]  # fmt: skip


def test_another_table_does_not_take_the_place_of_a_page(tmp_path):
    page = tq.make_report(made(), tmp_path / "page", **ASKED)
    tq.make_report(made(), tmp_path / "page", **ASKED | {"alpha": 0.3})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("keep me")
    assert "0.7" in visible(page)
    with refused("file.exists"):
        tq.make_report(made(cases=81), tmp_path / "page", **ASKED)
    with refused("file.exists", "letter.txt"):
        tq.make_report(made(), tmp_path / "full", **ASKED)


@pytest.mark.parametrize(
    ("table", "described", "code"),
    [
        (made(), {"accelerations": (6, 2)}, "option.unused"),
        (made(), {"colour": "red"}, "choice.unknown"),
        (made().outputs, {}, "dtype.invalid"),
        (tq.TaskOutputs(made().outputs, None, (6, 2)), {}, "targets.missing"),
        ("missing.npz", {}, "file.missing"),
        (made(), {"terminology": {"image": "x"}}, "config.key"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, table, described, code):
    with refused(code):
        tq.make_report(table, tmp_path / "page", **ASKED, **described)


def test_the_command_line_makes_a_page_of_a_table(tmp_path, capsys):
    path = made().save(tmp_path / "mine.npz")
    asked = ["--alpha", "0.2", "--max-width", "0.5", "--splits", "20"]
    main(["report", str(path), *asked, "--terminology", "case=scene, group=film"])
    assert "scene" in (tmp_path / "mine-report" / "report.html").read_text()
    assert capsys.readouterr().out.strip() == str(tmp_path / "mine-report" / "report.html")
    # A table that comes with the package.
    where = ["--alpha", "0.1", "--splits", "2", "-o", str(tmp_path / "out")]
    main(["report", "atlas-varnet", *where])
    assert (tmp_path / "out" / "report.html").exists()
    for word, given in (
        ("--alpha", [str(path)]), ("--alpha", [str(tmp_path / "mine-report"), "--alpha", "0.1"]),
        ("--terminology", [str(path), *asked, "--terminology", "scene"]),
        ("atlas-varnt", ["atlas-varnt", *where]),
    ):  # fmt: skip
        with pytest.raises(SystemExit, match="2"):
            main(["report", *given])
        assert word in capsys.readouterr().err


def pictured(tmp_path, **more):
    rng = np.random.default_rng(0)
    images = rng.random((60, 6, 5)) * rng.random((60, 1, 1))

    def recover(y, *, samples, seed):
        return y + np.random.default_rng(seed).standard_normal((samples, *y.shape)) / 20

    pipeline = tq.Pipeline(lambda x, R: x - 1 / R, recover, lambda x: x.mean((1, 2)))
    table = pipeline.run(
        images, costs={"one exposure": 1, "three exposures": 3}, full_cost=6, samples=4, seed=0,
        store=tmp_path / "table", keep_images=5, progress=False, terminology={"case": "scene"},
        **more,
    )  # fmt: skip
    return tq.make_report(table, tmp_path / "page", **ASKED)


def test_pictures_of_a_run_become_the_explorer(tmp_path, open_page):
    for name, more in (("a", {}), ("b", {"group": np.arange(60) // 2})):
        path = pictured(tmp_path / name, **more)
        page = open_page(path)
        page.wait_for_function("document.querySelector('[data-part=picture]').dataset.shown")
        rendering = "c => getComputedStyle(c).imageRendering"
        assert page.locator("[data-part=group]").is_visible() == bool(more)
        assert page.locator("[data-part=slice] option").count() == (1 if more else 5)
        assert page.locator("[data-part=picture]").evaluate(rendering) == "pixelated"
        assert page.locator("[data-part=rounds]").inner_text().split("\n")[0] == "one exposure"
        assert not SCANNER.findall(visible(path))


def write_unlike(folder, **asked):
    """Write the report of a probability, an area in mm² and a density without a range."""
    table = made(tasks=3, group=np.arange(80) // 4, round_names=["short", "long"])
    scale, names = np.array([1.0, 100.0, -800.0]), ["tear", "area", "density"]
    x, z = table.outputs * scale, table.targets * scale
    parts = {"task_names": names, "group": table.group, "round_names": table.round_names}
    table = tq.TaskOutputs(x, z, (6, 2), **parts)
    return tq.make_report(table, folder, alpha=0.2, splits=20, **asked).parent


WIDTHS = {"tear": 0.6, "area": 60, "density": 480}


@pytest.fixture(scope="module")
def unlike(tmp_path_factory):
    folder = write_unlike(tmp_path_factory.mktemp("unlike") / "page", max_width=WIDTHS)
    return build_contents(read_folder(folder))


def test_widths_of_unlike_tasks_are_never_one_number(unlike):
    contents = unlike
    tables = {table.name: table for table in contents.tables}
    by_task = task_table(contents.cases)
    assert not {"width", "centre error"} & set(tables["simulate"].columns)
    assert "task by task" in tables["simulate"].caption
    assert {row[0]: row[2] for row in by_task.rows} == pytest.approx(WIDTHS)
    assert answer_of(contents).numbers[2].what.endswith("tear 0.6, area 60, density 480")
    assert not [f for f in contents.all_figures if "against-width" in f.name]


def test_a_group_counts_its_scans_not_their_tasks(unlike):
    contents = unlike
    table = patient_table(contents.folder.table, contents.cases)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert all(row["stopped early"] <= row["cases"] == 4 for row in rows)
    assert rows[0]["mean width of density"] == pytest.approx(480)
    assert all(row["missed"] <= 4 for row in rows)


def test_every_task_has_figures_of_its_own_with_the_names_of_rounds(unlike):
    contents = unlike
    widths = [f for f in contents.all_figures if f.name.endswith("width-against-acceleration")]
    (accepted,) = [f for f in contents.all_figures if "accepted" in f.name]
    assert [f.caption.partition(":")[0] for f in widths] == list(WIDTHS)
    assert accepted.series[0].x == ("short", "long", "everything measured")


def test_intervals_of_unlike_tasks_are_not_compared_where_nothing_was_planned(tmp_path):
    answer = answer_of(build_contents(read_folder(write_unlike(tmp_path / "page"))))
    coverage, width = answer.numbers
    assert re.search(r"tear 0\.\d+ .* area \d\.\d+ .* density \d\d", answer.sentence)
    assert width.value == "by task"
    assert "of the worst task" in coverage.what


def test_point_estimates_are_judged_by_what_needs_no_spread(tmp_path):
    z = np.random.default_rng(0).random(60)
    page = tq.make_report((z + 0.1, z), tmp_path / "page", alpha=0.2, splits=20)
    judged = json.loads((page.parent / "evaluate.json").read_text())["results"]
    assert [row["score"] for row in judged] == ["ar"]
    assert "1 sample (" in visible(page)
    assert not (page.parent / "diagnose.json").exists()
    assert 'id="samples"' not in page.read_text()


def test_the_calibration_of_samples_is_a_section_of_its_own(tmp_path):
    table = made(label=np.arange(80) % 2)
    # Planted: the second round's samples are half as far from their mean as they should be.
    means = table.outputs[1].mean(axis=1, keepdims=True)
    table.outputs[1] = means + 0.1 * (table.outputs[1] - means)
    page = tq.make_report(table, tmp_path / "page", alpha=0.2, splits=20)
    record = json.loads((page.parent / "diagnose.json").read_text())
    expected = tq.diagnose(table)
    contents = build_contents(read_folder(page.parent))
    (grid,) = [t for t in contents.tables if t.name == "diagnose"]
    (section,) = [s for s in contents.sections if s.heading == SAMPLES]
    bars, low, high = section.figures[1][1].series
    assert record["results"] == expected.to_dict()["results"]
    assert [row[-1] for row in grid.rows] == [r.verdict for r in expected.results]
    assert [(row[1], row[5]) for row in grid.rows] == [
        (r.label or "all", r.outside.value) for r in expected.results
    ]
    assert grid.rows[3][-1] == "under-dispersed"
    assert len(section.figures) == 2
    assert max(bars.y) > max(high.y) > min(low.y)
    assert page.read_text().count('id="samples"') == 1


def test_a_goal_that_does_not_fit_is_refused_before_anything_is_judged(tmp_path):
    lines = []
    with refused("choice.unknown", "rust"):
        tq.make_report(made(), tmp_path, alpha=0.2, max_width={"rust": 1}, log=lines.append)
    assert not lines
    assert not list(tmp_path.iterdir())
