"""Why an interval is the whole range: sentences name the true reason, where it holds."""

import numpy as np
import pytest

import taskuq as tq
from taskuq.conformal.scores._learned import _fit_robust_ridge

RNG = np.random.default_rng(6)
TRUTH = RNG.random(500)
OUTPUTS = TRUTH[:, None] + 0.1 * RNG.standard_normal((500, 4))
# The samples of every fifth case agree, and are wrong.
AGREED = np.where(np.arange(500)[:, None] % 5 == 0, OUTPUTS[:, :1], OUTPUTS)
PATIENTS = np.arange(500) // 5


def shortage(outputs=OUTPUTS, score="lwr", cases=500, **asked):
    asked = {k: np.asarray(v)[:cases] if np.ndim(v) else v for k, v in asked.items()}
    bound = tq.calibrate(outputs[:cases], TRUTH[:cases], alpha=0.1, score=score, **asked)
    assert (f"But {bound.guarantee.caveat}." in str(bound)) == bool(bound.guarantee.caveat)
    return bound.guarantee.caveat


def test_enough_cases_with_finite_scores_are_short_of_nothing():
    for asked in ({}, {"group": PATIENTS}, {"strata": PATIENTS % 2}, {"weights": np.ones(500)}):
        assert shortage(**asked) is None


def test_too_few_units_are_counted():
    assert shortage(cases=8) == (
        "alpha=0.1 needs at least 9 calibration cases, got 8: the interval is the whole task range"
    )
    assert "needs at least 9 calibration groups, got 8" in shortage(cases=40, group=PATIENTS)
    assert "alpha=0.1 and delta=0.05 needs at least 29" in shortage(cases=20, delta=0.05)
    assert "with a quantile for each end needs at least 19" in shortage(cases=18, side="each")


@pytest.mark.parametrize(
    "asked", [{}, {"group": PATIENTS}, {"label": np.zeros(500, int)}, {"delta": 0.1}]
)
def test_infinite_scores_are_not_called_too_few_cases(asked):
    said = shortage(AGREED, **asked)

    assert "100 of 500 calibration scores" in said
    assert "are infinite" in said
    assert "needs at least" not in said


def test_infinite_scores_under_a_shift_are_not_called_too_few_cases():
    assert "100 of 500 calibration scores are infinite" in shortage(AGREED, weights=np.ones(500))


@pytest.mark.parametrize("weights", [np.full(500, 1e-3), np.r_[10.0, np.full(499, 1e-3)]])
def test_weights_say_which_new_cases_they_do_not_reach(weights):
    bound = tq.calibrate(OUTPUTS, TRUTH, alpha=0.1, score="lwr", weights=weights)
    limit = bound.threshold.largest_weight
    at, beyond = bound(OUTPUTS[:2], weights=limit * np.array([0.999, 1.001])).is_unbounded

    assert (at, beyond) == (False, True)
    assert f"new cases that weigh more than {limit:.4g}" in bound.guarantee.caveat
    assert "needs at least" not in str(bound)


def test_a_short_stratum_is_named_with_its_count_and_the_others_are_not():
    said = shortage(strata=np.where(np.arange(500) < 5, "rare", "usual"))

    assert said == (
        "alpha=0.1 needs at least 9 calibration cases in each stratum, got 5 in rare: the interval "
        "is the whole task range in rare"
    )


def test_a_short_class_makes_every_interval_the_whole_range():
    said = shortage(label=np.where(np.arange(500) < 5, "rare", "usual"))

    assert said.endswith("got 5 in rare: the interval is the whole task range")


def test_a_stratum_of_groups_is_counted_as_it_is_read():
    strata = np.where(np.arange(500) % 5 == 0, "fifth", "others")
    counted = {
        w: shortage(cases=40, group=PATIENTS, strata=strata, within=w) for w in ("case", "group")
    }

    assert (
        "needs cases worth at least 9 groups in each stratum, got 1.6 in fifth, 6.4"
        in counted["case"]
    )
    assert (
        "needs at least 9 calibration groups in each stratum, got 8 in fifth, 8" in counted["group"]
    )


def test_only_the_stratum_with_infinite_scores_is_blamed_for_them():
    said = shortage(AGREED, strata=np.where(np.arange(500) % 5 == 0, "flat", "usual"))

    assert said.startswith("100 of 100 calibration scores in stratum flat are infinite")
    assert said.endswith("the whole task range in flat")


def test_many_short_strata_are_counted_rather_than_named():
    said = shortage(strata=np.arange(500) // 2)

    assert "got 2 in 0, 2 in 1, 2 in 2, 2 in 3, 2 in 4 and 245 more: " in said


@pytest.mark.parametrize("method", ["max", "scale", "minimax", "rank"])
def test_several_tasks_name_the_true_reason(method):
    def said(outputs, cases):
        both, truth = np.stack([outputs, outputs], axis=-1), np.stack([TRUTH, TRUTH], axis=-1)
        bound = tq.calibrate_joint(
            both[:cases], truth[:cases], alpha=0.1, score="lwr", method=method
        )
        return bound.guarantee.caveat

    assert said(OUTPUTS, 500) is None
    assert "needs at least 9" in said(OUTPUTS, 5)
    assert "are infinite" in said(AGREED, 500)


def test_ranks_that_lead_beyond_the_scores_are_not_called_too_few_cases():
    both, truth = np.stack([OUTPUTS] * 2, axis=-1)[:9], np.stack([TRUTH] * 2, axis=-1)[:9]
    bound = tq.calibrate_joint(both, truth, alpha=0.1, score="lwr", method="rank")

    assert bound.guarantee.caveat.startswith("ranks of 9 cases at alpha=0.1 lead beyond")


def test_a_shortage_survives_a_file(tmp_path):
    bound = tq.calibrate(AGREED, TRUTH, alpha=0.1, score="lwr")

    assert str(tq.load_bound(bound.save(tmp_path / "bound.json"))) == str(bound)


@pytest.mark.parametrize("offset", [1e5, 1e10, 1e20, 1e30, -1e37])
def test_the_learned_score_takes_numbers_far_from_zero(offset):
    bound = tq.calibrate(OUTPUTS + offset, TRUTH + offset, alpha=0.1, score="learned")

    assert bound(OUTPUTS + offset).contains(TRUTH + offset).mean() > 0.8


def test_a_feature_that_is_constant_but_for_rounding_does_not_count():
    large = np.full(50, 0.1) * 1e30 + np.tile([0.0, 1e14], 25)
    fit = _fit_robust_ridge(np.stack([large, TRUTH[:50]], axis=1), 2 * TRUTH[:50])

    assert fit.coefficients[0] == 0
    assert fit.coefficients[1] > 0
