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
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("interval.json"),
) -> None:
    """Write the interval of a finished scan as JSON, or as a DICOM structured report.

    Arguments:
        state: The state of the scan, as acquire or serve keeps it.
        policy: The policy's file.
        case: Which case of a group.
        image: The DICOM image that the report is about.
        output: Where to write: a DICOM report for a name that ends in .dcm, JSON otherwise.
    """
    from taskuq.decide.policy import load_policy
    from taskuq.runs.intervals import stored_interval, write_interval

    record = stored_interval(state, load_policy(policy), case)
    show(str(write_interval(record, output, image)))
