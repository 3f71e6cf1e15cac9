"""Intervals: closed, empty where they cross, exact when clipped."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import taskuq as tq

END = st.floats(allow_nan=False)


@given(lower=END, upper=END, value=END)
def test_interval_is_closed(lower, upper, value):
    interval = tq.Interval([lower], [upper])
    assert interval.contains([value]).tolist() == [lower <= value <= upper]
    assert interval.is_empty.tolist() == [lower > upper]


@given(lower=END, upper=END)
def test_width_is_never_negative(lower, upper):
    interval = tq.Interval([lower], [upper])
    with np.errstate(all="ignore"):  # inf - inf, and widths beyond the largest float
        width = interval.width
    assert np.isnan(width).all() == (lower == upper and np.isinf(lower))
    assert not (width < 0).any()
    assert (width[interval.is_empty] == 0).all()


@given(lower=st.floats(-5, 5), upper=st.floats(-5, 5), value=st.floats(0, 1))
def test_clipping_keeps_values_in_range(lower, upper, value):
    interval = tq.Interval([lower], [upper])
    assert interval.clip(0, 1).contains([value]) == interval.contains([value])
    assert not interval.clip(0, 1).contains([1.5])


def test_slices_of_an_interval_are_intervals():
    interval = tq.Interval(np.zeros(3), [1, 2, 3])
    assert len(interval) == 3
    assert interval[1:].upper.tolist() == [2, 3]
    assert interval.center.tolist() == [0.5, 1, 1.5]
