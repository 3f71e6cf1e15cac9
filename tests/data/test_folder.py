"""Pictures, NIfTI volumes and DICOM series are read with a table of labels."""

import gzip

import numpy as np
import pytest
from PIL import Image

from fuzz_files import write_dicom
from raising import refused
from taskuq.data._dataset import Dataset
from taskuq.data._folder import ImageFolder, _center_fit, _count_frames, _read_frame

PIXELS = np.arange(48, dtype=np.uint16).reshape(6, 8) * 100


@pytest.fixture
def table(tmp_path):
    def write(text, name="labels.csv"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def write_slice(path, pixels, number, series="1.2.3"):
    path.parent.mkdir(exist_ok=True)
    place = {"SeriesInstanceUID": series, "InstanceNumber": number}
    write_dicom(pixels, path, RescaleSlope=2.0, RescaleIntercept=-5.0, **place)


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_sixteen_bit_pictures_read_back_exactly(tmp_path, ending):
    Image.fromarray(PIXELS).save(tmp_path / f"a.{ending}")
    assert np.array_equal(_read_frame(tmp_path / f"a.{ending}", 0), PIXELS)


def test_a_colour_picture_is_refused(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    with refused("file.format", "a.png"):
        _read_frame(tmp_path / "a.png", 0)


def test_nifti_slices_are_rotated(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    volume = np.arange(60, dtype=np.float32).reshape(5, 4, 3)
    nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), tmp_path / "a.nii.gz")
    assert _count_frames(tmp_path / "a.nii.gz") == 3
    image = _read_frame(tmp_path / "a.nii.gz", 2)
    assert image.shape == (4, 5)
    assert np.array_equal(image[::-1].T, volume[:, :, 2])


def test_dicom_series_is_ordered_and_rescaled(tmp_path):
    pytest.importorskip("pydicom")
    write_slice(tmp_path / "series" / "b.dcm", PIXELS, 1)
    write_slice(tmp_path / "series" / "a.dcm", PIXELS + 1, 2)
    assert _count_frames(tmp_path / "series") == 2
    assert np.array_equal(_read_frame(tmp_path / "series", 0), PIXELS * 2.0 - 5)
    assert np.array_equal(_read_frame(tmp_path / "series", 1), (PIXELS + 1) * 2.0 - 5)


def test_two_series_in_one_folder_are_refused(tmp_path):
    pytest.importorskip("pydicom")
    write_slice(tmp_path / "two" / "a.dcm", PIXELS, 1, "1.2.3")
    write_slice(tmp_path / "two" / "b.dcm", PIXELS, 2, "1.2.4")
    with refused("file.format", "2 DICOM series"):
        _count_frames(tmp_path / "two")


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.nii", "a.dcm"])
def test_broken_file_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"nothing of the kind")
    with refused("file.format", name):
        _read_frame(tmp_path / name, 0)


def test_formats_can_be_mixed(tmp_path, table):
    nibabel = pytest.importorskip("nibabel")
    volume = np.full((8, 6, 2), 7, dtype=np.float32)
    nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), tmp_path / "v.nii")
    Image.fromarray(np.full((6, 8), 90, dtype=np.uint8)).save(tmp_path / "p.png")
    path = table("file,slice,label,group,site\nv.nii,,1,anna,A\np.png,,0,bert,B\n")
    data = ImageFolder(tmp_path, path)
    assert isinstance(data, Dataset)
    assert [item.case for item in data] == ["v.nii#0", "v.nii#1", "p.png"]
    assert data.groups.tolist() == ["anna", "anna", "bert"]
    assert data.labels.tolist() == [1, 1, 0]
    assert data.sites.tolist() == ["A", "A", "B"]
    assert [(item.scale, item.image.max().item()) for item in data] == [(7, 1), (7, 1), (90, 1)]


def test_groups_are_required_once(tmp_path, table):
    for name in ("a.png", "b.png"):
        Image.fromarray(PIXELS).save(tmp_path / name)
    bare = table("file,label\na.png,1\n")
    with refused("groups.missing"):
        ImageFolder(tmp_path, bare)
    assert ImageFolder(tmp_path, bare, group="image").groups.tolist() == ["a.png"]
    with refused("groups.missing"):
        ImageFolder(tmp_path, table("file,label,group,site\na.png,1,g,A\nb.png,1,g,\n"))
    with refused("option.conflict"):
        ImageFolder(tmp_path, table("file,label,group\na.png,1,g\n"), group="image")


@pytest.mark.parametrize(
    ("rows", "code", "word"),
    [
        ("a.png,maybe,g", "dtype.invalid", "maybe"),
        ("a.png,1,", "groups.missing", "line 2"),
        ("b.png,1,g", "file.missing", "b.png"),
        ("a.png,1,g\na.png,1,g", "table.duplicate", "a.png twice"),
        ("", "table.duplicate", "no image"),
        ("notes.txt,1,g", "file.format", "notes.txt"),
        ("a.png", "table.incomplete", "file or label"),  # a short row
        (",,", "table.incomplete", "file or label"),
        ("/etc/passwd,1,a", "file.missing", "relative to"),
        ("a\0b.png,1,a", "file.missing", "does not exist"),
        ("a" * 5000 + ".png,1,a", "file.format", "cannot be read"),
    ],
)
def test_wrong_tables_are_refused(tmp_path, table, rows, code, word):
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    (tmp_path / "notes.txt").write_text("text")
    with refused(code, word):
        ImageFolder(tmp_path, table(f"file,label,group\n{rows}\n"))


@pytest.mark.parametrize("size", [(5, 5), (6, 8), (7, 3), (12, 11)])
def test_fitting_keeps_the_centre(size):
    image = np.zeros((6, 8), dtype=np.float32)
    image[3, 4] = 1
    fitted = _center_fit(image, *size)
    assert fitted.shape == size
    assert np.argwhere(fitted).tolist() == [[size[0] // 2, size[1] // 2]]


def test_dicom_with_a_billion_frames_is_refused(tmp_path):
    write_dicom(np.zeros((16, 16), np.uint8), tmp_path / "a.dcm")
    content = (tmp_path / "a.dcm").read_bytes()
    assert _count_frames(tmp_path / "a.dcm") == 1
    place = content.index(b"\x28\x00\x08\x00IS") + 8
    number = (10).to_bytes(2, "little") + b"999999999 "
    (tmp_path / "a.dcm").write_bytes(content[: place - 2] + number + content[place + 2 :])
    with refused("file.damaged", "a.dcm"):
        _count_frames(tmp_path / "a.dcm")


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_volume_of_a_billion_slices_is_refused(tmp_path, ending):
    import nibabel

    header = nibabel.Nifti2Header()
    header.set_data_dtype(np.uint8)
    content = bytearray(header.binaryblock + bytes(4 + 64))
    content[16:80] = np.array([3, 10**6, 10**6, 1, 1, 1, 1, 1], "<i8").tobytes()
    packed = gzip.compress(content) if ending.endswith("gz") else content
    (tmp_path / f"a{ending}").write_bytes(packed)
    with refused("file.damaged", "would unpack to 1000 GB"):
        _count_frames(tmp_path / f"a{ending}")
