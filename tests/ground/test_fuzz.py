"""Malformed calls by the thousand: each ends in our own error or in a result without warning."""

from collections import Counter

import numpy as np
import pytest

import taskuq as tq
from fuzz_changes import Dice

# Values that have broken programs before.
VALUES = (0.0, 1.0, -1.0, 0.5, 0.1, 1e-300, 5e-324, 1e99, -1e99, 1e300, np.nan, np.inf, -np.inf)
DTYPES = (float, np.float32, np.float16, int, np.uint8, bool, complex, "U4", "S3", object, "M8[s]")
SHAPES = (
    (), (0,), (1,), (6,), (6, 0), (0, 3), (1, 3), (6, 1), (6, 3), (2, 6, 3), (1, 6, 3), (6, 3, 2),
)  # fmt: skip
ALPHAS = (
    0.1, 0.3, 0.5, 0.9, 1e-9, 0.999999, 0, 1, -1, 2, np.nan, np.inf, None, "0.1", [], True, 1 / 3,
)  # fmt: skip
SCORES = ("ar", "lwr", "cqr", "mlwr", "learned", "LWR", "", None, 3, object(), print)
RANGES = (
    None, None, (0, 1), (-1e99, 1e99), (0, np.inf), (-np.inf, np.inf), (1, 0), (0, 0), 5, "ab",
    (np.nan, 1), (0, 10**400), (), [None, 1],
)  # fmt: skip
SIDES = ("two", "two", "upper", "lower", "each", "left", None)


class Calls(Dice):
    """Random arguments from one seed, and what became of the calls."""

    def __init__(self, seed):
        super().__init__(seed)
        self.ends = Counter()

    def array(self, shape=None):
        """An array that may be odd in shape, kind or values; often it is fine."""
        if shape is None or self.rng.random() < 0.1:
            shape = self.pick(SHAPES)
        values = np.asarray(self.rng.random(shape))
        if self.rng.random() < 0.3:
            values = np.round(values, 1)
        if self.rng.random() < 0.3:
            values = np.where(self.rng.random(shape) < 0.3, self.pick(VALUES), values)
        if self.rng.random() < 0.15:
            kind = self.pick(DTYPES)
            with np.errstate(all="ignore"):
                values = (np.nan_to_num(values) % 97 if kind is not complex else values).astype(
                    kind
                )
        if self.rng.random() < 0.05:
            return np.asarray(values).tolist()
        return (
            self.pick((None, "text", 3, {}, [[1], [2, 3]])) if self.rng.random() < 0.02 else values
        )

    def ids(self, cases):
        choice = self.rng.random()
        if choice < 0.5:
            return self.rng.integers(0, 3, cases)
        odd = (
            list("abcabc"), self.rng.random(cases), [[1], [2, 3]], [None] * cases, "abcdef", 7,
            np.full(cases, 1e30), self.array(),
        )  # fmt: skip
        return self.pick(odd)

    def options(self, cases):
        options = {
            "alpha": self.pick(ALPHAS[:4]) if self.rng.random() < 0.6 else self.pick(ALPHAS),
            "score": self.pick(SCORES[:5]) if self.rng.random() < 0.8 else self.pick(SCORES),
        }
        if self.rng.random() < 0.4:
            options["task_range"] = self.pick(RANGES)
        if self.rng.random() < 0.3:
            options["side"] = self.pick(SIDES)
        return options

    def run(self, function, *arguments, **options):
        try:
            result = function(*arguments, **options)
        except tq.InputError as error:
            self.ends["refused"] += 1
            self.ends["refused in several lines"] += "\n" in str(error)
            return None
        self.ends["done"] += 1
        return result


def assert_tried(calls, least):
    """Both ends were reached often, and no sentence ran over a line."""
    assert min(calls.ends["done"], calls.ends["refused"]) > least, calls.ends
    assert calls.ends["refused in several lines"] == 0


def shapes(calls):
    cases = calls.pick((2, 6, 6, 6, 24, 40))
    samples = calls.pick((1, 2, 3, 3))
    outputs = (cases, samples) if calls.rng.random() < 0.9 else (2, cases, samples)
    return cases, calls.array(outputs), calls.array((cases,))


def test_malformed_calibrations():
    calls = Calls(1)
    for _ in range(6_000):
        cases, outputs, targets = shapes(calls)
        options = calls.options(cases)
        for name, chance in (("group", 0.15), ("label", 0.05), ("strata", 0.05), ("weights", 0.05)):
            if calls.rng.random() < chance:
                options[name] = calls.array((cases,)) if name == "weights" else calls.ids(cases)
        if calls.rng.random() < 0.1:
            options["delta"] = calls.pick(ALPHAS)
        if calls.rng.random() < 0.1:
            options["cases"] = calls.pick(("all", "random", 0.5, 1, 0, 2, "most", None))
        calls.run(tq.calibrate, outputs, targets, **options)
    assert_tried(calls, 500)


def test_malformed_predictions():
    calls = Calls(2)
    x, z = np.random.default_rng(0).random((60, 3)), np.random.default_rng(1).random(60)
    bounds = [
        tq.calibrate(x, z, alpha=0.2, score=score, side=side, **more)
        for score in ("ar", "lwr", "cqr", "mlwr", "learned")
        for side in ("two", "upper")
        for more in (
            {},
            {"task_range": (0, 1)},
            {"strata": np.arange(60) % 2},
            {"weights": z + 0.1},
        )
    ]
    for _ in range(2_000):
        cases = calls.pick((0, 1, 6))
        options = {}
        if calls.rng.random() < 0.4:
            options["strata"] = calls.ids(6)
        if calls.rng.random() < 0.4:
            options["weights"] = calls.array((cases,))
        outputs = calls.array(calls.pick(((cases, 3), (3,), (2, cases, 3))))
        interval = calls.run(calls.pick(bounds), outputs, **options)
        assert interval is None or not np.isnan([interval.lower, interval.upper]).any()
    assert_tried(calls, 60)


def test_malformed_evaluations():
    calls = Calls(3)
    for _ in range(1_000):
        cases, outputs, targets = shapes(calls)
        calls.run(tq.evaluate_exact, outputs, targets, tuning_repeats=2, **calls.options(cases))
    for _ in range(200):
        cases, outputs, targets = shapes(calls)
        options = calls.options(cases)
        for name in ("group", "label"):
            if calls.rng.random() < 0.3:
                options[name] = calls.ids(cases)
        calls.run(
            tq.evaluate, outputs, targets, splits=2, tuning_repeats=2, seed=calls.rng,
            size_bins=calls.pick((None, (0, 0.1, np.inf))), **options,
        )  # fmt: skip
    assert_tried(calls, 40)


def test_malformed_joint_and_online_calibrations():
    calls = Calls(4)
    for _ in range(250):
        cases = calls.pick((2, 6, 24))
        options = calls.options(cases) | {"method": calls.pick(("scale", "minimax", "x"))}
        calls.run(
            tq.calibrate_joint, calls.array((cases, 3, 2)), calls.array((cases, 2)), **options
        )
        bound = calls.run(
            tq.calibrate_online,
            calls.array((cases, 3)),
            calls.array((cases,)),
            **calls.options(cases),
        )
        if bound is not None:
            calls.run(bound.update, calls.array((3,)), calls.pick((*VALUES, None, "a", [1])))
    assert_tried(calls, 30)


@pytest.mark.parametrize("wrong", [KeyError, RuntimeWarning, MemoryError])
def test_another_error_is_seen(wrong):
    def broken():
        raise wrong("not ours")

    with pytest.raises(wrong):
        Calls(0).run(broken)
