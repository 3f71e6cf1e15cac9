"""One connection of a scanner: lines are collected, rounds decided, decisions sent back."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taskuq.checks import as_array, is_tensor
from taskuq.decide.acquisition import Awaited, acquiring
from taskuq.decide.likeness import other_coils
from taskuq.decide.monitor import Monitor
from taskuq.decide.policy import Policy
from taskuq.decide.scan import RoundRecord
from taskuq.decide.steps import named
from taskuq.decide.terms import Terms
from taskuq.decide.worker import Worker
from taskuq.errors import InputError, first_line
from taskuq.files import plain
from taskuq.locks import locked
from taskuq.protocols import ChoosingMeasure, Recover, Task
from taskuq.runs.mrd.arriving import ArrivingSlice, with_canvases
from taskuq.runs.mrd.header import ScanHeader, read_header
from taskuq.runs.mrd.lines import beside_image, unfit
from taskuq.runs.mrd.messages import ACQUISITION, CLOSE, HEADER, IMAGE, TEXT, Wire
from taskuq.runs.mrd.turns import Turns, UnderWay
from taskuq.seeds import case_seed

SCHEMA = "taskuq.mrd/1"


@dataclass(frozen=True)
class Chain:
    """What a service decides with.

    Arguments:
        policy: When to stop.
        recover: The recovery method, one for all connections.
        task: The task.
        columns: The columns of k-space that each round adds.
        folder: Where the states of scans and the audit trail are kept.
        seed: The seed of the recoveries.
        deadline: Seconds that recovery and task may take, waiting for each other included.
        monitor: What watches whether the promise still stands.
        shadow: Whether to say what would be decided, and to ask for all lines all the same.
        rule: What chooses the lines of later rounds for each slice; the columns where None.
        shape: Coil, height, width of the slices that can be recovered, where only some can.
        void: Why nothing is promised, where parts are not those of the policy's calibration.
        unlike: Whether scans that are known not to be like those are decided all the same, without
            a promise; they are refused otherwise.
    """

    policy: Policy
    recover: Recover
    task: Task
    columns: list[NDArray[np.intp]]
    folder: Path
    seed: int = 0
    deadline: float | None = None
    monitor: Monitor | None = None
    shadow: bool = False
    rule: ChoosingMeasure | None = None
    shape: tuple[int, int, int] | None = None
    void: str | None = None
    unlike: bool = False
    model: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def is_together(self) -> bool:
        """Whether all slices of a scan go through its rounds together."""
        watched = self.monitor is not None and self.monitor.is_by_group
        return self.policy.whole_group or watched


@dataclass(eq=False)
class Session:
    """What one connection is scanning: one thread reads, and another one decides.

    Arguments:
        wire: The connection.
        chain: What is decided with.
        count: Called with the name of something that happened, for the health of the service.
        take_over: Called with the header of a scan, which it gives to this connection: whoever
            scans it at another one leaves.
    """

    wire: Wire
    chain: Chain
    count: Callable[[str], None]
    take_over: Callable[[ScanHeader, Session], None]
    header: ScanHeader | None = None
    void: str | None = None
    slices: dict[int, ArrivingSlice] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    beside: set[str] = field(default_factory=set)
    turns: Turns = field(init=False)
    _under_way: dict[int, UnderWay] = field(default_factory=dict)
    _kept: int = 0
    _worker: Worker = field(init=False)
    _lock: Any = field(default_factory=threading.RLock)
    _held: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.turns = Turns(self.wire.limits.waiting, self._ended)
        # One for all slices: those that are late wait for one another, not in threads of their own.
        self._worker = Worker(self.chain.deadline)
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
        """Say something to the other end, in words."""
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
        self._held.enter_context(locked(lock, what=f"scan {header.scan_id}"))
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
        if said := other_coils(self.chain.policy, header.shape[0]):
            if not self.chain.unlike:
                raise InputError(f"{said} (serve --unlike goes on without a promise)")
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
                "are taken; --scan-size takes more"
            )
        at_once = header.nbytes if self.chain.is_together else header.nbytes // header.slices
        if at_once > limits.kept:
            raise InputError(
                f"slices that are decided at once have {_mib(at_once)} of k-space, and "
                f"{_mib(limits.kept)} are kept; --kept-size keeps more"
            )

    def _key(self, *more: int | str) -> str:
        """What a scan, or a part of it, is called on disk."""
        assert self.header is not None, "slices come after the header"
        key = "\0".join([self.header.scan_id, self.header.patient, *map(str, more)])
        return hashlib.sha256(key.encode()).hexdigest()[:24]

    def _open(self, numbers: Iterable[int]) -> UnderWay:
        """Wait for the lines of a slice, or of all that go together."""
        assert self.header is not None, "slices come after the header"
        rates, columns = self.chain.policy.accelerations, self.chain.columns
        shape, scan_id = self.header.shape, self.header.scan_id
        slices = {
            k: ArrivingSlice(columns, shape, rates, scan_id, lock=self._lock) for k in numbers
        }
        with_canvases(slices.values(), self.slices.values())
        cases = {self.header.case(k): k for k in slices}
        scan = UnderWay(slices, cases, self._rounds(slices, cases), (0, tuple(cases)))
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
        if kind := beside_image(acquisition):
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
        if said := unfit(acquisition):
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
                "more by --kept-size"
            )
        self.turns.offer(scan)

    def _rounds(
        self, slices: dict[int, ArrivingSlice], number: dict[str, int]
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
            "recover": Shared(chain.recover, chain.model, keep),
            "task": Shared(chain.task, chain.model, lambda *found: None),
            "samples": chain.policy.samples, "seed": chain.seed, "worker": self._worker,
            "scan_id": header.scan_id, "state": chain.folder / f"scan-{key}.json",
            "log": chain.folder / "log.jsonl", "monitor": chain.monitor, "on_round": reply,
            "rule": chain.rule, "terms": Terms(self.void, chain.shadow, header.known_patient),
        }  # fmt: skip
        # A generator of its own, so that nothing is begun before the first lines have come.
        if chain.is_together:
            scanners = {name: slices[k] for name, k in number.items()}
            yield from acquiring(chain.policy, scanners, **options)
        else:
            ((name, k),) = number.items()
            yield from acquiring(chain.policy, slices[k], case=name, **options)

    def _ended(self, scan: UnderWay, error: str | None) -> None:
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
        told = "told again" if record.again else stops if record.stop else "continues"
        self.count(told)
        wanted = self._rest(record, slice_) if shadow and record.stop else self._wanted(record)
        said = plain(record.to_dict())
        meta = {
            "decision": "stop" if record.stop and not shadow else "continue",
            "would_stop": str(record.stop).lower(),
            "lines": json.dumps(wanted),
            "scan_id": self.header.scan_id,
            # As it was when this was decided, also where it is told again.
            "promise": record.void or self.chain.policy.sentence,
            "promised": str(record.void is None and self.chain.policy.is_guaranteed).lower(),
            "shadow": str(shadow).lower(),
            "stored": str(record.again).lower(),
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
            return list(record.wanted)
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


class Shared:
    """A recovery or a task that all connections share: one computation at a time.

    Arguments:
        part: The recovery or the task.
        model: Held by whoever computes.
        keep: Called with what came out, and the arguments.
    """

    def __init__(self, part: Any, model: threading.Lock, keep: Callable[..., None]) -> None:
        self.part, self.model, self.keep = part, model, keep
        self.fingerprint = getattr(part, "fingerprint", "")
        # What the audit trail calls it is what it wraps.
        self.__module__, _, self.__qualname__ = named(part).rpartition(".")

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
