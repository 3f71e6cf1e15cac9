"""Policies: files, decisions, several tasks, refused inputs."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import taskuq as tq
from own_score import OwnScore
from raising import refused
from taskuq._io import write_json
from taskuq.conformal.scores._paper import AR
from taskuq.policy._goal import Goal, Goals
from taskuq.policy._specification import export_policy
from taskuq.table._examples import SyntheticTable, synthetic_outputs

TABLE = synthetic_outputs(SyntheticTable(volumes=24, samples=8), seed=3)
NEW = synthetic_outputs(SyntheticTable(volumes=4, samples=8), seed=4).outputs


PLANS = {
    "paper lwr": {"policy": "paper", "score": "lwr"},
    "fixed-width spread": {},
    "two-phase learned": {"budget": 0.5, "statistic": "learned"},
    "adaptive cqr": {"policy": "adaptive", "score": "cqr"},
    "adaptive mlwr": {"policy": "adaptive"},
    "adaptive learned": {"policy": "adaptive", "score": "learned"},
    "adaptive own": {"policy": "adaptive", "score": OwnScore()},
    "anytime mlwr": {"policy": "anytime"},
    "most of a group": {"unit": "group", "cases": 0.8},
    "whole group": {"unit": "whole-group"},
    "whole group adaptive": {"unit": "whole-group", "policy": "adaptive"},
    "given the set": {"delta": 0.2},
    "lower bound": {"side": "lower"},
    "upper bound": {"side": "upper", "policy": "adaptive"},
    "at least": {"max_width": None, "at_least": 0.02},
    "at most": {"max_width": None, "at_most": 0.9, "policy": "adaptive"},
    "too few for this": {"alpha": 0.001},
}


def planned(options, table=TABLE):
    return tq.plan(table, **{"alpha": 0.1, "max_width": 0.2, "unit": "case", **options})


@cache
def policy_of(name):
    return planned(PLANS[name])


def decisions(policy, outputs):
    return [policy.decide(k, outputs[: k + 1]) for k in range(len(outputs))]


def same(one, other):
    return (
        (one.stops == other.stops).all()
        and one.stop == other.stop
        and one.reason == other.reason
        and one.interval.lower.tobytes() == other.interval.lower.tobytes()
        and one.interval.upper.tobytes() == other.interval.upper.tobytes()
    )


@pytest.mark.parametrize("name", PLANS)
def test_stored_policy_decides_as_the_planned_one(name, tmp_path):
    policy, own = policy_of(name), OwnScore() if name == "adaptive own" else None
    again = tq.load_policy(policy.save(tmp_path / "policy.json"), score=own)
    pairs = zip(decisions(policy, NEW), decisions(again, NEW), strict=True)
    assert all(same(*pair) for pair in pairs)
    assert again.to_dict() == policy.to_dict()


@pytest.mark.parametrize("name", PLANS)
def test_every_stop_reaches_the_goal(name):
    policy = policy_of(name)
    for k, decision in enumerate(decisions(policy, NEW)):
        interval = decision.interval[decision.stops]
        if policy.goal.level is not None:
            low, high = interval.lower, interval.upper
            good = low >= policy.goal.level if policy.goal.side == "lower" else high <= 0.9
        elif policy.goal.side == "two":
            good = interval.width <= 0.2 + 1e-12
        else:
            mean = NEW[k].mean(axis=1, dtype=float)[decision.stops]
            end = interval.lower if policy.goal.side == "lower" else interval.upper
            good = np.abs(end - mean) <= 0.2 + 1e-12
        assert good.all()


SCALED = [n for n in PLANS if n not in ("adaptive own", "too few for this")]


@pytest.mark.parametrize("task_range", [None, (0.0, 1.0)])
@pytest.mark.parametrize("name", SCALED)
def test_decisions_do_not_depend_on_the_unit_of_the_task(name, task_range):
    def decided(scale):
        options = dict(PLANS[name])
        for key in {"max_width", "at_least", "at_most"} & options.keys():
            options[key] = options[key] and options[key] * scale
        options.setdefault("max_width", 0.2 * scale)
        table = tq.TaskOutputs(
            TABLE.outputs.astype(float) * scale, TABLE.targets * scale, TABLE.accelerations,
            group=TABLE.group, task_range=task_range and tuple(scale * end for end in task_range),
        )  # fmt: skip
        found = decisions(planned(options, table), NEW.astype(float) * scale)
        return [
            (one.stops, one.interval.lower / scale, one.interval.upper / scale) for one in found
        ]

    plain = decided(1.0)
    for factor in (2.0**-990, 2.0**990):
        for one, other in zip(plain, decided(factor), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", [n for n in PLANS if n != "too few for this"])
def test_policies_stop_some_cases(name):
    # Two cases at a time: a whole group of ninety rarely stops as one, and a group of one never.
    policy = policy_of(name)
    assert any(d.stops.any() for i in range(10) for d in decisions(policy, NEW[:, i : i + 2]))


def test_decision_does_not_depend_on_other_cases():
    policy = planned({})
    together = policy.decide(1, NEW[:2])
    for i in range(5):
        alone = policy.decide(1, NEW[:2, i])
        assert alone.stop == together.stops[i]
        assert float(alone.interval.lower) == together.interval.lower[i]


def test_group_decides_by_its_root_mean_square_risk():
    policy, found = policy_of("whole group"), set()
    for start in range(0, NEW.shape[1] - 3, 3):
        x = NEW[:1, start : start + 3]
        risk = -policy._rules[0][0].examine(x).largest
        decision = policy.decide(0, x)
        assert decision.stop == (np.sqrt(np.mean(risk**2)) < -policy.thresholds[0])
        assert (decision.stops == decision.stop).all()
        found.add(decision.stop)
    assert found == {True, False}


def test_group_of_one_continues_where_calibration_had_none():
    policy = policy_of("whole group")
    assert policy.min_group_size == np.unique(TABLE.group, return_counts=True)[1].min() > 1
    hasty = replace(policy, thresholds=(-1e9,) * 4)
    assert hasty.decide(0, NEW[:1, :2]).stop
    assert not hasty.decide(0, NEW[:1, :1]).stop
    for k in range(4):
        with refused("shape.axes"):
            hasty.decide(k, NEW[: k + 1, 0])


def test_full_measurement_gives_the_value():
    decision = planned({}).decide(4, None, value=0.37)
    assert (decision.stop, decision.acceleration) == (True, 1.0)
    assert float(decision.interval.lower) == float(decision.interval.upper) == 0.37


def bad(position, value):
    outputs = NEW[:2, 0].copy()
    outputs[position] = value
    return outputs


MISTAKES = {
    "a round too many": (1, NEW[:3, 0], "samples.mismatch"),
    "a round missing": (2, NEW[:2, 0], "samples.mismatch"),
    "only the last round": (1, NEW[1:2, 0], "samples.mismatch"),
    "fewer samples": (1, NEW[:2, 0, :7], "samples.mismatch"),
    "more samples": (1, np.tile(NEW[:2, 0], 2), "samples.mismatch"),
    "NaN": (1, bad((1, 3), np.nan), "value.nonfinite"),
    "infinity": (1, bad((0, 0), np.inf), "value.nonfinite"),
    "no cases": (1, NEW[:2, :0], "table.incomplete"),
    "a negative round": (-1, NEW[:1, 0], "value.invalid"),
    "a round that does not exist": (5, NEW[:, 0], "value.invalid"),
    "half a round": (0.5, NEW[:1, 0], "value.invalid"),
    "text": (0, "soon", "dtype.invalid"),
    "nothing": (0, None, "dtype.invalid"),
    "complex numbers": (0, NEW[:1, 0] * 1j, "dtype.invalid"),
    "the value missing at R = 1": (4, NEW[:, 0], "option.missing"),
    "outside the declared range": (0, NEW[:1, 0] + 2, "range.outside"),
}


@pytest.mark.parametrize(("round_", "outputs", "code"), MISTAKES.values(), ids=MISTAKES)
@pytest.mark.parametrize("name", ["fixed-width spread", "whole group"])
def test_wrong_outputs_are_refused(name, round_, outputs, code):
    is_case = name != "whole group" or np.ndim(outputs) != 2
    with refused(code):
        policy_of(name).decide(round_, outputs if is_case else np.stack([outputs] * 2, axis=1))


@pytest.mark.parametrize(
    ("value", "code"),
    [(np.nan, "value.nonfinite"), ("high", "dtype.invalid"), ([[[0.1]]], "shape.axes")],
)
def test_invalid_value_is_refused(value, code):
    with refused(code):
        planned({}).decide(4, None, value=value)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"alpha": 0.0}, "alpha.invalid"),
        ({"alpha": 1.5}, "alpha.invalid"),
        ({"max_width": None}, "option.missing"),
        ({"max_width": -0.1}, "value.invalid"),
        ({"policy": "hopeful"}, "choice.unknown"),
        ({"statistic": "mean"}, "choice.unknown"),
        ({"budget": 0.0}, "value.invalid"),
        ({"budget": 1.1}, "value.invalid"),
        ({"unit": "patient"}, "choice.unknown"),
        ({"score": "nll", "policy": "adaptive"}, "choice.unknown"),
        ({"delta": 2.0}, "alpha.invalid"),
        ({"round_tolerance": float("nan")}, "value.invalid"),
        ({"cases": 1.5, "unit": "group"}, "value.invalid"),
        ({"at_least": 0.1}, "option.conflict"),
        ({"max_width": None, "at_least": 0.1, "at_most": 0.9}, "option.conflict"),
        ({"unit": "whole-group", "policy": "anytime"}, "option.conflict"),
        ({"unit": "whole-group", "policy": "adaptive", "score": "cqr"}, "option.conflict"),
    ],
)
def test_invalid_plan_is_refused(options, code):
    with refused(code):
        planned(options)


def shorter(record, key):
    return {**record, key: record[key][:-1]}


DAMAGES = {
    "a threshold missing": (lambda r: shorter(r, "thresholds"), "shape.mismatch"),
    "a round of rules missing": (lambda r: shorter(r, "rules"), "shape.mismatch"),
    "an acceleration missing": (lambda r: shorter(r, "accelerations"), "shape.mismatch"),
    "a task name missing": (lambda r: {**r, "task_names": []}, "file.format"),
    "no goal": (lambda r: {k: v for k, v in r.items() if k != "goal"}, "file.format"),
    "a goal of another kind": (lambda r: {**r, "goal": {"max_height": 1}}, "file.format"),
    "an unknown kind": (lambda r: {**r, "kind": "hopeful"}, "choice.unknown"),
    "a threshold that is no number": (
        lambda r: {**r, "thresholds": ["nan"] * 4},
        "value.nonfinite",
    ),
    "a newer version": (lambda r: {**r, "schema": "taskuq.policy/9"}, "file.schema"),
    "something else": (lambda r: {"schema": "taskuq.bound/1"}, "file.schema"),
}


@pytest.mark.parametrize(("damage", "code"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_policy_is_refused(damage, code, tmp_path):
    path = tmp_path / "policy.json"
    write_json(path, damage(planned({}).to_dict()))
    with refused(code):
        tq.load_policy(path)


def test_policy_of_own_score_needs_the_score(tmp_path):
    path = planned(PLANS["adaptive own"]).save(tmp_path / "policy.json")
    with refused("option.missing", "OwnScore"):
        tq.load_policy(path)
    with refused("option.missing", "OwnScore"):
        tq.load_policy(path, score=AR())


NAMES = ("lesion", "area", "volume")
# Powers of two, so that units change no digit.
SCALE = np.array([1.0, 64.0, 1024.0])
WIDTHS = dict(zip(NAMES, 0.5 * SCALE, strict=True))


def made(scale=SCALE, cases=120, **changes):
    rng = np.random.default_rng(3)
    z = rng.random((cases, 3))
    spread = np.array([0.3, 0.12, 0.05])[:, None, None, None] * (0.3 + rng.random((cases, 1, 1)))
    x = np.clip(z[:, None] + spread * rng.standard_normal((3, cases, 6, 3)), 0, 1)
    ranges = {name: (0, s) for name, s in zip(NAMES, scale, strict=True)}
    parts = {"task_names": NAMES, "task_range": ranges, "round_names": ["20", "40", "80"]}
    return tq.TaskOutputs(x * scale, z * scale, (8, 4, 2), **parts | changes)


@pytest.mark.parametrize("kind", ["fixed-width", "adaptive", "paper"])
def test_units_of_tasks_change_no_decision(kind):
    plain, scaled = made(np.ones(3)), made()
    one = tq.plan(plain, alpha=0.2, max_width=0.5, policy=kind)
    other = tq.plan(scaled, alpha=0.2, max_width=WIDTHS, policy=kind)
    for a, b in zip(decisions(one, plain.outputs), decisions(other, scaled.outputs), strict=True):
        assert a.stops.tolist() == b.stops.tolist()
        np.testing.assert_allclose(a.interval.lower * SCALE, b.interval.lower, rtol=1e-9)
    assert sum(d.stops.sum() for d in decisions(one, plain.outputs)) > 0


@pytest.mark.parametrize("kind", ["fixed-width", "adaptive"])
def test_one_width_for_all_tasks_is_found(kind):
    # The fault this guards against: one max_width for tasks in different units.
    table = made()
    one = tq.plan(table, alpha=0.2, max_width=0.5, policy=kind)
    each = tq.plan(table, alpha=0.2, max_width=WIDTHS, policy=kind)
    few, many = (sum(d.stops.sum() for d in decisions(p, table.outputs)) for p in (one, each))
    assert few < many / 2


@pytest.mark.parametrize("kind", ["fixed-width", "adaptive"])
def test_policy_of_several_tasks_survives_a_file(tmp_path, kind):
    table = made()
    policy = tq.plan(
        table, alpha=0.2, max_width=WIDTHS, policy=kind,
        side={"lesion": "two", "area": "upper", "volume": "lower"},
    )  # fmt: skip
    again = tq.load_policy(policy.save(tmp_path / "policy.json"))
    assert again == policy
    assert [goal.side for goal in again.goal.each] == ["two", "upper", "lower"]
    assert again.task_ranges == ((0, 1), (0, 64), (0, 1024))
    for a, b in zip(decisions(policy, table.outputs), decisions(again, table.outputs), strict=True):
        np.testing.assert_array_equal(a.interval.upper, b.interval.upper)


def test_tasks_are_planned_for_by_name():
    table = made()
    two = tq.plan(table, alpha=0.2, max_width={"area": 32, "lesion": 0.5}, task=["area", "lesion"])
    alone = tq.plan(table.select(task="area"), alpha=0.2, max_width=32)
    assert two.task_names == ("area", "lesion")
    assert tq.plan(table, alpha=0.2, max_width=32, task="area").thresholds == alone.thresholds
    assert two.goal == Goals(("area", "lesion"), (Goal(max_width=32), Goal(max_width=0.5)))


@pytest.mark.parametrize(
    ("options", "names", "code"),
    [
        ({"max_width": {"lesion": 0.5}}, "area", "option.missing"),
        ({"max_width": {"lesoin": 0.5}}, "lesoin", "choice.unknown"),
        ({"max_width": (0.1, 0.2)}, "volume", "shape.mismatch"),
        ({"max_width": "wide"}, "max_width", "dtype.invalid"),
        ({"max_width": WIDTHS, "side": {"area": "left"}}, "area", "choice.unknown"),
        ({"max_width": 1, "task": "volum"}, "volum", "choice.unknown"),
        ({"max_width": 1, "accelerations": (8, 4, 2)}, "accelerations", "option.unused"),
        ({"max_width": 1, "colour": 3}, "colour", "choice.unknown"),
    ],
)
def test_wrong_goals_are_refused_by_name(options, names, code):
    with refused(code, names):
        tq.plan(made(), alpha=0.2, **options)


def test_plan_accepts_arrays():
    table = made().select(task="area")
    arrays = (table.outputs, table.targets)
    policy = tq.plan(arrays, accelerations=(8, 4, 2), task_range=(0, 64), alpha=0.2, max_width=32)
    assert policy.thresholds == tq.plan(table, alpha=0.2, max_width=32).thresholds
    for wrong in (table.outputs, None, [1, 2], (1, 2, 3)):
        with refused("dtype.invalid"):
            tq.plan(wrong, alpha=0.2, max_width=32)


def test_calibrate_accepts_a_table():
    table = made(group=np.arange(120) // 3)
    arrays = {"task_range": (0, 64), "alpha": 0.2, "score": "lwr"}
    bound = tq.calibrate(table, acceleration=4, task="area", alpha=0.2, score="lwr")
    x, z = table.outputs[:2, ..., 1], table.targets[:, 1]
    assert bound == tq.calibrate(x, z, acceleration=4, group=table.group, **arrays)
    by_case = tq.calibrate(table, acceleration="40", task="area", unit="case", **arrays)
    assert by_case == tq.calibrate(x, z, acceleration=4, **arrays)
    exact = tq.evaluate_exact(table, acceleration=4, task="area", **arrays)
    assert exact.width == tq.evaluate_exact(x, z, **arrays).width


def test_several_tasks_are_calibrated_by_name():
    table = made()
    sides = {"lesion": "upper"}
    bound = tq.calibrate_joint(table, acceleration=4, alpha=0.2, side=sides, score="lwr")
    x, z = table.outputs[1], table.targets
    other = tq.calibrate_joint(
        x, z, alpha=0.2, side=sides, score="lwr", task_range=table.task_ranges, task_names=NAMES,
        acceleration=4,
    )  # fmt: skip
    assert bound == other
    interval = bound(x)
    assert np.isinf(interval.lower[:, 0]).sum() == 0  # clipped to its range
    assert (interval.lower[:, 0] == 0).all()
    assert (interval.upper <= SCALE).all()
    assert "area" in str(bound)
    some = tq.calibrate_joint(table, acceleration=4, alpha=0.2, task_names=["area", "lesion"])
    assert some.task_names == ("area", "lesion")


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda t: tq.calibrate(t, alpha=0.2), "option.missing"),
        (lambda t: tq.calibrate(t, alpha=0.2, acceleration=4), "option.missing"),
        (lambda t: tq.calibrate(t.outputs[0, ..., 0], alpha=0.2), "targets.missing"),
        (lambda t: tq.calibrate(t, t.targets, alpha=0.2), "option.unused"),
        (lambda t: tq.calibrate(t, alpha=0.2, acceleration="41"), "choice.unknown"),
        (lambda t: tq.calibrate_joint(t, alpha=0.2), "option.missing"),
        (
            lambda t: tq.calibrate_joint(t.select(task="area"), alpha=0.2, acceleration=4),
            "shape.axes",
        ),
        (lambda t: tq.evaluate_exact(t, alpha=0.2), "option.missing"),
    ],
)
def test_incomplete_calls_are_refused(call, code):
    with refused(code):
        call(made())


@pytest.mark.parametrize("score", ["ar", "mlwr"])
def test_point_estimates_need_no_sample_axis(score):
    rng = np.random.default_rng(0)
    z = rng.random(60)
    x = z + 0.1 * rng.standard_normal(60)
    bound, other = (tq.calibrate(y, z, alpha=0.1, score=score) for y in (x, x[:, None]))
    assert bound == other
    np.testing.assert_array_equal(bound(x).lower, bound(x[:, None]).lower)
    assert tq.TaskOutputs(x, z).samples == 1
    exact = tq.evaluate_exact(x, z, alpha=0.1, score=score)
    assert exact.width == tq.evaluate_exact(x[:, None], z, alpha=0.1, score=score).width


def test_policy_with_strata_needs_the_stratum_of_a_scan(tmp_path):
    table = synthetic_outputs(SyntheticTable(volumes=30), seed=0)
    site = np.where(table.targets > 0.5, "a", "b")
    policy = tq.plan(table, alpha=0.1, max_width=0.1, unit="case", strata=site)
    loaded = tq.load_policy(policy.save(tmp_path / "policy.json"))
    assert loaded.to_dict() == policy.to_dict()
    assert set(loaded.strata) == {"a", "b"}
    assert loaded.thresholds == tuple(map(max, *loaded.strata.values()))
    outputs = table.outputs[:1, :5]
    for stratum, thresholds in loaded.strata.items():
        alone = loaded.for_stratum(stratum)
        assert alone.thresholds == thresholds
        one, other = alone.decide(0, outputs), loaded.decide(0, outputs, stratum=stratum)
        assert (one.stops == other.stops).all()
        assert list(map(float, export_policy(alone)["thresholds"])) == list(thresholds)
    for refusing in (lambda: loaded.decide(0, outputs), lambda: export_policy(loaded)):
        with refused("option.missing"):
            refusing()
    with refused("choice.unknown"):
        loaded.for_stratum("c")
    with refused("option.unused"):
        loaded.for_stratum("a").for_stratum("a")


def test_class_with_too_few_units_is_named():
    table = synthetic_outputs(SyntheticTable(volumes=30), seed=0)
    label = np.where(np.arange(table.cases) < 5, "rare", "common")
    policy = tq.plan(table, alpha=0.1, max_width=0.2, unit="case", label=label)
    assert set(policy.thresholds) == {np.inf}
    assert "at least 9 calibration cases in each class, got 5 in rare" in policy.guarantee.caveat
    with refused("option.conflict"):
        tq.plan(table, alpha=0.1, max_width=0.2, label=label, strata=label)
    with refused("groups.missing"):
        tq.plan(table, alpha=0.1, max_width=0.2, label="site")
    with refused("option.conflict"):
        tq.plan(table, alpha=0.1, max_width=0.2, unit="whole-group", strata=np.arange(table.cases))
