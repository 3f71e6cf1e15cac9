"""Contents of a report: guarantees with their shortages, intervals, missing and damaged records."""

import numpy as np
import pytest
import run_folder

import taskuq as tq
from taskuq.conformal._evaluate import EvaluationGrid, evaluate_table
from taskuq.report._contents import _policy_reports, build_contents
from taskuq.report._records import read_folder
from taskuq.report._report import answer_lines, write_report
from taskuq.table._table import TaskOutputs


def guarantees(folder):
    write_report(folder)
    return {sentence: list(of) for sentence, of in build_contents(read_folder(folder)).guarantees}


def bound(cases, **asked):
    rng = np.random.default_rng(0)
    outputs, targets = rng.random((cases, 4)), rng.random(cases)
    return tq.calibrate(outputs, targets, score="lwr", task_range=(0, 1), **asked)


def test_every_shortage_stands_next_to_its_guarantee(tmp_path):
    # Five bounds that are fine come first; none of the shortages may be lost after them.
    for k in range(5):
        bound(100 + k, alpha=0.1).save(tmp_path / f"a{k}.json")
    short = [bound(8, alpha=0.1), bound(50, alpha=0.05, delta=0.01)]
    for k, one in enumerate(short):
        one.save(tmp_path / f"b{k}.json")
    boxes = guarantees(tmp_path)
    for one in short:
        assert boxes[one.guarantee.statement] == [f"But {one.guarantee.caveat}."]
    assert sum(not lines for lines in boxes.values()) == 4


def test_a_policy_that_never_stops_says_so_next_to_its_guarantee(tmp_path):
    rng = np.random.default_rng(0)
    table = TaskOutputs(rng.random((1, 12, 4)), rng.random(12), accelerations=[8])
    policy = tq.plan(table, alpha=0.01, max_width=0.1)
    policy.save(tmp_path / "policy.json")
    (said,) = guarantees(tmp_path)[policy.statement]
    assert "99" in said


def test_splits_without_a_finite_interval_are_reported(tmp_path):
    rng = np.random.default_rng(0)
    table = TaskOutputs(rng.random((1, 20, 4)), rng.random(20), accelerations=[8])
    record = evaluate_table(
        table, EvaluationGrid(scores=("lwr",), splits=5, unit="case", alpha=0.01)
    )
    run_folder.write(tmp_path / "evaluate.json", record.to_dict())
    ((said,),) = guarantees(tmp_path).values()
    assert said.startswith("But in all splits, no finite interval exists at R = 8 (lwr)")


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


@pytest.mark.parametrize(
    "name",
    ["run.json", "table.npz", "explorer.npz", "policy.json", "experiments/samples.json"],
)  # fmt: skip
def test_a_missing_result_makes_a_shorter_page(run_dir, tmp_path, name):
    whole = (run_dir / "report.html").read_text()
    for path in run_dir.rglob("*"):
        inside = path.relative_to(run_dir)
        if path.is_file() and inside.as_posix() != name and path.name != "report.html":
            (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / inside).symlink_to(path)
    text = write_report(tmp_path).read_text()
    assert len(text) < len(whole)
    assert all(one in whole for one in ("ran out of memory", "taskuq.later/7"))
    assert "<svg" in text
    assert "undefined" not in text.split("<script")[0].lower()


def test_an_empty_folder_makes_a_page_of_notes_without_figures(tmp_path):
    text = write_report(tmp_path).read_text()
    assert "<svg" not in text
    assert text.count('class="note"') >= 4


@pytest.mark.parametrize(
    "damage",
    ["{", "[]", '{"schema": "taskuq.evaluate/1"}', '{"schema": "taskuq.simulate/1", "results": 3}',
     '{"schema": "taskuq.experiment/1", "name": "x", "title": "t", "figures": [{"name": 1}]}',
     '{"schema": "taskuq.quality/1", "results": [{"psnr": null}]}', '{"schema": ["list"]}',
     '{"schema": "taskuq.policy/1"}', '{"schema": "taskuq.run/1", "networks": [3], "what": 5}',
     '{"schema": "taskuq.task/1", "parts": {"judge": 7}}', "\x00\xff",
     '{"schema": "taskuq.plan-size/1", "alpha": 0.1, "delta": null}'],
)  # fmt: skip
def test_a_damaged_record_is_a_note_not_an_error(tmp_path, damage):
    (tmp_path / "damaged.json").write_bytes(damage.encode("latin-1"))
    (tmp_path / "explorer.npz").write_bytes(b"PK\x03\x04 no zip")
    text = write_report(tmp_path).read_text()
    assert "explorer.npz could not be read" in text
    assert "damaged.json" in text or "taskuq.run/1" in damage
    assert any("explorer.npz could not be read" in line for line in answer_lines(tmp_path))
