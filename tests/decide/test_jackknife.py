"""Standard errors of a simulation: exact for means, and true to independent tables."""

from itertools import combinations

import numpy as np
import pytest

from taskuq.conformal.scores._mlwr import MLWR
from taskuq.policy import _simulate as simulation
from taskuq.policy._fixed_width import STATISTICS
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import PolicySpec
from taskuq.policy._simulate import _jackknife_variance, _JackknifeReplicates, simulate
from taskuq.table._examples import SyntheticTable, synthetic_outputs
from taskuq.table._table import TaskOutputs

TABLES = 120
RNG = np.random.default_rng(5)


def every_rest(n, k):
    """Each way to keep k of n, as rows of zeros and ones."""
    rows = np.zeros((0, n))
    for kept in combinations(range(n), k):
        rows = np.vstack([rows, np.isin(np.arange(n), kept)])
    return rows


# All subsets are there, many times: what chance would add to a sample of them is gone.
OFTEN = 400


@pytest.mark.parametrize(("n", "k"), [(5, 3), (6, 4), (8, 4), (7, 5)])
def test_the_variance_of_a_mean_is_that_of_the_numbers_over_their_count(n, k):
    numbers, kept = RNG.random(n), np.tile(every_rest(n, k), (OFTEN, 1))
    found = _jackknife_variance(kept @ numbers / k, kept, k / n)

    assert found == pytest.approx(numbers.var(ddof=1) / n, rel=0.002)


@pytest.mark.parametrize(("n", "k"), [(5, 3), (6, 4), (8, 4), (7, 5)])
def test_what_is_not_linear_counts_as_of_one_order(n, k):
    kept = np.tile(every_rest(n, k), (OFTEN, 1))
    pairs = RNG.standard_normal((n, n))
    values = np.einsum("ri,ij,rj->r", kept, pairs, kept)
    design = np.column_stack([np.ones(len(kept)), kept])
    values -= design @ np.linalg.lstsq(design, values, rcond=None)[0]
    r = k / n

    for c in (2, 3):
        expected = r**c / (1 - r**c) * values.var()
        assert _jackknife_variance(values, kept, r, c) == pytest.approx(expected, rel=0.002)


def test_few_replicates_of_many_groups_take_all_variance_for_linear():
    values, kept = RNG.random(40), RNG.integers(0, 2, (40, 500)).astype(float)

    assert _jackknife_variance(values, kept, 0.75) == pytest.approx(3 * values.var(ddof=1))
    assert np.isnan(_jackknife_variance(values[:1], kept[:1], 0.75))


def without_groups(table):
    """Cases that are as good as independent: one of each volume."""
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
    "fixed-width, 40 groups": ("fixed-width", by_group(40), "group"),
    "adaptive, 20 groups": ("adaptive", by_group(20), "group"),
    "adaptive, cases of 20 groups": ("adaptive", by_group(20), "case"),
    "fixed-width, cases of 12 groups": ("fixed-width", by_group(12), "case"),
    "fixed-width, 150 cases": ("fixed-width", by_case(150), "case", 0.1),
    "adaptive, 80 cases": ("adaptive", by_case(80), "case"),
}


def ratios(monkeypatch, kind, make, unit, width=0.2, tables=TABLES):
    """Mean standard errors over the deviations between independent tables, of R and coverage."""
    monkeypatch.setattr(simulation, "use_numba", lambda work: True)
    statistic = MLWR(floor=0.25).fit(ELSEWHERE, range_=(0.0, 1.0))
    monkeypatch.setitem(STATISTICS, "spread", lambda side: statistic)
    return measured_ratios(PolicySpec(kind, 0.1, Goal(max_width=width), score="lwr"), make, unit,
                           trials=200, tables=tables)  # fmt: skip


def measured_ratios(spec, make, unit, trials, tables):
    found = []
    for seed in range(tables):
        rng = np.random.default_rng(seed)
        (one,) = simulate(make(seed), [spec], trials=trials, rng=rng, unit=unit)
        errors = one.standard_errors
        found.append([one.mean_acceleration, one.coverage, *errors.values()])
    R, coverage, error_of_R, error_of_coverage = np.array(found).T
    return error_of_R.mean() / R.std(ddof=1), error_of_coverage.mean() / coverage.std(ddof=1)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_standard_errors_are_the_deviations_between_independent_tables(monkeypatch, setting):
    pytest.importorskip("numba")
    for ratio in ratios(monkeypatch, *setting):
        assert 0.8 <= ratio <= 1.25


def test_standard_errors_know_what_rules_learn_from_their_calibration_set(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(simulation, "use_numba", lambda work: True)
    spec = PolicySpec("fixed-width", 0.1, Goal(max_width=0.2))
    of_R, of_coverage = measured_ratios(spec, by_group(20), "group", trials=40, tables=80)

    assert 0.8 <= of_R <= 1.25
    # Such rules cover more than they promise, by how much varies, and most of that is not linear.
    assert 0.8 <= of_coverage <= 1.5


@pytest.mark.parametrize("kind", ["fixed-width", "adaptive"])
def test_a_jackknife_that_does_not_recalibrate_would_say_too_little(monkeypatch, kind):
    pytest.importorskip("numba")
    measured = _JackknifeReplicates.measured

    def not_again(planned, splitting, *rest):
        middle = np.median([planned(r)[1] for r in range(splitting.trials)], axis=0)
        return measured(lambda r: (planned(r)[0], middle), splitting, *rest)

    monkeypatch.setattr(_JackknifeReplicates, "measured", not_again)
    of_R, of_coverage = ratios(monkeypatch, kind, by_group(20), "group", tables=60)

    assert of_R < 0.8
    assert of_coverage > 1.25
