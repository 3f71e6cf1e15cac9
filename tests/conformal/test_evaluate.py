"""Random splits: both engines give the same numbers, and the numbers are those of the splits."""

import math
import warnings
from functools import partial
from itertools import combinations

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.cli.app import main
from taskuq.conformal import _evaluate as evaluating
from taskuq.conformal import _splits as splits
from taskuq.conformal._evaluate import EvaluationGrid, evaluate_table
from taskuq.conformal._exact import is_below
from taskuq.conformal._guarantee import Guarantee
from taskuq.conformal._splits import (
    RankedScores,
    Splits,
    fold_sizes,
    rank_for_guarantee,
    run_splits,
    splitmix64,
    sums_at_quantiles,
)
from taskuq.conformal._units import _hierarchical_quantile, group_index
from taskuq.conformal.scores._mlwr import MLWR
from taskuq.errors import GuaranteeWarning
from taskuq.table._table import replace_arrays

RNG = np.random.default_rng(31)
N, P = 180, 4
TRUTH = RNG.random(N)
OUTPUTS = np.clip(TRUTH[:, None] + 0.15 * RNG.standard_normal((N, P)), 0, 1)
OUTPUTS[:6] = OUTPUTS[:6, :1]  # no spread
# Eighths and means of four are exact in floats: ties are ties, not neighbours.
TIED = np.round(8 * OUTPUTS) / 8, np.round(8 * TRUTH) / 8
GROUP = np.sort(RNG.integers(0, 60, N))
LABEL = (TRUTH > 0.8).astype(int)


def folds_of(units, n_test, trials, seed):
    return splits.test_sets(seed, 0, trials, units, n_test).astype(bool)


@pytest.mark.parametrize(("units", "n_test"), [(2, 1), (10, 3), (2188, 657)])
def test_compiled_splits_equal_numpy_to_the_bit(units, n_test):
    kernels = pytest.importorskip("taskuq.conformal._kernels")
    words, fold = np.empty(-(-units // 8), np.uint64), np.empty(units, np.uint8)
    for trial, expected in enumerate(splits.test_sets(9, 0, 20, units, n_test)):
        kernels.fill_test_fold(
            np.uint64(9), trial, units, n_test, splits.byte_threshold(units, n_test), words, fold
        )
        np.testing.assert_array_equal(fold, expected)
        assert expected.sum() == n_test


def test_every_fold_is_equally_likely():
    # 35 folds, 35000 seeded trials: chi-square with 34 degrees beyond 110 has p < 1e-9.
    folds = folds_of(7, 3, 35_000, seed=2)
    numbers = {fold: i for i, fold in enumerate(combinations(range(7), 3))}
    counts = np.bincount([numbers[tuple(np.flatnonzero(f))] for f in folds], minlength=35)
    assert counts.sum() == 35_000
    assert ((counts - 1000) ** 2 / 1000).sum() < 110


@pytest.mark.parametrize("is_compiled", [False, True])
def test_bets_use_the_groups_of_each_fold(is_compiled):
    guarantee = Guarantee(alpha=0.2, unit="group", delta=0.1, n_cases=N)
    scores, group = np.round(RNG.exponential(size=N), 1), group_index(GROUP)[0]
    units = int(group.max()) + 1
    ranking = rank_for_guarantee(scores, guarantee, units - units // 3, group)
    splitting = Splits(units, units // 3, 20, 5, group, is_compiled)
    found = run_splits(splitting, [ranking], np.zeros((1, 0, N)))
    for t, fold in enumerate(folds_of(units, units // 3, 20, seed=5)):
        kept, q = ~fold[group], ranking.quantiles(found.position[0])[t]
        assert q == _hierarchical_quantile(scores[kept], group[kept], 0.2, 0.1) < np.inf
        above = [np.mean(scores[group == v] > q) for v in np.flatnonzero(fold)]
        assert found.test_above[0, t] == pytest.approx(sum(above), abs=1e-9)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("allowed", [-1.0, 0.0, 6.0])
def test_both_engines_find_the_same_positions_and_sums(grouped, allowed):
    pytest.importorskip("numba")
    present = np.unique(GROUP, return_inverse=True)[1]
    units = int(present.max()) + 1 if grouped else N
    scores = np.sort(np.round(RNG.random(N), 2))
    unit = RNG.permutation(present) if grouped else RNG.permutation(N)
    weight = RNG.random(N) if grouped else np.ones(N)
    other = RNG.permutation(N)
    covered = np.minimum(np.searchsorted(scores, scores, side="right") + 3, N)
    ranking = RankedScores(scores, unit, weight, allowed, unit[other], weight[other], covered)
    features = RNG.standard_normal((1, 3, N))

    def run(is_compiled):
        of_case = present.astype(np.int64) if grouped else np.empty(0, np.int64)
        splitting = Splits(units, units // 3, 200, 5, of_case, is_compiled)
        found = run_splits(splitting, [ranking], features)
        return found, sums_at_quantiles(splitting, ranking.quantiles(found.position[0]), waves)

    def waves(quantiles):
        finite = np.where(np.isinf(quantiles), 0, quantiles)
        return np.sin(np.arange(N) + finite[:, None])[None]

    (slow, slow_sums), (fast, fast_sums) = run(False), run(True)
    np.testing.assert_array_equal(slow.position, fast.position)
    np.testing.assert_allclose(slow.test_above, fast.test_above, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(slow.sums, fast.sums, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(slow_sums, fast_sums, rtol=1e-12, atol=1e-12)


CASES = {
    "plain": {},
    "range": {"task_range": (0, 1)},
    "upper": {"side": "upper", "task_range": (0, 1)},
    "given the set": {"delta": 0.2},
    "groups": {"group": GROUP},
    "groups with range": {"group": GROUP, "task_range": (0, 1)},
    "all of a group": {"group": GROUP, "cases": "all"},
    "most of a group": {"group": GROUP, "cases": 0.6},
    "each end": {"side": "each"},
    "each end with range": {"side": "each", "task_range": (0, 1)},
    "each end of groups": {"side": "each", "group": GROUP, "label": LABEL},
    "each end of most of a group": {"side": "each", "group": GROUP, "cases": 0.6},
    "each end of strata": {"side": "each", "label": LABEL, "size_bins": (0, 0.1, 0.3, np.inf)},
    "strata": {"label": LABEL, "size_bins": (0, 0.1, 0.3, np.inf)},
}


@pytest.mark.parametrize("score", ["cqr", "learned"])
@pytest.mark.parametrize("kind", CASES)
def test_evaluation_does_not_depend_on_the_engine(kind, score, monkeypatch):
    pytest.importorskip("numba")

    def run():
        return tq.evaluate(
            OUTPUTS, TRUTH, alpha=0.2, score=score, splits=50, seed=np.random.default_rng(1),
            **CASES[kind],
        ).to_dict()  # fmt: skip

    plain = run()
    monkeypatch.setattr("taskuq.conformal._evaluate.WORTH_COMPILING", 0)
    assert_alike(run(), plain)


def assert_alike(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_alike(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_alike(a, b)
    elif isinstance(one, float):
        # A chi-square of counts that agree is exact; sums may differ in the last bits.
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)
    else:
        assert one == other


def held(covered, unit, cases):
    """Fraction of covered cases of each unit, or whether enough of them are."""
    index = np.unique(unit, return_inverse=True)[1]
    share = np.bincount(index, weights=covered) / np.bincount(index)
    if cases == "random":
        return share
    return share >= (1.0 if cases == "all" else cases) - 1e-12


@pytest.mark.parametrize(("score", "tied"), [("cqr", False), ("lwr", True), ("mlwr", True)])
@pytest.mark.parametrize("kind", CASES)
def test_evaluation_equals_calibrate_and_predict(kind, score, tied):
    outputs, targets = TIED if tied else (OUTPUTS, TRUTH)
    options = dict(CASES[kind])
    trials, alpha = 6, 0.25
    result = tq.evaluate(
        outputs, targets, alpha=alpha, score=score, splits=trials,
        seed=np.random.default_rng(4), **options,
    )  # fmt: skip
    seed = int(np.random.default_rng(4).integers(2**63))
    label, _ = options.pop("label", np.zeros(N, int)), options.pop("size_bins", None)
    group = options.pop("group", None)
    unit = np.arange(N) if group is None else np.unique(group, return_inverse=True)[1]
    units = int(unit.max()) + 1
    range_, side = options.get("task_range"), options.get("side", "two")
    own_side = "two" if side == "each" else side
    same, is_pooled = score, units > evaluating.FEW_UNITS or "delta" in options
    if score == "mlwr" and is_pooled:
        same = MLWR(own_side).fit(outputs, targets, range_=range_)
    coverage, of_cases, width, error, whole, is_open, of_class = [], [], [], [], [], [], []
    for fold in folds_of(units, fold_sizes(units)[1], trials, seed):
        test = fold[unit]
        own = {} if group is None else {"group": group[~test]}
        bound = tq.calibrate(
            outputs[~test], targets[~test], alpha=alpha, score=same, **own, **options
        )
        interval = bound(outputs[test])
        weight = 1 / np.bincount(unit)[unit[test]] if group is not None else np.ones(test.sum())
        covered = interval.contains(targets[test])
        coverage.append(held(covered, unit[test], options.get("cases", "random")).mean())
        of_cases.append(np.average(covered, weights=weight))
        width.append(np.average(interval.width, weights=weight))
        gap = np.abs(interval.center - targets[test])
        error.append(np.average(gap, weights=weight))
        whole.append(held(covered, unit[test], "all").mean())
        is_open.append(not bound.is_finite)
        of_class.append([weight @ (covered & (label[test] == 0)), weight @ (label[test] == 0)])
    assert result.coverage.mean == pytest.approx(np.mean(coverage), abs=1e-9)
    assert result.coverage.sd == pytest.approx(np.std(coverage), abs=1e-9)
    assert result.case_coverage.mean == pytest.approx(np.mean(of_cases), abs=1e-9)
    assert result.width.mean == pytest.approx(np.mean(width), rel=1e-9)
    assert result.width.sd == pytest.approx(np.std(width), rel=1e-6, abs=1e-9)
    assert result.center_error.mean == pytest.approx(np.mean(error), rel=1e-9)
    assert result.infinite == np.mean(is_open)
    if group is not None:
        assert result.whole_group_coverage == pytest.approx(np.mean(whole), abs=1e-9)
    if "label" in CASES[kind]:
        hits, number = np.sum(of_class, axis=0) if group is not None else np.transpose(of_class)
        expected = np.mean(hits / number)
        assert result.class_coverage[0].coverage == pytest.approx(expected, abs=1e-9)


def test_class_and_size_coverage_are_means_over_splits():
    result = tq.evaluate(
        OUTPUTS, TRUTH, alpha=0.2, score="lwr", splits=30, seed=np.random.default_rng(6),
        label=np.where(np.arange(N) == 9, "rare", "common"), size_bins=(0, 0.2, 0.5, 90, 91),
    )  # fmt: skip
    seed = int(np.random.default_rng(6).integers(2**63))
    rare, narrow = [], []
    for test in folds_of(N, fold_sizes(N)[1], 30, seed):
        bound = tq.calibrate(OUTPUTS[~test], TRUTH[~test], alpha=0.2, score="lwr")
        interval, covered = bound(OUTPUTS), bound(OUTPUTS).contains(TRUTH)
        inside = test & (interval.width < 0.2)
        rare += [covered[9]] if test[9] else []
        narrow.append(covered[inside].mean())
    strata = {s.name: s for s in result.class_coverage + result.size_coverage}
    assert strata["rare"].splits == len(rare) < 30
    assert strata["rare"].coverage == pytest.approx(np.mean(rare))
    assert strata["[0, 0.2)"].coverage == pytest.approx(np.mean(narrow))
    assert strata["[90, 91)"].splits == 0
    assert np.isnan(strata["[90, 91)"].coverage)
    assert sum(s.cases for s in result.size_coverage) == pytest.approx(fold_sizes(N)[1])


def test_hash_is_splitmix64():
    # The first outputs of the published generator seeded with 0.
    states = [(k * splits.GOLDEN) & splits.FULL for k in (1, 2, 3)]
    assert [splitmix64(s) for s in states] == [
        0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F,
    ]  # fmt: skip


def test_exact_evaluation_refuses_two_quantiles():
    with refused("option.conflict"):
        tq.evaluate_exact(OUTPUTS, TRUTH, alpha=0.2, side="each")


NAMES = ["one frame", "four frames"]


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    truth = rng.random(60)
    outputs = truth[:, None] + 0.1 * rng.standard_normal((2, 60, 4))
    return tq.TaskOutputs(outputs, truth, (16, 4), round_names=NAMES)


def test_commands_take_rounds_by_name(table, tmp_path, capsys):
    path, bound = str(table.save(tmp_path / "table.npz")), str(tmp_path / "bound.json")
    for given in (["evaluate", path, "--exact"], ["calibrate", path, "-o", bound]):
        main([*given, "--alpha", "0.2", "--score", "lwr", "--acceleration", "four frames"])
    assert tq.load_bound(bound).acceleration == 4
    assert "one frame" not in "".join(capsys.readouterr())
    with pytest.raises(SystemExit):
        main(["evaluate", path, "--exact", "--acceleration", "two frames"])
    assert "'two frames'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["predict", bound, path, "--acceleration", "one frame"])
    assert "--acceleration" in capsys.readouterr().err


def few_groups(groups=6, seed=0):
    """A table of few groups of unequal size, with classes and sites."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), rng.integers(2, 6, groups))
    z = rng.random(len(group)) + rng.random(groups)[group]
    x = z[:, None] + 0.2 * rng.random((groups, 1))[group] * rng.standard_normal((len(z), 4))
    label, site = rng.integers(0, 2, len(z)), group % 3
    return tq.TaskOutputs(x, z, group=group, label=label, site=site)


def test_evaluation_learns_as_calibration_does():
    table, widths = few_groups(), []
    for test in combinations(range(6), 2):
        inside = np.isin(table.group, test)
        bound = tq.calibrate(table.select(cases=~inside), alpha=0.3)
        width = bound(table.outputs[0, inside]).width
        widths.append(np.mean([width[table.group[inside] == g].mean() for g in test]))
    found = tq.evaluate(table, alpha=0.3, splits=1000)
    assert found.width.mean == pytest.approx(np.mean(widths), rel=0.02)
    assert found.width.sd == pytest.approx(np.std(widths), rel=0.1)
    # A fit to all groups is narrower.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluating, "FEW_UNITS", 0)
        pooled = tq.evaluate(table, alpha=0.3, splits=1000)
    assert pooled.width.mean < 0.97 * found.width.mean


@pytest.mark.parametrize("kind", ["class", "site"])
def test_exact_coverage_of_parts_is_that_of_random_splits(kind):
    table = few_groups(14)
    options = {"alpha": 0.2, "score": "ar"}
    exact = tq.evaluate_exact(table, **options)
    drawn = tq.evaluate(replace_arrays(table, group=None), splits=20_000, **options)
    for one, other in zip(*(getattr(r, f"{kind}_coverage") for r in (exact, drawn)), strict=True):
        assert one.name == other.name
        assert one.coverage == pytest.approx(other.coverage, abs=0.02)
        assert one.width == pytest.approx(other.width, rel=0.02)
        assert one.standard_error == pytest.approx(other.standard_error, rel=0.05)


def test_site_left_out_is_calibrated_on_the_others():
    table = few_groups(9)
    found = tq.evaluate(table, alpha=0.3, score="lwr", splits=20).site_left_out
    for part in found:
        inside = table.site == int(part.name)
        bound = tq.calibrate(table.select(cases=~inside), alpha=0.3, score="lwr")
        interval = bound(table.outputs[0, inside])
        weight = 1 / np.bincount(table.group)[table.group[inside]]
        covered = interval.contains(table.targets[inside])
        assert part.coverage == pytest.approx(np.average(covered, weights=weight))
        assert part.width == pytest.approx(np.average(interval.width, weights=weight))
    assert len(found) == 3


def test_site_whose_groups_are_all_held_out_is_counted_in_other_draws():
    table = few_groups(60)
    table = replace_arrays(table, site=np.where(table.group < 2, "small", "large"))
    found = tq.evaluate(table, alpha=0.3, score="learned", splits=40)
    small = found.site_coverage[1]
    assert [part.name for part in found.site_coverage] == ["large", "small"]
    assert small.splits < 40
    assert 0 <= small.coverage <= 1


@pytest.mark.parametrize(
    ("coverage", "error", "below"),
    [(0.79, 0.05, True), (0.81, 0.05, False), (0.5, math.nan, False), (0.0, math.nan, True)],
)
def test_mark_needs_two_standard_errors(coverage, error, below):
    assert is_below(coverage, error, 0.1) == below


def test_score_that_cannot_be_computed_is_left_out(tmp_path, capsys):
    rng = np.random.default_rng(0)
    path = tq.TaskOutputs(rng.random((18, 4)), rng.random(18)).save(tmp_path / "t.npz")
    main(["evaluate", str(path), "--score", "ar,learned", "--splits", "5", "--alpha", "0.2"])
    assert "learned is skipped" in capsys.readouterr().err
    with refused("units.few"):
        evaluate_table(
            tq.TaskOutputs.load(path), EvaluationGrid(scores=("learned",), splits=5, alpha=0.2)
        )


@pytest.mark.parametrize("ask", [tq.calibrate, partial(tq.evaluate, splits=5)])
def test_cases_of_groups_are_warned_about(ask):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        ask(few_groups(), alpha=0.3, unit="case", score="ar")
        assert any(issubclass(w.category, GuaranteeWarning) for w in found)
        found.clear()
        ask(few_groups(), alpha=0.3, score="ar")
        assert not found
