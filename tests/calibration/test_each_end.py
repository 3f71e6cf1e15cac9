"""A quantile for each end of an interval: promises by trying every unit as the new one."""

from collections import Counter
from fractions import Fraction
from itertools import combinations_with_replacement
from math import factorial, inf, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import taskuq as tq
from taskuq.conformal._bound import EndQuantiles, SingleQuantile
from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal.scores._paper import LWR

ALPHAS = (0.2, 0.25, 0.34, 0.5, 0.8, 0.9)
# A case is its target and the spread of two samples around 0; small numbers bring many ties, and
# spreads of 0 bring scores of plus and minus infinity.
CASES = st.tuples(st.integers(-4, 4), st.sampled_from([0, 1, 2, 4]))
GROUPS = st.lists(st.lists(CASES, min_size=1, max_size=5), min_size=3, max_size=8)
MANY = settings(max_examples=150)


def outputs_and_targets(cases):
    targets, spread = np.array(cases, dtype=float).T
    return np.stack([-spread, spread], axis=1), targets


def interval_of(new, rest, alpha, *, told=None, **promise):
    """Calibrate on some cases, and return the intervals of others."""
    bound = tq.calibrate(
        *outputs_and_targets(rest), alpha=alpha, score="lwr", side="each", **promise
    )
    return bound(outputs_and_targets(new)[0], **(told or {}))


def missed(new, rest, alpha, **options):
    interval = interval_of(new, rest, alpha, **options)
    return ~interval.contains([target for target, _ in new])


def cases_are_missed_at_most_alpha(population, alpha):
    lost = sum(
        missed([case], population[:i] + population[i + 1 :], alpha)[0]
        for i, case in enumerate(population)
    )
    assert Fraction(int(lost), len(population)) <= Fraction(str(alpha))


def groups_lose_at_most_alpha(population, alpha, share):
    """A random case, or too few cases, of a random new group are missed with probability alpha."""
    losses = []
    for new, cases in enumerate(population):
        others = [g for g in range(len(population)) if g != new]
        rest = [case for g in others for case in population[g]]
        if len(rest) < 2:
            return
        group = np.repeat(others, [len(population[g]) for g in others])
        lost = missed(cases, rest, alpha, group=group, cases=share)
        part = Fraction(int(lost.sum()), len(lost))
        wanted = Fraction("1" if share == "all" else str(share)) if share != "random" else None
        losses.append(part if wanted is None else Fraction(part > 1 - wanted))
    assert sum(losses) / len(losses) <= Fraction(str(alpha))


@MANY
@given(population=st.lists(CASES, min_size=4, max_size=16), alpha=st.sampled_from(ALPHAS))
def test_a_new_case_is_missed_at_most_alpha(population, alpha):
    cases_are_missed_at_most_alpha(population, alpha)


@pytest.mark.parametrize("share", ["random", "all", 0.9, 0.5, 0.34])
@MANY
@given(population=GROUPS, alpha=st.sampled_from(ALPHAS))
def test_a_new_group_is_missed_at_most_alpha(share, population, alpha):
    groups_lose_at_most_alpha(population, alpha, share)


@pytest.mark.parametrize("task_range", [None, (0.0, 1.0)])
def test_what_mlwr_learns_from_its_own_groups_keeps_the_promise_of_both_ends(task_range):
    for seed in range(60):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(1, 4, size=8)
        group = np.repeat(np.arange(8), sizes)
        spread = (10.0 ** rng.uniform(-3, -1, size=8))[group] / sizes[group]
        x = np.clip(0.5 + spread[:, None] * rng.standard_normal((len(group), 3)), 0, 1)
        z = np.clip(0.5 + rng.choice([-1, 3, 9], size=len(group)) * spread, 0, 1)
        losses = []
        for new in range(8):
            rest = group != new
            bound = tq.calibrate(
                x[rest], z[rest], alpha=0.4, group=group[rest], side="each", task_range=task_range
            )
            losses.append((~bound(x[~rest]).contains(z[~rest])).mean())
            assert bound.is_finite
            assert bound.provenance["tuning_cases"] == 0

        assert np.mean(losses) <= 0.4 + 1e-12


@pytest.mark.parametrize("condition", ["strata", "label"])
@given(
    population=st.lists(st.tuples(CASES, st.sampled_from("ab")), min_size=5, max_size=14),
    alpha=st.sampled_from(ALPHAS),
)
def test_each_stratum_and_each_class_is_missed_at_most_alpha(condition, population, alpha):
    for kind in {k for _, k in population}:
        members = [i for i, (_, k) in enumerate(population) if k == kind]
        if condition == "label" and len(members) == 1:
            continue  # the promise is for classes of the calibration set
        lost = 0
        for i in members:
            rest, kinds = zip(*(population[:i] + population[i + 1 :]), strict=True)
            told = {"strata": [kind]} if condition == "strata" else {}
            options = {condition: np.array(kinds), "told": told}
            lost += int(missed([population[i][0]], rest, alpha, **options)[0])

        assert Fraction(lost, len(members)) <= Fraction(str(alpha))


@pytest.mark.parametrize("within", ["case", "group"])
@given(
    population=st.lists(
        st.lists(st.tuples(CASES, st.sampled_from("ab")), min_size=1, max_size=4),
        min_size=4,
        max_size=8,
    ),
    alpha=st.sampled_from(ALPHAS[2:]),
)
def test_each_stratum_of_new_groups_is_missed_at_most_alpha(within, population, alpha):
    lost, drawn = dict.fromkeys("ab", Fraction(0)), dict.fromkeys("ab", Fraction(0))
    for new, group in enumerate(population):
        others = population[:new] + population[new + 1 :]
        rest, kinds = zip(*(case for other in others for case in other), strict=True)
        options = {"strata": np.array(kinds), "within": within}
        options["group"] = np.repeat(np.arange(len(others)), [len(other) for other in others])
        for kind in "ab":
            inside = [case for case, k in group if k == kind]
            if inside:
                options["told"] = {"strata": [kind] * len(inside)}
                out_of = len(group) if within == "case" else len(inside)
                lost[kind] += Fraction(int(missed(inside, rest, alpha, **options).sum()), out_of)
                drawn[kind] += Fraction(len(inside), out_of)

    assert all(lost[kind] <= Fraction(str(alpha)) * drawn[kind] for kind in "ab")


@given(
    population=st.lists(st.tuples(CASES, st.integers(1, 5)), min_size=4, max_size=12),
    alpha=st.sampled_from(ALPHAS),
)
def test_a_case_of_shifted_inputs_is_missed_at_most_alpha(population, alpha):
    # The new case is case i with probability proportional to its weight.
    lost = 0
    for i, (case, weight) in enumerate(population):
        rest, weights = zip(*(population[:i] + population[i + 1 :]), strict=True)
        told = {"weights": [weight]}
        lost += weight * int(missed([case], rest, alpha, weights=weights, told=told)[0])

    assert Fraction(lost, sum(w for _, w in population)) <= Fraction(str(alpha))


def unlucky_sets(values, n, alpha, delta):
    """The share of all sets of n independent draws whose bound misses more than alpha of draws."""
    bad = 0
    for drawn in combinations_with_replacement(values, n):
        ways = factorial(n) // prod(map(factorial, Counter(drawn).values()))
        bound = tq.calibrate(
            np.zeros((n, 1)), np.array(drawn, dtype=float), alpha=alpha, delta=delta, score="ar",
            side="each",
        )  # fmt: skip
        lost = (~bound(np.zeros((len(values), 1))).contains(values)).sum()
        bad += ways * (Fraction(int(lost), len(values)) > Fraction(str(alpha)))
    return Fraction(bad, len(values) ** n)


@pytest.mark.parametrize(("n", "alpha", "delta"), [(7, 0.6, 0.3), (8, 0.55, 0.2), (6, 0.7, 0.4)])
def test_all_but_delta_of_calibration_sets_keep_the_promise(n, alpha, delta):
    values = np.arange(5) - 2.0
    bound = tq.calibrate(
        np.zeros((n, 1)), np.arange(n) * 1.0, alpha=alpha, delta=delta, score="ar", side="each"
    )

    assert bound.is_finite  # or nothing would be tried
    assert unlucky_sets(values, n, alpha, delta) <= Fraction(str(delta))


FULL_ALPHA = property(lambda self: (Fraction(str(self.alpha)), self.delta))
SAME_SHARE = property(lambda self: self._unit)
# Half of the cases far below, half far above, all at their own distance: nothing is wasted.
OPPOSED = [(k if k % 2 else -k, 1) for k in range(1, 21)]
ALIKE = [[case] * 3 for case in OPPOSED]
# In each group one case is far below and another far above.
TORN = [[(-k, 1), (0, 1), (0, 1), (k, 1)] for k in range(1, 21)]


@pytest.mark.parametrize(
    ("name", "fault", "law"),
    [
        ("levels", FULL_ALPHA, lambda: cases_are_missed_at_most_alpha(OPPOSED, 0.2)),
        ("levels", FULL_ALPHA, lambda: groups_lose_at_most_alpha(ALIKE, 0.2, "random")),
        ("levels", FULL_ALPHA, lambda: groups_lose_at_most_alpha(ALIKE, 0.2, "all")),
        ("_unit_per_quantile", SAME_SHARE, lambda: groups_lose_at_most_alpha(TORN, 0.2, 0.75)),
    ],
)
def test_a_planted_fault_breaks_the_promise(name, fault, law, monkeypatch):
    law()
    monkeypatch.setattr(Guarantee, name, fault)
    with pytest.raises(AssertionError):
        law()


RNG = np.random.default_rng(12)
TRUTH = RNG.random(160)
OUTPUTS = np.clip(TRUTH[:, None] + 0.1 * RNG.gamma(1.0, size=(160, 6)), 0, 1)
ELSEWHERE = OUTPUTS[:60], TRUTH[:60]
X, Z = OUTPUTS[60:], TRUTH[60:]
GROUP = np.repeat(np.arange(50), 2)
PROMISES = {
    "plain": {},
    "range": {"task_range": (0, 1)},
    "groups": {"group": GROUP},
    "all of a group": {"group": GROUP, "cases": "all"},
    "classes": {"label": np.arange(100) % 2},
    "strata": {"strata": np.arange(100) % 2},
    "weights": {"weights": np.linspace(1, 2, 100)},
}


@pytest.mark.parametrize("score", ["ar", "lwr", "mlwr", "learned"])
@pytest.mark.parametrize("kind", PROMISES)
def test_the_ends_are_those_of_one_sided_bounds_at_half_the_error_rate(kind, score):
    def ends(side, alpha):
        bound = tq.calibrate(
            X, Z, alpha=alpha, score=score, side=side, tuning=ELSEWHERE, **PROMISES[kind]
        )
        given_by = {k: v for k, v in PROMISES[kind].items() if k in ("strata", "weights")}
        return bound(X, **given_by)

    each = ends("each", 0.2)
    np.testing.assert_array_equal(each.lower, ends("lower", 0.1).lower)
    np.testing.assert_array_equal(each.upper, ends("upper", 0.1).upper)


@pytest.mark.parametrize("group", [None, GROUP])
def test_given_the_set_half_of_delta_goes_to_each_end(group):
    each = tq.calibrate(X, Z, alpha=0.4, delta=0.4, score="cqr", side="each", group=group)
    lower = tq.calibrate(X, Z, alpha=0.2, delta=0.2, score="cqr", side="lower", group=group)

    assert each.threshold.lower == lower.threshold
    assert each.is_finite


def test_a_biased_sampler_gets_shorter_intervals():
    widths = {
        side: tq.calibrate(X, Z, alpha=0.1, score="ar", side=side)(X).width[0]
        for side in ("two", "each")
    }

    assert widths["each"] < 0.8 * widths["two"]


def test_ends_that_cross_are_an_empty_interval():
    # Nearly all targets score minus infinity below: no spread, and at or above the point.
    z = np.r_[np.zeros(40), 5.0]
    outputs = np.r_[np.zeros((40, 2)), [[-1.0, 1.0]]]
    bound = tq.calibrate(outputs, z, alpha=0.2, score="lwr", side="each", task_range=(-9, 9))
    interval = bound(np.array([[0.0, 0.0], [-1.0, 1.0]]))

    assert bound.threshold.quantiles == (-inf, -inf)
    assert interval.is_empty.tolist() == [False, True]
    assert interval.width.tolist() == [0, 0]
    assert interval.contains([0, 0]).tolist() == [True, False]


def test_one_infinite_end_is_open_on_its_side_only():
    z = np.r_[np.linspace(0, 1, 30), np.full(10, 2.0)]
    outputs = np.r_[np.tile([-1.0, 1.0], (30, 1)), np.zeros((10, 2))]
    bound = tq.calibrate(outputs, z, alpha=0.2, score="lwr", side="each")
    interval = bound(np.array([-1.0, 1.0]))

    assert np.isfinite(interval.lower)
    assert interval.upper == inf
    assert "10 of 40 calibration scores are infinite" in str(bound)
    assert "the upper end is that of the task range" in str(bound)
    assert "whole task range" not in str(bound)


def test_too_few_cases_say_how_many_two_quantiles_need():
    bound = tq.calibrate(np.zeros((38, 1)), np.arange(38.0), alpha=0.05, score="ar", side="each")

    assert not bound.is_finite
    assert "with a quantile for each end needs at least 39 calibration cases, got 38" in str(bound)


def test_the_file_holds_a_threshold_for_each_end_and_refuses_others(tmp_path):
    bound = tq.calibrate(X, Z, alpha=0.2, side="each")
    record = bound.to_dict()

    assert record["threshold"]["kind"] == "each"
    assert set(record["threshold"]) == {"kind", "lower", "upper"}
    assert "below, " in str(bound)
    with pytest.raises(tq.InputError, match="do not fit"):
        type(bound).from_dict(record | {"threshold": record["threshold"]["lower"]})
    nested = EndQuantiles(bound.threshold, SingleQuantile(1.0)).to_dict()
    with pytest.raises(tq.InputError, match="two thresholds for one end"):
        type(bound).from_dict(record | {"threshold": nested})


class Own:
    """A user's own score knows no ends."""

    def score(self, outputs, targets):
        return np.abs(targets - outputs[:, 0])

    def interval(self, outputs, quantile):
        return tq.Interval(outputs[:, 0] - quantile, outputs[:, 0] + quantile)


def test_what_cannot_have_two_quantiles_is_refused():
    for score in (Own(), LWR(side="upper")):
        with pytest.raises(tq.InputError, match="needs a two-sided score"):
            tq.calibrate(X, Z, alpha=0.2, score=score, side="each")
    with pytest.raises(tq.InputError, match="'two', 'upper', 'lower' or 'each', got 'both'"):
        tq.calibrate(X, Z, alpha=0.2, side="both")
    with pytest.raises(tq.InputError, match="got 'each'"):
        tq.calibrate_online(X, Z, alpha=0.2, side="each")
    with pytest.raises(tq.InputError, match="got 'each'"):
        tq.calibrate_joint(X[..., None], Z[:, None], alpha=0.2, side="each")
    with pytest.raises(tq.InputError, match="one quantile"):
        tq.calibrate(X, Z, alpha=0.2, side="each").coverage_law(10)
