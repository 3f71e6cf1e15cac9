"""The header of an MRD scan: who is scanned, and how large its k-space is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from taskuq.errors import InputError, first_line


@dataclass(frozen=True)
class ScanHeader:
    """What a service has to know of a scan before its lines come.

    Arguments:
        scan_id: What the scan is called: the measurement's id, or else its series' UID.
        patient: Whose it is; the scan's name where the header does not say.
        shape: Coil, height, width of a slice: receiver channels, samples of a readout, lines.
        slices: How many slices there are.
    """

    scan_id: str
    patient: str
    shape: tuple[int, int, int]
    slices: int

    @property
    def nbytes(self) -> int:
        """How large its k-space is: a complex number is two of four bytes."""
        return 8 * math.prod(self.shape) * self.slices

    def case(self, slice_: int) -> str:
        """What a slice is called, as the atlas calls its own."""
        return f"{self.patient}-slice-{slice_}"

    @property
    def known_patient(self) -> str | None:
        """Whose it is; None where the header did not say, and the scan's name stands for it."""
        return None if self.patient == self.scan_id else self.patient

    def is_scan_of(self, other: ScanHeader) -> bool:
        """Whether both name the same scan of the same patient."""
        return (self.scan_id, self.patient) == (other.scan_id, other.patient)


def read_header(xml: str) -> ScanHeader:
    """Read the header of a scan, or say what it lacks.

    Arguments:
        xml: The document, as it was sent.
    """
    from ismrmrd.xsd import CreateFromDocument

    if "<!DOCTYPE" in xml or "<!ENTITY" in xml:
        raise InputError("the MRD header defines entities of its own; send a plain header")
    try:
        found: Any = CreateFromDocument(xml)
        encoding = found.encoding[0]
        size, shown = encoding.encodedSpace.matrixSize, encoding.reconSpace.matrixSize
        limits = encoding.encodingLimits.slice if encoding.encodingLimits else None
        system = found.acquisitionSystemInformation
        coils = int(system.receiverChannels) if system and system.receiverChannels else 0
        # An accession number names a study, and a study has several scans.
        about = found.measurementInformation
        scan_id = (about.measurementID or about.seriesInstanceUIDRoot) if about else None
        subject = found.subjectInformation.patientID if found.subjectInformation else None
        shape, readout = (coils, int(size.x), int(size.y)), int(shown.x or 0)
        slices = 1 + int(limits.maximum) if limits is not None else 1
    except Exception as error:
        raise InputError(f"the MRD header cannot be read ({first_line(error):.120})") from None
    if not scan_id:
        raise InputError(
            "the MRD header names no scan; give measurementInformation/measurementID, or "
            "seriesInstanceUIDRoot, by which a scan is found again"
        )
    if min(shape) < 1:
        raise InputError(
            f"the MRD header says {shape[0]} receiver channels and an encoded matrix of "
            f"{shape[1]} x {shape[2]}; all must be positive"
        )
    if readout not in (0, shape[1]):
        # Networks were calibrated on images of the field of view, and would be shown a wider one.
        raise InputError(
            f"the MRD header says readouts of {shape[1]} samples for images of {readout}; remove "
            "readout oversampling first, and let encodedSpace and reconSpace agree"
        )
    return ScanHeader(str(scan_id), str(subject or scan_id), shape, slices)


def header_xml(header: ScanHeader) -> str:
    """Return the header of a scan as the MRD document that is sent.

    Arguments:
        header: The scan.
    """
    from ismrmrd import xsd

    coils, height, width = header.shape
    space = xsd.encodingSpaceType(
        matrixSize=xsd.matrixSizeType(x=height, y=width, z=1),
        fieldOfView_mm=xsd.fieldOfViewMm(x=float(height), y=float(width), z=1.0),
    )

    def until(last: int) -> Any:
        return xsd.limitType(minimum=0, maximum=last, center=last // 2)

    document = xsd.ismrmrdHeader(
        subjectInformation=xsd.subjectInformationType(patientID=header.patient),
        measurementInformation=xsd.measurementInformationType(
            measurementID=header.scan_id, patientPosition=xsd.patientPositionType.HFS
        ),
        acquisitionSystemInformation=xsd.acquisitionSystemInformationType(receiverChannels=coils),
        experimentalConditions=xsd.experimentalConditionsType(H1resonanceFrequency_Hz=128_000_000),
        encoding=[
            xsd.encodingType(
                encodedSpace=space,
                reconSpace=space,
                encodingLimits=xsd.encodingLimitsType(
                    kspace_encoding_step_1=until(width - 1), slice=until(header.slices - 1)
                ),
                trajectory=xsd.trajectoryType.CARTESIAN,
            )
        ],
    )
    return str(document.toXML())
