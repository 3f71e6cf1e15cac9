"""Promises about early stops: exact over all calibration sets that a finite law can give."""

import json
import math
from fractions import Fraction
from itertools import combinations_with_replacement, product

import numpy as np
import pytest

import taskuq as tq
from taskuq.cli.app import main
from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal._splits import Splits
from taskuq.conformal._units import CaseUnit, RandomCaseUnit, choose_units, unit_index
from taskuq.errors import InputError
from taskuq.policy import _stopping as early
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import PolicySpec
from taskuq.policy._learned import evaluate_rules, evaluate_tuning_cases
from taskuq.policy._plan import SetCalibrator, policy_unit
from taskuq.policy._rules import StoppingStatistics
from taskuq.policy._simulate import _SplitCalibrator
from taskuq.policy._stopping import _stops_at, last_certified, threshold_grid
from taskuq.table._examples import SyntheticTable, synthetic_outputs
from taskuq.table._table import TaskOutputs, replace_arrays

RUNGS = np.array([4.0, 3.0, 2.0, 1.0, 0.0])


def examination(largest, score):
    """Cases whose intervals are never empty, from two arrays (round, case)."""
    return StoppingStatistics(np.full(largest.shape, -np.inf), largest, score, ())


class Law:
    """Units of a few types, each as likely as said; a group has two cases."""

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
        """The cases of the drawn types, and the unit of each."""
        arrays = (a[:, drawn].reshape(2, -1) for a in (self.largest, self.score))
        index = np.repeat(np.arange(len(drawn)), self.size)
        return examination(*arrays), index

    def chance(self, drawn):
        return math.prod(Fraction(self.weights[t], sum(self.weights)) for t in drawn)

    def is_broken(self, threshold, alpha):
        """Whether more than alpha of the early stops of new units are missed."""
        if threshold == np.inf:
            return False
        seen, index = self.seen(list(range(self.types)))
        stops = _stops_at(seen, np.array([threshold]), self.unit, index)
        early, missed = (
            sum(w * int(each[0, index == t].sum()) for t, w in enumerate(self.weights))
            for each in stops
        )
        return missed > alpha * early


def unlucky(law, units, alpha, delta, found=last_certified):
    """The probability, over all calibration sets, of a threshold that breaks the promise."""
    promise = Guarantee(float(alpha), law.unit.counted, 1, delta=float(delta))
    total = Fraction(0)
    # Cases count alike in any order; bets on groups depend on it.
    by_count = law.size == 1
    every = combinations_with_replacement if by_count else lambda t, r: product(t, repeat=r)
    for drawn in every(range(law.types), units):
        seen, index = law.seen(list(drawn))
        (threshold,) = found(seen, SetCalibrator(promise, law.unit, index), RUNGS)
        if law.is_broken(threshold, alpha):
            counts = [drawn.count(t) for t in range(law.types)]
            orders = math.factorial(units) // math.prod(map(math.factorial, counts))
            total += law.chance(drawn) * (orders if by_count else 1)
    return total


ALPHA, DELTA = Fraction(3, 10), Fraction(3, 10)


@pytest.mark.parametrize("seed", range(40))
def test_cases_break_the_promise_with_probability_delta_at_most(seed):
    assert unlucky(Law(seed), 10, ALPHA, DELTA) <= DELTA


@pytest.mark.parametrize("seed", range(12))
def test_groups_break_the_promise_with_probability_delta_at_most(seed):
    assert unlucky(Law(seed, types=3, size=2), 6, ALPHA, DELTA) <= DELTA


def boldest_of_all(seen, calibrator, rungs):
    """A fault: the boldest threshold that passes by itself, whatever failed before it."""
    return min(last_certified(seen, calibrator, np.array([rung])) for rung in rungs)


def always_too_many(weights):
    """A law under which more than alpha of the early stops are missed at every threshold.

    Its types stop from rung 4 on and are right, or wrong; from rung 1 on, right or wrong.
    """
    law = Law(0)
    law.largest[0], law.largest[1] = np.array([[5.0], [5], [2], [2]]), 0.0
    law.score[0] = np.array([[-9.0], [99], [-9], [99]])
    law.weights = weights
    return law


def test_the_boldest_threshold_that_passes_by_itself_is_caught():
    law, delta = always_too_many([30, 13, 38, 17]), Fraction(26, 100)

    assert unlucky(law, 12, ALPHA, delta) <= delta
    assert unlucky(law, 12, ALPHA, delta, boldest_of_all) > delta


def test_misses_among_all_cases_instead_of_early_ones_are_caught(monkeypatch):
    certified = early._certified_cases

    def among_all(stopped, missed, alpha, delta):
        return certified(np.ones_like(stopped), missed, alpha, delta)

    monkeypatch.setattr(early, "_certified_cases", among_all)

    assert max(unlucky(Law(seed), 10, ALPHA, DELTA) for seed in range(40)) > DELTA


TABLE = synthetic_outputs(SyntheticTable(volumes=60), seed=0)
ASKED = {"alpha": 0.1, "max_width": 0.2, "delta": 0.1, "given": "early"}


@pytest.mark.parametrize("policy", ["fixed-width", "adaptive"])
@pytest.mark.parametrize("unit", ["case", "group", "whole-group"])
def test_a_policy_says_what_it_promises_of_early_stops_and_at_what_price(policy, unit, tmp_path):
    made = tq.plan(TABLE, policy=policy, unit=unit, **ASKED)
    plain = tq.plan(TABLE, policy=policy, unit=unit, **{**ASKED, "given": None})

    assert "given that its scan stops before everything is measured" in made.sentence
    assert "for all but 0.1 of calibration sets" in made.sentence
    assert "scan stops before" not in plain.sentence
    price = made.certificate["mean_acceleration_without_given"]
    assert price == pytest.approx(plain.certificate["mean_acceleration"])
    assert tq.load_policy(made.save(tmp_path / "policy.json")) == made


def test_the_same_units_are_set_aside_for_the_score_and_for_the_thresholds():
    made, plain = tq.plan(TABLE, **ASKED), tq.plan(TABLE, **{**ASKED, "given": None})

    assert made.provenance["tuning_cases"] == plain.provenance["tuning_cases"] > 0
    assert made.rules == plain.rules


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"delta": None}, "given the calibration set; say for how few sets it may fail"),
        ({"given": "late"}, "given must be 'early' or left out, got 'late'"),
        ({"policy": "anytime"}, "policy 'anytime' promises nothing about early stops"),
        ({"cases": "all"}, "is about a random case, got cases='all'"),
    ],
)
def test_what_cannot_be_promised_of_early_stops_is_refused(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        tq.plan(TABLE, **{**ASKED, **changes})


def test_too_few_units_to_certify_anything_are_told():
    made = tq.plan(TABLE.select(cases=np.arange(22)), unit="case", **ASKED)

    assert made.thresholds[0] == np.inf
    assert "needs at least 22 calibration cases, got 19: every scan goes on to the end" in str(made)


def test_early_stops_that_are_always_wrong_are_told():
    rng = np.random.default_rng(0)
    table = TaskOutputs(rng.normal(0, 0.01, (1, 200, 4)), np.full(200, 9.0), accelerations=[4])
    made = tq.plan(table, alpha=0.1, max_width=0.5, delta=0.1, given="early")

    assert made.thresholds == (np.inf,)
    assert "too many of those are missed, to certify alpha=0.1 and delta=0.1 among them" in str(
        made
    )


def test_thresholds_to_test_do_not_look_at_calibration_units():
    spec = PolicySpec("fixed-width", 0.1, Goal(max_width=0.2), given="early")
    unit, aside = CaseUnit(), np.arange(TABLE.cases) % 10 == 0
    shuffled = TABLE.targets.copy()
    shuffled[~aside] = np.random.default_rng(0).permutation(shuffled[~aside])
    rungs = []
    for table in (TABLE, replace_arrays(TABLE, targets=shuffled)):
        rules, seen = evaluate_rules(spec, table, aside, ~aside)
        promise = Guarantee(0.1, "case", seen.cases, delta=0.1, given="early")
        calibrator = SetCalibrator(promise, unit, np.arange(seen.cases))
        rungs.append(
            threshold_grid(evaluate_tuning_cases(rules, table, aside, np.arange(table.cases)), calibrator)
        )

    np.testing.assert_array_equal(*rungs)
    assert (np.diff(rungs[0]) < 0).all()


@pytest.mark.parametrize("unit", ["case", "group"])
def test_a_replayed_fold_is_calibrated_as_if_it_were_all_there_is(unit):
    spec = PolicySpec("fixed-width", 0.1, Goal(max_width=0.2), given="early")
    whom = policy_unit(TABLE, unit, "random")
    index = whom.index(TABLE.cases, TABLE.group)
    aside = choose_units(index, 6, None)
    rules, seen = evaluate_rules(spec, TABLE, aside, ~aside)
    promise = Guarantee(0.1, whom.counted, seen.cases, delta=0.1, given="early")
    kept = unit_index(seen.cases, index[~aside])
    units = int(kept.max()) + 1
    of_case = kept if whom.is_group else np.empty(0, np.int64)
    splitting = Splits(units, 3, 6, 5, of_case)
    rungs = threshold_grid(
        evaluate_tuning_cases(rules, TABLE, aside, index), SetCalibrator(promise, whom, kept)
    )
    (found,) = last_certified(seen, _SplitCalibrator(promise, whom, kept, splitting), rungs)
    for t, fold in enumerate(splitting.folds(np.arange(6))):
        inside = fold[kept] == 0
        part = StoppingStatistics(
            *(a[:, inside] for a in (seen.lowest, seen.largest, seen.score)), ()
        )
        alone = SetCalibrator(promise, whom, unit_index(part.cases, kept[inside]))

        assert last_certified(part, alone, rungs) == found[t] < np.inf


def test_a_simulation_judges_the_promise_about_early_stops(tmp_path, capsys):
    TABLE.save(tmp_path / "table.npz")
    main(
        f"simulate {tmp_path}/table.npz --policy paper,fixed-width --score lwr --statistic spread "
        f"--alpha 0.1 --max-width 0.2 --delta 0.1 --given early --splits 20 --unit case "
        f"--json {tmp_path}/found.json".split()
    )
    paper, early_too = json.loads((tmp_path / "found.json").read_text())["results"]

    assert (paper["given"], early_too["given"]) == (None, "early")
    assert early_too["coverage_early"] >= 0.9
    assert "fixed-width given early" in capsys.readouterr().out
