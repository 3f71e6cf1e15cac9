"""Masks: nested, with their number of lines, equal to the published ones."""

from itertools import pairwise

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
from taskuq.measure._mri import MaskConfig

# Lines of the published files, 0-based, the zero frequency at 160.
FIRST_ROUND = [0, 86, 126, 144, 151, 154, *range(156, 165), 166, 169, 176, 194, 234]
ACS = {16: 9, 8: 17, 4: 25, 2: 34}


def _random_sets(count: int) -> list[tuple[float, ...]]:
    rng = np.random.default_rng(0)
    sets = (np.sort(rng.uniform(1.2, 20, rng.integers(1, 6)))[::-1] for _ in range(count))
    return [tuple(rates.tolist()) for rates in sets]


PAPER = {16: 9, 8: 16, 4: 24, 2: 32, 1: 40}


def _least_centers(width, rates):
    """The paper's: 9 of 20 lines first, and at most; then by interpolation in log R."""
    knots = sorted(PAPER)
    later = np.interp(np.log2(rates), np.log2(knots), [PAPER[R] for R in knots]) * width / 320
    most = 0.45 * np.array([round(width / R) for R in rates])
    least = np.minimum([most[0], *later[1:]], most)
    return np.maximum.accumulate(np.maximum(np.rint(least - 1e-9), 1))


def _refuses(width, rates):
    lines = [round(width / R) for R in rates]
    return lines[0] < 1 or any(b <= a for a, b in pairwise(lines))


def _block(mask):
    """Return the largest centred block without a gap, as a network counts central lines."""
    center = len(mask) // 2
    left, right = np.argmin([*mask[:center][::-1], 0]), np.argmin([*mask[center:], 0])
    return min(2 * left + 1, 2 * right)


@pytest.mark.parametrize("sets", [[(16, 8, 4, 2)], [(12, 6, 3)], [(8, 4)], _random_sets(50)])
def test_masks_of_every_width_have_no_hole(sets):
    rng, made = np.random.default_rng(0), 0
    # All widths for the sets of rounds in use, and widths in turn for each random one.
    for number, rates in enumerate(sets):
        for width in range(16 + number, 1025, len(sets)):
            if _refuses(width, rates):
                with refused("rounds.invalid"):
                    nested_masks(width, rates, seed=rng)
                continue
            rule = ("inverse-distance", "uniform")[number % 2]
            masks = nested_masks(width, rates, seed=rng, rule=rule)
            assert masks.sum(axis=1).tolist() == [round(width / R) for R in rates]
            assert (masks[1:] >= masks[:-1]).all()
            blocks = [_block(m) for m in masks]
            assert (blocks >= _least_centers(width, rates)).all(), (width, rates)
            made += 1
    assert made > 900


def test_masks_that_had_no_hole_are_unchanged():
    """Widths of the shipped networks: the first round is the plain GRO frame."""
    for width in (128, 256, 320):
        frame = _gro_lines(width, width // 16, density=15, sharpness=8)
        mask = nested_masks(width, (16, 8, 4, 2), seed=0)[0]
        assert np.flatnonzero(mask).tolist() == frame


def test_settings_reach_the_masks():
    plain = MaskConfig(accelerations=(16, 8)).masks(320)
    assert [acs_width(m) for m in MaskConfig((16, 8), acs=(15, 21)).masks(320)] >= [15, 21]
    for changed in ({"density": 4.0}, {"sharpness": 3.0}, {"acs": (15, 21)}):
        assert (MaskConfig((16, 8), **changed).masks(320)[0] != plain[0]).any()
    for wrong, code in (
        ({"density": 0.5}, "value.invalid"),
        ({"sharpness": float("nan")}, "value.invalid"),
        ({"acs": (21, 21)}, "rounds.invalid"),
    ):
        with refused(code):
            MaskConfig((16, 8), **wrong).masks(320)
    with refused("option.conflict"):
        MaskConfig(published=True, density=3.0)


@settings(max_examples=40, deadline=None)
@given(width=st.integers(64, 400), seed=st.integers(0, 2**31), data=st.data())
def test_every_round_has_its_center(width, seed, data):
    rates, widths = (16, 8, 4), []
    for R in rates:
        low = widths[-1] if widths else 0
        widths.append(data.draw(st.integers(low, max(low, round(width / R) // 2))))
    masks = nested_masks(width, rates, seed=seed, acs=widths)
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
    assert _gro_lines(320, 20, density=15, sharpness=8) == FIRST_ROUND


def test_published_masks_have_their_documented_shape():
    masks = published_masks((16, 8, 4, 2, 1))
    assert masks.sum(axis=1).tolist() == [20, 40, 80, 160, 320]
    assert (masks[1:] >= masks[:-1]).all()
    assert [acs_width(mask) for mask in masks[:4]] == list(ACS.values())
    with refused("rounds.invalid"):
        published_masks((16, 3))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"accelerations": (4, 8)}, "rounds.invalid"),
        ({"accelerations": ()}, "rounds.invalid"),
        ({"accelerations": (0.5,)}, "rounds.invalid"),
        ({"accelerations": (8, np.nan)}, "rounds.invalid"),
        ({"accelerations": (16, 8), "acs": (9,)}, "rounds.invalid"),
        ({"accelerations": (16, 8), "acs": (9, 500)}, "rounds.invalid"),
        ({"accelerations": (8, 7.9), "acs": (0, 40)}, "rounds.invalid"),
        ({"accelerations": (8, 4), "rule": "nearest"}, "choice.unknown"),
    ],
)
def test_impossible_masks_are_refused(arguments, code):
    with refused(code):
        nested_masks(320, seed=0, **arguments)
