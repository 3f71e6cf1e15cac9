"""Faults planted on purpose: each law must notice each of them."""

from itertools import combinations
from math import inf

import numpy as np
import pytest

import taskuq as tq
from taskuq.conformal import _exact as closed_form
from taskuq.conformal import _quantiles as rank
from taskuq.conformal import _units as units

RNG = np.random.default_rng(77)
SCORES = RNG.permutation(20).astype(float) + 1


def quantile(targets, alpha):
    """The quantile of a bound whose AR scores are the targets themselves."""
    return tq.calibrate(np.zeros((len(targets), 1)), targets, alpha=alpha, score="ar").quantile


def rotations_are_covered_rank_times():
    """Of n + 1 rotations exactly ceil((1 - alpha)(n + 1)) are covered."""
    for alpha, covered in ((0.1, 18), (0.25, 15), (0.05, 19), (0.02, 20)):
        found = sum(s <= quantile(np.delete(SCORES, i), alpha) for i, s in enumerate(SCORES))
        assert found == covered


def the_quantile_is_the_order_statistic():
    """By definition: the smallest value that (1 - alpha)(n + 1) of the scores do not exceed."""
    for alpha, level in ((0.1, 18.9), (0.25, 15.75), (0.3, 14.7)):
        reached = [q for q in sorted(SCORES) if (q >= SCORES).sum() >= level]
        assert quantile(SCORES, alpha) == reached[0]


def exact_evaluation_equals_every_split():
    """Mean coverage and width over all splits of ten cases into seven and three."""
    targets = SCORES[:10]
    exact = tq.evaluate_exact(np.zeros((10, 1)), targets, alpha=0.3, score="ar")
    coverage, width = [], []
    for fold in combinations(range(10), 7):
        q = np.sort(targets[list(fold)])[5]  # ceil(0.7 * 8) = 6th smallest
        test = np.delete(targets, fold)
        coverage.append((test <= q).mean())
        width.append(2 * q)
    assert exact.coverage.mean == pytest.approx(np.mean(coverage), abs=1e-12)
    assert exact.width.mean == pytest.approx(np.mean(width), abs=1e-12)


def too_few_cases_give_infinity():
    assert quantile(np.arange(18.0), 0.05) == inf
    assert tq.evaluate_exact(np.zeros((20, 1)), SCORES, alpha=0.05, score="ar").infinite == 1


LAWS = (
    rotations_are_covered_rank_times,
    the_quantile_is_the_order_statistic,
    exact_evaluation_equals_every_split,
    too_few_cases_give_infinity,
)

RIGHT_RANK = rank.coverage_rank
RIGHT_STATISTIC = rank.order_statistic


def plant_rank(monkeypatch, wrong):
    for module in (rank, closed_form):
        monkeypatch.setattr(module, "coverage_rank", wrong)


def rank_one_too_low(monkeypatch):
    plant_rank(monkeypatch, lambda n, alpha: max(1, RIGHT_RANK(n, alpha) - 1))


def rank_one_too_high(monkeypatch):
    plant_rank(monkeypatch, lambda n, alpha: RIGHT_RANK(n, alpha) + 1)


def no_n_plus_one(monkeypatch):
    plant_rank(monkeypatch, lambda n, alpha: int(np.ceil((1 - alpha) * n)))


def interpolated_quantile(monkeypatch):
    def interpolated(scores, k):
        values = np.asarray(scores, dtype=float)
        return inf if k > len(values) else float(np.quantile(values, k / len(values)))

    monkeypatch.setattr(units, "order_statistic", interpolated)


def largest_instead_of_infinity(monkeypatch):
    monkeypatch.setattr(units, "order_statistic", lambda s, k: RIGHT_STATISTIC(s, min(k, len(s))))


# Which laws see which fault. The others may or may not.
FAULTS = {
    rank_one_too_low: {rotations_are_covered_rank_times, exact_evaluation_equals_every_split},
    rank_one_too_high: {rotations_are_covered_rank_times, exact_evaluation_equals_every_split},
    no_n_plus_one: {
        rotations_are_covered_rank_times,
        exact_evaluation_equals_every_split,
        too_few_cases_give_infinity,
    },
    interpolated_quantile: {the_quantile_is_the_order_statistic},
    largest_instead_of_infinity: {rotations_are_covered_rank_times, too_few_cases_give_infinity},
}


@pytest.mark.parametrize("law", LAWS, ids=lambda f: f.__name__)
def test_laws_hold(law):
    law()


@pytest.mark.parametrize(
    ("fault", "law"),
    [(fault, law) for fault, laws in FAULTS.items() for law in sorted(laws, key=str)],
    ids=lambda f: f.__name__,
)
def test_planted_fault_breaks_its_laws(fault, law, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        law()
