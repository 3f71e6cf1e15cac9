"""A folder of volumes becomes a data set; what cannot be used is listed with its reason."""

import pickle
from dataclasses import replace
from multiprocessing import get_context

import h5py
import numpy as np
import pytest
import torch

from raising import refused
from taskuq.data._dataset import Dataset
from taskuq.data._fastmri import FastMRIDataset, _survey
from taskuq.data._volume import (
    AnnotationLabels,
    FastMRIPreprocessing,
    _Annotation,
    _Annotations,
    cached_coils,
    open_volume,
)
from taskuq.measure._coils import compression_matrix, rss
from taskuq.measure._fourier import ifft2c, project_measured

TEAR = _Annotation("file1000001", 1, False, (1, 2, 3, 4), "Meniscus Tear")


def test_an_item_is_the_cropped_compressed_scaled_slice(write_volume, small_preparation, tmp_path):
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


def test_the_scale_is_the_quantile_of_the_first_round_of_the_whole_volume(
    write_volume, small_preparation, tmp_path
):
    write_volume(slices=4)
    data = FastMRIDataset(tmp_path, small_preparation)
    zero_filled = torch.stack(
        [project_measured(item.image * item.scale, small_preparation.first_mask) for item in data]
    )
    assert data[0].scale == pytest.approx(np.quantile(zero_filled.abs().numpy(), 0.95), rel=1e-4)
    assert len({item.scale for item in data}) == 1


def test_full_compression_keeps_at_least_the_energy_of_measured_compression(
    write_volume, small_preparation, tmp_path
):
    write_volume()
    energy = {}
    for compression in ("measured", "full"):
        item = FastMRIDataset(tmp_path, replace(small_preparation, compression=compression))[0]
        energy[compression] = (rss(item.image * item.scale) ** 2).sum().item()
    assert energy["full"] >= energy["measured"] * (1 - 1e-6)


def test_the_published_rule_and_the_stated_rule_differ():
    published, stated = FastMRIPreprocessing(), FastMRIPreprocessing(slices="central-80")
    # 5 to 23, 6 to 27, 7 to 27, 7 to 31: where a fifth is whole, the float below it counts.
    assert [len(published.chosen_slices(n)) for n in (30, 35, 36, 40)] == [19, 22, 21, 25]
    assert [len(stated.chosen_slices(n)) for n in (30, 35, 36, 40)] == [24, 28, 29, 32]


def test_every_unusable_file_is_listed_with_its_reason(write_volume, small_preparation, tmp_path):
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


@pytest.mark.parametrize("fault", [{"coils": 4}, {"kspace": False}])
def test_strict_stops_at_a_fault_with_one_sentence(
    write_volume, small_preparation, tmp_path, fault
):
    write_volume("a.h5")
    write_volume("b.h5", **fault)
    with refused("file.format", "b.h5", "--strict"):
        _survey(tmp_path, small_preparation, strict=True)


def test_strict_does_not_mind_another_acquisition(write_volume, small_preparation, tmp_path):
    write_volume("a.h5")
    write_volume("b.h5", acquisition="CORPDFS_FBK")
    assert len(FastMRIDataset(tmp_path, small_preparation, strict=True).volumes) == 1


def test_a_folder_without_a_usable_volume_says_why(write_volume, small_preparation, tmp_path):
    with refused("file.missing", str(tmp_path)):
        FastMRIDataset(tmp_path, small_preparation)
    write_volume(coils=4)
    with refused("file.format", "4 coils"):
        FastMRIDataset(tmp_path, small_preparation)


def test_labels_come_from_the_annotations(write_volume, small_preparation, tmp_path):
    write_volume("file1000001.h5")
    write_volume("file1000002.h5")
    notes = _Annotations((TEAR,))
    assert FastMRIDataset(tmp_path, small_preparation, AnnotationLabels(notes)).labels.tolist() == [
        0,
        1,
        0,
        0,
        0,
        0,
    ]
    by_volume = FastMRIDataset(tmp_path, small_preparation, AnnotationLabels(notes, per="volume"))
    assert by_volume.labels.tolist() == [1, 1, 1, 0, 0, 0]
    listed = FastMRIDataset(
        tmp_path, small_preparation, AnnotationLabels(notes, files=frozenset({"file1000001"}))
    )
    assert set(listed.groups) == {"file1000001"}


def test_the_cache_gives_the_same_numbers_and_is_read(write_volume, small_preparation, tmp_path):
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


def test_another_configuration_has_another_cache(write_volume, small_preparation, tmp_path):
    volume, cache = open_volume(write_volume()[0]), tmp_path / "cache"
    for change in (
        {},
        {"compression": "full"},
        {"coils": 4},
        {"first_acceleration": 8},
        {"size": 24},
    ):
        fresh = replace(small_preparation, **change)
        assert cached_coils(volume, fresh, cache).scale == cached_coils(volume, fresh, None).scale
    assert len(list(cache.rglob("*.npz"))) == 5


def test_another_file_under_the_same_name_has_another_cache(
    write_volume, small_preparation, tmp_path
):
    cache, scales = tmp_path / "cache", []
    for seed in (0, 1):
        volume = open_volume(write_volume(seed=seed)[0])
        scales.append(cached_coils(volume, small_preparation, cache).scale)
    assert scales[0] != scales[1]


def test_a_volume_that_breaks_off_leaves_nothing_in_the_cache(
    write_volume, small_preparation, tmp_path
):
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


def test_many_workers_may_prepare_the_same_volume(write_volume, small_preparation, tmp_path):
    path, _ = write_volume()
    task = (open_volume(path), small_preparation, tmp_path / "cache")
    with get_context("spawn").Pool(2) as pool:
        found = pool.starmap(cached_coils, [task] * 4, chunksize=1)
    assert len({coils.scale for coils in found}) == 1
    assert [f.suffix for f in (tmp_path / "cache").rglob("*") if f.is_file()] == [".npz"]


def test_a_data_set_travels_to_dataloader_workers(write_volume, small_preparation, tmp_path):
    write_volume(slices=4)
    data = FastMRIDataset(tmp_path, small_preparation, cache=tmp_path / "cache")
    copy = pickle.loads(pickle.dumps(data))
    assert torch.equal(copy[2].image, data[2].image)
    loader = torch.utils.data.DataLoader(
        data, batch_size=4, num_workers=1, multiprocessing_context="spawn"
    )
    (batch,) = list(loader)
    assert batch.image.shape == (4, 8, 32, 32)
    assert batch.image.is_complex()
    assert list(batch.case) == [f"file1000001-{k}" for k in range(4)]
