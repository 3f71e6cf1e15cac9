"""Simulated coverage follows its exact law, and a rank off by one does not."""

from dataclasses import replace

import numpy as np
import pytest

import taskuq as tq
from taskuq.conformal import _evaluate as montecarlo
from taskuq.conformal._exact import coverage_histogram

TRUTH = np.random.default_rng(17).random(149)
OUTPUTS = TRUTH[:, None] + 0.1 * np.random.default_rng(18).standard_normal((149, 4))
# 149 cases split into 104 and 45; 4000 trials see a rank that is off by one.
RUN = {"alpha": 0.1, "score": "lwr", "trials": 4000}


def p_value(outputs=OUTPUTS, targets=TRUTH):
    result = tq.evaluate(outputs, targets, seed=np.random.default_rng(7), **RUN)
    return result.histogram.p_value


def test_coverage_of_random_splits_follows_its_law():
    assert p_value() > 1e-6


def test_coverage_follows_its_law_with_ties():
    assert p_value(np.round(OUTPUTS, 1), np.round(TRUTH, 1)) > 1e-6


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_rank_off_by_one_is_seen(shift, monkeypatch):
    ranking = montecarlo.rank_for_guarantee

    def off_by_one(*arguments):
        right = ranking(*arguments)
        return replace(right, allowed=right.allowed - shift)

    monkeypatch.setattr(montecarlo, "rank_for_guarantee", off_by_one)

    assert p_value() < 1e-6


def test_the_histogram_counts_every_trial_and_expects_as_many():
    histogram = tq.evaluate(OUTPUTS, TRUTH, seed=np.random.default_rng(7), **RUN).histogram

    assert sum(histogram.splits) == 4000
    assert sum(histogram.expected) == pytest.approx(4000, abs=5)
    assert "whatever the data are" in histogram.reading


def test_impossible_counts_have_no_chance():
    assert coverage_histogram(np.array([0, 0]), np.array([0.0, 1.0])).p_value == 0
    assert coverage_histogram(np.array([0] * 100), np.array([0.5, 0.5])).p_value < 1e-20


def test_means_over_trials_approach_the_exact_ones():
    result = tq.evaluate(OUTPUTS, TRUTH, seed=np.random.default_rng(3), **RUN)
    exact = tq.evaluate_exact(OUTPUTS, TRUTH, alpha=0.1, score="lwr")
    for found, known in ((result.coverage, exact.coverage), (result.width, exact.width)):
        # Six standard errors of a seeded mean: beyond 1e-9.
        assert abs(found.mean - known.mean) < 6.2 * known.sd / np.sqrt(4000)
        assert found.sd == pytest.approx(known.sd, rel=0.1)
