"""MRD messages, headers and acquisitions."""

from __future__ import annotations

import ctypes
import math
import socket
import struct
import threading
import time
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taskuq.errors import InputError, first_line

# Relative difference up to which two fields of view are equal.
TOLERANCE = 0.01
LONGEST_ID = 256
FieldOfView = tuple[float, float, float]


@dataclass(frozen=True)
class Geometry:
    """Geometry of a policy's calibration scans; None for fields that are not recorded."""

    coils: int | None = None  #: Number of receive coils.
    matrix: tuple[int, int] | None = None  #: Matrix size: readout samples (not oversampled), lines.
    field_of_view: FieldOfView | None = None  #: In mm: readout, phase encoding, slice thickness.
    prewhitened: bool = False  #: True if the coils are prewhitened with noise scans.

    def __post_init__(self) -> None:
        sizes = (self.coils or 1, *(self.matrix or ()), *(self.field_of_view or ()))
        if not all(0 < size < math.inf for size in sizes):
            raise InputError(f"a geometry has positive sizes, got {self}", code="value.invalid")

    @property
    def unrecorded(self) -> list[str]:
        """Names of the fields without a recorded value."""
        return [name for name, value in vars(self).items() if value is None]

    def differences(self, header: ScanHeader) -> list[str]:
        """Return a message for each header field that differs from the calibration scans."""
        coils, height, width = header.shape
        scan: dict[str, tuple[Any, Any]] = {
            "receiverChannels": (coils, self.coils),
            "reconSpace.matrixSize": ((height, width), self.matrix),
            "reconSpace.fieldOfView_mm": (header.field_of_view, self.field_of_view),
        }
        return [
            f"{name} is {got}, the policy was calibrated with {mine}"
            for name, (got, mine) in scan.items()
            if mine is not None and not _agree(got, mine)
        ]


def _agree(a: Any, b: Any) -> bool:
    """Return True if integers are equal, or if lengths (floats) are equal within TOLERANCE."""
    is_length = np.asarray(a).dtype.kind == "f"
    return bool(np.allclose(a, b, rtol=TOLERANCE, atol=0) if is_length else np.array_equal(a, b))


@dataclass(frozen=True)
class ScanHeader:
    """Identity and geometry of a scan; the shape is (coil, readout, line) without oversampling."""

    scan_id: str
    patient: str
    shape: tuple[int, int, int]
    slices: int
    field_of_view: FieldOfView = (0.0, 0.0, 0.0)
    oversampling: int = 1
    noise_bandwidth: float = 1.0
    stratum: str | None = None

    def __post_init__(self) -> None:
        if not any(self.field_of_view):
            size = (*map(float, self.shape[1:]), 1.0)
            object.__setattr__(self, "field_of_view", size)

    @property
    def nbytes(self) -> int:
        return 8 * math.prod(self.shape) * self.slices

    @property
    def readouts(self) -> tuple[int, ...]:
        """Accepted numbers of samples per line."""
        samples = self.shape[1]
        # A header that encodes no oversampling may still come with oversampled lines.
        return (2 * samples,) if self.oversampling == 2 else (samples, 2 * samples)

    def case(self, slice_: int) -> str:
        return f"{self.patient}-slice-{slice_}"


def read_header(xml: str, scan_id: str | None = None) -> ScanHeader:
    """Read the header of a 2-D Cartesian scan; raise an error that names an unsupported field."""
    document = _parse(xml)
    try:
        # An accession number names a study, and a study has several scans.
        info, subject = document.measurementInformation, document.subjectInformation
        fields = ("measurementID", "seriesInstanceUIDRoot")
        names = {"scan_id": scan_id, **{name: getattr(info, name, None) for name in fields}}
        field, found = next(((n, v) for n, v in names.items() if v and v.strip()), ("", ""))
        patient = subject.patientID if subject and (subject.patientID or "").strip() else None
        for name, value in ((field, found), ("patientID", patient)):
            _require_identifier(name, value or "")
        problem = next(_header_problems(document), None)
        if problem is None:
            encoding, system = document.encoding[0], document.acquisitionSystemInformation
            size, space = encoding.encodedSpace.matrixSize, encoding.reconSpace
            limits, fov = encoding.encodingLimits.slice, space.fieldOfView_mm
            shape = int(system.receiverChannels), int(space.matrixSize.x), int(size.y)
            geometry = (
                shape,
                1 if limits is None else 1 + int(limits.maximum),
                (float(fov.x), float(fov.y), float(fov.z)),
                int(size.x) // shape[1],
                float(system.relativeReceiverNoiseBandwidth or 1),
                _stratum(document),
            )
    except InputError:
        raise
    except Exception as error:
        raise _unreadable(error) from None
    if not found:
        raise InputError(
            "the MRD header names no scan; set measurementID or seriesInstanceUIDRoot, or use "
            "replay --scan-id",
            code="option.missing",
        )
    if problem:
        raise InputError(f"the MRD header cannot be used: {problem}", code="policy.mismatch")
    return ScanHeader(str(found), str(patient or found), *geometry)


# Name of the string among the user parameters that gives the stratum of a scan.
STRATUM = "taskuq_stratum"


def _stratum(document: Any) -> str | None:
    given = document.userParameters.userParameterString if document.userParameters else []
    values = {one.value for one in given if one.name == STRATUM}
    if len(values) > 1:
        raise InputError(f"userParameters.{STRATUM} has several values", code="policy.mismatch")
    return next(iter(values), None)


def with_scan_id(xml: str, scan_id: str) -> str:
    """Return an MRD XML header with its measurementID replaced."""
    from ismrmrd import xsd

    document = _parse(xml)
    if document.measurementInformation is None:
        position = xsd.patientPositionType.HFS
        document.measurementInformation = xsd.measurementInformationType(patientPosition=position)
    document.measurementInformation.measurementID = scan_id
    return _ascii(document.toXML())


def _ascii(xml: str) -> str:
    """Return XML in ASCII, with character references for all other characters."""
    return xml.encode("ascii", "xmlcharrefreplace").decode()


def _parse(xml: str) -> Any:
    from ismrmrd.xsd import CreateFromDocument

    if "<!DOCTYPE" in xml or "<!ENTITY" in xml:
        text = "the MRD header defines XML entities; send a plain header"
        raise InputError(text, code="file.format")
    try:
        # A text where a number belongs is only warned of.
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return CreateFromDocument(_ascii(xml))
    except Exception as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> InputError:
    text = f"the MRD header cannot be read ({first_line(error):.120})"
    return InputError(text, code="file.format")


def _require_identifier(field: str, value: str) -> None:
    is_plain = not any(unicodedata.category(c)[0] == "C" or c in "\u2028\u2029" for c in value)
    if len(value) > LONGEST_ID or not is_plain:
        need = f"at most {LONGEST_ID} characters, none of them a control character"
        raise InputError(f"{field} needs {need}; it has {len(value)}", code="value.invalid")


def _header_problems(document: Any) -> Iterator[str]:
    """Yield a message for each header field that does not describe a 2-D Cartesian scan."""
    if len(document.encoding) != 1:
        yield f"encoding occurs {len(document.encoding)} times; one is needed"
        return
    encoding, system = document.encoding[0], document.acquisitionSystemInformation
    encoded, recon = encoding.encodedSpace, encoding.reconSpace
    size, shown = encoded.matrixSize, recon.matrixSize
    parallel, limits = encoding.parallelImaging, encoding.encodingLimits
    factor = parallel.accelerationFactor if parallel else None
    found: list[tuple[str, Any, Any]] = [
        ("trajectory", encoding.trajectory.value, "cartesian"),
        ("trajectoryDescription", encoding.trajectoryDescription and "present", None),
        ("encodedSpace.matrixSize.z", int(size.z), 1),
        ("reconSpace.matrixSize.z", int(shown.z), 1),
        ("reconSpace.matrixSize.y", int(shown.y), int(size.y)),
        ("parallelImaging.multiband", parallel and parallel.multiband and "present", None),
        ("encodingLimits.kspace_encoding_step_1", bool(limits.kspace_encoding_step_1), True),
    ]
    for step in ("kspace_encoding_step_1", "kspace_encoding_step_2"):
        got = 1 if factor is None else int(getattr(factor, step))
        found.append((f"parallelImaging.accelerationFactor.{step}", got, 1))
    counters = ("kspace_encoding_step_2", "average", "contrast", "phase", "set")
    for name in (*counters, "slice", "repetition", "segment"):
        if (limit := getattr(limits, name)) is not None:
            last = 0 if name in counters else max(0, int(limit.maximum))
            ends = f"{limit.minimum} to {limit.maximum}"
            found.append((f"encodingLimits.{name}", ends, f"0 to {last}"))
    yield from (f"{name} is {got}; {need} is needed" for name, got, need in found if got != need)
    for name, value in (("x", size.x), ("y", size.y)):
        if not 0 < int(value) < 2**16:
            yield f"encodedSpace.matrixSize.{name} is {value}; 1 to 65535 is needed"
            return
    if int(size.x) not in (int(shown.x), 2 * int(shown.x)):
        yield f"reconSpace.matrixSize.x is {shown.x}; {size.x} or its half is needed"
        return
    channels = system.receiverChannels if system else None
    if not channels or not 0 < int(channels) < 2**16:
        yield f"receiverChannels is {channels}; 1 to 65535 is needed"
    bandwidth = system.relativeReceiverNoiseBandwidth if system else None
    if bandwidth is not None and not 0 <= bandwidth < math.inf:
        yield f"relativeReceiverNoiseBandwidth is {bandwidth:g}; a fraction is needed"
    for axis, factor_ in (("x", int(size.x) // int(shown.x)), ("y", 1), ("z", 1)):
        length, wide = (float(getattr(s.fieldOfView_mm, axis)) for s in (recon, encoded))
        if not 0 < length < math.inf:
            yield f"reconSpace.fieldOfView_mm.{axis} is {length:g}; a length is needed"
        elif not _agree(wide, factor_ * length):
            need = f"{factor_ * length:g} is needed"
            yield f"encodedSpace.fieldOfView_mm.{axis} is {wide:g}; {need}"
    both = {int(size.x), 2 * int(shown.x)}
    for name, sizes in (("step_0", both), ("step_1", {int(size.y)})):
        limit = getattr(limits, f"kspace_encoding_{name}")
        if limit is None:
            continue
        is_ = int(limit.minimum), int(limit.maximum), int(limit.center)
        if is_ not in {(0, n - 1, n // 2) for n in sizes}:
            n = max(sizes)
            need = f"0 to {n - 1} around {n // 2}"
            has = f"{is_[0]} to {is_[1]} around {is_[2]}"
            yield f"encodingLimits.kspace_encoding_{name} is {has}; {need} is needed"


def header_xml(header: ScanHeader) -> str:
    """Return the header of a scan as an MRD XML document."""
    from ismrmrd import xsd

    coils, height, width = header.shape
    x, y, z = header.field_of_view
    encoded, recon = (
        xsd.encodingSpaceType(
            matrixSize=xsd.matrixSizeType(x=height * factor, y=width, z=1),
            fieldOfView_mm=xsd.fieldOfViewMm(x=x * factor, y=y, z=z),
        )
        for factor in (header.oversampling, 1)
    )

    def limit(last: int, center: int) -> Any:
        return xsd.limitType(minimum=0, maximum=last, center=center)

    limits = xsd.encodingLimitsType(
        kspace_encoding_step_1=limit(width - 1, width // 2), slice=limit(header.slices - 1, 0)
    )

    encoding = xsd.encodingType(
        encodedSpace=encoded, reconSpace=recon, encodingLimits=limits,
        trajectory=xsd.trajectoryType.CARTESIAN,
    )  # fmt: skip
    document = xsd.ismrmrdHeader(
        subjectInformation=xsd.subjectInformationType(patientID=header.patient),
        acquisitionSystemInformation=xsd.acquisitionSystemInformationType(receiverChannels=coils),
        experimentalConditions=xsd.experimentalConditionsType(H1resonanceFrequency_Hz=128_000_000),
        encoding=[encoding],
    )
    return with_scan_id(document.toXML(), header.scan_id)


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
NOISE, CALIBRATION, CALIBRATION_AND_IMAGING, REVERSED = 19, 20, 21, 22
COMPRESSED = 0b1111 << 52
# Bits without a meaning in MRD; those after the compressions belong to users.
UNDEFINED = ((1 << 52) - 1) & ~((1 << 31) - 1)
COUNTED = ("kspace_encode_step_2", "average", "contrast", "phase", "repetition", "set")
ABSENT = ("encoding_space_ref", "discard_pre", "discard_post", "trajectory_dimensions")
# A channel mask may name other channels in the same number.
FRAME = (
    "measurement_uid", "number_of_samples", "sample_time_us", "position", "read_dir", "phase_dir",
    "slice_dir", "patient_table_position", "channel_mask",
)  # fmt: skip


def non_imaging_kind(acquisition: Any) -> str | None:
    """Return the kind of a non-imaging acquisition, such as noise; None for an image line."""
    flags = int(acquisition.flags)
    if acquisition.is_flag_set(CALIBRATION_AND_IMAGING):
        flags &= ~(1 << CALIBRATION - 1)
    return next((name for flag, name in NON_IMAGING.items() if flags >> flag - 1 & 1), None)


def line_problem(acquisition: Any, header: ScanHeader) -> str | None:
    """Return the reason (with the header field) for rejecting an acquisition, or None."""
    # The properties of the acquisition copy a field each time they are read.
    head = acquisition._head
    if acquisition.is_flag_set(REVERSED):
        return "a reversed line (ACQ_IS_REVERSE); reverse it before sending"
    if head.flags & COMPRESSED:
        return "a compressed line (ACQ_COMPRESSION); send it uncompressed"
    if head.flags & UNDEFINED:
        return f"a line with undefined flags {head.flags:#x}"
    samples, readouts, idx = head.number_of_samples, header.readouts, head.idx
    for name, got, need in (
        # There is one image per slice: its other counters are 0.
        *((name, getattr(idx, name), 0) for name in COUNTED),
        *((name, getattr(head, name), 0) for name in ABSENT),
        ("version", head.version or 1, 1),
        ("active_channels", head.active_channels, header.shape[0]),
        ("number_of_samples", samples, samples if samples in readouts else readouts),
        ("center_sample", head.center_sample, samples // 2),
    ):
        if got != need:
            allowed = " or ".join(map(str, np.atleast_1d(need)))
            return f"a line with {name} {got}; {allowed} is needed"
    return None


def line_frame(acquisition: Any) -> tuple[Any, ...]:
    """Return the fields that must be the same in all lines of a slice."""
    values = ((name, getattr(acquisition._head, name)) for name in FRAME)
    return tuple((name, tuple(v) if isinstance(v, ctypes.Array) else v) for name, v in values)


def frame_problem(acquisition: Any, frame: tuple[Any, ...]) -> str | None:
    """Return a description of a field that differs from the slice's first line, or None."""
    if (found := line_frame(acquisition)) == frame:
        return None
    name, value = min(set(found) - set(frame))
    return f"a line with {name} {value}, unlike the first of its slice"


def remove_oversampling(data: NDArray[np.complexfloating], samples: int) -> NDArray[np.complex64]:
    """Remove two-fold readout oversampling from a line (coil, samples), if it has any.

    The image row is cropped to its central half. The k-space values of an object inside that half
    do not change.
    """
    if data.shape[-1] == samples:
        return data.astype(np.complex64, copy=False)
    wide = np.fft.fftshift(np.fft.ifft(np.fft.ifftshift(data.astype(complex), axes=-1)), axes=-1)
    start = samples - samples // 2
    row = np.fft.ifftshift(wide[..., start : start + samples], axes=-1)
    return np.fft.fftshift(np.fft.fft(row), axes=-1).astype(np.complex64)


@dataclass
class Prewhitening:
    """Noise covariance of the coils, and the matrix that transforms it to the identity."""

    bandwidth: float
    noise: list[NDArray[np.complexfloating]] = field(default_factory=list)
    dwell: set[float] = field(default_factory=set)
    _matrix: NDArray[Any] | None = None

    def add(self, acquisition: Any) -> None:
        """Add a noise scan, acquired before the image."""
        if self._matrix is None:
            self.noise.append(np.array(acquisition.data))
            self.dwell.add(float(acquisition.sample_time_us))

    def apply(self, acquisition: Any) -> NDArray[np.complexfloating]:
        """Return a line whose noise has unit variance in each coil's real and imaginary parts."""
        if self._matrix is None:
            coils = int(acquisition.active_channels)
            fitting = [n for n in self.noise if n.shape[0] == coils and np.isfinite(n).all()]
            noise = np.concatenate([np.zeros((coils, 0), complex), *fitting], axis=1)
            if len(fitting) < len(self.noise) or noise.size < 2 * coils**2:
                raise InputError(
                    "the policy was calibrated on prewhitened coils: noise scans of all coils are "
                    "needed before the first line",
                    code="policy.mismatch",
                )
            covariance = noise @ noise.conj().T / noise.shape[1]
            try:
                self._matrix = np.linalg.inv(np.linalg.cholesky(covariance))
            except np.linalg.LinAlgError:
                text = "the noise scans have a singular covariance; check the coils"
                raise InputError(text, code="policy.mismatch") from None
            self.noise.clear()
        times = [*self.dwell, float(acquisition.sample_time_us)]
        if len(times) != 2 or not all(0 < time < math.inf for time in times):
            found = ", ".join(f"{time:g}" for time in times)
            raise InputError(
                f"sample_time_us of noise scans and lines is {found}; prewhitening needs one "
                "positive time for each",
                code="policy.mismatch",
            )
        scale = math.sqrt(2 * times[1] / times[0] * self.bandwidth)
        return np.asarray(scale * (self._matrix @ acquisition.data))


CONFIG_FILE, CONFIG_TEXT, HEADER, CLOSE, TEXT = 1, 2, 3, 4, 5
ACQUISITION, IMAGE, WAVEFORM = 1008, 1022, 1026


@dataclass(frozen=True)
class StreamLimits:
    """Size and time limits for client connections."""

    message: int = 32 * 2**20
    connections: int = 16
    slices: int = 1024
    scan: int = 8 * 2**30
    buffer: int = 2 * 2**30
    idle: float = 600.0
    header: float = 30.0
    waiting: int = 4
    text: int = 2**20
    # A message may take so many seconds, and one more for each of so many bytes.
    grace: float = 10.0
    pace: int = 1024
    # Seconds that an earlier connection of the same scan may take to end.
    claim: float = 10.0


class StreamError(InputError):
    """Malformed MRD stream."""


class Message(NamedTuple):
    """MRD message: its message id, and its payload (text, acquisition or image)."""

    kind: int
    content: Any


class Connection:
    """Socket that reads and sends MRD messages."""

    def __init__(self, connection: socket.socket, limits: StreamLimits) -> None:
        self.connection, self.limits = connection, limits
        self._sending = threading.Lock()
        self._until = self._paced = math.inf
        self.has_begun = False
        # True while the client waits for a reply.
        self.is_awaited: Callable[[], bool] = lambda: False
        connection.settimeout(limits.idle)
        # The last line of a round must not wait for acknowledgements, and a client that lost its
        # power must be noticed. Socket pairs lack the options.
        with suppress(OSError, AttributeError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, seconds in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5)):
                connection.setsockopt(socket.IPPROTO_TCP, option, seconds)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)

    def wait_until(self, until: float = math.inf) -> None:
        """Set a deadline (time.monotonic) for all reads; without an argument, remove it."""
        self._until = until

    def read(self) -> Message | None:
        """Return the next message other than a waveform, or None at the end of the stream."""
        while start := self._some(2):
            self.has_begun = True
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
                    text = self._exactly(size, self.limits.text)
                    # Some clients count a closing zero.
                    return Message(kind, text.rstrip(b"\0").decode("utf-8", "replace"))
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
        samples, dims = head.number_of_samples, head.trajectory_dimensions
        coils, places = head.active_channels, samples * dims
        numbers = np.frombuffer(self._exactly(4 * (places + 2 * samples * coils)), np.float32)
        data = numbers[places:].view(np.complex64).reshape(coils, samples)
        return ismrmrd.Acquisition(head, data, numbers[:places].reshape(samples, dims))

    def _image(self) -> Any:
        import ismrmrd

        raw = self._exactly(ctypes.sizeof(ismrmrd.ImageHeader))
        head = ismrmrd.ImageHeader.from_buffer_copy(raw)
        length = self._exactly(8)
        meta = self._exactly(struct.unpack("<Q", length)[0])
        try:
            each = ismrmrd.image.get_dtype_from_data_type(head.data_type).itemsize
        except Exception:
            text = f"an image has the unknown data type {head.data_type}"
            raise StreamError(text, code="file.format") from None
        size = each * int(head.channels) * math.prod(map(int, head.matrix_size))
        return ismrmrd.Image.from_bytes(raw + length + meta + self._exactly(size))

    def _skip_waveform(self) -> None:
        import ismrmrd

        raw = self._exactly(ctypes.sizeof(ismrmrd.WaveformHeader))
        head = ismrmrd.WaveformHeader.from_buffer_copy(raw)
        self._exactly(4 * int(head.channels) * int(head.number_of_samples))

    def _exactly(self, size: int, limit: int | None = None) -> bytes:
        if size > (limit or self.limits.message):
            remedy = "raise --max-message" if limit is None else f"a text has at most {limit}"
            text = f"a message of {size} bytes exceeds the limit; {remedy}"
            raise StreamError(text, code="value.invalid")
        data = bytearray()
        self._paced = time.monotonic() + self.limits.grace + size / self.limits.pace
        try:
            while len(data) < size:
                part = self._some(size - len(data))
                if not part:
                    text = f"the stream ended {size - len(data)} bytes short of a message"
                    raise StreamError(text, code="file.damaged")
                data += part
        finally:
            self._paced = math.inf
        return bytes(data)

    def _some(self, size: int) -> bytes:
        while True:
            left = min(self.limits.idle, min(self._until, self._paced) - time.monotonic())
            try:
                if left <= 0:
                    raise TimeoutError
                self.connection.settimeout(left)
                return self.connection.recv(min(size, 2**20))
            except TimeoutError:
                now = time.monotonic()
                is_late, is_slow = now >= self._until, now >= self._paced
                if self._until == math.inf and not is_slow and self.is_awaited():
                    continue
                self.wait_until()
                if is_slow and not is_late:
                    text = f"a message came slower than {self.limits.pace} bytes a second"
                    raise StreamError(text, code="value.invalid") from None
                what, limit = ("header", "header") if is_late else ("message", "idle")
                text = f"no {what} arrived within {getattr(self.limits, limit):g} s"
                raise StreamError(text, code="value.invalid") from None
            except OSError:
                return b""

    def drain(self, seconds: float) -> None:
        """Read and discard data for some seconds, so that the client receives the last reply."""
        until = time.monotonic() + seconds
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while (left := until - time.monotonic()) > 0:
                self.connection.settimeout(left)
                if not self.connection.recv(2**20):
                    return
