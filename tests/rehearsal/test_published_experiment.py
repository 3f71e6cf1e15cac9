"""The paper's experiment on fastMRI, from files to the page, as docs/fastmri.md tells it."""

import json
import tomllib

import numpy as np
import pytest
from places import CONFIGS, ROOT

from taskuq.outputs import TaskOutputs
from taskuq.runs.rehearsal import toy
from taskuq.runs.rehearsal.recipe import COMMANDS, read_recipe, recipe_of
from taskuq.weights.files import read_card

# Two minutes of one core; the clock runs on where others hold it.
pytestmark = pytest.mark.timeout(3000)


def test_the_document_and_the_rehearsal_have_the_same_commands_to_the_character():
    document = (ROOT / "docs/fastmri.md").read_text()

    assert recipe_of(document) == COMMANDS.read_text()
    assert recipe_of(document.replace("--alpha 0.01", "--alpha 0.02")) != COMMANDS.read_text()


def test_every_configuration_of_the_experiment_is_followed():
    shipped = {path.stem for path in CONFIGS.glob("*.toml")}
    followed = {line.config.stem for line in read_recipe() if line.config}

    # Not in the paper, nor in its experiment.
    assert shipped - followed == {"sampler"}
    assert followed == set(toy.CHANGES)


def test_every_command_passes_in_the_documents_order(rehearsed):
    _, record = rehearsed
    lost = {r["line"]: r["error"] for r in record["lines"] if r["status"] != "passed"}

    assert lost == {}
    assert [r["line"] for r in record["lines"]] == [line.text for line in read_recipe()]
    assert record["passed"] == len(record["lines"])


def test_time_and_memory_of_every_command_are_known(rehearsed):
    _, record = rehearsed
    units = {r["line"].split()[1]: r["cost"]["unit"] for r in record["lines"]}

    assert all(r["seconds"] > 0 and r["peak_host_bytes"] > 2**26 for r in record["lines"])
    assert {k: units[k] for k in ("train", "run", "quality")} == {
        "train": "step", "run": "slice", "quality": "slice",
    }  # fmt: skip
    timed = [r["cost"] for r in record["lines"] if r["cost"]["unit"]]
    assert all(cost["each"] > 0 and cost["hours"] > 0 for cost in timed)


def test_a_second_rehearsal_runs_nothing_and_says_so(rehearsed, monkeypatch):
    rehearsal, record = rehearsed
    monkeypatch.setattr("taskuq.runs.rehearsal.run.run_command", None)

    again = rehearsal.run()

    assert all(r["kept"] for r in again["lines"])
    assert [r["seconds"] for r in again["lines"]] == [r["seconds"] for r in record["lines"]]


def test_the_table_names_slices_volumes_and_lesions(work):
    table = TaskOutputs.load(work / "runs/fastmri-knee/table")
    rows = [row.split(",") for row in (work / "data/knee.csv").read_text().splitlines()]
    torn = {f"{row[0]}-{row[1]}" for row in rows if row[-1] == "Meniscus Tear"}

    assert not table.missing
    assert table.outputs.shape == (4, 56, 2)
    assert table.accelerations.tolist() == [16, 8, 4, 2]
    assert table.task_range == (0, 1)
    # Of 23 slices the central rule keeps 14.
    assert sorted(table.case) == sorted(
        f"file1001{k:03d}-{index}" for k in range(4) for index in range(4, 18)
    )
    shown = {case for case, label in zip(table.case, table.label, strict=True) if label}
    assert shown == torn & set(table.case)
    assert 0 < len(shown) < 56


def test_both_tables_speak_of_the_same_cases_and_truths(work):
    flow = TaskOutputs.load(work / "runs/fastmri-knee/table")
    varnet = TaskOutputs.load(work / "runs/fastmri-knee-ar/table")

    assert varnet.outputs.shape == (4, 56, 1)
    assert list(flow.case) == list(varnet.case)
    assert flow.targets == pytest.approx(varnet.targets, abs=1e-6)
    assert not np.array_equal(flow.outputs[..., :1], varnet.outputs)


def test_posterior_samples_close_in_on_the_truth_as_lines_are_added(work):
    # Untrained or not, consistency with more lines leaves less to guess.
    table = TaskOutputs.load(work / "runs/fastmri-knee/table")
    error = np.abs(table.outputs.mean(axis=-1) - table.targets).mean(axis=1)

    assert error[3] < error[0]


def test_what_was_trained_is_what_the_file_says_but_for_its_size(work):
    for name in ("varnet", "flow", "simclr", "classifier"):
        run = work / f"runs/fastmri-knee-{name}"
        used, shipped = (
            tomllib.loads(path.read_text())
            for path in (run / "config.toml", CONFIGS / f"{name}.toml")
        )
        small = {"size": toy.SIZE, "minimum_width": toy.SIZE}
        assert used["data"] == used["data"] | shipped["data"] | small
        assert used["training"]["learning_rate"] == shipped["training"]["learning_rate"]
        assert used["training"]["epochs"] == shipped["training"]["epochs"]
        assert used["trial"] == {"steps": 3}
        assert read_card(run / "best.safetensors", (name,))


def test_the_classifier_learns_from_all_slices_of_training_volumes_alone(work):
    split = json.loads((work / "runs/fastmri-knee-split.json").read_text())
    quality = json.loads((work / "runs/fastmri-knee-classifier/quality.json").read_text())

    assert (len(split["train"]), len(split["tune"]), split["judge"]) == (3, 1, [])
    assert all(name.startswith("file1000") for name in split["train"] + split["tune"])
    assert quality["parts"]["tune"][0]["cases"] == 6


def test_files_that_are_not_used_are_listed_with_a_reason(work):
    check = json.loads((work / "runs/fastmri-knee/data-check.json").read_text())
    skipped = {row["file"]: row["reason"] for row in check["files"] if not row["used"]}

    assert skipped == {
        "file1002000.h5": "acquisition is CORPDFS_FBK, not CORPD_FBK",
        "file1002001.h5": "not annotated in fastMRI+",
    }


def test_every_volume_is_prepared_once(work):
    # Four to train on; five validation volumes of the right acquisition, one not annotated.
    assert len(list((work / "cache/knee").rglob("*.npz"))) == 4 + 5
    assert len(list((work / "cache/knee").rglob("*.json"))) == 4 + 5
    assert len(list((work / "cache/knee").iterdir())) == 1


def test_judged_images_are_not_rounded_and_no_command_reads_raw_kspace(rehearsed, work):
    table = TaskOutputs.load(work / "runs/fastmri-knee/table")
    logs = [path.read_text() for path in sorted((rehearsed[0].output / "logs").iterdir())]

    assert table.provenance["configuration"]["fingerprints"]["images"] == "single"
    assert len(logs) == len(read_recipe())
    assert not any("raw k-space is read" in log for log in logs)


def test_records_hold_the_papers_rows_and_the_page_shows_them(work):
    run = work / "runs/fastmri-knee"
    results = json.loads((run / "evaluate.json").read_text())["results"]
    assert {(r["acceleration"], r["score"]) for r in results} == {
        (R, score) for R in (16, 8, 4, 2) for score in ("lwr", "cqr", "mlwr", "learned")
    }
    assert all(len(r["class_coverage"]) == 2 for r in results)
    methods = {r["method"] for r in json.loads((run / "quality.json").read_text())["results"]}
    assert methods == {"zero-filled", "varnet", "flow"}
    page = (run / "report.html").read_text()
    for word in ("Coverage", "PSNR", "fixed-width", "file1001000", "multi-round protocol"):
        assert word in page, word


def test_the_papers_claims_are_looked_at_on_the_tables(work):
    records = {path.stem for path in (work / "runs/fastmri-knee/records").glob("*.json")}
    assert {"interval-length", "multi-round", "paper-protocol", "data-splits"} <= records
    splits = json.loads((work / "runs/fastmri-knee/records/data-splits.json").read_text())
    parts = next(table for table in splits["tables"] if table["name"] == "parts")
    # Cases and volumes to train on, to tune on, and judged.
    assert sorted(row[1:3] for row in parts["rows"]) == [[6, 1], [18, 3], [56, 4]]
