"""Recoveries from folders."""

import os

import numpy as np
import pytest
import toy
from toy import RUN

import taskuq as tq
from raising import refused
from taskuq._seeds import case_seed
from taskuq.pipeline._executor import RecoveryFolder
from taskuq.pipeline._pipeline import status

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
