"""A quantile for each end: an evaluation is what counting over its splits gives."""

from math import inf

import numpy as np
import pytest

import taskuq as tq
from taskuq.conformal import _splits as splits
from taskuq.conformal._evaluate import EvaluationGrid, evaluate_table
from taskuq.conformal._splits import fold_sizes
from taskuq.table._table import TaskOutputs

RNG = np.random.default_rng(8)
N, TRIALS, ALPHA = 90, 25, 0.3
TRUTH = np.round(64 * RNG.random(N)) / 64
OUTPUTS = TRUTH[:, None] + np.round(8 * RNG.gamma(1.0, size=(N, 4))) / 64
OUTPUTS[:12] = OUTPUTS[:12, :1]  # no spread: scores of plus and minus infinity
GROUP = np.sort(RNG.integers(0, 30, N))
LABEL = np.where(TRUTH > 0.7, "high", "low")


def counted(options, score="lwr", **extra):
    """The evaluation, and for each of its splits the test fold with its intervals."""
    rng = np.random.default_rng(3)
    result = tq.evaluate(
        OUTPUTS, TRUTH, alpha=ALPHA, score=score, side="each", trials=TRIALS, rng=rng, **options,
        **extra,
    )  # fmt: skip
    group = options.get("group")
    unit = np.arange(N) if group is None else np.unique(group, return_inverse=True)[1]
    units = int(unit.max()) + 1
    seed = int(np.random.default_rng(3).integers(2**63))
    found = []
    for fold in splits.test_sets(seed, 0, TRIALS, units, fold_sizes(units)[1]).astype(bool):
        test = fold[unit]
        own = options | ({} if group is None else {"group": group[~test]})
        bound = tq.calibrate(
            OUTPUTS[~test], TRUTH[~test], alpha=ALPHA, score=score, side="each", **own
        )
        found.append((test, bound(OUTPUTS), bound))
    return result, found


@pytest.mark.parametrize("options", [{}, {"task_range": (-1, 2)}, {"group": GROUP}])
def test_coverage_width_and_centre_error_are_counted_on_the_splits(options):
    result, found = counted(options)
    of_case = np.ones(N)
    if "group" in options:
        of_case = 1 / np.bincount(GROUP)[GROUP]

    def mean(values):
        return np.mean([np.average(v[t], weights=of_case[t]) for (t, _, _), v in values])

    paired = [(one, one[1]) for one in found]
    covered = mean([(one, interval.contains(TRUTH)) for one, interval in paired])
    width = mean([(one, interval.width) for one, interval in paired])
    assert result.coverage.mean == pytest.approx(covered, abs=1e-9)
    if all(bound.is_finite for _, _, bound in found):
        error = mean([(one, np.abs(interval.center - TRUTH)) for one, interval in paired])
        assert result.center_error.mean == pytest.approx(error, rel=1e-9)
    assert result.width.mean == pytest.approx(width, rel=1e-9)
    assert 0 < result.coverage.mean < 1


def test_the_infinite_share_counts_splits_with_an_open_end():
    result, found = counted({})
    ends = [bound.threshold.quantiles for _, _, bound in found]

    assert result.infinite == np.mean([max(pair) == inf for pair in ends])
    assert result.infinite > 0
    assert result.width.mean == inf
    assert any(min(pair) < inf for pair in ends if max(pair) == inf)


def test_classes_and_whole_groups_are_counted_on_the_splits():
    result, found = counted({"group": GROUP}, score="ar", label=LABEL)
    covered = [(test, interval.contains(TRUTH)) for test, interval, _ in found]
    of_case = 1 / np.bincount(GROUP)[GROUP]
    weights = [of_case * t * (LABEL == "high") for t, _ in covered]
    high = sum(w @ c for w, (_, c) in zip(weights, covered, strict=True)) / np.sum(weights)
    whole = [np.mean([c[g == GROUP].all() for g in np.unique(GROUP[t])]) for t, c in covered]
    strata = {s.name: s.coverage for s in result.class_coverage}

    assert strata["high"] == pytest.approx(high, abs=1e-9)
    assert result.whole_groups == pytest.approx(np.mean(whole), abs=1e-9)


def test_a_comparison_says_what_one_quantile_would_give():
    table = TaskOutputs(OUTPUTS[None], TRUTH)
    each, two = (
        evaluate_table(table, EvaluationGrid(("ar",), ALPHA, trials=50, side=side)).results[0]
        for side in ("each", "two")
    )

    assert each.width_by_one == two.width
    assert each.width.mean < two.width.mean  # outputs lie above their targets
    assert two.width_by_one is None


def test_the_closed_form_is_for_one_quantile():
    with pytest.raises(tq.InputError, match="side 'each' takes --splits"):
        tq.evaluate_exact(OUTPUTS, TRUTH, alpha=ALPHA, side="each")
