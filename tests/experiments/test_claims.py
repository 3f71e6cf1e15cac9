"""Records of the claims: repeatable, readable by the report, and true to the engines below."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.experiments._claims import EXPERIMENTS, ClaimSettings, make_inputs, run_all, run_one
from taskuq.experiments._intervals import _interval_length
from taskuq.report._contents import STORY, build_contents
from taskuq.report._records import read_folder
from taskuq.table._table import replace_arrays

FASTMRI = Path(__file__).resolve().parents[2] / "../shared/data/fastmri_outputs/meniscus_tear.npz"
REFERENCE = {
    (16.0, "ar"): ".12519", (16.0, "lwr"): ".09926", (16.0, "cqr"): ".10759",
    (8.0, "ar"): ".07746", (8.0, "lwr"): ".05622", (8.0, "cqr"): ".06048",
    (4.0, "ar"): ".04579", (4.0, "lwr"): ".03616", (4.0, "cqr"): ".03550",
    (2.0, "ar"): ".03320", (2.0, "lwr"): ".02647", (2.0, "cqr"): ".02668",
}  # fmt: skip


def rows(record, name):
    (table,) = [t for t in record["tables"] if t["name"] == name]
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def test_report_has_a_place_for_each_experiment():
    assert sorted(STORY) == sorted(["live", *EXPERIMENTS])


def test_every_experiment_runs(records):
    assert [r["name"] for r in records] == list(EXPERIMENTS)
    assert all(r["schema"] == "taskuq.experiment/1" and r["finding"] for r in records)


def test_records_are_reproducible_without_times_and_paths(records, table, point, few):
    text, inputs = json.dumps(records), make_inputs(table, point)
    found = records[list(EXPERIMENTS).index("coverage-law")]
    assert json.dumps(run_one("coverage-law", inputs, few)["tables"]) == json.dumps(found["tables"])
    assert run_one("coverage-law", inputs, replace(few, seed=1))["tables"] != found["tables"]
    assert str(Path.home()) not in text
    assert str(Path.cwd()) not in text
    assert "seconds" not in text


def test_report_shows_every_record(records, tmp_path):
    for record in records:
        path = tmp_path / "records" / f"{record['name']}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(record, allow_nan=False))
    contents = build_contents(read_folder(tmp_path))
    assert {e.name for e in contents.experiments} == set(EXPERIMENTS)
    assert not [note for note in contents.notes if "not complete" in note]


def test_only_ar_depends_on_point_estimates(records, table, few):
    with_point = rows(records[0], "by-case")
    without = rows(_interval_length(make_inputs(table), few), "by-case")
    changed = {a["score"] for a, b in zip(with_point, without, strict=True) if a != b}
    assert changed == {"ar"}


@pytest.mark.parametrize("score", ["cqr", "learned"])
def test_lengths_by_case_are_exact(records, table, few, score):
    found = rows(records[0], "by-case")
    exact = tq.evaluate_exact(
        table.outputs[:2] if score == "learned" else table.outputs[1], table.targets,
        alpha=few.alpha, score=score, task_range=(0, 1),
    )  # fmt: skip
    (row,) = [r for r in found if (r["R"], r["score"]) == (8.0, score)]
    assert row["length"] == pytest.approx(exact.width.mean, rel=1e-12)


def test_shuffled_point_estimates_find_their_cases(table, point):
    order = np.random.default_rng(0).permutation(table.cases)
    shuffled = make_inputs(table, point.select(cases=order))
    assert np.array_equal(shuffled.point.targets, table.targets)
    assert np.array_equal(shuffled.point.outputs, point.outputs)


def test_tables_of_other_cases_are_refused(table, point):
    other = replace_arrays(point, targets=1 - point.targets)
    stranger = replace_arrays(point, case=[f"x{k}" for k in range(point.cases)])
    nameless = replace_arrays(point, case=None).select(cases=np.arange(5))
    for wrong, code in (
        (other, "resume.mismatch"), (stranger, "resume.mismatch"), (nameless, "shape.mismatch"),
    ):  # fmt: skip
        with refused(code):
            make_inputs(table, wrong)


def test_experiments_without_inputs_are_left_out(table, few):
    bare, log = replace_arrays(table, group=None, label=None).select(cases=np.arange(60)), []
    few = replace(few, trials=2, round_trials=2, samples=(2,), goals=((0.1, 0.2),), widths=(0.2,))
    found = [r["name"] for r in run_all(bare, None, few, log=log.append)]
    assert set(EXPERIMENTS) - set(found) == {
        "paper-protocol", "recovery-quality", "classifier-quality", "masks", "examples",
    }  # fmt: skip
    assert sum("left out" in line for line in log) == 5
    with refused("option.missing", "groups"):
        run_one("paper-protocol", make_inputs(bare), few)


@pytest.mark.skipif(not FASTMRI.exists(), reason="the fastMRI outputs are not here")
def test_lengths_on_fastmri_are_the_published_reference():
    real = make_inputs(tq.TaskOutputs.load(FASTMRI, task_range=(0, 1)))
    record = _interval_length(real, ClaimSettings(trials=20, ours=("mlwr",)))
    found = {
        (r["R"], r["score"]): f"{r['unclipped length']:.5f}"[1:]
        for r in rows(record, "by-case")
        if r["score"] != "mlwr"
    }
    assert found == REFERENCE
    assert record["finding"].startswith("Supported:")
