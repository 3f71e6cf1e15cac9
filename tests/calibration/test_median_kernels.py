"""Compiled medians over units are those of NumPy, at the very same cases."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from taskuq.calibration.median_kernels import unit_medians
from taskuq.calibration.medians import unit_median


@st.composite
def tables(draw):
    """Values with ties of cases in units of any size, and a fold that leaves some units."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=9))
    cases = sum(sizes)
    values = draw(st.lists(st.integers(0, 6), min_size=cases, max_size=cases))
    index = np.array(draw(st.permutations(np.repeat(np.arange(len(sizes)), sizes).tolist())))
    left = draw(st.sets(st.sampled_from(range(len(sizes))), min_size=1))
    fold = np.array([v not in left for v in range(len(sizes))], dtype=np.uint8)
    return np.array(values, dtype=float), index, fold


@given(table=tables())
def test_compiled_medians_are_those_of_numpy(table):
    values, index, fold = table
    order = np.argsort(values, kind="stable")[None]
    value, (low, high) = np.zeros(1, int), np.zeros((2, 1, len(fold)), int)
    unit_medians(order, index, np.bincount(index), fold, value, low, high)

    kept, left = fold[index] == 0, fold == 0
    known = unit_median(values[kept], (np.cumsum(left) - 1)[index[kept]])
    at = np.append(values, [-np.inf, np.inf])
    assert at[value[0]] == known.value
    assert (at[low[0]][left] == known.low).all()
    assert (at[high[0]][left] == known.high).all()
