"""Sums along lines equal sums of every case at every quantile, and cost as much as the cases."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import taskuq as tq
from taskuq.conformal import _exact as sums
from taskuq.conformal._exact import evaluate_exact
from taskuq.conformal._family import LinearFamily
from taskuq.conformal._splits import Pool

RANGES = [None, (0.0, 1.0), (-0.25, np.inf), (-np.inf, 0.75)]


def drawn_pool(seed, cases, task_range, side, kind):
    """A pool with what is hard: crossing ends, no spread, ties, ends on the range, huge scores."""
    rng = np.random.default_rng(seed)
    low = rng.uniform(-0.1, 1.1, cases)
    high = low + {"center": 0, "crossing": rng.uniform(-0.2, 0.4, cases)}.get(kind, 0)
    scale = rng.choice([0, 1e-9, 0.1, 0.3], cases) if kind == "spread" else np.ones(cases)
    targets = rng.random(cases)
    if kind == "grid":
        low = np.round(low * 8) / 8
        high, scale, targets = low, np.full(cases, 0.25), np.round(targets * 8) / 8
    family = LinearFamily(low, high, scale, side)
    pool = Pool(np.arange(cases), family, targets, family.score(targets), task_range, cases, 0)
    return pool.take(np.argsort(pool.scores, kind="stable"))


def sums_with(pool, table):
    position = np.arange(1, len(pool.scores) + 1)
    with mock.patch.object(sums, "TABLE", table), np.errstate(invalid="ignore"):
        return sums._pool_sums(pool, position)


@given(
    seed=st.integers(0, 10**6),
    cases=st.integers(1, 40),
    task_range=st.sampled_from(RANGES),
    side=st.sampled_from(["two", "upper", "lower"]),
    kind=st.sampled_from(["center", "crossing", "spread", "grid"]),
)
@example(seed=0, cases=40, task_range=(0.0, 1.0), side="two", kind="crossing")
def test_lines_give_what_every_case_at_every_quantile_gives(seed, cases, task_range, side, kind):
    pool = drawn_pool(seed, cases, task_range, side, kind)
    lines, tables = sums_with(pool, 0), sums_with(pool, 10**9)
    # Before and after the position are what matters; where something is infinite both say so.
    known = np.isfinite(tables)
    scale = np.abs(tables[known]).max(initial=1.0)

    assert np.isfinite(lines[known]).all()
    assert not np.isfinite(lines[~known]).any()
    np.testing.assert_allclose(lines[known], tables[known], rtol=1e-12, atol=1e-12 * scale)


@pytest.mark.parametrize("score", ["ar", "lwr", "cqr", "mlwr"])
def test_both_ways_evaluate_alike(score):
    rng = np.random.default_rng(5)
    truth = rng.random(400)
    outputs = np.clip(truth[:, None] + 0.2 * rng.standard_normal((400, 8)), 0, 1)

    def judged(table):
        with mock.patch.object(sums, "TABLE", table):
            return evaluate_exact(outputs, truth, alpha=0.1, score=score, task_range=(0, 1))

    few, many = judged(0), judged(10**9)
    for name in ("coverage", "width", "center_error"):
        assert getattr(few, name).mean == pytest.approx(getattr(many, name).mean, rel=1e-12)
        assert getattr(few, name).sd == pytest.approx(getattr(many, name).sd, rel=1e-9)


def asked_intervals(cases, monkeypatch):
    """How many intervals an evaluation asks for, per case."""
    rng = np.random.default_rng(1)
    truth = rng.random(cases)
    outputs = np.clip(truth[:, None] + 0.2 * rng.standard_normal((cases, 2)), 0, 1)
    count = []
    ours = LinearFamily.interval

    def counted(self, quantile):
        interval = ours(self, quantile)
        count.append(interval.lower.size)
        return interval

    monkeypatch.setattr(LinearFamily, "interval", counted)
    tq.evaluate_exact(outputs, truth, alpha=0.05, score="lwr", task_range=(0, 1))
    monkeypatch.setattr(LinearFamily, "interval", ours)
    return sum(count) / cases


def test_the_work_per_case_does_not_grow_with_the_cases(monkeypatch):
    # By tables it would be some 800 for 100,000 cases, and ten times more for 10⁷.
    assert asked_intervals(10**5, monkeypatch) < 20
