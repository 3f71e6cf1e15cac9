"""MRD messages, headers, acquisitions."""

from __future__ import annotations

import ctypes
import math
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from taskuq.errors import InputError, first_line


@dataclass(frozen=True)
class ScanHeader:
    scan_id: str
    patient: str
    shape: tuple[int, int, int]
    slices: int

    @property
    def nbytes(self) -> int:
        return 8 * math.prod(self.shape) * self.slices

    def case(self, slice_: int) -> str:
        return f"{self.patient}-slice-{slice_}"

    @property
    def known_patient(self) -> str | None:
        return None if self.patient == self.scan_id else self.patient

    def is_scan_of(self, other: ScanHeader) -> bool:
        """Return True if both name the same scan of the same patient."""
        return (self.scan_id, self.patient) == (other.scan_id, other.patient)


def read_header(xml: str) -> ScanHeader:
    """Read the header of a scan, or say what it lacks."""
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
    """Return the header of a scan as the MRD document that is sent."""
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


# What a scanner sends beside the lines of an image, by MRD's flags (the package's numbers, from 1).
BESIDE = {
    19: "noise",
    20: "parallel calibration",
    23: "navigation",
    24: "phase correction",
    26: "feedback",
    27: "a dummy scan",
    28: "feedback",
    29: "surface coil correction",
    30: "phase stabilization",
    31: "phase stabilization",
}
# Calibration that belongs to the image too says so by a flag of its own.
CALIBRATION, CALIBRATION_AND_IMAGING, REVERSED = 20, 21, 22
COMPRESSED = (53, 54, 55, 56)
# There is one image for each slice: whatever else is counted has to be the first of its kind.
COUNTED = ("kspace_encode_step_2", "average", "contrast", "phase", "repetition", "set")


def non_imaging_kind(acquisition: Any) -> str | None:
    """Return the kind of a non-imaging acquisition, or None."""
    for flag, name in BESIDE.items():
        is_image = flag == CALIBRATION and acquisition.is_flag_set(CALIBRATION_AND_IMAGING)
        if acquisition.is_flag_set(flag) and not is_image:
            return name
    return None


def line_problem(acquisition: Any) -> str | None:
    """Return why an acquisition is rejected, or None."""
    if acquisition.is_flag_set(REVERSED):
        return "a reversed line; turn it before it is sent"
    if any(acquisition.is_flag_set(flag) for flag in COMPRESSED):
        return "a compressed line; send it uncompressed"
    if acquisition.encoding_space_ref:
        return f"a line of encoding space {acquisition.encoding_space_ref}; the first is decided on"
    for name in COUNTED:
        if count := int(getattr(acquisition.idx, name)):
            return f"a line of {name.replace('kspace_encode', 'encoding')} {count}; 0 is decided on"
    return None


CONFIG_FILE, CONFIG_TEXT, HEADER, CLOSE, TEXT = 1, 2, 3, 4, 5
ACQUISITION, IMAGE, WAVEFORM = 1008, 1022, 1026
CONFIG_FILE_BYTES = 1024


@dataclass(frozen=True)
class StreamLimits:
    """Maximum sizes accepted from clients."""

    message: int = 32 * 2**20
    connections: int = 16
    slices: int = 1024
    scan: int = 8 * 2**30
    kept: int = 2 * 2**30
    idle: float = 600.0
    header: float = 30.0
    waiting: int = 4


class StreamError(InputError):
    """Malformed MRD stream."""


class Message(NamedTuple):
    """One message: its kind, and what it holds (a text, an acquisition, an image)."""

    kind: int
    content: Any


class Connection:
    """One end of an MRD stream."""

    def __init__(self, connection: socket.socket, limits: StreamLimits) -> None:
        self.connection, self.limits = connection, limits
        self._sending = threading.Lock()
        self._until: float | None = None
        # Whether the other end is silent because it waits for an answer of ours.
        self.is_awaited: Callable[[], bool] = lambda: False
        connection.settimeout(limits.idle)
        # A round's last line, or an answer, must not wait until the other end has said that it got
        # what came before. (A pair of sockets on one machine has no such delay to turn off.)
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def wait_until(self, until: float | None) -> None:
        """Read nothing after a time of the monotonic clock, however often something comes."""
        self._until = until
        self.connection.settimeout(self.limits.idle)

    def read(self) -> Message | None:
        """Return the next message, or None where the other end is done or has gone."""
        while (message := self._next()) is not None and message.kind == WAVEFORM:
            pass
        return message

    def _next(self) -> Message | None:
        start = self._some(2)
        if not start:
            return None
        kind = struct.unpack("<H", start + self._exactly(2 - len(start)))[0]
        match kind:
            case 1008:
                return Message(kind, self._acquisition())
            case 1022:
                return Message(kind, self._image())
            case 1026:
                return Message(kind, self._waveform())
            case 1:
                raw = self._exactly(CONFIG_FILE_BYTES)
                return Message(kind, raw.rstrip(b"\0").decode("utf-8", "replace"))
            case 2 | 3 | 5:
                size = struct.unpack("<I", self._exactly(4))[0]
                return Message(kind, self._exactly(size).decode("utf-8", "replace"))
            case 4:
                return None
        raise StreamError(f"message {kind} is none of MRD's; the stream is damaged or of another")

    def send(self, kind: int, content: Any = None) -> None:
        """Send a message: a text, or an acquisition or image of the ismrmrd package."""
        parts = [struct.pack("<H", kind)]
        if isinstance(content, str):
            text = content.encode()
            parts += [struct.pack("<I", len(text)), text]
        elif content is not None:
            content.serialize_into(lambda part: parts.append(bytes(part)))
        with self._sending:
            try:
                self.connection.sendall(b"".join(parts))
            except OSError:
                self.close()
                raise

    def close(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def _too_late(self) -> str:
        is_late = self._until is not None and time.monotonic() >= self._until
        self.wait_until(None)
        if is_late:
            return f"no header came in {self.limits.header:g} s"
        return f"nothing came for {self.limits.idle:g} s"

    def _acquisition(self) -> Any:
        import ismrmrd

        raw = self._exactly(ctypes.sizeof(ismrmrd.AcquisitionHeader))
        head = ismrmrd.AcquisitionHeader.from_buffer_copy(raw)
        samples = int(head.number_of_samples)
        rest = samples * (4 * int(head.trajectory_dimensions) + 8 * int(head.active_channels))
        return ismrmrd.Acquisition.from_bytes(raw + self._exactly(rest))

    def _image(self) -> Any:
        import ismrmrd

        raw = self._exactly(ctypes.sizeof(ismrmrd.ImageHeader))
        head = ismrmrd.ImageHeader.from_buffer_copy(raw)
        length = self._exactly(8)
        text = self._exactly(struct.unpack("<Q", length)[0])
        try:
            each = ismrmrd.image.get_dtype_from_data_type(head.data_type).itemsize
        except Exception:
            raise StreamError(f"an image of data type {head.data_type} is none of MRD's") from None
        size = each * int(head.channels)
        for extent in head.matrix_size:
            size *= int(extent)
        return ismrmrd.Image.from_bytes(raw + length + text + self._exactly(size))

    def _waveform(self) -> bytes:
        import ismrmrd

        raw = self._exactly(ctypes.sizeof(ismrmrd.WaveformHeader))
        head = ismrmrd.WaveformHeader.from_buffer_copy(raw)
        return self._exactly(4 * int(head.channels) * int(head.number_of_samples))

    def _exactly(self, size: int) -> bytes:
        if size > self.limits.message:
            raise StreamError(
                f"a message claims {size} bytes, and at most {self.limits.message} are taken"
            )
        found = bytearray()
        while len(found) < size:
            part = self._some(size - len(found))
            if not part:
                raise StreamError(f"the stream ended {size - len(found)} bytes short of a message")
            found += part
        return bytes(found)

    def _some(self, size: int) -> bytes:
        while True:
            try:
                if self._until is not None:
                    left = self._until - time.monotonic()
                    if left <= 0:
                        raise TimeoutError
                    self.connection.settimeout(min(left, self.limits.idle))
                return self.connection.recv(min(size, 2**20))
            except TimeoutError:
                if self._until is None and self.is_awaited():
                    continue
                raise StreamError(self._too_late()) from None
            except OSError:
                return b""
