"""What the page promises: every shortage stands beside its promise."""

from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import run_folder

import taskuq as tq
from taskuq.conformal._evaluate import EvaluationGrid, evaluate_table
from taskuq.report._report import write_report
from taskuq.table._table import TaskOutputs


class Boxes(HTMLParser):
    """The promises of a page, each with the sentences that are short of it."""

    def __init__(self, path):
        super().__init__()
        self.found, self.open, self.text = {}, False, None
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        kinds = (dict(attributes).get("class") or "").split()
        self.open = self.open or "promise" in kinds
        if self.open and "promise" in kinds:
            self.lines, self.is_amber = [], "short" in kinds

    def handle_endtag(self, tag):
        if tag == "div" and self.open:
            sentence, *short = self.lines
            assert self.is_amber == bool(short)
            self.found[sentence], self.open = short, False

    def handle_data(self, data):
        if self.open and data.strip():
            self.lines.append(data)


def bound(cases, **asked):
    rng = np.random.default_rng(0)
    outputs, targets = rng.random((cases, 4)), rng.random(cases)
    return tq.calibrate(outputs, targets, score="lwr", task_range=(0, 1), **asked)


def test_every_shortage_stands_beside_its_promise(tmp_path):
    # Five bounds that are fine come first; none of the shortages may be lost behind them.
    for k in range(5):
        bound(100 + k, alpha=0.1).save(tmp_path / f"a{k}.json")
    short = [bound(8, alpha=0.1), bound(50, alpha=0.05, delta=0.01)]
    for k, one in enumerate(short):
        one.save(tmp_path / f"b{k}.json")
    boxes = Boxes(write_report(tmp_path)).found

    for one in short:
        assert boxes[one.guarantee.sentence] == [f"But {one.guarantee.shortage}."]
    assert sum(not lines for lines in boxes.values()) == 4


def test_a_policy_that_never_stops_says_so_beside_its_promise(tmp_path):
    rng = np.random.default_rng(0)
    table = TaskOutputs(rng.random((1, 12, 4)), rng.random(12), accelerations=[8])
    policy = tq.plan(table, alpha=0.01, max_width=0.1)
    policy.save(tmp_path / "policy.json")
    (said,) = Boxes(write_report(tmp_path)).found[policy.statement]

    assert "needs at least 99 calibration cases, got 12" in said
    assert "every scan goes on to the end" in said


def test_a_record_from_before_shortages_were_stored_does_not_look_fine(tmp_path, monkeypatch):
    one = bound(8, alpha=0.1)
    monkeypatch.setattr("taskuq.report._contents.load_bound", lambda path: stripped)
    stripped = replace(one, guarantee=replace(one.guarantee, shortage=None))
    one.save(tmp_path / "bound.json")
    (said,) = Boxes(write_report(tmp_path)).found[one.guarantee.sentence]

    assert said == "But no finite interval keeps it: the interval is the whole task range."


def test_splits_without_a_finite_interval_are_told(tmp_path):
    rng = np.random.default_rng(0)
    table = TaskOutputs(rng.random((1, 20, 4)), rng.random(20), accelerations=[8])
    record = evaluate_table(
        table, EvaluationGrid(scores=("lwr",), trials=5, unit="case", alpha=0.01)
    )
    run_folder.write(tmp_path / "evaluate.json", record.to_dict())
    ((said,),) = Boxes(write_report(tmp_path)).found.values()

    assert said.startswith("But all of the splits give no finite interval at R = 8 (lwr)")
