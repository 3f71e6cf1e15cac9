"""Findings of experiments: planted faults are found."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq._config import toml_text
from taskuq.conformal._units import CaseUnit, RandomCaseUnit
from taskuq.data._atlas import AtlasData
from taskuq.experiments import _intervals as law_module
from taskuq.experiments._claims import (
    EXPERIMENTS,
    ClaimInputs,
    ClaimSettings,
    SubsetMembers,
    evaluate_scores,
    make_inputs,
    no_finite_interval,
    run_one,
)
from taskuq.experiments._multi_round import (
    _draws,
    _families,
    _protocol_finding,
    _protocol_table,
    _ProtocolDraw,
    _scan,
)
from taskuq.experiments._recovery_quality import stored_examples
from taskuq.experiments._run import open_run, read_run
from taskuq.experiments._setup import _shared
from taskuq.measure._masks import masks_to_text, nested_masks
from taskuq.report.figures import figure_from_dict, figure_svg
from taskuq.table._table import replace_arrays
from taskuq.table._terminology import MRI


def tables(record):
    return {t["name"]: t for t in record["tables"]}


def test_reversed_rounds_do_not_get_shorter(table, few):
    backwards = replace_arrays(table, outputs=table.outputs[::-1])
    record = run_one("interval-length", make_inputs(backwards), few)
    assert record["verdict"] != "supported"
    assert "AR's length falls with R" in record["finding"]


def test_perfect_point_estimate_refutes_shorter_adaptive_intervals(table, few):
    noise = 1e-6 * np.arange(table.cases)
    truth = np.clip(table.targets + noise, 0, 1)[None, :, None].repeat(4, axis=0)
    oracle = replace_arrays(table, outputs=truth)
    record = run_one("interval-length", make_inputs(table, oracle), few)
    assert "LWR is shorter than AR at R = 16, 8, 4 and 2" in record["finding"]
    assert record["verdict"] == "partly supported"


@pytest.mark.parametrize(("unit", "planted"), [(CaseUnit(), 0.9), (RandomCaseUnit(), 0.8)])
def test_coverage_off_its_law_is_found(table, few, unit, planted):
    found = evaluate_scores(make_inputs(table), few, unit, accelerations=[8.0])
    law = law_module._law(found[0])
    lower = [replace(r, coverage=replace(r.coverage, mean=planted)) for r in found]
    assert all(law_module._law_parts(found, unit, law).values())
    assert not all(law_module._law_parts(lower, unit, law).values())


@pytest.fixture(scope="module")
def scans(records):
    return tables(records[list(EXPERIMENTS).index("multi-round")])


def test_stops_sum_to_one_and_ratios_are_to_the_better_baseline(scans):
    for row in scans["accepted-by-case"]["rows"]:
        assert sum(row[3:]) == pytest.approx(1)
    goal = [r for r in scans["by-case"]["rows"] if r[:2] == [0.1, 0.2]]
    better = max(r[4] for r in goal if r[2] in ("paper lwr", "paper cqr"))
    for r in goal:
        assert r[-1] == pytest.approx(r[4] / better)


def test_policies_of_the_paper_have_no_guarantee(scans):
    found = scans["by-group"]["rows"]
    assert {r[3] for r in found if r[2].startswith("paper")} == {"none"}
    assert {r[3] for r in found if not r[2].startswith("paper")} == {"guaranteed"}


def test_too_few_groups_for_an_error_rate_are_named(table, few):
    record = run_one(
        "multi-round", make_inputs(table), replace(few, goals=((0.01, 0.1),), round_trials=2)
    )
    assert "0.01 cannot be guaranteed from 16 groups" in record["finding"]


@pytest.mark.parametrize("score", ["ar", "lwr", "cqr"])
def test_protocol_of_the_paper_is_calibrate_then_scan(table, score):
    settings = ClaimSettings(protocol_trials=1)
    (is_test,) = _draws(table, 8, settings)
    drawn = _scan(table, _families(table, score, 0.1), is_test, 0.1, 0.2)
    cost = np.ones(is_test.sum())
    scanning = np.ones(is_test.sum(), dtype=bool)
    for k, R in enumerate(table.accelerations):
        bound = tq.calibrate(
            table.outputs[k, ~is_test], table.targets[~is_test], alpha=0.1, score=score,
            task_range=(0, 1),
        )  # fmt: skip
        interval = bound(table.outputs[k, is_test])
        stops = scanning & (interval.width < 0.2) & ~interval.is_empty
        cost[stops] = 1 / R
        scanning &= ~stops
    assert drawn.acceleration == pytest.approx(1 / cost.mean())
    assert drawn.stopped.sum() == pytest.approx(1)


def test_half_of_the_test_groups_have_the_finding(table):
    ill = set(table.group[table.label == 1])
    for is_test in _draws(table, 8, ClaimSettings(protocol_trials=5)):
        chosen = set(table.group[is_test])
        assert len(chosen) == 8
        assert len(chosen & ill) == 4


def test_examples_are_drawn_with_intervals_of_other_groups(table, point, make_example):
    box = (slice(3, 9), slice(15, 20))
    shown = [make_example(k, box=None if k else box) for k in (0, 30, 60)]
    inputs = make_inputs(table, point, examples=shown)
    record = run_one("examples", inputs, ClaimSettings(alpha=0.2, accelerations=(16.0, 4.0)))
    assert record["figures"][0]["name"] == f"example-{table.case[0]}"
    assert len(record["figures"]) == 2
    drawn = [e.group for e in shown if e.case in record["settings"]["cases"]]
    others = table.select(cases=np.flatnonzero(~np.isin(table.group.astype(str), drawn)))
    for row in record["tables"][0]["rows"][:2]:
        bound = tq.calibrate(others, alpha=0.2, score="cqr", acceleration=row[1])
        interval = bound(shown[0].outputs[table.round_index(row[1])][None])
        assert row[3:5] == pytest.approx([interval.lower[0], interval.upper[0]])
    figure = figure_from_dict(record["figures"][0])
    assert str(figure_svg(figure)).startswith("<img")
    with refused("choice.unknown"):
        run_one("examples", inputs, ClaimSettings(cases=("absent",)))
    with refused("file.format"):
        figure_from_dict(figure.to_dict() | {"picture": "bm8gUE5H"})
    with refused("option.missing", "--keep-images"):
        run_one("examples", make_inputs(table, point), ClaimSettings())


def test_examples_come_from_the_images_of_a_run(tmp_path):
    """Images, outputs and the lesion's box of the atlas, by name of the case."""
    pytest.importorskip("nilearn")
    data = {"kind": "atlas", "patients": 12, "slices": 3, "size": 32, "coils": 2}
    path = tmp_path / "run.toml"
    path.write_text(
        f'samples = 4\nsubset = "all"\n[data]\n{toml_text(data)}[measure]\naccelerations = [4, 2]\n'
        '[recover]\nkind = "zero-filled"\n'
    )
    opened = open_run(read_run(path))
    made = opened.pipeline.run(
        opened.images, accelerations=(4, 2), samples=4, seed=0, store=tmp_path / "table",
        keep_images=6, configuration=opened.configuration, progress=False,
    )  # fmt: skip
    found = stored_examples(made, made)
    boxes = AtlasData(patients=12, slices=3, size=32).boxes([e.case for e in found])
    assert len(found) == 6
    named = ["patient-3-slice-1", "patient-5-slice-2"]
    again = {"accelerations": (4, 2), "samples": 4, "seed": 0, "progress": False}
    chosen = opened.pipeline.run(
        opened.images, **again, store=tmp_path / "named", keep_images=named
    )
    assert [e.case for e in stored_examples(chosen, None)] == named
    with refused("choice.unknown"):
        opened.pipeline.run(opened.images, **again, store=tmp_path / "no", keep_images=["absent"])
    assert {e.case: e.box for e in found if e.box is not None} == boxes != {}
    record = run_one("examples", make_inputs(made, made), ClaimSettings(alpha=0.2))
    assert record["settings"]["cases"][0] in boxes


def test_masks_of_the_run_are_judged(table):
    """A hole next to the zero frequency, at 368 columns, in the masks that a table names."""
    rates = (16.0, 8.0)
    masks = nested_masks(368, rates, seed=0)
    for hole, verdict in ((False, "supported"), (True, "partly supported")):
        if hole:
            far = np.flatnonzero(~masks[1])[0]
            masks[:, 183], masks[:, far] = False, True
        made = {"measure": {"accelerations": rates}, "masks": masks_to_text(masks)}
        used = replace_arrays(table, provenance={"configuration": made, "words": MRI.to_dict()})
        assert run_one("masks", ClaimInputs(used), ClaimSettings())["verdict"] == verdict


def test_masks_that_are_not_nested_are_found():
    masks = np.zeros((2, 32), dtype=bool)
    masks[0, 14:18] = True
    masks[1, 16:24] = True
    record = run_one(
        "masks", ClaimInputs(masks=masks, mask_accelerations=(8.0, 4.0)), ClaimSettings()
    )
    assert "are not nested" in record["finding"]
    assert record["verdict"] == "partly supported"


@pytest.mark.parametrize(("size", "n", "total"), [(2, 4, 6), (3, 4, 6), (1, 4, 6), (5, 3, 6)])
def test_groups_in_both_folds_are_counted_as_enumeration_does(size, n, total):
    folds = list(combinations(range(total), n))
    both = sum(0 < len(set(fold) & set(range(size))) < size for fold in folds)
    assert _shared(size, n, total) == pytest.approx(both / len(folds))


def test_parts_of_the_data_are_counted(table):
    part = SubsetMembers("train", np.array(["a", "a", "b"]), np.array([0, 1, 0]))
    found = tables(run_one("data-splits", make_inputs(table, parts=(part,)), ClaimSettings()))
    assert found["parts"]["rows"][0] == ["train", 3, 2, 1, pytest.approx(1 / 3)]
    assert found["parts"]["rows"][1][1:4] == [table.cases, 24, int((table.label == 1).sum())]


def test_quality_matches_the_paper(quality):
    record = run_one("recovery-quality", ClaimInputs(quality=quality), ClaimSettings())
    assert record["finding"].startswith("Supported:")
    assert "6.0 to 7.0 dB above zero-filling" in record["finding"]


def test_quality_that_falls_with_more_lines_is_found(quality):
    swapped = [{**r, "acceleration": 64 / r["acceleration"]} for r in quality["results"]]
    record = run_one("recovery-quality", ClaimInputs(quality={"results": swapped}), ClaimSettings())
    assert record["finding"].startswith("Partly supported:")
    assert "that the quality of varnet falls as R grows" in record["finding"]


def test_classifier_is_evaluated_on_true_images(table):
    perfect = replace_arrays(table, targets=table.label.astype(float))
    record = run_one("classifier-quality", make_inputs(perfect), ClaimSettings())
    assert tables(record)["classifier"]["rows"][0][3:7] == [1.0, 1.0, 1.0, 1.0]
    for rows in ([{"cases": 3, "auroc": "high"}], [], [{"cases": 3, "task": "tear", "roc": 7}]):
        with refused("file.format"):
            stored = {"parts": {"judge": rows}}
            run_one("classifier-quality", ClaimInputs(task=stored), ClaimSettings())


@pytest.mark.parametrize("name", ["interval-length", "coverage-law"])
def test_too_few_groups_have_no_verdict(table, few, name):
    # 24 groups leave 16 to calibrate on; an error rate of 0.05 takes 19.
    record = run_one(name, make_inputs(table), replace(few, alpha=0.05))
    finding = record["finding"]
    assert "y group, an error rate of 0.05 cannot be guaranteed from 16 groups" in finding
    assert tables(record)["summary"]["columns"] == ["quantity", "by case"]
    assert "nan" not in finding
    assert "inf" not in finding


def test_infinite_scores_are_not_called_too_few_cases(table, few):
    # All samples agree and are wrong: no score but ar is finite.
    flat = replace_arrays(table, outputs=np.repeat(table.outputs[..., :1], table.samples, axis=-1))
    found = evaluate_scores(make_inputs(flat), few, CaseUnit(), accelerations=[8.0])
    with refused("units.few"):
        few_cases = make_inputs(table.select(cases=range(12)))
        evaluate_scores(few_cases, replace(few, scores=(), ours=("learned",)), CaseUnit())
    lwr = [r for r in found if r.score == "lwr"]
    assert no_finite_interval(lwr).startswith("too many scores are infinite for an error rate of")


def test_events_that_never_happen_are_missing(table):
    never = _ProtocolDraw(1.0, 1.0, np.nan, np.array([0.0, 1.0]))
    often = _ProtocolDraw(2.0, 0.95, 0.05, np.array([0.6, 0.4]))
    found = {"ar": [never, never], "lwr": [often, often]}
    rows = {row[0]: row for row in _protocol_table(found, 0.1, 0.2, 5, make_inputs(table))["rows"]}
    assert "nan" not in _protocol_finding(found, 0.1)["finding"]
    assert np.isnan(rows["ar"][5:]).all()
    assert rows["lwr"][5] == 0.05
