"""Diagnosis of samples, against exchangeability, proper scores and planted faults."""

import json
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

import taskuq as tq
from raising import refused
from taskuq.conformal._diagnose import binomial_band, crps, rank_histogram

# Few different numbers: ties are common.
pools = st.lists(st.integers(0, 6), min_size=3, max_size=9)


def each_as_the_truth(pool):
    """Every number of a pool in turn as the target, the others as its samples."""
    values = np.array(pool, float)
    return np.array([np.delete(values, i) for i in range(len(values))]), values


def exchangeable(cases=60, samples=9, seed=0):
    """Exchangeable by construction: each number of each pool is the truth once."""
    pools = np.random.default_rng(seed).standard_normal((cases, samples + 1))
    pairs = [each_as_the_truth(pool) for pool in pools]
    return np.concatenate([x for x, _ in pairs]), np.concatenate([z for _, z in pairs])


@pytest.mark.parametrize("p", [2, 3])
def test_the_mean_crps_over_all_draws_is_that_of_the_law(p):
    law, target = np.array([0.0, 0.0, 1.0, 4.0]), 0.5
    draws = np.array(list(product(law, repeat=p)))
    exact = np.abs(law - target).mean() - np.abs(law[:, None] - law).mean() / 2
    assert crps(draws, np.full(len(draws), target)).mean() == pytest.approx(exact, abs=1e-12)


@given(pools)
def test_ranks_of_exchangeable_numbers_are_flat_with_any_ties(pool):
    outputs, targets = each_as_the_truth(pool)
    np.testing.assert_allclose(rank_histogram(outputs, targets), 1 / len(pool), atol=1e-12)


def test_exchangeable_samples_have_their_calibrated_values_exactly():
    outputs, targets = exchangeable()
    (result,) = tq.diagnose(outputs, targets, bins=10).results
    assert result.verdict == "calibrated"
    assert [bar.fraction for bar in result.histogram] == pytest.approx([0.1] * 10)
    assert result.outside.value == pytest.approx(result.outside.expected)
    assert result.outside.expected == pytest.approx(2 / 10)
    # All numbers of a pool in turn: the variances add up with the factor 1 + 1/p exactly.
    assert result.spread_over_error.value == pytest.approx(1, abs=1e-12)
    assert result.bias.value == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("spread", "shift", "verdict"),
    [(3.0, 0.0, "over-dispersed"), (0.3, 0.0, "under-dispersed"), (1.0, 1.0, "biased"),
     (1.0, -1.0, "biased")],
)  # fmt: skip
def test_planted_faults_are_found(spread, shift, verdict):
    x, z = exchangeable(cases=100)
    mean = x.mean(axis=1, keepdims=True)
    (result,) = tq.diagnose(mean + spread * (x - mean) + shift, z).results
    assert result.verdict == verdict
    assert (result.spread_over_error.value < 1) == (verdict != "over-dispersed")
    assert result.bias.value == pytest.approx(shift, abs=1e-12)


def test_shift_and_scale_change_nothing_but_the_unit():
    x, z = exchangeable(seed=1)
    (one,) = tq.diagnose(x, z).results
    (other,) = tq.diagnose(4 * x + 8, 4 * z + 8).results
    assert other.histogram == one.histogram
    assert other.outside == one.outside
    assert other.crps.value == pytest.approx(4 * one.crps.value)
    assert other.bias.value == pytest.approx(4 * one.bias.value, abs=1e-12)
    assert other.spread_over_error.value == pytest.approx(one.spread_over_error.value)


def test_the_order_of_rows_and_samples_does_not_matter():
    rng = np.random.default_rng(2)
    x, z = exchangeable(seed=2)
    group, label = np.arange(len(z)) // 7, np.arange(len(z)) % 3
    one = tq.diagnose(x, z, group=group, label=label)
    order = rng.permutation(len(z))
    other = tq.diagnose(
        rng.permuted(x[order], axis=1), z[order], group=group[order], label=label[order]
    )
    for a, b in zip(one.results, other.results, strict=True):
        assert [bar.fraction for bar in a.histogram] == pytest.approx(
            [bar.fraction for bar in b.histogram]
        )
        assert a.crps.value == pytest.approx(b.crps.value)
        assert a.crps.se == pytest.approx(b.crps.se)
        assert a.verdict == b.verdict


def test_the_band_is_binomial_and_its_level_is_exact():
    p = np.array([0.1, 0.25])
    low, high = binomial_band(50, p, 0.02)
    np.testing.assert_allclose(low * 50, binom.ppf(0.01, 50, p), atol=1e-6)
    np.testing.assert_allclose(high * 50, binom.ppf(0.99, 50, p), atol=1e-6)
    count = np.arange(51)
    for q, a, b in zip(p, low, high, strict=True):
        leaves = (count / 50 < a) | (count / 50 > b)
        assert binom.pmf(count[leaves], 50, q).sum() <= 0.02


def test_copies_within_groups_do_not_narrow_the_band():
    x, z = exchangeable(cases=8)
    (alone,) = tq.diagnose(x, z, bins=5).results
    (copied,) = tq.diagnose(
        np.repeat(x, 6, 0), np.repeat(z, 6), group=np.repeat(np.arange(len(z)), 6), bins=5
    ).results
    assert copied.histogram == alone.histogram
    assert copied.crps.se == pytest.approx(alone.crps.se)
    assert copied.n == 6 * alone.n
    assert alone.crps.se == pytest.approx(crps(x, z).std(ddof=1) / len(z) ** 0.5)
    (one,) = tq.diagnose([[0.1, 0.2, 0.4]], [0.3]).results
    assert np.isnan(one.crps.se)


def test_a_table_is_diagnosed_by_round_task_and_class():
    rng = np.random.default_rng(4)
    truth = rng.standard_normal((40, 2))
    outputs = truth[None, :, None] + rng.standard_normal((3, 40, 5, 2))
    label = np.arange(40) % 2
    table = tq.TaskOutputs(
        outputs, truth, accelerations=(8, 4, 2), label=label, task_names=("a", "b")
    )
    result = tq.diagnose(table)
    names = [(r.acceleration, r.task, r.label) for r in result.results]
    assert names == list(product((8.0, 4.0, 2.0), ("a", "b"), (None, "0", "1")))
    (chosen, *_) = tq.diagnose(table, acceleration=4, task="b").results
    assert chosen == result.results[9]
    (alone,) = tq.diagnose(outputs[1, :, :, 1], truth[:, 1]).results
    assert alone.histogram == chosen.histogram
    assert alone.crps == chosen.crps
    record = json.loads(json.dumps(result.to_dict()))
    assert record["schema"] == "taskuq.diagnose/1"
    assert record["results"][9]["crps"]["value"] == chosen.crps.value
    assert len(str(result).splitlines()) == 20


def test_invalid_samples_are_refused():
    with refused("samples.mismatch"):
        tq.diagnose([[0.5]], [0.5])
    with refused("targets.missing"):
        tq.diagnose([[0.5, 0.6]])
    with refused("value.invalid", "bins"):
        tq.diagnose([[0.5, 0.6]], [0.5], bins=4)
    with refused("option.unused"):
        tq.diagnose([[0.5, 0.6]], [0.5], task="a")


def p_values(seed, unit):
    """P-values of all assignments of some groups to two tables, (statistic, assignment)."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, 6)
    group = np.repeat(np.arange(6), sizes)
    # Coarse, so that there are ties.
    x, z = rng.integers(0, 4, (2, len(group), 2)), rng.integers(0, 3, len(group))
    found = []
    for chosen in combinations(range(6), 3):
        inside = np.isin(group, chosen)
        parts = [tq.TaskOutputs(x[:, i], z[i], (8, 4), group=group[i]) for i in (inside, ~inside)]
        result = tq.compare(*parts, unit=unit)
        alone = sorted((r.name, r.round, r.p_value) for r in result.results)
        found.append([result.p_value, *(p for *_, p in alone)])
    return np.array(found).T


def exceeds(found):
    """Return True if some level is reached more often than it may be."""
    return any((p <= u + 1e-9).mean() > u + 1e-9 for p in found for u in p[p < 1])


def test_exchangeable_tables_are_distinguished_at_the_level():
    assert not any(exceeds(p_values(seed, "group")) for seed in range(12))


def test_cases_of_groups_as_units_are_found():
    assert any(exceeds(p_values(seed, "case")) for seed in range(12))


def test_comparison_names_the_difference():
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((2, 80, 6)), rng.standard_normal(80)
    x[1, 40:] *= 3
    a, b = (tq.TaskOutputs(x[:, i], z[i], (8, 4)) for i in (slice(40), slice(40, 80)))
    found = tq.compare(a, b, permutations=500)
    assert (found.results[0].name, found.results[0].round) == ("spread", "R = 4")
    assert found.p_value <= 0.02 < found.results[-1].adjusted
    assert found.to_dict()["schema"] == "taskuq.compare/1"
    with refused("samples.mismatch"):
        tq.compare(a, b.select(samples=2))
