"""Calibration within classes and strata, under shift, given the set, and for each end."""

from itertools import pairwise
from math import inf

import numpy as np
import pytest

import taskuq as tq
from own_score import OwnScore
from raising import refused
from taskuq.conformal._bound import WeightedQuantile
from taskuq.conformal._quantiles import _pac_rank, coverage_rank
from taskuq.conformal.scores._paper import LWR


def test_unknown_stratum_has_an_infinite_interval():
    bound = tq.calibrate(
        np.zeros((40, 1)), np.arange(40.0), alpha=0.1, score="ar", strata=["a", "b"] * 20
    )
    assert bound(np.zeros((2, 1)), strata=["a", "new"]).is_unbounded.tolist() == [False, True]


@pytest.mark.parametrize("weight", [1.0, 0.1, 1 / 3, 7e5])
def test_equal_weights_give_the_unweighted_rank(weight):
    for n in (9, 19, 24, 99, 149, 999):
        for alpha in (0.05, 0.059, 0.1, 0.18, 0.44, 0.45, 0.7):
            rank = coverage_rank(n, alpha)
            threshold = WeightedQuantile(np.arange(1.0, n + 1), np.full(n, weight), alpha)
            assert threshold.at(1, None, [weight])[0] == (rank if rank <= n else inf)


def test_quantile_grows_with_the_new_weight():
    rng = np.random.default_rng(5)
    threshold = WeightedQuantile(np.sort(rng.random(60)), rng.random(60) + 0.1, 0.1)
    quantiles = threshold.at(50, None, np.linspace(0.01, 20, 50))
    assert all(a <= b for a, b in pairwise(quantiles))
    assert quantiles[-1] == inf


@pytest.mark.parametrize("n", [30, 60, 200])
def test_a_pac_bound_uses_the_pac_rank(n):
    bound = tq.calibrate(np.zeros((n, 1)), np.arange(1.0, n + 1), alpha=0.1, delta=0.1, score="ar")
    assert bound.quantile == _pac_rank(n, 0.1, 0.1)
    assert bound.quantile > coverage_rank(n, 0.1)
    assert bound.coverage_law(10).rank == _pac_rank(n, 0.1, 0.1)


RNG = np.random.default_rng(12)
TRUTH = RNG.random(160)
OUTPUTS = np.clip(TRUTH[:, None] + 0.1 * RNG.gamma(1.0, size=(160, 6)), 0, 1)
ELSEWHERE = OUTPUTS[:60], TRUTH[:60]
X, Z = OUTPUTS[60:], TRUTH[60:]
GROUP = np.repeat(np.arange(50), 2)
PROMISES = {
    "plain": {},
    "range": {"task_range": (0, 1)},
    "groups": {"group": GROUP},
    "all of a group": {"group": GROUP, "cases": "all"},
    "classes": {"label": np.arange(100) % 2},
    "strata": {"strata": np.arange(100) % 2},
    "weights": {"weights": np.linspace(1, 2, 100)},
}


@pytest.mark.parametrize("score", ["lwr", "learned"])
@pytest.mark.parametrize("kind", PROMISES)
def test_ends_are_one_sided_bounds_at_half_alpha(kind, score):
    def ends(side, alpha):
        bound = tq.calibrate(
            X, Z, alpha=alpha, score=score, side=side, tuning=ELSEWHERE, **PROMISES[kind]
        )
        given_by = {k: v for k, v in PROMISES[kind].items() if k in ("strata", "weights")}
        return bound(X, **given_by)

    each = ends("each", 0.2)
    np.testing.assert_array_equal(each.lower, ends("lower", 0.1).lower)
    np.testing.assert_array_equal(each.upper, ends("upper", 0.1).upper)


@pytest.mark.parametrize("group", [None, GROUP])
def test_each_end_has_half_of_delta(group):
    each = tq.calibrate(X, Z, alpha=0.4, delta=0.4, score="cqr", side="each", group=group)
    lower = tq.calibrate(X, Z, alpha=0.2, delta=0.2, score="cqr", side="lower", group=group)
    assert each.threshold.lower == lower.threshold
    assert each.is_finite


def test_two_quantiles_shorten_intervals_of_a_biased_sampler():
    widths = {
        side: tq.calibrate(X, Z, alpha=0.1, score="ar", side=side)(X).width[0]
        for side in ("two", "each")
    }
    assert widths["each"] < 0.8 * widths["two"]


def test_ends_that_cross_are_an_empty_interval():
    # Nearly all targets score minus infinity below: no spread, and at or above the point.
    z = np.r_[np.zeros(40), 5.0]
    outputs = np.r_[np.zeros((40, 2)), [[-1.0, 1.0]]]
    bound = tq.calibrate(outputs, z, alpha=0.2, score="lwr", side="each", task_range=(-9, 9))
    interval = bound(np.array([[0.0, 0.0], [-1.0, 1.0]]))
    assert bound.threshold.quantiles == (-inf, -inf)
    assert interval.is_empty.tolist() == [False, True]
    assert interval.width.tolist() == [0, 0]
    assert interval.contains([0, 0]).tolist() == [True, False]


def test_one_infinite_end_is_open_on_its_side_only():
    z = np.r_[np.linspace(0, 1, 30), np.full(10, 2.0)]
    outputs = np.r_[np.tile([-1.0, 1.0], (30, 1)), np.zeros((10, 2))]
    bound = tq.calibrate(outputs, z, alpha=0.2, score="lwr", side="each")
    interval = bound(np.array([-1.0, 1.0]))
    assert np.isfinite(interval.lower)
    assert interval.upper == inf


def test_two_quantiles_are_refused_where_undefined():
    for score in (OwnScore(), LWR(side="upper")):
        with refused("option.conflict"):
            tq.calibrate(X, Z, alpha=0.2, score=score, side="each")
    with refused("choice.unknown"):
        tq.calibrate_online(X, Z, alpha=0.2, side="each")
    with refused("choice.unknown"):
        tq.calibrate_joint(X[..., None], Z[:, None], alpha=0.2, side="each")
    with refused("option.conflict"):
        tq.calibrate(X, Z, alpha=0.2, side="each").coverage_law(10)
