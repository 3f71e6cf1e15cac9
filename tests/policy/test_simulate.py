"""Simulations: splits are plans and decisions, errors are honest."""

from fractions import Fraction
from itertools import combinations, product
from math import floor

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.conformal import _splits as splits
from taskuq.conformal._units import nested_denominators, nested_ids
from taskuq.conformal.scores._mlwr import MLWR
from taskuq.policy import _simulate as simulation
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import STATISTICS, PolicySpec
from taskuq.policy._simulate import _jackknife_variance, simulate
from taskuq.table._examples import SyntheticTable, synthetic_outputs
from taskuq.table._table import TaskOutputs, replace_arrays

TABLE = synthetic_outputs(SyntheticTable(volumes=20, samples=4), seed=1)
TWO, AT_LEAST = Goal(max_width=0.2), Goal(level=0.05, side="lower")


def two_tasks():
    outputs = np.stack([TABLE.outputs, 1 - TABLE.outputs**2], axis=-1)
    targets = np.stack([TABLE.targets, 1 - TABLE.targets**2], axis=-1)
    return tq.TaskOutputs(
        outputs, targets, TABLE.accelerations, group=TABLE.group, task_range=(0.0, 1.0)
    )


PLANS = {
    "paper lwr": PolicySpec("paper", 0.1, TWO, score="lwr"),
    "spread": PolicySpec("fixed-width", 0.1, TWO),
    "two-phase": PolicySpec("fixed-width", 0.1, TWO, budget=0.5),
    "adaptive ar": PolicySpec("adaptive", 0.1, TWO, score="ar"),
    "adaptive lwr": PolicySpec("adaptive", 0.2, TWO, score="lwr"),
    "adaptive cqr": PolicySpec("adaptive", 0.1, TWO, score="cqr"),
    "adaptive mlwr": PolicySpec("adaptive", 0.1, TWO),
    "anytime mlwr": PolicySpec("anytime", 0.1, TWO),
    "lower": PolicySpec("adaptive", 0.1, Goal(max_width=0.1, side="lower")),
    "at most": PolicySpec("fixed-width", 0.1, Goal(level=0.5, side="upper")),
}


def folds_of(table, unit, trials, seed):
    """Test cases of each split, (split, case)."""
    group = np.arange(table.cases)
    if unit != "case":
        group = np.unique(table.group, return_inverse=True)[1]
    n, first = int(group.max()) + 1, int(np.random.default_rng(seed).integers(2**63))
    return splits.test_sets(first, 0, trials, n, n - floor(0.7 * n)).astype(bool)[:, group]


@pytest.mark.parametrize("name", ["paper lwr", "adaptive cqr", "anytime mlwr"])
def test_whole_groups_are_refused_where_undefined(name):
    with refused("option.conflict"):
        simulate(TABLE, [PLANS[name]], splits=2, unit="whole-group")


def records(seed, unit="case"):
    plans = [PLANS[name] for name in ("paper lwr", "spread", "two-phase", "adaptive ar")]
    found = simulate(TABLE, plans, splits=8, seed=np.random.default_rng(seed), unit=unit)
    return [r.to_dict() for r in found]


def test_seed_repeats_a_simulation():
    first = records(5)
    assert first == records(5)
    assert first != records(6)


@pytest.mark.parametrize("unit", ["case", "group"])
def test_fractions_of_stops_and_coverage_add_up(unit):
    for r in records(2, unit):
        assert sum(stop["fraction"] for stop in r["stops"]) == pytest.approx(1)
        assert r["early"] + r["coverage_from_full"] == pytest.approx(1)
        early = r["early"] * (r["coverage_early"] or 0)
        assert r["coverage"] == pytest.approx(early + r["coverage_from_full"])
        by_stop = [s["fraction"] * s["coverage"] for s in r["stops"] if s["coverage"] is not None]
        assert sum(by_stop) == pytest.approx(r["coverage"])


GUARANTEES = [
    {"unit": "case"}, {"unit": "case", "delta": 0.2}, {"unit": "group"},
    {"unit": "group", "cases": "all"}, {"unit": "group", "cases": 0.7},
    {"unit": "whole-group"}, {"unit": "whole-group", "cases": 0.7},
]  # fmt: skip


PLANNED = [
    *((name, GUARANTEES[0]) for name in ("adaptive mlwr", "anytime mlwr", "lower", "at most")),
    *(("spread", guarantee) for guarantee in GUARANTEES if "delta" not in guarantee),
    *(("adaptive lwr", guarantee) for guarantee in GUARANTEES),
    ("adaptive mlwr", GUARANTEES[2]),
    ("adaptive mlwr", GUARANTEES[5]),
]


@pytest.mark.parametrize(("name", "guarantee"), PLANNED, ids=str)
def test_split_is_a_plan_and_its_decisions(name, guarantee):
    spec, table = PLANS[name], two_tasks() if name == "spread" else TABLE
    (found,) = simulate(table, [spec], splits=2, seed=np.random.default_rng(9), **guarantee)
    group = np.unique(table.group, return_inverse=True)[1]
    by_group = guarantee["unit"] != "case"
    early, hits = [], []
    for test in folds_of(table, guarantee["unit"], 2, 9):
        policy = tq.plan(
            table.select(cases=~test), alpha=spec.alpha, max_width=spec.goal.max_width,
            at_most=spec.goal.level, side=spec.goal.side, policy=spec.kind,
            score=spec.score if spec.kind != "fixed-width" else None, **guarantee,
        )  # fmt: skip
        weight = (1 / np.bincount(group))[group] if by_group else np.ones(table.cases)
        together = group[test] if policy.whole_group else None
        cost, covered = scanned(policy, table.select(cases=test), together)
        early.append(np.average(cost < 1, weights=weight[test]))
        hits.append(np.average(covered, weights=weight[test]))
    assert found.early_fraction == pytest.approx(np.mean(early), abs=1e-12)
    if guarantee.get("cases", "random") == "random":
        assert found.coverage == pytest.approx(np.mean(hits), abs=1e-12)


def scanned(policy, table, group=None):
    """Scan every case, or whole groups one by one: its cost, and True if its report is right."""
    parts = [np.arange(table.cases)]
    if group is not None:
        parts = [np.flatnonzero(group == g) for g in np.unique(group)]
    cost, hit = np.ones(table.cases), np.ones(table.cases, bool)
    for part in parts:
        for k, R in enumerate(table.accelerations):
            decision = policy.decide(k, table.outputs[: k + 1, part])
            now = decision.stops & (cost[part] == 1)
            inside = decision.interval.contains(table.targets[part])
            cost[part[now]] = 1 / R
            hit[part[now]] = (inside.all(axis=-1) if inside.ndim > 1 else inside)[now]
    return cost, hit


GOAL = Goal(max_width=0.3)
SCORED = {
    "paper ar": ("paper", {"score": "ar"}),
    "adaptive ar": ("adaptive", {"score": "ar"}),
    "adaptive lwr": ("adaptive", {"score": "lwr"}),
    "adaptive cqr": ("adaptive", {"score": "cqr"}),
    "anytime lwr": ("anytime", {"score": "lwr"}),
}


def on_a_grid(steps, seed, cases=30, group=None):
    """Few shapes in many places: scores that tie in fractions, and differ in their last bits."""
    rng = np.random.default_rng(seed)
    center = rng.integers(1, steps, cases)
    shapes = rng.integers(-1, 2, (2, 2, 3)) * max(1, steps // 20)
    outputs = center[:, None] + shapes[:, rng.integers(0, 2, cases)]
    targets = center + rng.choice([-2, -1, 1, 2], cases) * max(1, steps // 30)
    parts = (np.clip(v, 0, steps) / steps for v in (outputs, targets))
    return tq.TaskOutputs(*parts, (4.0, 2.0), group=group, task_range=(0.0, 1.0))


def gap(steps, name, trials=6):
    kind, options = SCORED[name]
    table, spec = on_a_grid(steps, steps), PolicySpec(kind, 0.3, GOAL, **options)
    (found,) = simulate(table, [spec], splits=trials, seed=3, unit="case")
    cost, covered = [], []
    for test in folds_of(table, "case", trials, 3):
        policy = tq.plan(
            table.select(cases=~test), alpha=0.3, max_width=0.3, policy=kind, unit="case", **options
        )
        costs, hits = scanned(policy, table.select(cases=test))
        cost.append(costs.mean())
        covered.append(hits.mean())
    R = 1 / np.mean(cost)
    return max(abs(found.coverage - np.mean(covered)), abs(found.mean_acceleration - R))


@pytest.mark.parametrize("name", SCORED)
@pytest.mark.parametrize("steps", [255, 10, 3])
def test_simulation_on_a_grid_is_planning_and_scanning(steps, name):
    assert gap(steps, name) < 1e-9


def test_exact_comparison_of_scores_is_found(monkeypatch):
    exact = lambda scans, thresholds: scans.statistics.score  # noqa: E731 short
    monkeypatch.setattr(simulation.StoredScans, "covered_at", exact)
    assert max(gap(steps, name) for steps in (255, 10) for name in SCORED) > 0.01


SIZES = np.r_[[40, 30], np.full(22, 3), np.full(6, 7)]
GROUP = np.repeat(np.arange(len(SIZES)), SIZES)
UNEQUAL = synthetic_outputs(SyntheticTable(volumes=10, samples=4), seed=4)
UNEQUAL = tq.TaskOutputs(
    UNEQUAL.outputs[:, : len(GROUP)], UNEQUAL.targets[: len(GROUP)], UNEQUAL.accelerations,
    group=GROUP, task_range=(0.0, 1.0),
)  # fmt: skip


# The share of a group's cases that keeps each guarantee.
LEAST = {"all": 1, 0.7: Fraction(7, 10)}


@pytest.mark.parametrize("unit", ["group", "whole-group"])
@pytest.mark.parametrize("cases", ["random", "all", 0.7])
def test_coverage_and_means_of_groups(unit, cases):
    options = {"alpha": 0.2, "max_width": 0.25, "policy": "adaptive", "score": "lwr"}
    spec = PolicySpec("adaptive", 0.2, Goal(max_width=0.25), score="lwr")
    (found,) = simulate(UNEQUAL, [spec], splits=3, seed=3, unit=unit, cases=cases)
    kept, alike, plain, by_case = [], [], [], []
    for test in folds_of(UNEQUAL, unit, 3, 3):
        policy = tq.plan(UNEQUAL.select(cases=~test), unit=unit, cases=cases, **options)
        shares, costs, every_cost = [], [], []
        for v in np.unique(GROUP[test]):
            cost, hit = scanned(policy, UNEQUAL.select(cases=v == GROUP))
            shares.append(Fraction(int(hit.sum()), len(hit)))
            costs.append(cost.mean())
            every_cost += list(cost)
        kept.append(np.mean([s if cases == "random" else s >= LEAST[cases] for s in shares]))
        by_case.append(np.mean([float(s) for s in shares]))
        alike.append(np.mean(costs))
        plain += every_cost
    assert found.coverage == pytest.approx(float(np.mean(kept)))
    assert found.case_coverage == pytest.approx(np.mean(by_case))
    assert found.mean_acceleration == pytest.approx(1 / np.mean(alike))
    assert found.case_mean_acceleration == pytest.approx(1 / np.mean(plain))
    assert (found.coverage == found.case_coverage) == (cases == "random")


def test_certificate_of_groups_and_of_cases():
    # Half the groups, with a tenth of the cases, stop in the first round; the others never do.
    group = np.r_[np.arange(20), np.repeat(np.arange(20, 40), 9)]
    spread = np.where(group < 20, 0.01, 0.4)
    outputs = 0.5 + np.outer(spread, [-1, 1])
    table = tq.TaskOutputs(outputs[None], 0.5 + spread, (8.0,), group=group)
    found = tq.plan(table, alpha=0.2, max_width=0.2, policy="adaptive", score="lwr").certificate
    assert found["mean_over"] == "a random case of a new group"
    assert found["mean_acceleration"] == pytest.approx(1 / (0.5 / 8 + 0.5))
    assert found["mean_acceleration_of_cases"] == pytest.approx(1 / (0.1 / 8 + 0.9))
    assert 1 <= found["certified"] < found["mean_acceleration"]


TABLES = 60
RNG = np.random.default_rng(5)


def every_rest(n, k):
    return np.array([np.isin(np.arange(n), kept) for kept in combinations(range(n), k)], float)


# All subsets are there, many times: what chance would add to a sample of them is gone.
OFTEN = 500


@pytest.mark.parametrize(("n", "k"), [(5, 3), (8, 4)])
def test_jackknife_variance_of_a_mean(n, k):
    numbers, kept = RNG.random(n), np.tile(every_rest(n, k), (OFTEN, 1))
    found = _jackknife_variance(kept @ numbers / k, kept, k / n)
    assert found == pytest.approx(numbers.var(ddof=1) / n, rel=0.002)


@pytest.mark.parametrize(("n", "k"), [(5, 3), (8, 4)])
def test_jackknife_variance_of_second_order(n, k):
    kept = np.tile(every_rest(n, k), (OFTEN, 1))
    pairs = RNG.standard_normal((n, n))
    values = np.einsum("ri,ij,rj->r", kept, pairs, kept)
    design = np.column_stack([np.ones(len(kept)), kept])
    values -= design @ np.linalg.lstsq(design, values, rcond=None)[0]
    r = k / n
    for c in (2, 3):
        expected = r**c / (1 - r**c) * values.var()
        assert _jackknife_variance(values, kept, r, c) == pytest.approx(expected, rel=0.002)


def test_jackknife_variance_of_few_replicates():
    values, kept = RNG.random(40), RNG.integers(0, 2, (40, 500)).astype(float)
    assert _jackknife_variance(values, kept, 0.75) == pytest.approx(3 * values.var(ddof=1))
    assert np.isnan(_jackknife_variance(values[:1], kept[:1], 0.75))


def without_groups(table):
    first = np.unique(table.group, return_index=True)[1]
    return TaskOutputs(
        table.outputs[:, first], table.targets[first], table.accelerations, task_range=(0.0, 1.0)
    )


def by_group(volumes):
    return lambda seed: synthetic_outputs(SyntheticTable(volumes=volumes, samples=4), seed=seed)


def by_case(cases):
    return lambda seed: without_groups(by_group(cases)(seed))


# A prior from other cases: such rules are the same in every split, which is quick.
ELSEWHERE = by_group(10)(10**6).outputs[1]
SETTINGS = {
    "fixed-width, 20 groups": ("fixed-width", by_group(20), "group"),
    "adaptive, cases of 20 groups": ("adaptive", by_group(20), "case"),
    "adaptive, 80 cases": ("adaptive", by_case(80), "case"),
}


def ratios(monkeypatch, kind, make, unit, width=0.2, tables=TABLES):
    """Mean standard errors over the deviations between independent tables, of R and coverage."""
    statistic = MLWR(floor=0.25).fit(ELSEWHERE, range_=(0.0, 1.0))
    monkeypatch.setitem(STATISTICS, "spread", lambda goal: statistic)
    return measured_ratios(PolicySpec(kind, 0.1, Goal(max_width=width), score="lwr"), make, unit,
                           trials=50, tables=tables)  # fmt: skip


def measured_ratios(spec, make, unit, trials, tables):
    found = []
    for seed in range(tables):
        rng = np.random.default_rng(seed)
        (one,) = simulate(make(seed), [spec], splits=trials, seed=rng, unit=unit)
        errors = one.standard_errors
        found.append([one.mean_acceleration, one.coverage, *errors.values()])
    R, coverage, error_of_R, error_of_coverage = np.array(found).T
    return error_of_R.mean() / R.std(ddof=1), error_of_coverage.mean() / coverage.std(ddof=1)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_standard_errors_are_deviations_between_tables(monkeypatch, setting):
    for ratio in ratios(monkeypatch, *setting):
        assert 0.8 <= ratio <= 1.25


def test_standard_errors_of_learning_rules():
    spec = PolicySpec("fixed-width", 0.1, Goal(max_width=0.2))
    of_R, of_coverage = measured_ratios(spec, by_group(20), "group", trials=12, tables=48)
    assert 0.8 <= of_R <= 1.25
    # Such rules cover more than they guarantee, by how much varies, and most of that is not linear.
    assert 0.8 <= of_coverage <= 1.5


def test_jackknife_without_recalibration_is_found(monkeypatch):
    measured = simulation._replicate

    def not_again(planned, splitting, *rest):
        middle = np.median([planned(r)[1] for r in range(splitting.trials)], axis=0)
        return measured(lambda r: (planned(r)[0], middle), splitting, *rest)

    monkeypatch.setattr(simulation, "_replicate", not_again)
    of_R, of_coverage = ratios(monkeypatch, "adaptive", by_group(20), "group", tables=40)
    assert of_R < 0.8
    assert of_coverage > 1.25


@pytest.mark.parametrize(
    ("unit", "within"), [*product(["case", "group"], [None, "label", "strata"]), ("site", None)]
)
def test_classes_and_sites_are_those_of_planning_and_scanning(unit, within):
    label, site = np.where(UNEQUAL.targets > 0.5, "high", "low"), GROUP % 9
    table = replace_arrays(UNEQUAL, label=label, site=site)
    options = {} if within is None else {within: "label"}
    asked = {"alpha": 0.3, "max_width": 0.25, "unit": unit, **options}
    (found,) = simulate(table, ["adaptive:lwr"], splits=3, seed=3, **asked)
    by_site = replace_arrays(table, group=site) if unit == "site" else table
    weight = {"case": np.ones(len(GROUP)), "group": 1 / np.bincount(GROUP)[GROUP],
              "site": 1 / nested_denominators(nested_ids(site, GROUP))}[unit]  # fmt: skip
    rows = []
    for test in folds_of(by_site, unit, 3, 3):
        policy = tq.plan(table.select(cases=~test), policy="adaptive", score="lwr", **asked)
        for case in np.flatnonzero(test):
            own = policy.for_stratum(label[case]) if policy.strata else policy
            cost, hit = scanned(own, table.select(cases=[case]))
            rows.append((label[case], site[case], weight[case], cost[0], hit[0]))
    kinds = {"class": (0, found.class_coverage), "site": (1, found.site_coverage)}
    for kind, (column, parts) in kinds.items():
        for part in parts:
            inside = [row for row in rows if str(row[column]) == part[kind]]
            if not inside:
                assert np.isnan(part["coverage"])
                continue
            w, cost, hit = (np.array([row[k] for row in inside], float) for k in (2, 3, 4))
            assert part["coverage"] == pytest.approx(np.average(hit, weights=w))
            assert part["mean_acceleration"] == pytest.approx(1 / np.average(cost, weights=w))
