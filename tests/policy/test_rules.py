"""Rules: no stop with an empty report, laws of residuals, most probable windows."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import taskuq as tq
from raising import refused
from taskuq._io import write_json
from taskuq.conformal._family import IDENTITY, LinearFamily, Link, NestedIntervalScore
from taskuq.conformal.scores._learned import LearnedScore
from taskuq.conformal.scores._mlwr import MLWR
from taskuq.conformal.scores._paper import AR, CQR, LWR
from taskuq.policy._goal import Goal
from taskuq.policy._kinds import _fit_residual_law
from taskuq.policy._rules import (
    LOG_ODDS,
    IntervalRule,
    ResidualDistribution,
    WindowRule,
    _most_probable_window,
    goal_window,
)
from taskuq.table._examples import SyntheticTable, synthetic_outputs

WIDTH = Goal(max_width=0.2)
LEVEL = Goal(level=0.3, side="lower")
RANGE = (0.0, 1.0)
GRID = np.r_[np.linspace(-1000, -1, 1000), np.linspace(-1, 3, 401)]
THRESHOLDS = (-inf, -1e9, -0.3, -0.2, -0.1, 0.0, 0.05, 0.5, 0.99, 1.0, 2.0, inf)
OUTPUTS = np.array([[[0.5, 0.5], [0.2, 0.6], [0.0, 0.0], [1.0, 0.9], [0.31, 0.35]]])


class Crossing:
    """A user's own score whose intervals cross at low quantiles, as CQR's do."""

    def score(self, outputs, targets):
        return np.maximum(outputs.min(axis=1) - targets, targets - outputs.max(axis=1))

    def interval(self, outputs, quantile):
        return tq.Interval(outputs.min(axis=1) - quantile, outputs.max(axis=1) + quantile)


class BeyondTheRange(NestedIntervalScore):
    """A prediction outside [0, 1], as an extrapolating fit makes it on the logit's tangent."""

    def family(self, outputs):
        link = Link("logit")
        center = link(np.full(outputs.shape[0], 1.05))
        return LinearFamily(center, center, np.ones(outputs.shape[0]), "two", link)


def learned():
    rng = np.random.default_rng(3)
    truth = rng.uniform(0.9, 1.0, 80)
    return LearnedScore().fit(np.clip(truth[:, None] - 0.05 * rng.random((80, 2)), 0, 1), truth)


RULES = {
    "ar": IntervalRule(AR(), WIDTH, RANGE),
    "lwr": IntervalRule(LWR(), WIDTH, RANGE),
    "lwr unbounded": IntervalRule(LWR(), WIDTH, None),
    "cqr": IntervalRule(CQR(alpha=0.1), WIDTH, RANGE),
    "mlwr": IntervalRule(MLWR(), WIDTH, RANGE),
    "learned": IntervalRule(learned(), WIDTH, RANGE),
    "own score": IntervalRule(Crossing(), WIDTH, RANGE),
    "beyond the range": IntervalRule(BeyondTheRange(), WIDTH, RANGE),
    "level": IntervalRule(LWR("lower"), LEVEL, RANGE),
    "level unbounded": IntervalRule(AR("lower"), LEVEL, None),
    "window": WindowRule(AR(), WIDTH, RANGE, 1.0),
    "two-phase": WindowRule(AR(), WIDTH, RANGE, 1.0, (50.0, 1.0)),
    "two-phase level": WindowRule(AR("lower"), LEVEL, None, 1.0, (50.0, 1.0)),
    "two-phase beyond": WindowRule(BeyondTheRange(), WIDTH, RANGE, 1.0, (1e6, 0.01)),
}


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_no_rule_stops_with_an_empty_report(rule, threshold):
    seen = rule.examine(OUTPUTS)
    assert not (seen.stops(threshold) & seen.report(threshold).is_empty).any()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_an_infinite_threshold_never_stops(rule):
    assert not rule.examine(OUTPUTS).stops(inf).any()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_rule_stops_somewhere(rule):
    # Otherwise the two claims above would be empty themselves.
    seen = rule.examine(OUTPUTS)
    assert any(seen.stops(t).any() for t in GRID)


LOGISTIC = ResidualDistribution(tuple(LOG_ODDS))
STEPS = st.lists(st.floats(0.01, 10), min_size=LOG_ODDS.size, max_size=LOG_ODDS.size)
LAWS = STEPS.map(lambda steps: ResidualDistribution(tuple(np.cumsum(steps) - sum(steps) / 2)))
CENTERS = st.lists(st.floats(-8, 8), min_size=1, max_size=5)
WIDTHS = st.floats(0.01, 1.5)
PLACES = {"soft": (Link("logit"), (0.0, 1.0)), "counted": (IDENTITY, (-2.0, np.inf)),
          "anywhere": (IDENTITY, None)}  # fmt: skip
TABLE = synthetic_outputs(SyntheticTable(volumes=24, samples=8), seed=3)


def families(centers, link, scale=0.7):
    m = np.array(centers)
    return LinearFamily(m, m, scale * np.linspace(0.2, 3, len(m)), link=link)


def missed(window, family, law, place):
    low, high = place or (-np.inf, np.inf)
    ends = [(family.link(end) - family.high) / family.scale for end in (window.lower, window.upper)]
    below = np.where(window.lower <= low, -np.inf, ends[0])
    return law.outside(below, np.where(window.upper >= high, np.inf, ends[1]))


@given(law=LAWS, ends=st.tuples(st.floats(-200, 200), st.floats(-200, 200)).map(sorted))
def test_residual_law_rises_through_its_quantiles(law, ends):
    below, above = np.array(ends[0]), np.array(ends[1])
    outside, nothing = law.outside(below, above), law.outside(np.array(-np.inf), np.array(np.inf))
    assert law.log_odds(np.array(law.quantiles)) == pytest.approx(LOG_ODDS, abs=1e-9)
    assert law.log_odds(below) <= law.log_odds(above)
    assert nothing == 0
    assert law.outside(below, np.array(np.inf)) + law.outside(np.array(-np.inf), above) == outside


@given(
    residuals=st.lists(st.floats(-50, 50), min_size=10, max_size=40),
    shift=st.floats(-3, 3),
    factor=st.floats(0.1, 10),
)
def test_residual_law_is_equivariant(residuals, shift, factor):
    r = np.array(residuals)
    law, moved, turned = (_fit_residual_law(v).quantiles for v in (r, shift + factor * r, -r))
    off = 1e-6 * factor * (1 + abs(shift) + np.abs(law).max()) / min(factor, 1)
    assert moved == pytest.approx(shift + factor * np.array(law), abs=off)
    assert turned == pytest.approx(-np.array(law)[::-1], abs=off)


@pytest.mark.parametrize(("link", "place"), PLACES.values(), ids=PLACES)
@given(law=LAWS, centers=CENTERS, tau=WIDTHS)
def test_window_misses_no_more_than_the_centred_one(link, place, law, centers, tau):
    family, goal = families(centers, link), Goal(max_width=tau)
    window, p = _most_probable_window(family, law, goal, place)
    around, _ = goal_window(goal, family.high, link, place)
    assert missed(window, family, law, place) == pytest.approx(p, rel=1e-6, abs=1e-12)
    assert (p <= missed(around, family, law, place) * (1 + 1e-6) + 1e-12).all()


@pytest.mark.parametrize(("link", "place"), PLACES.values(), ids=PLACES)
@given(law=LAWS, centers=CENTERS, tau=WIDTHS)
def test_windows_have_their_width_inside_the_range(link, place, law, centers, tau):
    window, _ = _most_probable_window(families(centers, link), law, Goal(max_width=tau), place)
    low, high = place or (-np.inf, np.inf)
    assert window.width == pytest.approx(tau, rel=1e-9)
    assert (window.lower >= low).all()
    assert (window.upper <= max(high, low + tau)).all()


def test_window_at_the_end_is_not_rounded():
    place = (0.0, 1 / 3)
    tau = next(k / 97 for k in range(1, 32) if (1 / 3 - k / 97) + k / 97 < 1 / 3)
    family = families([8.0], Link("logit", *place))
    window, _ = _most_probable_window(family, LOGISTIC, Goal(max_width=tau), place)
    assert window.upper[0] == 1 / 3


@given(law=LAWS, centers=CENTERS, tau=WIDTHS)
def test_window_does_not_depend_on_other_cases(law, centers, tau):
    family, link = families(centers, Link("logit")), Link("logit")
    window, p = _most_probable_window(family, law, Goal(max_width=tau), (0.0, 1.0))
    for i in range(len(centers)):
        alone = LinearFamily(family.low[[i]], family.high[[i]], family.scale[[i]], link=link)
        one, risk = _most_probable_window(alone, law, Goal(max_width=tau), (0.0, 1.0))
        assert (one.lower[0], risk[0]) == (window.lower[i], p[i])


LEARNED = {"alpha": 0.1, "max_width": 0.2, "unit": "case", "statistic": "learned"}


def written(path, policy, change):
    record = policy.to_dict()
    rules = [[change(dict(rule)) for rule in of_round] for of_round in record["rules"]]
    return write_json(path, record | {"rules": rules})


@pytest.mark.parametrize(
    ("law", "code"),
    [
        ({}, "file.format"),
        (3, "file.format"),
        ({"weight": 1.0, "quantiles": [1, 2]}, "file.damaged"),
        ({"weight": "a", "quantiles": [*range(21)]}, "file.format"),
    ],
)
def test_damaged_law_is_refused(law, code, tmp_path):
    damaged = written(
        tmp_path / "p.json", tq.plan(TABLE, **LEARNED), lambda rule: rule | {"probable": law}
    )
    with refused(code):
        tq.load_policy(damaged)
