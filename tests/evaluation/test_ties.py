"""Ties up to rounding: an evaluation counts what the reported intervals contain."""

from itertools import combinations

import numpy as np
import pytest

import taskuq as tq
from taskuq.conformal import _splits as pools
from taskuq.conformal._family import LinearFamily, Link
from taskuq.conformal._splits import covering_quantile, fold_sizes
from taskuq.conformal.scores._mlwr import MLWR

STEPS = (255, 10, 3)
SCORES = ("ar", "lwr", "cqr", "mlwr")


def on_a_grid(steps, seed, cases=9, samples=4):
    """A small population whose outputs and targets are multiples of 1/steps."""
    rng = np.random.default_rng(seed)
    # Few shapes in many places: scores that tie in fractions, and differ in their last bits.
    shapes = rng.integers(-1, 2, (2, samples)) * max(1, steps // 20)
    center = rng.integers(1, steps, cases)
    outputs = center[:, None] + shapes[rng.integers(0, 2, cases)]
    targets = center + rng.choice([-2, -1, 1, 2], cases) * max(1, steps // 30)
    return np.clip(outputs, 0, steps) / steps, np.clip(targets, 0, steps) / steps


def counted(outputs, targets, alpha, score, task_range, side):
    """The coverage of every split, by asking the intervals."""
    cases = len(targets)
    n = fold_sizes(cases)[0]
    found = []
    for fold in combinations(range(cases), n):
        test = [i for i in range(cases) if i not in fold]
        bound = tq.calibrate(outputs[list(fold)], targets[list(fold)], alpha=alpha, score=score,
                             task_range=task_range, side=side)  # fmt: skip
        found.append(bound(outputs[test]).contains(targets[test]).mean())
    return np.array(found)


def gaps(steps, score, task_range, side, seeds=range(5)):
    """How far evaluation and counting are apart, in mean and in standard deviation."""
    found = []
    for seed in seeds:
        x, z = on_a_grid(steps, seed)
        same = MLWR(side).fit(x, range_=task_range) if score == "mlwr" else score
        options = {"alpha": 0.3, "score": same, "task_range": task_range, "side": side}
        coverage = counted(x, z, *options.values())
        exact = tq.evaluate_exact(x, z, **options).coverage
        found += [abs(exact.mean - coverage.mean()), abs(exact.sd - coverage.std())]
    return np.array(found)


@pytest.mark.parametrize("side", ["two", "lower"])
@pytest.mark.parametrize("task_range", [None, (0.0, 1.0)])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("steps", STEPS)
def test_evaluation_counts_on_a_grid_what_the_intervals_contain(steps, score, task_range, side):
    assert gaps(steps, score, task_range, side).max() < 1e-7


@pytest.mark.parametrize("steps", [255, 10])
def test_scores_compared_exactly_would_count_too_few(steps, monkeypatch):
    monkeypatch.setattr(pools, "covering_quantile", lambda scores, ordered, contains: scores)

    assert max(gaps(steps, score, None, "two").max() for score in SCORES) > 0.01


def test_scores_that_tie_but_for_rounding_are_all_covered():
    # Residuals of one tenth around tenths differ in their last places, and nothing else does.
    center = np.arange(1, 10) / 10
    targets = np.arange(2, 11) / 10
    assert len(np.unique(np.abs(targets - center))) > 1
    exact = tq.evaluate_exact(center[:, None], targets, alpha=0.3, score="ar")

    assert exact.coverage.mean == 1


def test_each_case_is_covered_from_the_smallest_quantile_that_will_do():
    rng = np.random.default_rng(0)
    starts, quantiles = rng.integers(0, 12, 400), np.arange(10.0)
    scores = starts + rng.integers(0, 3, 400) + 0.0
    found = covering_quantile(scores, quantiles, lambda cases, q: starts[cases] <= q)

    assert (found == np.where(starts < 10, starts, np.inf)).all()


@pytest.mark.parametrize("link", [Link(), Link("logit")])
@pytest.mark.parametrize("side", ["two", "upper", "lower"])
def test_intervals_are_nested_and_have_what_scores_at_most_the_quantile(side, link):
    rng = np.random.default_rng(3)
    cases = 500
    z = rng.integers(0, 256, cases) / 255
    a, b = np.sort(link(rng.integers(0, 256, (2, cases)) / 255), axis=0)
    family = LinearFamily(a, b, rng.integers(0, 9, cases) / 9, side, link)
    scores = family.score(z)
    finite = scores[np.isfinite(scores)]
    levels = np.unique(np.r_[finite, np.nextafter(finite, -np.inf), -1e-17, 0.0, 1e-17])
    before = family.interval(-np.inf)
    for q in levels:
        interval = family.interval(q)
        assert interval.contains(z)[scores <= q].all()
        is_there = ~before.is_empty
        assert (interval.lower <= before.lower)[is_there].all()
        assert (interval.upper >= before.upper)[is_there].all()
        before = interval
