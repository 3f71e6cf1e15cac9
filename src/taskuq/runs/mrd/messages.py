"""MRD messages on a socket: whole ones in, within limits, and whole ones out."""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from taskuq.errors import InputError

CONFIG_FILE, CONFIG_TEXT, HEADER, CLOSE, TEXT = 1, 2, 3, 4, 5
ACQUISITION, IMAGE, WAVEFORM = 1008, 1022, 1026
CONFIG_FILE_BYTES = 1024


@dataclass(frozen=True)
class Limits:
    """What a service takes from strangers.

    Arguments:
        message: Bytes of one message.
        connections: Connections at once.
        slices: Slices of a scan.
        scan: Bytes of k-space that a header may announce: channels, samples, lines and slices.
        kept: Bytes of lines that one connection may have under way, not decided yet.
        idle: Seconds without a message after which a connection is closed.
        header: Seconds after which a connection is closed that has not said who is scanned.
        waiting: Rounds of one connection that may wait for the networks before it is read on.
    """

    message: int = 32 * 2**20
    connections: int = 16
    slices: int = 1024
    scan: int = 8 * 2**30
    kept: int = 2 * 2**30
    idle: float = 600.0
    header: float = 30.0
    waiting: int = 4


class StreamError(InputError):
    """What came is no MRD stream: nobody can tell where its next message begins."""


class Message(NamedTuple):
    """One message: its kind, and what it holds (a text, an acquisition, an image)."""

    kind: int
    content: Any


class Wire:
    """One end of a stream of MRD messages.

    Reading is for one thread; sending is for any number.
    """

    def __init__(self, connection: socket.socket, limits: Limits) -> None:
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
        """Read nothing after a time of the monotonic clock, however often something comes.

        Arguments:
            until: The time; None for as long as something comes.
        """
        self._until = until
        self.connection.settimeout(self.limits.idle)

    def read(self) -> Message | None:
        """Return the next message, or None where the other end is done or has gone.

        Waveforms are passed over: an ECG decides nothing here.
        """
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
        """Send a message: a text, or an acquisition or image of the ismrmrd package.

        After half a message nobody can read the next one: where sending fails, the wire is closed.
        """
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
        """Let go of the socket; whoever reads from it is woken."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def _too_late(self) -> str:
        """What to say to whoever kept us waiting, with time enough to say it."""
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
