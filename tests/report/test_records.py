"""Tables as CSV without formulas and as LaTeX."""

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import taskuq as tq
from taskuq._io import with_checksum, write_json
from taskuq.report._records import _escaped, cell
from taskuq.report._report import write_report


@given(st.text(max_size=20))
def test_no_text_becomes_a_formula_and_none_is_lost(text):
    written = cell(text)
    assert not written.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    assert written in (text, f"'{text}")


@given(st.floats(allow_nan=False) | st.integers(-(10**15), 10**15))
def test_numbers_keep_all_their_digits(value):
    assert float(cell(value)) == value


@given(st.text(st.characters(codec="ascii"), max_size=30))
def test_latex_text_has_no_live_characters(text):
    plain = _escaped(text)
    for command in (r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}",
                    r"\textless{}", r"\textgreater{}"):  # fmt: skip
        plain = plain.replace(command, "")
    for special in "&%$#_{}":
        plain = plain.replace(f"\\{special}", "")
    assert not set(plain) & set("\\&%$#_{}~^<>\n")


@pytest.mark.parametrize("field", ["alpha", "coverage"])
def test_an_odd_field_of_an_evaluation_leaves_the_other_evaluation(tmp_path, field):
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
