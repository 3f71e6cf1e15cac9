"""The report as text, and its exports: numbers are the records', names stay names."""

import json
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import run_folder
from benchmarks.page import MEGABYTES, SECONDS, measure

import taskuq as tq
from taskuq.report._contents import _policy_reports
from taskuq.report._records import read_folder
from taskuq.report._report import export
from taskuq.table._table import TaskOutputs


class Tables(HTMLParser):
    """The tables of a page, by name, as rows of text."""

    def __init__(self, text):
        super().__init__()
        self.found, self.rows, self.cell = {}, None, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "table":
            self.rows = self.found.setdefault(dict(attributes).get("data-table", "?"), [])
        elif tag == "tr" and self.rows is not None:
            self.rows.append([])
        elif tag in ("td", "th") and self.rows is not None:
            self.cell = ""

    def handle_endtag(self, tag):
        if tag in ("td", "th") and self.cell is not None:
            self.rows[-1].append(self.cell)
            self.cell = None

    def handle_data(self, data):
        if self.cell is not None:
            self.cell += data


@pytest.fixture(scope="module")
def tables(run_dir):
    return Tables((run_dir / "report.html").read_text()).found


def close(text, value):
    """Whether a cell shows a number to the four digits it shows."""
    return float(text) == pytest.approx(value, rel=6e-4, abs=1e-12)


def test_the_table_of_scores_holds_the_records_numbers(run_dir, tables):
    record = json.loads((run_dir / "evaluate-by-case.json").read_text())
    head, *rows = tables["evaluate-by-case"]
    at = {name: k for k, name in enumerate(head)}

    assert len(rows) == len(record["results"])
    for row, result in zip(rows, record["results"], strict=True):
        assert row[at["score"]] == result["score"]
        assert close(row[at["R"]], result["acceleration"])
        for name in ("coverage", "width"):
            assert close(row[at[name]], result[name]["mean"])
            assert close(row[at[f"{name} sd"]], result[name]["sd"])


def test_the_table_of_policies_holds_the_records_numbers(run_dir, tables):
    record = json.loads((run_dir / "simulate.json").read_text())
    head, *rows = tables["simulate"]
    at = {name: k for k, name in enumerate(head)}

    for row, result in zip(rows, record["results"], strict=True):
        assert row[at["guarantee"]] == ("guaranteed" if result["guaranteed"] else "measured")
        assert close(row[at["average R"]], result["mean_acceleration"])
        assert close(row[at["coverage"]], result["coverage"])
        assert close(row[at["coverage of cases"]], result["case_coverage"])
        assert close(row[at["average R by case"]], result["mean_acceleration_of_cases"])
        for name, error in (("R", "mean_acceleration"), ("coverage", "coverage")):
            assert close(row[at[f"± {name}"]], result["standard_errors"][error])
        assert close(row[at["stopped at R = 8"]], result["stops"][1]["fraction"])


def test_the_numbers_of_a_figure_are_the_records(run_dir, tables):
    record = json.loads((run_dir / "evaluate-by-group.json").read_text())
    rows = tables["evaluate-by-group-width-against-acceleration"][1:]
    shown = {(score, float(R)): width for score, R, width, _ in rows}

    assert len(shown) == len(record["results"])
    for result in record["results"]:
        assert close(shown[result["score"], result["acceleration"]], result["width"]["mean"])


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


def test_hostile_names_are_escaped(hostile_run):
    text = (hostile_run / "report.html").read_text()
    body = text.split("<body>")[1].split('<script type="application/json"')[0]

    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "<script" not in body
    assert "{{ 7 * 7 }} ${7 * 7}" in body
    # Everything of the payload is inside its element, whatever its names say.
    payload = text.split('id="stored">')[1].split("</script>")[0]
    assert {s["case"] for s in json.loads(payload)["slices"]} <= set(run_folder.HOSTILE)


def test_a_page_of_five_hundred_patients_is_small_and_quick():
    # In processor seconds: a busy machine must not fail it.
    busy, megabytes = measure(500)

    assert busy <= SECONDS == 5
    assert megabytes <= MEGABYTES == 25


def test_building_a_page_needs_no_torch(run_dir):
    code = (
        "import sys; from taskuq.report import write_report; "
        f"write_report({str(run_dir)!r}); "
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())

    assert loaded & {"torch", "monai"} == set()
    assert {"jinja2", "numpy"} <= loaded


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A small run, exported with drawings in one format."""
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


def test_hostile_names_are_drawn_and_written(tmp_path):
    run_folder.write_hostile(tmp_path)
    folder = export(tmp_path)
    drawn = sorted(p.suffix for p in (tmp_path / "figures").iterdir())

    assert drawn.count(".pdf") == drawn.count(".png") == drawn.count(".svg") >= 3
    assert all(p.parent in (folder, tmp_path / "figures") for p in tmp_path.rglob("*.svg"))
    with (folder / "groups.csv").open(encoding="utf-8-sig") as file:
        assert not any(line.startswith("=") for line in file)


def test_results_json_and_csv_say_the_same(exported):
    results = json.loads((exported / "exports/results.json").read_text())
    patients = next(t for t in results["tables"] if t["name"] == "groups")
    rows = run_folder.rows_of(exported / "exports/groups.csv")
    at = patients["columns"].index("average R")

    assert [float(r["average R"]) for r in rows] == [row[at] for row in patients["rows"]]


def test_every_figure_is_drawn_and_has_its_numbers(exported):
    results = json.loads((exported / "exports/results.json").read_text())
    drawn = {p.stem for p in (exported / "figures").glob("*.svg")}
    told = {p.stem.removeprefix("figure-") for p in (exported / "exports").glob("figure-*.csv")}

    assert len(drawn) == len(results["figures"]) >= 7
    assert drawn == told


def test_exports_are_not_read_as_results(exported):
    before = read_folder(exported)
    export(exported, endings=())

    assert [f.path for f in read_folder(exported).records] == [f.path for f in before.records]
    assert not any("exports" in path for path, _ in before.others)


def test_the_command_builds_the_page_and_prints_its_path(tmp_path):
    run_folder.write_small_records(tmp_path)
    code = "from taskuq.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "report", str(tmp_path)],
                          capture_output=True, text=True)  # fmt: skip

    assert done.stdout.strip() == str(tmp_path / "report.html")
    assert (tmp_path / "report.html").exists()
    wrong = subprocess.run([sys.executable, "-c", code, "report", str(tmp_path / "none")],
                           capture_output=True, text=True)  # fmt: skip
    assert wrong.returncode == 2
    assert "there is no folder" in wrong.stderr
