"""What the proofs rest on, as properties of examined cases and group losses."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskuq.conformal._units import RandomCaseUnit, _GroupFractionUnit
from taskuq.conformal.scores._mlwr import MLWR, SpreadPrior
from taskuq.conformal.scores._paper import AR, CQR, LWR
from taskuq.policy import _stopping as stopping
from taskuq.policy._fixed_width import WindowRule, _spread_score
from taskuq.policy._goal import Goal
from taskuq.policy._rules import IntervalRule, joint_report, stopping_statistics
from taskuq.policy._stopping import _group_losses, search_threshold, stopping_score

WIDTH = Goal(max_width=0.3)
RANGE = (0.0, 1.0)
PRIOR = SpreadPrior((-6.0, 0.0, 0.0), degrees=3.0, covariate_range=(0.0, 0.0), typical=0.05)
RULES = {
    "ar": IntervalRule(AR(), WIDTH, RANGE),
    "lwr": IntervalRule(LWR(), WIDTH, RANGE),
    "cqr": IntervalRule(CQR(alpha=0.2), WIDTH, RANGE),
    "mlwr": IntervalRule(MLWR(prior=PRIOR), WIDTH, None),
    "lower bound": IntervalRule(LWR("lower"), Goal(max_width=0.2, side="lower"), RANGE),
    "level": IntervalRule(AR("upper"), Goal(level=0.7, side="upper"), None),
    "window": WindowRule(_spread_score("two"), WIDTH, RANGE, 1.0),
    "two-phase": WindowRule(_spread_score("two"), WIDTH, RANGE, 1.5, (2.0, 0.7)),
}
SEEDS = st.integers(0, 10**6)


def population(seed, rounds=3, cases=12, tasks=1):
    """Outputs on a coarse grid, so that there are ties and identical samples."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, 9, (1, cases, tasks)) / 8
    outputs = targets[:, :, None] + rng.integers(-2, 3, (rounds, cases, 3, tasks)) / 16
    return np.clip(outputs, 0, 1), np.broadcast_to(targets, (rounds, cases, tasks))


def rounds_of(rule, seed):
    """What a rule sees of a population in each round, with its scores and targets."""
    outputs, targets = population(seed)
    seen = stopping_statistics([[rule]] * 3, outputs, targets)
    for k, (examined,) in enumerate(seen.rounds):
        yield examined, seen.score[k], targets[k, :, 0]


def thresholds_of(seen):
    """All numbers at which anything changes, their neighbours, and infinity."""
    every = np.concatenate([seen.lowest.ravel(), seen.largest.ravel(), seen.score.ravel()])
    finite = np.unique(every[np.abs(every) < 1e6])
    return [-inf, *np.nextafter(finite, -inf), *finite, *np.nextafter(finite, inf), inf]


def run(seen, targets, threshold):
    """Which cases stop with a report that misses, and the widths of all reports at the stop."""
    scanning = np.ones(seen.score.shape[1], dtype=bool)
    missed = np.zeros_like(scanning)
    reports = []
    for k in range(len(seen.score)):
        stops = scanning & (seen.lowest[k] <= threshold) & (threshold < seen.largest[k])
        report = joint_report(seen.rounds[k], threshold)
        inside = report.contains(targets[k] if targets.shape[2] > 1 else targets[k, :, 0])
        missed |= stops & ~(inside.all(axis=-1) if inside.ndim == 2 else inside)
        reports.append(report[stops])
        scanning &= ~stops
    return missed, reports


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@settings(max_examples=15)
@given(seed=SEEDS)
def test_a_policy_misses_only_below_the_stopping_score(rule, tasks, seed):
    outputs, targets = population(seed, tasks=tasks)
    seen = stopping_statistics([[rule] * tasks] * 3, outputs, targets)
    Lambda = stopping_score(seen.lowest, seen.largest, seen.score)

    for threshold in thresholds_of(seen):
        missed, _ = run(seen, targets, threshold)
        assert (Lambda[missed] > threshold).all()


@pytest.mark.parametrize("name", ["ar", "lwr", "cqr", "mlwr", "window", "two-phase"])
@settings(max_examples=15)
@given(seed=SEEDS)
def test_reports_at_the_stop_are_as_narrow_as_asked_and_never_empty(name, seed):
    seen = stopping_statistics([[RULES[name]]] * 3, *population(seed))

    for threshold in thresholds_of(seen):
        for report in run(seen, population(seed)[1], threshold)[1]:
            assert (report.width <= 0.3 + 1e-12).all()
            assert not report.is_empty.any()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@settings(max_examples=15)
@given(seed=SEEDS)
def test_a_report_contains_the_target_from_its_score_on(rule, seed):
    for examined, score, targets in rounds_of(rule, seed):
        known = np.isfinite(score)
        at_score = examined.report(np.where(known, score, 0.0))
        assert at_score.contains(targets)[known].all()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@settings(max_examples=15)
@given(seed=SEEDS)
def test_a_report_does_not_contain_the_target_below_its_score(rule, seed):
    for examined, score, targets in rounds_of(rule, seed):
        # Identical samples make a point that does not move; it has no below.
        below = score - 1e-6
        sharp = np.isfinite(below) & (examined.family.scale > 0) & (below >= examined.lowest)
        report = examined.report(np.where(sharp, below, 0.0))
        at_end = (targets == examined.window.lower) | (targets == examined.window.upper)
        assert not report.contains(targets)[sharp & ~at_end].any()


@settings(max_examples=15)
@given(seed=SEEDS)
def test_several_tasks_stop_when_each_of_them_would(seed):
    rules = [RULES["lwr"], RULES["cqr"]]
    seen = stopping_statistics([rules] * 3, *population(seed, tasks=2))
    for threshold in thresholds_of(seen):
        for k in range(3):
            each = [e.stops(threshold) for e in seen.rounds[k]]
            together = (seen.lowest[k] <= threshold) & (threshold < seen.largest[k])
            assert (together == np.all(each, axis=0)).all()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@given(seed=SEEDS)
def test_the_stopping_score_is_at_most_the_simultaneous_one(rule, seed):
    seen = stopping_statistics([[rule]] * 3, *population(seed))
    Lambda = stopping_score(seen.lowest, seen.largest, seen.score)

    assert (Lambda <= seen.score.max(axis=0)).all()


@pytest.mark.parametrize("rule", [RULES[n] for n in ("ar", "lwr", "cqr", "mlwr", "level")])
@settings(max_examples=15)
@given(seed=SEEDS)
def test_at_the_simultaneous_score_all_rounds_contain_the_target(rule, seed):
    outputs, targets = population(seed)
    seen = stopping_statistics([[rule]] * 3, outputs, targets)
    worst = seen.score.max(axis=0)
    known = np.isfinite(worst)
    for k in range(3):
        report = joint_report(seen.rounds[k], np.where(known, worst, 0.0))
        assert report.contains(targets[k, :, 0])[known].all()


LEVEL = st.sampled_from([-inf, -1.0, 0.0, 1.0, 2.0, 3.0, inf])


@st.composite
def groups(draw):
    """Allowances (round, group) and scores (round, case) of three groups of one to three cases."""
    rounds = draw(st.integers(1, 3))
    index = np.repeat(np.arange(3), draw(st.lists(st.integers(1, 3), min_size=3, max_size=3)))
    allowance = [[draw(LEVEL) for _ in range(3)] for _ in range(rounds)]
    score = [[draw(LEVEL) for _ in index] for _ in range(rounds)]
    return np.array(allowance), np.array(score), index


def plain_loss(allowance, score, index, v, threshold):
    """The share of a group missed where it stops."""
    for k in range(len(allowance)):
        if threshold < allowance[k, v]:
            return float((score[k, index == v] > threshold).mean())
    return 0.0


GRID = np.array([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0])


@given(case=groups())
def test_monotone_losses_fall_and_are_the_smallest_that_dominate(case):
    losses = _group_losses(*case, GRID, RandomCaseUnit())
    plain = np.array([[plain_loss(*case, v, t) for t in GRID] for v in range(3)])
    envelope = np.maximum.accumulate(plain[:, ::-1], axis=1)[:, ::-1]

    assert (np.diff(losses, axis=1) <= 0).all()
    assert (losses >= plain).all()
    assert (losses == envelope).all()


@given(case=groups(), block=st.integers(1, 40))
def test_losses_do_not_depend_on_how_many_are_computed_at_a_time(case, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stopping, "BLOCK", block)
        some = _group_losses(*case, GRID, _GroupFractionUnit(0.6))

    assert (some == _group_losses(*case, GRID, _GroupFractionUnit(0.6))).all()


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 129, 4097])
def test_a_search_finds_the_first_threshold_that_is_allowed(count):
    thresholds, looked = np.arange(float(count)), []
    for first in {*range(0, count, 61), 0, 1, count - 1, count}:

        def losses(some, first=first):
            looked.append(len(some))
            return np.ones((3, 1)) * (some < first)

        found = search_threshold(thresholds, losses, 0.0)
        assert found == (first if first < count else inf)
        assert search_threshold(thresholds, losses, -1.0) == inf
    assert max(looked) <= 64


def test_the_check_of_monotone_losses_can_fail():
    allowance, score, index = np.array([[1.0], [3.0]]), np.array([[-inf], [inf]]), np.array([0])
    plain = [plain_loss(allowance, score, index, 0, t) for t in GRID]

    assert (np.diff(plain) > 0).any()
    assert (_group_losses(allowance, score, index, GRID, RandomCaseUnit())[0] >= plain).all()
