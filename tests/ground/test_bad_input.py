"""Bad input of the statistics: each kind raises an InputError of its code."""

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
FAULTS = {
    "NaN in outputs": ({"outputs": spoilt(X, np.nan, (2, 1), (5, 0))}, "value.nonfinite"),
    "infinity in outputs": ({"outputs": spoilt(X, -np.inf, (2, 1))}, "value.nonfinite"),
    "NaN in targets": ({"targets": spoilt(Z, np.nan, 7)}, "value.nonfinite"),
    "infinity in targets": ({"targets": spoilt(Z, np.inf, 7)}, "value.nonfinite"),
    "huge outputs": ({"outputs": spoilt(X, 1e305, (2, 1))}, "value.nonfinite"),
    "targets too few": ({"targets": Z[:-1]}, "shape.mismatch"),
    **{f"alpha {a!r}": ({"alpha": a}, "alpha.invalid") for a in (0, 1.0, -0.1, np.nan, "0.1")},
    "one case": ({"outputs": X[:1], "targets": Z[:1]}, "units.few"),
    "no case": ({"outputs": X[:0], "targets": Z[:0]}, "units.few"),
    "unknown score": ({"score": "lwrr"}, "choice.unknown"),
    "no score": ({"score": 3}, "component.invalid"),
    "unknown side": ({"side": "left"}, "choice.unknown"),
    "targets outside the range": ({"task_range": (0, 0.5)}, "range.outside"),
    "range upside down": ({"task_range": (1, 0)}, "range.invalid"),
    "range of three": ({"task_range": (0, 1, 2)}, "range.invalid"),
    "complex outputs": ({"outputs": X + 1j}, "dtype.invalid"),
    "text outputs": ({"outputs": X.astype(str)}, "dtype.invalid"),
}


@pytest.mark.parametrize("function", EVERY, ids=lambda f: f.__name__)
@pytest.mark.parametrize("fault", FAULTS)
def test_bad_arrays_are_refused(fault, function):
    given, code = FAULTS[fault]
    with refused(code):
        function(**given)


ONES = np.ones(30, int)
FEW = {"outputs": X[:12], "targets": Z[:12]}
ONE_OF_THEM = (np.r_[X + 1, X[:1]], np.r_[Z + 1, Z[:1]])
OPTIONS = [
    (calibrate, {"outputs": X[:, :0]}, "samples.mismatch"),
    (calibrate, {"outputs": np.ones((30, 2, 2, 2))}, "shape.axes"),
    (calibrate, {"outputs": [[1, 2], [3]]}, "dtype.invalid"),
    (calibrate, {"group": [[1], [2, 3]]}, "shape.axes"),
    (calibrate, {"group": Z}, "dtype.invalid"),
    (calibrate, {"group": np.full(30, 1e30)}, "dtype.invalid"),
    (calibrate, {"unit": "voxel"}, "choice.unknown"),
    (calibrate, {"group": np.arange(30), "cases": 2}, "value.invalid"),
    (calibrate, {"group": np.arange(30), "cases": "most"}, "value.invalid"),
    (calibrate, {"delta": 1}, "alpha.invalid"),
    (calibrate, {"label": ONES, "strata": ONES}, "option.conflict"),
    (calibrate, {"weights": -np.ones(30)}, "value.invalid"),
    (calibrate, {"weights": np.ones(30), "delta": 0.1}, "option.conflict"),
    (calibrate, {"weights": ONES, "group": np.arange(30)}, "option.conflict"),
    (calibrate, {"score": "mlwr", "tuning": (X[:, :2], Z)}, "shape.mismatch"),
    (calibrate, {"score": "mlwr", "tuning": 3}, "shape.axes"),
    (calibrate, {"score": "learned", "tuning": (X[::-1], Z[::-1])}, "data.leak"),
    (calibrate, {"score": "learned", "tuning": ONE_OF_THEM}, "data.leak"),
    (calibrate, {"score": "learned"} | FEW, "units.few"),
    (evaluate, {"splits": 0}, "value.invalid"),
    (evaluate, {"size_bins": (1, 0)}, "value.invalid"),
    (evaluate_exact, {"tuning_repeats": 0, "score": "learned"}, "value.invalid"),
    (calibrate_online, {"step_size": 0}, "value.invalid"),
    (calibrate_joint, {"method": "mean"}, "choice.unknown"),
]


@pytest.mark.parametrize(("function", "options", "code"), OPTIONS)
def test_bad_options_are_refused(function, options, code):
    with refused(code):
        function(**options)


def test_repeated_numbers_are_no_leak_of_tuning_cases():
    coarse, truth = np.round(X), np.round(Z)
    calibrate(outputs=coarse, targets=truth, score="learned",
              tuning=(np.r_[coarse[:15], X[15:] + 1], np.r_[truth[:15], Z[15:]]))  # fmt: skip


def test_bad_numbers_are_counted_and_the_first_is_located():
    with refused("value.nonfinite", "3", "120", "(2, 1)"):
        calibrate(spoilt(X, np.nan, (2, 1), (5, 0), (5, 3)))


def test_finite_numbers_beyond_the_limit_are_named():
    with refused("value.nonfinite", "beyond 1e+303", "first 1e+305 at index (2, 1)"):
        calibrate(spoilt(X, 1e305, (2, 1)))
    assert np.isfinite(calibrate(spoilt(X, 1e100, (2, 1))).quantile)


def test_large_numbers_whose_sum_overflows_are_finite():
    huge = np.full((30, 4), 1e30, dtype=np.float32)
    assert calibrate(huge, np.full(30, 1e30)).quantile is not None


CALLS = [
    ({}, (spoilt(X, np.nan, (0, 0)),), {}, "value.nonfinite"),
    ({}, (X,), {"weights": np.ones(30)}, "option.unused"),
    ({}, (X.astype(str),), {}, "dtype.invalid"),
    ({}, (X[None, None],), {}, "shape.axes"),
    ({"strata": np.arange(30) % 2}, (X,), {}, "groups.missing"),
    ({"weights": np.ones(30)}, (X,), {}, "option.missing"),
]


@pytest.mark.parametrize(("options", "given", "more", "code"), CALLS)
def test_bound_refuses_outputs_of_another_kind(options, given, more, code):
    with refused(code):
        calibrate(**options)(*given, **more)


TABLES = [
    ((1.0, 2.0), {}, "shape.axes"),
    ((X, Z, (1,)), {}, "rounds.invalid"),
    ((X, Z, ["fast"]), {}, "dtype.invalid"),
    ((X, Z), {"task_names": ["a", "b"]}, "table.duplicate"),
    ((X, Z), {"task_range": (0, 0.999999 * Z.max())}, "range.outside"),
    ((X, Z), {"task_names": 5}, "dtype.invalid"),
    ((X, Z), {"provenance": [1]}, "dtype.invalid"),
]


@pytest.mark.parametrize(("given", "options", "code"), TABLES)
def test_table_refuses_bad_parts(given, options, code):
    with refused(code):
        tq.TaskOutputs(*given, **options)
