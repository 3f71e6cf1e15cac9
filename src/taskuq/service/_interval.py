"""Interval of a scan as JSON and DICOM SR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import taskuq
from taskuq._io import (
    atomic_write,
    fingerprint,
    number_from_json,
    read_json,
    to_json_value,
    write_json,
)
from taskuq.errors import InputError, first_line
from taskuq.policy._policy import Policy
from taskuq.scan._state import SCHEMA as STATE
from taskuq.scan._state import GroupScan, Scan, format_reason, load_scan

SCHEMA = "taskuq.interval/1"
# Coding scheme of concepts without a DICOM code.
SCHEME = "99TASKUQ"


def _interval_record(scan: Scan, policy: Policy, *, scan_id: str | None = None) -> dict[str, Any]:
    """Return the interval of a finished scan as JSON values."""
    if not scan.is_finished:
        raise InputError("the scan is not finished; resume it first", code="table.incomplete")
    last = scan.rounds[-1]
    x = np.asarray(last.outputs, dtype=float).reshape(len(last.outputs), -1)
    ends = np.atleast_1d(last.lower), np.atleast_1d(last.upper)
    values = np.clip(x.mean(axis=0), *ends)
    return {
        "schema": SCHEMA,
        "scan_id": scan_id,
        "case": last.case,
        "tasks": [
            to_json_value({"name": name, "value": float(v), "lower": float(a), "upper": float(b)})
            for name, v, a, b in zip(policy.task_names, values, *ends, strict=True)
        ],
        "known": last.acceleration == 1,
        "alpha": policy.alpha,
        "guaranteed": policy.is_guaranteed and scan.void_reason is None,
        "guarantee": scan.void_reason or policy.statement,
        "round": last.round,
        "acceleration": to_json_value(float(last.acceleration)),
        "reason": format_reason(last.reason, shadow=last.shadow),
        "policy": fingerprint(policy.to_dict()),
        "version": taskuq.__version__,
    }


def stored_interval(state: Path, policy: Policy, case: str | None = None) -> dict[str, Any]:
    """Return the interval of a stored scan as JSON values."""
    scan, record = load_scan(state, policy), read_json(state, STATE)
    cases = scan.cases if isinstance(scan, GroupScan) else {str(record["cases"][0]): scan}
    chosen = next(iter(cases)) if case is None and len(cases) == 1 else case
    if chosen is None or chosen not in cases:
        names = ", ".join(cases)
        text = f"{state} has the cases {names:.300}; choose one with --case"
        raise InputError(text, code="option.missing")
    return _interval_record(cases[chosen], policy, scan_id=record.get("scan_id"))


def scan_patient(state: Path) -> str | None:
    """Return the patient of a stored scan, or None."""
    patient = read_json(state, STATE).get("patient")
    return None if patient is None else str(patient)


def write_interval(
    record: dict[str, Any], path: Path, image: Path | None = None, *, patient: str | None = None
) -> Path:
    """Write an interval as a DICOM structured report (.dcm) or as JSON."""
    if path.suffix != ".dcm":
        if image is not None:
            text = f"{path} is JSON; remove --image or use a .dcm name"
            raise InputError(text, code="option.unused")
        return write_json(path, record, private=True)
    if image is None:
        text = f"{path} is DICOM and refers to an image; use --image"
        raise InputError(text, code="option.missing")
    import pydicom

    try:
        dataset = pydicom.dcmread(image)
    except Exception as error:
        text = f"{image} cannot be read as DICOM ({first_line(error):.120})"
        raise InputError(text, code="file.format") from None
    other = str(dataset.get("PatientID", ""))
    if patient is not None and other != patient:
        raise InputError(
            f"the scan belongs to patient {patient:.60} but {image} to "
            f"{other or 'no patient':.60}; use the matching image, or --allow-patient-mismatch",
            code="policy.mismatch",
        )
    report = _dicom_report(record, dataset)
    with atomic_write(path, private=True) as partial:
        report.save_as(partial, enforce_file_format=True)
    return path


def _dicom_report(record: dict[str, Any], image: Any) -> Any:
    """Return an interval as a DICOM SR (TID 1500)."""
    import highdicom as hd
    from highdicom import sr
    from pydicom.sr.codedict import codes

    measurements = []
    for task in record["tasks"]:
        value = float(task["value"])
        above, below = (abs(number_from_json(task[end]) - value) for end in ("upper", "lower"))
        properties = sr.MeasurementProperties(
            upper_measurement_uncertainty=above if np.isfinite(above) else None,
            lower_measurement_uncertainty=below if np.isfinite(below) else None,
        )
        text = str(task["name"])
        name = sr.CodedConcept(fingerprint(text)[:16], SCHEME, text[:64])
        measurements.append(
            sr.Measurement(name, value=value, unit=codes.UCUM.NoUnits, properties=properties)
        )
    group = sr.MeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(hd.UID(), str(record["case"])[:64]),
        algorithm_id=sr.AlgorithmIdentification(
            name="taskuq",
            version=record["version"],
            parameters=[f"{name}: {record[name]}" for name in ("guarantee", "reason", "policy")],
        ),
        measurements=measurements,
        source_images=[sr.SourceImageForMeasurementGroup(image.SOPClassUID, image.SOPInstanceUID)],
    )
    device = sr.DeviceObserverIdentifyingAttributes(uid=hd.UID(), name="taskuq")
    content = sr.MeasurementReport(
        observation_context=sr.ObservationContext(
            observer_device_context=sr.ObserverContext(codes.DCM.Device, device)
        ),
        procedure_reported=sr.CodedConcept("18748-4", "LN", "Diagnostic imaging study"),
        imaging_measurements=[group],
        title=codes.DCM.ImagingMeasurementReport,
    )
    return sr.EnhancedSR(
        evidence=[image],
        content=content[0],
        series_number=9000,
        series_instance_uid=hd.UID(),
        sop_instance_uid=hd.UID(),
        instance_number=1,
        manufacturer="taskuq",
        is_complete=True,
    )
