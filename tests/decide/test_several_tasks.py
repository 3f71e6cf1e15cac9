"""Several tasks: a width, a range and a side for each, by name; and tables or arrays everywhere."""

import json

import numpy as np
import pytest

import taskuq as tq
from taskuq.cli.app import main
from taskuq.errors import InputError
from taskuq.policy._goal import Goal, Goals

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


def decisions(policy, table):
    return [policy.decide(k, table.outputs[: k + 1]) for k in range(table.rounds)]


@pytest.mark.parametrize("kind", ["fixed-width", "adaptive", "anytime", "paper"])
def test_units_of_tasks_change_no_decision(kind):
    plain, scaled = made(np.ones(3)), made()
    one = tq.plan(plain, alpha=0.2, max_width=0.5, policy=kind)
    other = tq.plan(scaled, alpha=0.2, max_width=WIDTHS, policy=kind)

    for a, b in zip(decisions(one, plain), decisions(other, scaled), strict=True):
        assert a.stops.tolist() == b.stops.tolist()
        np.testing.assert_allclose(a.interval.lower * SCALE, b.interval.lower, rtol=1e-9)
    assert sum(d.stops.sum() for d in decisions(one, plain)) > 0


@pytest.mark.parametrize("kind", ["fixed-width", "adaptive"])
def test_one_width_for_all_tasks_stops_by_another_unit_than_its_own(kind):
    # The fault this guards against: one max_width for tasks in different units.
    table = made()
    one = tq.plan(table, alpha=0.2, max_width=0.5, policy=kind)
    each = tq.plan(table, alpha=0.2, max_width=WIDTHS, policy=kind)

    few, many = (sum(d.stops.sum() for d in decisions(p, table)) for p in (one, each))
    assert few < many / 2


@pytest.mark.parametrize("kind", ["fixed-width", "adaptive"])
def test_a_policy_of_several_tasks_survives_a_file(tmp_path, kind):
    table = made()
    policy = tq.plan(
        table, alpha=0.2, max_width=WIDTHS, policy=kind,
        side={"lesion": "two", "area": "upper", "volume": "lower"},
    )  # fmt: skip
    again = tq.load_policy(policy.save(tmp_path / "policy.json"))

    assert again == policy
    assert [goal.side for goal in again.goal.each] == ["two", "upper", "lower"]
    assert again.task_ranges == ((0, 1), (0, 64), (0, 1024))
    for a, b in zip(decisions(policy, table), decisions(again, table), strict=True):
        np.testing.assert_array_equal(a.interval.upper, b.interval.upper)


def test_a_decision_names_its_tasks_and_rounds():
    table = made()
    policy = tq.plan(table, alpha=0.2, max_width=WIDTHS)
    decision = policy.decide(2, table.outputs[:, 5])

    assert list(decision.by_task) == list(NAMES)
    assert float(decision.by_task["area"].width) == 32
    assert "at 80" in decision.reason
    assert "area [" in str(decision)
    assert "area: the interval is at most 32 wide" in str(policy)


def test_tasks_are_planned_for_by_name():
    table = made()
    two = tq.plan(table, alpha=0.2, max_width={"area": 32, "lesion": 0.5}, task=["area", "lesion"])
    alone = tq.plan(table.select(task="area"), alpha=0.2, max_width=32)

    assert two.task_names == ("area", "lesion")
    assert tq.plan(table, alpha=0.2, max_width=32, task="area").thresholds == alone.thresholds
    assert two.goal == Goals(("area", "lesion"), (Goal(max_width=32), Goal(max_width=0.5)))


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            {"max_width": {"lesion": 0.5}},
            "task area: when to stop is missing; give max_width, at_least or at_most",
        ),
        ({"max_width": {"lesoin": 0.5}}, "'lesoin', which is no task; the tasks are lesion, area"),
        ({"max_width": (0.1, 0.2)}, "2 entries for the 3 tasks"),
        ({"max_width": "wide"}, "max_width must be a number for each task"),
        ({"max_width": WIDTHS, "side": {"area": "left"}}, "task area: side must be"),
        ({"max_width": 1, "task": "volum"}, "there is no task 'volum'; the table has lesion"),
        ({"max_width": 1, "accelerations": (8, 4, 2)}, "brings its own accelerations"),
        ({"max_width": 1, "colour": 3}, "does not know 'colour'"),
    ],
)
def test_goals_that_do_not_fit_are_refused_by_name(asked, sentence):
    with pytest.raises(InputError, match=sentence):
        tq.plan(made(), alpha=0.2, **asked)


def test_arrays_stand_where_a_table_does():
    table = made().select(task="area")
    arrays = (table.outputs, table.targets)
    policy = tq.plan(arrays, accelerations=(8, 4, 2), task_range=(0, 64), alpha=0.2, max_width=32)

    assert policy.thresholds == tq.plan(table, alpha=0.2, max_width=32).thresholds
    for wrong in (table.outputs, None, [1, 2], (1, 2, 3)):
        with pytest.raises(InputError, match=r"plan needs a table, or arrays as a pair"):
            tq.plan(wrong, alpha=0.2, max_width=32)


def test_a_table_stands_where_arrays_do():
    table = made(group=np.arange(120) // 3)
    rng, again = (np.random.default_rng(0) for _ in range(2))
    arrays = {
        "task_range": (0, 64), "alpha": 0.2, "score": "lwr",
    }  # fmt: skip
    bound = tq.calibrate(table, acceleration=4, task="area", alpha=0.2, score="lwr")
    x, z = table.outputs[:2, ..., 1], table.targets[:, 1]

    assert bound == tq.calibrate(x, z, acceleration=4, group=table.group, **arrays)
    by_case = tq.calibrate(table, acceleration="40", task="area", unit="case", **arrays)
    assert by_case == tq.calibrate(x, z, acceleration=4, **arrays)
    judged = tq.evaluate(table, acceleration=4, task="area", trials=20, rng=rng, **arrays)
    other = tq.evaluate(x, z, trials=20, rng=again, group=table.group, **arrays)
    assert (judged.coverage, judged.width) == (other.coverage, other.width)
    assert (judged.acceleration, judged.task) == (4, "area")
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
    ("call", "sentence"),
    [
        (lambda t: tq.calibrate(t, alpha=0.2), "the rounds 20, 40, 80; choose one with accelerat"),
        (lambda t: tq.calibrate(t, alpha=0.2, acceleration=4), "choose one with task="),
        (lambda t: tq.calibrate(t.outputs[0, ..., 0], alpha=0.2), "targets are missing"),
        (lambda t: tq.calibrate(t, t.targets, alpha=0.2), "brings its own targets"),
        (lambda t: tq.calibrate(t, alpha=0.2, acceleration="41"), "no round '41'"),
        (lambda t: tq.calibrate_joint(t, alpha=0.2), "choose one with accelerat"),
        (
            lambda t: tq.calibrate_joint(t.select(task="area"), alpha=0.2, acceleration=4),
            "one task",
        ),
        (lambda t: tq.evaluate_exact(t, alpha=0.2), "choose one with accelerat"),
    ],
)
def test_what_is_missing_is_named(call, sentence):
    with pytest.raises(InputError, match=sentence):
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


def test_results_print_short():
    table = made(cases=40)
    one = table.select(task="area", accelerations=[4])
    results = [
        tq.calibrate(one, alpha=0.2),
        tq.calibrate(one, alpha=0.2)(one.outputs[0]),
        tq.evaluate_exact(one, alpha=0.2),
        tq.evaluate(one, alpha=0.2, trials=10, rng=np.random.default_rng(0)),
        tq.plan(table, alpha=0.2, max_width=WIDTHS),
        tq.plan(table, alpha=0.2, max_width=WIDTHS).decide(0, table.outputs[:1, 0]),
    ]

    for result in results:
        assert str(result) == repr(result)
        assert "array(" not in repr(result)
        assert len(repr(result).splitlines()) <= 12
        assert len(repr(result)) < 900
    assert "area" in repr(results[2])
    assert "coverage" in repr(results[2])


def test_the_command_line_takes_widths_and_ranges_by_task(tmp_path, capsys):
    path = made(task_range=None).save(tmp_path / "table.csv")
    policy, record = tmp_path / "policy.json", tmp_path / "simulate.json"
    ranges = ["--range", "lesion=0:1,area=0:64,volume=0:1024"]
    widths = ["--max-width", "lesion=0.5,area=32,volume=512", "--alpha", "0.2"]
    main(["plan", str(path), *ranges, *widths, "-o", str(policy)])
    main(["simulate", str(path), *ranges, *widths, "--policy", "fixed-width", "--statistic",
          "spread", "--splits", "10", "--json", str(record)])  # fmt: skip

    table = made(case=[str(i) for i in range(120)])
    assert (
        tq.load_policy(policy).thresholds == tq.plan(table, alpha=0.2, max_width=WIDTHS).thresholds
    )
    assert json.loads(record.read_text())["goal"]["tasks"][1]["max_width"] == 32
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        main(["plan", str(path), "--max-width", "area=wide"])
    assert "lesion=0.1,area=20" in capsys.readouterr().err
