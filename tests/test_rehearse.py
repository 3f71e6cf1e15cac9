import os
import re
from pathlib import Path

import numpy as np
import pytest

from raising import refused
from taskuq._config import read_toml
from taskuq.cli.app import main
from taskuq.experiments import _rehearse as rehearse
from taskuq.experiments._rehearse import Rehearsal, _Ended
from taskuq.table._table import TaskOutputs

ROOT = Path(__file__).parents[1]
CONFIGS, DOCUMENT = ROOT / "configs/fastmri-knee", (ROOT / "docs/how-to/fastmri.md").read_text()
SMALL = """# 1. Try
taskuq calibrate data/a.npz -o runs/a.json
taskuq predict runs/a.json data/a.npz -o runs/a.csv
taskuq calibrate data/b.npz -o runs/b.json
"""


def test_document_has_the_same_commands():
    parts = []
    for section in DOCUMENT.split("\n## ")[1:]:
        blocks = re.findall(r"^```bash\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
        parts += [f"# {section.partition(chr(10))[0]}\n{block}" for block in blocks]
    assert "\n".join(parts) == rehearse.COMMANDS.read_text()


def in_this_process(words, folder, log):
    before, status = Path.cwd(), 0
    # Workers would import everything again.
    words = [w if words[k - 1] != "--workers" else "1" for k, w in enumerate(words)]
    os.chdir(folder)
    try:
        main(words)
    except SystemExit as stopped:
        status = stopped.code or 0
    finally:
        os.chdir(before)
    return _Ended(status, 1.0, 2**30)


def test_every_command_passes_and_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(rehearse, "_run_command", in_this_process)
    monkeypatch.setattr(rehearse, "_SPLITS", "--splits 10")
    rehearsal = Rehearsal(tmp_path, CONFIGS, volumes=4, toy=True)
    record = rehearsal.run()
    assert {r["line"]: r["status"] for r in record["lines"] if r["status"] != "passed"} == {}
    assert record["passed"] == len(rehearsal.recipe) == 18
    costs = {r["line"].split()[1]: r["cost"] for r in record["lines"]}
    assert [costs[k]["unit"] for k in ("train", "run", "quality")] == ["step", "slice", "slice"]
    assert all(cost["hours"] > 0 for cost in costs.values() if cost)
    flow, varnet = (
        TaskOutputs.load(rehearsal.work / f"runs/{name}/table")
        for name in ("fastmri-knee", "fastmri-knee-ar")
    )
    assert (flow.outputs.shape, varnet.outputs.shape) == ((4, 56, 2), (4, 56, 1))
    assert not flow.missing_cases
    assert list(flow.case) == list(varnet.case)
    assert flow.targets == pytest.approx(varnet.targets, abs=1e-6)
    assert 0 < np.sum(flow.label) < 56
    assert (rehearsal.work / "runs/fastmri-knee/report.html").exists()
    used = read_toml(rehearsal.work / "runs/fastmri-knee-flow/config.toml")
    shipped = read_toml(CONFIGS / "flow.toml")
    assert used["training"]["epochs"] == shipped["training"]["epochs"]
    assert used["trial"] == {"steps": 3}
    monkeypatch.setattr(rehearse, "_run_command", None)
    assert all(r["kept"] for r in rehearsal.run()["lines"])


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Rehearse a few commands without processes; return their statuses and which were run."""
    monkeypatch.setattr(Rehearsal, "lay_out", lambda self: None)

    def start(*failing, fresh=False, text=SMALL):
        ran = []

        def run_command(words, folder, log):
            ran.append(words[words.index("-o") + 1])
            return _Ended(int(any(word in failing for word in words)), 1.0, 2**30, "Traceback")

        monkeypatch.setattr(rehearse, "_run_command", run_command)
        recipe = rehearse._read_recipe(text)
        record = Rehearsal(tmp_path / "out", CONFIGS, toy=True, recipe=recipe).run(fresh=fresh)
        return [r["status"] for r in record["lines"]], ran

    return start


def test_failed_command_is_run_again(start):
    assert start("data/a.npz") == (["failed", "skipped", "passed"], ["runs/a.json", "runs/b.json"])
    assert start() == (["passed"] * 3, ["runs/a.json", "runs/a.csv"])
    assert start() == (["passed"] * 3, [])
    assert len(start(fresh=True)[1]) == 3


def test_changed_command_code_or_machine_is_run_again(start, monkeypatch):
    start()
    changed = SMALL.replace("-o runs/a.json", "-o runs/a.json --alpha 0.2")
    # The second command reads what the first makes anew.
    assert start(text=changed)[1] == ["runs/a.json", "runs/a.csv"]
    for name, other in (("_code", "another"), ("_machine", ["another", 96])):
        monkeypatch.setattr(rehearse, name, lambda other=other: other)
        assert len(start()[1]) == 3


def test_commands_with_one_output_run_together(start, tmp_path):
    text = "".join(f"taskuq predict {n} -o runs/{n}.csv --cache cache/both\n" for n in "ab")
    start("b", text=text)
    left = tmp_path / "out/work/cache/both/of-before"
    left.parent.mkdir(parents=True)
    left.touch()
    assert start(text=text)[1] == ["runs/a.csv", "runs/b.csv"]
    assert not left.exists()


def test_other_folder_or_settings_are_refused(start, tmp_path):
    start()
    (tmp_path / "mine.txt").touch()
    for folder, volumes, code in (
        (tmp_path, 5, "file.exists"), (tmp_path / "out", 4, "resume.mismatch"),
    ):  # fmt: skip
        with refused(code):
            Rehearsal(folder, CONFIGS, toy=True, volumes=volumes).run()
    assert (tmp_path / "mine.txt").exists()
    for wrong in (("--steps", "1"), ("--volumes", "3")):
        with pytest.raises(SystemExit):
            main(["rehearse", str(CONFIGS), "-o", str(tmp_path / "new"), *wrong])
    assert not (tmp_path / "new").exists()


def test_process_is_measured(tmp_path):
    ended = rehearse._run_command(["status", "absent", "--traceback"], tmp_path, tmp_path / "log")
    assert ended.status == 2
    assert "Traceback" in ended.output
    # Memory is its own, not that of the tests, which torch has made large.
    assert 2**24 < ended.peak_host_bytes < 2**29


def test_training_is_scaled_to_all_steps():
    trial = {
        "epochs": 50, "batch": 16, "step_s": 0.4, "first_step_s": 20.4, "validation_step_s": 0.2,
        "keep_s": 1.0, "keep_every": 1, "before": None,
    }  # fmt: skip
    # 1027 steps and 54 batches of validation in each epoch, and 20 s of compiling.
    hours = (50 * (1027 * 0.4 + 54 * 0.2 + 1) + 20) / 3600
    assert rehearse._full_training(trial, 16422) == pytest.approx(hours)
    assert rehearse._full_training(trial | {"before": trial}, 16422) == pytest.approx(2 * hours)
