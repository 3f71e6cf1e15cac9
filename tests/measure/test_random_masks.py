"""Random masks: how many lines, a whole centre, nested rounds, and each rule's own law."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binom

from raising import refused
from taskuq.measure._masks import acs_width, center_lines
from taskuq.recover._cases import _RandomMasks


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("width", [16, 63, 128])
def test_lines_lie_between_the_accelerations_and_the_centre_is_whole(width):
    masks = _RandomMasks(acceleration_range=(2, 16), acs_fraction=(0.3, 0.6))(
        400, width, generator()
    )[:, 0]
    lines = masks.sum(1)
    assert lines.min() == round(width / 16)
    assert lines.max() <= round(width / 2)
    acs = torch.tensor([acs_width(mask.numpy()) for mask in masks])
    assert bool((acs >= torch.round(0.3 * lines).clamp_min(1)).all())


def test_rounds_are_nested_and_none_has_fewer_lines():
    masks = _RandomMasks()(50, 64, generator(), rounds=4)
    assert bool((masks[:, 1:] >= masks[:, :-1]).all())
    assert bool((masks.sum(2) >= 4).all())


def test_the_numbers_of_lines_are_log_uniform():
    """Between R = 2 and 8 half of the cases are below R = 4."""
    lines = _RandomMasks(acceleration_range=(2, 8))(4000, 512, generator())[:, 0].sum(1)
    few = int((lines < 128).sum())
    low, high = binom.ppf([1e-9, 1 - 1e-9], 4000, 0.5)
    assert low <= few <= high


def test_equidistant_lines_differ_by_one_step_at_most():
    draw = _RandomMasks(
        acceleration_range=(3, 9), acs_fraction=(0.3, 0.3), patterns=("equidistant",)
    )
    for mask in draw(100, 90, generator())[:, 0]:
        centre = max(1, round(0.3 * int(mask.sum())))
        others = mask.numpy()[~center_lines(90, centre)]
        gaps = np.diff(np.flatnonzero(others))
        assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize("rule", ["uniform", "inverse-distance"])
def test_a_line_outside_the_centre_is_drawn_by_its_weight(rule):
    """Two lines of 16, one of them the centre: the other is line l with its weight's share."""
    draw = _RandomMasks(acceleration_range=(8, 8), acs_fraction=(0.5, 0.5), patterns=(rule,))
    times = draw(20_000, 16, generator())[:, 0].sum(0).numpy()
    distance = np.abs(np.arange(16) - 8.0)
    weight = np.where(distance > 0, 1.0 if rule == "uniform" else 1 / distance.clip(1), 0)
    share = weight / weight.sum()
    low, high = binom.ppf([[1e-9], [1 - 1e-9]], 20_000, share)
    others = distance > 0
    assert times[8] == 20_000
    assert ((low <= times) & (times <= high))[others].all()


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"acceleration_range": (16, 2)}, "value.invalid"),
        ({"acs_fraction": (0.2, 1.2)}, "value.invalid"),
        ({"patterns": ("spiral",)}, "choice.unknown"),
    ],
)
def test_bad_settings_are_refused(settings, code):
    with refused(code):
        _RandomMasks(**settings)
