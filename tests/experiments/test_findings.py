"""A finding says what the numbers say: claims that fail are seen to fail."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import taskuq as tq
from taskuq.conformal._units import CaseUnit, RandomCaseUnit
from taskuq.experiments import _coverage as law_module
from taskuq.experiments._claims import (
    ClaimInputs,
    ClaimSettings,
    SubsetMembers,
    evaluate_scores,
    make_inputs,
    no_finite_interval,
    run_one,
)
from taskuq.experiments._data_splits import _shared
from taskuq.experiments._paper_protocol import (
    _draws,
    _families,
    _found,
    _ProtocolDraw,
    _scan,
    _table,
)
from taskuq.measure._masks import nested_masks
from taskuq.table._table import replace_arrays


def tables(record):
    return {t["name"]: t for t in record["tables"]}


def test_reversed_rounds_do_not_get_shorter(table, few):
    backwards = replace_arrays(table, outputs=table.outputs[::-1])
    record = run_one("interval-length", make_inputs(backwards), few)

    assert record["verdict"] != "held"
    assert "Not so by case: AR's length falls with R" in record["finding"]


def test_a_perfect_point_estimate_refutes_shorter_adaptive_intervals(table, few):
    noise = 1e-6 * np.arange(table.cases)
    truth = np.clip(table.targets + noise, 0, 1)[None, :, None].repeat(4, axis=0)
    oracle = replace_arrays(table, outputs=truth)
    record = run_one("interval-length", make_inputs(table, oracle), few)

    assert "LWR is shorter than AR at R = 16, 8, 4 and 2" in record["finding"]
    assert record["verdict"] == "held in part"


def test_coverage_off_its_law_is_seen(table, few):
    found = evaluate_scores(make_inputs(table), few, CaseUnit(), accelerations=[8.0])
    law = law_module._law(found[0])
    lower = [replace(r, coverage=replace(r.coverage, mean=0.9)) for r in found]

    assert all(law_module._parts(found, CaseUnit(), law).values())
    assert not all(law_module._parts(lower, CaseUnit(), law).values())


def test_groups_that_are_covered_too_rarely_are_seen(table, few):
    found = evaluate_scores(make_inputs(table), few, RandomCaseUnit(), accelerations=[8.0])
    law = law_module._law(found[0])
    lower = [replace(r, coverage=replace(r.coverage, mean=0.8)) for r in found]

    assert all(law_module._parts(found, RandomCaseUnit(), law).values())
    assert not any(law_module._parts(lower, RandomCaseUnit(), law).values())


@pytest.fixture(scope="module")
def scans(table, point, few):
    """The tables of multi-round scans."""
    return tables(run_one("multi-round", make_inputs(table, point), few))


def test_stops_sum_to_one_and_ratios_are_to_the_better_of_the_papers(scans):
    for row in scans["accepted-by-case"]["rows"]:
        assert sum(row[3:]) == pytest.approx(1)
    goal = [r for r in scans["by-case"]["rows"] if r[:2] == [0.1, 0.2]]
    better = max(r[4] for r in goal if r[2] in ("paper lwr", "paper cqr"))
    for r in goal:
        assert r[-1] == pytest.approx(r[4] / better)


def test_ours_and_the_papers_stand_side_by_side_by_case_and_by_group(scans):
    summary = scans["summary"]
    of = ["R̄", "paper's R̄", "coverage"]
    assert summary["columns"] == [
        "α, τ",
        *(f"{c} {by}" for by in ("by case", "by group") for c in of),
    ]
    for row in summary["rows"]:
        for by, mine in (("by-case", row[1:4]), ("by-group", row[4:])):
            if mine == [None] * 3:  # too few groups for this error rate
                continue
            goal = [r for r in scans[by]["rows"] if f"{r[0]:g}, {r[1]:g}" == row[0]]
            (ours,) = (r for r in goal if r[2] == "fixed-width spread")
            better = max(r[4] for r in goal if r[2] in ("paper lwr", "paper cqr"))
            assert mine == pytest.approx([ours[4], better, ours[6]], abs=5e-4)


def test_the_paper_makes_no_promise_and_ours_do(scans):
    found = scans["by-group"]["rows"]

    assert {r[3] for r in found if r[2].startswith("paper")} == {"none"}
    assert {r[3] for r in found if not r[2].startswith("paper")} == {"guaranteed"}


def test_too_few_groups_for_an_error_rate_are_named(table, few):
    record = run_one("multi-round", make_inputs(table), replace(few, goals=((0.01, 0.1),)))

    assert "0.01 cannot be guaranteed from 16 groups" in record["finding"]


@pytest.mark.parametrize("score", ["ar", "lwr", "cqr"])
def test_the_papers_protocol_is_calibrate_then_scan(table, score):
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


def test_masks_that_are_not_nested_are_called_so():
    masks = np.zeros((2, 32), dtype=bool)
    masks[0, 14:18] = True
    masks[1, 16:24] = True
    record = run_one(
        "masks", ClaimInputs(masks=masks, mask_accelerations=(8.0, 4.0)), ClaimSettings()
    )

    assert "are not nested" in record["finding"]
    assert record["verdict"] == "held in part"


def test_lines_are_those_that_were_measured_or_said_to_be_the_papers():
    own = nested_masks(128, (8.0, 4.0), rng=np.random.default_rng(0))
    given = ClaimInputs(masks=own, mask_accelerations=(8.0, 4.0), published=True)
    measured, paper = (run_one("masks", one, ClaimSettings()) for one in (given, ClaimInputs()))

    assert measured["number"] == "16, 32 of 128 lines"
    assert set(tables(measured)) == {"masks", "published", "rule"}
    assert paper["number"] == "the paper: 20, 40, 80, 160 of 320 lines"


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


def test_quality_reads_as_the_papers_table(quality):
    record = run_one("recovery-quality", ClaimInputs(quality=quality), ClaimSettings())

    assert record["finding"].startswith("Held:")
    assert "6.0 to 7.0 dB above zero-filling" in record["finding"]


def test_quality_that_gets_worse_with_more_measurements_is_seen(quality):
    swapped = [{**r, "acceleration": 64 / r["acceleration"]} for r in quality["results"]]
    record = run_one("recovery-quality", ClaimInputs(quality={"results": swapped}), ClaimSettings())

    assert record["finding"].startswith("Held in part:")
    assert "Not so: varnet gets worse as R grows" in record["finding"]


def test_a_classifier_is_judged_on_the_true_images(table):
    perfect = replace_arrays(table, targets=table.label.astype(float))
    record = run_one("classifier-quality", make_inputs(perfect), ClaimSettings())

    assert tables(record)["classifier"]["rows"][0][3:7] == [1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "name", ["interval-length", "sample-count", "coverage-law", "conditional-coverage"]
)
def test_too_few_groups_to_promise_anything_are_said_and_not_judged(table, few, name):
    # 24 groups leave 16 to calibrate on; an error rate of 0.05 takes 19.
    record = run_one(name, make_inputs(table), replace(few, alpha=0.05))
    finding = record["finding"]

    assert "y group, an error rate of 0.05 cannot be guaranteed from 16 groups" in finding
    assert tables(record)["summary"]["columns"] == ["what", "by case"]
    assert "nan" not in finding
    assert "inf" not in finding


def test_infinite_scores_are_not_called_too_few_cases(table, few):
    # All samples agree and are wrong: no score but ar is finite.
    flat = replace_arrays(table, outputs=np.repeat(table.outputs[..., :1], table.samples, axis=-1))
    found = evaluate_scores(make_inputs(flat), few, CaseUnit(), accelerations=[8.0])
    lwr = [r for r in found if r.score == "lwr"]

    assert no_finite_interval(lwr).startswith("too many scores are infinite for an error rate of")


def test_what_never_happens_is_missing_and_not_a_number(table):
    never = _ProtocolDraw(1.0, 1.0, np.nan, np.array([0.0, 1.0]))
    often = _ProtocolDraw(2.0, 0.95, 0.05, np.array([0.6, 0.4]))
    found = {"ar": [never, never], "lwr": [often, often]}
    told = _found(found, 0.1)
    rows = {row[0]: row for row in _table(found, 0.1, 0.2, 5, make_inputs(table))["rows"]}

    assert "nan" not in told["finding"]
    assert told["finding"] == (
        "Held in part: the average acceleration is 1.00 with AR and 2.00 with LWR. Not so: "
        "coverage stays close to 0.9 (it is 0.950 to 1.000)."
    )
    assert np.isnan(rows["ar"][5:]).all()
    assert rows["lwr"][5] == 0.05


def test_ways_of_splitting_stand_side_by_side(table, few):
    record = run_one("interval-length", make_inputs(table), replace(few, alpha=0.1))
    summary = tables(record)["summary"]

    assert summary["columns"] == ["what", "by case", "by group"]
    assert all(len(row) == 3 and None not in row for row in summary["rows"])
