"""CT: projection and its adjoint, nested views, photon noise, Landweber updates."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raising import refused
from taskuq.measure._tomography import (
    ParallelBeamCT,
    PhotonNoise,
    Radon,
    SinogramBatch,
    TomographyConfig,
    _nested_views,
    _view_weights,
    filtered_back_projection,
    landweber_update,
    stack_sinograms,
)
from taskuq.protocols import Measure

RATES = (16, 8, 4, 2)


def disc(size):
    axis = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    return ((axis[:, None] ** 2 + axis**2) < (size / 3) ** 2).double()


@settings(max_examples=40, deadline=None)
@given(size=st.integers(2, 12), views=st.integers(1, 6), seed=st.integers(0, 9999))
def test_back_projection_is_the_adjoint_and_mass_is_kept(size, views, seed):
    rng = np.random.default_rng(seed)
    radon = Radon(size, tuple(rng.uniform(0, np.pi, views)))
    x = torch.as_tensor(rng.normal(size=(2, size, size)))
    Ax = radon(x)
    y = torch.as_tensor(rng.normal(size=Ax.shape))
    assert torch.allclose((Ax * y).sum(), (x * radon.adjoint(y)).sum())
    assert torch.allclose(Ax.sum(-1), x.sum((-2, -1))[:, None].expand(2, views))


@pytest.mark.parametrize("angle", [0.0, 0.3, np.pi / 4, np.pi / 2])
def test_projection_of_a_square_is_exact(angle):
    ours = Radon(32, (angle,))(torch.ones(32, 32, dtype=torch.float64))[0]
    # The chords of a square: a trapezoid. Each bin holds the mean of its chords.
    fine = (np.arange(ours.numel() * 500) + 0.5) / 500 - ours.numel() / 2
    a, b = (32 * abs(f(angle)) for f in (np.cos, np.sin))
    wide, narrow = max(a, b), max(min(a, b), 1e-9)
    chord = np.clip(((wide + narrow) / 2 - np.abs(fine)) / narrow, 0, 1) * 32 * 32 / wide
    assert np.allclose(ours, chord.reshape(-1, 500).mean(1), atol=0.01)


def test_projection_equals_scikit_image():
    transform = pytest.importorskip("skimage.transform")
    axis, angles = np.arange(65) - 32, (0.0, 0.3, 1.0, np.pi / 2, 2.5)
    x = np.exp(-((axis - 9) ** 2 + (axis[:, None] + 5) ** 2) / 18)
    ours = Radon(65, angles)(torch.as_tensor(x)).numpy()
    theirs = transform.radon(x, np.degrees(angles), circle=False).T
    # A shift by one bin would change the norm by 0.2, a mirrored view by more.
    assert np.linalg.norm(ours[:, :92] - theirs) < 0.002 * np.linalg.norm(theirs)


def test_gradients_of_projection_and_back_projection():
    radon = Radon(5, (0.1, 1.2))
    x = torch.randn(2, 5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: radon.adjoint(radon(x).square()), x)


@settings(max_examples=30, deadline=None)
@given(views=st.integers(16, 400))
def test_views_are_nested_and_counted(views):
    rounds = _nested_views(views, RATES)
    assert [len(chosen) for chosen in rounds] == [round(views / R) for R in RATES]
    assert all(set(a) < set(b) for a, b in pairwise(rounds))


def test_error_of_back_projection_falls_with_every_round():
    image = disc(48)
    scanner = ParallelBeamCT(size=48, views=96, accelerations=RATES)
    assert isinstance(scanner, Measure)
    errors = [
        (filtered_back_projection(scanner(image, R)) - image).norm().item() for R in (*RATES, 1)
    ]
    assert errors == sorted(errors, reverse=True)
    # What is left is the blur of one detector bin at the edge of the disc.
    assert errors[-1] < 0.2 * image.norm().item()


@pytest.mark.parametrize("views", [6, 32])
def test_landweber_closes_the_gap_and_keeps_the_null_space(views):
    scan = ParallelBeamCT(16, views, accelerations=(1.5,))(disc(16).float(), 1)
    sinograms = stack_sinograms([scan])
    start = torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(0))
    gaps = [
        (sinograms.radon(landweber_update(start, sinograms, steps=n)) - scan.projections)
        .norm()
        .item()
        for n in range(4)
    ]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[3] < 0.2 * gaps[0]
    # A change lies in the range of the adjoint: orthogonal to images without projections.
    change = (landweber_update(start, sinograms) - start)[0].double()
    matrix = sinograms.radon(torch.eye(256).reshape(-1, 16, 16).double()).flatten(1).T
    unseen = torch.eye(256) - torch.linalg.pinv(matrix, rtol=1e-6) @ matrix
    assert (unseen @ change.flatten()).norm() < 1e-4 * change.norm()


def chosen_views(kind, cases=12, views=48):
    """Return booleans (case, view): even, crowded or random views."""
    rng, masks = np.random.default_rng(0), np.zeros((cases, views), dtype=bool)
    for row, mask in enumerate(masks):
        count = 2 + row
        if kind == "even":
            mask[:: [2, 3, 4, 6][row % 4]] = True
        elif kind == "crowds":
            mask[rng.integers(views, size=3)[:, None] - np.arange(count // 2 + 1)] = True
        else:
            mask[rng.choice(views, count, replace=False)] = True
    return torch.as_tensor(masks)


@pytest.mark.parametrize("kind", ["even", "crowds", "any"])
def test_view_weights_sum_to_half_a_turn(kind):
    masks = chosen_views(kind)
    found = _view_weights(masks, np.arange(48) * np.pi / 48)
    assert torch.allclose(found.sum(1), torch.tensor(np.pi, dtype=torch.float32))
    assert (found[~masks] == 0).all()
    assert (found[masks] > 0).all()
    if kind == "even":
        alone = np.pi / masks.sum(1, keepdim=True) * masks
        assert torch.allclose(found, alone.float())


@pytest.mark.parametrize("kind", ["even", "crowds", "any"])
def test_landweber_never_diverges(kind):
    size, masks = 24, chosen_views(kind)
    radon = Radon(size, tuple((np.arange(48) * np.pi / 48).tolist()))
    nothing = torch.zeros(len(masks), 48, radon.detectors)
    share, variance = masks.float().mean(1), torch.zeros(len(masks))
    views = SinogramBatch(nothing, masks, radon, share, variance)
    images = torch.randn(len(masks), size, size, generator=torch.Generator().manual_seed(0))
    # What is seen of noise is taken away, and nothing is ever added.
    seen = [(radon(images) * masks[..., None]).flatten(1).norm(dim=1)]
    for _ in range(12):
        images = landweber_update(images, views, steps=1)
        seen.append((radon(images) * masks[..., None]).flatten(1).norm(dim=1))
    assert all((later <= 1.001 * before).all() for before, later in pairwise(seen))
    assert (seen[-1] < 0.2 * seen[0]).all()


def test_landweber_stops_at_the_noise():
    truth = disc(32).float()
    scan = ParallelBeamCT(32, 48, (2,), PhotonNoise(photons=1e3), seed=0)(truth, 2)
    sinograms = stack_sinograms([scan])
    # The truth is as far from its views as the noise: it stays, up to the chance in a mean.
    assert (landweber_update(truth[None], sinograms) - truth).norm() < 0.1 * (
        landweber_update(torch.zeros_like(truth)[None], sinograms).norm()
    )
    gap = (
        sinograms.radon(landweber_update(torch.zeros(1, 32, 32), sinograms, steps=20))
        - scan.projections
    )
    assert 0.5 < (gap.square().mean() / scan.variance).item() < 2


def test_stacked_cases_equal_single_cases():
    scanner = ParallelBeamCT(32, 32, accelerations=(8, 4))
    scans = [scanner(disc(32).float() * (1 + R), R) for R in (8, 4)]
    both = landweber_update(torch.zeros(2, 32, 32), stack_sinograms(scans))
    alone = torch.cat(
        [landweber_update(torch.zeros(1, 32, 32), stack_sinograms([scan])) for scan in scans]
    )
    assert torch.allclose(both, alone, atol=1e-4)
    assert torch.allclose(
        filtered_back_projection(stack_sinograms(scans))[0],
        filtered_back_projection(scans[0]),
        atol=1e-5,
    )


def test_counts_have_the_stated_variance():
    counts = PhotonNoise(photons=1e5)
    scanner = ParallelBeamCT(64, 64, (2,), counts, seed=1)
    scan, exact = scanner(disc(64), 2), ParallelBeamCT(64, 64, (2,))(disc(64), 2)
    off = (scan.projections - exact.projections).square()
    variance = counts.variance(exact.projections, 64)
    # 32 × 92 independent squares: their mean has a standard error of 2.6 %.
    assert abs((off / variance).mean().item() - 1) < 0.15
    assert scan.variance == pytest.approx(variance.mean().item(), rel=0.05)


def test_impossible_scanners_and_images_are_refused():
    with refused("rounds.invalid"):
        ParallelBeamCT(size=16, views=32, accelerations=(4, 8))
    with refused("value.invalid"):
        ParallelBeamCT(16, 32, (8,), PhotonNoise(photons=1.0))
    with refused("shape.mismatch"):
        ParallelBeamCT(size=16, views=32, accelerations=(8,))(torch.ones(8, 8), 8)
    with refused("option.conflict"):
        TomographyConfig().scanner(16, noise=0.1, seed=0)
    with refused("value.invalid"):
        PhotonNoise(photons=-1)


@pytest.mark.parametrize("size", [64, 65])
def test_projection_equals_deepinv(deepinv, size):
    from taskuq.data._chest import ChestPhantom
    from taskuq.measure._tomography import DeepinvRadon

    image = ChestPhantom(1, seed=0, size=size, slices=1)[0].image
    angles = (0.0, 0.3, 1.0, np.pi / 2, 2.5)
    ours, theirs = Radon(size, angles)(image), DeepinvRadon(size, angles)(image)
    # Two ways to share a pixel between bins. A bin off the centre would differ by a tenth.
    assert (ours - theirs).norm() < 0.02 * ours.norm()


def test_operator_without_its_package_is_refused(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "deepinv.physics", None)
    scanner = ParallelBeamCT(16, 32, (8,), operator="deepinv")
    with refused("dependency.missing"):
        scanner(torch.ones(16, 16), 8)
    with refused("choice.unknown"):
        ParallelBeamCT(16, 32, (8,), operator="astra")
