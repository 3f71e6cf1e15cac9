"""fastMRI files read back bit for bit, whatever their size and whatever they lack."""

import numpy as np
import pytest

from raising import refused
from taskuq.data._volume import _read_header, _VolumeHeader, open_volume


@pytest.mark.parametrize(
    "size",
    [
        {"slices": 2, "coils": 15, "height": 640, "width": 368},
        {"slices": 3, "coils": 4, "height": 33, "width": 31},
        {"slices": 1, "coils": 1, "height": 8, "width": 7},
    ],
)
def test_kspace_and_reference_read_back_bit_for_bit(write_volume, size):
    path, kspace = write_volume(recon=6, **size)
    volume = open_volume(path)
    assert {name: getattr(volume, name) for name in size} == size
    for index in range(size["slices"]):
        assert volume.kspace(index).tobytes() == kspace[index].tobytes()
        assert np.array_equal(volume.reconstruction_rss(index), np.abs(kspace[index, 0, :6, :6]))


def test_attributes_and_header_are_read(write_volume):
    volume = open_volume(write_volume("file1000052.h5", height=48, width=40, recon=32)[0])
    assert (volume.name, volume.acquisition, volume.patient) == ("file1000052", "CORPD_FBK", "0a1b")
    # Half of 40 lines less a centre at 18: 2 lines of padding before, 36 acquired ones.
    assert volume.header == _VolumeHeader((48, 40, 1), (32, 32, 1), (2, 38))


def test_missing_fields_are_missing_and_not_guessed(write_volume):
    volume = open_volume(write_volume(header=False, acquisition=None, rss=False)[0])
    assert volume.header == _VolumeHeader()
    assert volume.acquisition == ""
    with refused("file.format", "reconstruction_rss"):
        volume.reconstruction_rss(0)


def test_a_header_without_limits_still_has_its_sizes():
    size = "<matrixSize><x>5</x><y>6</y><z>7</z></matrixSize>"
    xml = f"<h><encoding><encodedSpace>{size}</encodedSpace></encoding></h>"
    assert _read_header(xml) == _VolumeHeader(encoded_size=(5, 6, 7))
    assert _read_header(xml.replace("<y>6</y>", "<y>many</y>")) == _VolumeHeader()
    with refused("file.format"):
        _read_header("<h><encoding>")


def test_a_truncated_file_is_refused_in_one_sentence(write_volume):
    path, _ = write_volume()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with refused("file.format", str(path)):
        open_volume(path)


def test_a_file_without_kspace_is_refused(write_volume):
    with refused("file.format", "kspace"):
        open_volume(write_volume(kspace=False)[0])


def test_a_slice_out_of_range_is_an_index_error(write_volume):
    with pytest.raises(IndexError):
        open_volume(write_volume(slices=2)[0]).kspace(2)
