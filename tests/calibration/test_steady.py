"""What mlwr learns from its own calibration units keeps the promise, whatever the new unit is."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest

import taskuq as tq
from taskuq.conformal.scores._mlwr import MLWR, _SelfTunedMLWR, _unit_median, _unit_quantile
from taskuq.protocols import SelfTuned

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

    monkeypatch.setattr(_SelfTunedMLWR, "learn", optimistic)

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
        low, high = (one.summary_family(read.take(~new)).scale for one in (known.narrow, known.wide))
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
