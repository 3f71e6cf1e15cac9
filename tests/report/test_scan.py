import json
import shutil

import numpy as np
import pytest
import run_folder

import taskuq as tq
from taskuq.report._records import read_folder
from taskuq.report._report import write_report
from taskuq.report._scan import one_scan, scan_picture
from taskuq.table._table import TaskOutputs
from taskuq.table._terminology import Terminology


@pytest.mark.parametrize("alpha", [0.1, 0.01])
def test_the_shown_scan_is_the_explorers(open_page, run_dir, tmp_path, alpha):
    """Round by round, from one calibration set; at 0.01 there are too few groups to stop at all."""
    shutil.copytree(run_dir, tmp_path / "run")
    explorer, table = read_folder(run_dir).explorer, TaskOutputs.load(run_dir / "table.npz")
    calibration = table.select(cases=np.isin(table.group, np.unique(explorer.calibration_group)))
    policy = tq.plan(calibration, alpha=alpha, max_width=0.1, unit="group")
    policy.save(tmp_path / "run/policy.json")
    run = json.loads((run_dir / "run.json").read_text())
    run_folder.write(tmp_path / "run/run.json", {**run, "alpha": alpha})
    scan = one_scan(policy, read_folder(tmp_path / "run"))
    page = open_page(write_report(tmp_path / "run"), fragment=f"#slice={scan.shown}")
    cells = page.locator("[data-part=numbers] td[data-cell=report]").all_inner_texts()
    reported = [cell if cell != "–" else "no interval" for cell in cells]
    rows = page.locator("[data-part=scan] ol > li").all()[:-2]
    assert len(rows) == min(int(page.get_attribute("#explorer", "data-stop")) + 1, len(cells))
    assert [row.locator("span").inner_text() for row in rows] == reported[: len(rows)]
    assert [row.locator("rect").count() for row in rows] == [
        int(text != "no interval") for text in reported[: len(rows)]
    ]
    assert any(text != "no interval" for text in reported) == (alpha == 0.1)


def test_a_case_that_the_policy_was_calibrated_on_is_called_so(run_dir):
    folder = read_folder(run_dir)
    explorer, table = folder.explorer, folder.table
    rest = np.isin(table.group, np.unique(explorer.calibration_group))
    asked = {"alpha": 0.1, "max_width": 0.1, "unit": "group"}
    own = one_scan(tq.plan(table, **asked), folder)
    others = one_scan(tq.plan(table.select(cases=rest), **asked), folder)
    caption = scan_picture(own, explorer, Terminology(case="scene"))["caption"]
    assert own.is_calibration_case
    assert "calibration scenes" in caption
    assert not others.is_calibration_case
    assert "calibration" not in scan_picture(others, explorer, Terminology())["caption"]


def test_of_several_tasks_the_first_is_shown(tmp_path):
    made = run_folder.table_of(volumes=12, samples=4)
    twice = TaskOutputs(
        np.stack([made.outputs, 1 - made.outputs], axis=-1),
        np.stack([made.targets, 1 - made.targets], axis=-1),
        made.accelerations, group=made.group, task_names=("lesion", "health"), task_range=(0, 1),
    )  # fmt: skip
    policy = tq.plan(twice, alpha=0.2, max_width=0.5)
    policy.save(tmp_path / "policy.json")
    twice.save(tmp_path / "table.npz")
    scan = one_scan(policy, read_folder(tmp_path))
    last = policy.decide(len(scan.rounds) - 1, twice.outputs[: len(scan.rounds), int(scan.case)])
    assert scan.task == "lesion"
    assert scan.rounds[-1].report == (last.interval.lower[0], last.interval.upper[0])
    assert "(lesion) stops at" in write_report(tmp_path).read_text()
