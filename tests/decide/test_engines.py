"""Replays: compiled and NumPy loops agree, seeds repeat, and the summaries add up."""

from math import floor

import numpy as np
import pytest
from watching import watched

import taskuq as tq
from taskuq.conformal import _splits as splits
from taskuq.conformal._family import LinearFamily, Link, NestedIntervalScore
from taskuq.errors import InputError
from taskuq.policy import _simulate as simulation
from taskuq.policy._fixed_width import STATISTICS, _spread_score
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import PolicySpec
from taskuq.policy._simulate import simulate
from taskuq.table._examples import SyntheticTable, synthetic_outputs

TABLE = synthetic_outputs(SyntheticTable(volumes=20, samples=4), seed=1)
TWO = Goal(max_width=0.2)


class BeyondTheRange(NestedIntervalScore):
    """Predictions on both sides of the end of the range."""

    def family(self, outputs):
        link = Link("logit")
        center = link(outputs[:, 0] + 0.5)
        return LinearFamily(center, center, 0.1 + outputs.std(axis=1), "two", link)


def two_tasks():
    outputs = np.stack([TABLE.outputs, 1 - TABLE.outputs**2], axis=-1)
    targets = np.stack([TABLE.targets, 1 - TABLE.targets**2], axis=-1)
    return tq.TaskOutputs(
        outputs, targets, TABLE.accelerations, group=TABLE.group, task_range=(0.0, 1.0)
    )


PLANS = {
    "paper lwr": PolicySpec("paper", 0.1, TWO, score="lwr"),
    "spread": PolicySpec("fixed-width", 0.1, TWO),
    "learned": PolicySpec("fixed-width", 0.1, TWO, statistic="learned"),
    "two-phase": PolicySpec("fixed-width", 0.1, TWO, budget=0.5),
    "two-phase learned": PolicySpec("fixed-width", 0.1, TWO, budget=0.5, statistic="learned"),
    "adaptive ar": PolicySpec("adaptive", 0.1, TWO, score="ar"),
    "adaptive cqr": PolicySpec("adaptive", 0.1, TWO, score="cqr"),
    "adaptive mlwr": PolicySpec("adaptive", 0.1, TWO),
    "adaptive learned": PolicySpec("adaptive", 0.1, TWO, score="learned"),
    "adaptive beyond": PolicySpec("adaptive", 0.5, Goal(max_width=0.6), score=BeyondTheRange()),
    "anytime mlwr": PolicySpec("anytime", 0.1, TWO),
    "lower": PolicySpec("adaptive", 0.1, Goal(max_width=0.1, side="lower")),
    "at most": PolicySpec("fixed-width", 0.1, Goal(level=0.5, side="upper")),
    "two-phase at least": PolicySpec(
        "fixed-width", 0.1, Goal(level=0.05, side="lower"), budget=0.5
    ),
}
# Rules that learn from each calibration fold are planned anew in each trial.
STEADY = ("spread", "adaptive mlwr", "anytime mlwr", "lower", "at most")
EACH_CASE = ("paper lwr", "adaptive cqr", "anytime mlwr")
COUNTS = ("early", "early_covered", "covered", "stopped", "stopped_covered", "worst_groups",
          "kept", "cases")  # fmt: skip
SUMS = ("cost", "width", "center_error", "worst_error", "plain_cost", *COUNTS)
UNITS = ("case", "group", "whole-group")


def replays(monkeypatch, is_compiled, table, spec, unit):
    """Everything one engine adds up."""
    kept = []

    def keeping(original):
        return lambda *arguments: kept.append(original(*arguments)) or kept[-1]

    with monkeypatch.context() as patch:
        patch.setattr(simulation, "use_numba", lambda work: is_compiled)
        patch.setattr(simulation, "simulate_splits", keeping(simulation.simulate_splits))
        patch.setattr(simulation, "simulate_each_split", keeping(simulation.simulate_each_split))
        simulate(table, [spec], trials=12, rng=np.random.default_rng(7), unit=unit, tunings=2)
    return kept


def agree(one, other, unit):
    names = {name: (getattr(one, name), getattr(other, name)) for name in SUMS}
    exact = all((names[n][0] == names[n][1]).all() for n in COUNTS) if unit == "case" else True
    return exact and all(np.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in names.values())


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", PLANS)
def test_compiled_and_numpy_replays_agree(monkeypatch, name, unit):
    if unit == "whole-group" and name in EACH_CASE:
        with pytest.raises(InputError, match="whole groups"):
            replays(monkeypatch, False, TABLE, PLANS[name], unit)
        return
    pair = [replays(monkeypatch, c, TABLE, PLANS[name], unit) for c in (True, False)]

    assert len(pair[0]) == len(pair[1]) > 0
    assert all(agree(a, b, unit) for a, b in zip(*pair, strict=True))
    assert sum(a.early.sum() for a in pair[0]) > 0 or unit == "whole-group"


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "name", ["two-phase", "adaptive ar", "adaptive learned", "spread", "lower"]
)
def test_the_engines_agree_on_two_tasks(monkeypatch, name, unit):
    pair = [replays(monkeypatch, c, two_tasks(), PLANS[name], unit) for c in (True, False)]

    assert all(agree(a, b, unit) for a, b in zip(*pair, strict=True))


def test_the_comparison_of_engines_can_fail(monkeypatch):
    (one,) = replays(monkeypatch, False, TABLE, PLANS["paper lwr"], "case")
    (other,) = replays(monkeypatch, False, TABLE, PLANS["adaptive ar"], "case")

    assert not agree(one, other, "case")


def records(seed, unit="case"):
    found = simulate(
        TABLE, list(PLANS.values()), trials=15, rng=np.random.default_rng(seed), unit=unit
    )
    return [r.to_dict() for r in found]


def test_a_seed_repeats_everything_and_another_does_not():
    first = records(5)

    assert first == records(5)
    assert first != records(6)


@pytest.mark.parametrize("unit", ["case", "group"])
def test_shares_of_stops_and_sources_of_coverage_add_up(unit):
    for r in records(2, unit):
        assert sum(stop["fraction"] for stop in r["stops"]) == pytest.approx(1)
        assert r["early"] + r["coverage_from_full"] == pytest.approx(1)
        early = r["early"] * (r["coverage_early"] or 0)
        assert r["coverage"] == pytest.approx(early + r["coverage_from_full"])
        by_stop = [s["fraction"] * s["coverage"] for s in r["stops"] if s["coverage"] is not None]
        assert sum(by_stop) == pytest.approx(r["coverage"])


def tied_table():
    """The table on a coarse grid, where many cases have the same risk and the same score."""
    outputs, targets = (np.round(v * 8) / 8 for v in (TABLE.outputs, TABLE.targets))
    return tq.TaskOutputs(
        outputs, targets, TABLE.accelerations, group=TABLE.group, task_range=(0.0, 1.0)
    )


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("kind", ["fixed-width", "adaptive", "anytime", "paper"])
def test_a_replayed_trial_is_what_the_rules_say(monkeypatch, kind, is_compiled):
    # A score that knows its prior makes the rules of a window fixed, too.
    known = _spread_score("two").tuned(tied_table().outputs[0], range_=(0.0, 1.0))
    monkeypatch.setitem(STATISTICS, "spread", lambda side: known)
    table, spec = tied_table(), PolicySpec(kind, 0.1, Goal(max_width=0.1), score="lwr")
    found, scans, splitting, thresholds = watched(
        monkeypatch, table, spec, 1, is_compiled, unit="case"
    )
    test = splitting.case_folds(np.array([0]))[0].astype(bool)
    covered, scanning = np.ones(test.sum(), bool), np.ones(test.sum(), bool)
    ties = 0
    for k, threshold in enumerate(thresholds[:, 0]):
        (examined,) = scans.seen.rounds[k]
        ties += int((examined.largest[test] == threshold)[scanning].sum())
        stops = scanning & examined.stops(threshold)[test]
        hits = examined.report(threshold).contains(table.targets)[test]
        covered[stops] = hits[stops]
        scanning &= ~stops
    assert found.coverage == pytest.approx(covered.mean())
    assert found.early == pytest.approx(1 - scanning.mean())
    # The statistic of a window is what its threshold ties with.
    assert ties > 0 or kind != "fixed-width"


PROMISES = [
    {"unit": "case"},
    {"unit": "case", "delta": 0.2},
    {"unit": "group"},
    {"unit": "group", "cases": "all"},
    {"unit": "group", "cases": 0.7},
    {"unit": "whole-group"},
    {"unit": "whole-group", "cases": 0.7},
]


@pytest.mark.parametrize("promise", PROMISES, ids=str)
def test_the_threshold_of_a_trial_is_the_planned_one(monkeypatch, promise):
    spec = PolicySpec("adaptive", 0.2, TWO, score="lwr")
    _, _, splitting, thresholds = watched(monkeypatch, TABLE, spec, 3, **promise)

    for t in range(3):
        calibration = splitting.case_folds(np.array([t]))[0] == 0
        policy = tq.plan(
            TABLE.select(cases=calibration), alpha=0.2, max_width=0.2, policy="adaptive",
            score="lwr", **promise,
        )  # fmt: skip
        assert policy.thresholds == tuple(thresholds[:, t])
        assert np.isfinite(policy.thresholds).all()


PLANNED = [
    (name, promise)
    for name in STEADY
    for promise in PROMISES
    if "delta" not in promise and not (name == "anytime mlwr" and promise["unit"] == "whole-group")
]


@pytest.mark.parametrize(("name", "promise"), PLANNED, ids=str)
def test_a_trial_of_a_policy_that_learns_is_a_plan_and_its_decisions(name, promise):
    spec, table = PLANS[name], two_tasks() if name == "spread" else TABLE
    (found,) = simulate(table, [spec], trials=2, rng=np.random.default_rng(9), **promise)

    seed = int(np.random.default_rng(9).integers(2**63))
    group = np.unique(table.group, return_inverse=True)[1]
    by_group = promise["unit"] != "case"
    n = int(group.max()) + 1 if by_group else table.cases
    early, hits = [], []
    for fold in splits.test_sets(seed, 0, 2, n, n - floor(0.7 * n)).astype(bool):
        test = fold[group] if by_group else fold
        policy = tq.plan(
            table.select(cases=~test), alpha=spec.alpha, max_width=spec.goal.max_width,
            at_most=spec.goal.level, side=spec.goal.side, policy=spec.kind, **promise,
        )  # fmt: skip
        weight = (1 / np.bincount(group))[group] if by_group else np.ones(table.cases)
        stopped, covered = scanned(policy, table, test, group if by_group else None)
        early.append(np.average(stopped, weights=weight[test]))
        hits.append(np.average(covered, weights=weight[test]))

    assert found.early == pytest.approx(np.mean(early), abs=1e-12)
    if promise.get("cases", "random") == "random":
        assert found.coverage == pytest.approx(np.mean(hits), abs=1e-12)


@pytest.mark.parametrize("name", ["adaptive mlwr", "lower", "spread"])
def test_what_one_threshold_covers_is_what_many_would(monkeypatch, name):
    kept, original = [], simulation.simulate_each_split
    with monkeypatch.context() as patch:
        patch.setattr(simulation, "simulate_each_split", lambda *a: kept.append(a[0](0)) or original(*a))
        simulate(TABLE, [PLANS[name]], trials=1, rng=np.random.default_rng(1), unit="case")
    scans, _ = kept[0]
    score, ties = scans.seen.score, 0
    for case in np.flatnonzero(np.isfinite(score).all(axis=0))[:40]:
        # A report is rounded outwards, so that it has the target just below its score.
        just_below = np.nextafter(score[:, case], -np.inf)
        one, many = scans.covered_at(just_below), scans.covered_from(just_below[:, None])
        ties += int((one < score).sum())
        pair = [scans.outcomes(just_below, each) for each in (one, many)]
        assert all((a == b).all() for a, b in zip(*pair, strict=True))
    assert ties > 0 or name == "spread"


def scanned(policy, table, test, group):
    """Which test cases stop early, and which are covered then or measured in full."""
    stopped, covered = np.zeros(test.sum(), bool), np.ones(test.sum(), bool)
    parts = [np.arange(test.sum())]
    if policy.whole_group:
        parts = [np.flatnonzero(group[test] == g) for g in np.unique(group[test])]
    outputs, targets = table.outputs[:, test], table.targets[test]
    for part in parts:
        for k in range(table.rounds):
            decision = policy.decide(k, outputs[: k + 1, part])
            now = np.broadcast_to(decision.stops, len(part)) & ~stopped[part]
            hit = decision.interval.contains(targets[part])
            hit = hit.all(axis=-1) if hit.ndim > 1 else hit
            covered[part[now]] = hit[now]
            stopped[part[now]] = True
    return stopped, covered
