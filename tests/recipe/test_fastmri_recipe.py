"""The paper's experiment on fastMRI, from files to the page, as docs/fastmri.md tells it."""

import json
import tomllib

import numpy as np
import pytest
from knee import CHANGES, COMMANDS, ROOT, SHIPPED

from taskuq.outputs import TaskOutputs
from taskuq.weights.files import read_card

# Under a minute of one core; the clock runs on where others hold it.
pytestmark = pytest.mark.timeout(3000)


def test_every_shipped_configuration_is_run():
    assert {path.stem for path in SHIPPED.glob("*.toml")} == set(CHANGES)


def test_the_table_names_slices_volumes_and_tears(recipe):
    table = TaskOutputs.load(recipe / "runs/fastmri-knee/table")

    assert not table.missing
    assert table.outputs.shape == (4, 6, 2)
    assert table.accelerations.tolist() == [16, 8, 4, 2]
    assert table.task_range == (0, 1)
    # Of two slices the central rule keeps the first, which is torn in every other volume.
    assert sorted(table.case) == [f"file1001{k:03d}-0" for k in range(6)]
    torn = {case for case, label in zip(table.case, table.label, strict=True) if label}
    assert torn == {f"file1001{k:03d}-0" for k in range(0, 6, 2)}
    assert len(np.unique(table.group)) == 6


def test_both_tables_speak_of_the_same_cases_and_truths(recipe):
    flow = TaskOutputs.load(recipe / "runs/fastmri-knee/table")
    varnet = TaskOutputs.load(recipe / "runs/fastmri-knee-ar/table")

    assert varnet.outputs.shape == (4, 6, 1)
    assert list(flow.case) == list(varnet.case)
    assert flow.targets == pytest.approx(varnet.targets, abs=1e-6)
    assert not np.array_equal(flow.outputs[..., :1], varnet.outputs)


def test_posterior_samples_close_in_on_the_truth_as_lines_are_added(recipe):
    # Untrained or not, consistency with more lines leaves less to guess.
    table = TaskOutputs.load(recipe / "runs/fastmri-knee/table")
    error = np.abs(table.outputs.mean(axis=-1) - table.targets).mean(axis=1)

    assert error[3] < error[0]


def test_what_was_trained_is_what_the_file_says_but_for_its_size(recipe):
    for name in ("varnet", "flow", "simclr", "classifier"):
        run = recipe / f"runs/fastmri-knee-{name}"
        used, shipped = (
            tomllib.loads(path.read_text())
            for path in (run / "config.toml", SHIPPED / f"{name}.toml")
        )
        assert used["data"] == used["data"] | shipped["data"]
        assert used["training"]["learning_rate"] == shipped["training"]["learning_rate"]
        assert read_card(run / "best.safetensors", (name,))


def test_the_classifier_learns_from_all_slices_of_training_volumes_alone(recipe):
    split = json.loads((recipe / "runs/fastmri-knee-split.json").read_text())
    quality = json.loads((recipe / "runs/fastmri-knee-classifier/quality.json").read_text())

    assert (len(split["train"]), len(split["tune"]), split["judge"]) == (2, 1, [])
    assert all(name.startswith("file1000") for name in split["train"] + split["tune"])
    assert quality["parts"]["tune"][0]["cases"] == 2


def test_files_that_are_not_used_are_listed_with_a_reason(recipe):
    check = json.loads((recipe / "runs/fastmri-knee/data-check.json").read_text())
    skipped = {row["file"]: row["reason"] for row in check["files"] if not row["used"]}

    assert skipped == {
        "file1002000.h5": "acquisition is CORPDFS_FBK, not CORPD_FBK",
        "file1002001.h5": "not annotated in fastMRI+",
    }


def test_every_volume_is_prepared_once(recipe):
    # Seven validation volumes of the right acquisition, three for training.
    assert len(list((recipe / "cache/knee").rglob("*.npz"))) == 3 + 7
    assert len(list((recipe / "cache/knee").rglob("*.json"))) == 3 + 7
    assert len(list((recipe / "cache/knee").iterdir())) == 1


def test_judged_images_are_not_rounded_and_no_command_reads_raw_kspace(recipe):
    table = TaskOutputs.load(recipe / "runs/fastmri-knee/table")

    assert table.provenance["configuration"]["fingerprints"]["images"] == "single"
    assert "raw k-space is read" not in (recipe / "said.txt").read_text()


def test_records_hold_the_papers_rows_and_the_page_shows_them(recipe):
    run = recipe / "runs/fastmri-knee"
    results = json.loads((run / "evaluate.json").read_text())["results"]
    assert {(r["acceleration"], r["score"]) for r in results} == {
        (R, score) for R in (16, 8, 4, 2) for score in ("lwr", "cqr", "mlwr")
    }
    assert all(len(r["class_coverage"]) == 2 for r in results)
    methods = {r["method"] for r in json.loads((run / "quality.json").read_text())["results"]}
    assert methods == {"zero-filled", "varnet", "flow"}
    page = (run / "report.html").read_text()
    for word in ("Coverage", "PSNR", "fixed-width", "file1001000", "multi-round protocol"):
        assert word in page, word


def test_the_papers_claims_are_looked_at_on_the_tables(recipe):
    records = {path.stem for path in (recipe / "runs/fastmri-knee/records").glob("*.json")}
    assert {"interval-length", "multi-round", "paper-protocol", "data-splits"} <= records
    splits = json.loads((recipe / "runs/fastmri-knee/records/data-splits.json").read_text())
    parts = next(table for table in splits["tables"] if table["name"] == "parts")
    # Cases, volumes and tears to train on, to tune on, and judged.
    assert sorted(row[1:4] for row in parts["rows"]) == [[2, 1, 1], [4, 2, 2], [6, 6, 3]]


def test_the_page_of_the_recipe_names_every_command():
    text = (ROOT / "docs/fastmri.md").read_text()
    for command in COMMANDS.strip().splitlines():
        verb = " ".join(word for word in command.split()[:3] if "/" not in word)
        assert verb in text, verb
    for path in SHIPPED.glob("*.toml"):
        assert f"configs/fastmri-knee/{path.name}" in text
