"""Typical mistakes: each is refused, warned of, or gives the right result; none is silent."""

import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import taskuq as tq
from taskuq.errors import GuaranteeWarning

RNG = np.random.default_rng(0)
Z = RNG.random(60)
X = Z[:, None] + 0.1 * RNG.standard_normal((60, 4))
ROUNDS = np.stack([Z[:, None] + s * RNG.standard_normal((60, 4)) for s in (0.3, 0.1)])
NEW, GROUP, PAIR = X + 1e-3, np.repeat(np.arange(20), 3), np.stack([X, X], axis=-1)
NAMES = [f"p{i}" for i in range(60)]
TABLE = tq.TaskOutputs(ROUNDS, Z, (8, 4))
BOUND = tq.calibrate(X, Z, alpha=0.1)
POLICY = tq.plan(TABLE, alpha=0.2, max_width=0.5)
UNIT = tq.Interval(np.zeros(3), np.ones(3))


def masked(values):
    return np.ma.masked_array(values, np.asarray(values) == np.asarray(values).flat[0])


def labelled(index=NAMES):
    return pd.Series(Z, index=index)


def calibrate(outputs=X, targets=Z, **options):
    return tq.calibrate(outputs, targets, **{"alpha": 0.1, **options})


def plan(table=TABLE, **options):
    return tq.plan(table, **{"alpha": 0.1, "max_width": 0.1, **options})


def evaluate(**options):
    return tq.evaluate(X, Z, **{"alpha": 0.1, "splits": 3, **options})


# What is called, and the code of the refusal, or the class of the error or warning.
MISTAKES = {
    "masked targets": (lambda: calibrate(X, masked(Z)), "dtype.invalid"),
    "masked outputs": (lambda: calibrate(masked(X)), "dtype.invalid"),
    "masked group": (lambda: calibrate(group=masked(GROUP)), "dtype.invalid"),
    "masked label": (lambda: calibrate(label=masked(GROUP % 2)), "dtype.invalid"),
    "masked weights": (lambda: calibrate(weights=masked(Z)), "dtype.invalid"),
    "masked values": (lambda: UNIT.contains(masked(Z[:3])), "dtype.invalid"),
    "index of others": (
        lambda: calibrate(pd.DataFrame(X), labelled()), "shape.mismatch"),
    "index of others online": (
        lambda: tq.calibrate_online(pd.DataFrame(X), labelled(), alpha=0.1), "shape.mismatch"),
    "labels of other cases": (
        lambda: plan(tq.TaskOutputs(ROUNDS, Z, (8, 4), case=NAMES), label=labelled(range(60))),
        "shape.mismatch"),
    "values of other cases": (
        lambda: BOUND(pd.DataFrame(NEW, NAMES)).contains(labelled(range(60))), "shape.mismatch"),
    "score that is ignored": (lambda: plan(policy="fixed-width", score="lwr"), "option.unused"),
    "site that is ignored": (lambda: calibrate(site=GROUP), "option.unused"),
    "prediction of calibration cases": (lambda: BOUND(X), GuaranteeWarning),
    "joint prediction of calibration cases": (
        lambda: tq.calibrate_joint(PAIR, np.stack([Z, Z], 1), alpha=0.1)(PAIR), GuaranteeWarning),
    "decision on a calibration case": (lambda: POLICY.decide(0, ROUNDS[:1, 3]), GuaranteeWarning),
    "tuning on calibration cases": (
        lambda: calibrate(score="learned", tuning=(X, Z)), "data.leak"),
    "transposed outputs": (lambda: calibrate(X.T), "shape.mismatch"),
    "swapped arguments": (lambda: calibrate(Z, X), "shape.axes"),
    "column of targets": (lambda: calibrate(X, Z[:, None]), "shape.axes"),
    "missing targets": (lambda: tq.calibrate(X, alpha=0.1), "targets.missing"),
    "complex outputs": (lambda: calibrate(X + 0j), "dtype.invalid"),
    "numbers as text": (lambda: calibrate(X.astype(str).astype(object)), "dtype.invalid"),
    "dates as targets": (
        lambda: calibrate(X, np.full(60, "2020-01-01", "datetime64[D]")), "dtype.invalid"),
    "missing values of pandas": (
        lambda: calibrate(X, pd.Series([pd.NA, *Z[1:]])), "dtype.invalid"),
    "text in a frame": (lambda: calibrate(pd.DataFrame(X).assign(a="b"), Z), "dtype.invalid"),
    "NaN": (lambda: calibrate(np.where(X > 0.9, np.nan, X)), "value.nonfinite"),
    "percent": (lambda: calibrate(X, 100 * Z, task_range=(0, 1)), "range.outside"),
    "range as text": (lambda: calibrate(task_range="0,1"), "range.invalid"),
    "range of one number": (lambda: calibrate(task_range=1), "range.invalid"),
    "alpha as text": (lambda: calibrate(alpha="0.1"), "alpha.invalid"),
    "alpha in percent": (lambda: calibrate(alpha=5), "alpha.invalid"),
    "alpha as list": (lambda: calibrate(alpha=[0.1, 0.2]), "alpha.invalid"),
    "alpha by position": (lambda: tq.calibrate(X, Z, 0.1), TypeError),
    "no alpha": (lambda: tq.calibrate(X, Z), TypeError),
    "confidence level": (lambda: calibrate(confidence_level=0.9), TypeError),
    "rng": (lambda: calibrate(rng=0), TypeError),
    "groups": (lambda: calibrate(groups=GROUP), TypeError),
    "seed as text": (lambda: calibrate(seed="0", score="learned"), "value.invalid"),
    "score list": (lambda: calibrate(score=["ar", "cqr"]), "component.invalid"),
    "side both": (lambda: calibrate(side="both"), "choice.unknown"),
    "group of other length": (lambda: calibrate(group=GROUP[1:]), "shape.mismatch"),
    "group by column name": (lambda: calibrate(group="patient"), "shape.mismatch"),
    "group missing": (lambda: calibrate(group=[None, *map(str, GROUP[1:])]), "groups.missing"),
    "unit without groups": (lambda: calibrate(unit="group"), "groups.missing"),
    "all cases of no group": (lambda: calibrate(cases="all"), "groups.missing"),
    "task of arrays": (lambda: calibrate(task="area"), "option.unused"),
    "round not chosen": (lambda: tq.calibrate(TABLE, alpha=0.1), "option.missing"),
    "targets twice": (lambda: calibrate(TABLE, Z, acceleration=4), "option.unused"),
    "path of nothing": (lambda: tq.calibrate("nothing.npz", alpha=0.1), "file.missing"),
    "fewer samples": (lambda: BOUND(NEW[:, :2]), "samples.mismatch"),
    "strata of a plain bound": (lambda: BOUND(NEW, strata=GROUP), "option.unused"),
    "prediction of nothing": (lambda: BOUND(None), "dtype.invalid"),
    "half a split": (lambda: evaluate(splits=2.5), "value.invalid"),
    "splits as text": (lambda: evaluate(splits="10"), "value.invalid"),
    "rounds in the wrong order": (lambda: tq.TaskOutputs(ROUNDS, Z, (4, 8)), "rounds.invalid"),
    "sampled fractions": (lambda: tq.TaskOutputs(ROUNDS, Z, (1 / 8, 1 / 4)), "rounds.invalid"),
    "round axis last": (
        lambda: tq.TaskOutputs(np.moveaxis(ROUNDS, 0, -1), Z, (8, 4)), "shape.mismatch"),
    "no accelerations": (lambda: tq.TaskOutputs(ROUNDS, Z), "rounds.invalid"),
    "fully sampled round": (lambda: tq.TaskOutputs(ROUNDS, Z, (4, 1)), "rounds.invalid"),
    "id twice": (lambda: tq.TaskOutputs(X, Z, case=[0] * 60), "table.duplicate"),
    "width limit missing": (lambda: plan(max_width=None), "option.missing"),
    "negative width limit": (lambda: plan(max_width=-0.1), "value.invalid"),
    "misspelt option": (lambda: plan(maxwidth=0.1), "choice.unknown"),
    "array instead of a table": (lambda: plan(ROUNDS), "dtype.invalid"),
    "label of no column": (lambda: plan(label="label"), "groups.missing"),
    "acceleration as round": (lambda: POLICY.decide(8, NEW[:1]), "value.invalid"),
    "round before": (lambda: POLICY.decide(1, NEW[:1]), "samples.mismatch"),
    "one sample to diagnose": (lambda: tq.diagnose(X[:, :1], Z), "samples.mismatch"),
    "ends of other lengths": (lambda: tq.Interval([0, 1], [1, 2, 3]), "shape.mismatch"),
    "column of values": (lambda: UNIT.contains(np.zeros((3, 1))), "shape.mismatch"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_not_silent(mistake):
    call, expected = MISTAKES[mistake]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if not isinstance(expected, str):
            with pytest.raises(expected):
                call()
            return
        with pytest.raises(tq.InputError) as caught:
            call()
    assert caught.value.code == expected, str(caught.value)


@pytest.mark.parametrize("kind", ["pandas", "frame", "xarray"])
def test_shuffled_values_are_matched_with_their_intervals(kind):
    interval = BOUND(pd.DataFrame(NEW, NAMES))
    shuffled = labelled().sample(frac=1, random_state=0)
    if kind == "frame":
        shuffled = shuffled.rename_axis("case").reset_index(name="target")
    if kind == "xarray":
        shuffled = pytest.importorskip("xarray").DataArray(shuffled.rename_axis("case"))
    np.testing.assert_array_equal(interval.contains(shuffled), interval.contains(Z))
    axes = tq.plot.intervals(interval, shuffled, ax=Figure().add_subplot())
    assert any(np.array_equal(line.get_ydata(), Z) for line in axes.lines)


def test_new_cases_and_repeated_values_give_no_warning():
    points = tq.calibrate(np.round(X[:, :1]), Z, alpha=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BOUND(NEW)
        POLICY.decide(0, ROUNDS[:1, 3] + 1e-6)
        points(np.round(NEW[:5, :1]))
    with pytest.warns(GuaranteeWarning, match="60 of 60"):
        tq.Bound.from_dict(BOUND.to_dict())(X.astype(object))


SCRIPT = """
import numpy as np
import taskuq as tq

x, z = np.zeros((9, 4)), np.zeros(9)
table = tq.TaskOutputs.load("atlas-sampler")
bound = tq.calibrate(x, z, alpha=0.1)
lower, upper = bound.predict(x)
tq.plan(table, alpha=0.1, max_width={"a": 0.1}, seed=np.random.default_rng(0))
tq.plot.intervals(bound(x), z)
tq.calibrate(x, z, 0.1)  # wrong
tq.calibrate(x, z)  # wrong
tq.calibrate(x, z, alpha="0.1")  # wrong
tq.calibrate(x, z, alpha=0.1, rng=0)  # wrong
tq.calibrate(x, z, alpha=0.1, side="both")  # wrong
tq.calibrate(x, z, alpha=0.1, unit="patient")  # wrong
tq.calibrate(None, z, alpha=0.1)  # wrong
tq.evaluate(x, z, alpha=0.1, splits="10")  # wrong
tq.evaluate(x, z, alpha=0.1, seed="0")  # wrong
tq.plan(table, alpha=0.1, max_width="0.1")  # wrong
tq.plan(table, alpha=0.1, maxwidth=0.1)  # wrong
tq.plan((x[None], z), alpha=0.1, max_width=0.1, accelerations=(8,), side="two")
tq.simulate(table, alpha=0.1, max_width=0.1, seed="0")  # wrong
tq.TaskOutputs(None, z)  # wrong
tq.TaskOutputs(x, z, task_range="0,1")  # wrong
tq.TaskOutputs.load(3, task_range=0.5)  # wrong
bound.predict(None)  # wrong
bound.widths  # wrong
tq.plot.widths(bound)  # wrong
"""


def test_type_checker_finds_the_mistakes(tmp_path):
    pytest.importorskip("mypy")
    root, script = Path(__file__).parents[2], tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(script)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    found = {int(line) for line in re.findall(r"script\.py:(\d+): error", done.stdout)}
    lines = enumerate(SCRIPT.splitlines(), 1)
    assert found == {k for k, line in lines if "# wrong" in line}, done.stdout + done.stderr
