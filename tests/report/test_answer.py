"""The answer of a report: its numbers are those of the policy's own simulation."""

import shutil

import numpy as np
import pytest
import run_folder
from run_folder import GOAL, PolicySpec, write_simulation

import taskuq as tq
from taskuq._io import write_json
from taskuq.conformal._evaluate import EvaluationGrid, evaluate_table
from taskuq.report._answer import answer_of
from taskuq.report._contents import build_contents
from taskuq.report._records import NOT_SUPPORTED, experiment_record, read_folder
from taskuq.report.figures._imaging import task_auroc
from taskuq.table._table import TaskOutputs, replace_arrays


def test_the_numbers_are_the_simulations(run_dir):
    contents = build_contents(read_folder(run_dir))
    mine = next(r for r in contents.simulations["simulate"] if r["policy"] == "fixed-width")
    share, coverage, width = answer_of(contents).numbers
    R, error = mine["mean_acceleration"], mine["standard_errors"]["mean_acceleration"]
    assert share.value == f"{100 / R:.1f}\u00a0%"
    assert share.error == f"±\u00a0{100 * error / R**2:.1f}\u00a0%"
    assert coverage.value == f"{100 * mine['coverage']:.1f}\u00a0%"
    assert "at least 90\u00a0%" in coverage.what
    assert width.value == f"{mine['width']:.3g}"


@pytest.mark.parametrize("direction", [1, -1])
def test_a_task_that_detects_nothing_is_named(run_dir, tmp_path, direction):
    table = TaskOutputs.load(run_dir / "table.npz")
    label = (direction * table.targets > np.median(direction * table.targets)).astype(int)
    shutil.copytree(run_dir, tmp_path / "run")
    replace_arrays(table, label=label).save(tmp_path / "run" / "table.npz")
    answer = answer_of(build_contents(read_folder(tmp_path / "run")))
    area = {1: "1.000", -1: "0.000"}[direction]
    assert dict(answer.about)["Task network"].startswith(f"AUROC {area} ± 0 on")
    assert ("AUROC 0.00" in answer.sentence) == (direction == -1)


def test_error_of_auroc_is_that_of_groups(run_dir):
    """Copies of a case in its group add no information; as groups of their own they do."""
    table = TaskOutputs.load(run_dir / "table.npz")
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, table.cases)
    one = replace_arrays(table, label=label, case=None, group=np.arange(table.cases).astype(str))
    twice = one.select(cases=np.tile(np.arange(one.cases), 2))
    area, error = task_auroc(one)
    assert task_auroc(twice) == pytest.approx((area, error))
    alone = replace_arrays(twice, group=np.arange(twice.cases).astype(str))
    assert task_auroc(alone)[1] == pytest.approx(error / 2**0.5, rel=0.05)
    # The jackknife over cases agrees.
    left = [
        task_auroc(one.select(cases=np.delete(np.arange(one.cases), k)))[0]
        for k in range(one.cases)
    ]
    jackknife = np.sqrt((one.cases - 1) * np.var(left))
    assert error == pytest.approx(jackknife, rel=0.05)
    assert task_auroc(replace_arrays(one, label=None)) is None


def test_an_unfinished_run_is_named_first(run_dir, monkeypatch):
    contents = build_contents(read_folder(run_dir))
    monkeypatch.setattr(TaskOutputs, "missing_cases", property(lambda table: ("a", "b")))
    assert answer_of(contents).sentence.startswith("Unfinished: 2 ")


def plans_like(alpha=0.1, width=0.1, **options):
    """A plan that differs from the run's own policy where something is given."""
    return [PolicySpec("fixed-width", alpha, run_folder.Goal(max_width=width), **options)]


@pytest.mark.parametrize(
    ("other", "asked"),
    [
        ({"statistic": "learned"}, {}),
        ({"alpha": 0.3}, {}),
        ({"width": 0.4}, {}),
        ({"budget": 0.5}, {}),
        ({}, {"unit": "case"}),
        ({}, {"delta": 0.2}),
    ],
    ids=str,
)
def test_numbers_of_another_policy_are_not_joined_to_the_guarantee(run_dir, tmp_path, other, asked):
    table = TaskOutputs.load(run_dir / "table.npz")
    shutil.copy(run_dir / "policy.json", tmp_path)
    write_simulation(tmp_path / "simulate.json", table, plans_like(**other), **asked)
    answer = answer_of(build_contents(read_folder(tmp_path)))
    assert answer.numbers == ()
    assert answer.verdicts[0].verdict == "not tested"


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ({"score": "lwr", "kind": "adaptive"}, {}),
        ({"statistic": "learned", "budget": 0.5}, {}),
        ({}, {"unit": "whole-group"}),
        ({"given": "early"}, {"unit": "case", "delta": 0.2}),
    ],
    ids=str,
)
def test_a_policy_is_found_again_in_its_own_simulation(tmp_path, spec, asked):
    table = run_folder.table_of(volumes=30, samples=4)
    options = {("policy" if key == "kind" else key): value for key, value in spec.items()}
    planned = tq.plan(table, alpha=0.1, max_width=0.1, **options, **asked)
    planned.save(tmp_path / "policy.json")
    plans = [PolicySpec(**{"kind": "fixed-width", "alpha": 0.1, "goal": GOAL, **spec})]
    write_simulation(tmp_path / "simulate.json", table, plans, **asked)
    assert build_contents(read_folder(tmp_path)).simulated is not None


def test_task_data_and_baseline_are_named(run_dir):
    contents = build_contents(read_folder(run_dir))
    about = dict(answer_of(contents).about)
    paper = next(r for r in contents.simulations["simulate"] if r["policy"] == "paper")
    share = answer_of(contents).numbers[0]
    assert about["Task"] == "A latent logit of the truth."
    assert "30 groups" in about["Data"]
    assert f"R̄ = {paper['mean_acceleration']:.3g}" in about["Baseline"]
    assert f"baseline {100 / paper['mean_acceleration']:.1f}\u00a0%" in share.what


def test_the_worst_class_and_site_are_named_and_marked(run_dir):
    contents = build_contents(read_folder(run_dir))
    target = 1 - contents.simulated["alpha"]
    for kind, names, (first, second) in (
        ("class", "01", (target + 0.05, target - 0.21)),
        ("site", ("north", "south"), (target - 0.19, None)),
    ):
        contents.simulated[f"{kind}_coverage"] = [
            {kind: name, "coverage": coverage, "standard_error": 0.1}
            for name, coverage in zip(names, (first, second), strict=True)
        ]
    contents.folder.run["classes"] = {"1": "lesion"}
    answer = answer_of(contents)
    assert [(one.name, one.is_below) for one in answer.worst] == [
        ("lesion", True), ("north", False),
    ]  # fmt: skip
    assert "lesion" in answer.sentence
    assert "north" not in answer.sentence
    assert answer.verdicts[1].verdict == NOT_SUPPORTED
    assert [line for line in answer.lines if "lesion" in line and "!" in line]


def test_an_evaluation_without_stopping_names_the_worst_part(tmp_path):
    rng = np.random.default_rng(0)
    z, label = rng.random(200), np.arange(200) % 10 == 0
    x = z[:, None] + 0.1 * rng.standard_normal((200, 4)) + label[:, None]
    table = tq.TaskOutputs(x, z, label=label.astype(int), site=np.arange(200) % 3)
    record = evaluate_table(table, EvaluationGrid(scores=("ar",), splits=50, alpha=0.2))
    write_json(tmp_path / "evaluation.json", record.to_dict())
    contents = build_contents(read_folder(tmp_path))
    low = answer_of(contents).worst[0]
    names = {t.name for t in contents.tables}
    assert (low.name, low.is_below) == ("class 1", True)
    assert {"evaluation-parts", "evaluation-left-out"} <= names
    assert any("site-left-out" in figure.name for figure in contents.all_figures)


def test_early_reports_that_are_mostly_wrong_are_seen_at_once(tmp_path):
    rng = np.random.default_rng(0)
    z = rng.random(200)
    x = np.clip(z[:, None] + 0.05 * rng.standard_normal((2, 200, 5)), 0, 1)
    asked = {"alpha": 0.1, "max_width": 0.0005, "splits": 50}
    table = tq.TaskOutputs(x, z, (6, 2), task_range=(0, 1))
    tq.make_report(table, tmp_path / "page", **asked)
    contents = build_contents(read_folder(tmp_path / "page"))
    answer, mine = answer_of(contents), contents.simulated
    assert mine["coverage_early"] < 0.1 < 0.85 < mine["coverage"]
    assert f"{100 * mine['coverage_early']:.1f}\u00a0%" in answer.sentence
    assert f"{100 * mine['early']:.1f}\u00a0% of scans that stopped early" in answer.numbers[1].what
    assert f"{100 * (1 - mine['coverage_early']):.1f}\u00a0%" in answer.guarantee.shortages[-1]


def test_a_run_that_cannot_stop_does_not_read_as_success(short_run):
    answer = answer_of(build_contents(read_folder(short_run)))
    assert "21 groups" in answer.sentence
    assert [n.value for n in answer.numbers] == ["100.0\u00a0%", "–", "–"]
    assert answer.verdicts[0].verdict == "not tested"


@pytest.mark.parametrize(
    ("coverage", "verdict"), [(0.91, "supported"), (0.89, "supported"), (0.8, "not supported")]
)
def test_coverage_below_what_was_asked_for_is_seen(run_dir, coverage, verdict):
    contents = build_contents(read_folder(run_dir))
    for row in contents.simulations["simulate"]:
        row["coverage"] = coverage
        row["standard_errors"]["coverage"] = 0.01
    first = answer_of(contents).verdicts[0]
    assert (first.verdict, first.link) == (verdict, "results")
    assert first.number == f"{coverage:.3f}" + (" ± 0.01" if coverage < 0.9 else "")
    assert "0.9" in first.criterion


def test_claims_without_a_record_are_not_tested(tmp_path):
    verdicts = ("masks", "supported"), ("coverage-law", "not supported"), ("odd", "splendid")
    for name, verdict in verdicts:
        record = experiment_record(name, name, "", "", {}, [], verdict=verdict, number="1")
        run_folder.write(tmp_path / f"{name}.json", record)
    found = {v.title: v.verdict for v in answer_of(build_contents(read_folder(tmp_path))).verdicts}
    assert found["coverage-law"] == "not supported"
    assert found["odd"] == "not tested"
    assert found["Multi-round scans"] == "not tested"
    assert sum(v == "not tested" for v in found.values()) == 9
