"""Joint bounds: every case of small populations is the new one, all tasks together."""

from fractions import Fraction
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import taskuq as tq
from taskuq.conformal import _quantiles
from taskuq.conformal._joint import _max_rank_quantiles, _MonotoneScale, load_joint_bound
from taskuq.conformal._quantiles import coverage_rank

ALPHAS = (0.1, 0.2, 0.25, 0.34, 0.5)
METHODS = ("max", "scale", "minimax", "rank")
SCORES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 90)), min_size=24, max_size=30)


def covered_rotations(population, alpha, method):
    """Count the cases whose targets are all covered when the others calibrate; output 0, AR.

    Cases that the method sets aside stay where they are: only the others take turns.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_quantiles, "random_order", lambda contents, _: np.arange(len(contents)))
        return _covered_rotations(np.asarray(population, dtype=float), alpha, method)


def _covered_rotations(targets, alpha, method):
    n = len(targets) - 1
    trial = tq.calibrate_joint(
        np.zeros((n, 1, targets.shape[1])), targets[:n], alpha=alpha, score="ar", method=method
    )
    aside = np.arange(n) < trial.provenance["tuning_cases"]
    tuning, turning = targets[: aside.sum()], targets[aside.sum() :]
    covered = 0
    for new in range(len(turning)):
        z = np.empty((n, targets.shape[1]))
        z[aside], z[~aside] = tuning, np.delete(turning, new, axis=0)
        bound = tq.calibrate_joint(
            np.zeros((n, 1, z.shape[1])), z, alpha=alpha, score="ar", method=method
        )
        covered += bool(bound(np.zeros((1, 1, z.shape[1]))).contains(turning[new]).all())
    return covered, len(turning)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=15)
@given(population=SCORES, alpha=st.sampled_from(ALPHAS))
def test_all_tasks_are_covered_together(method, population, alpha):
    covered, turns = covered_rotations(population, alpha, method)
    assert covered >= (1 - Fraction(str(alpha))) * turns


@pytest.mark.parametrize(
    ("method", "delta", "some"),
    [("max", None, False), ("scale", None, False), ("scale", 0.2, True), ("minimax", None, True),
     ("rank", None, False)],
)  # fmt: skip
def test_methods_that_set_cases_aside(method, delta, some):
    outputs, targets = np.zeros((40, 1, 2)), np.ones((40, 2))
    bound = tq.calibrate_joint(outputs, targets, alpha=0.2, score="ar", method=method, delta=delta)
    assert (bound.provenance["tuning_cases"] > 0) == some


def two_tasks(rng, n, bias):
    """One of two tasks is biased by so many standard deviations, and in other units."""
    targets = rng.random((n, 2))
    errors = 0.05 * rng.standard_normal((n, 1, 2))
    outputs = targets[:, None] + errors + 0.05 * rng.standard_normal((n, 8, 2))
    outputs[..., 1] += 0.05 * bias
    return outputs * [1.0, 100.0], targets * [1.0, 100.0]


@pytest.mark.parametrize("score", ["ar", "lwr", "mlwr"])
@pytest.mark.parametrize(("n", "grouped"), [(400, False), (400, True)])
def test_default_is_not_much_wider_than_bonferroni(score, n, grouped):
    outputs, targets = two_tasks(np.random.default_rng(1), n, bias=3)
    group = np.arange(n) // 4 if grouped else None
    joint = tq.calibrate_joint(outputs, targets, alpha=0.1, score=score, group=group)
    for k in range(2):
        alone = tq.calibrate(outputs[..., k], targets[:, k], alpha=0.05, score=score, group=group)
        width = joint(outputs).width[:, k].mean()
        assert width <= 1.1 * alone(outputs[..., k]).width.mean()
    missed = ~joint(outputs).contains(targets)
    assert np.abs(np.array(joint.miss_rates) - missed.mean(axis=0)).max() <= 0.02
    assert sum(joint.miss_rates) <= 0.11


def test_one_task_equals_calibrate():
    scores = np.random.default_rng(1).permutation(30).astype(float)
    joint = tq.calibrate_joint(np.zeros((30, 1, 1)), scores[:, None], alpha=0.1, score="ar")
    assert joint.quantiles == (
        tq.calibrate(np.zeros((30, 1)), scores, alpha=0.1, score="ar").quantile,
    )


def textbook_max_rank(scores, alpha):
    """The maximum rank without the plus one, as it is often written."""
    n = len(scores)
    ranks = np.stack([[np.sum(column <= s) for s in column] for column in scores.T]).max(axis=0)
    r = int(np.sort(ranks)[coverage_rank(n, alpha) - 1])
    return tuple(np.sort(scores, axis=0)[r - 1])


def test_textbook_rank_without_plus_one_falls_short():
    # Two tasks in opposite order: each new case lowers the others' ranks in one of them.
    up = np.arange(10.0)
    population = np.stack([up, up[::-1]], axis=1)
    alpha = 0.3
    counts = {}
    for name, rule in (("textbook", textbook_max_rank), ("ours", _max_rank_quantiles)):
        counts[name] = sum(
            bool((case <= rule(np.delete(population, i, axis=0), alpha)).all())
            for i, case in enumerate(population)
        )
    assert counts["textbook"] < 0.7 * len(population) <= counts["ours"]


@given(
    knots=st.lists(st.integers(-1000, 1000), min_size=2, max_size=8, unique=True),
    gap=st.sampled_from([1e-6, 1.0, 1e6]),
    scores=st.lists(st.floats(-2e3, 2e3, allow_subnormal=False), min_size=1, max_size=20),
)
def test_inverse_scale_is_never_below_the_score(knots, gap, scores):
    rising = np.sort(knots) * gap
    scale = _MonotoneScale(tuple(rising), tuple(np.arange(1, len(rising) + 1) / (len(rising) + 1)))
    for score in scores:
        back = scale.inverse(float(scale(np.array([score]))[0]))
        assert back >= score
        assert back <= score + 1e-9 * (abs(score) + np.abs(rising).max())


def test_scale_keeps_infinity():
    scale = _MonotoneScale((-1.0, 1.0), (0.3, 0.6))
    assert (scale.inverse(inf), scale.inverse(-inf)) == (inf, -inf)


@pytest.mark.parametrize("method", METHODS)
def test_too_few_cases_give_infinity(method):
    targets = np.random.default_rng(0).random((12, 2))
    bound = tq.calibrate_joint(np.zeros((12, 1, 2)), targets, alpha=0.05, score="ar", method=method)
    assert not bound.is_finite
    assert bound.quantiles == (inf, inf)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("score", ["cqr", "learned"])
def test_joint_bound_survives_a_file(method, score, tmp_path):
    rng = np.random.default_rng(4)
    truth = rng.random((80, 2))
    outputs = np.clip(truth[:, None] + 0.1 * rng.standard_normal((80, 5, 2)), 0, 1)
    bound = tq.calibrate_joint(
        outputs, truth, alpha=0.1, score=score, method=method, task_range=(0, 1)
    )
    again = load_joint_bound(bound.save(tmp_path / "joint.json"))
    assert again == bound
    assert (again(outputs).lower == bound(outputs).lower).all()
