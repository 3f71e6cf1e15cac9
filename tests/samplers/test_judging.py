"""Judgements of samplers, against the functions that they are made of and what is known."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from taskuq.decide.goal import Goal
from taskuq.decide.kinds import PolicyPlan
from taskuq.decide.simulation import simulate
from taskuq.errors import InputError
from taskuq.evaluation.closed_form import evaluate_exact
from taskuq.files import json_text
from taskuq.outputs import TaskOutputs
from taskuq.runs.samplers.aims import Aim, read_aims
from taskuq.runs.samplers.judging import judge
from taskuq.runs.samplers.lines import SETTINGS, Stored
from taskuq.runs.samplers.words import markdown

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
GROUPS, SLICES, P, RATES = 12, 5, 7, (8.0, 4.0)
TRIALS = 20


def stored(spread, seed, bias=0.0):
    """Targets are normal around what is measured; samples spread so much, and are biased."""
    rng = np.random.default_rng(7)
    shape = (len(RATES), GROUPS * SLICES)
    middle, noise = rng.random(shape[1]), np.array([[0.2], [0.1]])
    targets = middle + noise[-1] * rng.standard_normal(shape[1])
    drawn = np.random.default_rng(seed).standard_normal((*shape, P))
    outputs = middle[:, None] + spread * noise[..., None] * drawn + bias
    table = TaskOutputs(
        outputs, targets, RATES, group=np.repeat(np.arange(GROUPS), SLICES), task_range=(-9, 9)
    )
    error = np.random.default_rng(seed).random(shape)
    pixels = {
        "peak": np.full(shape[1], 2.0),
        "error": error,
        "error_of_one": 2 * error,
        "variance": spread**2 * error * P / (P + 1),
        "ranks_4": np.ones((*shape, P + 1), int),
    }
    cost = {"milliseconds": [4.0, 2.0], "rejected": [0, 1], "failed": ""}
    return Stored({"net": table}, pixels, cost)


@pytest.fixture(scope="module")
def samplers():
    return {"flow": stored(1.0, seed=0), "mine": stored(0.5, seed=1, bias=0.3)}


@pytest.fixture(scope="module")
def record(samplers):
    return judge(samplers, "flow", trials=TRIALS)


def entry(record, measure, sampler="mine", unit=None):
    (line,) = [
        line for line in record["lines"] if (line["measure"], line["unit"]) == (measure, unit)
    ]
    return line["samplers"][sampler]


def test_psnr_is_that_of_whole_patients(record, samplers):
    error = samplers["mine"].pixels["error"].reshape(2, GROUPS, SLICES).mean(axis=2)
    psnr = 10 * np.log10(4 / error)
    found = entry(record, "psnr")

    np.testing.assert_allclose(found["value"], psnr.mean(axis=1))
    np.testing.assert_allclose(found["error"], psnr.std(axis=1, ddof=1) / GROUPS**0.5)
    np.testing.assert_allclose(
        found["against"], psnr.mean(axis=1) - entry(record, "psnr", "flow")["value"]
    )


def test_spread_is_one_where_samples_spread_as_they_err(record):
    np.testing.assert_allclose(entry(record, "spread", "flow")["value"], 1)
    np.testing.assert_allclose(entry(record, "spread")["value"], 0.5)


def test_the_reference_is_equal_to_itself(record):
    for measure, same in (("psnr", 0), ("crps", 1), ("width", 1), ("milliseconds", 1)):
        np.testing.assert_allclose(entry(record, measure, "flow")["against"], same)
    assert entry(record, "crps", "flow")["against_error"] == pytest.approx([0, 0], abs=1e-12)


def test_bias_and_ranks_see_samples_that_are_off(record):
    assert entry(record, "bias")["value"] == pytest.approx([0.3, 0.3], abs=0.06)
    worse, fine = (entry(record, "ranks of outputs", who)["value"] for who in ("mine", "flow"))
    assert all(a > b + 0.2 for a, b in zip(worse, fine, strict=True))
    assert entry(record, "ranks of blocks of 4")["value"] == pytest.approx([0, 0])


def test_widths_are_those_of_the_exact_evaluation(record, samplers):
    table = samplers["mine"].tables["net"]
    exact = [
        evaluate_exact(x, table.targets, alpha=0.05, task_range=(-9, 9)) for x in table.outputs
    ]
    found = entry(record, "width")

    np.testing.assert_allclose(found["value"], [e.width.mean for e in exact])
    np.testing.assert_allclose(
        entry(record, "coverage of intervals")["value"], [e.coverage.mean for e in exact]
    )
    assert entry(record, "mean width")["value"] == pytest.approx([np.mean(found["value"])])
    assert entry(record, "mean width")["against"] == pytest.approx([np.mean(found["against"])])
    assert all(error > 0 for error in found["error"])


@pytest.mark.parametrize(("statistic", "suffix"), [("spread", ""), ("learned", " learned")])
@pytest.mark.parametrize("unit", ["case", "group"])
def test_scans_are_those_of_the_simulation(record, samplers, unit, statistic, suffix):
    plans = [
        PolicyPlan("fixed-width", a, Goal(max_width=w), statistic=statistic) for a, w in SETTINGS
    ]
    rng = np.random.default_rng(0)
    expected = simulate(samplers["mine"].tables["net"], plans, trials=TRIALS, rng=rng, unit=unit)
    rates = entry(record, f"mean acceleration{suffix}", unit=unit)
    covered = entry(record, f"coverage of scans{suffix}", unit=unit)

    assert rates["value"] == pytest.approx([one.mean_acceleration for one in expected])
    assert covered["value"] == [one.coverage for one in expected]
    # Chance may not break a promise that is kept; it does not reach what is aimed at, either.
    assert len(covered["slack"]) == len(SETTINGS)
    assert "slack" not in rates


def test_where_there_is_too_little_to_learn_from_only_the_spread_is_judged(samplers):
    few = samplers["mine"].tables["net"].select(cases=np.arange(15))
    record = judge({"mine": Stored({"net": few})}, trials=TRIALS)
    measures = {line["measure"] for line in record["lines"]}

    assert "mean acceleration" in measures
    assert "mean acceleration learned" not in measures


def test_every_histogram_is_drawn_and_sums_to_one(record):
    names = [figure["name"] for figure in record["figures"]]

    assert names == [
        "ranks-blocks-of-4-R8", "ranks-blocks-of-4-R4", "ranks-net-outputs-R8",
        "ranks-net-outputs-R4",
    ]  # fmt: skip
    for figure in record["figures"]:
        assert [sum(series["y"]) for series in figure["series"]] == pytest.approx([1, 1])


def test_a_record_is_json(record):
    assert json.loads(json_text(record))["schema"] == "taskuq.samplers/1"


def test_tables_alone_are_judged_without_a_reference(samplers):
    record = judge({"mine": Stored(samplers["mine"].tables)}, trials=TRIALS)
    measures = {line["measure"] for line in record["lines"]}

    assert "psnr" not in measures
    assert {"crps", "bias", "outside", "mean acceleration"} <= measures
    assert entry(record, "crps")["against"] is None


def test_other_cases_and_other_targets_are_refused(samplers):
    table = samplers["mine"].tables["net"]
    fewer, foreign = (
        table.select(cases=np.arange(10)),
        TaskOutputs(table.outputs, table.targets + 1, RATES, group=table.group),
    )
    for other, sentence in ((fewer, "other cases"), (foreign, "other targets")):
        with pytest.raises(InputError, match=sentence):
            judge({**samplers, "third": Stored({"net": other})}, trials=TRIALS)


def test_an_unknown_reference_is_refused(samplers):
    with pytest.raises(InputError, match="the reference is 'fast'; choose from flow, mine"):
        judge(samplers, "fast")


AIMS = (
    Aim("spread", must_least=(0.4,), must_most=(0.6,), goal_least=(0.95,)),
    Aim("milliseconds", compared=True, must_most=(0.5, 1.0)),
)


def test_aims_say_what_is_met_and_what_is_missed(samplers):
    half = replace(
        samplers["mine"], cost={"milliseconds": [3.0, 2.0], "rejected": [0, 0], "failed": ""}
    )
    record = judge({**samplers, "mine": half}, "flow", aims=AIMS, trials=TRIALS)
    found = {line["measure"]: line["aims"] for line in record["lines"] if line["aims"]}

    assert found["spread"][0]["verdict"]["mine"] == {"must": [True, True], "goal": [False, False]}
    assert found["milliseconds"][0]["verdict"] == {"mine": {"must": [False, True]}}
    text = markdown(record)
    assert text.startswith("| | flow | mine | must | goal |")
    assert "must met<br>goal missed at R = 8; R = 4" in text
    assert "× 0.75 / 1.00<br>must missed at R = 8" in text


def test_an_aim_for_another_number_of_columns_is_refused(samplers):
    with pytest.raises(InputError, match="3 limits for 2 columns"):
        judge(samplers, aims=[Aim("spread", must_least=(1.0, 2.0, 3.0))], trials=TRIALS)


def test_a_sampler_that_could_not_draw_is_named(samplers):
    failed = {"failed": "it broke", "milliseconds": [None, None], "rejected": [0, 0]}
    record = judge({**samplers, "late": Stored({}, cost=failed)}, "flow", trials=TRIALS)

    assert "late could not draw: it broke" in markdown(record)


@pytest.mark.parametrize("data", ["lgg", "atlas"])
def test_aims_of_the_project_are_for_lines_that_exist(data, record):
    known = {line["measure"] for line in record["lines"]}

    assert {aim.measure for aim in read_aims(CONFIGS / data / "aims.toml")} <= known
