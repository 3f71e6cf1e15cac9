"""MRD server and what it decides with."""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskuq._io import make_folder
from taskuq.errors import InputError, MachineError
from taskuq.interval import BoolArray
from taskuq.measure._adaptive import AdaptiveLines
from taskuq.measure._masks import mask_fingerprint, read_masks
from taskuq.measure._mri import MaskConfig, added_columns
from taskuq.pipeline._executor import pick_device
from taskuq.policy._policy import Policy, load_policy
from taskuq.scan._monitor import Monitor
from taskuq.scan._round import find_mismatches, void_reason
from taskuq.service._mrd import CLOSE, TEXT, Connection, ScanHeader, StreamLimits
from taskuq.service._session import SCHEMA, ServiceModel, Session
from taskuq.training._weights import locate

LOOPBACK = "127.0.0.1"
# Seconds until the next connection is tried for, after one could not be taken.
PAUSE = 0.1


@dataclass
class Service:
    """Listens for scanners, with two threads for each connection and one model for all."""

    chain: ServiceModel
    host: str = LOOPBACK
    port: int = 9002
    health_port: int | None = None
    limits: StreamLimits = field(default_factory=StreamLimits)
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
        if reason is None and monitor is not None and monitor.alarm:
            reason = monitor.sentence
        return {
            "schema": "taskuq.health/1",
            "status": "stopping" if self._listener is None else "ready",
            "seconds": round(time.time() - self.started, 1),
            "connections": len(self.sessions),
            "scans": len(scans),
            "slices": slices,
            "shadow": self.chain.shadow,
            "withdrawn": None if monitor is None else monitor.alarm,
            "evidence": None if monitor is None else monitor.e_value,
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
        wire = Connection(connection, self.limits)
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

    def _refuse(self, wire: Connection) -> None:
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

        def log_message(self, format: str, *given: Any) -> None: ...

    return Health


def freeze_gc() -> None:
    """Freeze the garbage collector."""
    gc.collect()
    gc.freeze()


def as_address(text: str) -> tuple[str, int]:
    """Read HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(f"an address is HOST:PORT, got {text!r}")
    return host.strip("[]") or LOOPBACK, int(port)


Columns = Sequence[NDArray[np.intp]]
# Lines of a slice where no masks are given: those of the embedded networks.
SIZE = 128


def open_service_model(
    policy: Path,
    recover: str | None,
    task: str | None,
    masks: Path | None,
    folder: Path,
    *,
    runtime: Path | None = None,
    seed: int = 0,
    deadline: float | None = None,
    watch: float | None = None,
    shadow: bool = False,
    device: str | None = None,
    choose: Path | None = None,
    unlike: bool = False,
) -> ServiceModel:
    """Load and check policy, networks and masks."""
    from taskuq.service._session import ServiceModel

    loaded = load_policy(policy)
    if runtime is not None:
        if any(given is not None for given in (recover, task, masks, device, choose)):
            raise InputError(
                "a runtime has recovery, task and masks of its own and runs on the CPU; leave "
                "--recover, --task, --masks, --choose and --device out"
            )
        parts = _of_runtime(runtime, loaded)
    elif recover is None or task is None:
        raise InputError("give --recover and --task, or --runtime with what taskuq export wrote")
    else:
        parts = _of_networks(loaded, recover, task, masks, device)
        if choose is not None:
            parts["rule"] = _rule(choose, loaded, masks)
    void = _unlike(loaded, unlike, **parts)
    monitor = None
    if watch is not None:
        monitor = Monitor(loaded, delta=watch, state=folder / "monitor.json")
    return ServiceModel(
        policy=loaded,
        **parts,
        folder=folder,
        seed=seed,
        deadline=deadline,
        monitor=monitor,
        shadow=shadow,
        void=void,
        unlike=unlike,
    )


def _unlike(
    policy: Policy, allowed: bool, recover: Any, task: Any, columns: Columns, rule: Any = None,
    **others: Any,
) -> str | None:  # fmt: skip
    masks = np.zeros((len(columns) - 1, sum(map(len, columns))), dtype=bool)
    for k, added in enumerate(columns[:-1]):
        masks[k:, added] = True
    found = find_mismatches(policy, recover, task, rule, mask_fingerprint(masks))
    if not found:
        return None
    if not allowed:
        raise InputError(f"{'; '.join(found)} (--allow-mismatch goes on without a promise)")
    return void_reason(found, depth=4)


def _rule(path: Path, policy: Policy, masks: Path | None) -> AdaptiveLines:
    from taskuq.experiments._run import read_run
    from taskuq.measure._mri import MultiCoilMRI

    chosen = read_run(path).choose
    if chosen is None:
        raise InputError(f"{path} has no table [choose]; name the run that the policy is of")
    lines, rates = _masks_of_rounds(policy, masks), tuple(map(float, policy.accelerations))
    return chosen.rule(MultiCoilMRI(lines, rates), lines, rates)


def _of_runtime(runtime: Path, policy: Policy) -> dict[str, Any]:
    from taskuq.service._runtime import open_runtime

    return vars(open_runtime(runtime, policy))


def _of_networks(
    policy: Policy, recover: str, task: str, masks: Path | None, device: str | None
) -> dict[str, Any]:
    from taskuq.recover._methods import open_recovery
    from taskuq.task import load
    from taskuq.training._weights import weights_fingerprint

    chosen = pick_device(device)
    parts: dict[str, Any] = {
        "recover": open_recovery(recover, device=chosen),
        "task": load(locate(task)).to(chosen),
    }
    for name, weights in (("recover", recover), ("task", task)):
        # What a run calls them, so that a policy knows whether they are its own.
        object.__setattr__(parts[name], "fingerprint", weights_fingerprint(weights))
    return {**parts, "columns": added_columns(_masks_of_rounds(policy, masks))}


def _masks_of_rounds(policy: Policy, masks: Path | None) -> BoolArray:
    """Return the lines that are measured in each round of a policy, booleans (round, width)."""
    rates = tuple(map(float, policy.accelerations))
    if masks is None:
        return MaskConfig(accelerations=rates).masks(SIZE)
    return read_masks(masks, rates)


def export(
    policy: Path, recover: str, task: str, masks: Path | None, folder: Path, *, coils: int,
    height: int | None, unlike: bool = False,
) -> Path:  # fmt: skip
    """Write recovery and task as programs that a service runs from."""
    from taskuq.service._export import write_runtime

    if coils < 1 or (height is not None and height < 1):
        raise InputError(f"got {coils} coils and height {height}; give whole numbers above 0")
    loaded = load_policy(policy)
    parts = _of_networks(loaded, recover, task, masks, "cpu")
    _unlike(loaded, unlike, **parts)
    width = sum(map(len, parts["columns"]))
    return write_runtime(folder, loaded, **parts, shape=(coils, height or width, width))
