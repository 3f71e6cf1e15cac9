"""Tables as CSV without formulas and as LaTeX."""

import shutil
import subprocess

import numpy as np
import pytest
import run_folder
from hypothesis import given
from hypothesis import strategies as st

from taskuq.report._records import Table, _escaped, cell, latex_table, write_csv


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
