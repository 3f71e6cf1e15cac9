"""fastMRI+ rows are read, counted as published, and unreadable ones are listed."""

from pathlib import Path

import pytest

from raising import refused
from taskuq.data._volume import _Annotation, read_annotations, read_file_list

PUBLISHED = Path(__file__).resolve().parents[2] / "../shared/data/fastmri_plus"
published = pytest.mark.skipif(not PUBLISHED.exists(), reason="the fastMRI+ files are not here")
HEAD = "file,slice,study_level,x,y,width,height,label\n"


@published
def test_the_counts_of_the_knee_file_are_the_published_ones():
    notes = read_annotations(PUBLISHED / "knee.csv", strict=True)
    tears = notes.positive_slices("Meniscus Tear")
    assert len(notes.rows) == 16167
    assert len(tears) == 663
    assert sum(len(slices) for slices in tears.values()) == 4858


@published
def test_every_annotated_volume_is_on_the_list():
    for part in ("knee", "brain"):
        notes = read_annotations(PUBLISHED / f"{part}.csv", strict=True)
        assert {row.file for row in notes.rows} <= read_file_list(
            PUBLISHED / f"{part}_file_list.csv"
        )


def test_rows_about_a_volume_label_the_volume_and_no_slice(tmp_path):
    path = tmp_path / "notes.csv"
    path.write_text(HEAD + "a,0,Yes,,,,,Normal for age\nb,3,No,1,2,3,4,Mass\n")
    notes = read_annotations(path)
    assert notes.positive_volumes("Normal for age") == {"a"}
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
def test_an_unreadable_row_is_listed_or_stops(tmp_path, row, reason):
    path = tmp_path / "notes.csv"
    path.write_text(HEAD + "a,1,No,1,2,3,4,Mass\n" + row + "\n")
    notes = read_annotations(path)
    assert len(notes.rows) == 1
    assert notes.unreadable[0].startswith(f"line 3: {reason}")
    with refused("file.format", "line 3"):
        read_annotations(path, strict=True)


def test_a_file_with_other_columns_is_refused(tmp_path):
    path = tmp_path / "notes.csv"
    path.write_text("file,label\na,Mass\n")
    with refused("table.column", "height"):
        read_annotations(path)


def test_a_box_is_flipped_back_into_the_stored_image():
    # A mark in row 5 of a 10-row image is seen in row 4 of the flipped one.
    rows, columns = _Annotation("a", 0, False, (2, 4, 3, 1), "Mass").rows_and_columns(10)
    assert (rows, columns) == (slice(5, 6), slice(2, 5))
    outside = _Annotation("a", 0, False, (2, -1, 3, 4), "Mass").rows_and_columns(10)
    assert outside[0] == slice(7, 10)
