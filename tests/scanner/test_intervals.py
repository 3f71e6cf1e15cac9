"""The interval of a scan goes to other systems and comes back as it was."""

import json
from pathlib import Path

import numpy as np
import pytest

import taskuq as tq
from taskuq._io import read_json
from taskuq.cli.app import main
from taskuq.scan._state import Scan, load_scan
from taskuq.service._interval import _dicom_report, _interval_record, _read_report, write_interval
from taskuq.table._examples import SyntheticTable, synthetic_outputs

ROOT = Path(__file__).resolve().parents[2]


class Stored:
    """Measures numbers; the recovery makes the table's outputs of them."""

    def measure(self, round):
        return np.array([round + 1.0, 2.0])


@pytest.fixture(scope="module")
def scanned(tmp_path_factory):
    """The folder of a scan that has stopped early, with its policy."""
    folder = tmp_path_factory.mktemp("scan")
    table = synthetic_outputs(SyntheticTable(volumes=30), seed=0)
    policy = tq.plan(table, alpha=0.1, max_width=0.2, unit="case")
    case = next(k for k in range(table.cases) if policy.decide(0, table.outputs[:1, k]).stop)

    def recover(pieces, *, samples, seed):
        return table.outputs[len(pieces) - 1, case]

    tq.acquire(
        policy, Stored(), recover=recover, task=np.asarray, samples=table.samples, case="knee 7",
        scan_id="MR-7", state=folder / "scan.json",
    )  # fmt: skip
    policy.save(folder / "policy.json")
    return folder


@pytest.fixture
def record(scanned):
    main(["interval", str(scanned / "scan.json"), str(scanned / "policy.json"),
          "-o", str(scanned / "interval.json")])  # fmt: skip
    return read_json(scanned / "interval.json", "taskuq.interval/1")


@pytest.fixture
def image():
    """An MR image that travels with pydicom."""
    pytest.importorskip("highdicom", reason="the extra dicom is not installed")
    from pydicom.data import get_testdata_file

    return Path(get_testdata_file("MR_small.dcm"))


def test_the_record_keeps_its_published_schema(record, scanned):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "docs/schemas/interval.json").read_text())
    written = json.loads((scanned / "interval.json").read_text())

    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(written, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**written, "alpha": 2}, schema)


def test_the_record_is_what_the_scan_reported(record, scanned):
    scan = load_scan(scanned / "scan.json", tq.load_policy(scanned / "policy.json"))
    (task,) = record["tasks"]

    assert task["lower"] == float(scan.interval.lower)
    assert task["upper"] == float(scan.interval.upper)
    assert task["lower"] <= task["value"] <= task["upper"]
    assert record["scan_id"] == "MR-7"


def test_a_scan_that_goes_on_has_no_interval(scanned):
    with pytest.raises(tq.InputError, match="not finished"):
        _interval_record(Scan(), tq.load_policy(scanned / "policy.json"))


def test_a_dicom_report_needs_its_image(record, tmp_path):
    with pytest.raises(tq.InputError, match="give the image"):
        write_interval(record, tmp_path / "report.dcm")


def test_a_dicom_report_comes_back_and_refers_to_its_image(
    record, scanned, image, tmp_path, monkeypatch
):
    import pydicom

    main(["interval", str(scanned / "scan.json"), str(scanned / "policy.json"),
          "--image", str(image), "-o", str(tmp_path / "report.dcm")])  # fmt: skip
    (task,) = record["tasks"]
    found = _read_report(tmp_path / "report.dcm")[task["name"]]
    assert np.allclose(found, (task["value"], task["lower"], task["upper"]), atol=1e-12)

    report, shown = pydicom.dcmread(tmp_path / "report.dcm"), pydicom.dcmread(image)
    monkeypatch.setattr(pydicom.config.settings, "reading_validation_mode", pydicom.config.RAISE)
    assert "taskuq" in str(report)  # every element is read, and what is against the rules raises
    assert report.StudyInstanceUID == shown.StudyInstanceUID
    assert report.PatientID == shown.PatientID
    assert report.ContentTemplateSequence[0].TemplateIdentifier == "1500"
    evidence = report.CurrentRequestedProcedureEvidenceSequence[0].ReferencedSeriesSequence[0]
    assert evidence.ReferencedSOPSequence[0].ReferencedSOPInstanceUID == shown.SOPInstanceUID


def test_an_infinite_end_has_no_uncertainty(record, image, tmp_path):
    import pydicom

    (task,) = record["tasks"]
    open_ended = {**record, "tasks": [{**task, "upper": "inf"}]}
    report = _dicom_report(open_ended, pydicom.dcmread(image))
    report.save_as(tmp_path / "r.dcm", enforce_file_format=True)

    assert _read_report(tmp_path / "r.dcm")[task["name"]][2] == np.inf


@pytest.fixture
def of_a_group(tmp_path):
    """The folder of a service's scan of one slice, which belongs to a patient."""

    def scanned(small, serving, slices, number=5):
        from taskuq.service._replay import replay_scan

        policy = small.policy("group", width=0.4)
        policy.save(tmp_path / "policy.json")
        service = serving(policy=policy, monitor=tq.Monitor(policy))
        replay_scan(small.scan_of(number, slices=slices), "127.0.0.1", service.port)
        (state,) = (tmp_path / "states").glob("scan-*.json")
        return [str(state), str(tmp_path / "policy.json")]

    return scanned


def test_the_only_case_of_a_scan_need_not_be_named(of_a_group, small, serving, tmp_path):
    main(["interval", *of_a_group(small, serving, 1), "-o", str(tmp_path / "i.json")])
    assert json.loads((tmp_path / "i.json").read_text())["case"] == "patient-5-slice-0"


def test_one_of_several_cases_has_to_be_named(of_a_group, small, serving, tmp_path, capsys):
    given = of_a_group(small, serving, 2)
    with pytest.raises(SystemExit):
        main(["interval", *given, "-o", str(tmp_path / "i.json")])
    said = capsys.readouterr().err
    assert "patient-5-slice-0, patient-5-slice-1; say which by --case" in said
    main(["interval", *given, "--case", "patient-5-slice-1", "-o", str(tmp_path / "i.json")])


def test_an_image_of_another_patient_is_refused_unless_it_is_meant(
    of_a_group, small, serving, image, tmp_path, capsys
):
    given = [*of_a_group(small, serving, 1), "--image", str(image), "-o", str(tmp_path / "r.dcm")]
    with pytest.raises(SystemExit) as ended:
        main(["interval", *given])
    assert ended.value.code == 2
    assert "the scan is of patient patient-5 and" in capsys.readouterr().err
    assert not (tmp_path / "r.dcm").exists()
    main(["interval", *given, "--allow-patient-mismatch"])
    assert (tmp_path / "r.dcm").exists()


def test_an_image_that_a_json_file_cannot_refer_to_is_refused(record, image, tmp_path):
    with pytest.raises(tq.InputError, match="refers to no image; leave --image out"):
        write_interval(record, tmp_path / "r.json", image)
