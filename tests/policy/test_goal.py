"""Goals: the largest threshold against bisection, and windows that reach the goal."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import taskuq as tq
from raising import refused
from taskuq.conformal._family import IDENTITY, LinearFamily, Link
from taskuq.policy._goal import Goal
from taskuq.policy._rules import _balanced, _search_lower_end, goal_window

LOGIT = Link("logit")
INSIDE = st.floats(0.01, 0.99)
SCALE = st.floats(0.01, 2.0)
WIDTH = st.floats(0.05, 0.9)
RANGES = {"none": None, "unit": (0.0, 1.0), "half open": (0.0, inf), "wide": (-3.0, 5.0)}
WIDTH_GOALS = ("two", "upper", "lower")


def achieved_at(goal, family, range_, threshold):
    interval = family.interval(threshold)
    estimate = family.link.inverse(family.high if goal.side == "upper" else family.low)
    return bool(goal.is_reached(interval.clip(*(range_ or (-inf, inf))), estimate)[0])


@pytest.mark.parametrize("range_", RANGES.values(), ids=RANGES)
@pytest.mark.parametrize("link", [IDENTITY, LOGIT], ids=["identity", "logit"])
@pytest.mark.parametrize("side", WIDTH_GOALS)
@settings(max_examples=25)
@given(low=INSIDE, gap=st.just(0.0) | st.floats(0, 0.3), scale=SCALE, width=WIDTH)
def test_goal_is_reached_up_to_the_largest_threshold(side, link, range_, low, gap, scale, width):
    anchors = link(np.array([[low], [min(low + gap, 0.99)]]))
    family = LinearFamily(*anchors, np.array([scale]), side, link)
    goal = Goal(max_width=width, side=side)
    largest = goal.largest_threshold(family, range_)[0]
    crossing = (family.low - family.high)[0] / (2 * scale) if side == "two" else -inf
    below = largest - 1e-6 if np.isfinite(largest) else 1e6
    assert below <= crossing or achieved_at(goal, family, range_, below)
    if gap == 0 and range_ in (None, RANGES["wide"]):
        assert not achieved_at(goal, family, range_, largest + 1e-6)


@pytest.mark.parametrize(("side", "sign"), [("lower", 1), ("upper", -1)])
@pytest.mark.parametrize("link", [IDENTITY, LOGIT], ids=["identity", "logit"])
@given(anchor=INSIDE, level=INSIDE, scale=SCALE)
def test_level_is_passed_below_the_largest_threshold(link, side, sign, anchor, level, scale):
    center = link(np.array([anchor]))
    family = LinearFamily(center, center, np.array([scale]), side, link)
    goal = Goal(level=level, side=side)
    largest = goal.largest_threshold(family, None)[0]
    assert achieved_at(goal, family, None, largest - 1e-6)
    assert not achieved_at(goal, family, None, largest + 1e-6)


@pytest.mark.parametrize("link", [IDENTITY, LOGIT], ids=["identity", "logit"])
@given(center=st.floats(-0.2, 1.2), width=WIDTH)
def test_window_has_its_width_inside_the_range(link, center, width):
    window, reach = goal_window(Goal(max_width=width), link(np.array([center])), link, (0.0, 1.0))
    assert window.width[0] == pytest.approx(width, abs=1e-12)
    assert window.lower[0] >= 0
    assert window.upper[0] <= 1 + 1e-15
    assert reach[0] > 0


@given(center=st.floats(0.05, 0.95), width=st.floats(0.02, 0.5))
def test_ends_of_a_window_are_balanced(center, width):
    window, reach = goal_window(Goal(max_width=width), LOGIT(np.array([center])), LOGIT, None)
    below = LOGIT(np.array([center])) - LOGIT(window.lower)
    above = LOGIT(window.upper) - LOGIT(np.array([center]))
    assert below[0] == pytest.approx(above[0], rel=1e-6)
    assert reach[0] == pytest.approx(below[0], rel=1e-6)


@pytest.mark.parametrize("link", [LOGIT, Link("logit", -3.0, 5.0)], ids=["unit", "wide"])
@given(center=st.floats(-40, 40), share=st.floats(0.001, 1.5))
def test_windows_by_formula_and_by_search_agree(link, center, share):
    m, width = np.array([center]), share * (link.high - link.low)
    formula = _balanced(m, width, link)
    assert formula == pytest.approx(_search_lower_end(m, width, link), abs=1e-9)


@given(low=st.integers(-50, 50), length=st.floats(0.1, 80), share=st.floats(0.001, 0.999))
def test_window_at_the_end_contains_the_end(low, length, share):
    range_ = (float(low), float(low + length))
    goal = Goal(max_width=share * (range_[1] - range_[0]))
    window, reach = goal_window(goal, np.array([range_[1]]), IDENTITY, range_)
    assert window.contains([range_[1]]).all()
    assert reach[0] == pytest.approx(goal.max_width, rel=1e-9)


def test_empty_interval_reaches_no_goal():
    crossed = tq.Interval([0.6], [0.5])
    assert not Goal(max_width=0.5).is_reached(crossed).any()


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({}, "option.missing"),
        ({"max_width": 0.0}, "value.invalid"),
        ({"max_width": float("nan")}, "value.invalid"),
        ({"max_width": inf}, "value.invalid"),
        ({"max_width": 0.1, "level": 0.5, "side": "lower"}, "option.conflict"),
        ({"level": 0.5}, "value.invalid"),
        ({"level": float("nan"), "side": "lower"}, "value.invalid"),
        ({"max_width": 0.1, "side": "left"}, "choice.unknown"),
    ],
)
def test_invalid_goal_is_refused(wrong, code):
    with refused(code):
        Goal(**wrong)
