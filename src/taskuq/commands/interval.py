"""taskuq interval: write the interval of a stored scan for other systems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from taskuq.commands.terminal import show


def interval(
    state: Path,
    policy: Path,
    /,
    *,
    case: str | None = None,
    image: Path | None = None,
    other_patient: bool = False,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("interval.json"),
) -> None:
    """Write the interval of a finished scan as JSON, or as a DICOM structured report.

    Arguments:
        state: The state of the scan, as acquire or serve keeps it.
        policy: The policy's file.
        case: Which case of a scan of several, e.g. patient-3000-slice-0; the only one otherwise.
        image: The DICOM image that the report is about.
        other_patient: Take an image whose PatientID is not what the scan calls its patient: the
            report is filed under the image's.
        output: Where to write: a DICOM report for a name that ends in .dcm, JSON otherwise.
    """
    from taskuq.decide.policy import load_policy
    from taskuq.runs.intervals import patient_of, stored_interval, write_interval

    record = stored_interval(state, load_policy(policy), case)
    patient = None if other_patient else patient_of(state)
    show(str(write_interval(record, output, image, patient=patient)))
