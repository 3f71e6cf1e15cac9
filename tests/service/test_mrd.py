"""MRD messages: lines of other kinds."""

import numpy as np
import pytest

from taskuq.service import _mrd as lines
from taskuq.service._mrd import ACQUISITION, HEADER, header_xml
from taskuq.service._replay import read_mrd

ismrmrd = pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")
BESIDE = [
    "IS_NOISE_MEASUREMENT", "IS_PARALLEL_CALIBRATION", "IS_NAVIGATION_DATA", "IS_PHASECORR_DATA",
    "IS_HPFEEDBACK_DATA", "IS_DUMMYSCAN_DATA", "IS_RTFEEDBACK_DATA",
    "IS_SURFACECOILCORRECTIONSCAN_DATA", "IS_PHASE_STABILIZATION",
    "IS_PHASE_STABILIZATION_REFERENCE",
]  # fmt: skip
UNFIT = [
    "IS_REVERSE", "COMPRESSION1", "COMPRESSION2", "COMPRESSION3", "COMPRESSION4",
    "kspace_encode_step_2", "average", "contrast", "phase", "repetition", "set",
    "encoding_space_ref",
]  # fmt: skip
FINE = ["IS_PARALLEL_CALIBRATION_AND_IMAGING", "FIRST_IN_SLICE", "LAST_IN_REPETITION", "segment"]


def marked(line, mark):
    if hasattr(line.idx, mark):
        setattr(line.idx, mark, 3)
    elif mark == "encoding_space_ref":
        line.encoding_space_ref = 2
    else:
        line.set_flag(getattr(ismrmrd, f"ACQ_{mark}"))
    return line


def test_noise_changes_no_decision(small, small_policy, serving, connect):
    scan, wire = small.scan_of(3, slices=1), connect(serving())
    wire.send(HEADER, header_xml(scan.header))
    for column in range(small.SIZE):
        for mark in BESIDE:
            noise = marked(scan.line(0, column), mark)
            noise.data[:] = 1
            wire.send(ACQUISITION, noise)
        mark = FINE[column % len(FINE)]
        wire.send(ACQUISITION, marked(scan.line(0, column), mark))
    decisions, _ = small.heard(wire)
    alone = small.acquired(small_policy, 3, 0).rounds
    assert [d["upper"] for d in decisions] == [r.to_dict()["upper"] for r in alone]
    assert [d["fault"] for d in decisions] == [None] * len(alone)


def test_noise_in_a_file_is_skipped(small, tmp_path):
    scan = small.scan_of(4, slices=1)
    with ismrmrd.Dataset(str(tmp_path / "scan.h5"), "dataset", create_if_needed=True) as file:
        file.write_xml_header(header_xml(scan.header).encode())
        for column in range(small.SIZE):
            for mark in (BESIDE + UNFIT)[column :: small.SIZE]:
                other = marked(scan.line(0, column), mark)
                other.data[:] = 1
                file.append_acquisition(other)
            file.append_acquisition(scan.line(0, column))
    assert np.array_equal(read_mrd(tmp_path / "scan.h5").kspace[0], scan.kspace[0])


def test_flags_equal_those_of_ismrmrd():
    named = {getattr(ismrmrd, f"ACQ_{name}") for name in BESIDE}
    assert named == set(lines.NON_IMAGING)
    assert lines.REVERSED == ismrmrd.ACQ_IS_REVERSE
    assert lines.CALIBRATION_AND_IMAGING == ismrmrd.ACQ_IS_PARALLEL_CALIBRATION_AND_IMAGING
