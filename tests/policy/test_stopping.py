"""Stopping scores, early stops and certificates against brute force."""

import math
from fractions import Fraction
from itertools import combinations_with_replacement, pairwise, product
from math import factorial, inf, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import taskuq as tq
from raising import refused
from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal._units import CaseUnit, RandomCaseUnit
from taskuq.conformal.scores._mlwr import MLWR, SpreadPrior
from taskuq.conformal.scores._paper import AR, CQR, LWR
from taskuq.policy import _stopping as stopping
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import PolicySpec, _spread_score
from taskuq.policy._learned import evaluate_rules, evaluate_tuning_cases
from taskuq.policy._rules import (
    IntervalRule,
    StoppingStatistics,
    WindowRule,
    joint_report,
    stopping_statistics,
)
from taskuq.policy._stopping import (
    Calibrator,
    _certified_acceleration,
    _early_stops,
    _group_losses,
    last_certified,
    majority_quantile,
    mean_cost,
    search_threshold,
    stopping_score,
    threshold_grid,
)
from taskuq.table._examples import SyntheticTable, synthetic_outputs
from taskuq.table._table import TaskOutputs, replace_arrays

# Few whole numbers and infinities bring many ties.
LEVEL = st.sampled_from([-inf, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, inf])
OPEN = st.just(-inf)


def rounds_of(lower_limit):
    return st.lists(st.tuples(lower_limit, LEVEL, LEVEL), min_size=1, max_size=4)


def candidates(rounds):
    breaks = sorted({v for values in rounds for v in values if np.isfinite(v)} | {0.0})
    between = [(a + b) / 2 for a, b in pairwise(breaks)]
    return sorted([-inf, breaks[0] - 1, *breaks, *between, breaks[-1] + 1, inf])


def misses_at(rounds, threshold):
    for lowest, largest, score in rounds:
        if lowest <= threshold < largest:
            return score > threshold
    return False


def is_supremum_of_misses(rounds, Lambda):
    below = [t for t in candidates(rounds) if t < Lambda]
    above = [t for t in candidates(rounds) if t >= Lambda]
    return not any(misses_at(rounds, t) for t in above) and (
        Lambda == -inf or misses_at(rounds, below[-1])
    )


def score_of(rounds):
    lowest, largest, score = (np.array(values)[:, None] for values in zip(*rounds, strict=True))
    return float(stopping_score(lowest, largest, score)[0])


def spc_score(rounds, *, forget=False):
    """The formula with the running maximum; without it where a fault is planted."""
    found, running = -inf, -inf
    for _, largest, score in rounds:
        if forget or (largest > running and score > running):
            found = max(found, min(largest, score))
        running = max(running, largest)
    return found


def total_loss(scores, index, alpha, rng):
    """Losses of all groups, each in turn the new one, if calibration scores are known to +-1."""
    lost = Fraction(0)
    for new in range(index.max() + 1):
        kept, sizes = index != new, np.bincount(index)
        units, bounds = np.unique(index[kept], return_inverse=True)[1], scores[kept]
        above, below = rng.integers(0, 2, (2, len(bounds)))
        found = majority_quantile(bounds + above, bounds - below, units, alpha)
        lost += Fraction(int((scores[~kept] > found).sum()), int(sizes[new]))
    return lost / (index.max() + 1)


def random_groups(rng):
    """Scores of groups, some of which are outliers."""
    index = np.repeat(np.arange(rng.integers(4, 9)), rng.integers(1, 6))
    hard = rng.random(index.max() + 1) < rng.choice([0, 0.2, 0.5])
    return rng.integers(0, 6, len(index)) + 4.0 * hard[index], index, rng.choice([0.3, 0.4, 0.5])


def broken_guarantees():
    rng = np.random.default_rng(0)
    trials = ((*random_groups(rng), rng) for _ in range(1000))
    return sum(total_loss(*trial) > Fraction(str(trial[2])) for trial in trials)


def test_groups_are_lost_no_more_often_than_guaranteed(monkeypatch):
    assert broken_guarantees() == 0
    # Without a look at the outliers they would be.
    quantile = stopping.unit_quantile
    monkeypatch.setattr(stopping, "unit_quantile", lambda least, *rest: quantile(least + 9, *rest))
    assert broken_guarantees() > 0


@pytest.mark.parametrize("lower_limit", [OPEN, LEVEL], ids=["open", "with lower limits"])
@given(data=st.data())
def test_score_is_the_supremum_of_thresholds_that_miss(lower_limit, data):
    rounds = data.draw(rounds_of(lower_limit))
    assert is_supremum_of_misses(rounds, score_of(rounds))


@given(rounds=rounds_of(OPEN))
def test_score_without_lower_limits_has_its_formula(rounds):
    assert score_of(rounds) == spc_score(rounds)


def test_forgotten_rounds_are_found():
    # Thresholds below 2 stop in the first round, which covers; the second never speaks.
    rounds = [(-inf, 2.0, -inf), (-inf, 1.0, 5.0)]
    assert is_supremum_of_misses(rounds, score_of(rounds))
    assert not is_supremum_of_misses(rounds, spc_score(rounds, forget=True))


def test_stop_at_equality_is_found(monkeypatch):
    def stops_at_equality(rounds, threshold):
        for lowest, largest, score in rounds:
            if lowest <= threshold <= largest:
                return score > threshold
        return False

    rounds = [(-inf, 1.0, 3.0)]
    assert is_supremum_of_misses(rounds, score_of(rounds))
    monkeypatch.setitem(globals(), "misses_at", stops_at_equality)
    assert not is_supremum_of_misses(rounds, score_of(rounds))


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
    "window": WindowRule(_spread_score(WIDTH), WIDTH, RANGE, 1.0),
    "two-phase": WindowRule(_spread_score(WIDTH), WIDTH, RANGE, 1.5, (2.0, 0.7)),
}
SEEDS = st.integers(0, 10**6)


def population(seed, rounds=3, cases=12, tasks=1):
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, 9, (1, cases, tasks)) / 8
    outputs = targets[:, :, None] + rng.integers(-2, 3, (rounds, cases, 3, tasks)) / 16
    return np.clip(outputs, 0, 1), np.broadcast_to(targets, (rounds, cases, tasks))


def rounds_of_inequalities(rule, seed):
    outputs, targets = population(seed)
    seen = stopping_statistics([[rule]] * 3, outputs, targets)
    for k, (examined,) in enumerate(seen.rounds):
        yield examined, seen.score[k], targets[k, :, 0]


def thresholds_of(seen):
    every = np.concatenate([seen.lowest.ravel(), seen.largest.ravel(), seen.score.ravel()])
    finite = np.unique(every[np.abs(every) < 1e6])
    return [-inf, *np.nextafter(finite, -inf), *finite, *np.nextafter(finite, inf), inf]


def run(seen, targets, threshold):
    scanning = np.ones(seen.score.shape[1], dtype=bool)
    missed = np.zeros_like(scanning)
    for k in range(len(seen.score)):
        stops = scanning & (seen.lowest[k] <= threshold) & (threshold < seen.largest[k])
        report = joint_report(seen.rounds[k], threshold)
        inside = report.contains(targets[k] if targets.shape[2] > 1 else targets[k, :, 0])
        missed |= stops & ~(inside.all(axis=-1) if inside.ndim == 2 else inside)
        scanning &= ~stops
    return missed


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@settings(max_examples=8)
@given(seed=SEEDS)
def test_policy_misses_only_below_the_stopping_score(rule, tasks, seed):
    outputs, targets = population(seed, tasks=tasks)
    seen = stopping_statistics([[rule] * tasks] * 3, outputs, targets)
    Lambda = stopping_score(seen.lowest, seen.largest, seen.score)
    for threshold in thresholds_of(seen):
        missed = run(seen, targets, threshold)
        assert (Lambda[missed] > threshold).all()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@settings(max_examples=8)
@given(seed=SEEDS)
def test_report_contains_the_target_from_its_score_on_and_misses_it_below(rule, seed):
    for examined, score, targets in rounds_of_inequalities(rule, seed):
        known = np.isfinite(score)
        at_score = examined.report(np.where(known, score, 0.0))
        assert at_score.contains(targets)[known].all()
        # Identical samples make a point that does not move; it has no below.
        below = score - 1e-6
        sharp = np.isfinite(below) & (examined.family.scale > 0) & (below >= examined.lowest)
        report = examined.report(np.where(sharp, below, 0.0))
        at_end = (targets == examined.window.lower) | (targets == examined.window.upper)
        assert not report.contains(targets)[sharp & ~at_end].any()


@st.composite
def groups(draw):
    """Allowances (round, group) and scores (round, case) of three groups of one to three cases."""
    rounds = draw(st.integers(1, 3))
    index = np.repeat(np.arange(3), draw(st.lists(st.integers(1, 3), min_size=3, max_size=3)))
    allowance = [[draw(LEVEL) for _ in range(3)] for _ in range(rounds)]
    score = [[draw(LEVEL) for _ in index] for _ in range(rounds)]
    return np.array(allowance), np.array(score), index


def plain_loss(allowance, score, index, v, threshold):
    for k in range(len(allowance)):
        if threshold < allowance[k, v]:
            return float((score[k, index == v] > threshold).mean())
    return 0.0


GRID = np.array([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0])


@given(case=groups())
def test_monotone_losses_are_the_smallest_that_dominate(case):
    losses = _group_losses(*case, GRID, RandomCaseUnit())
    plain = np.array([[plain_loss(*case, v, t) for t in GRID] for v in range(3)])
    envelope = np.maximum.accumulate(plain[:, ::-1], axis=1)[:, ::-1]
    assert (np.diff(losses, axis=1) <= 0).all()
    assert (losses >= plain).all()
    assert (losses == envelope).all()


@pytest.mark.parametrize("count", [1, 64, 65, 4097])
def test_search_finds_the_first_allowed_threshold(count):
    thresholds, looked = np.arange(float(count)), []
    for first in {*range(0, count, 61), 0, 1, count - 1, count}:

        def losses(some, first=first):
            looked.append(len(some))
            return np.ones((3, 1)) * (some < first)

        found = search_threshold(thresholds, losses, 0.0)
        assert found == (first if first < count else inf)
        assert search_threshold(thresholds, losses, -1.0) == inf
    assert max(looked) <= 64


def test_plain_losses_are_not_monotone():
    allowance, score, index = np.array([[1.0], [3.0]]), np.array([[-inf], [inf]]), np.array([0])
    plain = [plain_loss(allowance, score, index, 0, t) for t in GRID]
    assert (np.diff(plain) > 0).any()
    assert (_group_losses(allowance, score, index, GRID, RandomCaseUnit())[0] >= plain).all()


RATES = np.array([8.0, 2.0])
# Thresholds below which each of five kinds of case stops, in two rounds.
KINDS = np.array([[3.0, 1.0, 2.0, 0.0, 5.0], [3.0, 4.0, 1.0, 0.5, 0.0]])


def weights_and_draws(n, kinds):
    for draws in combinations_with_replacement(range(kinds), n):
        orders = factorial(n) // prod(factorial(draws.count(d)) for d in set(draws))
        yield orders / kinds**n, list(draws)


def failure(n, delta, *, slack=1.0, units=tuple((k,) for k in range(5))):
    """The probability that some threshold's true mean acceleration is below its certificate."""

    def cost(drawn, t):
        cases = [k for unit in drawn for k in units[unit]]
        return mean_cost(KINDS[:, cases] > t, RATES)

    total, thresholds, is_group = 0.0, np.unique(KINDS), len(units[0]) > 1
    truth = {t: 1 / cost(range(len(units)), t) for t in thresholds}
    for weight, drawn in weights_and_draws(n, len(units)):
        found = [
            _certified_acceleration(cost(drawn, t), RATES, n, delta, groups=is_group)
            for t in thresholds
        ]
        total += weight * any(
            truth[t] * slack < f - 1e-12 for t, f in zip(truth, found, strict=True)
        )
    return total


@pytest.mark.parametrize("delta", [0.05, 0.5])
@pytest.mark.parametrize("n", [2, 7])
def test_certificate_fails_for_at_most_delta_of_sets(n, delta):
    assert failure(n, delta) <= delta


def test_groups_are_certified_too():
    assert failure(6, 0.3, units=[(0, 1), (2, 3), (4, 4), (1, 3)]) <= 0.3


def test_certificate_that_is_too_large_is_found():
    assert failure(5, 0.5, slack=0.4) > 0.5


@pytest.mark.parametrize("options", [{}, {"unit": "group"}, {"unit": "whole-group"},
                                     {"policy": "adaptive"}, {"policy": "paper"},
                                     {"policy": "adaptive", "score": "cqr"}])  # fmt: skip
def test_policy_has_a_certificate(options):
    table = synthetic_outputs(SyntheticTable(volumes=40, samples=4), seed=2)
    policy = tq.plan(table, **{"alpha": 0.1, "max_width": 0.2, "unit": "case", **options})
    if options.get("policy") == "paper" or "score" in options:
        # Stops are not monotone in one threshold.
        assert "certified" not in policy.certificate
        return
    assert 1 <= policy.certificate["certified"] < policy.certificate["mean_acceleration"]


RUNGS = np.array([4.0, 3.0, 2.0, 1.0, 0.0])


def examination(largest, score):
    return StoppingStatistics(np.full(largest.shape, -np.inf), largest, score, ())


class Law:
    """Units of a few types, each with its weight; a group has two cases."""

    def __init__(self, seed, types=4, size=1):
        rng = np.random.default_rng(seed)
        shape = (2, types, size)
        self.largest = rng.integers(0, 6, shape).astype(float)
        # Early reports are wrong at every threshold, right at every threshold, or in between.
        self.score = rng.choice([-9.0, 1.5, 2.5, 99.0], shape, p=[0.6, 0.1, 0.1, 0.2])
        self.weights = [int(w) for w in rng.integers(1, 6, types)]
        self.types, self.size = types, size
        self.unit = CaseUnit() if size == 1 else RandomCaseUnit()

    def seen(self, drawn):
        arrays = (a[:, drawn].reshape(2, -1) for a in (self.largest, self.score))
        index = np.repeat(np.arange(len(drawn)), self.size)
        return examination(*arrays), index

    def chance(self, drawn):
        return math.prod(Fraction(self.weights[t], sum(self.weights)) for t in drawn)

    def is_broken(self, threshold, alpha):
        if threshold == np.inf:
            return False
        seen, index = self.seen(list(range(self.types)))
        stops = _early_stops(seen, np.array([threshold]), self.unit, index)
        early, missed = (
            sum(w * int(each[0, index == t].sum()) for t, w in enumerate(self.weights))
            for each in stops
        )
        return missed > alpha * early


def unlucky(law, units, alpha, delta, found=last_certified):
    """The probability, over all calibration sets, of a threshold that breaks the guarantee."""
    guarantee = Guarantee(float(alpha), law.unit.counted, 1, delta=float(delta))
    total = Fraction(0)
    # Cases count alike in any order; bets on groups depend on it.
    by_count = law.size == 1
    every = combinations_with_replacement if by_count else lambda t, r: product(t, repeat=r)
    for drawn in every(range(law.types), units):
        seen, index = law.seen(list(drawn))
        (threshold,) = found(seen, [Calibrator(guarantee, law.unit, index)], RUNGS)
        if law.is_broken(threshold, alpha):
            counts = [drawn.count(t) for t in range(law.types)]
            orders = math.factorial(units) // math.prod(map(math.factorial, counts))
            total += law.chance(drawn) * (orders if by_count else 1)
    return total


ALPHA, DELTA = Fraction(3, 10), Fraction(3, 10)


def boldest_of_all(seen, calibrators, rungs):
    return min(last_certified(seen, calibrators, np.array([rung])) for rung in rungs)


def always_too_many(weights):
    """A law under which more than alpha of the early stops are missed at every threshold.

    Its types stop from rung 4 on and are right, or wrong; from rung 1 on, right or wrong.
    """
    law = Law(0)
    law.largest[0], law.largest[1] = np.array([[5.0], [5], [2], [2]]), 0.0
    law.score[0] = np.array([[-9.0], [99], [-9], [99]])
    law.weights = weights
    return law


def test_boldest_threshold_is_found():
    law, delta = always_too_many([30, 13, 38, 17]), Fraction(26, 100)
    assert unlucky(law, 12, ALPHA, delta) <= delta
    assert unlucky(law, 12, ALPHA, delta, boldest_of_all) > delta


def test_misses_among_all_cases_are_found(monkeypatch):
    certified = stopping._certified_cases

    def among_all(stopped, missed, alpha, delta):
        return certified(np.ones_like(stopped), missed, alpha, delta)

    monkeypatch.setattr(stopping, "_certified_cases", among_all)
    assert max(unlucky(Law(seed), 10, ALPHA, DELTA) for seed in range(3)) > DELTA


TABLE = synthetic_outputs(SyntheticTable(volumes=60, samples=8), seed=0)
ASKED = {"alpha": 0.1, "max_width": 0.2, "delta": 0.1, "given": "early"}


@pytest.mark.parametrize("policy", ["fixed-width", "adaptive"])
@pytest.mark.parametrize("unit", ["case", "whole-group"])
def test_policy_stores_the_price_of_early_stops(policy, unit, tmp_path):
    made = tq.plan(TABLE, policy=policy, unit=unit, **ASKED)
    plain = tq.plan(TABLE, policy=policy, unit=unit, **{**ASKED, "given": None})
    assert (made.guarantee.given, plain.guarantee.given) == ("early", None)
    assert made.statement != plain.statement
    price = made.certificate["mean_acceleration_without_given"]
    assert price == pytest.approx(plain.certificate["mean_acceleration"])
    assert tq.load_policy(made.save(tmp_path / "policy.json")) == made


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"delta": None}, "option.missing"),
        ({"given": "late"}, "choice.unknown"),
        ({"policy": "anytime"}, "option.conflict"),
        ({"cases": "all"}, "option.conflict"),
    ],
)
def test_other_guarantees_for_early_stops_are_refused(changes, code):
    with refused(code):
        tq.plan(TABLE, **{**ASKED, **changes})


def test_wrong_early_stops_give_a_caveat():
    rng = np.random.default_rng(0)
    table = TaskOutputs(rng.normal(0, 0.01, (1, 200, 4)), np.full(200, 9.0), accelerations=[4])
    made = tq.plan(table, alpha=0.1, max_width=0.5, delta=0.1, given="early")
    assert made.thresholds == (np.inf,)
    assert "missed" in made.guarantee.caveat


def test_threshold_grid_does_not_use_calibration_units():
    spec = PolicySpec("fixed-width", 0.1, Goal(max_width=0.2), given="early")
    unit, aside = CaseUnit(), np.arange(TABLE.cases) % 10 == 0
    shuffled = TABLE.targets.copy()
    shuffled[~aside] = np.random.default_rng(0).permutation(shuffled[~aside])
    rungs = []
    for table in (TABLE, replace_arrays(TABLE, targets=shuffled)):
        rules, seen = evaluate_rules(spec, table, aside, ~aside)
        guarantee = Guarantee(0.1, "case", seen.cases, delta=0.1, given="early")
        calibrator = Calibrator(guarantee, unit, np.arange(seen.cases))
        tuning = evaluate_tuning_cases(rules, table, aside, np.arange(table.cases))
        rungs.append(threshold_grid(tuning, calibrator))
    np.testing.assert_array_equal(*rungs)
    assert (np.diff(rungs[0]) < 0).all()
