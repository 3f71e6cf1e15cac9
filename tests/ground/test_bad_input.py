"""Bad input: each kind gets one clear sentence that says what came and what to do."""

import numpy as np
import pytest

import taskuq as tq
from raising import refused

RNG = np.random.default_rng(0)
X, Z = RNG.random((30, 4)), RNG.random(30)


def spoilt(array, value, *places):
    copy = array.copy()
    for place in places:
        copy[place] = value
    return copy


def calibrate(outputs=X, targets=Z, **options):
    return tq.calibrate(outputs, targets, **({"alpha": 0.1, "score": "lwr"} | options))


def evaluate(outputs=X, targets=Z, **options):
    options = {"alpha": 0.1, "score": "lwr", "splits": 3, "seed": 0} | options
    return tq.evaluate(outputs, targets, **options)


def evaluate_exact(outputs=X, targets=Z, **options):
    return tq.evaluate_exact(outputs, targets, **({"alpha": 0.1, "score": "lwr"} | options))


def calibrate_online(outputs=X, targets=Z, **options):
    return tq.calibrate_online(outputs, targets, **({"alpha": 0.1, "score": "lwr"} | options))


def calibrate_joint(outputs=X, targets=Z, **options):
    both = (np.stack([np.asarray(part)] * 2, axis=-1) for part in (outputs, targets))
    return tq.calibrate_joint(*both, **({"alpha": 0.1, "score": "lwr"} | options))


EVERY = (calibrate, evaluate, evaluate_exact, calibrate_online, calibrate_joint)

# The fault, and names that the message must contain.
FAULTS = {
    "NaN in outputs": ({"outputs": spoilt(X, np.nan, (2, 1), (5, 0))}, ["outputs"]),
    "infinity in outputs": ({"outputs": spoilt(X, -np.inf, (2, 1))}, ["outputs"]),
    "NaN in targets": ({"targets": spoilt(Z, np.nan, 7)}, ["targets"]),
    "infinity in targets": ({"targets": spoilt(Z, np.inf, 7)}, ["targets"]),
    "numbers beyond all tasks": ({"outputs": spoilt(X, 1e300, (2, 1))}, ["outputs"]),
    "targets too few": ({"targets": Z[:-1]}, ["targets"]),
    "alpha zero": ({"alpha": 0}, ["alpha", "(0, 1)", "got 0"]),
    "alpha one": ({"alpha": 1.0}, ["alpha"]),
    "alpha negative": ({"alpha": -0.1}, ["alpha", "-0.1"]),
    "alpha in percent": ({"alpha": 5}, ["alpha"]),
    "alpha not a number": ({"alpha": float("nan")}, ["alpha"]),
    "alpha as text": ({"alpha": "0.1"}, ["alpha"]),
    "one case": ({"outputs": X[:1], "targets": Z[:1]}, []),
    "no case": ({"outputs": X[:0], "targets": Z[:0]}, []),
    "no samples": ({"outputs": X[:, :0]}, []),
    "unknown score": ({"score": "lwrr"}, ["'lwrr'", "mlwr"]),
    "no score": ({"score": 3}, ["score"]),
    "unknown side": ({"side": "left"}, ["side", "'upper'"]),
    "targets outside the range": ({"task_range": (0, 0.5)}, ["range"]),
    "range upside down": ({"task_range": (1, 0)}, ["range"]),
    "range of three": ({"task_range": (0, 1, 2)}, ["range"]),
    "complex outputs": ({"outputs": X + 1j}, ["outputs"]),
    "text outputs": ({"outputs": X.astype(str)}, ["outputs"]),
}  # fmt: skip


def require_one_sentence(call, words):
    """Fail unless a call is refused in one sentence that has all of the words."""
    with pytest.raises(tq.InputError) as refusal:
        call()
    sentence = str(refusal.value)

    assert "\n" not in sentence
    assert len(sentence) < 300
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize("sentence", ["two\nlines of alpha", "alpha " * 60, "nothing of the kind"])
def test_a_refusal_that_is_not_one_sentence_is_seen(sentence):
    def call():
        raise tq.InputError(sentence, code="alpha.invalid")

    with pytest.raises(AssertionError):
        require_one_sentence(call, ["alpha"])


@pytest.mark.parametrize("function", EVERY, ids=lambda f: f.__name__)
@pytest.mark.parametrize("fault", FAULTS)
def test_bad_input_gets_one_sentence(fault, function):
    given, words = FAULTS[fault]
    require_one_sentence(lambda: function(**given), words)


ONES = np.ones(30, int)
FEW = {"outputs": X[:12], "targets": Z[:12]}
MORE = {
    "outputs of four axes": (
        calibrate, {"outputs": np.ones((30, 2, 2, 2))}, ["(30, 2, 2, 2)"],
    ),
    "ragged outputs": (calibrate, {"outputs": [[1, 2], [3]]}, ["outputs"]),
    "group too short": (calibrate, {"group": [1, 2]}, ["group", "30 cases"]),
    "ragged groups": (calibrate, {"group": [[1], [2, 3]]}, ["group"]),
    "fractions as groups": (calibrate, {"group": Z}, ["group"]),
    "huge groups": (calibrate, {"group": np.full(30, 1e30)}, ["group"]),
    "unit without groups": (calibrate, {"unit": "group"}, ["group="]),
    "unknown unit": (calibrate, {"unit": "voxel"}, ["unit", "'voxel'"]),
    "a share of cases beyond one": (calibrate, {"group": np.arange(30), "cases": 2}, ["fraction"]),
    "cases by another word": (calibrate, {"group": np.arange(30), "cases": "most"}, ["fraction"]),
    "delta one": (calibrate, {"delta": 1}, ["delta"]),
    "label and strata": (calibrate, {"label": ONES, "strata": ONES}, []),
    "negative weights": (calibrate, {"weights": -np.ones(30)}, ["weights"]),
    "weights with delta": (calibrate, {"weights": np.ones(30), "delta": 0.1}, ["delta"]),
    "weights with groups": (calibrate, {"weights": ONES, "group": np.arange(30)}, ["weights"]),
    "tuning of other samples": (calibrate, {"score": "mlwr", "tuning": (X[:, :2], Z)}, ["tuning"]),
    "tuning that is no pair": (calibrate, {"score": "mlwr", "tuning": 3}, ["tuning"]),
    "tuning on the calibration cases": (
        calibrate, {"score": "learned", "tuning": (X[::-1], Z[::-1])}, ["30 of 30"],
    ),
    "tuning on one of them": (
        calibrate, {"score": "learned", "tuning": (np.r_[X + 1, X[:1]], np.r_[Z + 1, Z[:1]])},
        ["1 of 31 tuning cases", "first: 30"],
    ),
    "learned from too few": (calibrate, {"score": "learned"} | FEW, ["tuning cases"]),
    "no splits": (evaluate, {"splits": 0}, ["splits"]),
    "size bins that fall": (evaluate, {"size_bins": (1, 0)}, ["size_bins"]),
    "all for calibration": (
        evaluate_exact, {"calibration_fraction": 1.0}, ["calibration_fraction"],
    ),
    "no tunings": (evaluate_exact, {"tuning_repeats": 0, "score": "learned"}, ["tuning_repeats"]),
    "a step of nothing": (calibrate_online, {"step_size": 0}, ["step_size"]),
    "unknown method": (calibrate_joint, {"method": "mean"}, ["method"]),
    "rank for groups": (calibrate_joint, {"method": "rank", "group": np.arange(30)}, ["rank"]),
}  # fmt: skip


@pytest.mark.parametrize("fault", MORE)
def test_options_that_do_not_fit_get_one_sentence(fault):
    function, options, words = MORE[fault]
    require_one_sentence(lambda: function(**options), words)


def test_tuning_cases_may_equal_calibration_cases_where_numbers_repeat_anyway():
    coarse, truth = np.round(X), np.round(Z)
    calibrate(outputs=coarse, targets=truth, score="learned",
              tuning=(np.r_[coarse[:15], X[15:] + 1], np.r_[truth[:15], Z[15:]]))  # fmt: skip


def test_bad_numbers_are_counted_and_the_first_is_located():
    bad = spoilt(X, np.nan, (2, 1), (5, 0), (5, 3))
    with refused("value.nonfinite", "3", "120", "(2, 1)"):
        calibrate(bad)


def test_large_numbers_whose_sum_overflows_are_not_called_infinite():
    huge = np.full((30, 4), 1e30, dtype=np.float32)

    assert calibrate(huge, np.full(30, 1e30)).quantile is not None


CALLS = {
    "other samples": ((X[:, :3],), {}),
    "NaN": ((spoilt(X, np.nan, (0, 0)),), {}),
    "strata not asked for": ((X,), {"strata": np.ones(30, int)}),
    "weights not asked for": ((X,), {"weights": np.ones(30)}),
    "text": ((X.astype(str),), {}),
    "four axes": ((X[None, None],), {}),
}


@pytest.mark.parametrize("fault", CALLS)
def test_a_bound_refuses_outputs_that_do_not_fit(fault):
    arguments, options = CALLS[fault]
    with pytest.raises(tq.InputError):
        calibrate()(*arguments, **options)


def test_a_bound_by_strata_or_weights_needs_them():
    with refused("value.invalid"):
        calibrate(strata=np.arange(30) % 2)(X)
    with refused("value.invalid"):
        calibrate(weights=np.ones(30))(X)


TABLES = {
    "no axes": ((1.0, 2.0), {}),
    "rounds without accelerations": ((X[None].repeat(2, 0), Z), {}),
    "rising accelerations": ((X[None].repeat(2, 0), Z, (2, 4)), {}),
    "everything measured": ((X, Z, (1,)), {}),
    "text accelerations": ((X, Z, ["fast"]), {}),
    "two names for one task": ((X, Z), {"task_names": ["a", "b"]}),
    "a case twice": ((X, Z), {"case": np.zeros(30, int)}),
    "outputs outside the range": ((X, Z), {"task_range": (0, 0.999999 * Z.max())}),
    "a number as names": ((X, Z), {"task_names": 5}),
    "a list as provenance": ((X, Z), {"provenance": [1]}),
}


@pytest.mark.parametrize("fault", TABLES)
def test_a_table_refuses_parts_that_do_not_fit(fault):
    arguments, options = TABLES[fault]
    with pytest.raises(tq.InputError) as refusal:
        tq.TaskOutputs(*arguments, **options)
    assert "\n" not in str(refusal.value)


def test_an_acceleration_that_is_not_there_is_named_with_those_that_are():
    table = tq.TaskOutputs(X[None].repeat(2, 0), Z, (8, 4))
    with refused("choice.unknown"):
        table.round_index(3)
