"""Policies whose thresholds are infinite say what that comes to, and why."""

import numpy as np
import pytest

import taskuq as tq

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
    assert policy.warning in str(policy)
    assert policy.guarantee.shortage is None


def test_too_few_units_give_the_reason_first():
    policy = planned(SURE, cases=5)

    assert "got 5" in policy.guarantee.shortage
    assert policy.guarantee.shortage in policy.decide(0, SURE[:1, 0]).reason
    assert str(policy).index("got 5") < str(policy).index("Guaranteed")


@pytest.mark.parametrize("policy", ["adaptive", "anytime", "paper"])
def test_scores_that_no_threshold_covers_are_not_called_too_few_cases(policy):
    made = planned(AGREED, policy=policy)

    assert set(made.thresholds) == {np.inf}
    assert "at any threshold" in made.guarantee.shortage


def test_a_round_without_a_threshold_is_named():
    outputs = np.stack([AGREED[0], SURE[1]])

    assert planned(outputs, policy="paper").guarantee.shortage.endswith("no scan stops at R = 8")


def test_a_finite_threshold_at_which_nothing_stops_is_said():
    blurred = TRUTH[None, :, None] + 3 * RNG.standard_normal((2, 200, 4))
    policy = planned(blurred, policy="anytime")

    assert np.isfinite(policy.thresholds).all()
    assert "200 calibration cases" in policy.warning


def test_an_ordinary_policy_has_nothing_to_add():
    policy = planned(TRUTH[None, :, None] + 0.5 * RNG.standard_normal((2, 200, 4)))

    assert policy.warning is None
    assert policy.guarantee.shortage is None


def test_the_outlook_survives_a_file(tmp_path):
    policy = planned(SURE)

    assert str(tq.load_policy(policy.save(tmp_path / "policy.json"))) == str(policy)
