"""The store gives what raw files give, to the bit or to rounding, and says when it cannot."""

import json
import os
import shutil
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest
import torch

from raising import refused
from taskuq.cli.data import prepare
from taskuq.data import _fastmri as fastmri
from taskuq.data import _fastmri as store
from taskuq.data._dataset import Subset, precision_of
from taskuq.data._fastmri import (
    FastMRIData,
    FastMRIDataset,
    _stored_slices,
    _StoredSlices,
    prepare_slices,
)
from taskuq.data._volume import FastMRIPreprocessing, Volume, open_volume
from taskuq.errors import MachineError
from taskuq.measure._coils import magnitude, rss

NETWORKS = {
    "varnet": "[network]\ncascades = 1\nwidth = 1\npools = 1\nsensitivity_width = 1\n"
    "sensitivity_pools = 1\n[measure]\naccelerations = [4, 2]\npublished = false\n",
    "classifier": "[network]\nhidden = [4]\n[network.backbone]\nkind = 'small'\nwidth = 4\n"
    "blocks = [1]\n[split]\ntrain = 0.5\ntune = 0.5\n[attack]\nradius = 0\n",
}


@pytest.fixture
def volumes(write_volume, tmp_path):
    """The folder of two volumes, of three and two slices."""
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
    """Let nobody read raw k-space."""

    def refuse(volume, index):
        raise AssertionError(f"raw k-space of {volume.name} was read")

    return lambda: monkeypatch.setattr(Volume, "kspace", refuse)


@pytest.mark.parametrize("combined", [False, True])
def test_single_precision_is_what_raw_files_give_to_the_bit(
    volumes, small_preparation, kept, no_kspace, combined
):
    raw = list(FastMRIDataset(volumes, small_preparation, combined=combined))
    cache = kept("single")
    no_kspace()
    data = FastMRIDataset(volumes, small_preparation, cache=cache, combined=combined, exact=True)

    assert (data.raw_because, data.precision, len(data)) == ("", "single", 5)
    for one, other in zip(raw, data, strict=True):
        assert torch.equal(one.image, other.image)
        assert one[1:] == other[1:]


def test_half_precision_rounds_each_number_and_nothing_else(volumes, small_preparation, kept):
    data = FastMRIDataset(volumes, small_preparation, cache=kept())
    for one, other in zip(FastMRIDataset(volumes, small_preparation), data, strict=True):
        raw, stored = torch.view_as_real(one.image), torch.view_as_real(other.image)
        # Eleven significant bits; below the smallest normal number, steps of 2⁻²⁴.
        assert ((raw - stored).abs() <= raw.abs() * 2**-11 + 2**-25).all()
        assert other.scale == one.scale
    assert data.precision == "half"
    assert precision_of(Subset(data, (0,))) == "half"


def test_half_precision_is_far_below_the_noise_at_full_size(tmp_path, write_volume):
    path, _ = write_volume("knee.h5", slices=1, height=640, width=368, recon=320)
    paper = FastMRIPreprocessing(slices="all")
    prepare_slices(open_volume(path), paper, tmp_path / "cache")
    raw, stored = (
        rss(FastMRIDataset(path.parent, paper, cache=cache)[0].image)
        for cache in (None, tmp_path / "cache")
    )

    assert 20 * torch.log10(raw.max() / (raw - stored).square().mean().sqrt()) > 80


def test_half_precision_moves_no_task_output_by_a_thousandth():
    pytest.importorskip("nilearn")
    from taskuq.data._atlas import Atlas
    from taskuq.task import load
    from taskuq.training._weights import locate

    coils = torch.stack([item.image for item in Atlas(patients=3, seed=5)])
    rounded = torch.view_as_complex(torch.view_as_real(coils).half().float())
    task = load(locate("classifier-atlas")).eval()
    with torch.no_grad():
        one, other = task(rss(coils)), task(rss(rounded))
    assert ((one > 0.1) & (one < 0.9)).sum() >= 8  # where a task is not certain anyway
    assert (one - other).abs().max() < 1e-3


def test_magnitudes_are_those_of_the_coils(volumes, small_preparation, kept):
    cache = kept()
    coils = FastMRIDataset(volumes, small_preparation, cache=cache)
    for one, other in zip(coils, FastMRIDataset(volumes, small_preparation, cache=cache, combined=True),
                          strict=True):  # fmt: skip
        assert torch.allclose(magnitude(one.image), other.image, rtol=2**-10, atol=1e-6)


def test_training_reads_a_store_that_rounds_and_judgement_does_not(volumes, kept, capsys):
    reader = FastMRIData(path=volumes, validation_path=volumes, size=32, minimum_width=32)
    at_16 = FastMRIPreprocessing(size=32, minimum_width=32, slices="all")
    reader = replace(reader, cache=kept("half", at_16))
    fastmri._said.clear()

    assert reader.open().precision == "half"
    assert capsys.readouterr().err == ""
    judged = reader.open_judged()
    reader.open_judged()
    said = capsys.readouterr().err.splitlines()
    assert judged.precision == "single"
    assert len(said) == 1
    assert "2 of 2 volumes cannot be taken from" in said[0]
    assert "file1 is kept in half precision, and is judged here" in said[0]
    assert "slices a second" in said[0]
    kept("single", at_16)
    assert reader.open_judged().raw_because == ""


def _touch(path):
    os.utime(path, ns=(1, 1))


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
    "another file": ("volumes/file2.h5", _other_content, "was made from another file"),
    "broken off": ("cache/*/file2.coils.npy", _cut, "is missing or breaks off"),
    "no array": ("cache/*/file2.magnitude.npy", os.unlink, "is missing or breaks off"),
    "an edited record": ("cache/*/file2.json", _edit, "SHA-256"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_store_that_lacks_a_volume_is_left_alone_with_the_reason(
    volumes, small_preparation, kept, tmp_path, fault
):
    cache = kept()
    where, break_, words = FAULTS[fault]
    (path,) = tmp_path.glob(where)
    break_(path)
    data = FastMRIDataset(volumes, small_preparation, cache=cache)

    assert data.raw_because.startswith(f"1 of 2 volumes cannot be taken from {cache}: ")
    assert words in data.raw_because
    assert data.precision == "single"
    kept()
    assert FastMRIDataset(volumes, small_preparation, cache=cache).raw_because == ""


def test_a_store_of_other_settings_is_not_taken(volumes, small_preparation, kept):
    cache = kept()
    for change in ({"coils": 4}, {"size": 24}, {"compression": "full"}, {"first_acceleration": 8}):
        data = FastMRIDataset(volumes, replace(small_preparation, **change), cache=cache)
        assert "which holds some that were prepared with other settings" in data.raw_because


def test_what_is_prepared_from_all_lines_is_read_where_that_is_asked_for(
    volumes, tmp_path, no_kspace, capsys
):
    size = {"size": 32, "minimum_width": 32}
    full = FastMRIData(path=volumes, compression="full", cache=tmp_path / "cache", **size)
    raw = list(full.open())
    prepare(volumes, cache=tmp_path / "cache", precision="single", compression="full", **size)
    no_kspace()
    data = full.open()

    assert data.raw_because == ""
    assert all(torch.equal(one.image, other.image) for one, other in zip(raw, data, strict=True))
    assert "other settings" in replace(full, compression="measured").open().raw_because


def test_a_copy_of_the_file_is_the_same_file(volumes, small_preparation, kept, no_kspace):
    cache = kept()
    for path in volumes.glob("*.h5"):
        _touch(path)
    no_kspace()
    assert FastMRIDataset(volumes, small_preparation, cache=cache)[0].image.shape == (8, 32, 32)


@pytest.mark.parametrize("array", ["coils", "magnitude"])
def test_a_flipped_bit_is_refused_with_its_slice(volumes, small_preparation, kept, array):
    cache = kept()
    (path,) = cache.rglob(f"file1.{array}.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # in the last of three slices
    path.write_bytes(content)
    data = FastMRIDataset(volumes, small_preparation, cache=cache, combined=array == "magnitude")

    assert data[1].image.isfinite().all()
    with refused("file.damaged", f"file1.{array}.npy", "slice 2"):
        data[2]


def test_numbers_of_another_type_are_refused_though_their_bytes_agree(
    volumes, small_preparation, kept
):
    (path,) = kept().rglob("file1.magnitude.npy")
    path.write_bytes(path.read_bytes().replace(b"<f2", b"<i2"))
    data = FastMRIDataset(volumes, small_preparation, cache=path.parents[1], combined=True)
    with refused("file.damaged"):
        data[0]


def test_what_was_interrupted_leaves_nothing_and_is_gone_on_with(
    volumes, small_preparation, tmp_path, monkeypatch, capsys
):
    cache, wrote = tmp_path / "cache", []
    small = {"size": 32, "minimum_width": 32, "cache": cache}
    read = store.cropped_coils

    def power_cut(volume, index, *others):
        if volume.name == "file2" and index == 1:
            raise KeyboardInterrupt
        wrote.append((volume.name, index))
        return read(volume, index, *others)

    monkeypatch.setattr(store, "cropped_coils", power_cut)
    with pytest.raises(KeyboardInterrupt):
        prepare(volumes, **small)
    assert {path.name for path in cache.rglob("*file2*")} <= {"file2.lock"} | {
        path.name for path in cache.rglob("file2-*.npz")
    }
    # As a kill would, which nothing can tidy up after.
    (left,) = (path.parent / ".file2.coils.npy.abc.partial" for path in cache.rglob("file1.json"))
    left.write_bytes(b"half")
    monkeypatch.setattr(store, "cropped_coils", read)
    wrote.clear()
    capsys.readouterr()
    prepare(volumes, **small)

    said = capsys.readouterr().err
    assert "2 of 2 files are used, 1 are in" in said
    assert "1/1 file2: 2 slices" in said
    assert "file1" not in said
    assert not left.exists()
    prepare(volumes, **small)
    assert "0 slices in half precision take 0 GB" in capsys.readouterr().err


def test_several_processes_prepare_side_by_side_and_the_same_volume_at_once(
    volumes, small_preparation, tmp_path
):
    cache = tmp_path / "cache"
    jobs = [(open_volume(p), small_preparation, cache) for p in sorted(volumes.glob("*.h5"))] * 2
    with get_context("spawn").Pool(2) as pool:
        found = pool.starmap(prepare_slices, jobs, chunksize=1)

    assert [one.sums for one in found[:2]] == [one.sums for one in found[2:]]
    assert not list(cache.rglob("*.partial"))
    assert FastMRIDataset(volumes, small_preparation, cache=cache).raw_because == ""


def test_half_does_not_take_the_place_of_single_but_single_of_half(
    volumes, small_preparation, kept
):
    for precision, expected in (("half", "half"), ("single", "single"), ("half", "single")):
        cache = kept(precision)
        found = _stored_slices(open_volume(volumes / "file1.h5"), small_preparation, cache)
        assert found.precision == expected


def test_what_the_disk_cannot_hold_is_not_begun(volumes, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=1000))
    with pytest.raises(MachineError, match=r"needs 0\.0001741 GB at .* the disk has 1e-06 GB free"):
        prepare(volumes, cache=tmp_path / "cache", size=32, min_lines=32)
    assert not (tmp_path / "cache").exists()


def test_numbers_beyond_half_precision_are_refused_and_single_holds_them(
    volumes, small_preparation, tmp_path, monkeypatch
):
    read = store.cropped_coils
    monkeypatch.setattr(store, "cropped_coils", lambda *given: read(*given) * 1e6)
    volume = open_volume(volumes / "file1.h5")
    with refused("value.nonfinite", "--precision single"):
        prepare_slices(volume, small_preparation, tmp_path / "cache")
    assert not list(tmp_path.rglob("file1.json"))
    assert isinstance(
        prepare_slices(volume, small_preparation, tmp_path / "cache", "single"), _StoredSlices
    )


def test_a_table_names_how_exact_its_images_were_and_is_not_gone_on_with_otherwise(
    volumes, kept, tmp_path, capsys
):
    from taskuq.cli.app import main
    from taskuq.table._table import TaskOutputs

    at_16 = FastMRIPreprocessing(size=32, minimum_width=32, slices="all")
    config, table = tmp_path / "run.toml", tmp_path / "table"
    config.write_text(
        f'part = "training"\nsamples = 1\n[measure]\naccelerations = [4, 2]\n[data]\n'
        f'kind = "fastmri"\npath = "{volumes}"\nsize = 32\nminimum_width = 32\nvalidation = 0.5\n'
        f'cache = "{tmp_path / "cache"}"\n'
    )
    run = ["run", str(config), "-o", str(table), "--device", "cpu"]
    main(run)
    made = TaskOutputs.load(table).provenance["configuration"]
    assert made["fingerprints"]["images"] == "single"
    kept("single", at_16)
    main(run)  # the same bits from the store
    shutil.rmtree(tmp_path / "cache")
    kept("half", at_16)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(run)
    assert "fingerprints.images was single, but now it is half" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["varnet", "classifier"])
def test_a_training_goes_on_with_images_as_exact_as_those_it_began_with(
    volumes, kept, tmp_path, capsys, kind
):
    from taskuq.cli.app import main

    at_16 = FastMRIPreprocessing(size=32, minimum_width=32, slices="all")
    config, folder = tmp_path / "config.toml", tmp_path / "run"
    (tmp_path / "knee.csv").write_text(
        "file,slice,study_level,x,y,width,height,label\n"
        "file1,0,No,1,1,5,5,Meniscus Tear\nfile2,0,No,1,1,5,5,Meniscus Tear\n"
    )
    config.write_text(
        NETWORKS[kind] + "[training]\nepochs = 1\nbatch = 2\n[data]\nkind = 'fastmri'\n"
        f"path = '{volumes}'\nsize = 32\nminimum_width = 32\nvalidation = 0.5\n"
        f"labels = '{tmp_path}/knee.csv'\ncache = '{tmp_path}/cache'\n"
    )
    train = ["train", kind, str(config), "-o", str(folder), "--accelerator", "cpu", "--no-progress"]
    main(train)
    kept("single", at_16)
    main(train)  # the same bits from the store
    shutil.rmtree(tmp_path / "cache")
    kept("half", at_16)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(train)
    assert "images.precision: single there, half here" in capsys.readouterr().err


def test_the_record_names_its_source_and_every_slice(volumes, kept):
    (path,) = kept().rglob("file1.json")
    record = json.loads(path.read_text())

    assert record["schema"] == "taskuq.slices/1"
    assert record["source"]["bytes"] == (volumes / "file1.h5").stat().st_size
    assert [len(record["sums"][name]) for name in ("coils", "magnitude")] == [3, 3]
    coils = np.load(path.with_name("file1.coils.npy"), mmap_mode="r")
    assert (coils.shape, coils.dtype) == ((3, 8, 32, 32, 2), np.float16)
