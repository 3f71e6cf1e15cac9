"""An empty interval is no report: no policy stops with one, whatever the threshold."""

from math import inf

import numpy as np
import pytest

import taskuq as tq
from taskuq.conformal._family import LinearFamily, Link, NestedIntervalScore
from taskuq.conformal.scores._learned import LearnedScore
from taskuq.conformal.scores._mlwr import MLWR
from taskuq.conformal.scores._paper import AR, CQR, LWR
from taskuq.policy._fixed_width import WindowRule
from taskuq.policy._goal import Goal
from taskuq.policy._rules import IntervalRule

WIDTH = Goal(max_width=0.2)
LEVEL = Goal(level=0.3, side="lower")
RANGE = (0.0, 1.0)
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

    assert any(seen.stops(t).any() for t in np.linspace(-1000, 3, 40001))
