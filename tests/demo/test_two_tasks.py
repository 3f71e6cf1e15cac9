"""Two tasks on the atlas at once, by the shipped configurations at a small size: train to page."""

import json
import tomllib
from pathlib import Path

import numpy as np
import tomli_w

import taskuq as tq
from taskuq._io import open_npz
from taskuq.cli.app import main

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "atlas"
LESION, AREA = "lesion", "lesion area (mm²)"


def smaller(name, folder, **changes):
    """A shipped configuration with some keys changed; another kind is another table."""
    table = tomllib.loads((CONFIGS / name).read_text())
    for part, values in changes.items():
        is_table = isinstance(values, dict) and "kind" not in values
        table[part] = table[part] | values if is_table else values
    path = folder / name
    path.write_text(tomli_w.dumps(table))
    return str(path)


def test_presence_and_area_of_lesions_end_in_one_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = {"size": 64, "slices": 2}
    area = smaller(
        "classifier-area.toml", tmp_path, data={"patients": 12, **small},
        training={"epochs": 1, "batch": 8},
    )  # fmt: skip
    main(["train", "classifier", area, "-o", "runs/atlas-classifier-area", "--accelerator", "cpu"])
    run = smaller(
        "run-two-tasks.toml", tmp_path, samples=2, data={"patients": 12, "coils": 2, **small},
        recover={"kind": "zero-filled"},
    )  # fmt: skip
    main(["run", run, "-o", "both", "--keep-images", "2", "--device", "cpu"])
    widths = f"{LESION}=0.9,{AREA}=400"
    main(["report", "both", "--alpha", "0.3", "--max-width", widths, "--splits", "20"])
    table = tq.TaskOutputs.load("both")
    assert table.task_names == (LESION, AREA)
    assert table.task_ranges == ((0.0, 1.0), (0.0, np.inf))
    policy = tq.load_policy("both-report/policy.json")
    assert policy.goal.statement.count("at most 0.9 wide") == 1
    assert policy.goal.statement.count("at most 400 wide") == 1
    judged = json.loads(Path("both-report/evaluate.json").read_text())["results"]
    assert {row["task"] for row in judged} == {LESION, AREA}
    with open_npz(Path("both-report/explorer.npz"), "explorer") as shown:
        assert shown["task_names"].tolist() == [LESION, AREA]
        assert shown["truth"].shape == (2, 64, 64)
    assert AREA in Path("both-report/report.html").read_text()
