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
            to_json_value(
                {"name": name, "value": float(v), "lower": float(low), "upper": float(high)}
            )
            for name, v, low, high in zip(policy.task_names, values, *ends, strict=True)
        ],
        "known": last.acceleration == 1,
        "alpha": policy.alpha,
        "guaranteed": policy.is_guaranteed and scan.void_reason is None,
        "promise": scan.void_reason or policy.statement,
        "round": last.round,
        "acceleration": to_json_value(float(last.acceleration)),
        "reason": format_reason(last.reason, shadow=last.shadow),
        "policy": fingerprint(policy.to_dict()),
        "version": taskuq.__version__,
    }


def stored_interval(state: Path, policy: Policy, case: str | None = None) -> dict[str, Any]:
    """Return the interval of a stored scan as JSON values."""
    scan, record = load_scan(state, policy), _read_state(state)
    cases = scan.cases if isinstance(scan, GroupScan) else {str(record["cases"][0]): scan}
    chosen = next(iter(cases)) if case is None and len(cases) == 1 else case
    if chosen is None or chosen not in cases:
        got = "" if case is None else f", got {case:.60}"
        raise InputError(
            f"{state} has the cases {', '.join(cases):.300}; choose one with --case{got}",
            code="option.missing",
        )
    return _interval_record(cases[chosen], policy, scan_id=record.get("scan_id"))


def scan_patient(state: Path) -> str | None:
    """Return the patient of a stored scan, or None."""
    patient = _read_state(state).get("patient")
    return None if patient is None else str(patient)


def _read_state(state: Path) -> dict[str, Any]:
    return read_json(state, "taskuq.acquisition/1", remedy="start a new scan")


def write_interval(
    record: dict[str, Any], path: Path, image: Path | None = None, *, patient: str | None = None
) -> Path:
    """Write an interval as a DICOM structured report (.dcm) or as JSON."""
    if path.suffix != ".dcm":
        if image is not None:
            raise InputError(
                f"{path} is JSON, which refers to no image; remove --image or use a .dcm name",
                code="option.unused",
            )
        return write_json(path, record)
    if image is None:
        raise InputError(
            f"{path} is a DICOM report, which refers to an image; use --image",
            code="option.missing",
        )
    dataset = _read_dicom(image)
    other = str(dataset.get("PatientID", ""))
    if patient is not None and other != patient:
        raise InputError(
            f"the scan belongs to patient {patient:.60} but {image} to "
            f"{other or 'no patient':.60}; use the matching image, or --allow-patient-mismatch",
            code="policy.mismatch",
        )
    report = _dicom_report(record, dataset)
    with atomic_write(path) as partial:
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
        measurements.append(
            sr.Measurement(
                name=sr.CodedConcept(
                    fingerprint(str(task["name"]))[:16], SCHEME, str(task["name"])[:64]
                ),
                value=value,
                unit=codes.UCUM.NoUnits,
                properties=properties,
            )
        )
    group = sr.MeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(
            uid=hd.UID(), identifier=str(record["case"])[:64]
        ),
        algorithm_id=sr.AlgorithmIdentification(
            name="taskuq",
            version=record["version"],
            parameters=[
                f"promise: {record['promise']}",
                f"reason: {record['reason']}",
                f"policy: {record['policy']}",
            ],
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


def _read_dicom(image: Path) -> Any:
    import pydicom

    try:
        return pydicom.dcmread(image)
    except Exception as error:
        raise InputError(
            f"{image} cannot be read as DICOM ({first_line(error):.120})", code="file.format"
        ) from None
