"""One connection: slices, rounds, answers."""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taskuq._arrays import as_array, is_tensor
from taskuq._io import file_lock, to_json_value
from taskuq._seeds import case_seed
from taskuq.errors import InputError, first_line
from taskuq.measure._mri import MRIMeasurement
from taskuq.pipeline._executor import DeadlineWorker
from taskuq.policy._policy import Policy
from taskuq.protocols import AdaptiveMeasure, Recover, Task
from taskuq.scan._acquire import Awaited, iter_scan
from taskuq.scan._monitor import Monitor
from taskuq.scan._round import coil_mismatch, component_name
from taskuq.scan._state import RoundRecord, ScanFlags
from taskuq.service._mrd import (
    ACQUISITION,
    CLOSE,
    HEADER,
    IMAGE,
    TEXT,
    Connection,
    ScanHeader,
    line_problem,
    non_imaging_kind,
    read_header,
)


class _KSpaceBuffer:
    """k-space of a slice, zero where not yet measured."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.kspace = torch.zeros(shape, dtype=torch.complex64)
        self.columns: set[int] = set()
        # The same memory: a line at a time is put there faster by NumPy.
        self._array: NDArray[np.complex64] = self.kspace.numpy()

    def put_line(self, column: int, line: NDArray[np.complex64]) -> None:
        """Put one line, (coil, height)."""
        _, height, width = self.kspace.shape
        rows, place = height // 2, (column - width // 2) % width
        self._array[:, height - rows :, place] = line[:, :rows]
        self._array[:, : height - rows, place] = line[:, rows:]
        self.columns.add(column)

    def put(self, columns: NDArray[Any], kspace: Any) -> None:
        """Put the lines of a piece, (coil, height, line)."""
        _, height, width = self.kspace.shape
        rows, place = height // 2, torch.as_tensor((columns - width // 2) % width)
        lines = torch.as_tensor(kspace).to(torch.complex64)
        self.kspace[:, height - rows :].index_copy_(2, place, lines[:, :rows])
        self.kspace[:, : height - rows].index_copy_(2, place, lines[:, rows:])
        self.columns.update(columns.tolist())

    def images(self, into: Tensor) -> Tensor:
        """Return the images of all coils, in the memory of another tensor, or of k-space itself."""
        _, height, width = self.kspace.shape
        found = torch.fft.ifft2(self.kspace, norm="ortho")
        for here, there in _halves(height):
            for left, right in _halves(width):
                into[:, here, left] = found[:, there, right]
        return into


def _halves(size: int) -> list[tuple[slice, slice]]:
    middle = size // 2
    return [
        (slice(middle, None), slice(None, size - middle)),
        (slice(None, middle), slice(size - middle, None)),
    ]


# Bytes that slices of one connection may take to put their lines together as they come.
ROOM = 32 * 2**20


@dataclass
class _StreamedSlice:
    """Scanner fed by incoming MRD acquisitions."""

    columns: Sequence[NDArray[np.intp]]
    shape: tuple[int, int, int]
    accelerations: Sequence[float]
    scan_id: str
    lines: dict[int, NDArray[np.complex64]] = field(default_factory=dict, repr=False)
    faults: dict[int, str] = field(default_factory=dict)
    is_settled: bool = False
    lock: Any = field(default_factory=threading.RLock, repr=False)
    canvas: _KSpaceBuffer | None = field(default=None, repr=False)
    _awaited: frozenset[int] = field(init=False, repr=False)
    _own: dict[int, NDArray[np.complex64]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._awaited = frozenset(self.columns[0].tolist())

    @property
    def nbytes(self) -> int:
        coils, height, _ = self.shape
        return 8 * coils * height * len(self.lines)

    def add(self, column: int, data: Any) -> str | None:
        """Take a line of k-space (coil, height), or say why it cannot be one of this slice."""
        coils, height, width = self.shape
        line = np.asarray(data)
        if not 0 <= column < width:
            return f"line {column} of {width} lines"
        if line.shape != (coils, height):
            return f"line {column} has shape {line.shape}, and {(coils, height)} is needed"
        if not np.isfinite(line).all():
            return f"line {column} holds numbers that are not finite"
        with self.lock:
            before = self.lines.get(column)
            if before is None:
                self.lines[column] = line.astype(np.complex64)
                if self.canvas is not None and column in self._awaited:
                    self.canvas.put_line(column, self.lines[column])
            elif not self.is_settled and not np.array_equal(before, line):
                self.faults[column] = f"line {column} came twice, with other numbers"
                return self.faults[column]
        return None

    def request(self, round: int, lines: NDArray[np.int64]) -> None:
        """Be told which columns a round adds, where a rule chooses them."""
        # Nobody knew which lines to put before.
        self.canvas = None
        columns = list(self.columns)
        columns[round] = np.asarray(lines, dtype=np.intp)
        self.columns = columns

    def has(self, round: int) -> bool:
        """Return True if all lines that a round adds have come."""
        with self.lock:
            return all(column in self.lines for column in self.columns[round].tolist())

    def finalize(self) -> str | None:
        with self.lock:
            fault = next(iter(self.faults.values()), None)
            self.is_settled = fault is None
        return fault

    def measure(self, round: int) -> dict[str, Any]:
        """Return the lines that a round adds."""
        wanted = self.columns[round].tolist()
        with self.lock:
            assert self.has(round), "a round is measured when its lines have come"
            fault = next(iter(self.faults.values()), "")
            kspace = np.stack([self.lines[column] for column in wanted], axis=-1)
            self._own[round] = kspace
        return {
            "columns": self.columns[round],
            "kspace": kspace,
            "round": np.array(round),
            "scan_id": np.array(self.scan_id),
            "fault": np.array(fault),
        }

    def remeasure(self, round: int, measurement: dict[str, Any]) -> None:
        """Measure a stored round once more, and refuse lines that were not stored."""
        found = self.measure(round)
        is_same = all(
            np.array_equal(found[name], measurement[name]) for name in ("columns", "kspace")
        )
        if self.faults or not is_same:
            raise InputError(
                f"scan {self.scan_id} is stored with other lines of round {round} than those that "
                "came now; nothing is decided about these, give every scan a measurementID of its "
                "own"
            )

    def combine(self, pieces: Sequence[dict[str, Any]]) -> MRIMeasurement:
        """Join what all rounds so far have measured: what ``joined`` pieces are, to the bit."""
        mask = torch.zeros(self.shape[2], dtype=torch.bool)
        for piece in pieces:
            mask[torch.as_tensor(piece["columns"])] = True
        rounds, R = len(pieces), self.accelerations
        with self.lock:
            canvas = self.canvas if self._is_drawn(pieces) else None
            if canvas is not None:
                # Nothing is put while it is read.
                self._awaited = frozenset()
        images = self._redrawn(pieces) if canvas is None else self._drawn(canvas, pieces)
        return MRIMeasurement(images, mask, float(R[rounds - 1]) if rounds <= len(R) else 1.0)

    def _is_drawn(self, pieces: Sequence[dict[str, Any]]) -> bool:
        """Return True if pieces are what this slice measured, and the canvas has nothing beyond
        them.
        """
        if self.canvas is None:
            return False
        own = [self._own.get(k) is piece["kspace"] for k, piece in enumerate(pieces)]
        known = {column for piece in pieces for column in piece["columns"].tolist()}
        return all(own) and self.canvas.columns <= known

    def _drawn(self, canvas: _KSpaceBuffer, pieces: Sequence[dict[str, Any]]) -> Tensor:
        """The images of the canvas, which then takes lines of the next round as they come."""
        for piece in pieces:
            # Lines that came before their round did.
            late = ~np.isin(piece["columns"], list(canvas.columns))
            if late.any():
                canvas.put(piece["columns"][late], piece["kspace"][..., late])
        # Memory of its own: a recovery that is late reads it while the next lines are put.
        images = canvas.images(torch.empty_like(canvas.kspace))
        with self.lock:
            self._awaited = frozenset(
                c for k in self.columns[len(pieces) :][:1] for c in k.tolist()
            )
        return images

    def _redrawn(self, pieces: Sequence[dict[str, Any]]) -> Tensor:
        """The images of pieces from elsewhere, a stored scan, or where there is no canvas."""
        canvas = _KSpaceBuffer(self.shape)
        for piece in pieces:
            canvas.put(piece["columns"], piece["kspace"])
        return canvas.images(canvas.kspace)

    def is_complete(self, pieces: Sequence[dict[str, Any]]) -> bool:
        """Return True if every line is there."""
        return sum(len(piece["columns"]) for piece in pieces) == self.shape[-1]


def _assign_buffers(
    slices: Iterable[_StreamedSlice], others: Iterable[_StreamedSlice]
) -> list[_StreamedSlice]:
    """Assign k-space buffers to slices while memory lasts."""
    each, taken = list(slices), sum(other.canvas is not None for other in others)
    for slice_ in each:
        taken += 1
        if 8 * math.prod(slice_.shape) * taken > ROOM:
            break
        slice_.canvas = _KSpaceBuffer(slice_.shape)
    return each


@dataclass(eq=False)
class _ActiveScan:
    """Scan between two of its rounds."""

    slices: dict[int, _StreamedSlice]
    number: dict[str, int]
    rounds: Generator[Awaited, None, Any]
    awaited: Awaited
    has_turn: bool = False

    @property
    def is_ready(self) -> bool:
        """Return True if all lines have come that it waits for."""
        round_, cases = self.awaited
        return all(self.slices[self.number[case]].has(round_) for case in cases)


@dataclass(eq=False)
class _DecisionQueue:
    """First-in first-out queue of ready rounds."""

    most: int
    ended: Callable[[_ActiveScan, str | None], None]
    _ready: deque[_ActiveScan] = field(default_factory=deque)
    _is_deciding: bool = False
    _is_leaving: bool = False
    _last: float = field(default_factory=time.monotonic)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to decide."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def offer(self, scan: _ActiveScan) -> None:
        """Give a scan a turn where its lines have come, and it has none."""
        with self._changed:
            if not self._is_leaving and not scan.has_turn and scan.is_ready:
                scan.has_turn = True
                self._ready.append(scan)
                self._changed.notify_all()

    def wait(self) -> None:
        """Wait while too many rounds do: what is not read keeps the other end from sending."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_leaving or self._waiting < self.most)

    def leave(self) -> None:
        """Take nothing more, and let what is ready be decided."""
        with self._changed:
            self._is_leaving = True
            self._changed.notify_all()
        if self._thread not in (None, threading.current_thread()):
            self._thread.join()

    def is_busy(self, since: float) -> bool:
        """Return True if something is being decided, or was so many seconds ago."""
        with self._changed:
            return self._waiting > 0 or time.monotonic() < self._last + since

    @property
    def _waiting(self) -> int:
        return len(self._ready) + self._is_deciding

    def _run(self) -> None:
        while (scan := self._next()) is not None:
            self._decide(scan)
            # While the next one is waited for, nothing of this one is kept.
            del scan

    def _decide(self, scan: _ActiveScan) -> None:
        # In words: an error would keep the frames that it came through, and their lines.
        is_over, failed = False, None
        try:
            scan.awaited = next(scan.rounds)
        except StopIteration:
            is_over = True
        except Exception as error:  # one slice must not end the others
            is_over, failed = True, first_line(error)
        if is_over:
            self.ended(scan, failed)
        with self._changed:
            self._is_deciding, self._last = False, time.monotonic()
            scan.has_turn = is_over or scan.is_ready
            if scan.has_turn and not is_over:
                self._ready.append(scan)
            self._changed.notify_all()

    def _next(self) -> _ActiveScan | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._is_leaving)
            if not self._ready:
                return None
            self._is_deciding = True
            return self._ready.popleft()


SCHEMA = "taskuq.mrd/1"


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
    rule: AdaptiveMeasure | None = None
    shape: tuple[int, int, int] | None = None
    void: str | None = None
    unlike: bool = False
    model: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def is_together(self) -> bool:
        """Return True if all slices of a scan go through its rounds together."""
        watched = self.monitor is not None and self.monitor._is_by_group
        return self.policy.whole_group or watched


@dataclass(eq=False)
class Session:
    """State of one client connection."""

    wire: Connection
    chain: ServiceModel
    count: Callable[[str], None]
    take_over: Callable[[ScanHeader, Session], None]
    header: ScanHeader | None = None
    void: str | None = None
    slices: dict[int, _StreamedSlice] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    beside: set[str] = field(default_factory=set)
    turns: _DecisionQueue = field(init=False)
    _under_way: dict[int, _ActiveScan] = field(default_factory=dict)
    _kept: int = 0
    _worker: DeadlineWorker = field(init=False)
    _lock: Any = field(default_factory=threading.RLock)
    _held: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.turns = _DecisionQueue(self.wire.limits.waiting, self._ended)
        # One for all slices: those that are late wait for one another, not in threads of their own.
        self._worker = DeadlineWorker(self.chain.deadline)
        self.wire.is_awaited = lambda: self.turns.is_busy(self.wire.limits.idle)

    def run(self) -> None:
        """Read until the other end is done; then let what is being computed end."""
        self.wire.wait_until(time.monotonic() + self.wire.limits.header)
        try:
            while (message := self.wire.read()) is not None:
                if message.kind == HEADER:
                    self._begin(message.content)
                elif message.kind == ACQUISITION:
                    self._line(message.content)
                self.turns.wait()
        except InputError as error:
            self.tell(first_line(error))
        except Exception as error:  # one connection must not end the others
            self.count("failed connections")
            self.tell(f"the service failed ({type(error).__name__})")
        finally:
            self.leave()
            # At once: whoever refers to a connection must not keep its lines.
            self.slices.clear()
            self._under_way.clear()
            self._held.close()
            with suppress(OSError):
                self.wire.send(CLOSE)
            self.wire.close()

    def leave(self) -> None:
        """Wait for no more lines, and let what is ready be decided."""
        self.turns.leave()

    def tell(self, sentence: str, **more: Any) -> None:
        self.count("sentences")
        text = json.dumps({"schema": SCHEMA, "said": sentence, **more})
        with suppress(OSError):
            self.wire.send(TEXT, text)

    def _begin(self, xml: str) -> None:
        if self.header is not None:
            self.tell("this connection has a header already; the second one is passed over")
            return
        header, chain = read_header(xml), self.chain
        self._require_fitting(header)
        self.wire.wait_until(None)
        self.take_over(header, self)
        lock = chain.folder / f".scan-{self._key()}.lock"
        self._held.enter_context(file_lock(lock, what=f"scan {header.scan_id}"))
        rates = [R for R in chain.policy.accelerations if np.isfinite(R)]
        together = chain.is_together
        whose = "all slices, which are decided together," if together else "each slice"
        self.tell(f"send these lines of {whose} first", lines=chain.columns[0].tolist(),
                  accelerations=rates, slices=header.slices, together=together)  # fmt: skip
        self.turns.start()
        if together:
            self._open(range(header.slices))

    def _require_fitting(self, header: ScanHeader) -> None:
        """Refuse a scan that cannot be decided about, or that is larger than is taken."""
        limits, width = self.wire.limits, sum(map(len, self.chain.columns))
        self.void = self.chain.void
        if said := coil_mismatch(self.chain.policy, header.shape[0]):
            if not self.chain.unlike:
                raise InputError(f"{said} (serve --allow-mismatch goes on without a promise)")
            self.void = self.void or f"Nothing is promised: {said}."
        if header.shape[2] != width:
            raise InputError(
                f"the scan has {header.shape[2]} lines and this service decides about {width}; use "
                "the masks of that size"
            )
        if self.chain.shape not in (None, header.shape):
            raise InputError(
                f"the scan has slices {header.shape} (coil, height, width), and this service runs "
                f"for {self.chain.shape}; export another runtime"
            )
        if header.slices > limits.slices:
            raise InputError(f"the scan has {header.slices} slices, and {limits.slices} are taken")
        if header.nbytes > limits.scan:
            raise InputError(
                f"the header announces {_mib(header.nbytes)} of k-space, and {_mib(limits.scan)} "
                "are taken; --max-scan takes more"
            )
        at_once = header.nbytes if self.chain.is_together else header.nbytes // header.slices
        if at_once > limits.kept:
            raise InputError(
                f"slices that are decided at once have {_mib(at_once)} of k-space, and "
                f"{_mib(limits.kept)} are kept; --max-buffer keeps more"
            )

    def _key(self, *more: int | str) -> str:
        assert self.header is not None, "slices come after the header"
        key = "\0".join([self.header.scan_id, self.header.patient, *map(str, more)])
        return hashlib.sha256(key.encode()).hexdigest()[:24]

    def _open(self, numbers: Iterable[int]) -> _ActiveScan:
        """Wait for the lines of a slice, or of all that go together."""
        assert self.header is not None, "slices come after the header"
        rates, columns = self.chain.policy.accelerations, self.chain.columns
        shape, scan_id = self.header.shape, self.header.scan_id
        slices = {
            k: _StreamedSlice(columns, shape, rates, scan_id, lock=self._lock) for k in numbers
        }
        _assign_buffers(slices.values(), self.slices.values())
        cases = {self.header.case(k): k for k in slices}
        scan = _ActiveScan(slices, cases, self._rounds(slices, cases), (0, tuple(cases)))
        self.slices |= slices
        self._under_way |= dict.fromkeys(slices, scan)
        return scan

    def _line(self, acquisition: Any) -> None:
        """Give a line to its slice; one that is not of this scan is refused in words."""
        self.count("lines")
        number, column = int(acquisition.idx.slice), int(acquisition.idx.kspace_encode_step_1)
        if self.header is None:
            self.count("refused lines")
            self.tell("a line came before the header, and is passed over")
            return
        if kind := non_imaging_kind(acquisition):
            self.count("lines beside images")
            if kind not in self.beside:
                self.beside.add(kind)
                self.tell(f"what comes beside the image is passed over: {kind}")
            return
        if number in self.done:
            return
        if number >= self.header.slices:
            self.count("refused lines")
            self.tell(f"slice {number} is passed over: there are {self.header.slices}, from 0")
            return
        if said := line_problem(acquisition):
            self.count("refused lines")
            self.tell(f"{said}; it is passed over", slice=number)
            return
        with self._lock:
            # Meanwhile it may have been decided.
            if number in self.done:
                return
            scan = self._under_way.get(number) or self._open([number])
            slice_ = scan.slices[number]
            before = slice_.nbytes
            said = slice_.add(column, acquisition.data)
            self._kept += slice_.nbytes - before
        if said:
            self.count("refused lines")
            self.tell(f"{said}; it is passed over", slice=number)
        if self._kept > self.wire.limits.kept:
            raise InputError(
                f"lines of slices under way ({len(self.slices)}) take {_mib(self._kept)}, and "
                f"{_mib(self.wire.limits.kept)} are kept; send slices one after another, or keep "
                "more by --max-buffer"
            )
        self.turns.offer(scan)

    def _rounds(
        self, slices: dict[int, _StreamedSlice], number: dict[str, int]
    ) -> Generator[Awaited, None, Any]:
        """Scan a slice, or all that go together, from wherever its state is to the end."""
        header, chain = self.header, self.chain
        assert header is not None, "slices come after the header"
        key = self._key("all" if chain.is_together else min(slices))
        # A draw is known by its seed.
        images: dict[int, Any] = {}
        rates = [*map(float, chain.policy.accelerations), 1.0]

        def keep(recoveries: Any, *, seed: int, **options: Any) -> None:
            images[seed] = _mean(recoveries)

        def reply(record: RoundRecord) -> None:
            drawn = case_seed(chain.seed, record.case, rates[record.round])
            self._reply(record, number[record.case], images.pop(drawn, None))

        options: dict[str, Any] = {
            "recover": _LockedModel(chain.recover, chain.model, keep),
            "task": _LockedModel(chain.task, chain.model, lambda *found: None),
            "samples": chain.policy.samples, "seed": chain.seed, "worker": self._worker,
            "scan_id": header.scan_id, "state": chain.folder / f"scan-{key}.json",
            "audit_log": chain.folder / "log.jsonl", "monitor": chain.monitor, "on_round": reply,
            "adaptive": chain.rule, "terms": ScanFlags(self.void, chain.shadow, header.known_patient),
        }  # fmt: skip
        # A generator of its own, so that nothing is begun before the first lines have come.
        if chain.is_together:
            scanners = {name: slices[k] for name, k in number.items()}
            yield from iter_scan(chain.policy, scanners, **options)
        else:
            ((name, k),) = number.items()
            yield from iter_scan(chain.policy, slices[k], case=name, **options)

    def _ended(self, scan: _ActiveScan, error: str | None) -> None:
        """Keep nothing of slices that are decided, or that cannot be."""
        if error is not None:
            self.count("failed scans")
            self.tell(f"slices {sorted(scan.slices)} cannot be decided: {error:.300}")
        with self._lock:
            for k, slice_ in scan.slices.items():
                self.done.add(k)
                self.slices.pop(k)
                self._under_way.pop(k)
                self._kept -= slice_.nbytes

    def _reply(self, record: RoundRecord, slice_: int, image: Any) -> None:
        """Send the image, and with it interval and decision."""
        import ismrmrd

        assert self.header is not None, "slices come after the header"
        shadow = self.chain.shadow
        stops = "would stop" if shadow else "stops"
        told = "told again" if record.restored else stops if record.stop else "continues"
        self.count(told)
        wanted = self._rest(record, slice_) if shadow and record.stop else self._wanted(record)
        said = to_json_value(record.to_dict())
        meta = {
            "decision": "stop" if record.stop and not shadow else "continue",
            "would_stop": str(record.stop).lower(),
            "lines": json.dumps(wanted),
            "scan_id": self.header.scan_id,
            # As it was when this was decided, also where it is told again.
            "promise": record.void_reason or self.chain.policy.statement,
            "promised": str(record.void_reason is None and self.chain.policy.is_guaranteed).lower(),
            "shadow": str(shadow).lower(),
            "stored": str(record.restored).lower(),
            **{name: json.dumps(said[name]) for name in REPLIED},
        }
        shape = self.header.shape[1:]
        pixels = np.zeros(shape, dtype=np.float32) if image is None else as_array(image, "image")
        found = ismrmrd.Image.from_array(np.ascontiguousarray(pixels.T), slice=slice_)
        found.image_index = record.round + 1
        found.meta = ismrmrd.Meta({f"taskuq_{name}": value for name, value in meta.items()})
        # Whoever has gone hears it when coming back: the decision is in the state.
        with suppress(OSError):
            self.wire.send(IMAGE, found)

    def _wanted(self, record: RoundRecord) -> list[int]:
        """The lines that the next round adds: as a rule has chosen them, or as they always are."""
        if record.stop or self.chain.rule is not None:
            return list(record.next_lines)
        return [int(column) for column in self.chain.columns[record.round + 1]]

    def _rest(self, record: RoundRecord, slice_: int) -> list[int]:
        """All lines that a slice which would stop has not sent yet."""
        if self.chain.rule is None:
            rest = self.chain.columns[record.round + 1 :]
            return [int(column) for columns in rest for column in columns]
        known = self.slices[slice_].lines if slice_ in self.slices else {}
        return [c for c in range(sum(map(len, self.chain.columns))) if c not in known]


# What a reply says of a round, as JSON.
REPLIED = ("case", "round", "acceleration", "lower", "upper", "reason", "fault")


class _LockedModel:
    """Network shared by all connections, one call at a time."""

    def __init__(self, part: Any, model: threading.Lock, keep: Callable[..., None]) -> None:
        self.part, self.model, self.keep = part, model, keep
        self.fingerprint = getattr(part, "fingerprint", "")
        # What the audit trail calls it is what it wraps.
        self.__module__, _, self.__qualname__ = component_name(part).rpartition(".")

    def __call__(self, *given: Any, **options: Any) -> Any:
        """Wait for whoever computes, then compute."""
        with self.model:
            found = self.part(*given, **options)
        self.keep(found, **options)
        return found


def _mean(recoveries: Any) -> Any:
    """The mean of recoveries, taken where they are: a GPU would be waited for, and read, else."""
    if is_tensor(recoveries) and recoveries.is_cuda and recoveries.dtype == torch.float32:
        return recoveries.mean(0)
    return as_array(recoveries, "recoveries").mean(axis=0)


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
