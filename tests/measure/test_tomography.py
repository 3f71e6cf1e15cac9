"""CT: projection and back-projection are adjoint, mass is kept, views are nested."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taskuq.measure.tomography import (
    ParallelBeamCT,
    back_project,
    filtered_back_projection,
    nested_views,
    project,
)
from taskuq.protocols import Measure

RATES = (16, 8, 4, 2)


def disc(size):
    axis = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    return ((axis[:, None] ** 2 + axis**2) < (size / 3) ** 2).double()


@settings(max_examples=40, deadline=None)
@given(size=st.integers(2, 12), views=st.integers(1, 6), seed=st.integers(0, 9999))
def test_back_projection_is_the_adjoint(size, views, seed):
    rng = np.random.default_rng(seed)
    angles = torch.as_tensor(rng.uniform(0, np.pi, views))
    x = torch.as_tensor(rng.normal(size=(2, size, size)))
    Ax = project(x, angles)
    y = torch.as_tensor(rng.normal(size=Ax.shape))
    assert torch.allclose((Ax * y).sum(), (x * back_project(y, angles, size)).sum())
    assert torch.allclose(Ax.sum(-1), x.sum((-2, -1))[:, None].expand(2, views))


@settings(max_examples=60, deadline=None)
@given(views=st.integers(16, 400))
def test_views_are_nested_and_as_many_as_promised(views):
    rounds = nested_views(views, RATES)
    assert [len(chosen) for chosen in rounds] == [round(views / R) for R in RATES]
    assert all(set(a) < set(b) for a, b in pairwise(rounds))


def test_views_of_a_power_of_two_are_evenly_spread():
    assert all(len(set(np.diff(chosen))) == 1 for chosen in nested_views(64, RATES))


def test_projections_equal_scikit_image():
    radon = pytest.importorskip("skimage.transform").radon
    image = disc(64) * 2.0
    theirs = radon(image.numpy(), theta=[0, 30, 90], circle=True)
    ours = project(image, torch.deg2rad(torch.tensor([0.0, 30.0, 90.0], dtype=torch.float64)))
    start = (ours.shape[-1] - 64) // 2
    difference = ours[:, start : start + 64].T.numpy() - theirs
    # The two share pixels between bins differently; a disc is 128 high at its middle.
    assert np.abs(difference).mean() < 1.5


def test_recovery_gets_better_with_every_round():
    image = disc(64)
    scanner = ParallelBeamCT(size=64, views=128, accelerations=RATES)
    assert isinstance(scanner, Measure)
    errors = [
        (filtered_back_projection(scanner(image, R)) - image).norm().item() for R in (*RATES, 1)
    ]
    assert errors == sorted(errors, reverse=True)
    # What is left is the blur of one detector bin at the edge of the disc.
    assert errors[-1] < 0.2 * image.norm().item()


def test_a_view_keeps_its_noise_in_later_rounds():
    scanner = ParallelBeamCT(size=16, views=32, accelerations=(8, 4), noise=1.0, seed=0)
    early, late = scanner(disc(16), 8), scanner(disc(16), 4)
    shared = [i for i, angle in enumerate(late.angles) if angle in early.angles]
    assert torch.equal(late.projections[shared], early.projections)
    assert not torch.allclose(early.projections, project(disc(16), early.angles))


def test_impossible_scanners_and_images_are_refused():
    with pytest.raises(ValueError, match="decreasing"):
        ParallelBeamCT(size=16, views=32, accelerations=(4, 8))
    with pytest.raises(ValueError, match="seed"):
        ParallelBeamCT(size=16, views=32, accelerations=(8,), noise=1.0)
    with pytest.raises(ValueError, match="16, 16"):
        ParallelBeamCT(size=16, views=32, accelerations=(8,))(torch.ones(8, 8), 8)
