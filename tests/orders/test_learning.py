"""Orders that are learned: nested, repeatable, taken up after a kill, usable wherever masks are."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from orders.toy import RATES, SIZE, Draws, corner, learner, patients, scanner
from taskuq._io import open_npz
from taskuq.cli.app import main
from taskuq.errors import InputError
from taskuq.experiments._mask_learning import learn_masks
from taskuq.measure._adaptive import _mean_gradients, line_covariance
from taskuq.measure._masks import center_lines
from taskuq.measure._mri import MaskConfig, MultiCoilMRI
from taskuq.measure._tomography import ParallelBeamCT, TomographyConfig


def test_masks_are_nested_hold_the_centre_and_follow_the_order(tmp_path):
    masks, order = learn_masks(learner(Draws()), tmp_path / "masks.npz", quiet=True)
    assert masks.sum(axis=1).tolist() == [2, 4, 8]
    assert (masks[1:] >= masks[:-1]).all()
    assert (masks[0] >= center_lines(SIZE, 1)).all()
    assert all(masks[k, order.all[: 2 ** (k + 1)]].all() for k in range(3))


def test_an_interrupted_learning_ends_with_the_same_order(tmp_path):
    _, whole = learn_masks(learner(Draws()), tmp_path / "whole.npz", quiet=True)
    path, recover = tmp_path / "masks.npz", Draws(fails_at=8)
    with pytest.raises(KeyboardInterrupt) as stopped:
        learn_masks(learner(recover), path, quiet=True)
    (said,) = stopped.value.__notes__
    assert "chosen so far are kept in" in said
    assert f"{tmp_path / 'masks.partial.json'}, and the same command goes on" in said
    again = Draws()
    _, order = learn_masks(learner(again), path, quiet=True)
    assert order.lines == whole.lines
    assert order.gains == whole.gains
    # Two of the four blocks were there already.
    assert again.calls == 6
    assert [p.name for p in tmp_path.glob("masks*")] == ["masks.npz"]


def test_what_was_kept_of_another_learning_is_refused(tmp_path):
    path = tmp_path / "masks.npz"
    with pytest.raises(KeyboardInterrupt):
        learn_masks(learner(Draws(fails_at=8)), path, quiet=True)
    with pytest.raises(InputError, match="begun with other settings"):
        learn_masks(learner(Draws(), aim="variance"), path, quiet=True)
    learn_masks(learner(Draws(), aim="variance"), path, fresh=True, quiet=True)


def test_a_learned_file_is_what_rounds_measure(tmp_path):
    path = tmp_path / "masks.npz"
    masks, _ = learn_masks(learner(Draws()), path, quiet=True)
    config = MaskConfig(accelerations=RATES, file=path)
    assert np.array_equal(config.scanner(SIZE, noise=0, seed=0).masks, masks)
    assert np.array_equal(MaskConfig(accelerations=RATES[1:], file=path).masks(SIZE), masks[1:])
    with pytest.raises(InputError, match="R = 3 is asked for"):
        MaskConfig(accelerations=(3.0,), file=path).masks(SIZE)
    with pytest.raises(InputError, match="16 lines, and 32 are needed"):
        config.masks(2 * SIZE)
    with open_npz(path) as arrays:
        made = json.loads(str(arrays["provenance"]))
    assert made["cases"] == ["0", "1", "2"]
    assert made["configuration"]["aim"] == "gradient"


def test_views_of_a_file_are_what_a_scan_takes(tmp_path):
    masks = np.zeros((2, 8), dtype=bool)
    masks[0, [1, 2]] = masks[1, [1, 2, 3, 7]] = True
    np.savez(tmp_path / "views.npz", masks=masks, accelerations=[4.0, 2.0])
    config = TomographyConfig((4.0, 2.0), views=8, file=tmp_path / "views.npz")
    ct = config.scanner(8, noise=0, seed=0)
    assert ct.views_at(4.0).tolist() == [1, 2]
    assert ct.views_at(2.0).tolist() == [1, 2, 3, 7]
    full = ct(torch.rand(8, 8), 1.0).projections
    assert np.array_equal(config.masks(8), masks)
    assert len(full) == 8


def test_lines_hold_what_the_scanner_would_measure_of_the_coils():
    system, generator = scanner(), torch.Generator().manual_seed(1)
    # A phase that turns once along the columns: the measured centre shows it.
    turning = torch.exp(2j * torch.pi * torch.arange(SIZE) / SIZE)
    maps = torch.stack([0.6 * turning, torch.full((SIZE,), 0.8j)])[:, None].expand(2, SIZE, SIZE)
    scan = system.measure_lines(maps, 8.0, center_lines(SIZE, 4))
    images = torch.rand(3, SIZE, SIZE, generator=generator)
    held = system.line_values(images, scan)
    measured = torch.stack(
        [system.measure_lines(x * maps, 1.0, np.ones(SIZE, bool)).kspace for x in images]
    )
    columns = measured.permute(3, 0, 1, 2).flatten(2)
    assert torch.allclose(held @ held.mH, columns @ columns.mH, atol=1e-4)


def test_views_hold_what_the_scanner_would_measure():
    ct, images = ParallelBeamCT(8, 12, (4.0, 2.0)), torch.rand(3, 8, 8)
    held = ct.line_values(images, ct(images[0], 4.0))
    assert torch.equal(held.transpose(0, 1), ct(images, 1.0).projections)
    assert ct.initial_lines(3).nonzero()[0].tolist() == [0, 4, 8]


def test_a_linear_task_has_one_variance_by_gradient_and_by_outputs():
    system, image = scanner(), patients(1)[0]
    first = center_lines(SIZE, 2)
    scan = system.measure_lines(image, 8.0, first)
    drawn = Draws()(scan, samples=5, seed=0)

    def linear(x):
        return torch.stack([x[:, 3].mean(1), 2 * x[:, :, 4].sum(1)], dim=1)

    by = {
        a: line_covariance(system, scan, drawn, linear, first, aim=a)
        for a in ("gradient", "outputs")
    }
    assert np.isclose(by["gradient"].left([]), by["outputs"].left([]), rtol=1e-4)
    assert np.isclose(by["outputs"].left([]), linear(drawn).var(0).sum(), rtol=1e-4)


def stationary(size=8):
    """Symmetric samples with exactly a stationary covariance, it, and a linear task."""
    f = np.fft.fftfreq(size)
    power = 1 / (0.02 + f[:, None] ** 2 + f[None] ** 2)
    waves = np.fft.fft2(np.eye(size**2).reshape(-1, size, size), norm="ortho").reshape(size**2, -1)
    root = np.real(waves.conj().T @ np.diag(np.sqrt(power.ravel())) @ waves)
    p = 2 * size**2
    samples = np.concatenate([root, -root]) * np.sqrt((p - 1) / 2)
    task = np.random.default_rng(4).normal(size=size**2)
    return samples.reshape(p, size, size), root @ root, task


@pytest.mark.parametrize("lines", [[], [2], [2, 6], [0, 3, 7], [1, 2, 3, 5]])
def test_where_lines_are_independent_what_matters_for_the_task_tells_all(lines):
    samples, covariance, a = stationary()
    system = MultiCoilMRI(np.ones((1, 8), bool), (1.0,))
    first = center_lines(8, 1)
    scan = system.measure_lines(torch.ones(1, 8, 8) + 0j, 8.0, first)
    weights = torch.as_tensor(a.reshape(8, 8))
    spread = line_covariance(
        system, scan, torch.as_tensor(samples), lambda x: (x * weights).sum((1, 2)), first,
        ridge=1e-9,
    )  # fmt: skip
    columns = np.fft.fftshift(np.fft.fft(np.eye(64).reshape(64, 8, 8), norm="ortho"), axes=-1)
    told = columns[:, :, lines].reshape(64, -1).T
    told = np.concatenate([told.real, told.imag])
    gained = told @ covariance
    exact = a @ covariance @ a
    if lines:
        exact -= a @ gained.T @ np.linalg.pinv(told @ covariance @ told.T, 1e-9) @ gained @ a
    assert np.isclose(spread.left(lines), exact, rtol=1e-5, atol=1e-6 * (a @ covariance @ a))


def test_what_lines_hold_of_the_task_adds_up_to_it():
    system, first = scanner(), center_lines(SIZE, 2)
    scan = system.measure_lines(patients(1)[0], 8.0, first)
    drawn = Draws()(scan, samples=5, seed=0)
    deviations = drawn - drawn.mean(0)
    slope = _mean_gradients(corner, drawn)
    held, direction = system.line_values(deviations, scan), system.line_values(slope, scan)
    told = (held @ direction.mH).real.sum(0)[:, 0]
    assert torch.allclose(told, deviations.flatten(1) @ slope[0].flatten(), atol=1e-5)


def test_the_plain_aim_is_the_variance_of_the_image():
    system, image = scanner(), torch.ones(1, SIZE, SIZE) + 0j
    first = center_lines(SIZE, 2)
    drawn = torch.rand(5, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    scan = system.measure_lines(image, 8.0, first)
    spread = line_covariance(system, scan, drawn, corner, first, aim="variance")
    assert np.isclose(spread.left([]), drawn.var(0).sum(), rtol=1e-4)


def test_a_task_without_a_gradient_is_refused_and_one_sample_too():
    system, first = scanner(), center_lines(SIZE, 2)
    scan = system.measure_lines(patients(1)[0], 8.0, first)
    drawn = Draws()(scan, samples=3, seed=0)
    with pytest.raises(InputError, match="choose the aim 'outputs'"):
        line_covariance(system, scan, drawn, lambda x: corner(x.detach()), first)
    with pytest.raises(InputError, match="at least 2"):
        line_covariance(system, scan, drawn[:1], corner, first)
    with pytest.raises(InputError, match="at least 3"):
        line_covariance(system, scan, drawn[:2], corner, first, aim="outputs")


def test_the_command_learns_views_of_chests(tmp_path, capsys):
    config = tmp_path / "order.toml"
    config.write_text(
        'samples = 3\ncases = 2\nblock = 3\naim = "outputs"\n'
        '[data]\nkind = "chest"\npatients = 4\nsize = 64\nslices = 1\n'
        '[measure]\nkind = "tomography"\naccelerations = [6, 3]\nviews = 12\n'
        '[recover]\nkind = "views-sampler"\nweights = "views-sampler-chest"\n'
        '[task]\nkind = "air-share"\n'
    )
    main(["masks", "--learn", str(config), "-o", str(tmp_path / "views.npz")])
    said = capsys.readouterr()
    assert "R = 3: 4 of 12 views" in said.err
    assert "calibrate on others" in said.err
    assert (tmp_path / "views.png").stat().st_size > 1000
