import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from measure.adaptive_toy import RATES, SIZE, Draws, DrawsTogether, learner
from raising import refused
from taskuq._io import open_npz
from taskuq.cli.app import main
from taskuq.experiments._mask_learning import MaskLearningConfig, learn_masks
from taskuq.measure._masks import center_lines
from taskuq.measure._mri import MaskConfig
from taskuq.measure._tomography import TomographyConfig
from taskuq.pipeline._local import as_cases


def test_interrupted_learning_ends_with_the_same_order(tmp_path):
    _, whole = learn_masks(learner(Draws()), tmp_path / "whole.npz", progress=False)
    path, recover = tmp_path / "masks.npz", Draws(fails_at=8)
    with pytest.raises(KeyboardInterrupt) as stopped:
        learn_masks(learner(recover), path, progress=False)
    (note,) = stopped.value.__notes__
    assert str(tmp_path / "masks.partial.json") in note
    again = Draws()
    _, order = learn_masks(learner(again), path, progress=False)
    assert order.lines == whole.lines
    assert order.gains == whole.gains
    # Two of the four blocks were there already.
    assert again.calls == 6
    assert [p.name for p in tmp_path.glob("masks*")] == ["masks.npz"]


def test_state_of_another_learning_is_refused(tmp_path):
    path = tmp_path / "masks.npz"
    with pytest.raises(KeyboardInterrupt):
        learn_masks(learner(Draws(fails_at=8)), path, progress=False)
    with refused("resume.mismatch"):
        learn_masks(learner(Draws(), objective="variance"), path, progress=False)
    learn_masks(learner(Draws(), objective="variance"), path, overwrite=True, progress=False)


def test_learned_masks_are_nested_and_measured(tmp_path):
    path = tmp_path / "masks.npz"
    masks, order = learn_masks(learner(Draws()), path, progress=False)
    assert masks.sum(axis=1).tolist() == [2, 4, 8]
    assert (masks[1:] >= masks[:-1]).all()
    assert (masks[0] >= center_lines(SIZE, 1)).all()
    assert all(masks[k, order.all[: 2 ** (k + 1)]].all() for k in range(3))
    config = MaskConfig(accelerations=RATES, path=path)
    assert np.array_equal(config.scanner(SIZE, noise=0, seed=0).masks, masks)
    assert np.array_equal(MaskConfig(accelerations=RATES[1:], path=path).masks(SIZE), masks[1:])
    with refused("rounds.invalid"):
        MaskConfig(accelerations=(3.0,), path=path).masks(SIZE)
    with refused("shape.mismatch"):
        config.masks(2 * SIZE)
    with open_npz(path) as arrays:
        made = json.loads(str(arrays["provenance"]))
    assert made["cases"] == ["0", "1", "2"]
    assert made["configuration"]["objective"] == "gradient"


def test_scan_takes_the_views_of_a_file(tmp_path):
    masks = np.zeros((2, 8), dtype=bool)
    masks[0, [1, 2]] = masks[1, [1, 2, 3, 7]] = True
    np.savez(tmp_path / "views.npz", masks=masks, accelerations=[4.0, 2.0])
    config = TomographyConfig((4.0, 2.0), views=8, path=tmp_path / "views.npz")
    ct = config.scanner(8, noise=0, seed=0)
    assert ct.views_at(4.0).tolist() == [1, 2]
    assert ct.views_at(2.0).tolist() == [1, 2, 3, 7]
    full = ct(torch.rand(8, 8), 1.0).projections
    assert np.array_equal(config.masks(8), masks)
    assert len(full) == 8


def test_command_learns_views_of_chests(tmp_path, capsys):
    config = tmp_path / "order.toml"
    config.write_text(
        'samples = 3\ncases = 2\nlines_per_step = 3\nobjective = "outputs"\n'
        '[data]\nkind = "chest"\npatients = 4\nsize = 64\nslices = 1\n'
        '[measure]\nkind = "tomography"\naccelerations = [6, 3]\nviews = 12\n'
        '[recover]\nkind = "ct-sampler"\nweights = "ct-sampler-chest"\n'
        '[task]\nkind = "air-fraction"\n'
    )
    main(["masks", "--learn", str(config), "-o", str(tmp_path / "views.npz")])
    stderr = capsys.readouterr().err
    assert "R = 3: 4 of 12 views" in stderr
    assert "calibrate on other cases" in stderr
    assert (tmp_path / "views.png").stat().st_size > 1000


# Fine stripes, which lie in two columns of k-space: 8 - 5 and 8 + 5.
STRIPES = torch.cos(2 * torch.pi * 5 * torch.arange(SIZE) / SIZE)


def striped(count=6):
    strength = torch.linspace(-0.5, 0.5, count)
    return [(1 + s * STRIPES).expand(1, SIZE, SIZE) + 0j for s in strength]


# Coarse ones, in the columns next to the centre.
COARSE = torch.stack([torch.cos(2 * torch.pi * k * torch.arange(SIZE) / SIZE) for k in (1, 2, 3)])


def stripes(images):
    """A task that reads how strong the stripes are, and a little of what is coarse."""
    return (torch.as_tensor(images) * (STRIPES + 0.1 * COARSE.sum(0))).mean((1, 2))


class Blind(Draws):
    """Samples that differ in coarse stripes only."""

    def __call__(self, measurement, *, samples, seed):
        self.calls += 1
        if self.calls == self.fails_at:
            raise KeyboardInterrupt
        noise = torch.randn(samples, 3, generator=torch.Generator().manual_seed(seed % 2**31))
        return (measurement.preview + 0.01 * (noise @ COARSE)[:, None]).float()


def seeing(recover, **settings):
    cases = as_cases(striped())
    return replace(learner(recover, **settings), cases=cases, task=stripes)


@pytest.mark.parametrize("tries", [0, 12])
def test_random_candidates_find_lines_without_variance(tries, tmp_path):
    masks, order = learn_masks(
        seeing(Blind(), random_candidates=tries), tmp_path / "m.npz", progress=False
    )
    assert bool(masks[1, [3, 13]].any()) == bool(tries)
    assert masks.sum(axis=1).tolist() == [2, 4, 8]
    assert (masks[1:] >= masks[:-1]).all()
    assert len(set(order.all)) == len(order.all) == 8
    assert len(order.gains) == len(order.lines)


def test_batched_cases_give_the_same_order(tmp_path):
    orders = [
        learn_masks(learner(kind(), random_candidates=3), tmp_path / f"{k}.npz", progress=False)[1]
        for k, kind in enumerate((Draws, DrawsTogether))
    ]
    assert orders[0].lines == orders[1].lines
    for settings in ({"random_candidates": -1}, {"random_candidates": 2, "objective": "variance"}):
        with refused("value.invalid", "random_candidates"):
            MaskLearningConfig(**settings)
