"""MRD server, its health endpoint and the model it serves."""

from __future__ import annotations

import gc
import json
import logging
import math
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskuq._config import from_toml_table, read_toml
from taskuq._io import make_folder
from taskuq.errors import InputError, MachineError
from taskuq.interval import BoolArray
from taskuq.measure._adaptive import AdaptiveConfig, AdaptiveLines
from taskuq.measure._masks import mask_fingerprint, read_masks
from taskuq.measure._mri import MaskConfig, MultiCoilMRI, added_columns
from taskuq.pipeline._executor import Executor, pick_device
from taskuq.policy._policy import Policy, load_policy
from taskuq.scan._monitor import Monitor
from taskuq.scan._round import find_mismatches, void_reason
from taskuq.service._mrd import CLOSE, TEXT, Connection, ScanHeader, StreamLimits
from taskuq.service._operations import ServeConfig, latency_histogram, metrics
from taskuq.service._session import SCHEMA, ServiceModel, Session, policy_geometry
from taskuq.training._weights import locate

LOOPBACK = "127.0.0.1"
# Without a handler, warnings would go to standard error.
logging.getLogger("taskuq.service").addHandler(logging.NullHandler())
# Seconds after a failed accept.
PAUSE = 0.1
# Seconds until the health endpoint notices that it is stopped.
POLL = 0.05
# Rounds in a row without a decision until the status is failing; seconds for which one degrades it.
FAILING, RECENT = 3, 3600.0


@dataclass
class Service:
    """MRD server with two threads per connection and one shared model."""

    model: ServiceModel
    host: str = LOOPBACK
    port: int = 9002
    health_port: int | None = None
    limits: StreamLimits = field(default_factory=StreamLimits)
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("taskuq.service"))
    sessions: dict[Session, threading.Thread] = field(default_factory=dict, init=False, repr=False)
    counts: Counter[str] = field(default_factory=Counter, init=False)
    latencies: Any = field(default_factory=latency_histogram, init=False, repr=False)
    started: float = field(default_factory=time.monotonic, init=False)
    _outcomes: deque[bool] = field(default_factory=lambda: deque(maxlen=FAILING), init=False)
    _last_failure: float = field(default=-math.inf, init=False, repr=False)
    _listener: socket.socket | None = field(default=None, init=False, repr=False)
    _http: ThreadingHTTPServer | None = field(default=None, init=False, repr=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False, repr=False)
    _lock: Any = field(default_factory=threading.RLock, init=False, repr=False)

    def start(self) -> None:
        """Start listening in background threads, and set the numbers of the open ports."""
        if not self.model.folder.exists():
            # It holds data of patients.
            make_folder(self.model.folder)
            self.model.folder.chmod(0o700)
        port = self.port
        try:
            self._listener = socket.create_server((self.host, port))
            self.port = int(self._listener.getsockname()[1])
            if self.health_port is not None:
                port = self.health_port
                self._http = ThreadingHTTPServer((self.host, self.health_port), _health(self))
                self.health_port = int(self._http.server_address[1])
                self._start_thread(partial(self._http.serve_forever, POLL))
        except OSError as error:
            self.stop()
            raise MachineError(
                f"port {port} of {self.host} is not usable ({error.strerror or error}); use another"
            ) from None
        self._start_thread(self._accept)

    def _start_thread(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        """Stop accepting connections, finish the decisions in progress and close."""
        listener, self._listener = self._listener, None
        if listener is not None:
            # Otherwise the accepting thread would keep the port.
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
        # A thread that runs while Python ends may abort the process.
        for listening in self._threads:
            listening.join(timeout=5)
        with self._lock:
            remaining = dict(self.sessions)
        for session, thread in remaining.items():
            session.queue.close()
            session.connection.close()
            thread.join()

    def health(self) -> dict[str, Any]:
        """Return the state of the service as JSON values."""
        with self._lock:
            scans = [s.header.scan_id for s in self.sessions if s.header is not None]
            slices = sum(len(session.slices) for session in self.sessions)
            counts = dict(self.counts)
            outcomes, last = list(self._outcomes), self._last_failure
        monitor, reason = self.model.monitor, self.model.void
        if reason is None and monitor is not None and monitor.alarm:
            reason = monitor.statement
        status = "ready"
        if reason is not None or time.monotonic() < last + RECENT:
            status = "degraded"
        if len(outcomes) == FAILING and not any(outcomes):
            status = "failing"
        return {
            "schema": "taskuq.health/1",
            "status": "stopping" if self._listener is None else status,
            "version": version("taskuq"),
            "policy": self.model.policy.fingerprint,
            "seconds": round(time.monotonic() - self.started, 1),
            "connections": len(self.sessions),
            "scans": len(scans),
            "slices": slices,
            "shadow": self.model.shadow,
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
                # Files or memory may have run out, or the client may have gone.
                time.sleep(PAUSE if self._listener is listener else 0)
                continue
            try:
                self._open_session(connection)
            except Exception:  # one client must not end the others
                self.count("failed connections")
                connection.close()

    def _open_session(self, client: socket.socket) -> None:
        """Serve a client, or refuse it if there are too many connections."""
        connection = Connection(client, self.limits)
        with self._lock:
            is_full = len(self.sessions) >= self.limits.connections
        if is_full:
            self.count("refused connections")
            text = f"the limit of {self.limits.connections} connections is reached; try again later"
            with suppress(OSError):
                connection.send(TEXT, json.dumps({"schema": SCHEMA, "message": text}))
                connection.send(CLOSE)
            connection.close()
            return
        session = Session(connection, self.model, self)
        thread = threading.Thread(target=self._run, args=(session,), daemon=True)
        with self._lock:
            self.sessions[session] = thread
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                self.sessions.pop(session)
            raise

    def _run(self, session: Session) -> None:
        self.count("connections")
        try:
            session.run()
        finally:
            with self._lock:
                self.sessions.pop(session, None)

    def claim(self, header: ScanHeader, session: Session) -> None:
        """Assign a scan to one connection; refuse it while another connection holds it."""
        with self._lock:
            # Of two simultaneous sessions the later one sees the other.
            session.header = header
            key, sessions = session.key(), self.sessions.items()
            earlier = [t for other, t in sessions if other is not session and other.key() == key]
        until = time.monotonic() + self.limits.claim
        for thread in earlier:
            # Its client may have gone while a round is still being decided.
            thread.join(timeout=max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in earlier):
            session.header = None
            text = "this scan is running on another connection; close that one first"
            raise InputError(text, code="file.exists")

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def note_outcome(self, is_sound: bool) -> None:
        """Record, for health checks, whether a round or a scan ended without a fault."""
        with self._lock:
            self._outcomes.append(is_sound)
            if not is_sound:
                self._last_failure = time.monotonic()

    def log(self, level: str, event: str, **more: Any) -> None:
        """Log an event; its fields never identify a patient."""
        number = getattr(logging, level.upper())
        self.logger.log(number, event, extra={"fields": more})


def _health(service: Service) -> type[BaseHTTPRequestHandler]:
    slots = threading.Semaphore(service.limits.connections)

    class Health(BaseHTTPRequestHandler):
        """HTTP endpoint: metrics at /metrics, health as JSON at any other path."""

        timeout = 10

        def handle(self) -> None:
            """Handle a request, or drop it if too many are in progress."""
            if slots.acquire(blocking=False):
                try:
                    super().handle()
                finally:
                    slots.release()

        def do_GET(self) -> None:
            health = service.health()
            status, kind, text = 200, "application/json", json.dumps(health)
            if self.path.partition("?")[0] == "/metrics":
                kind, text = metrics(health, service.latencies)
            elif health["status"] not in ("ready", "degraded"):
                status = 503
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *given: Any) -> None: ...

    return Health


def freeze_gc() -> None:
    """Exclude all current objects from garbage collection."""
    gc.collect()
    gc.freeze()


def parse_address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(f"address must be HOST:PORT, got {text!r}", code="value.invalid")
    return host.strip("[]") or LOOPBACK, int(port)


def open_service_model(config: ServeConfig) -> ServiceModel:
    """Load and check policy, networks, masks and geometry."""
    loaded, masks = load_policy(config.policy), config.masks
    if config.runtime is not None:
        excluded = ("recover", "task", "masks", "device", "adaptive")
        if any(getattr(config, name) is not None for name in excluded):
            message = "--runtime excludes --recover, --task, --masks, --adaptive and --device"
            raise InputError(message, code="option.conflict")
        from taskuq.service._runtime import open_runtime

        parts = vars(open_runtime(config.runtime, loaded))
    elif config.recover is None or config.task is None:
        raise InputError("use --recover and --task, or --runtime", code="option.missing")
    else:
        parts = _load_networks(loaded, config.recover, config.task, masks, config.device)
        if config.adaptive is not None:
            parts["adaptive"] = _adaptive_lines(config.adaptive, loaded, masks)
    delta, state = config.monitor, config.output / "monitor.json"
    merged, problems = policy_geometry(loaded, config.geometry)
    if unrecorded := merged.unrecorded:
        names = ", ".join(unrecorded).replace("_", " ")
        options = "pass --coils, --matrix or --field-of-view"
        problems.append(f"the policy does not record {names}: {options}")
    return ServiceModel(
        policy=loaded, **parts, folder=config.output, seed=config.seed, deadline=config.deadline,
        monitor=None if delta is None else Monitor(loaded, delta=delta, state=state),
        void=_mismatch(loaded, config.allow_mismatch, problems, **parts), geometry=merged,
        shadow=config.shadow, allow_mismatch=config.allow_mismatch,
    )  # fmt: skip


def _mismatch(
    policy: Policy, is_allowed: bool, others: Sequence[str], recover: Any, task: Any,
    columns: Sequence[NDArray[np.intp]], adaptive: Any = None,
    fingerprints: Mapping[str, str] | None = None, **rest: Any,
) -> str | None:  # fmt: skip
    """Return why the guarantee does not hold for the networks and masks of a service, or None."""
    masks = np.zeros((len(columns) - 1, sum(map(len, columns))), dtype=bool)
    for k, added in enumerate(columns[:-1]):
        masks[k:, added] = True
    executor = Executor(recover, task, fingerprints=fingerprints or {})
    found = find_mismatches(policy, executor, adaptive, mask_fingerprint(masks))
    differences = [*found, *others]
    if differences and not is_allowed:
        text = f"{'; '.join(differences)}; use --allow-mismatch to serve without a guarantee"
        raise InputError(text, code="policy.mismatch")
    return void_reason(differences, depth=4)


def _adaptive_lines(path: Path, policy: Policy, masks: Path | None) -> AdaptiveLines:
    """Return the adaptive rule configured in the table [adaptive] of a run."""
    table = read_toml(path).get("adaptive")
    if table is None:
        raise InputError(f"{path} has no table [adaptive]", code="config.missing")
    config = from_toml_table(AdaptiveConfig, table, "adaptive")
    lines, rates = _masks_of_rounds(policy, masks), tuple(map(float, policy.accelerations))
    return config.rule(MultiCoilMRI(lines, rates), lines, rates)


def _load_networks(
    policy: Policy, recover: str, task: str, masks: Path | None, device: str | None
) -> dict[str, Any]:
    from taskuq.recover._methods import open_recovery
    from taskuq.task import load
    from taskuq.training._weights import weights_fingerprint

    chosen, names = pick_device(device), {"recover": recover, "task": task}
    return {
        "recover": open_recovery(recover, device=chosen),
        "task": load(locate(task)).to(chosen),
        # As in the configuration of a run, which its policy stores.
        "fingerprints": {part: weights_fingerprint(name) for part, name in names.items()},
        "columns": added_columns(_masks_of_rounds(policy, masks)),
    }


def _masks_of_rounds(policy: Policy, masks: Path | None) -> BoolArray:
    """Return the masks (round, width) in a file; by default, those of the bundled networks."""
    rates = tuple(map(float, policy.accelerations))
    return MaskConfig(accelerations=rates).masks(128) if masks is None else read_masks(masks, rates)


def export_service(
    policy: Path, recover: str, task: str, masks: Path | None, folder: Path, *, coils: int,
    height: int | None, allow_mismatch: bool = False,
) -> Path:  # fmt: skip
    from taskuq.service._export import write_runtime

    if coils < 1 or (height is not None and height < 1):
        raise InputError("--coils and --height must be positive", code="value.invalid")
    loaded = load_policy(policy)
    parts = _load_networks(loaded, recover, task, masks, "cpu")
    _mismatch(loaded, allow_mismatch, (), **parts)
    width = sum(map(len, parts["columns"]))
    return write_runtime(folder, loaded, **parts, shape=(coils, height or width, width))
