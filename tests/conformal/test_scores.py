"""Scores and intervals say the same thing, for every score, side and kind of case."""

from dataclasses import dataclass
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import taskuq as tq
from raising import refused
from taskuq.conformal._calibrate import tuning_units
from taskuq.conformal._family import interval_family, mean_and_variance, sample_quantiles
from taskuq.conformal._quantiles import coverage_rank
from taskuq.conformal._units import CaseUnit, choose_units
from taskuq.conformal.scores._learned import LearnedScore
from taskuq.conformal.scores._mlwr import MLWR, _SelfTunedMLWR, _unit_median, _unit_quantile
from taskuq.conformal.scores._paper import AR, CQR, LWR
from taskuq.protocols import SelfTuned

SIDES = ("two", "upper", "lower")
NAMES = ("ar", "lwr", "cqr", "mlwr", "learned")


@dataclass(frozen=True)
class Percentage:
    """A user's own score: the residual in percent of the mean's size."""

    def score(self, outputs, targets):
        center = outputs.mean(axis=1)
        return np.abs(targets - center) / (1 + np.abs(center))

    def interval(self, outputs, quantile):
        center = outputs.mean(axis=1)
        # A part in 1e12 absorbs rounding, as any score of floats must.
        reach = np.asarray(quantile) * (1 + np.abs(center)) * (1 + 1e-12)
        return tq.Interval(center - reach, center + reach)


def scores_of(side, samples):
    """Every score of ours, learned ones tuned on other cases."""
    rng = np.random.default_rng(samples)
    truth = rng.random(60)
    outputs = np.clip(truth[:, None] + 0.2 * rng.standard_normal((60, samples)), 0, 1)
    return [
        AR(side),
        LWR(side),
        CQR(0.1, side),
        MLWR(side),
        MLWR(side).fit(outputs),
        MLWR(side).fit(outputs, range_=(0, 1)),
        LearnedScore(side).fit(outputs, truth, range_=(0, 1)),
        LearnedScore(side).fit(10 * outputs - 5, 10 * truth - 5),
    ]


NUMBER = st.floats(-3, 3, allow_subnormal=False).map(lambda v: v if abs(v) > 1e-100 else 0.0)
CASES = st.integers(1, 5).flatmap(
    lambda p: st.lists(
        st.tuples(st.lists(NUMBER, min_size=p, max_size=p), NUMBER), min_size=1, max_size=4
    )
)


@pytest.mark.parametrize("side", SIDES)
@given(cases=CASES, identical=st.booleans())
def test_a_target_is_in_the_interval_of_its_own_score(side, cases, identical):
    outputs = np.array([samples for samples, _ in cases])
    targets = np.array([target for _, target in cases])
    if identical:
        outputs = np.repeat(outputs[:, :1], outputs.shape[1], axis=1)
    for score in scores_of(side, outputs.shape[1]):
        quantile = score.score(outputs, targets)

        assert score.interval(outputs, quantile).contains(targets).all(), score


@pytest.mark.parametrize("side", SIDES)
@given(cases=CASES, quantile=st.floats(-2, 5))
def test_a_target_in_the_interval_scores_at_most_the_quantile(side, cases, quantile):
    outputs = np.array([samples for samples, _ in cases])
    targets = np.array([target for _, target in cases])
    for score in scores_of(side, outputs.shape[1]):
        family = interval_family(score, outputs)
        inside = family.interval(quantile).contains(targets)
        # In units of the score: a part in 1e9 of the quantile, and of the anchors over the scale.
        unit = np.maximum(family.scale, 1e-300)
        slack = 1e-9 * (abs(quantile) + (np.abs(family.low) + np.abs(family.high) + 1) / unit)

        assert (family.score(targets) <= quantile + slack)[inside].all(), score


@pytest.mark.parametrize("side", SIDES)
@given(cases=CASES, quantiles=st.tuples(st.floats(-2, 5), st.floats(-2, 5)))
def test_intervals_are_nested_in_the_quantile(side, cases, quantiles):
    outputs = np.array([samples for samples, _ in cases])
    small, large = sorted(quantiles)
    for score in scores_of(side, outputs.shape[1]):
        inner, outer = score.interval(outputs, small), score.interval(outputs, large)
        # Ends are rounded outwards unless they are exact, so they may move back by a few units.
        low, high = (1e-14 * (1 + np.abs(np.nan_to_num(e))) for e in (inner.lower, inner.upper))
        wider = (outer.lower <= inner.lower + low) & (inner.upper <= outer.upper + high)

        assert (inner.is_empty | wider).all()


@given(cases=CASES, low=st.floats(-3, 0), width=st.floats(0.5, 4))
def test_clipping_never_loses_a_target_in_range(cases, low, width):
    outputs = np.array([samples for samples, _ in cases])
    targets = np.clip([target for _, target in cases], low, low + width)
    for score in scores_of("two", outputs.shape[1]):
        interval = score.interval(outputs, score.score(outputs, targets)).clip(low, low + width)

        assert interval.contains(targets).all()
        assert (interval.width <= width).all()


@given(cases=CASES)
def test_an_infinite_quantile_gives_everything(cases):
    outputs = np.array([samples for samples, _ in cases])
    for score in scores_of("two", outputs.shape[1]):
        interval = score.interval(outputs, np.inf)

        assert np.isneginf(interval.lower).all()
        assert np.isposinf(interval.upper).all()


def test_the_papers_scores_are_what_the_paper_says():
    rng = np.random.default_rng(8)
    x, z = rng.random((200, 32)), rng.random(200)
    low, high = np.quantile(x, [0.05, 0.95], axis=1)

    np.testing.assert_allclose(AR().score(x, z), np.abs(z - x.mean(axis=1)), rtol=1e-12)
    np.testing.assert_allclose(
        LWR().score(x, z), np.abs(z - x.mean(axis=1)) / x.std(axis=1), rtol=1e-12
    )
    np.testing.assert_array_equal(CQR(0.1).score(x, z), np.maximum(low - z, z - high))


@pytest.mark.parametrize("p", [1, 2, 3, 5, 32, 33])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sample_quantiles_are_numpys_to_the_last_bit(p, dtype):
    x = np.random.default_rng(p).standard_normal((300, p)).astype(dtype)
    levels = [0.0, 0.005, 0.025, 0.31, 0.5, 0.9, 0.975, 1.0]
    expected = np.quantile(x.astype(float), levels, axis=1)

    np.testing.assert_array_equal(np.stack(sample_quantiles(x, levels)), expected)


@pytest.mark.parametrize("p", [1, 2, 5, 32])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("levels", [(0.025, 0.975), (0.05, 0.95), (0.005, 0.995), (0.2, 0.5, 0.8)])
def test_compiled_summaries_equal_numpys(p, dtype, levels, monkeypatch):
    from taskuq.conformal import _family as summaries

    x = np.random.default_rng(p).random((4000, p)).astype(dtype)
    plain = (*mean_and_variance(x, ddof=1), *sample_quantiles(x, levels))
    monkeypatch.setattr(summaries, "WORTH_COMPILING", 0)
    fast = (*mean_and_variance(x, ddof=1), *sample_quantiles(x, levels))

    for a, b in zip(plain, fast, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


def test_identical_samples_make_lwr_a_point():
    x = np.full((3, 7), 0.1)

    assert LWR().score(x, np.array([0.1, 0.1000001, 0.0])).tolist() == [0, np.inf, np.inf]
    assert LWR().interval(x, 5.0).width.tolist() == [0, 0, 0]


def test_crossed_quantiles_are_empty_and_have_no_width():
    interval = CQR(0.2).interval(np.array([[0.4, 0.5]]), -0.2)

    assert interval.is_empty.all()
    assert interval.width.tolist() == [0]
    assert not interval.contains([0.45]).any()


def test_a_side_that_does_not_exist_is_refused():
    with refused("choice.unknown"):
        tq.calibrate(np.zeros((9, 1)), np.arange(9.0), alpha=0.2, score=AR("left"))


# Populations on which scores tie, vanish or blow up; the last has targets no sample comes near.
AWKWARD = {
    "identical samples": (np.full((8, 4), 0.5), np.linspace(0, 1, 8)),
    "constant targets": (np.random.default_rng(0).random((8, 4)), np.full(8, 0.5)),
    "ties everywhere": (np.tile([[0.2, 0.4], [0.4, 0.6]], (4, 2)), np.tile([0.3, 0.9], 4)),
    "all of it": (np.full((8, 4), 0.5), np.full(8, 0.5)),
    "one sample": (np.linspace(0, 1, 8)[:, None], np.linspace(1, 0, 8)),
    "some spread and some none": (
        np.r_[np.full((4, 3), 0.5), np.random.default_rng(1).random((4, 3))],
        np.linspace(0, 1, 8),
    ),
    "far away": (np.random.default_rng(2).random((8, 4)) * 1e-3, np.linspace(0.9, 1, 8)),
}


@pytest.mark.parametrize("task_range", [None, (0, 1)])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("score", [*NAMES, Percentage()], ids=[*NAMES, "own"])
@pytest.mark.parametrize("kind", AWKWARD)
def test_awkward_cases_are_covered_in_enough_rotations(kind, score, side, task_range):
    outputs, targets = AWKWARD[kind]
    rng = np.random.default_rng(9)
    # A learned score is tuned on cases outside the rotation, as training cases would be.
    tuning = (rng.random((40, outputs.shape[1])), rng.random(40))
    for alpha in (0.2, 0.5):
        covered = 0
        for i in range(8):
            rest = np.arange(8) != i
            bound = tq.calibrate(
                outputs[rest], targets[rest], alpha=alpha, score=score, side=side,
                task_range=task_range, tuning=tuning,
            )  # fmt: skip
            covered += bool(bound(outputs[i]).contains(targets[i]))

        assert covered >= (1 - Fraction(str(alpha))) * 8


@pytest.mark.parametrize("score", [*NAMES, Percentage()], ids=[*NAMES, "own"])
def test_two_cases_are_enough_to_calibrate(score):
    rng = np.random.default_rng(1)
    tuning = (rng.random((20, 3)), rng.random(20))
    bound = tq.calibrate(rng.random((2, 3)), rng.random(2), alpha=0.4, score=score, tuning=tuning)

    assert bound.is_finite
    assert not tq.calibrate(
        rng.random((2, 3)), rng.random(2), alpha=0.1, score=score, tuning=tuning
    ).is_finite


@pytest.mark.parametrize("score", [*NAMES, Percentage()], ids=[*NAMES, "own"])
@given(seed=st.integers(0, 50))
def test_every_rotation_of_real_looking_cases_is_covered_rank_times(score, seed):
    rng = np.random.default_rng(seed)
    truth = rng.random(12)
    outputs = truth[:, None] + 0.1 * rng.standard_normal((12, 4))
    tuning = (rng.random((30, 4)), rng.random(30))
    covered = 0
    for i in range(12):
        rest = np.arange(12) != i
        bound = tq.calibrate(outputs[rest], truth[rest], alpha=0.25, score=score, tuning=tuning)
        covered += bool(bound(outputs[i]).contains(truth[i]))

    assert covered == coverage_rank(11, 0.25)


@pytest.mark.parametrize("seed", range(5))
def test_tuning_cases_set_aside_do_not_spoil_the_promise(seed):
    # Exchange every kept case with the new one: those set aside stay, as the promise assumes.
    rng = np.random.default_rng(seed)
    truth = rng.random(101)
    outputs = truth[:, None] + 0.3 * rng.random((101, 1)) * rng.standard_normal((101, 3))
    aside = choose_units(
        np.arange(100), tuning_units(LearnedScore(), CaseUnit(), 100, 0.1, None), None
    )
    assert aside.any()
    turning = np.append(np.flatnonzero(~aside), 100)
    covered = 0
    for i in turning:
        order = np.arange(101)
        order[[i, 100]] = order[[100, i]]
        bound = tq.calibrate(outputs[order[:100]], truth[order[:100]], alpha=0.1, score="learned")
        covered += bool(bound(outputs[i]).contains(truth[i]))

    assert covered == coverage_rank(len(turning) - 1, 0.1)


POPULATIONS = 120
SETTINGS = [
    {"side": "two", "task_range": (0.0, 1.0)},
    {"side": "two"},
    {"side": "upper", "task_range": (0.0, 1.0)},
    {"side": "lower"},
]


def units_of(rng, least=1):
    """Units of several sizes; values on a coarse grid every second time, so that many tie."""
    sizes = rng.integers(least, 5, size=rng.integers(3, 8))
    index = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    values = rng.normal(size=len(index))
    return (np.round(values * 2) / 2 if rng.random() < 0.5 else values), index


def median_by_hand(values, index):
    """The smallest value that half of the units' weight does not exceed, in fractions."""
    sizes = np.bincount(index)
    for value in np.sort(values):
        below = sum(Fraction(1, int(sizes[u])) for u in index[values <= value])
        if below >= Fraction(len(sizes), 2):
            return value
    raise AssertionError


@pytest.mark.parametrize("seed", range(30))
def test_a_median_over_units_lies_in_its_range_whatever_replaces_a_unit(seed):
    rng = np.random.default_rng(seed)
    values, index = units_of(rng)
    found = _unit_median(values, index)

    assert found.value == median_by_hand(values, index) == _unit_quantile(values, index, 0.5)
    units = int(index.max()) + 1
    for i in range(units):
        others = index != i
        for new in ([-9.0], [9.0], [-9.0, 9.0], list(rng.normal(size=3)), [values[0]] * 4):
            replaced = np.append(np.unique(index[others], return_inverse=True)[1],
                                 np.full(len(new), units - 1))  # fmt: skip
            median = median_by_hand(np.append(values[others], new), replaced)
            assert found.low[i] <= median <= found.high[i]


def test_the_range_of_a_median_is_reached_by_cases_beyond_all_others():
    values = np.random.default_rng(0).normal(size=9)
    found = _unit_median(values, np.arange(9))
    for i in range(9):
        others = np.delete(values, i)
        for end, new in ((found.low, -9.0), (found.high, 9.0)):
            assert end[i] == median_by_hand(np.append(others, new), np.arange(9))


def population(rng, grouped):
    """Outputs, targets and units: spreads tied to sizes and errors, some of them 0."""
    units = int(rng.integers(6, 10))
    size = rng.integers(1, 4, size=units) if grouped else np.ones(units, int)
    index = np.repeat(np.arange(units), size)
    scale = 10.0 ** rng.uniform(-2, 0, size=units)[index] / size[index]
    center = rng.uniform(0.1, 0.9, size=len(index))
    spread = scale * rng.choice([0.0, 0.1, 0.5, 1.0], p=[0.1, 0.3, 0.3, 0.3], size=len(index))
    outputs = np.clip(center[:, None] + spread[:, None] * rng.normal(size=(len(index), 3)), 0, 1)
    error = rng.choice([0.1, 1.0, 3.0], size=len(index)) * scale
    targets = np.clip(center + error * rng.choice([-1, 1], size=len(index)), 0, 1)
    if rng.random() < 0.3:
        outputs, targets = np.round(outputs * 8) / 8, np.round(targets * 8) / 8
    return outputs, targets, index


def missed_share(outputs, targets, index, alpha, **options):
    """The mean over units, each new in turn, of the share of its cases that are missed."""
    units = int(index.max()) + 1
    total, finite = Fraction(0), 0
    for new in range(units):
        rest, mine = index != new, index == new
        bound = tq.calibrate(
            outputs[rest], targets[rest], alpha=alpha, group=index[rest], **options
        )
        finite += bound.is_finite
        assert bound.provenance["tuning_cases"] == 0
        hits = bound(outputs[mine]).contains(targets[mine])
        total += Fraction(int((~hits).sum()), int(mine.sum()))
    return total / units, finite


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_no_population_is_missed_more_often_than_promised(options, grouped):
    finite = 0
    for seed in range(POPULATIONS):
        rng = np.random.default_rng(seed)
        alpha = float(rng.choice([0.2, 0.3, 0.5]))
        missed, some = missed_share(*population(rng, grouped), alpha, **options)
        finite += some
        assert missed <= Fraction(str(alpha)), seed
    assert finite > 5 * POPULATIONS


@pytest.mark.parametrize("seed", range(10))
def test_several_tasks_are_missed_together_no_more_often_than_promised(seed):
    rng = np.random.default_rng(seed)
    first, second = population(rng, False), population(np.random.default_rng(seed), False)
    outputs, targets = (
        np.stack([first[0], 1 - second[0] ** 2], -1),
        np.stack([first[1], 1 - second[1] ** 2], -1),
    )
    n = len(targets)
    missed = 0
    for new in range(n):
        rest = np.arange(n) != new
        bound = tq.calibrate_joint(outputs[rest], targets[rest], alpha=0.3)
        missed += not bound(outputs[new : new + 1]).contains(targets[new : new + 1]).all()
    assert missed <= floor(0.3 * n)


def test_scores_by_the_prior_of_all_calibration_units_alone_would_break_it(monkeypatch):
    def optimistic(self, kept, index):
        prior = self.levels.at(kept, index, 0.5)
        score = MLWR(self.score.side, self.score.floor, prior, self.score.link)
        return SelfTuned(score, score, score)

    # A new case of small spread finds a prior of large ones, and the other way round; what is
    # far below an upper bound then scores worst in both.
    small = np.arange(8) < 4
    outputs = np.where(small, 0.01, 1.0)[:, None] * np.array([-1.0, 1.0])
    targets = np.where(small, -0.2, -1.0)
    everyone = outputs, targets, np.arange(8), 0.5
    assert missed_share(*everyone, side="upper")[0] <= Fraction(1, 2)

    monkeypatch.setattr(_SelfTunedMLWR, "fit", optimistic)

    assert missed_share(*everyone, side="upper")[0] > Fraction(1, 2)


@pytest.mark.parametrize("range_", [None, (0.0, 1.0)])
def test_the_scale_of_a_calibration_case_lies_in_its_range_for_every_new_unit(range_):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        outputs, _, index = population(rng, True)
        new = index == index.max()
        read = MLWR().summarise(outputs)
        learner = MLWR().leave_one_out(read, range_)
        known = learner.fit(~new, index[~new])
        low, high = (
            one.summary_family(read.take(~new)).scale for one in (known.narrow, known.wide)
        )
        for i in range(int(index.max())):
            others = index != i
            by_others = learner.fit(others, np.unique(index[others], return_inverse=True)[1])
            mine = (index == i) & ~new
            scale = by_others.score.summary_family(read.take(mine)).scale
            assert (low[mine[~new]] <= scale).all()
            assert (scale <= high[mine[~new]]).all()


def test_a_promise_given_the_calibration_set_sets_units_aside():
    rng = np.random.default_rng(0)
    truth = rng.random(300)
    outputs = truth[:, None] + 0.1 * rng.standard_normal((300, 4))

    bound = tq.calibrate(outputs, truth, alpha=0.1, delta=0.1)

    assert bound.provenance["tuning_cases"] > 0
    assert tq.calibrate(outputs, truth, alpha=0.1).provenance["tuning_cases"] == 0
