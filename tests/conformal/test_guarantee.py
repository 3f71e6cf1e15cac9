"""Guarantees within strata and classes of grouped cases, by exact enumeration; caveats."""

import re
from fractions import Fraction
from itertools import product
from math import comb, inf, prod

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.conformal import _guarantee as within_strata
from taskuq.conformal import _units as units
from taskuq.conformal._guarantee import Guarantee, quantiles_within
from taskuq.conformal._units import _hierarchical_quantile
from taskuq.conformal.scores._learned import _fit_robust_ridge

ALPHAS = (0.1, 0.2, 0.25, 0.34, 0.5)
# Populations for each kind of guarantee; every group of each is once the new one.
POPULATIONS = 60
KINDS = {
    "case": {"condition_on": "case"},
    "group": {"condition_on": "group"},
    "all": {"condition_on": "group", "cases": "all"},
    "share": {"condition_on": "group", "cases": 0.6},
}


def population(rng):
    """Groups as pairs of scores and strata: hard ones large or small, and nearly all in stratum a.

    Scores are small integers, so that there are ties, and some are infinite.
    """
    groups = []
    for _ in range(int(rng.integers(3, 14))):
        is_hard = rng.random() < 0.3
        size = int(rng.integers(1, 9)) if rng.random() < 0.5 else (8 if is_hard else 1)
        in_a = rng.random(size) < (0.9 if is_hard else 0.2)
        score = rng.integers(0, 4, size) + 5.0 * is_hard
        score[rng.random(size) < 0.05] = inf
        groups.append((score, np.where(in_a, "a", np.where(rng.random(size) < 0.7, "b", "c"))))
    return groups


def quantiles(groups, alpha, **guarantee):
    """The quantile of each stratum, calibrated on groups."""
    scores, strata = (np.concatenate(part) for part in zip(*groups, strict=True))
    group = np.repeat(np.arange(len(groups)), [len(s) for s, _ in groups])
    asked = {"n_cases": len(scores), "condition": "each stratum", "condition_on": None, **guarantee}
    asked = Guarantee(alpha=alpha, unit="group", n_groups=len(groups), **asked)
    return quantiles_within(asked, scores, group, strata)[1]


def loss(group, stratum, quantile, condition_on, cases="random"):
    """What a new group loses in a stratum, and the loss if all were missed."""
    score, strata = group
    inside = strata == stratum
    missed, there = int((score[inside] > quantile).sum()), int(inside.sum())
    if not there:
        return Fraction(0), Fraction(0)
    if condition_on == "case":
        return Fraction(missed, len(score)), Fraction(there, len(score))
    if cases == "random":
        return Fraction(missed, there), Fraction(1)
    wanted = Fraction(1) if cases == "all" else Fraction(str(cases))
    return Fraction(there - missed < wanted * there), Fraction(1)


def miss_rates(groups, alpha, *, by_label=False, **guarantee):
    """The exact probability of a miss in each stratum, every group being the new one once."""
    totals = {s: [Fraction(0), Fraction(0)] for s in "abc"}
    for new, group in enumerate(groups):
        found = quantiles(groups[:new] + groups[new + 1 :], alpha, **guarantee)
        for s in "abc":
            if by_label and s not in found:
                continue  # a class that was never calibrated is guaranteed nothing
            q = max(found.values()) if by_label else found.get(s, inf)
            lost, most = loss(group, s, q, **guarantee)
            totals[s][0] += lost
            totals[s][1] += most
    return {s: lost / most for s, (lost, most) in totals.items() if most}


def check_every_stratum(kind, count=POPULATIONS, **how):
    rng = np.random.default_rng(16)
    for _ in range(count):
        groups, alpha = population(rng), float(rng.choice(ALPHAS))
        rates = miss_rates(groups, alpha, **KINDS[kind], **how)
        assert all(rate <= Fraction(str(alpha)) for rate in rates.values()), (groups, alpha, rates)


# Mixtures of groups, hard and easy, by chance: stratum a is missed a little more than half the time
# if easy cases alone are covered, given the case or given the group; stratum b is missed rarely.
HARD_TYPE = (np.array([5.0, 5.0]), np.array(["a", "a"]))
HALF_TYPE = (np.array([0.0, 1.0]), np.array(["a", "b"]))
MIXTURES = {
    "case": [(Fraction(34, 100), HARD_TYPE), (Fraction(66, 100), HALF_TYPE)],
    "group": [(Fraction(51, 100), HARD_TYPE), (Fraction(49, 100), HALF_TYPE)],
}


def calibration_sets(mixture, groups):
    """Every calibration set of so many independent groups in its order, and how likely it is."""
    for chosen in product(mixture, repeat=groups):
        yield [group for _, group in chosen], prod(chance for chance, _ in chosen)


def is_short(mixture, stratum, quantile, condition_on, alpha):
    """Whether a stratum of a new group is missed more often than alpha, given the set."""
    each = [(chance, *loss(group, stratum, quantile, condition_on)) for chance, group in mixture]
    missed, there = (sum(c[0] * c[k] for c in each) for k in (1, 2))
    return missed > Fraction(str(alpha)) * there


def unlucky_sets(mixture, groups, alpha, condition_on, delta_scope, *, by_label=False):
    """How likely a calibration set is unlucky in each stratum, and in any of them."""
    each, some = dict.fromkeys("ab", Fraction(0)), Fraction(0)
    for chosen, chance in calibration_sets(mixture, groups):
        found = quantiles(
            chosen, alpha, condition_on=condition_on, delta=0.3, delta_scope=delta_scope
        )
        top = max(found.values())
        reached = {s: top if by_label and s in found else found.get(s, inf) for s in "ab"}
        short = [s for s, q in reached.items() if is_short(mixture, s, q, condition_on, alpha)]
        for s in short:
            each[s] += chance
        some += chance * bool(short)
    return each, some


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


def groups_count_alike(monkeypatch):
    """Within a stratum, whatever share of a group's cases lies there."""

    def alike(scores, index, sizes, alpha, delta=None):
        return _hierarchical_quantile(scores, index, alpha, delta)

    monkeypatch.setattr(within_strata, "_quantile_given_stratum", alike)


def no_room_for_the_new_group(monkeypatch):
    right = within_strata._quantile_given_stratum

    def lax(scores, index, sizes, alpha, delta=None):
        # A group more, full of cases of the stratum that are never missed.
        return right(np.r_[scores, -1.0], np.r_[index, len(sizes)], np.r_[sizes, 1], alpha, delta)

    monkeypatch.setattr(within_strata, "_quantile_given_stratum", lax)


def cases_count_alike(monkeypatch):
    def alike(self, scores, group, alpha, delta):
        return _hierarchical_quantile(scores, np.arange(len(scores)), alpha, delta)

    monkeypatch.setattr(units.RandomCaseUnit, "quantile", alike)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (groups_count_alike, "case"),
        (no_room_for_the_new_group, "case"),
        (cases_count_alike, "group"),
    ],
)
def test_planted_fault_breaks_a_guarantee(fault, kind, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check_every_stratum(kind)


def test_equal_group_weights_make_too_many_sets_unlucky(monkeypatch):
    groups_count_alike(monkeypatch)
    assert unlucky_sets(MIXTURES["case"], 9, 0.5, "case", "each")[0]["a"] > Fraction(3, 10)


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
    likely, sets = re.search(r"at least (\S+), for all but (\S+) of", text).groups()
    assert 0 < 1 - Fraction(str(alpha)) - Fraction(likely) <= Fraction("1e-10")
    assert 0 < Fraction(sets) - Fraction(str(delta)) <= Fraction("1e-4")
