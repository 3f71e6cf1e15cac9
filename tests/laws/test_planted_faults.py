"""The harness can fail: each family of guarantees has a fault that it must find."""

from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import floor

import numpy as np
import pytest

import taskuq as tq
from laws.book import EACH_ROUND, EACH_ROUND_OF_CLASS, LAWS, groups, scans
from laws.enumeration import Calibrated, Law, a_case_of_a_patient, a_random_case, given_its_stratum
from laws.populations import Population, Unit
from laws.trials import bound, given, informed, planned, scan, stopped
from taskuq.conformal import _bound as threshold
from taskuq.conformal import _guarantee as guarantee
from taskuq.conformal import _joint as joint
from taskuq.conformal import _units as units
from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal._quantiles import order_statistic
from taskuq.conformal.scores import _mlwr as mlwr
from taskuq.policy import _policy as deciding
from taskuq.policy import _stopping as stopping
from taskuq.policy._rules import RoundStatistics

BOOK = {law.name: law for law in LAWS}
RIGHT_RANK = units.guaranteed_rank


def is_broken(law):
    """Return True at the first population that breaks a law."""
    return any(law.judged(seed).broken for seed in range(law.populations))


def rank_one_too_low(monkeypatch):
    monkeypatch.setattr(units, "guaranteed_rank", lambda *asked: max(1, RIGHT_RANK(*asked) - 1))


def new_group_forgotten(monkeypatch):
    """Allow the calibration groups alpha of their own number, without the one of the new group."""
    allowed = lambda count, alpha, delta: units.exact_alpha(alpha) * count  # noqa: E731 short
    monkeypatch.setattr(units, "_allowed_total_loss", allowed)
    unlike = lambda scores, least, index, alpha: units._hierarchical_quantile(  # noqa: E731 short
        scores, index, alpha
    )
    monkeypatch.setattr(stopping, "majority_quantile", unlike)


def outliers_overlooked(monkeypatch):
    """Assume that a new group loses at most half of its cases, whatever the others lose."""
    none = lambda values, *rest: mlwr.unit_quantile(values, *rest)._replace(  # noqa: E731 short
        low=np.full(rest[0].max() + 1, np.inf)
    )
    monkeypatch.setattr(stopping, "unit_quantile", none)


def new_weight_forgotten(monkeypatch):
    right = threshold.WeightedQuantile.at
    monkeypatch.setattr(
        threshold.WeightedQuantile, "at",
        lambda self, cases, strata, weights: right(self, cases, strata, 1e-9 * np.asarray(weights)),
    )  # fmt: skip


def aside_by_share_of_cases(monkeypatch):
    """Set aside the fewest units that hold three tenths of the cases."""

    def largest_first(index, take, *_):
        sizes = np.bincount(index)
        order = np.argsort(-sizes, kind="stable")
        count = 1 + int(np.searchsorted(np.cumsum(sizes[order]), 0.3 * len(index)))
        return np.isin(index, order[:count])

    monkeypatch.setattr(joint, "choose_units", largest_first)


def first_round_only(monkeypatch):
    monkeypatch.setattr(
        stopping,
        "stopping_score",
        lambda lowest, largest, score, *earlier: np.minimum(largest[0], score[0]),
    )


def range_of_the_shift_left_out(monkeypatch):
    right = mlwr._SelfTunedMLWR.fit

    def fit(self, kept, index):
        fitted, corners = right(self, kept, index)
        same = tuple(replace(corner, shift=fitted.shift) for corner in corners)
        return mlwr.SelfTuned(fitted, same)

    monkeypatch.setattr(mlwr._SelfTunedMLWR, "fit", fit)


def scale_without_its_range(monkeypatch):
    """Divide by the quantile of all calibration units, the unit itself among them."""

    def quantile(values, index, level, *order):
        found = right(values, index, level, *order)
        same = np.full_like(found.low, found.value)
        return found._replace(low=same, high=same)

    right = joint.unit_quantile
    monkeypatch.setattr(joint, "unit_quantile", quantile)


def classes_pooled(monkeypatch):
    """Take the quantile of all classes together for each of them."""
    right = stopping.Calibrator.quantiles
    pooled = lambda self, scores: right(replace(self, inside=None), scores)  # noqa: E731 short
    monkeypatch.setattr(stopping.Calibrator, "quantiles", pooled)


def groups_without_the_class_counted(monkeypatch):
    """Let groups that lack a class allow for its losses too."""
    right = stopping.search_threshold
    monkeypatch.setattr(
        stopping, "search_threshold", lambda *asked: right(*asked[:2], asked[2] + 0.5)
    )


def of(owner, name, wrong):
    """Return a fault that replaces one attribute."""

    def fault(monkeypatch):
        monkeypatch.setattr(owner, name, wrong)

    return fault


def no_room_for_the_new_group(monkeypatch):
    right = guarantee._quantile_given_stratum

    def lax(scores, index, sizes, *levels):
        # A group more, full of cases of the stratum that are never missed.
        return right(np.r_[scores, -1.0], np.r_[index, len(sizes)], np.r_[sizes, 1], *levels)

    monkeypatch.setattr(guarantee, "_quantile_given_stratum", lax)


groups_count_alike = of(
    guarantee, "_quantile_given_stratum",
    lambda scores, index, sizes, *levels: units._hierarchical_quantile(scores, index, *levels),
)  # fmt: skip
cases_count_alike = of(
    units.RandomCaseUnit, "quantile",
    lambda self, scores, group, *levels: units._hierarchical_quantile(
        scores, np.arange(len(scores)), *levels
    ),
)  # fmt: skip


def with_the_present_round(lowest, largest, score, surely=None):
    running = np.maximum.accumulate(largest)
    counts = (largest > running) & (score > running)
    return np.where(counts, np.minimum(largest, score), -np.inf).max(axis=0)


def from_the_wrong_side(self, scores, group):
    return order_statistic(scores, floor(Fraction(str(self.alpha)) * (len(scores) + 1)))


def without_the_plus_one(self, scores, group):
    return order_statistic(scores, floor((1 - Fraction(str(self.alpha))) * len(scores)))


ADAPTIVE = "the report at the stop, adaptive lwr, by case"
TOGETHER = "the report at the stop, adaptive lwr, by whole-group"
full_alpha = of(Guarantee, "levels", property(lambda g: (Fraction(str(g.alpha)), g.delta)))
same_share = of(Guarantee, "_unit_per_quantile", property(lambda g: g._unit))
stops_at_equality = of(
    RoundStatistics, "stops", lambda self, t: (self.lowest <= t) & (t <= self.largest)
)
surest_case_decides = of(deciding, "group_allowance", lambda x, *_: np.array([x.max()]))
first_case_decides = of(deciding, "group_allowance", lambda x, *_: x[:1])

PLANTED = [
    (full_alpha, "a new case, lwr, each"),
    (full_alpha, "a random case of a new group, ar, each end"),
    (full_alpha, "all of the cases of a new group, each end"),
    (same_share, "0.6 of the cases of a new group, each end"),
    (groups_count_alike, "a random case of a new group, given its stratum, ar"),
    (no_room_for_the_new_group, "a random case of a new group, given its stratum, ar"),
    (cases_count_alike, "a case of a new group that has some of the stratum, ar"),
    (stops_at_equality, ADAPTIVE),
    (of(stopping, "stopping_score", with_the_present_round), ADAPTIVE),
    (of(Guarantee, "quantile", from_the_wrong_side), ADAPTIVE),
    (of(Guarantee, "quantile", without_the_plus_one), ADAPTIVE),
    (surest_case_decides, TOGETHER),
    (first_case_decides, TOGETHER),
    (range_of_the_shift_left_out, "a random case of a new group, shifted, two"),
    (range_of_the_shift_left_out, "the intervals of all rounds, shifted"),
    (
        range_of_the_shift_left_out,
        "the report at the stop, shifted, window, in each class, by group",
    ),
    (classes_pooled, "the report at the stop, shifted, window, in each class, by case"),
    (scale_without_its_range, "all tasks of a new case, scale, lwr"),
    (classes_pooled, "the report at the stop, fixed-width -, in each class"),
    (classes_pooled, "the report at the stop, fixed-width -, in each stratum"),
    (classes_pooled, "the intervals of all rounds in each class, by case"),
    (
        groups_without_the_class_counted,
        "the report at the stop, fixed-width, a case of a group that has some of the class, "
        "by whole-group",
    ),
    (rank_one_too_low, "a new case, ar"),
    (rank_one_too_low, "a new case in each of 3 strata"),
    (rank_one_too_low, "all of the cases of a new group"),
    (rank_one_too_low, "all tasks of a new case, scale, lwr"),
    (rank_one_too_low, "the report at the stop, fixed-width mlwr, by case"),
    (rank_one_too_low, "the intervals of all rounds, lwr, by case"),
    (new_group_forgotten, "a random case of a new group, ar"),
    (new_group_forgotten, "the report at the stop, adaptive lwr, by group"),
    (new_weight_forgotten, "a new case under a shift"),
    (aside_by_share_of_cases, "all tasks of a random case of a new group, minimax, in every order"),
    (new_group_forgotten, "the report at the stop, two phases, by group"),
    (new_group_forgotten, "a random case of a new group, learned"),
    (outliers_overlooked, "the report at the stop, adaptive lwr, by group"),
    (first_round_only, "the report at the stop, fixed-width mlwr, by case"),
]


@pytest.mark.parametrize(("fault", "name"), PLANTED)
def test_fault_breaks_a_guarantee(fault, name, monkeypatch):
    fault(monkeypatch)
    assert is_broken(BOOK[name])


def test_equal_group_weights_break_coverage_given_the_stratum():
    law = BOOK["a random case of a new group, given its stratum, ar"]
    alike = partial(bound, score="ar", by_group=True, strata=True, condition_on="group")
    assert law.losses is given_its_stratum
    assert is_broken(replace(law, trial=alike))


def test_equal_case_weights_break_the_guarantee_for_groups():
    law = BOOK["a random case of a new group, ar"]
    assert law.losses is a_random_case
    assert is_broken(replace(law, trial=partial(bound, score="ar")))


def test_one_threshold_for_all_classes_breaks_the_guarantee_of_each():
    law = BOOK["the report at the stop, fixed-width -, in each class"]
    assert law.losses is given_its_stratum
    assert is_broken(replace(law, trial=partial(stopped, by="case")))


def test_classes_weighted_by_group_break_the_guarantee_given_the_class():
    law = BOOK["the report at the stop, fixed-width, a case, given its class, by group"]
    by_group = partial(law.trial, condition_on="group")
    assert is_broken(replace(law, trial=by_group, populations=20))


def hard_small_patients(seed):
    """Sites with a patient of one case, who is missed unless q is large, and one of five cases."""

    def site(error):
        targets = np.array([[error], [0.0], [0.0], [0.0], [0.0], [0.0]])
        return Unit(np.zeros((1, 6, 2, 1)), targets, np.array([0, 1, 1, 1, 1, 1]), 1.0)

    return Population(tuple(map(site, (1.0, 2.0, 3.0, 4.0, 5.0))), None)


@pytest.mark.parametrize(
    "trial",
    [
        partial(bound, score="ar", by_site=True),
        partial(stopped, by="site", policy="adaptive", score="ar", max_width=100.0),
    ],
    ids=["bound", "policy"],
)
def test_equal_weights_of_cases_break_the_guarantee_for_sites(monkeypatch, trial):
    def flat(ids):
        index, sizes = units.group_index(ids["site"])
        return sizes[index]

    law = Law("hard", 1, hard_small_patients, trial, a_case_of_a_patient, alphas=(0.3,))
    assert not is_broken(law)
    monkeypatch.setattr(units, "nested_denominators", flat)
    assert is_broken(law)


@pytest.mark.parametrize("law", [EACH_ROUND, EACH_ROUND_OF_CLASS], ids=["all", "class"])
def test_rounds_that_are_not_tested_break_the_guarantee(law, monkeypatch):
    passed = lambda early, *_: np.ones(early.shape[1], dtype=bool)  # noqa: E731 short
    # Thresholds may be as bold as they like: the test alone keeps the guarantee.
    monkeypatch.setattr(stopping, "ROUND_PARTS", (10.0,))
    assert not is_broken(law)
    monkeypatch.setattr(stopping, "_certified_cases", passed)
    assert is_broken(law)


def test_single_decisions_break_the_guarantee_for_whole_groups():
    def one_by_one(population, alpha):
        def trial(cases):
            options = {"policy": "adaptive", "score": "lwr"}
            policy = planned(population, cases, alpha, "whole-group", **options)
            one = replace(policy, whole_group=False, min_group_size=None)
            return Calibrated(partial(scan, one), 0)

        return trial

    law = BOOK["the report at the stop, adaptive lwr, by whole-group"]
    assert is_broken(replace(law, trial=one_by_one))


def test_narrowest_of_several_bounds_breaks_the_guarantee():
    def narrowest(population, alpha):
        def trial(cases):
            x, z = cases.outputs[-1, ..., 0], cases.targets[:, 0]
            bounds = [
                tq.calibrate(x, z, alpha=alpha, score=score, group=cases.group,
                             task_range=population.task_range)
                for score in ("ar", "lwr", "cqr")
            ]  # fmt: skip
            chosen = min(bounds, key=lambda one: one(x).width.mean())

            def examine(new):
                interval = chosen(new.outputs[-1, ..., 0])
                return ~interval.contains(new.targets[:, 0]), informed(interval, population)

            return Calibrated(examine, 0)

        return trial

    assert is_broken(Law("the narrowest", 20, groups, narrowest))


def test_tuning_units_chosen_by_size_are_found(monkeypatch):
    aside_by_share_of_cases(monkeypatch)
    with pytest.raises(AssertionError, match="set aside by their contents"):
        is_broken(BOOK["all tasks of a random case of a new group, minimax, ar"])


PLANS = [
    {"round_tolerance": 0.25}, {"round_tolerance": 2.0}, {"round_tolerance": -1.0},
    *({"policy": "adaptive", "score": score} for score in ("ar", "lwr", "cqr", "mlwr")),
]  # fmt: skip


def test_fastest_of_several_policies_breaks_the_guarantee():
    def fastest(population, alpha):
        def trial(cases):
            plans = [planned(population, cases, alpha, "case", **options) for options in PLANS]
            chosen = max(plans, key=lambda policy: policy.certificate["mean_acceleration"])
            return Calibrated(partial(scan, chosen), 0)

        return trial

    assert is_broken(Law("the fastest", 5, scans, fastest))


def certain_and_wrong(seed):
    """Wherever a scan stops it is wrong, and one kind of three looks certain."""

    def kind(spread, target):
        outputs = spread * np.array([-1.0, 1.0]).reshape(1, 1, 2, 1)
        return Unit(outputs, np.full((1, 1), target), np.zeros(1, dtype=int), 1.0)

    return Population((kind(0.1, 5.0), kind(1.0, 5.0), kind(1.0, -5.0)), None)


def test_coverage_of_all_scans_is_not_coverage_of_early_stops():
    law = replace(
        BOOK["an early stop by case, given the calibration set"], populations=1, size=5,
        draw=certain_and_wrong, levels=((0.5, 0.3),), trial=given(partial(stopped, by="case")),
        by_place=False, aside=(),
    )  # fmt: skip
    assert is_broken(law)
    assert not is_broken(replace(law, losses=a_random_case))


def test_quantile_without_delta_breaks_the_guarantee():
    law = BOOK["a new case, given the calibration set"]
    forgetful = given(lambda population, alpha, delta: bound(population, alpha, score="ar"))
    assert is_broken(replace(law, trial=forgetful))


def three_kinds_in_each_of_three_strata(seed):
    def kind(score, stratum):
        return Unit(np.zeros((1, 1, 1, 1)), np.full((1, 1), score), np.array([stratum]), 1.0)

    return Population(tuple(kind(q, s) for s in range(3) for q in (1.0, 2.0, 3.0)), None)


@pytest.mark.parametrize(("delta_scope", "is_enough"), [("each", False), ("all", True)])
def test_delta_for_each_stratum_is_not_delta_for_all(delta_scope, is_enough):
    # One case of a stratum is enough at alpha .6, and a third of them are unlucky; of three
    # strata, one or another is with probability .44.
    law = replace(
        BOOK["the strata of a new case, all given the calibration set"], populations=1,
        draw=three_kinds_in_each_of_three_strata, size=3, levels=((0.6, 0.41),),
        trial=given(partial(bound, score="ar", strata=True, delta_scope=delta_scope)),
    )  # fmt: skip
    assert is_broken(law) != is_enough
