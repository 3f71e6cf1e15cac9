"""Guarantees given the calibration set within strata, by exact enumeration; caveats."""

import re
from fractions import Fraction
from itertools import product
from math import comb, prod

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.conformal import _guarantee as within_strata
from taskuq.conformal._guarantee import Guarantee, quantiles_within
from taskuq.conformal._units import _hierarchical_quantile
from taskuq.conformal.scores._learned import _fit_robust_ridge


def some_of_ten_strata_falls_short(**guarantee):
    """The exact probability that some of ten strata of 60 cases is covered less than 0.9.

    The scores of a stratum are its ranks; coverage given the set is Beta distributed.
    """
    strata, ranks = np.repeat(np.arange(10), 60), np.tile(np.arange(1.0, 61), 10)
    bound = tq.calibrate(
        np.zeros((600, 1)), ranks, alpha=0.1, delta=0.1, score="ar", strata=strata, **guarantee
    )
    lucky = 1.0
    for k in bound.threshold.by_stratum.values():
        # Beta(k, n + 1 - k) < 0.9 exactly if at least k of n uniform numbers are below 0.9.
        lucky *= 1 - sum(comb(60, j) * 0.9**j * 0.1 ** (60 - j) for j in range(int(k), 61))
    return 1 - lucky


def test_delta_is_for_each_stratum_or_for_all_at_once():
    assert 0.1 < some_of_ten_strata_falls_short() <= 1 - 0.9**10
    assert some_of_ten_strata_falls_short(delta_scope="all") <= 0.1


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"condition_on": "stratum", "strata": 1}, "choice.unknown"),
        ({"condition_on": "case"}, "option.unused"),
        ({"condition_on": "case", "strata": 1, "unit": "case"}, "option.unused"),
        ({"condition_on": "case", "strata": 1, "cases": "all"}, "option.conflict"),
        ({"delta_scope": "all", "strata": 1}, "option.unused"),
        ({"delta_scope": "all", "delta": 0.1}, "option.unused"),
        ({"delta_scope": "some", "strata": 1, "delta": 0.1}, "choice.unknown"),
        ({"unit": "case", "cases": "all"}, "groups.missing"),
    ],
)
def test_guarantees_without_meaning_are_refused(options, code):
    options = {k: ["a"] * 30 if k == "strata" else v for k, v in options.items()}
    with refused(code):
        tq.calibrate(
            np.zeros((30, 1)), np.arange(30.0), alpha=0.1, score="ar", group=range(30), **options
        )


# Hard groups, and easy ones with half of their cases in stratum a.
MIXTURE = (
    (Fraction(34, 100), np.array([5.0, 5.0]), ["a", "a"]),
    (Fraction(66, 100), np.array([0.0, 1.0]), ["a", "b"]),
)


def unlucky_sets():
    """The exact probability of nine groups after which stratum a is missed more than half the time.

    Of its cases, a share of 34 in 67 lies in hard groups.
    """
    total = Fraction(0)
    for chosen in product(MIXTURE, repeat=9):
        chances, scores, strata = zip(*chosen, strict=True)
        asked = Guarantee(
            alpha=0.5, unit="group", n_cases=18, n_groups=9, condition="each stratum",
            condition_on="case", delta=0.3, delta_scope="each",
        )  # fmt: skip
        group = np.repeat(np.arange(9), 2)
        found = quantiles_within(asked, np.concatenate(scores), group, np.concatenate(strata))[1]
        total += prod(chances) * (found["a"] < 5)
    return total


def test_equal_group_weights_make_too_many_sets_unlucky(monkeypatch):
    assert unlucky_sets() <= Fraction(3, 10)
    monkeypatch.setattr(
        within_strata, "_quantile_given_stratum",
        lambda scores, index, sizes, *levels: _hierarchical_quantile(scores, index, *levels),
    )  # fmt: skip
    assert unlucky_sets() > Fraction(3, 10)


def test_undivided_delta_is_found(monkeypatch):
    monkeypatch.setattr(within_strata, "parse_delta_scope", lambda *asked: "each")
    monkeypatch.setattr("taskuq.conformal._calibrate.parse_delta_scope", lambda *asked: "each")
    assert some_of_ten_strata_falls_short(delta_scope="all") > 0.1


RNG = np.random.default_rng(6)
TRUTH = RNG.random(500)
OUTPUTS = TRUTH[:, None] + 0.1 * RNG.standard_normal((500, 4))
# The samples of every fifth case agree, and are wrong.
AGREED = np.where(np.arange(500)[:, None] % 5 == 0, OUTPUTS[:, :1], OUTPUTS)
PATIENTS = np.arange(500) // 5


def caveat(outputs=OUTPUTS, score="lwr", cases=500, **asked):
    asked = {k: np.asarray(v)[:cases] if np.ndim(v) else v for k, v in asked.items()}
    bound = tq.calibrate(outputs[:cases], TRUTH[:cases], alpha=0.1, score=score, **asked)
    return bound.guarantee.caveat


FIFTHS = np.where(np.arange(500) % 5 == 0, "fifth", "others")
RARE = np.where(np.arange(500) < 5, "rare", "usual")


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        ({"cases": 8}, ["at least 9 calibration cases", "got 8"]),
        ({"cases": 40, "group": PATIENTS}, ["at least 9 calibration groups", "got 8"]),
        ({"cases": 20, "delta": 0.05}, ["at least 29"]),
        ({"cases": 18, "side": "each"}, ["at least 19"]),
        ({"strata": RARE}, ["at least 9", "got 5 in rare:"]),
        ({"label": RARE}, ["got 5 in rare:"]),
        ({"strata": np.arange(500) // 2}, ["2 in 4 and 245 more"]),
        ({"cases": 40, "group": PATIENTS, "strata": FIFTHS}, ["at least 9 groups", "1.6 in fifth"]),
        ({"cases": 40, "group": PATIENTS, "strata": FIFTHS, "condition_on": "group"},
         ["at least 9", "8 in fifth, 8"]),
    ],
)  # fmt: skip
def test_caveat_counts_units_that_are_too_few(asked, numbers):
    assert all(number in caveat(**asked) for number in numbers)


@pytest.mark.parametrize("asked", [{}, {"group": PATIENTS}, {"strata": PATIENTS % 2}])
def test_enough_cases_with_finite_scores_have_no_caveat(asked):
    assert caveat(**asked) is None


@pytest.mark.parametrize(
    "asked", [{}, {"group": PATIENTS}, {"label": np.zeros(500, int)}, {"delta": 0.1}]
)
def test_caveat_of_infinite_scores_is_not_too_few_cases(asked):
    found = caveat(AGREED, **asked)
    assert "100 of 500" in found
    assert "at least" not in found


@pytest.mark.parametrize("weights", [np.full(500, 1e-3), np.r_[10.0, np.full(499, 1e-3)]])
def test_caveat_names_the_largest_covered_weight(weights):
    bound = tq.calibrate(OUTPUTS, TRUTH, alpha=0.1, score="lwr", weights=weights)
    limit = bound.threshold.largest_weight
    at, beyond = bound(OUTPUTS[:2], weights=limit * np.array([0.999, 1.001])).is_unbounded
    assert (at, beyond) == (False, True)
    assert f"{limit:.4g}" in bound.guarantee.caveat


@pytest.mark.parametrize("method", ["scale", "minimax"])
def test_caveat_of_several_tasks(method):
    def caveat_of(outputs, cases):
        both, truth = np.stack([outputs, outputs], axis=-1), np.stack([TRUTH, TRUTH], axis=-1)
        bound = tq.calibrate_joint(
            both[:cases], truth[:cases], alpha=0.1, score="lwr", method=method
        )
        return bound.guarantee.caveat

    assert caveat_of(OUTPUTS, 500) is None
    assert "at least 9" in caveat_of(OUTPUTS, 5)
    assert "infinite" in caveat_of(AGREED, 500)


@pytest.mark.parametrize("offset", [1e10, -1e37])
def test_learned_score_far_from_zero(offset):
    bound = tq.calibrate(OUTPUTS + offset, TRUTH + offset, alpha=0.1, score="learned")
    assert bound(OUTPUTS + offset).contains(TRUTH + offset).mean() > 0.8


def test_constant_feature_has_no_coefficient():
    large = np.full(50, 0.1) * 1e30 + np.tile([0.0, 1e14], 25)
    fit = _fit_robust_ridge(np.stack([large, TRUTH[:50]], axis=1), 2 * TRUTH[:50])
    assert fit.coefficients[0] == 0
    assert fit.coefficients[1] > 0


def test_probabilities_are_never_printed_better_than_they_are():
    alpha, delta = 0.00000000005, 0.10001
    text = Guarantee(alpha=alpha, unit="case", n_cases=9, delta=delta).statement
    likely, sets = re.search(r"at least (\S+), for all but a fraction (\S+) of", text).groups()
    assert 0 < 1 - Fraction(str(alpha)) - Fraction(likely) <= Fraction("1e-10")
    assert 0 < Fraction(sets) - Fraction(str(delta)) <= Fraction("1e-4")
