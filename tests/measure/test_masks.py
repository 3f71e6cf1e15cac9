"""Masks: nested, with their number of lines, equal to the published ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raising import refused
from taskuq.measure._masks import (
    _gro_lines,
    acs_width,
    center_lines,
    gro_mask,
    nested_masks,
    published_masks,
)

# Lines of the published files, 0-based, the zero frequency at 160.
FIRST_ROUND = [0, 86, 126, 144, 151, 154, *range(156, 165), 166, 169, 176, 194, 234]
ACS = {16: 9, 8: 17, 4: 25, 2: 34}

accelerations = st.lists(
    st.sampled_from([16, 12, 10, 8, 6, 5, 4, 3, 2.5, 2, 1.5]), min_size=1, max_size=5, unique=True
).map(lambda rates: tuple(sorted(rates, reverse=True)))


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(48, 400),
    rates=accelerations,
    rule=st.sampled_from(["inverse-distance", "uniform"]),
    seed=st.integers(0, 2**31),
)
def test_masks_are_nested_and_counted(width, rates, rule, seed):
    masks = nested_masks(width, rates, rng=np.random.default_rng(seed), rule=rule)
    assert masks.shape == (len(rates), width)
    assert masks.sum(axis=1).tolist() == [round(width / R) for R in rates]
    assert (masks[1:] >= masks[:-1]).all()
    assert masks[:, width // 2].all()


@settings(max_examples=40, deadline=None)
@given(width=st.integers(64, 400), seed=st.integers(0, 2**31), data=st.data())
def test_every_round_has_its_center(width, seed, data):
    rates, widths = (16, 8, 4), []
    for R in rates:
        low = widths[-1] if widths else 0
        widths.append(data.draw(st.integers(low, max(low, round(width / R) // 2))))
    masks = nested_masks(width, rates, rng=np.random.default_rng(seed), acs=widths)
    for mask, R, lines in zip(masks, rates, widths, strict=True):
        assert mask[center_lines(width, lines)].all()
        assert mask.sum() == round(width / R)


@settings(max_examples=60, deadline=None)
@given(width=st.integers(2, 400), share=st.floats(0.01, 1), density=st.floats(1, 20))
def test_gro_has_its_lines_and_the_central_one(width, share, density):
    lines = max(1, round(share * width))
    mask = gro_mask(width, lines, density=density)
    assert mask.sum() == lines
    assert mask[width // 2]


def test_gro_is_the_published_first_round():
    assert _gro_lines(320, 20) == FIRST_ROUND
    assert (
        np.flatnonzero(nested_masks(320, (16,), rng=np.random.default_rng(0))[0]).tolist()
        == FIRST_ROUND
    )


def test_published_masks_have_their_documented_shape():
    masks = published_masks((16, 8, 4, 2, 1))
    assert masks.sum(axis=1).tolist() == [20, 40, 80, 160, 320]
    assert (masks[1:] >= masks[:-1]).all()
    assert [acs_width(mask) for mask in masks[:4]] == list(ACS.values())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"accelerations": (4, 8)}, "rounds.invalid"),
        ({"accelerations": ()}, "rounds.invalid"),
        ({"accelerations": (0.5,)}, "rounds.invalid"),
        ({"accelerations": (16, 8), "acs": (9,)}, "rounds.invalid"),
        ({"accelerations": (16, 8), "acs": (9, 500)}, "rounds.invalid"),
        ({"accelerations": (8, 7.9), "acs": (0, 40)}, "rounds.invalid"),
        ({"accelerations": (8, 4), "rule": "nearest"}, "choice.unknown"),
    ],
)
def test_impossible_masks_are_refused(arguments, code):
    with refused(code):
        nested_masks(320, rng=np.random.default_rng(0), **arguments)


def test_published_masks_exist_only_for_published_rates():
    with refused("rounds.invalid"):
        published_masks((16, 3))
