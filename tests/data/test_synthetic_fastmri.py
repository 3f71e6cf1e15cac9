"""Synthetic volumes in the format of fastMRI."""

import h5py
import numpy as np
import pytest

from taskuq.data._synthetic_fastmri import (
    FINDING,
    UNIT,
    FastMRILayout,
    _make_volume,
    _patient,
    _SyntheticVolume,
    make_fastmri,
)
from taskuq.data._volume import open_volume, read_annotations

SMALL = FastMRILayout(height=80, width=72, coils=9, recon=64)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    make_fastmri(folder, training=(2, 6), validation=(1, 5), layout=SMALL)
    return folder


def test_default_layout_is_the_published_one(tmp_path):
    _make_volume(_SyntheticVolume(tmp_path / "file1000000.h5", slices=1, number=0), FastMRILayout())
    volume = open_volume(tmp_path / "file1000000.h5")
    assert (volume.coils, volume.height, volume.width) == (15, 640, 368)
    assert volume.encoded_lines == 368
    assert volume.acquisition == "CORPD_FBK"
    with h5py.File(volume.path) as file:
        assert sorted(file) == ["ismrmrd_header", "kspace", "reconstruction_rss"]
        assert sorted(file.attrs) == ["acquisition", "max", "norm", "patient_id"]
        assert (file["kspace"].dtype, file["reconstruction_rss"].dtype) == ("c8", "f4")


def test_reference_is_the_rss_of_the_coils(made):
    volume = open_volume(made / "knee_multicoil_train/file1000001.h5")
    shifted = np.fft.ifftshift(volume.kspace(2), axes=(-2, -1))
    images = np.fft.fftshift(np.fft.ifft2(shifted, norm="ortho"), axes=(-2, -1))
    seen = np.sqrt((np.abs(images) ** 2).sum(0))[8:72, 4:68]
    with h5py.File(volume.path) as file:
        reference = file["reconstruction_rss"][2]
    error = np.linalg.norm(seen - reference) / np.linalg.norm(reference)
    assert error < 0.15
    assert 0.1 * UNIT < reference.max() < 10 * UNIT


def test_only_lines_not_acquired_are_zero(made):
    volume = open_volume(made / "knee_multicoil_train/file1000000.h5")
    first, end = SMALL.acquired
    is_zero = (volume.kspace(0) == 0).all(axis=(0, 1))
    assert is_zero.tolist() == [k < first or k >= end for k in range(72)]


def test_boxes_enclose_the_lesions(made):
    notes = read_annotations(made / "knee.csv")
    lesions = _patient(_SyntheticVolume(made, slices=6, number=1), 64).lesion
    rows = [row for row in notes.rows if row.file == "file1000001" and row.label == FINDING]
    assert rows
    for row in rows:
        inside = np.zeros((64, 64), dtype=bool)
        inside[row.rows_and_columns(64)] = True
        lesion = lesions[row.slice_index]
        assert (inside | ~lesion).all()
        assert inside.sum() == _box(lesion)


def _box(lesion):
    return (np.ptp(np.flatnonzero(lesion.any(1))) + 1) * (np.ptp(np.flatnonzero(lesion.any(0))) + 1)
