"""Random continuations that compete with chosen lines, and directions that others give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from orders.toy import RATES, SIZE, Draws, learner, scanner
from taskuq.errors import InputError
from taskuq.experiments._mask_learning import MaskLearningConfig, learn_masks
from taskuq.measure._adaptive import line_covariance
from taskuq.measure._masks import center_lines
from taskuq.measure._tomography import ParallelBeamCT
from taskuq.pipeline._local import as_cases

# Fine stripes, which lie in two columns of k-space: 8 - 5 and 8 + 5.
STRIPES = torch.cos(2 * torch.pi * 5 * torch.arange(SIZE) / SIZE)


def striped(count=6):
    """Patients of one coil whose stripes differ."""
    strength = torch.linspace(-0.5, 0.5, count)
    return [(1 + s * STRIPES).expand(1, SIZE, SIZE) + 0j for s in strength]


# Coarse ones, in the columns beside the centre.
COARSE = torch.stack([torch.cos(2 * torch.pi * k * torch.arange(SIZE) / SIZE) for k in (1, 2, 3)])


def stripes(images):
    """A task that reads how strong the stripes are, and a little of what is coarse."""
    return (torch.as_tensor(images) * (STRIPES + 0.1 * COARSE.sum(0))).mean((1, 2))


class Blind(Draws):
    """Samples that doubt what is coarse, and nothing else."""

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
def test_lines_that_samples_do_not_doubt_are_found_by_trying(tries, tmp_path):
    masks, order = learn_masks(seeing(Blind(), tries=tries), tmp_path / "m.npz", quiet=True)
    assert bool(masks[1, [3, 13]].any()) == bool(tries)
    assert masks.sum(axis=1).tolist() == [2, 4, 8]
    assert (masks[1:] >= masks[:-1]).all()
    assert len(set(order.all)) == len(order.all) == 8
    assert len(order.gains) == len(order.lines)


def test_an_interrupted_trial_ends_with_the_same_order(tmp_path):
    whole = seeing(Blind(), tries=5)
    _, order = learn_masks(whole, tmp_path / "whole.npz", quiet=True)
    path = tmp_path / "masks.npz"
    with pytest.raises(KeyboardInterrupt):
        learn_masks(seeing(Blind(fails_at=60), tries=5), path, quiet=True)
    again = seeing(Blind(), tries=5)
    _, found = learn_masks(again, path, quiet=True)
    assert (found.lines, found.gains) == (order.lines, order.gains)
    assert again.recover.calls < whole.recover.calls == 4 * 6 * (1 + 1 + 5)


def test_cases_that_are_drawn_together_give_the_same_order(tmp_path):
    class Together(Draws):
        def batch(self, measurements, *, samples, seeds):
            pairs = zip(measurements, seeds, strict=True)
            return torch.stack([self(one, samples=samples, seed=seed) for one, seed in pairs])

    orders = [
        learn_masks(learner(kind(), tries=3), tmp_path / f"{k}.npz", quiet=True)[1]
        for k, kind in enumerate((Draws, Together))
    ]
    assert orders[0].lines == orders[1].lines


class Plain(Draws):
    """What draws arrays, not tensors."""

    def __call__(self, measurement, *, samples, seed):
        return super().__call__(measurement, samples=samples, seed=seed).numpy()


def test_arrays_and_images_of_several_shapes_compete_as_well(tmp_path):
    arrays = replace(learner(Plain(), tries=2, aim="outputs"), task=lambda x: stripes(x).numpy())
    tensors = replace(learner(Draws(), tries=2, aim="outputs"), task=stripes)
    orders = [
        learn_masks(one, tmp_path / f"{k}.npz", quiet=True)[1]
        for k, one in enumerate((arrays, tensors))
    ]
    assert orders[0].lines == orders[1].lines

    class Tall(Draws):
        def __call__(self, measurement, *, samples, seed):
            self.calls += 1
            return measurement.preview + torch.arange(samples)[:, None, None] / 100

    shapes = [image[:, : 16 - 2 * k] for k, image in enumerate(striped(3))]
    several = replace(seeing(Tall(), tries=2), cases=as_cases(shapes))
    learn_masks(several, tmp_path / "several.npz", quiet=True)


def test_no_round_ends_inside_a_block(tmp_path):
    one = learner(Draws())
    one = replace(one, config=replace(one.config, block=3, tries=2))
    masks, order = learn_masks(one, tmp_path / "m.npz", quiet=True)
    # Rounds of 2, 4 and 8 lines, one at the beginning: blocks of 1, 2, 3 and 1 lines.
    assert one.recover.calls == 4 * 3 * (1 + 1 + 2)
    assert masks[1, order.all[:4]].all()


def test_tries_need_a_task_and_a_number():
    for settings in ({"tries": -1}, {"tries": 2, "aim": "variance"}):
        with pytest.raises(InputError, match="tries are"):
            MaskLearningConfig(**settings)


@pytest.mark.parametrize("seed", range(5))
def test_more_lines_are_as_many_as_asked_for_and_none_twice(seed):
    rng = np.random.default_rng(seed)
    for system in (scanner(), ParallelBeamCT(8, 12, RATES)):
        lines = system.initial_lines(3)
        more = system.add_random_lines(lines, 6, rng)
        assert (more >= lines).all()
        assert more.sum() == 9
        assert system.add_random_lines(more, 0, rng).tolist() == more.tolist()
        assert system.add_random_lines(more, system.n_lines - 9, rng).all()


def test_views_are_as_likely_as_the_gap_that_they_are_in_is_wide():
    class Recorded:
        def choice(self, count, p):
            self.p = p
            return int(np.argmax(p))

    rng, lines = Recorded(), np.isin(np.arange(12), [1, 3, 10])  # gaps of 2, 7, and 3 at the end
    more = ParallelBeamCT(8, 12, RATES).add_random_lines(lines, 1, rng)
    expected = np.array([3, 0, 2, 0, 7, 7, 7, 7, 7, 7, 0, 3]) / (2 + 6 * 7 + 2 * 3)
    assert rng.p == pytest.approx(expected)
    assert np.flatnonzero(more & ~lines).tolist() == [4]


def test_by_outputs_every_sample_is_looked_at_in_the_direction_that_the_others_give():
    system, first = scanner(), center_lines(SIZE, 2)
    scan = system.measure_lines(striped(1)[0].expand(2, SIZE, SIZE), 8.0, first)
    drawn = Draws()(scan, samples=40, seed=0)

    def task(x):
        return x[:, :, 3].mean(1) ** 2

    found = line_covariance(system, scan, drawn, task, first, aim="outputs")
    held, z = system.line_values(drawn, scan), task(drawn)
    told = []
    for j in range(40):
        rest = [k for k in range(40) if k != j]
        others, own = held[:, rest], held[:, j] - held.mean(1)
        around = (z[rest] - z[rest].mean()).to(held.dtype)
        direction = torch.einsum("lkn,k->ln", others - others.mean(1, keepdim=True), around)
        told.append((own * direction.conj()).sum(1).real)
    expected = torch.stack(told, dim=1) / 39**0.5
    # What falls where outputs rise tells nothing.
    rises = (expected @ (z - z.mean())) > 0
    assert 0 < rises.sum() < SIZE
    seen = torch.as_tensor(found.told[0, :, :, 0])
    assert torch.allclose(seen.float(), expected * rises[:, None], rtol=1e-3, atol=1e-6)


def test_lines_that_have_nothing_to_do_with_the_task_seem_to_tell_little():
    """By the samples' own directions they would seem to tell as much as the line that is all."""
    from taskuq.measure._adaptive import _without_itself

    generator = torch.Generator().manual_seed(0)
    held = torch.randn(20, 32, 90, generator=generator)
    z = held[:1, :, :1].mean(0)
    held = held - held.mean(1, keepdim=True)
    z = z - z.mean()
    told = held @ torch.einsum("ljn,jt->ltn", held, z).mT
    shares = []
    for one in (told, _without_itself(told, held, z)):
        of_z = (one * z).sum((1, 2)).square() / (one.square().sum((1, 2)) + 1e-9)
        shares.append(of_z[1:].mean() / z.square().sum())
        tells = of_z[0] / z.square().sum()
    assert shares[0] > 0.7
    assert shares[1] < 0.1
    assert tells > 2 * shares[1]
