"""An ensemble: who draws which sample, from which seed, and what its provenance says."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from taskuq._config import to_toml_table
from taskuq.errors import InputError
from taskuq.experiments._run import RunConfig, read_run
from taskuq.measure._fourier import project_measured
from taskuq.measure._mri import MRIMeasurement
from taskuq.recover._methods import (
    RECOVERIES,
    Ensemble,
    EnsembleMethod,
    ZeroFilled,
    _SamplesCoilImages,
)
from taskuq.training._determinism import gaussian_rows, seeded
from taskuq.training._weights import referenced_files, save_weights

SIDE = 16


@dataclass
class Member:
    """Draws numbers that tell who drew them, from which seed and as which of its samples."""

    number: int
    rejected: int = 1

    def __call__(self, scan, *, samples, seed):
        drawn = gaussian_rows(torch.empty(1, 64), [seed])[0, :samples]
        return self.number + 0.001 * drawn.view(-1, 1, 1).expand(-1, SIDE, SIDE)


class Batched(Member):
    def batch(self, scans, *, samples, seeds):
        pairs = zip(scans, seeds, strict=True)
        return torch.stack([self(scan, samples=samples, seed=seed) for scan, seed in pairs])


@pytest.fixture
def scans(draw):
    mask = torch.arange(SIDE) % 3 == 1
    images = torch.complex(*draw(2, 3, 4, SIDE, SIDE)).to(torch.complex64)
    return [MRIMeasurement(project_measured(image, mask), mask, 3.0) for image in images]


@pytest.fixture
def samplers(tmp_path):
    """Files of two samplers with random weights, and of the network that they draw around."""
    paths = []
    for name, seed in (("varnet", 0), ("sampler", 1), ("sampler", 2)):
        with seeded(seed):
            net = RECOVERIES.build(name, preset="tiny")
        paths.append(tmp_path / f"{name}-{seed}.safetensors")
        notes = {"estimate": {"weights": str(paths[0])}} if name == "sampler" else {}
        save_weights(net, paths[-1], kind=name, config=net.config, notes=notes)
    return paths


def test_members_draw_in_turn(scans):
    together = Ensemble((Batched(0), Member(1), Batched(2)))(scans[0], samples=8, seed=3)
    assert together[:, 0, 0].round().tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert len(together[:, 0, 0].unique()) == 8


def test_members_have_seeds_of_their_own(scans):
    """Twins draw other samples: a second network of one build is not the first one's echo."""
    first, second = Ensemble((Member(0), Member(0)))(scans[0], samples=2, seed=3)
    assert not torch.equal(first, second)


def test_a_sample_depends_on_its_case_seed_and_number_alone(scans):
    recover = Ensemble((Batched(0), Member(1), Batched(2)))
    together = recover.batch(scans, samples=7, seeds=[5, 6, 7])
    for k, scan in enumerate(scans):
        for samples in (1, 2, 5):
            alone = recover(scan, samples=samples, seed=5 + k)
            assert torch.equal(alone, together[k, :samples])


def test_rejected_draws_are_those_of_all_members():
    assert Ensemble((Member(0), Member(1, rejected=4))).rejected == 5


def test_point_estimates_have_one_turn_each(scans):
    recover = Ensemble((ZeroFilled(), ZeroFilled()))
    assert recover(scans[0], samples=2, seed=0).shape == (2, SIDE, SIDE)
    with pytest.raises(InputError, match="gives 1 recovery of a case where 2 are asked for"):
        recover(scans[0], samples=3, seed=0)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda scan: Ensemble(()), "no members"),
        (lambda scan: EnsembleMethod().open("cpu"), "recover.members is missing"),
        (lambda scan: Ensemble((Member(0),))(scan, samples=0, seed=0), "at least 1"),
        (
            lambda scan: Ensemble((Member(0),)).coil_images(scan, samples=1, seed=0),
            "Member, shows no coil images",
        ),
    ],
)
def test_bad_input_is_one_sentence(make, sentence, scans):
    with pytest.raises(InputError, match=sentence):
        make(scans[0])


def test_a_table_opens_members_whose_samples_agree_with_the_measurement(scans, samplers):
    recover = RECOVERIES["ensemble"](members=tuple(samplers[1:])).open("cpu")
    assert isinstance(recover, _SamplesCoilImages)
    coils = recover.coil_images(scans[0], samples=4, seed=0)
    mask = scans[0].mask.expand(4, -1)
    assert (project_measured(coils, mask) - scans[0].zero_filled).abs().max() < 1e-5
    drawn = recover(scans[0], samples=4, seed=0)
    assert torch.allclose(coils.abs().square().sum(1).sqrt(), drawn, atol=1e-5)
    assert recover.rejected == 0


def test_provenance_names_all_members_and_whatever_they_draw_around(tmp_path, samplers):
    names = ", ".join(f"'{path}'" for path in samplers[1:])
    config = tmp_path / "run.toml"
    config.write_text(f"[recover]\nkind = 'ensemble'\nmembers = [{names}]\n")
    run: RunConfig = read_run(config)
    assert to_toml_table(run)["recover"] == {
        "kind": "ensemble",
        "members": [str(path) for path in samplers[1:]],
    }
    assert set(samplers) <= set(referenced_files(run.recover))
