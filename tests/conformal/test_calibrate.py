"""Promises within classes, within strata, under a known shift, and given the calibration set."""

from collections import Counter
from fractions import Fraction
from itertools import combinations_with_replacement, pairwise
from math import factorial, inf, prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import taskuq as tq
from raising import refused
from taskuq.conformal._bound import EndQuantiles, SingleQuantile, WeightedQuantile
from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal._quantiles import _pac_rank, coverage_rank
from taskuq.conformal.scores._paper import LWR

ALPHAS = (0.1, 0.2, 0.25, 0.34, 0.5, 0.8)
# (score, class) of each case; with output 0 the AR score is the target itself.
POPULATIONS = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from("abc")), min_size=4, max_size=14
)


def calibrated_without(population, new, alpha, **condition):
    scores = np.array([s for i, (s, _) in enumerate(population) if i != new], dtype=float)
    kinds = np.array([c for i, (_, c) in enumerate(population) if i != new])
    given_by = dict.fromkeys(condition, kinds)
    return tq.calibrate(np.zeros((len(scores), 1)), scores, alpha=alpha, score="ar", **given_by)


@given(population=POPULATIONS, alpha=st.sampled_from(ALPHAS))
def test_each_class_is_covered_whichever_it_is(population, alpha):
    for kind in {c for _, c in population}:
        members = [i for i, (_, c) in enumerate(population) if c == kind]
        assume(len(members) > 1)
        covered = sum(
            bool(
                calibrated_without(population, i, alpha, label=True)(np.zeros(1)).contains(
                    population[i][0]
                )
            )
            for i in members
        )

        assert covered >= (1 - Fraction(str(alpha))) * len(members)


@given(population=POPULATIONS, alpha=st.sampled_from(ALPHAS))
def test_each_stratum_is_covered_rank_times_of_its_own(population, alpha):
    for kind in {c for _, c in population}:
        members = [i for i, (_, c) in enumerate(population) if c == kind]
        covered = 0
        for i in members:
            bound = calibrated_without(population, i, alpha, strata=True)
            interval = bound(np.zeros((1, 1)), strata=[kind])
            covered += bool(interval.contains(population[i][0])[0])

        assert covered >= (1 - Fraction(str(alpha))) * len(members)


def test_a_stratum_that_was_never_calibrated_gets_everything():
    bound = tq.calibrate(
        np.zeros((40, 1)), np.arange(40.0), alpha=0.1, score="ar", strata=["a", "b"] * 20
    )

    assert bound(np.zeros((2, 1)), strata=["a", "new"]).is_unbounded.tolist() == [False, True]


@given(
    population=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5)), min_size=3, max_size=10),
    alpha=st.sampled_from(ALPHAS),
)
def test_weighted_exchangeable_cases_are_missed_at_most_alpha(population, alpha):
    # The new case is case i with probability proportional to its weight.
    missed = 0
    for i, (score, weight) in enumerate(population):
        rest = [case for j, case in enumerate(population) if j != i]
        scores, weights = (np.array(part, dtype=float) for part in zip(*rest, strict=True))
        bound = tq.calibrate(
            np.zeros((len(rest), 1)), scores, alpha=alpha, score="ar", weights=weights
        )
        missed += weight * (not bound(np.zeros(1), weights=[weight]).contains(score))

    assert Fraction(missed, sum(w for _, w in population)) <= Fraction(str(alpha))


@pytest.mark.parametrize("weight", [1.0, 0.1, 1 / 3, 7e5])
def test_equal_weights_give_the_unweighted_rank(weight):
    for n in (9, 19, 24, 99, 149, 999):
        for alpha in (0.05, 0.059, 0.1, 0.18, 0.44, 0.45, 0.7):
            rank = coverage_rank(n, alpha)
            threshold = WeightedQuantile(np.arange(1.0, n + 1), np.full(n, weight), alpha)

            assert threshold.at(1, None, [weight])[0] == (rank if rank <= n else inf)


def test_a_heavier_new_case_never_gets_a_shorter_interval():
    rng = np.random.default_rng(5)
    threshold = WeightedQuantile(np.sort(rng.random(60)), rng.random(60) + 0.1, 0.1)
    quantiles = threshold.at(50, None, np.linspace(0.01, 20, 50))

    assert all(a <= b for a, b in pairwise(quantiles))
    assert quantiles[-1] == inf


def test_the_effective_size_is_the_number_of_equally_weighted_cases():
    assert WeightedQuantile(np.arange(4.0), np.full(4, 2.5), 0.1).effective_size == 4
    assert (
        WeightedQuantile(np.arange(4.0), np.array([1.0, 1e-9, 1e-9, 1e-9]), 0.1).effective_size
        < 1.01
    )


def test_a_weighted_bound_survives_a_file(tmp_path):
    rng = np.random.default_rng(2)
    x, z = rng.random((60, 3)), rng.random(60)
    bound = tq.calibrate(x, z, alpha=0.1, score="lwr", weights=rng.random(60) + 0.5)
    again = tq.load_bound(bound.save(tmp_path / "bound.json"))

    assert again == bound
    assert (again(x, weights=np.ones(60)).upper == bound(x, weights=np.ones(60)).upper).all()


@pytest.mark.parametrize("n", [30, 60, 200])
def test_a_pac_bound_uses_the_pac_rank(n):
    bound = tq.calibrate(np.zeros((n, 1)), np.arange(1.0, n + 1), alpha=0.1, delta=0.1, score="ar")

    assert bound.quantile == _pac_rank(n, 0.1, 0.1)
    assert bound.quantile > coverage_rank(n, 0.1)
    assert bound.coverage_law(10).rank == _pac_rank(n, 0.1, 0.1)


def test_a_pac_bound_of_too_few_cases_says_how_many_are_needed():
    bound = tq.calibrate(np.zeros((44, 1)), np.arange(44.0), alpha=0.05, delta=0.1, score="ar")

    assert not bound.is_finite
    assert "needs at least 45 calibration cases, got 44" in str(bound)


ALPHAS_EACH_END = (0.2, 0.25, 0.34, 0.5, 0.8, 0.9)
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
@given(population=st.lists(CASES, min_size=4, max_size=16), alpha=st.sampled_from(ALPHAS_EACH_END))
def test_a_new_case_is_missed_at_most_alpha(population, alpha):
    cases_are_missed_at_most_alpha(population, alpha)


@pytest.mark.parametrize("share", ["random", "all", 0.9, 0.5, 0.34])
@MANY
@given(population=GROUPS, alpha=st.sampled_from(ALPHAS_EACH_END))
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
    alpha=st.sampled_from(ALPHAS_EACH_END),
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


@pytest.mark.parametrize("condition_on", ["case", "group"])
@given(
    population=st.lists(
        st.lists(st.tuples(CASES, st.sampled_from("ab")), min_size=1, max_size=4),
        min_size=4,
        max_size=8,
    ),
    alpha=st.sampled_from(ALPHAS_EACH_END[2:]),
)
def test_each_stratum_of_new_groups_is_missed_at_most_alpha(condition_on, population, alpha):
    lost, drawn = dict.fromkeys("ab", Fraction(0)), dict.fromkeys("ab", Fraction(0))
    for new, group in enumerate(population):
        others = population[:new] + population[new + 1 :]
        rest, kinds = zip(*(case for other in others for case in other), strict=True)
        options = {"strata": np.array(kinds), "condition_on": condition_on}
        options["group"] = np.repeat(np.arange(len(others)), [len(other) for other in others])
        for kind in "ab":
            inside = [case for case, k in group if k == kind]
            if inside:
                options["told"] = {"strata": [kind] * len(inside)}
                out_of = len(group) if condition_on == "case" else len(inside)
                lost[kind] += Fraction(int(missed(inside, rest, alpha, **options).sum()), out_of)
                drawn[kind] += Fraction(len(inside), out_of)

    assert all(lost[kind] <= Fraction(str(alpha)) * drawn[kind] for kind in "ab")


@given(
    population=st.lists(st.tuples(CASES, st.integers(1, 5)), min_size=4, max_size=12),
    alpha=st.sampled_from(ALPHAS_EACH_END),
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
    with refused("file.damaged"):
        type(bound).from_dict(record | {"threshold": record["threshold"]["lower"]})
    nested = EndQuantiles(bound.threshold, SingleQuantile(1.0)).to_dict()
    with refused("file.damaged"):
        type(bound).from_dict(record | {"threshold": nested})


class Own:
    """A user's own score knows no ends."""

    def score(self, outputs, targets):
        return np.abs(targets - outputs[:, 0])

    def interval(self, outputs, quantile):
        return tq.Interval(outputs[:, 0] - quantile, outputs[:, 0] + quantile)


def test_what_cannot_have_two_quantiles_is_refused():
    for score in (Own(), LWR(side="upper")):
        with refused("option.conflict"):
            tq.calibrate(X, Z, alpha=0.2, score=score, side="each")
    with refused("choice.unknown"):
        tq.calibrate(X, Z, alpha=0.2, side="both")
    with refused("choice.unknown"):
        tq.calibrate_online(X, Z, alpha=0.2, side="each")
    with refused("choice.unknown"):
        tq.calibrate_joint(X[..., None], Z[:, None], alpha=0.2, side="each")
    with refused("option.conflict"):
        tq.calibrate(X, Z, alpha=0.2, side="each").coverage_law(10)
