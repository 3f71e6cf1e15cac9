"""Policies whose thresholds are infinite say what that comes to, and why."""

import numpy as np
import pytest

import taskuq as tq
from taskuq.cli.plan import _Goal
from taskuq.cli.plan import plan as plan_command

RNG = np.random.default_rng(2)
TRUTH = RNG.uniform(0.3, 0.7, 200)
# Every report of a width of 0.5 contains the target.
SURE = TRUTH[None, :, None] + 0.001 * RNG.standard_normal((2, 200, 4))
# The samples of every fourth case agree, and are wrong.
AGREED = TRUTH[None, :, None] + 0.1 * RNG.standard_normal((2, 200, 4))
AGREED[:, ::4] = AGREED[:, ::4, :1]


def table(outputs, cases=200, **more):
    return tq.TaskOutputs(
        outputs=outputs[:, :cases], targets=TRUTH[:cases], accelerations=np.array([8.0, 4.0]),
        **{name: value[:cases] for name, value in more.items()},
    )  # fmt: skip


def planned(outputs, cases=200, *, policy="fixed-width", group=None, **asked):
    more = {} if group is None else {"group": group}
    return tq.plan(
        table(outputs, cases, **more), alpha=0.1, max_width=0.5, policy=policy, score="lwr", **asked
    )


@pytest.mark.parametrize("unit", ["case", "group", "whole-group"])
def test_a_threshold_of_minus_infinity_says_that_every_scan_stops_in_the_first_round(unit):
    policy = planned(SURE, group=np.arange(200) // 2, unit=unit)

    assert set(policy.thresholds) == {-np.inf}
    assert policy.decide(0, SURE[:1, :2]).stop
    assert "so every scan stops in the first round." in str(policy)
    assert policy.guarantee.shortage is None


def test_too_few_units_say_that_every_scan_goes_on():
    policy = planned(SURE, cases=5)

    assert "needs at least 9 calibration cases, got 5: every scan goes on to the end." in str(
        policy
    )
    assert "got 5: every scan goes on" in policy.decide(0, SURE[:1, 0]).reason
    # What it comes to is said first.
    assert str(policy).index("every scan goes on") < str(policy).index("Guaranteed")


@pytest.mark.parametrize("policy", ["adaptive", "anytime", "paper"])
def test_scores_that_no_threshold_covers_are_not_called_too_few_cases(policy):
    made = planned(AGREED, policy=policy)

    assert set(made.thresholds) == {np.inf}
    assert "too many calibration cases for alpha=0.1 would be missed at any threshold" in str(made)
    assert "needs at least" not in str(made)


def test_a_round_without_a_threshold_is_named():
    outputs = np.stack([AGREED[0], SURE[1]])

    assert (
        "at any threshold (as where all samples agree and are wrong): no scan stops at R = 8."
        in str(planned(outputs, policy="paper"))
    )


def test_a_finite_threshold_at_which_nothing_stops_is_said():
    blurred = TRUTH[None, :, None] + 3 * RNG.standard_normal((2, 200, 4))
    policy = planned(blurred, policy="anytime")

    assert np.isfinite(policy.thresholds).all()
    assert "No scan of the 200 calibration cases stops early." in str(policy)


def test_an_ordinary_policy_has_nothing_to_add():
    policy = planned(TRUTH[None, :, None] + 0.5 * RNG.standard_normal((2, 200, 4)))

    assert policy.warning is None
    assert policy.guarantee.shortage is None


def test_the_outlook_survives_a_file(tmp_path):
    policy = planned(SURE)

    assert str(tq.load_policy(policy.save(tmp_path / "policy.json"))) == str(policy)


def test_the_command_says_what_infinite_thresholds_come_to(tmp_path, capsys):
    path = table(SURE).save(tmp_path / "table.npz")
    plan_command(
        path, goal=_Goal(alpha=0.1, max_width="0.5"), output=tmp_path / "policy.json"
    )
    said = " ".join(capsys.readouterr().err.split())

    assert "every scan stops in the first round" in said
    assert "goes on to the end" not in said
