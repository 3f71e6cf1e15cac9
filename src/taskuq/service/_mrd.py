"""MRD messages, headers and acquisitions."""

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
    """Identity and size of a scan."""

    scan_id: str
    patient: str
    shape: tuple[int, int, int]
    slices: int

    @property
    def nbytes(self) -> int:
        return 8 * math.prod(self.shape) * self.slices

    def case(self, slice_: int) -> str:
        return f"{self.patient}-slice-{slice_}"


def read_header(xml: str) -> ScanHeader:
    from ismrmrd.xsd import CreateFromDocument

    if "<!DOCTYPE" in xml or "<!ENTITY" in xml:
        raise InputError(
            "the MRD header defines XML entities; send a plain header", code="file.format"
        )
    try:
        document: Any = CreateFromDocument(xml)
        encoding = document.encoding[0]
        size, recon = encoding.encodedSpace.matrixSize, encoding.reconSpace.matrixSize
        limits = encoding.encodingLimits.slice if encoding.encodingLimits else None
        system = document.acquisitionSystemInformation
        coils = int(system.receiverChannels) if system and system.receiverChannels else 0
        # An accession number names a study, and a study has several scans.
        info = document.measurementInformation
        scan_id = (info.measurementID or info.seriesInstanceUIDRoot) if info else None
        subject = document.subjectInformation
        patient = subject.patientID if subject else None
        shape, readout = (coils, int(size.x), int(size.y)), int(recon.x or 0)
        slices = 1 + int(limits.maximum) if limits is not None else 1
    except Exception as error:
        raise InputError(
            f"the MRD header cannot be read ({first_line(error):.120})", code="file.format"
        ) from None
    if not scan_id:
        raise InputError(
            "the MRD header names no scan; set measurementID or seriesInstanceUIDRoot",
            code="option.missing",
        )
    if min(shape) < 1:
        raise InputError(
            f"the MRD header has the size {shape} (coil, x, y); all must be positive",
            code="value.invalid",
        )
    if readout not in (0, shape[1]):
        # Networks were calibrated on images of the field of view, not on wider ones.
        raise InputError(
            f"the MRD header has readouts of {shape[1]} samples for images of {readout}; remove "
            "readout oversampling",
            code="shape.mismatch",
        )
    return ScanHeader(str(scan_id), str(patient or scan_id), shape, slices)


def header_xml(header: ScanHeader) -> str:
    """Return the header of a scan as an MRD document."""
    from ismrmrd import xsd

    coils, height, width = header.shape
    space = xsd.encodingSpaceType(
        matrixSize=xsd.matrixSizeType(x=height, y=width, z=1),
        fieldOfView_mm=xsd.fieldOfViewMm(x=float(height), y=float(width), z=1.0),
    )

    def limit(last: int) -> Any:
        return xsd.limitType(minimum=0, maximum=last, center=last // 2)

    limits = xsd.encodingLimitsType(
        kspace_encoding_step_1=limit(width - 1), slice=limit(header.slices - 1)
    )

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
                encodingLimits=limits,
                trajectory=xsd.trajectoryType.CARTESIAN,
            )
        ],
    )
    return str(document.toXML())


# Kinds of acquisitions outside the image, by MRD flag (numbers from 1, as in the package).
NON_IMAGING = {
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
# Calibration lines that belong to the image have a second flag.
CALIBRATION, CALIBRATION_AND_IMAGING, REVERSED = 20, 21, 22
COMPRESSED = (53, 54, 55, 56)
# There is one image per slice: other counters must be 0.
COUNTED = ("kspace_encode_step_2", "average", "contrast", "phase", "repetition", "set")


def non_imaging_kind(acquisition: Any) -> str | None:
    """Return the kind of a non-imaging acquisition, or None."""
    for flag, name in NON_IMAGING.items():
        is_image = flag == CALIBRATION and acquisition.is_flag_set(CALIBRATION_AND_IMAGING)
        if acquisition.is_flag_set(flag) and not is_image:
            return name
    return None


def line_problem(acquisition: Any) -> str | None:
    """Return the reason for rejecting an acquisition, or None."""
    if acquisition.is_flag_set(REVERSED):
        return "a reversed line; reverse it before sending"
    if any(acquisition.is_flag_set(flag) for flag in COMPRESSED):
        return "a compressed line; send it uncompressed"
    if acquisition.encoding_space_ref:
        return f"a line of encoding space {acquisition.encoding_space_ref}; only the first is used"
    for name in COUNTED:
        if count := int(getattr(acquisition.idx, name)):
            return f"a line of {name.replace('kspace_encode', 'encoding')} {count}; only 0 is used"
    return None


CONFIG_FILE, CONFIG_TEXT, HEADER, CLOSE, TEXT = 1, 2, 3, 4, 5
ACQUISITION, IMAGE, WAVEFORM = 1008, 1022, 1026


@dataclass(frozen=True)
class StreamLimits:
    """Maximum sizes accepted from clients."""

    message: int = 32 * 2**20
    connections: int = 16
    slices: int = 1024
    scan: int = 8 * 2**30
    buffer: int = 2 * 2**30
    idle: float = 600.0
    header: float = 30.0
    waiting: int = 4


class StreamError(InputError):
    """Malformed MRD stream."""


class Message(NamedTuple):
    """Kind and content (text, acquisition or image) of a message."""

    kind: int
    content: Any


class Connection:
    """One end of an MRD stream."""

    def __init__(self, connection: socket.socket, limits: StreamLimits) -> None:
        self.connection, self.limits = connection, limits
        self._sending = threading.Lock()
        self._until: float | None = None
        # True while the client waits for a reply.
        self.is_awaited: Callable[[], bool] = lambda: False
        connection.settimeout(limits.idle)
        # The last line of a round must not wait for acknowledgements. Socket pairs lack the option.
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def wait_until(self, until: float | None) -> None:
        """Set the deadline of all reads, on the monotonic clock."""
        self._until = until
        self.connection.settimeout(self.limits.idle)

    def read(self) -> Message | None:
        """Return the next message other than a waveform, or None at the end of the stream."""
        while start := self._some(2):
            kind = struct.unpack("<H", start + self._exactly(2 - len(start)))[0]
            match kind:
                case 1008:
                    return Message(kind, self._acquisition())
                case 1022:
                    return Message(kind, self._image())
                case 1026:
                    self._skip_waveform()
                case 1:
                    raw = self._exactly(1024)
                    return Message(kind, raw.rstrip(b"\0").decode("utf-8", "replace"))
                case 2 | 3 | 5:
                    size = struct.unpack("<I", self._exactly(4))[0]
                    return Message(kind, self._exactly(size).decode("utf-8", "replace"))
                case 4:
                    return None
                case _:
                    raise StreamError(f"message {kind} is not an MRD message", code="file.format")
        return None

    def send(self, kind: int, content: Any = None) -> None:
        """Send a text, or an acquisition or image of the ismrmrd package."""
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
            raise StreamError(
                f"an image has the unknown data type {head.data_type}", code="file.format"
            ) from None
        size = each * int(head.channels) * math.prod(map(int, head.matrix_size))
        return ismrmrd.Image.from_bytes(raw + length + text + self._exactly(size))

    def _skip_waveform(self) -> None:
        import ismrmrd

        raw = self._exactly(ctypes.sizeof(ismrmrd.WaveformHeader))
        head = ismrmrd.WaveformHeader.from_buffer_copy(raw)
        self._exactly(4 * int(head.channels) * int(head.number_of_samples))

    def _exactly(self, size: int) -> bytes:
        if size > self.limits.message:
            raise StreamError(
                f"a message of {size} bytes exceeds the limit; raise --max-message",
                code="value.invalid",
            )
        data = bytearray()
        while len(data) < size:
            part = self._some(size - len(data))
            if not part:
                raise StreamError(
                    f"the stream ended {size - len(data)} bytes short of a message",
                    code="file.damaged",
                )
            data += part
        return bytes(data)

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
                is_late = self._until is not None and time.monotonic() >= self._until
                self.wait_until(None)
                what, limit = ("header", "header") if is_late else ("message", "idle")
                raise StreamError(
                    f"no {what} arrived within {getattr(self.limits, limit):g} s",
                    code="value.invalid",
                ) from None
            except OSError:
                return b""
