"""Commands of data: files, paths, refusals."""

import json

import h5py
import numpy as np
import pytest
from PIL import Image

from raising import refused
from taskuq.cli.data import atlas, atlas_base, check, masks, prepare, preview
from taskuq.data._arrays import read_npz
from taskuq.measure._masks import published_masks

SMALL = {"size": 32, "min_lines": 32, "slices": "all"}
NOTES = "file,slice,study_level,x,y,width,height,label\n"


def test_masks_are_written_with_a_picture(tmp_path, capsys):
    path = tmp_path / "masks.npz"
    masks(published=True, output=path)
    assert capsys.readouterr().out == f"{path}\n"
    with np.load(path) as file:
        assert np.array_equal(file["masks"], published_masks())
        assert file["accelerations"].tolist() == [16, 8, 4, 2]
    with Image.open(path.with_suffix(".png")) as picture:
        assert picture.size[0] > 500


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"accelerations": "16,eight"}, "value.invalid"),
        ({"published": True, "size": 128}, "option.conflict"),
        ({"output": "masks.txt"}, "file.format"),
        ({"output": "/"}, "file.format"),
    ],
)
def test_masks_refuse_bad_input(tmp_path, arguments, code):
    name = arguments.pop("output", "masks.npz")
    with refused(code):
        masks(output=tmp_path / name, **arguments)


def test_check_counts_used_and_skipped_files(write_volume, tmp_path, capsys):
    write_volume("file1000001.h5")
    write_volume("few.h5", coils=4)
    (tmp_path / "knee.csv").write_text(
        NOTES + "file1000001,1,No,1,2,3,4,Meniscus Tear\nfile1000001,x,No,1,2,3,4,Meniscus Tear\n"
    )
    check(tmp_path / "volumes", labels=tmp_path / "knee.csv", json="-", **SMALL)
    record = json.loads(capsys.readouterr().out)
    assert record["schema"] == "taskuq.data-check/1"
    skipped = {"4 coils, at least 9 are needed": 1}
    counts = {"files": 2, "used": 1, "groups": 1, "slices": 3, "positives": 1}
    assert record["summary"] == counts | {"skipped": skipped}
    assert record["notes"] == ["label row skipped: line 3: slice is 'x', not a number"]


def test_check_prints_reasons_on_narrow_terminals(write_volume, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    write_volume("few.h5", coils=4)
    write_volume("single.h5", coils=0)
    with refused("file.format", "4 coils, at least 9"):
        check(tmp_path / "volumes", **SMALL)
    printed = " ".join(capsys.readouterr().out.split())
    assert "few.h5 is skipped: 4 coils, at least 9 are needed" in printed
    assert "single.h5 is skipped: 1 coil, at least 9 are needed" in printed
    write_volume("good.h5", recon=36)
    check(tmp_path / "volumes", **SMALL)
    assert "36×36 (reconSpace) are cropped to 32×32" in " ".join(capsys.readouterr().out.split())


def test_prepare_fills_the_cache(write_volume, tmp_path, capsys):
    write_volume("good.h5", slices=1, coils=9, height=320, width=320)
    cache = tmp_path / "cache"
    prepare(tmp_path / "volumes", cache=cache)
    printed = capsys.readouterr()
    assert "0.00348 GB" in printed.err
    assert "good" in printed.err
    assert {p.suffix for p in cache.rglob("good*")} == {".npz", ".npy", ".json"}
    assert printed.out.startswith(str(cache))


def test_prepare_refuses_each_damaged_file_after_the_good_ones(write_volume, tmp_path, capsys):
    """A file cut off and one with NaN end alike, again too, and cost no other file."""
    cut, bad, _ = (write_volume(f"{name}.h5", slices=1)[0] for name in ("cut", "bad", "good"))
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    with h5py.File(bad, "r+") as file:
        file["kspace"][0, 0, 0, 0] = np.nan
    small = {"size": 32, "min_lines": 32, "cache": tmp_path / "cache"}
    for _ in range(2):
        with refused("file.damaged", "2 of 3 files", "cut.h5", "bad.h5"):
            prepare(tmp_path / "volumes", **small)
        printed = capsys.readouterr().err
        assert printed.count("bad.h5 has NaN in slice 0") == 1
        assert printed.count("cut.h5 cannot be opened as HDF5") == 1
    bad.unlink()
    with refused("file.damaged", "1 of 2 files"):
        prepare(tmp_path / "volumes", **small)
    assert [path.name for path in tmp_path.rglob("*.coils.npy")] == ["good.coils.npy"]


def test_atlas_is_written_and_previewed(tmp_path, capsys):
    pytest.importorskip("nilearn")
    base, path = tmp_path / "base.npz", tmp_path / "atlas.npz"
    atlas_base(output=base)
    atlas(patients=2, slices=3, size=48, base=base, output=path)
    preview(path, output=tmp_path / "sheet.png")
    preview(patients=1, size=48, outline=True, output=tmp_path / "drawn.png")
    assert len(read_npz(path)) == 6
    assert capsys.readouterr().out.split() == [
        str(p) for p in (base, path, tmp_path / "sheet.png", tmp_path / "drawn.png")
    ]


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({"labels": "x.csv", "group": "file"}, "--labels and --group"),
        ({"min_coils": 3}, "--min-coils"),
        ({"pathology": "Bone Bruise"}, "--pathology"),
    ],
)
def test_flags_with_a_configuration_are_refused(flags, names, tmp_path):
    np.savez(tmp_path / "d.npz", images=np.ones((2, 4, 4)), label=[0, 1], group=[0, 1])
    config = tmp_path / "d.toml"
    config.write_text(f'[data]\nkind = "npz"\npath = "{tmp_path / "d.npz"}"\n')
    check(config, strict=True)
    with refused("option.unused", names):
        check(config, **flags)
