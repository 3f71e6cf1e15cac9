"""Scores and their intervals agree, for every score, side and kind of case; own scores."""

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import taskuq as tq
from raising import refused
from taskuq._io import write_json
from taskuq.cli.app import main
from taskuq.conformal._family import (
    interval_family,
    mean_and_deviation,
    robust_mean_and_deviation,
    sample_quantiles,
)
from taskuq.conformal.scores import SCORES, resolve_score, score_from_dict, score_to_dict
from taskuq.conformal.scores._learned import LearnedScore
from taskuq.conformal.scores._mlwr import MLWR, _SelfTunedMLWR
from taskuq.conformal.scores._paper import AR, CQR, LWR
from taskuq.protocols import SelfTuned
from taskuq.table._examples import SyntheticTable, synthetic_outputs

SIDES = ("two", "upper", "lower")
NAMES = ("ar", "lwr", "cqr", "mlwr", "learned")


@cache
def scores_of(side, samples):
    """Every score of ours, learned ones tuned on other cases."""
    rng = np.random.default_rng(samples)
    truth = rng.random(60)
    outputs = np.clip(truth[:, None] + 0.2 * rng.standard_normal((60, samples)), 0, 1)
    return [
        AR(side), LWR(side), CQR(0.1, side), MLWR(side), MLWR(side).fit(outputs),
        MLWR(side).fit(outputs, range_=(0, 1)),
        LearnedScore(side).fit(outputs, truth, range_=(0, 1)),
        LearnedScore(side).fit(10 * outputs - 5, 10 * truth - 5),
    ]  # fmt: skip


NUMBER = st.floats(-3, 3, allow_subnormal=False).map(lambda v: v if abs(v) > 1e-100 else 0.0)
CASES = st.integers(1, 5).flatmap(
    lambda p: st.lists(
        st.tuples(st.lists(NUMBER, min_size=p, max_size=p), NUMBER), min_size=1, max_size=4
    )
)


@pytest.mark.parametrize("side", SIDES)
@settings(max_examples=40)
@given(cases=CASES, identical=st.booleans())
def test_target_is_in_the_interval_of_its_score(side, cases, identical):
    outputs = np.array([samples for samples, _ in cases])
    targets = np.array([target for _, target in cases])
    if identical:
        outputs = np.repeat(outputs[:, :1], outputs.shape[1], axis=1)
    for score in scores_of(side, outputs.shape[1]):
        quantile = score.score(outputs, targets)
        assert score.interval(outputs, quantile).contains(targets).all(), score


@pytest.mark.parametrize("side", SIDES)
@settings(max_examples=40)
@given(cases=CASES, quantile=st.floats(-2, 5))
def test_target_in_the_interval_scores_at_most_the_quantile(side, cases, quantile):
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
@settings(max_examples=40)
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


@settings(max_examples=40)
@given(cases=CASES, low=st.floats(-3, 0), width=st.floats(0.5, 4))
def test_clipping_never_loses_a_target_in_range(cases, low, width):
    outputs = np.array([samples for samples, _ in cases])
    targets = np.clip([target for _, target in cases], low, low + width)
    for score in scores_of("two", outputs.shape[1]):
        interval = score.interval(outputs, score.score(outputs, targets)).clip(low, low + width)
        assert interval.contains(targets).all()
        assert (interval.width <= width).all()


@settings(max_examples=20)
@given(cases=CASES)
def test_infinite_quantile_gives_everything(cases):
    outputs = np.array([samples for samples, _ in cases])
    for score in scores_of("two", outputs.shape[1]):
        interval = score.interval(outputs, np.inf)
        assert np.isneginf(interval.lower).all()
        assert np.isposinf(interval.upper).all()


def test_scores_of_the_paper_have_their_formulas():
    rng = np.random.default_rng(8)
    x, z = rng.random((200, 32)), rng.random(200)
    low, high = np.quantile(x, [0.05, 0.95], axis=1)
    np.testing.assert_allclose(AR().score(x, z), np.abs(z - x.mean(axis=1)), rtol=1e-12)
    np.testing.assert_allclose(
        LWR().score(x, z), np.abs(z - x.mean(axis=1)) / x.std(axis=1), rtol=1e-12
    )
    np.testing.assert_array_equal(CQR(0.1).score(x, z), np.maximum(low - z, z - high))


@pytest.mark.parametrize("p", [1, 2, 5, 32])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sample_quantiles_equal_numpy_to_the_bit(p, dtype):
    x = np.random.default_rng(p).standard_normal((300, p)).astype(dtype)
    levels = [0.0, 0.005, 0.025, 0.31, 0.5, 0.9, 0.975, 1.0]
    expected = np.quantile(x.astype(float), levels, axis=1)
    np.testing.assert_array_equal(np.stack(sample_quantiles(x, levels)), expected)


@pytest.mark.parametrize("p", [1, 2, 9, 10, 32, 9000])
@pytest.mark.parametrize("unit", [1e-290, 1.0, 1e290])
def test_robust_moments_have_their_formulas(p, unit):
    x = np.random.default_rng(p).standard_normal((300, p))
    mean = np.sort(x, axis=1)[:, p // 10 : p - p // 10].mean(axis=1)
    deviation = np.sqrt(np.pi / 2 * p / max(p - 1, 1)) * np.abs(x.T - mean).mean(axis=0)
    found, usual = robust_mean_and_deviation(unit * x), mean_and_deviation(x, ddof=p > 1)
    np.testing.assert_allclose(np.array(found) / unit, [mean, deviation], rtol=1e-12, atol=1e-15)
    assert p < 9000 or np.abs(np.subtract([mean, deviation], usual)).max() < 0.03  # normal samples


def test_identical_samples_make_lwr_a_point():
    x = np.full((3, 7), 0.1)
    assert LWR().score(x, np.array([0.1, 0.1000001, 0.0])).tolist() == [0, np.inf, np.inf]
    assert LWR().interval(x, 5.0).width.tolist() == [0, 0, 0]


def test_crossed_quantiles_are_empty_and_have_no_width():
    interval = CQR(0.2).interval(np.array([[0.4, 0.5]]), -0.2)
    assert interval.is_empty.all()
    assert interval.width.tolist() == [0]
    assert not interval.contains([0.45]).any()


def test_unknown_side_is_refused():
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


@pytest.mark.parametrize(
    ("side", "task_range"), [("two", None), ("two", (0, 1)), ("upper", (0, 1)), ("lower", None)]
)
@pytest.mark.parametrize("score", NAMES)
@pytest.mark.parametrize("kind", AWKWARD)
def test_rotations_of_awkward_cases_are_covered(kind, score, side, task_range):
    outputs, targets = AWKWARD[kind]
    rng = np.random.default_rng(9)
    # A learned score is tuned on cases outside the rotation, as training cases would be.
    tuning = (rng.random((40, outputs.shape[1])), rng.random(40))
    for alpha in (0.2, 0.5)[: 1 if score == "learned" else 2]:
        covered = 0
        for i in range(8):
            rest = np.arange(8) != i
            bound = tq.calibrate(
                outputs[rest], targets[rest], alpha=alpha, score=score, side=side,
                task_range=task_range, tuning=tuning,
            )  # fmt: skip
            covered += bool(bound(outputs[i]).contains(targets[i]))
        assert covered >= (1 - Fraction(str(alpha))) * 8


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


def fit_alone(self, kept, index):
    """Return the score without the range of its parameters."""
    fitted = RIGHT_FIT(self, kept, index).score
    return SelfTuned(fitted, (fitted,))


RIGHT_FIT = _SelfTunedMLWR.fit


def test_prior_of_calibration_units_alone_breaks_the_guarantee(monkeypatch):
    # A new case of small spread finds a prior of large ones, and the other way round; what is
    # far below an upper bound then scores worst in both.
    small = np.arange(8) < 4
    outputs = np.where(small, 0.01, 1.0)[:, None] * np.array([-1.0, 1.0])
    targets = np.where(small, -0.2, -1.0)
    everyone = outputs, targets, np.arange(8), 0.5
    assert missed_share(*everyone, side="upper")[0] <= Fraction(1, 2)
    monkeypatch.setattr(_SelfTunedMLWR, "fit", fit_alone)
    assert missed_share(*everyone, side="upper")[0] > Fraction(1, 2)


# Powers of two are exact; the others and a shift change the data in their last digits.
FACTORS = {2.0**-990: 0, 2.0**990: 0, 2.0**-30: 0, 1e-300: 1e-10, 1e-9: 1e-10, 1e300: 1e-10}
UNEVEN = np.random.default_rng(3)
WIDE = UNEVEN.standard_normal(60) * 3 + 5
DRAWN = WIDE[:, None] + 0.3 + 0.4 * UNEVEN.random((60, 1)) * UNEVEN.standard_normal((60, 6))
DRAWN[:9] = DRAWN[:9, :1]  # no spread


@pytest.mark.parametrize("task_range", [None, (-20.0, 40.0)])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    ("score", "side"),
    [*((score, "two") for score in NAMES), ("mlwr", "upper"), ("mlwr", "each"), ("joint", "two")],
)
def test_intervals_have_the_unit_of_the_data(score, side, grouped, task_range):
    def ends(scale, offset=0.0):
        x, z = DRAWN * scale + offset, WIDE * scale + offset
        options = {"alpha": 0.3, "group": np.repeat(np.arange(20), 3) if grouped else None}
        if task_range is not None:
            options["task_range"] = tuple(end * scale for end in task_range)
        if score == "joint":
            x, z = np.stack([x, x[::-1]], axis=2), np.stack([z, z[::-1]], axis=1)
            interval = tq.calibrate_joint(x, z, **options)(x)
        else:
            interval = tq.calibrate(x, z, score=score, side=side, **options)(x)
        return (np.array([interval.lower, interval.upper]) - offset) / scale

    plain = ends(1.0)
    assert np.isfinite(plain).any()
    for factor, slack in FACTORS.items():
        np.testing.assert_allclose(ends(factor), plain, rtol=slack, atol=slack)
    if task_range is None:
        np.testing.assert_allclose(ends(1.0, -300.0), plain, rtol=1e-10, atol=1e-10)


RNG = np.random.default_rng(8)
TRUTH = RNG.random(100)
OUTPUTS = TRUTH[:, None] + 0.1 * RNG.standard_normal((100, 5))


class AroundTheMean:
    """AR written anew, with nothing but the two methods."""

    def score(self, outputs, targets):
        return AR().score(outputs, targets)

    def interval(self, outputs, quantile):
        return AR().interval(outputs, quantile)


@dataclass(frozen=True)
class Shifted(AroundTheMean):
    """AR that has a side, an error rate and something to learn."""

    side: str = "two"
    alpha: float = 0.5
    shift: float | None = None
    tuning_fraction = 0.2
    tuning_needs_targets = True

    @property
    def needs_tuning(self):
        return self.shift is None

    def fit(self, outputs, targets=None, *, range_=None, group=None):
        return replace(self, shift=float((targets - outputs.mean(axis=1)).mean()))

    def score(self, outputs, targets):
        return AR(self.side).score(outputs + self.shift, targets)

    def interval(self, outputs, quantile):
        return AR(self.side).interval(outputs + self.shift, quantile)


class Half(AroundTheMean):
    """A score that can be tuned and does not declare how."""

    def fit(self, outputs, targets=None, *, range_=None, group=None):
        return self


@pytest.fixture
def listed(monkeypatch):
    more = {"mean": AroundTheMean, "shifted": Shifted, "half": Half}
    monkeypatch.setattr(SCORES, "_known", {**SCORES._known, **more})


@pytest.mark.usefixtures("listed")
def test_registered_score_gives_the_same_bound(tmp_path):
    mine = tq.calibrate(OUTPUTS, TRUTH, alpha=0.1, score="mean")
    ours = tq.calibrate(OUTPUTS, TRUTH, alpha=0.1, score="ar")
    read = tq.load_bound(mine.save(tmp_path / "bound.json"))
    np.testing.assert_array_equal(read(OUTPUTS).upper, ours(OUTPUTS).upper)
    assert isinstance(read.score, AroundTheMean)


@pytest.mark.usefixtures("listed")
def test_registered_score_gives_the_same_evaluation():
    mine, same, ours = (
        tq.evaluate_exact(OUTPUTS, TRUTH, alpha=0.1, score=s)
        for s in ("mean", AroundTheMean(), "ar")
    )
    assert mine == same
    assert mine.score == "mean"
    assert mine.coverage == ours.coverage


@pytest.mark.usefixtures("listed")
def test_command_line_accepts_a_registered_score(tmp_path, capsys):
    table = str(
        synthetic_outputs(SyntheticTable(volumes=20, samples=5), seed=0).save(tmp_path / "t.npz")
    )
    main(["evaluate", table, "--exact", "--score", "mean,ar", "--json", "-"])
    record = json.loads(capsys.readouterr().out)
    policy = tq.plan(table, score="mean", alpha=0.2, max_width=0.3, policy="adaptive")
    assert [r["score"] for r in record["results"][:2]] == ["mean", "ar"]
    assert tq.load_policy(policy.save(tmp_path / "policy.json")).thresholds == policy.thresholds


@pytest.mark.usefixtures("listed")
def test_score_receives_alpha_and_side():
    assert resolve_score("shifted", 0.1, "upper") == Shifted("upper", 0.1)
    with refused("option.conflict"):
        resolve_score("mean", 0.1, "upper")


@pytest.mark.usefixtures("listed")
def test_fitted_score_survives_a_file(tmp_path):
    bound = tq.calibrate(OUTPUTS - 0.3, TRUTH, alpha=0.1, score="shifted")
    assert bound.provenance["tuning_cases"] > 0
    assert tq.load_bound(bound.save(tmp_path / "bound.json")) == bound
    assert bound.score.shift == pytest.approx(0.3, abs=0.1)


@pytest.mark.usefixtures("listed")
def test_score_with_half_of_a_tuning_interface_is_refused():
    with refused("component.invalid"):
        tq.calibrate(OUTPUTS, TRUTH, alpha=0.1, score="half")


@pytest.mark.usefixtures("listed")
def test_score_without_a_record_is_stored_by_its_class():
    mine = AroundTheMean()
    mine.state = object()
    assert score_to_dict(mine) == {"name": "custom", "class": "AroundTheMean"}
    assert score_from_dict(score_to_dict(mine), mine) is mine


@pytest.mark.usefixtures("listed")
def test_unregistered_score_in_a_file_is_refused(tmp_path):
    path = tq.calibrate(OUTPUTS, TRUTH, alpha=0.1, score="lwr").save(tmp_path / "bound.json")
    write_json(path, json.loads(path.read_text().replace('"lwr"', '"elsewhere"')))
    with refused("choice.unknown", "elsewhere"):
        tq.load_bound(path)
