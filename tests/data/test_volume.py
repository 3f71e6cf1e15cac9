"""fastMRI volumes and annotations."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from raising import refused
from taskuq.cli import app
from taskuq.cli.data import check
from taskuq.data._volume import _Annotation, _Header, open_volume, read_annotations


@pytest.mark.parametrize(
    "size",
    [
        {"slices": 3, "coils": 4, "height": 33, "width": 31},
        {"slices": 1, "coils": 1, "height": 8, "width": 7},
    ],
)
def test_kspace_reads_back_bit_for_bit(write_volume, size):
    path, kspace = write_volume(recon=6, **size)
    volume = open_volume(path)
    assert {name: getattr(volume, name) for name in size} == size
    for index in range(size["slices"]):
        assert volume.kspace(index).tobytes() == kspace[index].tobytes()


def test_header_without_namespace_or_fields(write_volume):
    volume = open_volume(write_volume(header=False, acquisition=None)[0])
    assert (volume.encoded_lines, volume.acquisition) == (None, "")
    size = "<matrixSize><x>5</x><y>6</y><z>7</z></matrixSize>"
    xml = f"<h><encoding><encodedSpace>{size}</encodedSpace></encoding></h>"
    assert _Header.read(xml).encoded_lines == 6
    assert _Header.read(xml.replace("<y>6</y>", "<y>many</y>")).encoded_lines is None
    with refused("file.format"):
        _Header.read("<h><encoding>")


PUBLISHED = Path(__file__).resolve().parents[2] / "../shared/data/fastmri_plus"
published = pytest.mark.skipif(not PUBLISHED.exists(), reason="the fastMRI+ files are not here")
HEAD = "file,slice,study_level,x,y,width,height,label\n"


@published
def test_published_counts_of_the_knee_file():
    notes = read_annotations(PUBLISHED / "knee.csv")
    tears = notes.positive_slices("Meniscus Tear")
    assert len(notes.rows) == 16167
    assert len(tears) == 663
    assert sum(len(slices) for slices in tears.values()) == 4858


def test_study_level_rows_label_the_volume(tmp_path):
    path = tmp_path / "notes.csv"
    path.write_text(HEAD + "a,0,Yes,,,,,Normal for age\nb,3,No,1,2,3,4,Mass\n")
    notes = read_annotations(path)
    assert {row.file for row in notes.of("Normal for age")} == {"a"}
    assert notes.positive_slices("Normal for age") == {}
    assert notes.positive_slices("mass") == {"b": {3}}
    with refused("choice.unknown", "Mass, Normal for age"):
        notes.positive_slices("Masses")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a,x,No,1,2,3,4,Mass", "slice is 'x', not a number"),
        ("a,-1,No,1,2,3,4,Mass", "slice is -1, below 0"),
        ("a,1,Perhaps,1,2,3,4,Mass", "study_level is 'Perhaps'"),
        ("a,1,No,1,,3,4,Mass", "y is '', not a number"),
        (",1,No,1,2,3,4,Mass", "file or label is empty"),
        ("a,1,No", "file or label is empty"),
    ],
)
def test_unreadable_rows_are_listed(tmp_path, row, reason):
    path = tmp_path / "notes.csv"
    path.write_text(HEAD + "a,1,No,1,2,3,4,Mass\n" + row + "\n")
    notes = read_annotations(path)
    assert len(notes.rows) == 1
    assert notes.unreadable[0].startswith(f"line 3: {reason}")
    path.write_text("file,label\na,Mass\n")
    with refused("table.column", "height"):
        read_annotations(path)


def test_boxes_are_flipped():
    # A mark in row 5 of a 10-row image is seen in row 4 of the flipped one.
    rows, columns = _Annotation("a", 0, False, (2, 4, 3, 1), "Mass").rows_and_columns(10)
    assert (rows, columns) == (slice(5, 6), slice(2, 5))
    outside = _Annotation("a", 0, False, (2, -1, 3, 4), "Mass").rows_and_columns(10)
    assert outside[0] == slice(7, 10)


def test_kspace_group_or_bomb_is_refused(tmp_path):
    with h5py.File(tmp_path / "group.h5", "w") as file:
        file.create_group("kspace")
    with h5py.File(tmp_path / "large.h5", "w") as file:
        file.create_dataset("kspace", (1000, 100, 640, 640), np.complex64, chunks=(1, 1, 64, 64))
    with refused("file.format", "no dataset kspace"):
        open_volume(tmp_path / "group.h5")
    with refused("file.damaged", "would unpack to 327.7 GB"):
        open_volume(tmp_path / "large.h5")


def test_heap_in_which_hdf5_loops_is_refused(write_volume):
    path, _ = write_volume(slices=1)
    content = bytearray(path.read_bytes())
    size = content.index(b"GCOL") + 24  # of its first entry, which now ends in unused zeros
    content[size : size + 8] = (3000).to_bytes(8, "little")
    path.write_bytes(content)
    with refused("file.format", "an entry of its global heap has no size"):
        open_volume(path)


def test_kspace_with_nan_is_not_used(tmp_path, capsys):
    with h5py.File(tmp_path / "file1.h5", "w") as file:
        values = np.ones((2, 9, 8, 8), np.complex64)
        values[1, 0, 0, 0] = np.nan
        file["kspace"] = values
    words = ["--acquisition", "", "--min-lines", "8", "--size", "8", "--slices", "all"]
    with refused("file.format", "NaN in slice 1"):
        check(tmp_path, strict=True, acquisition="", min_lines=8, size=8, slices="all")
    for option, used in (("--no-strict", 0), ("--quick", 1)):
        status = 0
        try:
            app.main(["data", "check", str(tmp_path), *words, option, "--json", "-"])
        except SystemExit as ended:
            status = ended.code
        assert json.loads(capsys.readouterr().out)["summary"]["used"] == used
        assert bool(status) == (used == 0)
