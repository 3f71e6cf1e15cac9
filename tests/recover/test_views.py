"""Moved coil images: whole, in place, and as sharp as before."""

from __future__ import annotations

import math

import pytest
import torch

from taskuq.errors import InputError
from taskuq.recover._cases import CoilAugmentation, _resampled, _shear

STILL = {"rotation": 0.0, "shift": 0.0, "stretch": 0.0, "flip": 0.0}


def blob(x, y, side=48, width=3.0):
    """A Gaussian at a place, from the centre of the image, as one coil."""
    axis = torch.arange(side) - (side - 1) / 2
    image = torch.exp(-((axis - x) ** 2 + (axis[:, None] - y) ** 2) / (2 * width**2))
    return (image + 0j)[None, None]


def generator():
    return torch.Generator().manual_seed(3)


def test_no_move_changes_the_phase_alone(draw):
    x = torch.complex(draw(2, 3, 16, 16), draw(2, 3, 16, 16)).to(torch.complex64)
    factor = CoilAugmentation(**STILL)(x, generator()) / x
    assert torch.allclose(factor.abs(), torch.ones(()), atol=1e-4)
    assert (factor - factor[:, :1, :1, :1]).abs().max() < 1e-3


def test_turning_keeps_all_energy_and_can_be_undone(draw):
    x = torch.complex(draw(2, 3, 16, 16), draw(2, 3, 16, 16)).to(torch.complex64)
    turned = CoilAugmentation(**(STILL | {"rotation": 20.0}))(x, generator())
    assert turned.norm().item() == pytest.approx(x.norm().item(), rel=1e-5)
    slope = torch.tensor([0.2, -0.3])
    for axis in (-1, -2):
        assert torch.allclose(_shear(_shear(x, slope, axis), -slope, axis), x, atol=1e-5)


def test_three_shears_are_a_rotation():
    angle = torch.tensor([math.radians(20)])
    across, along = -torch.tan(angle / 2), torch.sin(angle)
    image = blob(8.0, 3.0)
    for axis, slope in ((-1, across), (-2, along), (-1, across)):
        image = _shear(image, slope, axis)
    c, s = math.cos(angle), math.sin(angle)
    expected = blob(c * 8 - s * 3, s * 8 + c * 3)
    assert (image - expected).abs().max() < 1e-3


@pytest.mark.parametrize("scale", [0.9, 1.0, 1.1])
def test_stretching_and_shifting_put_things_where_they_belong(scale):
    moved = _resampled(blob(5.0, 2.0), -1, torch.tensor([scale]), torch.tensor([2.5]))
    axis = torch.arange(48) - 23.5
    row = torch.exp(-((((axis - 2.5) / scale) - 5.0) ** 2) / 18)
    found = moved[0, 0].abs().amax(0)
    assert (found / found.max() - row / row.max()).abs().max() < 1e-2


def test_the_same_generator_gives_the_same_view(draw):
    x = torch.complex(draw(2, 3, 16, 16), draw(2, 3, 16, 16)).to(torch.complex64)
    assert torch.equal(CoilAugmentation()(x, generator()), CoilAugmentation()(x, generator()))


def test_moves_that_are_none_are_refused():
    with pytest.raises(InputError, match="at most 45 degrees"):
        CoilAugmentation(rotation=60)
