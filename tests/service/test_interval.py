import json
from pathlib import Path

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq._io import read_json
from taskuq.cli.app import main
from taskuq.scan._audit import read_audit_log
from taskuq.scan._state import Scan, load_scan
from taskuq.service._interval import _dicom_report, _interval_record, stored_interval
from taskuq.service._replay import format_summary, replay_scan, summarise
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
    pytest.importorskip("highdicom", reason="the extra dicom is not installed")
    from pydicom.data import get_testdata_file

    return Path(get_testdata_file("MR_small.dcm"))


def read_report(path):
    """Value, lower and upper end of each task of a DICOM report."""
    from highdicom import sr

    intervals = {}
    for group in sr.srread(path).content.get_image_measurement_groups():
        for one in group.get_measurements():
            reach = {"371886008": np.inf, "371885007": np.inf}
            for item in one[0].ContentSequence if "ContentSequence" in one[0] else ():
                code = item.ConceptNameCodeSequence[0].CodeValue
                if code in reach:
                    reach[code] = number(item)
            value, (above, below) = number(one[0]), reach.values()
            intervals[one.name.meaning] = (value, value - below, value + above)
    return intervals


def number(item):
    measured = item.MeasuredValueSequence[0]
    return float(measured.get("FloatingPointValue", measured.NumericValue))


def test_record_equals_the_scan_and_follows_its_schema(record, scanned):
    scan = load_scan(scanned / "scan.json", tq.load_policy(scanned / "policy.json"))
    (task,) = record["tasks"]
    assert (task["lower"], task["upper"]) == (scan.interval.lower, scan.interval.upper)
    assert task["lower"] <= task["value"] <= task["upper"]
    assert record["scan_id"] == "MR-7"
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "docs/schemas/interval.json").read_text())
    written = json.loads((scanned / "interval.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(written, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**written, "alpha": 2}, schema)


def test_unfinished_scan_has_no_interval(scanned):
    with refused("table.incomplete"):
        _interval_record(Scan(), tq.load_policy(scanned / "policy.json"))


def test_dicom_report_round_trip(record, scanned, image, tmp_path, monkeypatch):
    import pydicom

    main(["interval", str(scanned / "scan.json"), str(scanned / "policy.json"),
          "--image", str(image), "-o", str(tmp_path / "report.dcm")])  # fmt: skip
    (task,) = record["tasks"]
    found = read_report(tmp_path / "report.dcm")[task["name"]]
    assert np.allclose(found, (task["value"], task["lower"], task["upper"]), atol=1e-12)
    report, shown = pydicom.dcmread(tmp_path / "report.dcm"), pydicom.dcmread(image)
    monkeypatch.setattr(pydicom.config.settings, "reading_validation_mode", pydicom.config.RAISE)
    assert "taskuq" in str(report)  # every element is read, and what is against the rules raises
    assert report.StudyInstanceUID == shown.StudyInstanceUID
    assert report.PatientID == shown.PatientID
    assert report.ContentTemplateSequence[0].TemplateIdentifier == "1500"
    evidence = report.CurrentRequestedProcedureEvidenceSequence[0].ReferencedSeriesSequence[0]
    assert evidence.ReferencedSOPSequence[0].ReferencedSOPInstanceUID == shown.SOPInstanceUID


def test_infinite_end_has_no_uncertainty(record, image, tmp_path):
    import pydicom

    (task,) = record["tasks"]
    open_ended = {**record, "tasks": [{**task, "upper": "inf"}]}
    report = _dicom_report(open_ended, pydicom.dcmread(image))
    report.save_as(tmp_path / "r.dcm", enforce_file_format=True)
    assert read_report(tmp_path / "r.dcm")[task["name"]][2] == np.inf


@pytest.fixture
def of_a_group(tmp_path):
    """The folder of a service's scan of one slice, which belongs to a patient."""

    def scanned(small, serving, slices, number=5):
        policy = small.policy("group", width=0.4)
        policy.save(tmp_path / "policy.json")
        service = serving(policy=policy, monitor=tq.Monitor(policy))
        replay_scan(small.scan_of(number, slices=slices), "127.0.0.1", service.port)
        (state,) = (tmp_path / "states").glob("scan-*.json")
        return [str(state), str(tmp_path / "policy.json")]

    return scanned


def test_several_cases_need_case(of_a_group, small, serving, tmp_path, capsys):
    given = of_a_group(small, serving, 2)
    with pytest.raises(SystemExit):
        main(["interval", *given, "-o", str(tmp_path / "i.json")])
    said = capsys.readouterr().err
    assert "patient-5-slice-0, patient-5-slice-1; choose one with --case" in said
    main(["interval", *given, "--case", "patient-5-slice-1", "-o", str(tmp_path / "i.json")])


def test_image_of_another_patient_is_refused(of_a_group, small, serving, image, tmp_path, capsys):
    given = [*of_a_group(small, serving, 1), "--image", str(image), "-o", str(tmp_path / "r.dcm")]
    with pytest.raises(SystemExit) as ended:
        main(["interval", *given])
    assert ended.value.code == 2
    assert "the scan belongs to patient patient-5 but" in capsys.readouterr().err
    assert not (tmp_path / "r.dcm").exists()
    main(["interval", *given, "--allow-patient-mismatch"])
    assert (tmp_path / "r.dcm").exists()


pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")
HOST = "127.0.0.1"
VOID = "Nothing is promised: the policy was calibrated with other networks."


@pytest.fixture
def served(small, serving, tmp_path):
    """Play a scan against a service, and return what came of it with its folder and policy."""

    def scan(**options):
        policy = small.policy(width=0.15)
        policy.save(tmp_path / "policy.json")
        service = serving(policy=policy, **options)
        played = replay_scan(small.scan_of(5, slices=2), HOST, service.port)
        return played, sorted((tmp_path / "states").glob("scan-*.json")), policy

    return scan


def audited(tmp_path, capsys):
    main(["audit", str(tmp_path / "states" / "log.jsonl")])
    return capsys.readouterr().out


@pytest.mark.parametrize("lost", [None, "void", "withdrawn"])
def test_guarantee_is_exported_as_it_was(small, served, tmp_path, capsys, lost):
    monitor = None
    if lost == "withdrawn":
        monitor = tq.Monitor(small.policy(width=0.15), delta=0.4)
        monitor.update(np.full((1, 60, small.SAMPLES), 0.999))
        assert monitor.alarm
    played, states, policy = served(void=VOID if lost == "void" else None, monitor=monitor)
    why = {None: policy.statement, "void": VOID}.get(lost) or monitor.statement
    out = tmp_path / "i.json"
    main(["interval", str(states[0]), str(tmp_path / "policy.json"), "-o", str(out)])
    record, log = json.loads(out.read_text()), read_audit_log(tmp_path / "states" / "log.jsonl")
    assert (record["guaranteed"], record["guarantee"]) == (lost is None, why)
    assert {d["guarantee"] for d in played.decisions.values()} == {why}
    assert {line["void"] for line in log} == {why if lost else None}
    assert format_summary(summarise([played], 16))[1:] == ([why] if lost else [])
    assert audited(tmp_path, capsys).splitlines().count(f"  {why}") == (1 if lost else 0)


def test_shadow_scan_reports_no_stop(served, tmp_path, capsys):
    played, states, policy = served(shadow=True)
    found = summarise([played], 16)
    assert found["shadow"]
    assert (found["stopped_early"], found["would_stop_early"]) == (0, 2)
    assert found["lines_sent"] == found["lines_of_full_scans"]
    assert "2 would have stopped early" in format_summary(found)[0]
    assert load_scan(states[0], policy).rounds[-1].shadow
    assert stored_interval(states[0], policy)["reason"].startswith("would have stopped at R = ")
    said = audited(tmp_path, capsys)
    assert said.count("would have stopped at R = ") == 2
    assert "stop at R" not in said
    assert said.count("Shadow mode") == 1
