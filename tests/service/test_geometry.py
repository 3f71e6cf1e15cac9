"""Header and line variants: accepted ones equal acquire, all others are refused by name."""

import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.measure._mri import combine_columns
from taskuq.service import _mrd as mrd
from taskuq.service._interval import stored_interval
from taskuq.service._mrd import HEADER, Geometry, header_xml, remove_oversampling
from taskuq.service._replay import read_mrd, replay_scan
from taskuq.service._session import policy_geometry
from taskuq.table._examples import SyntheticTable, synthetic_outputs

ismrmrd = pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")
xsd = pytest.importorskip("ismrmrd.xsd")
SIZE = 16


def put(path, value):
    """Return a change of one field of a document, e.g. "encoding.0.reconSpace.matrixSize.y"."""

    def change(document):
        *parents, name = path.split(".")
        for parent in parents:
            document = document[int(parent)] if parent.isdigit() else getattr(document, parent)
        setattr(document, name, value)

    return change


def both(*changes):
    return lambda document: [change(document) for change in changes]


ENCODED, RECON = "encoding.0.encodedSpace.", "encoding.0.reconSpace."
LIMITS = "encoding.0.encodingLimits."


def limit(name, minimum, maximum, center=0):
    value = xsd.limitType(minimum=minimum, maximum=maximum, center=center)
    return put(LIMITS + name, value)


def parallel(one=1, two=1, **more):
    factor = xsd.accelerationFactorType(kspace_encoding_step_1=one, kspace_encoding_step_2=two)
    given = xsd.parallelImagingType(accelerationFactor=factor, **more)
    return put("encoding.0.parallelImaging", given)


def fov(axis, factor, spaces=(ENCODED, RECON)):
    value = factor * {"x": SIZE, "y": SIZE, "z": 1}[axis]
    return both(*(put(f"{space}fieldOfView_mm.{axis}", float(value)) for space in spaces))


def encodings(number):
    return lambda document: setattr(document, "encoding", number * document.encoding)


MULTIBAND = xsd.multibandType(
    spacing=[], deltaKz=1.0, multiband_factor=2, calibration_encoding=0,
    calibration=xsd.multibandCalibrationType.FULL3_D,
)  # fmt: skip
DESCRIPTION = xsd.trajectoryDescriptionType(identifier="ramp")
MATRIX = "matrixSize."
ID, PATIENT = "measurementInformation.measurementID", "subjectInformation.patientID"
ONE = ("kspace_encoding_step_2", "average", "contrast", "phase", "set")
REFUSED_HEADERS = {
    **{f"trajectory {t.value}": ("trajectory", put("encoding.0.trajectory", t))
       for t in xsd.trajectoryType if t.value != "cartesian"},
    "description": ("trajectoryDescription", put("encoding.0.trajectoryDescription", DESCRIPTION)),
    "3-D": ("encodedSpace.matrixSize.z", both(put(ENCODED + MATRIX + "z", 4),
            put(RECON + MATRIX + "z", 4), limit("kspace_encoding_step_2", 0, 3, 2))),
    "3-D encoded": ("encodedSpace.matrixSize.z", put(ENCODED + MATRIX + "z", 2)),
    "3-D shown": ("reconSpace.matrixSize.z", put(RECON + MATRIX + "z", 2)),
    "no partition": ("encodedSpace.matrixSize.z", put(ENCODED + MATRIX + "z", 0)),
    "recon y half": ("reconSpace.matrixSize.y", put(RECON + MATRIX + "y", 8)),
    "recon y twice": ("reconSpace.matrixSize.y", put(RECON + MATRIX + "y", 32)),
    "recon x": ("reconSpace.matrixSize.x", put(RECON + MATRIX + "x", 12)),
    "recon x zero": ("reconSpace.matrixSize.x", put(RECON + MATRIX + "x", 0)),
    "recon x interpolated": ("reconSpace.matrixSize.x", put(RECON + MATRIX + "x", 32)),
    "threefold": ("reconSpace.matrixSize.x", put(ENCODED + MATRIX + "x", 48)),
    "fewer samples": ("matrixSize", both(put(ENCODED + MATRIX + "x", 8),
                      put(RECON + MATRIX + "x", 8))),
    "fewer lines": ("matrixSize.y", both(put(ENCODED + MATRIX + "y", 12),
                    put(RECON + MATRIX + "y", 12), limit("kspace_encoding_step_1", 0, 11, 6))),
    "half is shown": ("matrixSize", both(put(RECON + MATRIX + "x", 8), fov("x", 0.5, [RECON]))),
    **{f"fov {a} {f}": ("fieldOfView_mm", fov(a, f)) for a in "xyz" for f in (0.8, 1.3)},
    **{f"fov encoded {a}": (f"encodedSpace.fieldOfView_mm.{a}", fov(a, 1.1, [ENCODED]))
       for a in "xyz"},
    **{f"fov shown {a}": (f"fieldOfView_mm.{a}", fov(a, 1.1, [RECON])) for a in "xyz"},
    **{f"fov {v}": ("reconSpace.fieldOfView_mm.y", put(RECON + "fieldOfView_mm.y", v))
       for v in (0.0, -16.0, float("nan"), float("inf"))},
    "oversampled, narrow": ("encodedSpace.fieldOfView_mm.x", put(ENCODED + MATRIX + "x", 32)),
    "no limits": ("kspace_encoding_step_1", put(LIMITS + "kspace_encoding_step_1", None)),
    **{f"step 1 {v}": ("kspace_encoding_step_1", limit("kspace_encoding_step_1", *v))
       for v in ((1, 15, 8), (0, 14, 8), (0, 11, 4), (4, 15, 8), (0, 31, 16), (0, 15, 7),
                 (0, 15, 0), (0, 15, 9), (0, 16, 8), (0, 11, 8), (100, 115, 108), (15, 0, 8))},
    **{f"step 0 {v}": ("kspace_encoding_step_0", limit("kspace_encoding_step_0", *v))
       for v in ((0, 15, 4), (4, 15, 8), (0, 11, 8), (0, 31, 8), (0, 16, 8), (0, 31, 15))},
    **{f"{name} {v}": (name, limit(name, *v)) for v in ((0, 1), (1, 1), (1, 0)) for name in ONE},
    **{f"{space[11:]}{axis} {n}": ("reconSpace.matrixSize", put(space + MATRIX + axis, n))
       for space in (ENCODED, RECON) for axis in "xy" for n in (15, 17)},
    "zero-padded": ("reconSpace.matrixSize.y", both(put(RECON + MATRIX + "x", 24),
                    put(RECON + MATRIX + "y", 24))),
    "phase oversampling": ("reconSpace.matrixSize.y", both(put(RECON + MATRIX + "y", 8),
                           fov("y", 0.5, [RECON]))),
    "65,536 slices": ("65536 slices", limit("slice", 0, 2**16 - 1)),
    "not accelerated": ("accelerationFactor.kspace_encoding_step_1", parallel(0)),
    **{f"bandwidth {v}": ("relativeReceiverNoiseBandwidth",
                          put("acquisitionSystemInformation.relativeReceiverNoiseBandwidth", v))
       for v in (-1.0, float("nan"), float("inf"))},
    "blank name": ("measurementID", put(ID, "  ")),
    **{f"{name} {v}": (f"encodingLimits.{name}", limit(name, *v))
       for name in ("slice", "repetition", "segment") for v in ((1, 2), (0, -1))},
    "accelerated": ("accelerationFactor.kspace_encoding_step_1", parallel(2)),
    "accelerated 3-D": ("accelerationFactor.kspace_encoding_step_2", parallel(1, 2)),
    "multiband": ("multiband", parallel(multiband=MULTIBAND)),
    "two encodings": ("encoding", encodings(2)),
    "no encoding": ("encoding", encodings(0)),
    **{f"{n} coils": ("receiverChannels", put("acquisitionSystemInformation.receiverChannels", n))
       for n in (0, 1, 3, None)},
    "no system": ("receiverChannels", put("acquisitionSystemInformation", None)),
    "no name but a study's": ("measurementID", both(put("measurementInformation", None),
        put("studyInformation", xsd.studyInformationType(accessionNumber=77)))),
    "long name": ("measurementID", put(ID, "x" * 257)),
    "newline in name": ("measurementID", put(ID, "MR\n1")),
    "right to left": ("measurementID", put(ID, "MR\u202e1")),
    "escape in patient": ("patientID", put(PATIENT, "a\x85b")),
}  # fmt: skip
# Changes of the text: numbers that are none, and fields that are renamed, repeated or missing.
REFUSED_TEXTS = {
    **{f"x {x}": ("matrixSize", "<x>16</x>", f"<x>{x}</x>") for x in ("16.0", "0x10", "-16", "")},
    "x twice": ("x)", "<x>16</x>", "<x>16</x><x>32</x>"),
    "comma": ("fieldOfViewMm.x", "<x>16.0</x>", "<x>16,0</x>"),
    "renamed": ("matrixsize", "matrixSize>", "matrixsize>"),
    "capital": ("trajectory", "cartesian", "Cartesian"),
    "entity": ("entities", r"\?>", '?><!DOCTYPE a [<!ENTITY b "c">]>'),
    "no XML": ("cannot be read", "(?s).+", "hello"),
    "unknown": ("shim", "<encoding>", "<shim>3</shim><encoding>"),
    **{f"no {name}": (name, f"(?s)<{name}>.*</{name}>", "")
       for name in ("encodedSpace", "reconSpace", "encodingLimits", "trajectory")},
    **{f"{name} twice": (name, f"(?s)(<{name}>.*</{name}>)", r"\1\1")
       for name in ("reconSpace", "trajectory", "measurementID", "kspace_encoding_step_1")},
}  # fmt: skip
REPEATED = xsd.limitType(minimum=0, maximum=2, center=0)
ACCEPTED_HEADERS = {
    "plain": lambda document: None,
    "fov within tolerance": fov("x", 1.005),
    "thickness within tolerance": fov("z", 0.995),
    "rounded encoded fov": fov("y", 1.004, [ENCODED]),
    "step 0": limit("kspace_encoding_step_0", 0, 15, 8),
    "repetitions": put(LIMITS + "repetition", REPEATED),
    "segments": put(LIMITS + "segment", REPEATED),
    "one contrast": limit("contrast", 0, 0),
    "no slice limit": put(LIMITS + "slice", None),
    "step 0 of oversampled lines": limit("kspace_encoding_step_0", 0, 31, 16),
    **{f"centre of one {name}": limit(name, 0, 0, 5) for name in (*ONE, "slice")},
    "user limits": put(LIMITS + "user_3", REPEATED),
    **{f"calibration {m.value}": parallel(calibrationMode=m) for m in xsd.calibrationModeType},
    "echo times": put("sequenceParameters", xsd.sequenceParametersType(TE=[2.0, 4.0])),
    "coil labels": put("acquisitionSystemInformation.coilLabel",
                       [xsd.coilLabelType(coilNumber=k, coilName="C") for k in (1, 0)]),
    "user parameters": put("userParameters", xsd.userParametersType(
        userParameterLong=[xsd.userParameterLongType(name="EmbeddedRefLinesE1", value=8)])),
    "bandwidth": put("acquisitionSystemInformation.relativeReceiverNoiseBandwidth", 0.79),
    "factor 1": parallel(),
    "echo train": put("encoding.0.echoTrainLength", 8),
    "sequence": put("sequenceParameters", xsd.sequenceParametersType(TR=[5.0])),
    "field strength": put("acquisitionSystemInformation.systemFieldStrength_T", 3.0),
    "table": put("measurementInformation.initialSeriesNumber", 3),
}  # fmt: skip


def mark(name, value, only=None):
    """Return a change of a field of all lines, or of one of them."""

    def change(line):
        if only not in (None, line.idx.kspace_encode_step_1):
            return line
        if name.startswith("ACQ_"):
            line.set_flag(getattr(ismrmrd, name))
        elif hasattr(line.idx, name):
            setattr(line.idx, name, value)
        elif isinstance(value, tuple):
            getattr(line, name)[: len(value)] = value
        else:
            setattr(line, name, value)
        return line

    return change


def resized(samples, coils=2, trajectory=0):
    def change(line):
        line.resize(samples, coils, trajectory)
        line.center_sample = samples // 2
        return line

    return change


def undefined(line):
    line._head.flags |= 1 << 40
    return line


FIRST, COUNTERS = 8, ("kspace_encode_step_2", "average", "contrast", "phase", "repetition", "set")
REFUSED_LINES = {
    **{f"{name} {v}": (name, mark(name, v))
       for name in ("discard_pre", "discard_post") for v in (1, 4)},
    **{f"centre {v}": ("center_sample", mark("center_sample", v)) for v in (0, 4, 7, 9, 15)},
    **{f"{n} samples": ("number_of_samples", resized(n)) for n in (8, 15, 17, 24, 48)},
    **{f"{n} channels": ("active_channels", resized(SIZE, n)) for n in (1, 3)},
    "coordinates": ("trajectory_dimensions", resized(SIZE, 2, 2)),
    "space": ("encoding_space_ref", mark("encoding_space_ref", 1)),
    "reversed": ("ACQ_IS_REVERSE", mark("ACQ_IS_REVERSE", 1)),
    "compressed": ("ACQ_COMPRESSION", mark("ACQ_COMPRESSION2", 1)),
    "undefined flag": ("flags", undefined),
    **{name: (name, mark(name, 1)) for name in (*COUNTERS, "slice")},
    "line beyond": ("kspace_encode_step_1", mark("kspace_encode_step_1", SIZE)),
    **{f"one {name}": (name, mark(name, (0.0, 1.0, 0.5), only=FIRST))
       for name in ("position", "read_dir", "phase_dir", "slice_dir", "patient_table_position")},
    "version": ("version", mark("version", 2)),
    "one channel mask": ("channel_mask", mark("channel_mask", (12,), only=FIRST)),
    "one time that is none": ("sample_time_us", mark("sample_time_us", float("nan"), only=FIRST)),
    "one measurement": ("measurement_uid", mark("measurement_uid", 7, only=FIRST)),
    "one dwell time": ("sample_time_us", mark("sample_time_us", 2.5, only=FIRST)),
}  # fmt: skip
ACCEPTED_LINES = {
    "segment": mark("segment", 3),
    "user flag": mark("ACQ_USER3", 1),
    "first and last": mark("ACQ_LAST_IN_SLICE", 1),
    "imaging calibration": mark("ACQ_IS_PARALLEL_CALIBRATION_AND_IMAGING", 1),
    "counter": mark("scan_counter", 99),
    "time": mark("acquisition_time_stamp", 1234),
    "user numbers": mark("user_int", (3, 4)),
    "table": mark("patient_table_position", (0.0, 0.0, -3.0)),
    "oblique": mark("read_dir", (0.6, 0.8, 0.0)),
    "position": mark("position", (1.0, 2.0, 3.0)),
    "dwell time": mark("sample_time_us", 5.0),
    "version 0": mark("version", 0),
    "channel mask": mark("channel_mask", (3,)),
    "available channels": mark("available_channels", 64),
    "last of all": mark("ACQ_LAST_IN_MEASUREMENT", 1),
    "heart beat": mark("physiology_time_stamp", (12, 0, 0)),
}


def lines_of(scan, change=lambda line: line):
    return [change(scan.line(0, column)) for column in range(SIZE)]


def changed(scan, change):
    document = xsd.CreateFromDocument(header_xml(scan.header))
    change(document)
    return document.toXML()


def require_equal(images, rounds):
    """Require the decisions of acquire, bit for bit."""
    assert not any(one["undecided"] for one in images)
    assert [(d["lower"], d["upper"], d["would_stop"] == "true", d["fault"]) for d in images] == [
        (r.to_dict()["lower"], r.to_dict()["upper"], r.stop, None) for r in rounds
    ]
    assert all(one["guaranteed"] for one in images)


@pytest.mark.parametrize("name", [*REFUSED_HEADERS, *REFUSED_TEXTS])
def test_other_headers_are_refused_by_field(small, serving, connect, name):
    scan, service = small.scan_of(3, slices=1), serving()
    field, *change = REFUSED_HEADERS.get(name) or REFUSED_TEXTS[name]
    if name in REFUSED_HEADERS:
        xml = changed(scan, *change)
    else:
        xml, count = re.subn(*change, header_xml(scan.header))
        assert count
    images, texts = small.answers(connect(service), xml, lines_of(scan))
    require_undecided(images, field)
    assert field in json.loads(texts[0])["message"]
    assert service.counts["refused scans"] == 1


def require_undecided(images, field):
    assert images
    for one in images:
        assert (one["undecided"], one["decision"]) == (True, "continue")
        assert (one["guaranteed"], one["lower"]) == (False, None)
        assert field in one["fault"]


@pytest.mark.parametrize("name", REFUSED_LINES)
def test_other_lines_are_refused_by_field(small, serving, connect, name):
    field, change = REFUSED_LINES[name]
    scan = small.scan_of(3, slices=1)
    # Whatever arrives first sets position and times, and the first round needs the changed line.
    lines = sorted(lines_of(scan), key=lambda line: line.idx.kspace_encode_step_1 == FIRST)
    lines = [change(line) for line in lines]
    assert FIRST in small.COLUMNS[0]
    service = serving()
    images, texts = small.answers(connect(service), header_xml(scan.header), lines)
    require_undecided(images, field)
    assert service.counts["refused lines"] == (1 if name.startswith("one ") else SIZE)
    assert any(field in json.loads(text)["message"] for text in texts)


@pytest.mark.parametrize("name", [*ACCEPTED_HEADERS, *ACCEPTED_LINES])
def test_accepted_variants_equal_acquire(small, small_policy, serving, connect, name):
    scan = small.scan_of(3, slices=1)
    header = ACCEPTED_HEADERS.get(name, lambda document: None)
    lines = lines_of(scan, ACCEPTED_LINES.get(name, lambda line: line))
    xml = changed(scan, header)
    images, _ = small.answers(connect(serving()), xml, lines)
    require_equal(images, small.acquired(small_policy, 3, 0).rounds)


class Oversampled:
    """The scanner of a slice whose rows are twice as wide, with a bright outside."""

    def __init__(self, small, seed=0):
        rng = np.random.default_rng(seed)
        outside = rng.standard_normal((2, 2, SIZE, SIZE))
        wide = np.concatenate([outside[0], outside[1]], axis=1).astype(complex)
        wide[:, SIZE // 2 : SIZE // 2 + SIZE] = small.image(1030).numpy()
        shifted = np.fft.ifftshift(wide, axes=(-2, -1))
        self.wide = np.fft.fftshift(np.fft.fft2(shifted), axes=(-2, -1)).astype("c8") / SIZE
        self.small = small

    def measure(self, round):
        columns = self.small.COLUMNS[round]
        lines = [remove_oversampling(self.wide[..., c], SIZE) for c in columns]
        return {"columns": columns, "kspace": np.stack(lines, axis=-1)}

    def combine(self, pieces):
        return combine_columns(pieces, (2, SIZE, SIZE), self.small.RATES)

    def line(self, column):
        line = ismrmrd.Acquisition.from_array(np.ascontiguousarray(self.wide[..., column]))
        line.idx.kspace_encode_step_1, line.center_sample = column, SIZE
        return line


@pytest.mark.parametrize("convention", ["encoded 2N", "encoded N"])
def test_oversampling_is_removed_in_both_conventions(
    small, small_policy, serving, connect, convention
):
    scanner, scan = Oversampled(small), small.scan_of(3, slices=1)
    header = replace(scan.header, oversampling=2 if convention == "encoded 2N" else 1)
    lines = [scanner.line(column) for column in range(SIZE)]
    images, _ = small.answers(connect(serving()), header_xml(header), lines)
    alone = tq.acquire(small_policy, scanner, recover=small.recover, task=small.task,
                       samples=small.SAMPLES, case="patient-3-slice-0")  # fmt: skip
    require_equal(images, alone.rounds)
    # What is outside the field of view has no influence.
    assert np.allclose(
        alone.rounds[-1].outputs, small.acquired(small_policy, 3, 0).rounds[-1].outputs, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("oversampling", "samples", "centre", "field"),
    [
        (2, 16, 8, "number_of_samples 16; 32 is needed"),
        (2, 32, 12, "center_sample"),
        (1, 32, 15, "center_sample"),
        (1, 64, 32, "number_of_samples"),
    ],
)
def test_other_oversampling_is_refused(
    small, serving, connect, oversampling, samples, centre, field
):
    scan = small.scan_of(3, slices=1)
    change = both(resized(samples), mark("center_sample", centre))
    lines = lines_of(scan)
    for line in lines:
        change(line)
    xml = header_xml(replace(scan.header, oversampling=oversampling))
    images, _ = small.answers(connect(serving()), xml, lines)
    require_undecided(images, field)


@pytest.mark.parametrize("samples", [1, 2, 7, 16, 33])
def test_removal_of_oversampling_is_the_crop_of_the_row(samples):
    rng = np.random.default_rng(samples)
    row = rng.standard_normal((3, 2 * samples)) + 1j * rng.standard_normal((3, 2 * samples))
    positions = np.arange(2 * samples) - samples
    # A sample at frequency k / 2N, by its definition.
    wide = row @ np.exp(-2j * np.pi * np.outer(positions, positions) / (2 * samples))
    inner = np.arange(samples) - samples // 2
    cropped = row[:, samples - samples // 2 :][:, :samples]
    line = cropped @ np.exp(-2j * np.pi * np.outer(inner, inner) / samples)
    assert np.allclose(remove_oversampling(wide, samples), line, rtol=1e-4, atol=1e-4)
    only = np.zeros_like(row)
    only[:, samples - samples // 2 :][:, :samples] = cropped
    decimated = only @ np.exp(-2j * np.pi * np.outer(positions, 2 * inner) / (2 * samples))
    assert np.allclose(line, decimated)


GEOMETRY = {"coils": 8, "matrix": [16, 16], "field_of_view": [16.0, 16.0, 1.0]}


@pytest.fixture
def of_eight_coils(small):
    policy = small.policy(width=0.15)
    return replace(policy, provenance={**policy.provenance, "geometry": GEOMETRY})


def test_allowed_mismatch_voids_the_guarantee(small, serving, of_eight_coils, tmp_path):
    with refused("policy.mismatch", "receiverChannels is 2", "8"):
        strict = serving(policy=of_eight_coils, geometry=Geometry())
        replay_scan(small.scan_of(5), "127.0.0.1", strict.port)
    service = serving(policy=of_eight_coils, geometry=Geometry(), allow_mismatch=True)
    played = replay_scan(small.scan_of(5, slices=1), "127.0.0.1", service.port)
    (state,) = (tmp_path / "states").glob("scan-*.json")
    assert "receiverChannels" in played.decisions[0]["guarantee"]
    assert not played.decisions[0]["guaranteed"]
    assert not stored_interval(state, of_eight_coils)["guaranteed"]


def test_policy_records_geometry():
    table = synthetic_outputs(SyntheticTable(volumes=20), seed=0)
    planned = partial(tq.plan, alpha=0.2, max_width=0.2)
    policy = planned(replace(table, provenance={"configuration": {"geometry": GEOMETRY}}))
    recorded, differ = policy_geometry(policy, Geometry(coils=4, prewhitened=True))
    assert recorded == Geometry(8, (16, 16), (16.0, 16.0, 1.0), prewhitened=True)
    assert ["coils 8" in one for one in differ] == [True]
    unknown, _ = policy_geometry(planned(table), Geometry(coils=4))
    assert unknown.unrecorded == ["matrix", "field_of_view"]
    broken = replace(policy, provenance={"geometry": {"coils": "eight"}})
    with refused("config.type"):
        policy_geometry(broken, Geometry())


def noise_scan(rng, mixing, samples=256, dwell=5.0):
    draws = rng.standard_normal((2, samples, 2)) @ np.array([1, 1j])
    line = ismrmrd.Acquisition.from_array((mixing @ draws).astype(np.complex64))
    line.set_flag(ismrmrd.ACQ_IS_NOISE_MEASUREMENT)
    line.sample_time_us = dwell
    return line


def test_prewhitened_noise_has_unit_variance():
    rng, mixing = np.random.default_rng(0), np.array([[2.0, 0.5j], [0.3, 1.0]])
    whitening = mrd.Prewhitening(bandwidth=1.0)
    for _ in range(4):
        whitening.add(noise_scan(rng, mixing))
    # A readout of half the dwell time has twice the variance.
    line = noise_scan(rng, np.sqrt(2) * mixing, samples=8192, dwell=2.5)
    white = whitening.apply(line)
    covariance = white @ white.conj().T / white.shape[1]
    assert np.allclose(covariance, 2 * np.eye(2), atol=0.2)


def test_noise_prewhitens_only_a_prewhitened_policy(
    small, small_policy, serving, connect, tmp_path
):
    rng, scan = np.random.default_rng(0), small.scan_of(3, slices=1)
    lines = [noise_scan(rng, np.eye(2)), *lines_of(scan, mark("sample_time_us", 2.5))]
    xml = header_xml(scan.header)
    images, texts = small.answers(connect(serving()), xml, lines)
    require_equal(images, small.acquired(small_policy, 3, 0).rounds)
    assert any("skipped: noise" in text for text in texts)
    geometry = replace(small.GEOMETRY, prewhitened=True)
    prewhitened = serving(geometry=geometry, folder=tmp_path / "white")
    white, _ = small.answers(connect(prewhitened), xml, lines)
    assert [one["undecided"] for one in white] == [False] * len(white)
    assert white[0]["lower"] != images[0]["lower"]
    again = serving(geometry=geometry, folder=tmp_path / "without")
    none, texts = small.answers(connect(again), xml, lines[1:])
    require_undecided(none, "noise scans")
    timeless = serving(geometry=geometry, folder=tmp_path / "timeless")
    none, _ = small.answers(connect(timeless), xml, [lines[0], *lines_of(scan)])
    require_undecided(none, "sample_time_us")
    # A file is sent as it was measured.
    stored = read_mrd(small.file_of(tmp_path / "scan.h5", xml, lines))
    filed = serving(geometry=geometry, folder=tmp_path / "file")
    played = replay_scan(stored, "127.0.0.1", filed.port)
    assert played.decisions[0]["lower"] == white[-1]["lower"]


@pytest.mark.parametrize("name", ["position", "twice", "samples"])
def test_unlike_lines_of_a_file_are_refused(small, tmp_path, name):
    scan = small.scan_of(4, slices=1)
    lines = lines_of(scan)
    if name == "position":
        lines[FIRST].position[0] = 9
    elif name == "samples":
        lines[FIRST] = Oversampled(small).line(FIRST)
    else:
        lines.append(scan.line(0, FIRST))
        lines[-1].data[:] *= 2
    path = small.file_of(tmp_path / "scan.h5", header_xml(scan.header), lines)
    with refused("shape.mismatch", name):
        read_mrd(path)


def test_second_header_must_be_the_same(small, serving, connect):
    scan, wire = small.scan_of(3, slices=1), connect(serving())
    small.begin(wire, scan)
    wire.send(HEADER, header_xml(replace(scan.header, slices=2)))
    images, _ = small.replies(wire)
    require_undecided(images, "another header")


def test_stratum_comes_from_the_header(small, serving, connect):
    policy = small.policy(width=0.1)
    strata = {"knee": policy.thresholds, "brain": tuple(t - 0.01 for t in policy.thresholds)}
    policy = replace(policy, strata=strata)
    service = serving(policy=policy, monitor=tq.Monitor(policy))
    scan = small.scan_of(3, slices=1)
    for given in ([], ["foot"], ["knee", "brain"], ["knee"], ["brain"]):
        strings = [xsd.userParameterStringType(name=mrd.STRATUM, value=s) for s in given]
        parameters = xsd.userParametersType(userParameterString=strings)
        change = both(put("userParameters", parameters), put(ID, f"MR {given}"))
        images, _ = small.answers(connect(service), changed(scan, change), lines_of(scan))
        if given in (["knee"], ["brain"]):
            alone = small.acquired(policy, 3, 0, stratum=given[0], monitor=tq.Monitor(policy))
            require_equal(images, alone.rounds)
        else:
            require_undecided(images, f"userParameters.{mrd.STRATUM}")
    states = service.model.folder.glob("scan-*.json")
    assert {stored_interval(path, policy)["policy"] for path in states} == {policy.fingerprint}
    with refused("policy.mismatch", "strata"):
        tq.Monitor(policy.for_stratum("knee"))


BESIDE = [
    "NOISE_MEASUREMENT", "PARALLEL_CALIBRATION", "NAVIGATION_DATA", "PHASECORR_DATA",
    "HPFEEDBACK_DATA", "DUMMYSCAN_DATA", "RTFEEDBACK_DATA", "SURFACECOILCORRECTIONSCAN_DATA",
    "PHASE_STABILIZATION", "PHASE_STABILIZATION_REFERENCE",
]  # fmt: skip


def test_lines_outside_the_image_change_no_decision(small, small_policy, serving, connect):
    scan, lines = small.scan_of(3, slices=1), []
    for column in range(SIZE):
        for name in BESIDE:
            other = mark(f"ACQ_IS_{name}", 1)(scan.line(0, column))
            # Those that correct phases are often reversed.
            other = mark("ACQ_IS_REVERSE", 1)(other)
            other.data[:] = 1
            lines.append(other)
        lines.append(scan.line(0, column))
    images, _ = small.answers(connect(serving()), header_xml(scan.header), lines)
    require_equal(images, small.acquired(small_policy, 3, 0).rounds)
