"""A service that decides about scans: it listens, looks after connections, says how it is."""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from taskuq.disk import make_folder
from taskuq.errors import InputError, MachineError
from taskuq.runs.mrd.header import ScanHeader
from taskuq.runs.mrd.messages import CLOSE, TEXT, Limits, Wire
from taskuq.runs.mrd.session import SCHEMA, Chain, Session

LOOPBACK = "127.0.0.1"
# Seconds until the next connection is tried for, after one could not be taken.
PAUSE = 0.1


@dataclass
class Service:
    """Listens for scanners, with two threads for each connection and one model for all.

    MRD has no authentication: whoever can reach the port can scan. It listens on loopback unless
    told otherwise.

    Arguments:
        chain: What is decided with.
        host: Where to listen.
        port: Where to listen; 0 for any that is free.
        health_port: Where to tell over HTTP how the service is, at the same host; none where None.
        limits: What is taken from strangers.
    """

    chain: Chain
    host: str = LOOPBACK
    port: int = 9002
    health_port: int | None = None
    limits: Limits = field(default_factory=Limits)
    sessions: dict[Session, threading.Thread] = field(default_factory=dict, init=False, repr=False)
    counts: Counter[str] = field(default_factory=Counter, init=False)
    started: float = field(default_factory=time.time, init=False)
    _listener: socket.socket | None = field(default=None, init=False, repr=False)
    _http: ThreadingHTTPServer | None = field(default=None, init=False, repr=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False, repr=False)
    _lock: Any = field(default_factory=threading.RLock, init=False, repr=False)

    def start(self) -> None:
        """Listen, in threads of its own; the ports are known afterwards."""
        if not self.chain.folder.exists():
            # What is kept there is of patients.
            make_folder(self.chain.folder)
            self.chain.folder.chmod(0o700)
        port = self.port
        try:
            self._listener = socket.create_server((self.host, port))
            self.port = int(self._listener.getsockname()[1])
            if self.health_port is not None:
                port = self.health_port
                self._http = ThreadingHTTPServer((self.host, self.health_port), _health(self))
                self.health_port = int(self._http.server_address[1])
                self._begin(self._http.serve_forever)
        except OSError as error:
            self.stop()
            raise MachineError(
                f"cannot listen on {self.host}, port {port} ({error.strerror or error}); is "
                "another service there?"
            ) from None
        self._begin(self._accept)

    def _begin(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        """Take nobody new, let what is being decided end, and close."""
        listener, self._listener = self._listener, None
        if listener is not None:
            # Without it whoever waits for connections would keep the port.
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
        # A thread that still runs while Python ends may abort the process; and whoever was let in
        # last is among those who are let go.
        for listening in self._threads:
            listening.join(timeout=5)
        with self._lock:
            left = dict(self.sessions)
        for session, thread in left.items():
            session.leave()
            session.wire.close()
            thread.join()

    def health(self) -> dict[str, Any]:
        """Return how the service is, as values that JSON can hold."""
        with self._lock:
            scans = [s.header.scan_id for s in self.sessions if s.header is not None]
            slices = sum(len(session.slices) for session in self.sessions)
            counts = dict(self.counts)
        monitor, reason = self.chain.monitor, self.chain.void
        if reason is None and monitor is not None and monitor.is_withdrawn:
            reason = monitor.sentence
        return {
            "schema": "taskuq.health/1",
            "status": "stopping" if self._listener is None else "ready",
            "seconds": round(time.time() - self.started, 1),
            "connections": len(self.sessions),
            "scans": len(scans),
            "slices": slices,
            "shadow": self.chain.shadow,
            "withdrawn": None if monitor is None else monitor.is_withdrawn,
            "evidence": None if monitor is None else monitor.evidence,
            "reason": reason,
            "counts": counts,
        }

    def _accept(self) -> None:
        while (listener := self._listener) is not None:
            try:
                connection, _ = listener.accept()
            except OSError:
                # Files and memory may have run out, or the stranger may have gone meanwhile: as
                # long as nobody closes the listener, the next one is waited for.
                time.sleep(PAUSE if self._listener is listener else 0)
                continue
            try:
                self._let_in(connection)
            except Exception:  # one stranger must not close the door on all others
                self._count("failed connections")
                connection.close()

    def _let_in(self, connection: socket.socket) -> None:
        """Begin with a connection, or say that there are too many."""
        wire = Wire(connection, self.limits)
        with self._lock:
            is_full = len(self.sessions) >= self.limits.connections
        if is_full:
            self._count("refused connections")
            self._refuse(wire)
            return
        session = Session(wire, self.chain, self._count, self._take_over)
        thread = threading.Thread(target=self._run, args=(session,), daemon=True)
        with self._lock:
            self.sessions[session] = thread
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                self.sessions.pop(session)
            raise

    def _refuse(self, wire: Wire) -> None:
        said = f"{self.limits.connections} connections are open, and no more are taken; come later"
        with suppress(OSError):
            wire.send(TEXT, json.dumps({"schema": SCHEMA, "said": said}))
            wire.send(CLOSE)
        wire.close()

    def _run(self, session: Session) -> None:
        self._count("connections")
        try:
            session.run()
        finally:
            with self._lock:
                self.sessions.pop(session, None)

    def _take_over(self, header: ScanHeader, newcomer: Session) -> None:
        """Let an earlier connection of the same scan go: its scanner has come back."""
        with self._lock:
            # Of two that come at once one is the later, and sees the other.
            newcomer.header = header
            earlier = {
                session: thread
                for session, thread in self.sessions.items()
                if session is not newcomer
                and session.header is not None
                and session.header.is_scan_of(header)
            }
        for session, thread in earlier.items():
            session.leave()
            session.wire.close()
            thread.join()

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1


def _health(service: Service) -> type[BaseHTTPRequestHandler]:
    room = threading.Semaphore(service.limits.connections)

    class Health(BaseHTTPRequestHandler):
        """Tells how the service is, whatever is asked for."""

        timeout = 10

        def handle(self) -> None:
            """Answer no more at once than may scan: each has a thread while it asks."""
            if room.acquire(blocking=False):
                try:
                    super().handle()
                finally:
                    room.release()

        def do_GET(self) -> None:
            """Answer."""
            text = json.dumps(service.health()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *given: Any) -> None:
            """Say nothing."""

    return Health


def settle() -> None:
    """Let no search for garbage look at what is loaded so far, which stays as long as the process.

    With networks loaded a full search takes a tenth of a second, and it may come while a scanner
    waits for a decision.

    Example:
        >>> settle()
        >>> gc.get_freeze_count() > 1000
        True
        >>> gc.unfreeze()
    """
    gc.collect()
    gc.freeze()


def as_address(text: str) -> tuple[str, int]:
    """Read HOST:PORT.

    Example:
        >>> as_address("scanner:9002"), as_address("9002")
        (('scanner', 9002), ('127.0.0.1', 9002))
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(f"an address is HOST:PORT, got {text!r}")
    return host.strip("[]") or LOOPBACK, int(port)
