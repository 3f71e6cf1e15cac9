"""Recoveries from folders and from deepinv."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import toy

import taskuq as tq
from raising import refused
from taskuq._seeds import case_seed
from taskuq.measure._adapters import DeepinvMeasure
from taskuq.pipeline._adapters import DeepinvRecover, RecoveryFolder
from taskuq.pipeline._pipeline import status
from taskuq.task._methods import MeanIntensity

RUN = {"accelerations": toy.ACCELERATIONS, "samples": 4, "seed": 3, "progress": False}
NAMES = ["a", "b", "ward-2/c"]


def drawn(name, image, R):
    seed = case_seed(3, name, R)
    return toy.recover(toy.measure(image, R), samples=4, seed=seed).astype(np.float32)


def as_npz(stem, samples):
    np.savez(f"{stem}.npz", recoveries=samples)


def as_npy(stem, samples):
    np.save(f"{stem}.npy", samples)


def as_nifti(stem, samples):
    nibabel = pytest.importorskip("nibabel")
    # What reading turns by a quarter has to be written turned back.
    volume = np.rot90(np.moveaxis(samples, 0, -1), -1)
    nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), f"{stem}.nii.gz")


def as_single_files(stem, samples):
    os.mkdir(stem)
    for k, image in enumerate(samples):
        np.save(f"{stem}/sample-{k:03d}.npy", image)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "recoveries"
    for name in NAMES:
        (root / name).mkdir(parents=True)
    return root


def fill(folder, write):
    for name, image in zip(NAMES, toy.images(3), strict=True):
        for R in toy.ACCELERATIONS:
            write(folder / name / f"R{R:g}", drawn(name, image, R))


@pytest.mark.parametrize("write", [as_npz, as_npy, as_nifti, as_single_files])
def test_recovery_folder_gives_the_samplers_table(folder, write):
    fill(folder, write)

    def in_single_precision(measurement, *, samples, seed):
        return toy.recover(measurement, samples=samples, seed=seed).astype(np.float32)

    runs = [RecoveryFolder(folder), in_single_precision]
    found, expected = (
        tq.Pipeline(toy.measure, recover, toy.task).run(toy.images(3), case=NAMES, **RUN)
        for recover in runs
    )
    assert np.array_equal(found.outputs, expected.outputs)


def test_case_without_recoveries_is_missing(folder, tmp_path):
    fill(folder, as_npz)
    (folder / "b/R4.npz").unlink()
    pipeline = tq.Pipeline(toy.measure, RecoveryFolder(folder), toy.task)
    table = pipeline.run(toy.images(3), case=NAMES, store=tmp_path / "t", **RUN)
    assert table.missing_cases == ("b",)
    assert "0 files hold recoveries of b at R = 4" in status(tmp_path / "t")["failed"]["b"]


def test_too_few_samples_are_refused(folder):
    stored = RecoveryFolder(folder).load
    for k in (1, 3, 9):
        as_npz(folder / f"a/R{k + 1}", np.ones((k, 4, 4)))
    assert len(stored("a", 2.0, samples=4)) == 1
    assert len(stored("a", 10.0, samples=4)) == 4
    with refused("samples.mismatch", "3 samples"):
        stored("a", 4.0, samples=4)


@pytest.mark.parametrize(
    "name", ["../outside", "/etc", "a/../../outside", "a\0b", "link", "x" * 5000, "a"]
)
def test_case_name_outside_the_folder_is_refused(folder, tmp_path, name):
    (tmp_path / "outside").mkdir()
    as_npz(tmp_path / "outside/R8", np.ones((4, 4, 4)))
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "a/R8.npz").symlink_to(tmp_path / "outside/R8.npz")
    with refused("value.invalid"):
        RecoveryFolder(folder).load(name, 8.0, samples=4)


def larger_than_its_file(stem):
    claimed = {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6, 4)}
    with open(f"{stem}.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, claimed)


HOSTILE = {
    "objects": lambda stem: np.savez(f"{stem}.npz", recoveries=np.array([{}], dtype=object)),
    "a pickle": lambda stem: np.save(f"{stem}.npy", np.array([{}], dtype=object)),
    "no numbers": lambda stem: np.save(f"{stem}.npy", np.array(["a"])),
    "one axis": lambda stem: np.save(f"{stem}.npy", np.ones(4)),
    "garbage": lambda stem: stem.with_suffix(".nii.gz").write_bytes(b"nothing of use"),
    "several arrays": lambda stem: np.savez(f"{stem}.npz", a=np.ones((4, 2, 2)), b=np.ones(3)),
    "no array": lambda stem: np.savez(f"{stem}.npz"),
    "larger than its file": larger_than_its_file,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_malformed_recoveries_are_refused(folder, kind):
    HOSTILE[kind](folder / "a/R8")
    with refused("shape.axes" if kind in ("no numbers", "one axis") else "file.format"):
        RecoveryFolder(folder).load("a", 8.0, samples=4)


SCAN = SimpleNamespace(y=torch.zeros(1, 1, 4, 4), physics=None)


def torch_only(y, physics):
    """Draws from torch's global generator and takes no seed."""
    return y + torch.randn(y.shape)


def seeded_sampler(y, physics, seed=None):
    """Seeds the global generators, as deepinv does, unless the seed is 0."""
    if seed:
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
    return torch_only(y, physics) + float(np.random.rand())  # noqa: NPY002


def test_deepinv_samples_repeat_and_keep_generators():
    for model in (torch_only, seeded_sampler):
        recover = DeepinvRecover(model)
        torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
        one, again = (recover(SCAN, samples=3, seed=5) for _ in range(2))
        assert torch.equal(one, again)
        assert not torch.equal(one[0], one[1])
        assert not torch.equal(one, recover(SCAN, samples=3, seed=6))
        assert torch.equal(torch_state, torch.get_rng_state())
        assert np.array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002


def test_point_estimates_magnitudes_and_batches():
    point = DeepinvRecover(lambda y, physics: y + 1, kind="point")
    assert point(SCAN, samples=32, seed=0).tolist() == torch.ones(1, 4, 4).tolist()
    two = DeepinvRecover(lambda y, physics: torch.tensor([3.0, 4.0]).view(1, 2, 1, 1))
    assert two(SCAN, samples=1, seed=0).item() == 5.0
    sizes = []

    def model(y, physics, seed=None):
        sizes.append(len(y))
        return y

    assert DeepinvRecover(model, together=3)(SCAN, samples=7, seed=0).shape == (7, 4, 4)
    assert sizes == [3, 3, 1]


def test_unknown_deepinv_models_are_refused():
    with refused("component.invalid", "chain"):
        DeepinvRecover(torch_only, kind="chain")
    with refused("choice.unknown", "point, sampler"):
        DeepinvRecover(torch_only, kind="mean")
    with refused("component.invalid", "shape"):
        DeepinvRecover(lambda y, physics: y[0])(SCAN, samples=1, seed=0)


def models(deepinv):
    """One of each kind, with a denoiser that needs no weights."""

    def denoiser(x, sigma, *args, **kwargs):
        return torch.nn.functional.avg_pool2d(x, 3, stride=1, padding=1)

    fidelity = deepinv.optim.L2(sigma=0.1)
    prior = deepinv.optim.ScorePrior(denoiser=denoiser)
    chain = deepinv.sampling.sampling_builder(
        "ULA", data_fidelity=fidelity, prior=prior, max_iter=40, thinning=4, burnin_ratio=0.2,
        history_size=True, params_algo={"step_size": 1e-3, "alpha": 1.0, "sigma": 0.05},
    )  # fmt: skip
    return {
        "point": DeepinvRecover(lambda y, physics: physics.A_dagger(y), kind="point"),
        "sampler": DeepinvRecover(
            deepinv.sampling.DDRM(denoiser=denoiser, sigmas=np.linspace(1, 0, 5), verbose=False)
        ),
        "chain": DeepinvRecover(chain, kind="chain"),
    }


@pytest.mark.parametrize("kind", ["point", "sampler", "chain"])
@pytest.mark.filterwarnings("ignore")  # deepinv's own
def test_deepinv_models_run_in_the_pipeline(deepinv, kind):
    masks = {R: (torch.arange(256).view(1, 16, 16) % R == 0).float() for R in (8, 4)}
    physics = {R: deepinv.physics.Inpainting((1, 16, 16), mask=mask) for R, mask in masks.items()}
    images = [torch.rand(16, 16, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    pipeline = tq.Pipeline(DeepinvMeasure(physics), models(deepinv)[kind], MeanIntensity())
    run = {"accelerations": (8, 4), "samples": 4, "progress": False}
    one, again, other = (pipeline.run(images, seed=seed, **run) for seed in (0, 0, 1))
    assert one.samples == (1 if kind == "point" else 4)
    assert np.array_equal(one.outputs, again.outputs)
    assert np.array_equal(one.outputs, other.outputs) == (kind == "point")
    assert kind == "point" or (one.outputs.std(axis=2) > 0).all()


@pytest.mark.filterwarnings("ignore")
def test_short_chain_is_refused(deepinv):
    recover = models(deepinv)["chain"]
    physics = deepinv.physics.Inpainting((1, 16, 16), mask=torch.ones(1, 16, 16))
    scan = SimpleNamespace(y=torch.rand(1, 1, 16, 16), physics=physics)
    with refused("samples.mismatch", "8 states", "9 samples"):
        recover(scan, samples=9, seed=0)
