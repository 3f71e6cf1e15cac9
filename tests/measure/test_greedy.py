"""The greedy score is the exact reduction of posterior variance where everything is normal.

Samples are ±√(p-1)/√2 times the columns of a root of the covariance: their sample covariance is the
covariance, exactly, so that nothing here is left to chance.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskuq.errors import InputError
from taskuq.measure import _adaptive as greedy
from taskuq.measure._adaptive import (
    TOGETHER,
    _LineCovariance,
    _low_rank_noise,
    _LowRankCovariance,
    _regularisation_noise,
    stack_cases,
)

LINES, NUMBERS = 24, 3


def normal_model(seed, size=6):
    """A covariance, what each line measures of an image, and a linear task."""
    rng = np.random.default_rng([23, seed])
    root = rng.normal(size=(size, size))
    return root, rng.normal(size=(LINES, NUMBERS, size)), rng.normal(size=size)


def spread_of(root, operators, task, noise):
    """What a symmetric set of samples with exactly this covariance says."""
    deviations = np.concatenate([root, -root], axis=1).T
    deviations *= np.sqrt((len(deviations) - 1) / 2)
    contents = np.einsum("lni,ji->ljn", operators, deviations)
    p = len(deviations)
    grams = np.einsum("ljn,lkn->ljk", contents, contents)[None] / (p - 1)
    z = deviations @ task
    return _LineCovariance(grams, np.outer(z, z)[None] / (p - 1), np.array([noise]))


def posterior_variance(root, operators, task, noise, lines):
    """The closed form: the variance of aᵀx given the lines, by precisions."""
    covariance = root @ root.T
    told = operators[lines].reshape(-1, len(root))
    total = told @ covariance @ told.T + noise * np.eye(len(told))
    gained = covariance @ told.T @ np.linalg.solve(total, told @ covariance)
    return task @ (covariance - gained) @ task


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("noise", [0.05, 2.0])
def test_what_lines_leave_is_the_exact_posterior_variance(seed, noise):
    model = normal_model(seed)
    lines = [3, 0, 17, 8][: seed % 5]

    exact = posterior_variance(*model, noise, lines)
    assert np.isclose(spread_of(*model, noise).left(lines), exact, rtol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_every_choice_is_the_line_of_the_largest_exact_reduction(seed):
    model, noise = normal_model(seed), 3.0
    lines, gains = spread_of(*model, noise).greedy(5, np.zeros(LINES, dtype=bool))
    for k, (line, gain) in enumerate(zip(lines, gains, strict=True)):
        before = posterior_variance(*model, noise, lines[:k])
        after = [posterior_variance(*model, noise, [*lines[:k], one]) for one in range(LINES)]
        after = [np.inf if one in lines[:k] else left for one, left in enumerate(after)]
        assert line == int(np.argmin(after))
        assert np.isclose(gain, before - min(after), rtol=1e-7)


@pytest.mark.parametrize("numbers", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_few_numbers_of_each_line_give_what_their_gram_matrices_give(seed, numbers):
    rng = np.random.default_rng([24, seed])
    told, z = rng.normal(size=(3, LINES, 9, numbers)), rng.normal(size=(3, 9, 2))
    noise = rng.uniform(0.1, 2, 3)
    few = _LowRankCovariance(told, z, noise)
    whole = _LineCovariance(told @ told.swapaxes(2, 3), z @ z.swapaxes(1, 2), noise)
    measured = np.arange(LINES) == 5
    assert np.isclose(few.left([3, 8]), whole.left([3, 8]))
    (lines, gains), (others, expected) = (one.greedy(6, measured) for one in (few, whole))
    assert lines == others
    assert np.allclose(gains, expected)
    assert np.allclose(
        _low_rank_noise(told, measured, 0.3), _regularisation_noise(whole.grams, measured, 0.3)
    )


def test_few_numbers_that_say_nothing_leave_the_line_that_varies_most():
    told = np.random.default_rng(0).normal(size=(1, LINES, 5, 1))
    own = np.square(told).sum(axis=(0, 2, 3))
    settled = _LowRankCovariance(told, np.zeros((1, 5, 1)), np.ones(1))
    assert settled.greedy(3, np.zeros(LINES, bool))[0] == np.argsort(-own)[:3].tolist()


def test_bounds_are_cut_off_without_missing_the_best():
    # One line tells much of one direction and little of the task: its bound is large and its
    # reduction small, so that the first lines by bounds are not the best.
    loud, plain = np.diag([400.0, 0.0]), np.diag([0.0, 30.0])
    grams = np.stack([loud] * (TOGETHER + 1) + [plain])[None]
    aims = np.array([[[1.0, 0.0], [0.0, 12.0]]])
    spread = _LineCovariance(grams, aims, np.ones(1))

    assert spread.greedy(1, np.zeros(TOGETHER + 2, dtype=bool))[0] == [TOGETHER + 1]
    assert np.isclose(spread.left([TOGETHER + 1]), 1 + 12 / 31)


@given(st.integers(0, 40), st.integers(1, 4))
def test_cases_count_alike_and_their_order_does_not_matter(seed, cases):
    each = [spread_of(*normal_model(seed + k), 1.0 + k) for k in range(cases)]
    both = [stack_cases(order) for order in (each, each[::-1])]
    assert np.isclose(both[0].left([1, 2]), np.mean([one.left([1, 2]) for one in each]))
    assert (
        both[0].greedy(3, np.zeros(LINES, bool))[0] == both[1].greedy(3, np.zeros(LINES, bool))[0]
    )


def test_a_measured_line_is_not_chosen_again():
    measured = np.arange(LINES) < LINES - 2
    lines, _ = spread_of(*normal_model(0), 1.0).greedy(2, measured)
    assert sorted(lines) == [LINES - 2, LINES - 1]


def test_where_nothing_is_left_to_gain_the_line_that_varies_most_is_next():
    spread = spread_of(*normal_model(1), 1.0)
    settled = _LineCovariance(spread.grams, np.zeros_like(spread.aims), spread.noise)
    own = np.trace(spread.grams[0], axis1=1, axis2=2)
    assert settled.greedy(3, np.zeros(LINES, bool)) == (np.argsort(-own)[:3].tolist(), [0.0] * 3)


@pytest.mark.parametrize("count", [-1, LINES + 1])
def test_more_lines_than_there_are_is_refused(count):
    with pytest.raises(InputError, match="are to be chosen"):
        spread_of(*normal_model(0), 1.0).greedy(count, np.zeros(LINES, bool))


def test_noise_must_be_above_nothing():
    spread = spread_of(*normal_model(0), 1.0)
    with pytest.raises(InputError, match="noise above 0"):
        _LineCovariance(spread.grams, spread.aims, np.zeros(1))
    with pytest.raises(InputError, match="ridge"):
        _regularisation_noise(spread.grams, np.zeros(LINES, bool), 0.0)


def test_samples_that_agree_have_no_noise_of_their_own():
    assert _regularisation_noise(np.zeros((1, 4, 2, 2)), np.zeros(4, bool), 0.1) == np.array([0.1])


def test_what_was_chosen_before_is_known():
    """Two lines say the same: whoever knows one does not ask for the other."""
    rng = np.random.default_rng(0)
    told = rng.standard_normal((1, 3, 6, 1))
    told[0, 1] = told[0, 0]
    outputs = told[:, 0] + 0.3 * told[:, 2]
    few = _LowRankCovariance(told, outputs, np.full(1, 1e-3))
    grams = told @ told.swapaxes(2, 3)
    spread = _LineCovariance(grams, outputs @ outputs.swapaxes(1, 2), np.full(1, 1e-3))
    measured = np.array([True, False, False])
    for expected in (few, spread):
        assert expected.greedy(1, measured)[0] == [1]
        assert expected.greedy(1, measured, known=[0])[0] == [2]
        one, both = expected.greedy(2, np.zeros(3, dtype=bool)), expected.left([0, 2])
        (line,), (gain,) = expected.greedy(1, measured, known=[0])
        assert one[0] == [0, line]
        assert one[1][1] == pytest.approx(gain)
        assert gain == pytest.approx(expected.left([0]) - both)


@pytest.mark.parametrize("numbers", [1, 2])
def test_a_choice_that_goes_on_is_the_choice_that_begins_anew(numbers, monkeypatch):
    rng = np.random.default_rng(31)
    told, z = rng.normal(size=(2, LINES, 8, numbers)), rng.normal(size=(2, 8, numbers))
    free, measured = np.zeros(LINES, dtype=bool), []
    kind = greedy._ScalarUpdate if numbers == 1 else greedy._VectorUpdate
    measure = kind.measure
    monkeypatch.setattr(
        kind, "measure", lambda self, line: (measured.append(line), measure(self, line))
    )

    def fresh():
        return _LowRankCovariance(told, z, noise=_low_rank_noise(told, free, 0.3))

    going_on, whole = fresh(), fresh().greedy(11, free)
    first, gains = going_on.greedy(5, free)
    there = free.copy()
    there[first] = True
    measured.clear()
    after, more = going_on.greedy(6, there, known=first)
    assert measured == after, "what was chosen before is not measured again"
    assert ([*first, *after], [*gains, *more]) == whole
    # What came of it is nobody else's: the same question again, and another one.
    assert going_on.greedy(6, there, known=first) == (after, more)
    assert going_on.left(first) == fresh().left(first)
