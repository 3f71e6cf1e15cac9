"""fastMRI folders as data sets, their cache and their store of prepared slices."""

import os
import shutil
from dataclasses import replace
from multiprocessing.pool import ThreadPool

import h5py
import numpy as np
import pytest
import torch

from raising import refused
from taskuq.cli.data import prepare
from taskuq.data import _fastmri as fastmri
from taskuq.data._dataset import Dataset, Subset, precision_of
from taskuq.data._fastmri import (
    FastMRIData,
    FastMRIDataset,
    _stored_slices,
    _StoredSlices,
    _survey,
    prepare_slices,
)
from taskuq.data._readers import open_data
from taskuq.data._volume import (
    AnnotationLabels,
    FastMRIPreprocessing,
    Volume,
    _Annotation,
    _Annotations,
    cached_coils,
    open_volume,
)
from taskuq.errors import MachineError
from taskuq.measure._coils import compression_matrix
from taskuq.measure._fourier import ifft2c, project_measured

TEAR = _Annotation("file1000001", 1, False, (1, 2, 3, 4), "Meniscus Tear")


def test_item_is_the_cropped_compressed_scaled_slice(write_volume, small_preparation, tmp_path):
    _, kspace = write_volume(slices=2)
    data = FastMRIDataset(tmp_path, small_preparation)
    assert isinstance(data, Dataset)
    item = data[1]
    full = ifft2c(torch.as_tensor(kspace[1]))[:, 8:40, 4:36]
    C = compression_matrix(project_measured(full, small_preparation.first_mask), 8)
    expected = torch.einsum("bv,bhw->vhw", C, full)
    assert item.image.shape == (8, 32, 32)
    assert torch.allclose(item.image * item.scale, expected, rtol=1e-4, atol=1e-9)
    assert (item.group, item.case) == ("file1000001", "file1000001-1")


def test_scale_is_the_quantile_of_the_first_round(write_volume, small_preparation, tmp_path):
    write_volume(slices=4)
    data = FastMRIDataset(tmp_path, small_preparation)
    zero_filled = torch.stack(
        [project_measured(item.image * item.scale, small_preparation.first_mask) for item in data]
    )
    assert data[0].scale == pytest.approx(np.quantile(zero_filled.abs().numpy(), 0.95), rel=1e-4)
    assert len({item.scale for item in data}) == 1


def test_the_published_rule_and_the_stated_rule_differ():
    published, stated = FastMRIPreprocessing(), FastMRIPreprocessing(slices="central-80")
    # 5 to 23, 6 to 27, 7 to 27, 7 to 31: where a fifth is whole, the float below it counts.
    assert [len(published.chosen_slices(n)) for n in (30, 35, 36, 40)] == [19, 22, 21, 25]
    assert [len(stated.chosen_slices(n)) for n in (30, 35, 36, 40)] == [24, 28, 29, 32]


def test_unusable_files_are_listed(write_volume, small_preparation, tmp_path):
    write_volume("good.h5")
    write_volume("fat.h5", acquisition="CORPDFS_FBK")
    write_volume("few.h5", coils=4)
    write_volume("narrow.h5", width=24, recon=16)
    write_volume("empty.h5", kspace=False)
    broken, _ = write_volume("broken.h5")
    broken.write_bytes(broken.read_bytes()[:1000])
    (tmp_path / "volumes" / "text.h5").write_text("not HDF5")
    reasons = {f.file.stem: f.reason for f in _survey(tmp_path, small_preparation)}
    assert reasons.pop("good") == ""
    assert reasons["fat"] == "acquisition is CORPDFS_FBK, not CORPD_FBK"
    assert reasons["few"] == "4 coils, at least 9 are needed"
    assert reasons["narrow"] == "24 encoded lines, at least 32 are needed"
    assert reasons["empty"] == "has no dataset kspace"
    assert all("cannot be opened as HDF5" in reasons[name] for name in ("broken", "text"))


def test_labels_come_from_the_annotations(write_volume, small_preparation, tmp_path):
    write_volume("file1000001.h5")
    write_volume("file1000002.h5")
    notes = _Annotations((TEAR,))
    labelled = FastMRIDataset(tmp_path, small_preparation, AnnotationLabels(notes))
    assert labelled.labels.tolist() == [0, 1, 0, 0, 0, 0]
    listed = FastMRIDataset(
        tmp_path, small_preparation, AnnotationLabels(notes, files=frozenset({"file1000001"}))
    )
    assert set(listed.groups) == {"file1000001"}


def test_cache_gives_the_same_numbers(write_volume, small_preparation, tmp_path):
    path, _ = write_volume()
    cache = tmp_path / "cache"
    fresh, first = (
        FastMRIDataset(tmp_path, small_preparation)[0],
        FastMRIDataset(tmp_path, small_preparation, cache=cache)[0],
    )
    assert torch.equal(fresh.image, first.image)
    (kept,) = cache.rglob("*.npz")
    with np.load(kept) as file:
        np.savez(kept, matrices=file["matrices"], scale=2 * file["scale"])
    assert cached_coils(open_volume(path), small_preparation, cache).scale == pytest.approx(
        2 * first.scale
    )


def test_truncated_volume_leaves_no_cache(write_volume, small_preparation, tmp_path):
    path, _ = write_volume(slices=4)
    with h5py.File(path, "r+") as file:
        values = file["kspace"][()]
        del file["kspace"]
        data = file.create_dataset(
            "kspace", values.shape, values.dtype, chunks=(1, *values.shape[1:]), compression="gzip"
        )
        data[...] = values
        offset, length = data.id.get_chunk_info(3).byte_offset, data.id.get_chunk_info(3).size
    with path.open("r+b") as raw:
        raw.seek(offset)
        raw.write(b"\0" * length)
    cache = tmp_path / "cache"
    with refused("file.format", "slice 3"):
        FastMRIDataset(tmp_path, small_preparation, cache=cache)[0]
    assert [f for f in cache.rglob("*") if f.is_file()] == []
    (finding,) = _survey(tmp_path, small_preparation, thorough=True)
    assert "breaks off in slice 3" in finding.reason


@pytest.fixture
def volumes(write_volume, tmp_path):
    write_volume("file1.h5", seed=1)
    write_volume("file2.h5", slices=2, seed=2)
    return tmp_path / "volumes"


@pytest.fixture
def kept(volumes, small_preparation, tmp_path):
    """Keep all volumes in a precision and return the cache."""

    def keep(precision="half", preparation=small_preparation):
        for path in sorted(volumes.glob("*.h5")):
            prepare_slices(open_volume(path), preparation, tmp_path / "cache", precision)
        return tmp_path / "cache"

    return keep


@pytest.fixture
def no_kspace(monkeypatch):
    def refuse(volume, index):
        raise AssertionError(f"raw k-space of {volume.name} was read")

    return lambda: monkeypatch.setattr(Volume, "kspace", refuse)


@pytest.mark.parametrize("combined", [False, True])
def test_single_precision_store_is_exact(volumes, small_preparation, kept, no_kspace, combined):
    raw = list(FastMRIDataset(volumes, small_preparation, combined=combined))
    cache = kept("single")
    no_kspace()
    data = FastMRIDataset(volumes, small_preparation, cache=cache, combined=combined, exact=True)
    assert (data.raw_because, data.precision, len(data)) == ("", "single", 5)
    for one, other in zip(raw, data, strict=True):
        assert torch.equal(one.image, other.image)
        assert one[1:] == other[1:]


def test_half_precision_store_rounds(volumes, small_preparation, kept):
    data = FastMRIDataset(volumes, small_preparation, cache=kept())
    for one, other in zip(FastMRIDataset(volumes, small_preparation), data, strict=True):
        raw, stored = torch.view_as_real(one.image), torch.view_as_real(other.image)
        # Eleven significant bits; below the smallest normal number, steps of 2⁻²⁴.
        assert ((raw - stored).abs() <= raw.abs() * 2**-11 + 2**-25).all()
        assert other.scale == one.scale
    assert data.precision == "half"
    assert precision_of(Subset(data, (0,))) == "half"


def test_test_cases_are_never_rounded(volumes, kept, capsys):
    reader = FastMRIData(path=volumes, validation_path=volumes, size=32, min_lines=32)
    at_16 = FastMRIPreprocessing(size=32, min_lines=32, slices="all")
    reader = replace(reader, cache=kept("half", at_16))
    fastmri._warned.clear()
    assert reader.open().precision == "half"
    assert capsys.readouterr().err == ""
    judged = reader.open_test()
    reader.open_test()
    (warning,) = capsys.readouterr().err.splitlines()
    assert judged.precision == "single"
    assert "2 of 2 volumes are not available in" in warning
    kept("single", at_16)
    assert reader.open_test().raw_because == ""


def _other_content(path):
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def _cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def _edit(path):
    path.write_text(path.read_text().replace('"half"', '"single"'))


FAULTS = {
    "no record": ("cache/*/file2.json", os.unlink, "file2 is not in"),
    "another file": ("volumes/file2.h5", _other_content, "was prepared from another file"),
    "broken off": ("cache/*/file2.coils.npy", _cut, "is missing or truncated"),
    "no array": ("cache/*/file2.magnitude.npy", os.unlink, "is missing or truncated"),
    "an edited record": ("cache/*/file2.json", _edit, "SHA-256"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_incomplete_store_is_not_used(volumes, small_preparation, kept, tmp_path, fault):
    cache = kept()
    where, break_, words = FAULTS[fault]
    (path,) = tmp_path.glob(where)
    break_(path)
    data = FastMRIDataset(volumes, small_preparation, cache=cache)
    assert data.raw_because.startswith(f"1 of 2 volumes are not available in {cache}: ")
    assert words in data.raw_because
    assert data.precision == "single"
    kept()
    assert FastMRIDataset(volumes, small_preparation, cache=cache).raw_because == ""


@pytest.mark.parametrize("prepared", [True, False])
def test_unreadable_volume_leaves_the_store_on(
    write_volume, volumes, small_preparation, kept, no_kspace, tmp_path, prepared
):
    """NaN in one volume, before or after the others were prepared."""
    cache = kept("single")
    path, _ = write_volume("file3.h5", seed=3)
    with h5py.File(path, "r+") as file:
        file["kspace"][1, 0, 0, 0] = np.nan
    if prepared:
        with refused("value.nonfinite"):
            prepare_slices(open_volume(path), small_preparation, cache)
        no_kspace()
    data = FastMRIDataset(volumes, small_preparation, cache=cache)
    assert (data.raw_because, len(data)) == ("", 5)
    (note,) = data.notes
    assert "file3.h5 has NaN in slice 1" in note


@pytest.mark.parametrize(("group", "groups"), [("patient", 3), ("volume", 4)])
def test_groups_are_patients(write_volume, tmp_path, group, groups):
    for k, patient in enumerate(["anna", "anna", "ben", None]):
        write_volume(f"file{k}.h5", seed=k, patient=patient, institution=f"clinic {k % 2}")
    small = {"size": 32, "min_lines": 32, "group": group, "validation_fraction": 0.34}
    reader = FastMRIData(path=tmp_path / "volumes", **small)
    data = reader.open()
    assert len(set(data.groups)) == groups == reader.check().groups
    assert [data[k].group for k in range(len(data))] == data.groups.tolist()
    sites = ["clinic 0", "clinic 1", "clinic 0", "clinic 1"]
    if group == "patient":
        sites[:2] = ["clinic 0 / clinic 1"] * 2  # no patient is divided among sites
    assert data.sites.tolist() == np.repeat(sites, 3).tolist()
    assert bool([n for n in data.notes if "joined" in n]) == (group == "patient")
    for one, other in ((0, 1),) if group == "patient" else ():
        training, validation = open_data(reader)
        assert not set(training.groups) & set(validation.groups)
        assert data.groups[3 * one] == data.groups[3 * other]


def test_patients_of_the_validation_folder_are_not_trained_on(write_volume, tmp_path):
    for name, patient in (("train/a", "anna"), ("train/b", "ben"), ("val/c", "anna")):
        write_volume(f"{name}.h5", patient=patient)
    folders = {"path": tmp_path / "volumes/train", "validation_path": tmp_path / "volumes/val"}
    for group, kept in (("patient", {"ben"}), ("volume", {"a", "b"})):
        data = FastMRIData(size=32, min_lines=32, group=group, **folders).open()
        assert set(data.groups) == kept
        assert any("left out of training: 1 volume " in n for n in data.notes) == (len(kept) == 1)


@pytest.mark.parametrize(
    ("height", "width", "coils", "recon", "note"),
    [
        (48, 40, 15, 32, None),
        (63, 35, 15, 32, None),  # odd sizes
        (76, 39, 20, 38, "images of 38×38 (reconSpace) are cropped to 32×32"),
        (48, 40, 0, 32, None),  # single coil
        (48, 40, 16, 24, "images of 24×24 (reconSpace) are smaller than the crop, 32×32"),
    ],
)
def test_layouts_are_read(write_volume, tmp_path, height, width, coils, recon, note):
    _, kspace = write_volume(coils=coils, height=height, width=width, recon=recon)
    plan = FastMRIPreprocessing(
        size=32, min_lines=32, min_coils=max(coils, 1), coils=1 if coils == 0 else 8, slices="all"
    )
    data = FastMRIDataset(tmp_path, plan)
    # Coil compression is unitary on what it keeps: with one coil the magnitude stays.
    if coils == 0:
        top, left = (height - 32) // 2, (width - 32) // 2
        full = ifft2c(torch.as_tensor(kspace[1]))[top : top + 32, left : left + 32]
        assert torch.allclose(data[1].image[0].abs() * data[1].scale, full.abs(), rtol=1e-4)
    assert data[0].image.shape == (plan.coils, 32, 32)
    assert [n.split(" in ")[0] for n in data.notes] == ([] if note is None else [note])


def test_store_of_other_settings_is_not_used(volumes, small_preparation, kept):
    cache = kept()
    for change in ({"coils": 4}, {"size": 24}, {"compression": "full"}, {"first_acceleration": 8}):
        data = FastMRIDataset(volumes, replace(small_preparation, **change), cache=cache)
        assert "prepared with other settings" in data.raw_because


@pytest.mark.parametrize("array", ["coils", "magnitude"])
def test_flipped_bit_is_refused(volumes, small_preparation, kept, array):
    cache = kept()
    (path,) = cache.rglob(f"file1.{array}.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # in the last of three slices
    path.write_bytes(content)
    data = FastMRIDataset(volumes, small_preparation, cache=cache, combined=array == "magnitude")
    assert data[1].image.isfinite().all()
    with refused("file.damaged", f"file1.{array}.npy", "slice 2"):
        data[2]


def test_interrupted_preparation_resumes(volumes, small_preparation, tmp_path, monkeypatch, capsys):
    cache, wrote = tmp_path / "cache", []
    small = {"size": 32, "min_lines": 32, "cache": cache}
    read = fastmri.cropped_coils

    def power_cut(volume, index, *others):
        if volume.name == "file2" and index == 1:
            raise KeyboardInterrupt
        wrote.append((volume.name, index))
        return read(volume, index, *others)

    monkeypatch.setattr(fastmri, "cropped_coils", power_cut)
    with pytest.raises(KeyboardInterrupt):
        prepare(volumes, **small)
    assert {path.name for path in cache.rglob("*file2*")} <= {"file2.lock"} | {
        path.name for path in cache.rglob("file2-*.npz")
    }
    # As after a kill.
    (left,) = (path.parent / ".file2.coils.npy.abc.partial" for path in cache.rglob("file1.json"))
    left.write_bytes(b"half")
    monkeypatch.setattr(fastmri, "cropped_coils", read)
    wrote.clear()
    capsys.readouterr()
    prepare(volumes, **small)
    printed = capsys.readouterr().err
    assert "1/1 file2: 2 slices" in printed
    assert "file1" not in printed
    assert not left.exists()
    prepare(volumes, **small)
    assert "0 slices in half precision need 0 GB" in capsys.readouterr().err


def test_same_volumes_are_prepared_at_once(volumes, small_preparation, tmp_path):
    cache = tmp_path / "cache"
    jobs = [(open_volume(p), small_preparation, cache) for p in sorted(volumes.glob("*.h5"))] * 2
    with ThreadPool(2) as pool:
        found = pool.starmap(prepare_slices, jobs, chunksize=1)
    assert [one.sums for one in found[:2]] == [one.sums for one in found[2:]]
    assert not list(cache.rglob("*.partial"))
    assert FastMRIDataset(volumes, small_preparation, cache=cache).raw_because == ""


def test_single_replaces_half_precision(volumes, small_preparation, kept):
    for precision, expected in (("half", "half"), ("single", "single"), ("half", "single")):
        cache = kept(precision)
        found = _stored_slices(open_volume(volumes / "file1.h5"), small_preparation, cache)
        assert found.precision == expected


def test_full_disk_is_refused_in_advance(volumes, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=1000))
    with pytest.raises(MachineError, match=r"needs 0\.0001741 GB, and 1e-06 GB are free"):
        prepare(volumes, cache=tmp_path / "cache", size=32, min_lines=32)
    assert not (tmp_path / "cache").exists()


def test_half_precision_overflow_is_refused(volumes, small_preparation, tmp_path, monkeypatch):
    read = fastmri.cropped_coils
    monkeypatch.setattr(fastmri, "cropped_coils", lambda *given: read(*given) * 1e6)
    volume = open_volume(volumes / "file1.h5")
    with refused("value.nonfinite", "--precision single"):
        prepare_slices(volume, small_preparation, tmp_path / "cache")
    assert not list(tmp_path.rglob("file1.json"))
    assert isinstance(
        prepare_slices(volume, small_preparation, tmp_path / "cache", "single"), _StoredSlices
    )
