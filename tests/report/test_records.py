"""Tables as CSV without formulas and as LaTeX."""

import json
import os
import shutil
import subprocess

import numpy as np
import pytest
import run_folder
from hypothesis import given
from hypothesis import strategies as st

import taskuq as tq
from taskuq._io import with_checksum, write_json
from taskuq.report._records import Table, _escaped, cell, latex_table, write_csv
from taskuq.report._report import write_report


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
    back = [row["case"] for row in run_folder.rows_of(path)]

    assert [b.removeprefix("'") for b in back] == [h.removeprefix("'") for h in run_folder.HOSTILE]
    assert not any(b.startswith("=") for b in back)


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


RECORDS = {
    "evaluate.json": {"schema": "taskuq.evaluate/1", "unit": 3, "results": [{"alpha": []}]},
    "simulate.json": {"schema": "taskuq.simulate/1", "results": [{"alpha": "x", "stops": 7}]},
    "status.json": {"schema": "taskuq.status/1", "failed": [1], "cases": {}, "finished": None},
    "run.json": {"schema": "taskuq.run/1", "title": [1], "unit": [], "alpha": "x"},
    "check.json": {"schema": "taskuq.data-check/1", "files": 3, "summary": None},
}


@pytest.mark.parametrize("odd", RECORDS)
def test_odd_record_makes_a_shorter_report(tmp_path, odd):
    write_json(tmp_path / odd, RECORDS[odd])
    write_json(tmp_path / "size.json", {"schema": "taskuq.plan-size/1", "alpha": 0.1})

    assert "</html>" in write_report(tmp_path).read_text()


@pytest.mark.parametrize("field", ["alpha", "coverage"])
def test_odd_evaluation_leaves_the_other(tmp_path, field):
    from taskuq.conformal._evaluate import EvaluationGrid, evaluate_table

    rng = np.random.default_rng(0)
    table = tq.TaskOutputs(rng.random((1, 60, 4)), rng.random(60), (8.0,))
    record = evaluate_table(table, EvaluationGrid(scores=("ar",), splits=5, seed=0)).to_dict()
    write_json(tmp_path / "good.json", record)
    bad = json.loads(json.dumps(record))
    bad["results"][0][field] = {"a": [None]}
    write_json(tmp_path / "odd.json", with_checksum(bad))
    page = write_report(tmp_path).read_text()

    assert "odd.json" in page
    assert 'id="fig-good' in page


def test_pipe_in_a_run_folder_is_listed(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "table").mkdir()
    os.mkfifo(tmp_path / "table" / "table.json")

    page = write_report(tmp_path).read_text()
    assert "pipe.json" in page
    assert "not a file" in page
