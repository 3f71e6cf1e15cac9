"""Joint bounds: every case of small populations is the new one, all tasks together."""

from fractions import Fraction
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import taskuq as tq
from taskuq.conformal import _joint
from taskuq.conformal._joint import _MonotoneScale, load_joint_bound

METHODS = ("scale", "minimax")


@pytest.mark.parametrize(
    ("method", "delta", "some"),
    [("scale", None, False), ("scale", 0.2, True), ("minimax", None, True)],
)
def test_methods_that_set_cases_aside(method, delta, some):
    outputs, targets = np.zeros((40, 1, 2)), np.ones((40, 2))
    bound = tq.calibrate_joint(outputs, targets, alpha=0.2, score="ar", method=method, delta=delta)
    assert (bound.provenance["tuning_cases"] > 0) == some


def population(rng):
    """Units of unequal size whose tasks are biased, in other units, tied, or without spread."""
    units = int(rng.choice([8, 10]))
    sizes = rng.choice([1, 1, 2, 5], units) if rng.random() < 0.6 else np.ones(units, int)
    group = np.repeat(np.arange(len(sizes)), sizes)
    targets = np.round(rng.standard_normal((len(group), 2)) * 10.0 ** rng.integers(-1, 2), 1)
    errors = rng.standard_normal((len(group), 1, 2)) * 10.0 ** rng.uniform(
        -2, 1, (len(group), 1, 2)
    )
    outputs = targets[:, None] + errors + rng.standard_normal((len(group), 4, 2))
    outputs[..., 1] += rng.choice([0, 3, 30])
    outputs[rng.random(len(group)) < 0.2] = 0
    # A whole number of units may be missed: the law has no slack.
    alpha = int(rng.integers(2, 7)) / units
    return outputs * [1.0, 1e-3], targets * [1.0, 1e-3], group, alpha


def missed_and_widest(outputs, targets, group, alpha, score, cases):
    """Return the mean loss with each unit as the new one, and the widest against Bonferroni."""
    units, lost, widest = group.max() + 1, Fraction(0), 0.0
    grouped = cases != "case"
    how = {"score": score, **({"cases": cases} if grouped else {})}
    for new in range(units):
        there, own = group != new, group == new
        how["group"] = group[there] if grouped else None
        joint = tq.calibrate_joint(outputs[there], targets[there], alpha=alpha, **how)
        missed = int((~joint(outputs[own]).contains(targets[own]).all(axis=1)).sum())
        lost += Fraction(bool(missed)) if cases == "all" else Fraction(missed, int(own.sum()))
        for k in range(2 if new == 0 else 0):
            x, z = outputs[there][..., k], targets[there, k]
            alone = tq.calibrate(x, z, alpha=alpha / 2, **how)
            if alone.is_finite and joint.quantiles[k] > 0:
                widest = max(widest, joint.quantiles[k] / alone.quantile)
    return lost / units, widest


def enumerated(count, seed=0):
    """Count populations, those covered too rarely, and return the widest against Bonferroni."""
    rng, broken, widest = np.random.default_rng(seed), 0, 0.0
    for _ in range(count):
        outputs, targets, group, alpha = population(rng)
        alone = group.max() + 1 == len(group)
        cases = "case" if alone else str(rng.choice(["random", "all"]))
        score = str(rng.choice(["ar", "mlwr", "mlwr", "cqr"]))
        lost, wide = missed_and_widest(outputs, targets, group, alpha, score, cases)
        broken, widest = broken + (lost > Fraction(str(alpha))), max(widest, wide)
    return broken, widest


def test_scaled_intervals_cover_and_are_never_wider_than_bonferroni():
    broken, widest = enumerated(120)
    assert broken == 0
    assert widest <= 1 + 1e-12


def test_half_of_bonferroni_is_seen(monkeypatch):
    right = _joint._times
    monkeypatch.setattr(_joint, "_times", lambda factor, scale: right(min(factor, 0.5), scale))
    assert enumerated(30)[0] > 0


def test_miss_rates_are_those_of_the_intervals():
    rng = np.random.default_rng(1)
    targets = rng.random((400, 2))
    outputs = targets[:, None] + 0.05 * rng.standard_normal((400, 1, 2)) + np.zeros((400, 8, 1))
    joint = tq.calibrate_joint(outputs, targets, alpha=0.1, score="ar")
    missed = ~joint(outputs).contains(targets)
    assert joint.miss_rates == pytest.approx(missed.mean(axis=0))
    assert "measured misses" in repr(joint)


def test_one_task_equals_calibrate():
    scores = np.random.default_rng(1).permutation(30).astype(float)
    joint = tq.calibrate_joint(np.zeros((30, 1, 1)), scores[:, None], alpha=0.1, score="ar")
    assert joint.quantiles == (
        tq.calibrate(np.zeros((30, 1)), scores, alpha=0.1, score="ar").quantile,
    )


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
