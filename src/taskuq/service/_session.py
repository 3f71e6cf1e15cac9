"""Client session: received slices, decided rounds and replies."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from taskuq._arrays import as_array, is_tensor
from taskuq._config import from_toml_table
from taskuq._io import complete_record, file_lock, parse_json, to_json_value
from taskuq._seeds import case_seed
from taskuq.errors import InputError, first_line
from taskuq.measure._mri import MRIMeasurement, combine_columns
from taskuq.pipeline._executor import DeadlineWorker, Executor
from taskuq.policy._policy import Policy
from taskuq.protocols import AdaptiveMeasure, Recover, Task
from taskuq.scan._acquire import Awaited, ScanOptions, open_scan
from taskuq.scan._monitor import Monitor
from taskuq.scan._scanners import as_scanners
from taskuq.scan._state import RoundRecord, ScanFlags
from taskuq.service import _mrd as mrd

if TYPE_CHECKING:
    from taskuq.service._server import Service


@dataclass
class _StreamedSlice:
    """Scanner of one slice, whose lines arrive as MRD acquisitions."""

    columns: Sequence[NDArray[np.intp]]
    shape: tuple[int, int, int]
    accelerations: Sequence[float]
    scan_id: str
    lines: dict[int, NDArray[np.complex64]] = field(default_factory=dict, repr=False)
    faults: dict[int, str] = field(default_factory=dict)
    frame: tuple[Any, ...] | None = None
    is_final: bool = False
    lock: Any = field(default_factory=threading.RLock, repr=False)

    @property
    def nbytes(self) -> int:
        coils, height, _ = self.shape
        return 8 * coils * height * len(self.lines)

    def add(self, column: int, data: Any) -> str | None:
        """Add a line of k-space (coil, height); return the reason for rejecting it, or None."""
        width, line = self.shape[2], np.asarray(data)
        if not 0 <= column < width:
            return f"a line with kspace_encode_step_1 {column}; 0 to {width - 1} is needed"
        if not np.isfinite(line).all():
            return f"line {column} has data with NaN or infinity"
        with self.lock:
            before = self.lines.get(column)
            if before is None:
                self.lines[column] = line.astype(np.complex64)
            elif not self.is_final and not np.array_equal(before, line):
                self.faults[column] = f"line {column} arrived twice with different values"
                return self.faults[column]
        return None

    def request(self, round: int, lines: NDArray[np.int64]) -> None:
        """Set the k-space lines that a round adds."""
        columns = list(self.columns)
        columns[round] = np.asarray(lines, dtype=np.intp)
        self.columns = columns

    def has(self, round: int) -> bool:
        """Return True if all lines of a round have arrived."""
        with self.lock:
            return self.lines.keys() >= set(self.columns[round].tolist())

    def finalize(self) -> str | None:
        with self.lock:
            fault = next(iter(self.faults.values()), None)
            self.is_final = fault is None
        return fault

    def measure(self, round: int) -> dict[str, Any]:
        """Return the received lines of a round as a measurement."""
        with self.lock:
            assert self.has(round), "a round is measured when its lines have arrived"
            fault = next(iter(self.faults.values()), "")
            lines = [self.lines[column] for column in self.columns[round].tolist()]
        return {
            "columns": self.columns[round],
            "kspace": np.stack(lines, axis=-1),
            "round": np.array(round),
            "scan_id": np.array(self.scan_id),
            "fault": np.array(fault),
        }

    def remeasure(self, round: int, measurement: dict[str, Any]) -> None:
        """Raise an error if the received lines of a stored round differ from those stored."""
        arrived, names = self.measure(round), ("columns", "kspace")
        is_same = all(np.array_equal(arrived[name], measurement[name]) for name in names)
        if self.faults or not is_same:
            text = f"scan {self.scan_id} is stored with different data in round {round}"
            raise InputError(text, code="resume.mismatch")

    def combine(self, measurements: Sequence[dict[str, Any]]) -> MRIMeasurement:
        return combine_columns(measurements, self.shape, self.accelerations)

    def is_complete(self, measurements: Sequence[dict[str, Any]]) -> bool:
        return sum(len(one["columns"]) for one in measurements) == self.shape[-1]


@dataclass(eq=False)
class _ActiveScan:
    """Scan in progress, with the round and the cases that it waits for."""

    slices: dict[int, _StreamedSlice]
    slice_of: dict[str, int]
    rounds: Generator[Awaited, None, Any]
    awaited: Awaited
    is_queued: bool = False
    ready_since: float = 0.0

    @property
    def is_ready(self) -> bool:
        round_, cases = self.awaited
        return all(self.slices[self.slice_of[case]].has(round_) for case in cases)


@dataclass(eq=False)
class _DecisionQueue:
    """First-in first-out queue of scans whose round is complete; one thread decides them."""

    max_waiting: int
    on_end: Callable[[_ActiveScan, str | None], None]
    _ready: deque[_ActiveScan] = field(default_factory=deque)
    _is_deciding: bool = False
    _is_closing: bool = False
    _last: float = field(default_factory=time.monotonic)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def offer(self, scan: _ActiveScan) -> None:
        """Queue a scan if all lines of its round have arrived, unless it is queued already."""
        with self._changed:
            if not self._is_closing and not scan.is_queued and scan.is_ready:
                scan.is_queued, scan.ready_since = True, time.perf_counter()
                self._ready.append(scan)
                self._changed.notify_all()

    def wait(self) -> None:
        """Block while the queue is full, so that the client stops sending."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or self._waiting < self.max_waiting)

    def close(self) -> None:
        """Accept no more scans, and wait until every queued scan has been decided."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread not in (None, threading.current_thread()):
            self._thread.join()

    def is_busy(self, since: float) -> bool:
        """Return True if a round is waiting or was decided in the last ``since`` seconds."""
        with self._changed:
            return self._waiting > 0 or time.monotonic() < self._last + since

    @property
    def _waiting(self) -> int:
        return len(self._ready) + self._is_deciding

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._is_closing)
                if not self._ready:
                    return
                self._is_deciding = True
                scan = self._ready.popleft()
            self._decide(scan)
            # Hold no lines of this scan while waiting for the next.
            del scan

    def _decide(self, scan: _ActiveScan) -> None:
        # A sentence: an exception would keep its frames, and with them the lines.
        is_over, failure = False, None
        try:
            scan.awaited = next(scan.rounds)
        except StopIteration:
            is_over = True
        except Exception as error:  # one slice must not end the others
            is_over, failure = True, first_line(error)
        if is_over:
            self.on_end(scan, failure)
        with self._changed:
            self._is_deciding, self._last = False, time.monotonic()
            scan.is_queued = is_over or scan.is_ready
            if scan.is_queued and not is_over:
                scan.ready_since = time.perf_counter()
                self._ready.append(scan)
            self._changed.notify_all()


SCHEMA = "taskuq.mrd/1"
# Fields of a round's record that are replied as JSON.
REPLIED = ("case", "round", "acceleration", "lower", "upper", "reason", "fault")
# Seconds for which a refused client can still read the reply.
LINGER = 5.0


def policy_geometry(policy: Policy, given: mrd.Geometry) -> tuple[mrd.Geometry, list[str]]:
    """Return a policy's geometry, completed by ``given``, and messages on contradictions."""
    stored = policy.provenance.get("geometry", {})
    with complete_record("the policy", "record of its geometry", "plan again"):
        recorded = from_toml_table(mrd.Geometry, stored, "geometry")
    both = {name: (getattr(recorded, name), mine) for name, mine in vars(given).items() if mine}
    differ = [
        f"the policy was calibrated with {name} {theirs}, got {mine}"
        for name, (theirs, mine) in both.items()
        if theirs and theirs != mine
    ]
    missing = {name: mine for name, (theirs, mine) in both.items() if not theirs}
    return replace(recorded, **missing), differ


@dataclass(frozen=True)
class ServiceModel:
    """Policy, networks and masks of a service."""

    policy: Policy
    recover: Recover
    task: Task
    columns: list[NDArray[np.intp]]
    folder: Path
    seed: int = 0
    deadline: float | None = None
    monitor: Monitor | None = None
    shadow: bool = False
    adaptive: AdaptiveMeasure | None = None
    shape: tuple[int, int, int] | None = None
    geometry: mrd.Geometry = field(default_factory=mrd.Geometry)
    void: str | None = None
    allow_mismatch: bool = False
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        geometry, _ = policy_geometry(self.policy, self.geometry)
        object.__setattr__(self, "geometry", geometry)

    @property
    def is_joint(self) -> bool:
        """True if one decision applies to all slices of a scan."""
        by_group = self.monitor is not None and self.monitor._is_by_group
        return self.policy.whole_group or by_group


@dataclass(eq=False)
class Session:
    """State of one client connection."""

    connection: mrd.Connection
    model: ServiceModel
    service: Service
    header: mrd.ScanHeader | None = None
    policy: Policy = field(init=False)
    void: str | None = None
    slices: dict[int, _StreamedSlice] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    skipped_kinds: set[str] = field(default_factory=set)
    queue: _DecisionQueue = field(init=False)
    shadow: bool = field(init=False)
    _active: dict[int, _ActiveScan] = field(default_factory=dict)
    _buffered: int = 0
    _progress: float = field(default_factory=time.monotonic)
    # Rounds and problems of refused lines, by slice; None for slices that the header lacks.
    _refused: dict[int | None, tuple[int, str]] = field(default_factory=dict)
    _noise: mrd.Prewhitening | None = None
    _xml: str = field(default="", repr=False)
    _worker: DeadlineWorker = field(init=False)
    _lock: Any = field(default_factory=threading.RLock)
    _held: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.policy, self.shadow = self.model.policy, self.model.shadow
        self.queue = _DecisionQueue(self.connection.limits.waiting, self._end)
        # One for all slices, so that late rounds queue instead of adding threads.
        self._worker = DeadlineWorker(self.model.deadline)
        self.connection.is_awaited = lambda: self.queue.is_busy(self.connection.limits.idle)

    def run(self) -> None:
        """Read until the client is done, and decide the rounds that are ready."""
        self.connection.wait_until(time.monotonic() + self.connection.limits.header)
        fault = None
        try:
            while (message := self.connection.read()) is not None:
                if message.kind == mrd.HEADER:
                    self._begin(message.content)
                elif message.kind in (mrd.CONFIG_TEXT, mrd.TEXT):
                    self._configure(message.content)
                elif message.kind == mrd.ACQUISITION:
                    self._line(message.content)
                self._require_progress()
                self.queue.wait()
        except InputError as error:
            fault = first_line(error)
            is_plain = self.header is None and error.code != "file.format"
            # Sentences of later errors may name the scan or the patient.
            reason = fault if is_plain or isinstance(error, mrd.StreamError) else None
            self._log("warning", "refused", code=error.code, reason=reason)
            self.service.count("refused scans" if self.header is None else "ended scans")
            self.send_text(fault)
        except Exception as error:  # one connection must not end the others
            fault = f"the service failed ({type(error).__name__})"
            self._log("error", "failed connection", error=type(error).__name__)
            self.service.count("failed connections")
            self.service.note_outcome(False)
            self.send_text(fault)
        finally:
            self.queue.close()
            if self.connection.has_begun:
                self._answer_undecided(fault)
            # A reference to this session must not keep the lines in memory.
            self.slices.clear()
            self._active.clear()
            self._held.close()
            with suppress(OSError):
                self.connection.send(mrd.CLOSE)
            if fault is not None:
                self.connection.drain(LINGER)
            self.connection.close()

    def _configure(self, text: str) -> None:
        """Turn on shadow mode if a client's parameters request it; they cannot turn it off."""
        with suppress(ValueError, RecursionError):
            record = parse_json(text)
            given = record.get("parameters") if isinstance(record, dict) else None
            value = given.get("shadow") if isinstance(given, dict) else None
            self.shadow |= str(value).lower() == "true"

    def send_text(self, sentence: str, **more: Any) -> None:
        self.service.count("sentences")
        text = json.dumps({"schema": SCHEMA, "message": sentence, **more})
        with suppress(OSError):
            self.connection.send(mrd.TEXT, text)

    def _log(self, level: str, event: str, **more: Any) -> None:
        self.service.log(level, event, scan=self.key(), **more)

    def _reject(self, problem: str, slice_: int | None = None, **more: Any) -> None:
        """Refuse a line; once per round, also reply to a scanner that may wait for an image."""
        self.service.count("refused lines")
        self.send_text(f"{problem}; it is skipped", **more)
        if slice_ is None:
            return
        scan = self._active.get(slice_)
        round_ = -1 if scan is None else scan.awaited[0]
        if self._refused.get(slice_, (None, ""))[0] != round_:
            self._log("warning", "refused line", slice=slice_, reason=problem)
            self._refused[slice_] = round_, problem
            streamed = None if scan is None else scan.slices[slice_]
            columns = (streamed or self.model).columns[max(0, round_)].tolist()
            self._send_undecided(slice_, problem, columns)

    def _begin(self, xml: str) -> None:
        if self.header is not None:
            if xml != self._xml:
                text = "this connection has another header already; open one connection per scan"
                raise InputError(text, code="file.format")
            self.send_text("this connection has this header already; the second one is skipped")
            return
        header, model = mrd.read_header(xml), self.model
        self._require_supported(header)
        self._xml = xml
        self.connection.wait_until()
        self.service.claim(header, self)
        lock = model.folder / f".scan-{self.key()}.lock"
        # First in, last out: the file goes while the lock is held.
        self._held.enter_context(file_lock(lock, what=f"scan {header.scan_id}"))
        self._held.callback(lock.unlink, missing_ok=True)
        if model.geometry.prewhitened:
            self._noise = mrd.Prewhitening(header.noise_bandwidth)
        self.service.count("scans")
        self._log("info", "scan", slices=header.slices, shape=header.shape, void=self.void)
        rates = [R for R in model.policy.accelerations if np.isfinite(R)]
        slices = "all slices, which are decided together," if model.is_joint else "each slice"
        self.send_text(
            f"send these lines of {slices} first", lines=model.columns[0].tolist(),
            accelerations=rates, slices=header.slices, together=model.is_joint,
        )  # fmt: skip
        self.queue.start()
        self._progress = time.monotonic()
        if model.is_joint:
            self._open(range(header.slices))

    def _require_supported(self, header: mrd.ScanHeader) -> None:
        """Raise an error if a scan does not match the model or is too large."""
        model, width = self.model, sum(map(len, self.model.columns))
        differences, problem, self.void = model.geometry.differences(header), None, model.void
        if (strata := self.policy.strata) and header.stratum not in strata:
            given = f"userParameters.{mrd.STRATUM} is {header.stratum or 'missing'}"
            problem = f"{given}; the policy has the strata {', '.join(strata)}"
        elif header.shape[2] != width:
            lines = f"encodedSpace.matrixSize.y is {header.shape[2]}"
            problem = f"{lines}, the masks have {width} lines; use other masks"
        elif differences and not model.allow_mismatch:
            problem = f"{'; '.join(differences)}; use serve --allow-mismatch"
        elif model.shape not in (None, header.shape):
            problem = f"a slice has shape {header.shape}, the runtime {model.shape}; export again"
        if problem:
            raise InputError(problem, code="policy.mismatch")
        self.policy = self.policy.for_stratum(header.stratum if strata else None)
        if differences:
            self.void = self.void or f"No guarantee: {'; '.join(differences)}."
        limits = self.connection.limits
        at_once = header.nbytes if model.is_joint else header.nbytes // header.slices
        if header.slices > limits.slices:
            problem = f"the scan has {header.slices} slices, the limit is {limits.slices}"
        elif header.nbytes > limits.scan:
            problem = f"the scan has {_of_limit(header.nbytes, limits.scan)}; raise --max-scan"
        elif at_once > limits.buffer:
            problem = f"a decision needs {_of_limit(at_once, limits.buffer)}; raise --max-buffer"
        if problem:
            raise InputError(problem, code="value.invalid")

    def _require_progress(self) -> None:
        """Refuse a client that sends messages but no lines of its scan."""
        idle = self.connection.limits.idle
        is_late = self.header is not None and time.monotonic() > self._progress + idle
        if is_late and not self.queue.is_busy(idle):
            raise mrd.StreamError(f"no line arrived within {idle:g} s", code="value.invalid")

    def key(self, *more: int | str) -> str | None:
        """Return a pseudonymous identifier of the scan, or None if no header has been received."""
        if self.header is None:
            return None
        key = "\0".join([self.header.scan_id, self.header.patient, *map(str, more)])
        return hashlib.sha256(key.encode()).hexdigest()[:24]

    def _open(self, numbers: Iterable[int]) -> _ActiveScan:
        """Start the scan of a slice, or of all slices that share a decision."""
        assert self.header is not None, "slices come after the header"
        rates, columns = self.model.policy.accelerations, self.model.columns
        same = (columns, self.header.shape, rates, self.header.scan_id)
        slices = {k: _StreamedSlice(*same, lock=self._lock) for k in numbers}
        cases = {self.header.case(k): k for k in slices}
        scan = _ActiveScan(slices, cases, self._rounds(slices, cases), (0, tuple(cases)))
        self.slices |= slices
        self._active |= dict.fromkeys(slices, scan)
        return scan

    def _line(self, acquisition: Any) -> None:
        """Add a line to its slice, or send the reason for rejecting it."""
        self.service.count("lines")
        number, column = (idx := acquisition.idx).slice, idx.kspace_encode_step_1
        if self.header is None:
            self._reject("a line before the header")
            return
        if kind := mrd.non_imaging_kind(acquisition):
            self._skip(acquisition, kind)
            return
        if number in self.done:
            self._progress = time.monotonic()
            return
        if number >= self.header.slices:
            outside = f"a line with slice {number}; 0 to {self.header.slices - 1} is needed"
            self._refused[None] = 0, outside
            self._reject(outside)
            return
        if problem := mrd.line_problem(acquisition, self.header):
            self._reject(problem, number, slice=number)
            return
        data = acquisition.data if self._noise is None else self._noise.apply(acquisition)
        line = mrd.remove_oversampling(data, self.header.shape[1])
        with self._lock:
            # It may have been decided in the meantime.
            if number in self.done:
                return
            scan = self._active.get(number) or self._open([number])
            slice_ = scan.slices[number]
            before = slice_.nbytes
            frame = slice_.frame or mrd.line_frame(acquisition)
            problem = mrd.frame_problem(acquisition, frame) or slice_.add(column, line)
            if problem is None:
                slice_.frame, self._progress = frame, time.monotonic()
            self._buffered += slice_.nbytes - before
        if problem:
            # A line that came twice is a fault, which the decision reports.
            self._reject(problem, None if column in slice_.faults else number, slice=number)
        if self._buffered > self.connection.limits.buffer:
            used = _of_limit(self._buffered, self.connection.limits.buffer)
            text = f"undecided slices have {used}; send slices one by one, or raise --max-buffer"
            raise InputError(text, code="value.invalid")
        self.queue.offer(scan)

    def _skip(self, acquisition: Any, kind: str) -> None:
        """Use noise scans for prewhitening; skip other non-imaging acquisitions."""
        self.service.count("other lines")
        if self._noise is not None and acquisition.is_flag_set(mrd.NOISE):
            self._noise.add(acquisition)
            return
        if kind not in self.skipped_kinds:
            self.skipped_kinds.add(kind)
            self._log("info", "skipped", kind=kind)
            self.send_text(f"acquisitions that are no image lines are skipped: {kind}")

    def _rounds(
        self, slices: dict[int, _StreamedSlice], slice_of: dict[str, int]
    ) -> Generator[Awaited, None, Any]:
        """Scan a slice, or all slices that share a decision, from the stored state to the end."""
        header, model = self.header, self.model
        assert header is not None, "slices come after the header"
        key = self.key("all" if model.is_joint else min(slices))
        # Mean images by the seed of their samples.
        images: dict[int, Any] = {}
        rates = [*map(float, model.policy.accelerations), 1.0]

        def keep(recoveries: Any, seed: int) -> None:
            is_on_gpu = is_tensor(recoveries) and recoveries.is_cuda
            if is_on_gpu and recoveries.dtype == torch.float32:
                images[seed] = recoveries.mean(0)
            else:
                images[seed] = as_array(recoveries, "recoveries").mean(axis=0)

        def reply(record: RoundRecord) -> None:
            seed = case_seed(model.seed, record.case, rates[record.round])
            self._reply(record, slice_of[record.case], images.pop(seed, None))

        executor = Executor(
            model.recover,
            model.task,
            model.seed,
            model.fingerprints,
            self._worker,
            model.lock,
            keep,
        )
        patient = None if header.patient == header.scan_id else header.patient
        options = ScanOptions(
            header.scan_id, model.folder / f"scan-{key}.json", model.folder / "log.jsonl",
            model.monitor, reply, model.adaptive,
            ScanFlags(self.void, self.shadow, patient),
        )  # fmt: skip
        if model.is_joint:
            scanners = as_scanners({name: slices[k] for name, k in slice_of.items()}, None, None)
        else:
            ((name, k),) = slice_of.items()
            scanners = as_scanners(slices[k], name, None)
        yield from open_scan(self.policy, scanners, executor, options).rounds()

    def _end(self, scan: _ActiveScan, error: str | None) -> None:
        """Release the slices of a scan that has ended."""
        if error is not None:
            self.service.count("failed scans")
            self.service.note_outcome(False)
            self._log("error", "undecided", slices=sorted(scan.slices))
            self.send_text(f"slices {sorted(scan.slices)} cannot be decided: {error:.300}")
            for k in scan.slices:
                self._send_undecided(k, error, self._missing(k))
        with self._lock:
            for k, slice_ in scan.slices.items():
                self.done.add(k)
                self.slices.pop(k)
                self._active.pop(k)
                self._buffered -= slice_.nbytes

    def _answer_undecided(self, fault: str | None) -> None:
        """Reply for each slice without a final decision, so that no scanner waits for one."""
        if self.header is None:
            self._send_undecided(0, fault or "the stream ended before the header", [])
            return
        for k in range(self.header.slices):
            if k in self.done:
                continue
            _, problem = self._refused.get(k) or self._refused.get(None, (0, ""))
            text = fault or "the stream ended before all lines of a round had arrived"
            text += f" ({problem})" if problem else ""
            if not self._send_undecided(k, text, self._missing(k)):
                return

    def _missing(self, slice_: int) -> list[int]:
        assert self.header is not None, "slices come after the header"
        arrived = self.slices[slice_].lines if slice_ in self.slices else {}
        return [column for column in range(self.header.shape[2]) if column not in arrived]

    def _send_undecided(self, slice_: int, fault: str, lines: Sequence[int]) -> bool:
        """Send an image with the decision to continue; return False if the client is gone."""
        self.service.count("undecided")
        record = {"reason": f"continue: {fault:.300}", "fault": fault[:300]}
        if self.header is not None:
            record["case"] = self.header.case(slice_)
        return self._send_image(
            slice_, None, record, lines, decision="continue", would_stop=False, undecided=True,
            guarantee="No guarantee: there is no decision.", guaranteed=False, stored=False,
        )  # fmt: skip

    def _reply(self, record: RoundRecord, slice_: int, image: Any) -> None:
        """Send an image with the interval and the decision of a round."""
        assert self.header is not None, "slices come after the header"
        shadow = self.shadow
        stops = "would stop" if shadow else "stops"
        what = "repeated" if record.restored else stops if record.stop else "continues"
        self.service.count(what)
        if not record.restored:
            self.service.note_outcome(record.fault is None)
            scan = self._active.get(slice_)
            latency = time.perf_counter() - scan.ready_since if scan is not None else 0.0
            self.service.latencies.observe(latency)
            if record.fault is not None:
                self.service.count("faults")
            self._log(
                "info" if record.fault is None else "warning", "decision", slice=slice_,
                round=record.round, stop=record.stop, fault=record.fault is not None,
                guaranteed=record.void_reason is None, ms=round(1000 * latency, 1),
            )  # fmt: skip
        self._send_image(
            slice_, image, to_json_value(record.to_dict()), self._next_lines(record, slice_),
            decision="stop" if record.stop and not shadow else "continue",
            would_stop=record.stop, undecided=False,
            guarantee=record.void_reason or self.policy.statement,
            guaranteed=record.void_reason is None and self.policy.is_guaranteed,
            stored=record.restored,
        )  # fmt: skip

    def _send_image(
        self, slice_: int, image: Any, record: Mapping[str, Any], lines: Sequence[int], **meta: Any
    ) -> bool:
        import ismrmrd

        shape = (1, 1) if self.header is None else self.header.shape[1:]
        pixels = np.zeros(shape, dtype=np.float32) if image is None else as_array(image, "image")
        reply = ismrmrd.Image.from_array(np.ascontiguousarray(pixels.T), slice=slice_)
        reply.image_index = record.get("round", -1) + 1
        if self.header is not None:
            meta["scan_id"] = self.header.scan_id
        values = {**meta, "lines": lines, "shadow": self.shadow}
        texts = {name: v if isinstance(v, str) else json.dumps(v) for name, v in values.items()}
        texts |= {name: json.dumps(record.get(name)) for name in REPLIED}
        reply.meta = ismrmrd.Meta({f"taskuq_{name}": text for name, text in texts.items()})
        try:
            self.connection.send(mrd.IMAGE, reply)
        except OSError:
            # A client that has gone gets the stored decision when it reconnects.
            return False
        return True

    def _next_lines(self, record: RoundRecord, slice_: int) -> list[int]:
        """Return the lines of the next round; after a stop in shadow mode, all remaining lines."""
        columns, k = self.model.columns, record.round + 1
        if not (record.stop and self.shadow):
            is_chosen = record.stop or self.model.adaptive is not None
            return list(record.next_lines) if is_chosen else columns[k].tolist()
        if self.model.adaptive is None:
            return [int(column) for added in columns[k:] for column in added]
        return self._missing(slice_)


def _of_limit(size: int, limit: int) -> str:
    return f"{size / 2**20:.0f} MiB of k-space, the limit is {limit / 2**20:.0f} MiB"
