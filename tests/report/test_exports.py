"""What leaves the page: spreadsheets without formulas, LaTeX that compiles, every figure."""

import csv
import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import run_folder
from hypothesis import given
from hypothesis import strategies as st

import taskuq as tq
from taskuq.report._contents import _policy_reports
from taskuq.report._records import Table, _escaped, cell, latex_table, read_folder, write_csv
from taskuq.report._report import export
from taskuq.table._table import TaskOutputs


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


def rows_of(path):
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def test_intervals_are_the_policys_and_the_bounds(exported):
    table = TaskOutputs.load(exported / "table.npz")
    bound = tq.load_bound(exported / "bound-16.json")(table.outputs[0])
    rows = rows_of(exported / "intervals.csv")
    mine = [r for r in rows if r["source"].startswith("lwr")]
    stopped = list(_policy_reports(tq.load_policy(exported / "policy.json"), table))

    assert [float(r["lower"]) for r in mine] == bound.lower.tolist()
    assert [r["case"] for r in mine] == table.case.tolist()
    assert len(rows) == 2 * table.cases
    for row, report in zip(rows, stopped, strict=False):
        assert (float(row["lower"]), float(row["upper"])) == (report.lower, report.upper)
        inside = report.lower <= report.target <= report.upper
        assert row["covered"] == ("yes" if inside else "no")


def test_a_scan_that_never_stops_reports_the_target_at_one():
    table = run_folder.table_of(volumes=12, samples=4)
    policy = tq.plan(table, alpha=0.01, max_width=0.1)  # 12 groups are too few for that
    reports = list(_policy_reports(policy, table))

    assert {r.acceleration for r in reports} == {1.0}
    assert [r.lower for r in reports] == table.targets.tolist()


def test_whole_groups_stop_together():
    table = run_folder.table_of(volumes=30, samples=4)
    policy = tq.plan(table, alpha=0.1, max_width=0.12, unit="whole-group")
    rates = {}
    for report in _policy_reports(policy, table):
        rates.setdefault(report.group, set()).add(report.acceleration)

    assert all(len(r) == 1 for r in rates.values())
    assert len({min(r) for r in rates.values()}) > 1


def test_whole_groups_cannot_be_stopped_in_a_table_without_groups():
    table = run_folder.table_of(volumes=30, samples=4)
    policy = tq.plan(table, alpha=0.1, max_width=0.12, unit="whole-group")

    with pytest.raises(tq.InputError, match="decides about whole groups, the table has none"):
        list(_policy_reports(policy, replace(table, group=None)))


@given(st.text(max_size=20))
def test_no_text_becomes_a_formula_and_none_is_lost(text):
    written = cell(text)

    assert not written.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    assert written in (text, f"'{text}")


@given(st.floats(allow_nan=False) | st.integers(-(10**15), 10**15))
def test_numbers_keep_all_their_digits(value):
    assert float(cell(value)) == value


def test_hostile_names_stay_text_in_a_spreadsheet(tmp_path):
    path = write_csv(
        tmp_path / "a.csv", Table("t", "c", ("case",), tuple((n,) for n in run_folder.HOSTILE))
    )
    back = [row["case"] for row in rows_of(path)]

    assert [b.removeprefix("'") for b in back] == [h.removeprefix("'") for h in run_folder.HOSTILE]
    assert not any(b.startswith("=") for b in back)


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
    rows = rows_of(exported / "exports/groups.csv")
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


@given(st.text(st.characters(codec="ascii"), max_size=30))
def test_latex_text_has_no_live_characters(text):
    plain = _escaped(text)
    for command in (r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}",
                    r"\textless{}", r"\textgreater{}"):  # fmt: skip
        plain = plain.replace(command, "")
    for special in "&%$#_{}":
        plain = plain.replace(f"\\{special}", "")

    assert not set(plain) & set("\\&%$#_{}~^<>\n")


def test_latex_tables_compile_where_latex_is(tmp_path):
    program = shutil.which("pdflatex")
    if program is None:
        pytest.skip("no pdflatex is installed; the escaping is tested above")
    table = Table("t", run_folder.HOSTILE[0], ("a_b", "c"), (("x & y", np.inf), ("%", 1.0)))
    (tmp_path / "t.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs}\\begin{document}"
        + latex_table(table) + "\\end{document}"
    )  # fmt: skip
    done = subprocess.run([program, "-interaction=nonstopmode", "-halt-on-error", "t.tex"],
                          cwd=tmp_path, capture_output=True, text=True)  # fmt: skip

    assert done.returncode == 0, done.stdout[-800:]


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
