"""One connection of a scanner: lines are collected, rounds decided, decisions sent back."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskuq.checks import as_array
from taskuq.decide.acquisition import acquire
from taskuq.decide.monitor import Monitor
from taskuq.decide.policy import Policy
from taskuq.decide.scan import RoundRecord
from taskuq.decide.steps import named
from taskuq.errors import InputError, first_line
from taskuq.files import plain
from taskuq.protocols import ChoosingMeasure, Recover, Task
from taskuq.runs.mrd.arriving import ArrivingSlice, GoneError
from taskuq.runs.mrd.header import ScanHeader, read_header
from taskuq.runs.mrd.lines import beside_image, unfit
from taskuq.runs.mrd.messages import ACQUISITION, CLOSE, HEADER, IMAGE, TEXT, StreamError, Wire
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
    model: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def is_together(self) -> bool:
        """Whether all slices of a scan go through its rounds together."""
        watched = self.monitor is not None and self.monitor.is_by_group
        return self.policy.whole_group or watched


@dataclass(eq=False)
class Session:
    """What one connection is scanning.

    Arguments:
        wire: The connection.
        chain: What is decided with.
        count: Called with the name of something that happened, for the health of the service.
        take_over: Called with the header of a scan: whoever scans it at another connection leaves.
    """

    wire: Wire
    chain: Chain
    count: Callable[[str], None]
    take_over: Callable[[ScanHeader, Session], None]
    header: ScanHeader | None = None
    slices: dict[int, ArrivingSlice] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    beside: set[str] = field(default_factory=set)
    threads: list[threading.Thread] = field(default_factory=list)
    waiting: int = 0
    _waited: threading.Condition = field(default_factory=threading.Condition)

    def run(self) -> None:
        """Read until the other end is done; then let what is being computed end."""
        self.wire.wait_until(time.monotonic() + self.wire.limits.header)
        try:
            while (message := self.wire.read()) is not None:
                if message.kind == HEADER:
                    self._begin(message.content)
                elif message.kind == ACQUISITION:
                    self._line(message.content)
                with self._waited:
                    self._waited.wait_for(lambda: self.waiting < self.wire.limits.waiting)
        except (StreamError, InputError) as error:
            self.tell(first_line(error))
        finally:
            self.leave()
            with suppress(OSError):
                self.wire.send(CLOSE)
            self.wire.close()

    def leave(self) -> None:
        """Let nobody wait for lines any more, and wait for those who compute."""
        for slice_ in list(self.slices.values()):
            slice_.leave()
        for thread in list(self.threads):
            if thread is not threading.current_thread():
                thread.join()

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
        header, columns = read_header(xml), self.chain.columns
        width = sum(map(len, columns))
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
        if header.slices > self.wire.limits.slices:
            raise InputError(
                f"the scan has {header.slices} slices, and {self.wire.limits.slices} are taken"
            )
        self.wire.wait_until(None)
        self.take_over(header, self)
        self.header = header
        rates = [R for R in self.chain.policy.accelerations if np.isfinite(R)]
        together = self.chain.is_together
        whose = "all slices, which are decided together," if together else "each slice"
        self.tell(f"send these lines of {whose} first", lines=columns[0].tolist(),
                  accelerations=rates, slices=header.slices, together=together)  # fmt: skip
        if self.chain.is_together:
            self.slices = {k: self._arriving() for k in range(header.slices)}
            self._start(dict(self.slices))

    def _arriving(self) -> ArrivingSlice:
        assert self.header is not None, "slices come after the header"
        rates = self.chain.policy.accelerations
        return ArrivingSlice(self.chain.columns, self.header.shape, rates, self.header.scan_id)

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
            self.tell(f"slice {number} of {self.header.slices} slices is passed over")
            return
        if said := unfit(acquisition):
            self.count("refused lines")
            self.tell(f"{said}; it is passed over", slice=number)
            return
        if number not in self.slices:
            self.slices[number] = self._arriving()
            self._start({number: self.slices[number]})
        if said := self.slices[number].add(column, acquisition.data):
            self.count("refused lines")
            self.tell(f"{said}; it is passed over", slice=number)

    def _start(self, slices: dict[int, ArrivingSlice]) -> None:
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        thread = threading.Thread(target=self._scan, args=(slices,), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _scan(self, slices: dict[int, ArrivingSlice]) -> None:
        """Scan a slice, or all that go together, from wherever its state is to the end."""
        header, chain = self.header, self.chain
        assert header is not None, "slices come after the header"
        names = {header.case(k): k for k in slices}
        which = "all" if chain.is_together else min(slices)
        key = f"{header.scan_id}\0{header.patient}\0{which}"
        state = chain.folder / f"scan-{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
        # A draw is known by its seed.
        images: dict[int, Any] = {}
        rates = [*map(float, chain.policy.accelerations), 1.0]

        def keep(recoveries: Any, *, seed: int, **options: Any) -> None:
            images[seed] = as_array(recoveries, "recoveries").mean(axis=0)

        def reply(record: RoundRecord) -> None:
            own = [slices[names[record.case]]]
            for one in slices.values() if chain.policy.whole_group else own:
                # While a round was computed, a line may have come again with other numbers.
                if record.stop and one.faults:
                    raise InputError(next(iter(one.faults.values())))
            drawn = case_seed(chain.seed, record.case, rates[record.round])
            self._reply(record, names[record.case], images.pop(drawn, None))

        options: dict[str, Any] = {
            "recover": Shared(chain.recover, self, keep),
            "task": Shared(chain.task, self, lambda *found: None),
            "samples": chain.policy.samples,
            "seed": chain.seed, "scan_id": header.scan_id, "state": state,
            "log": chain.folder / "log.jsonl", "deadline": chain.deadline,
            "monitor": chain.monitor, "on_round": reply, "rule": chain.rule,
        }  # fmt: skip
        try:
            if chain.is_together:
                scanners = {name: slices[k] for name, k in names.items()}
                acquire(chain.policy, scanners, **options)
            else:
                ((name, k),) = names.items()
                acquire(chain.policy, slices[k], case=name, **options)
        except GoneError:
            return
        except Exception as error:
            self.count("failed scans")
            self.tell(f"slices {sorted(slices)} cannot be decided: {first_line(error):.300}")
        for k in slices:
            # Lines of a slice that is decided are not kept.
            self.done.add(k)
            self.slices.pop(k, None)

    def _reply(self, record: RoundRecord, slice_: int, image: Any) -> None:
        """Send the image, and with it interval and decision."""
        import ismrmrd

        assert self.header is not None, "slices come after the header"
        self.count("stops" if record.stop else "continues")
        shadow = self.chain.shadow
        wanted = self._rest(record, slice_) if shadow and record.stop else self._wanted(record)
        said = plain(record.to_dict())
        meta = {
            "decision": "stop" if record.stop and not shadow else "continue",
            "would_stop": str(record.stop).lower(),
            "lines": json.dumps(wanted),
            "scan_id": self.header.scan_id,
            "promise": self._promise(),
            **{name: json.dumps(said[name]) for name in REPLIED},
        }
        shape = self.header.shape[1:]
        pixels = np.zeros(shape, dtype=np.float32) if image is None else image
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

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Wait for the networks, and hold them; too many who wait keep the connection unread."""
        with self._waited:
            self.waiting += 1
        try:
            with self.chain.model:
                yield
        finally:
            with self._waited:
                self.waiting -= 1
                self._waited.notify_all()

    def _promise(self) -> str:
        if self.chain.void is not None:
            return self.chain.void
        monitor = self.chain.monitor
        withdrawn = monitor is not None and monitor.is_withdrawn
        return monitor.sentence if monitor and withdrawn else self.chain.policy.sentence


# What a reply says of a round, as JSON.
REPLIED = ("case", "round", "acceleration", "lower", "upper", "reason", "fault")


class Shared:
    """A recovery or a task that all connections share: one computation at a time.

    Arguments:
        part: The recovery or the task.
        session: The connection it computes for.
        keep: Called with what came out, and the arguments.
    """

    def __init__(self, part: Any, session: Session, keep: Callable[..., None]) -> None:
        self.part, self.session, self.keep = part, session, keep
        self.fingerprint = getattr(part, "fingerprint", "")
        # What the audit trail calls it is what it wraps.
        self.__module__, _, self.__qualname__ = named(part).rpartition(".")

    def __call__(self, *given: Any, **options: Any) -> Any:
        """Wait for whoever computes, then compute."""
        with self.session.computing():
            found = self.part(*given, **options)
        self.keep(found, **options)
        return found
