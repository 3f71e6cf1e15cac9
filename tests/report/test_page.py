"""The report as text, and its exports: numbers are the records', names stay names."""

import base64
import csv
import json
import re

import numpy as np
import pytest
import run_folder
from benchmarks.page import measure

import taskuq as tq
from taskuq.report._contents import _policy_reports, build_contents, patient_table
from taskuq.report._page import _facts, _grid
from taskuq.report._records import read_folder, shown
from taskuq.report._report import export
from taskuq.table._table import TaskOutputs


@pytest.fixture(scope="module")
def tables(run_dir):
    """The tables of a report as rows of text, by name."""
    contents = build_contents(read_folder(run_dir))
    patients = patient_table(contents.folder.table, contents.cases)
    grids = map(_grid, (*contents.tables, patients))
    return {grid["name"]: [grid["columns"], *grid["rows"]] for grid in grids}


def close(text, value):
    """Return True if a cell shows a number with three digits."""
    return float(text.partition(" ± ")[0]) == pytest.approx(value, rel=6e-3, abs=1e-12)


def test_the_table_of_scores_holds_the_records_numbers(run_dir, tables):
    record = json.loads((run_dir / "evaluate-by-case.json").read_text())
    head, *rows = tables["evaluate-by-case"]
    at = {name: k for k, name in enumerate(head)}
    assert len(rows) == len(record["results"])
    for row, result in zip(rows, record["results"], strict=True):
        assert row[at["score"]] == result["score"].upper()
        assert close(row[at["R"]], result["acceleration"])
        for name in ("coverage", "width"):
            mean, error = row[at[name]].split(" ± ")
            assert close(mean, result[name]["mean"])
            assert float(error) == pytest.approx(result[name]["sd"], rel=0.06)


def test_the_table_of_policies_holds_the_records_numbers(run_dir, tables):
    record = json.loads((run_dir / "simulate.json").read_text())
    head, *rows = tables["simulate"]
    at = {name: k for k, name in enumerate(head)}
    for row, result in zip(rows, record["results"], strict=True):
        assert row[at["guarantee"]] == ("guaranteed" if result["guaranteed"] else "measured")
        for name, key in (("average R", "mean_acceleration"), ("coverage", "coverage")):
            mean, error = row[at[name]].split(" ± ")
            assert close(mean, result[key])
            assert float(error) == pytest.approx(result["standard_errors"][key], rel=0.06)
    head, *rows = tables["simulate-stops"]
    at = {name: k for k, name in enumerate(head)}
    for row, result in zip(rows, record["results"], strict=True):
        assert close(row[at["coverage of cases"]], result["case_coverage"])
        assert close(row[at["average R by case"]], result["mean_acceleration_of_cases"])
        assert close(row[at["stopped at R = 8"]], result["stops"][1]["fraction"])


def test_the_file_of_a_figure_holds_the_records_numbers(run_dir):
    record = json.loads((run_dir / "evaluate-by-group.json").read_text())
    name = "evaluate-by-group-width-against-acceleration.csv"
    text = (run_dir / "report.html").read_text()
    address = re.search(rf'download="{name}" href="data:text/csv;[^,]*,([^"]*)"', text)[1]
    rows = csv.reader(base64.b64decode(address).decode("utf-8-sig").splitlines()[1:])
    stored = {(score, float(R)): float(width) for score, R, width, _ in rows}
    assert len(stored) == len(record["results"])
    for result in record["results"]:
        assert stored[result["score"], result["acceleration"]] == result["width"]["mean"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0008407, "0.000841"), (0.08936, "0.0894"), (0.9996, "0.9996"), (1.0, "1"), (5.831, "5.83"),
     (1531.4, "1531"), (float("nan"), "–"), (float("inf"), "∞"), (3, "3"), (True, "yes")],
)  # fmt: skip
def test_numbers_have_three_digits(value, text):
    assert shown(value) == text


def test_a_patients_row_is_what_the_policy_decides(run_dir, tables):
    policy = tq.load_policy(run_dir / "policy.json")
    table = TaskOutputs.load(run_dir / "table.npz").select(group="patient-03")
    stops = np.array([policy.decide(round=k, outputs=table.outputs[: k + 1]).stops
                      for k in range(4)])  # fmt: skip
    rates = np.append(table.accelerations, 1.0)[np.vstack([stops, np.ones(table.cases)]).argmax(0)]
    head, *rows = tables["groups"]
    row = dict(zip(head, next(r for r in rows if r[0] == "patient-03"), strict=True))
    assert int(row["cases"]) == table.cases
    assert int(row["stopped early"]) == (rates > 1).sum()
    assert close(row["average R"], 1 / np.mean(1 / rates))


def test_a_page_of_five_hundred_patients_is_small():
    assert measure(500) <= 25


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    table = run_folder.table_of(volumes=12, samples=4)
    table.save(folder / "table.npz")
    tq.plan(table, alpha=0.2, max_width=0.2).save(folder / "policy.json")
    tq.calibrate(table.outputs[0], table.targets, alpha=0.2, score="lwr", task_range=(0, 1),
                 acceleration=16).save(folder / "bound-16.json")  # fmt: skip
    run_folder.write_small_records(folder)
    export(folder, endings=(".svg",))
    return folder


def test_intervals_are_the_policys_and_the_bounds(exported):
    table = TaskOutputs.load(exported / "table.npz")
    bound = tq.load_bound(exported / "bound-16.json")(table.outputs[0])
    rows = run_folder.rows_of(exported / "intervals.csv")
    mine = [r for r in rows if r["source"].startswith("lwr")]
    stopped = list(_policy_reports(tq.load_policy(exported / "policy.json"), table))
    assert [float(r["lower"]) for r in mine] == bound.lower.tolist()
    assert [r["case"] for r in mine] == table.case.tolist()
    assert len(rows) == 2 * table.cases
    for row, report in zip(rows, stopped, strict=False):
        assert (float(row["lower"]), float(row["upper"])) == (report.lower, report.upper)
        inside = report.lower <= report.target <= report.upper
        assert row["covered"] == ("yes" if inside else "no")


@pytest.mark.parametrize("unit", ["case", "group"])
def test_the_certificate_names_the_unit_of_the_policy(tmp_path, unit):
    table = run_folder.table_of(volumes=12, samples=4)
    policy = tq.plan(table, alpha=0.2, max_width=0.3, unit=unit)
    policy.save(tmp_path / "policy.json")
    (tmp_path / "run.json").write_text(json.dumps({"unit": unit}))
    facts = dict(_facts(build_contents(read_folder(tmp_path))))
    text = facts["Average acceleration, certified"]
    assert text.endswith(f"if all {unit}s are independent")
    assert float(text.split()[2]) <= policy.certificate["certified"]


def test_hostile_names_are_drawn_and_written(hostile_run):
    folder, figures = export(hostile_run), hostile_run / "figures"
    drawn = sorted(p.suffix for p in figures.iterdir())
    assert drawn.count(".pdf") == drawn.count(".png") == drawn.count(".svg") >= 3
    assert all(p.parent in (folder, figures) for p in hostile_run.rglob("*.svg"))
    with (folder / "groups.csv").open(encoding="utf-8-sig") as file:
        assert not any(line.startswith("=") for line in file)


def test_every_figure_is_drawn_and_has_its_numbers(exported):
    results = json.loads((exported / "exports/results.json").read_text())
    drawn = {p.stem for p in (exported / "figures").glob("*.svg")}
    files = {p.stem.removeprefix("figure-") for p in (exported / "exports").glob("figure-*.csv")}
    assert len(drawn) == len(results["figures"]) >= 7
    assert drawn == files
