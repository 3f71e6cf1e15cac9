"""Scan records, faults, state on disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from taskuq._arrays import as_array
from taskuq._io import (
    atomic_write,
    complete_record,
    fsync,
    json_text,
    number_from_json,
    open_npz,
    read_json,
    to_json_value,
)
from taskuq.conformal._family import stack_intervals
from taskuq.errors import InputError
from taskuq.interval import BoolArray, FloatArray, Interval
from taskuq.policy._policy import Policy
from taskuq.scan._monitor import Monitor


@contextmanager
def background(
    work: Callable[[], None] | None, *, waits: bool = False
) -> Iterator[Callable[[], None]]:
    """Run work in a background thread; join and re-raise on exit."""
    failed: list[BaseException] = []
    threads: list[threading.Thread] = []
    # A computation that is late may ask for the beginning while the end does: one of them has it.
    turn, left = threading.Lock(), [] if work is None else [work]

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    def begin() -> None:
        with turn:
            for one in left:
                thread = threading.Thread(target=run, args=(one,))
                try:
                    thread.start()
                    threads.append(thread)
                except RuntimeError:  # there is no thread to be had: it is done here, and first
                    run(one)
            left.clear()

    if not waits:
        begin()
    try:
        yield begin
    finally:
        with turn:
            for one in left:
                run(one)
            left.clear()
        for thread in threads:
            thread.join()
        if failed:
            # An error that stayed here would keep the frames that it came through.
            raise failed.pop()


def measurement_fault(
    piece: Any, earlier: Sequence[Any], *, round: int, scan_id: str | None
) -> str | None:
    """Return the fault of a round's measurement, or None."""
    if piece is None:
        return f"round {round} measured nothing"
    if isinstance(piece, Mapping):
        if "round" in piece and not _is(piece["round"], round):
            return f"the piece of round {round} says that it is of round {_said(piece['round'])}"
        named = "scan_id" in piece and scan_id is not None
        if named and not _is(piece["scan_id"], scan_id):
            return f"the piece of round {round} says that it is of scan {_said(piece['scan_id'])}"
        if said := str(np.asarray(piece.get("fault", ""))):
            return f"round {round}: {said:.200}"
    arrays = _arrays_of(piece)
    if arrays is None:
        return None
    measured = _largest(arrays)
    if not measured:
        return f"round {round} measured nothing"
    if not all(np.isfinite(a).all() for a in arrays.values() if a.dtype.kind in "fc"):
        return f"round {round} measured numbers that are not finite"
    if not all(a.any() for a in measured.values()):
        return f"what round {round} measured is zero everywhere"
    for k, other in enumerate(earlier):
        before = _arrays_of(other) or {}
        if any(n in before and np.array_equal(a, before[n]) for n, a in measured.items()):
            return f"round {round} measured what round {k} had measured, number by number"
    return None


def output_fault(policy: Policy, outputs: FloatArray, *, round: int) -> str | None:
    """Return the fault of a round's outputs, or None."""
    if len(outputs) != policy.samples:
        return (
            f"the recovery and task gave {len(outputs)} outputs in round {round}, but "
            f"{policy.samples} samples were asked for"
        )
    if not np.isfinite(outputs).all():
        return f"the outputs of round {round} are not all finite"
    outside = _outside(policy, outputs)
    return outside and f"outputs of round {round} lie outside the {outside}"


def require_value(policy: Policy, outputs: FloatArray) -> None:
    """Refuse what is not the one value of a fully measured scan."""
    if len(outputs) != 1:
        raise InputError(
            f"recovery and task gave {len(outputs)} values where everything is measured; the "
            "target is one value"
        )
    outside = _outside(policy, outputs)
    if not np.isfinite(outputs).all() or outside:
        raise InputError(
            f"the value of the fully measured scan is {outputs[0]}, outside the "
            f"{outside or 'finite numbers'}; look at the recovery and the task"
        )


def _outside(policy: Policy, outputs: FloatArray) -> str | None:
    """Name the first task's range that values (value,) or (value, task) leave, if any."""
    values = outputs.reshape(len(outputs), -1)
    for t, range_ in enumerate(policy.task_ranges):
        low, high = range_ or (-np.inf, np.inf)
        if values[:, t].min() < low or values[:, t].max() > high:
            whose = "task's" if len(policy.task_names) == 1 else f"{policy.task_names[t]}'s"
            return f"{whose} range [{low:g}, {high:g}]"
    return None


def _arrays_of(piece: Any) -> dict[str, np.ndarray] | None:
    """Return a piece as arrays by name, or None where it is something else."""
    # The leading mark keeps names apart from the arguments of np.savez, and from a lone array.
    parts = {f"of {name}": v for name, v in piece.items()} if isinstance(piece, Mapping) else {
        "alone": piece
    }  # fmt: skip
    try:
        arrays = {name: as_array(value, "measurement") for name, value in parts.items()}
    except InputError:
        return None
    return arrays if all(a.dtype.kind in "biufcUS" for a in arrays.values()) else None


def _largest(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    numbers = {n: a for n, a in arrays.items() if a.dtype.kind in "biufc" and a.size}
    most = max((a.size for a in numbers.values()), default=0)
    return {name: a for name, a in numbers.items() if a.size == most}


def _is(said: Any, meant: Any) -> bool:
    value = np.asarray(said)
    return value.size == 1 and str(value.ravel()[0]) == str(meant)


def _said(value: Any) -> str:
    return str(np.asarray(value).ravel()[:1].tolist() or [""])[1:-1][:60]


@dataclass(frozen=True)
class RoundOutputs:
    """Samples and task outputs of one round, by case."""

    outputs: dict[str, FloatArray] = field(default_factory=dict)
    chosen: dict[str, BoolArray | None] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)


# Fields whose names in files are older than those in Python.
STORED_NAMES = {"next_lines": "wanted", "void_reason": "void"}


@dataclass(frozen=True)
class RoundRecord:
    """Outputs and decision of one case in one round.

    Arguments:
        round: The round, counted from 0.
        acceleration: Its acceleration.
        outputs: The task outputs (sample,) or (sample, task); one value when all is measured.
        stop: Whether the policy stopped here.
        lower: The lower end of the interval, one per task.
        upper: The upper end.
        reason: Why, in a sentence.
        case: The name of the case.
        fault: What was wrong in the round, so that it could not be decided; None for nothing.
        next_lines: The lines that the next round adds, where a rule chooses them.
        void_reason: Why nothing was promised when this was decided; None where the policy's promise stood.
        shadow: Whether the decision was told and not obeyed: a stop stopped nothing.
        restored: Whether this was decided before, and is told from what was stored; not stored itself.
    """

    round: int
    acceleration: float
    outputs: FloatArray
    stop: bool
    lower: FloatArray
    upper: FloatArray
    reason: str
    case: str
    fault: str | None = None
    next_lines: tuple[int, ...] = ()
    void_reason: str | None = None
    shadow: bool = False
    restored: bool = field(default=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON can hold."""
        ends = {end: np.atleast_1d(getattr(self, end)).tolist() for end in ("lower", "upper")}
        kept = {name: value for name, value in vars(self).items() if name != "restored"}
        kept = {STORED_NAMES.get(name, name): value for name, value in kept.items()}
        return dict(to_json_value({**kept, "outputs": self.outputs.tolist(), **ends}))


@dataclass(frozen=True)
class Scan:
    """Scan of one case, finished or in progress.

    Arguments:
        rounds: What happened so far.
        measurements: What was measured in each round, and perhaps in one that is not decided yet.
        faults: What was wrong with pieces; a scan that has any is never known in full.
    """

    rounds: tuple[RoundRecord, ...] = ()
    measurements: tuple[Any, ...] = field(default=(), repr=False)
    faults: tuple[str, ...] = ()

    @property
    def is_finished(self) -> bool:
        """Whether the policy has stopped the scan."""
        return bool(self.rounds) and self.rounds[-1].stop

    @property
    def acceleration(self) -> float:
        """The acceleration of the last round."""
        return self.rounds[-1].acceleration

    @property
    def interval(self) -> Interval:
        """The interval of the last round."""
        return Interval(self.rounds[-1].lower, self.rounds[-1].upper)

    @property
    def reason(self) -> str:
        """The reason of the last decision."""
        return self.rounds[-1].reason

    @property
    def void_reason(self) -> str | None:
        """Why nothing was promised when the scan was decided; None where the promise stood."""
        return next(
            (r.void_reason for r in reversed(self.rounds) if r.void_reason is not None), None
        )

    def __repr__(self) -> str:
        if not self.rounds:
            return "a scan without a round yet"
        lines = [f"round {one.round}: {_interval(one)}, {one.reason}" for one in self.rounds]
        return "\n".join([*lines, *(f"fault: {fault}" for fault in self.faults)])


@dataclass(frozen=True)
class GroupScan:
    """Scans of all cases of a group.

    Arguments:
        cases: The scan of each case by its name, in the order in which the cases were given.
    """

    cases: Mapping[str, Scan]

    @property
    def is_finished(self) -> bool:
        """Whether the policy has stopped every case."""
        return all(scan.is_finished for scan in self.cases.values())

    def __repr__(self) -> str:
        return "\n".join(
            f"{name}: {_interval(scan.rounds[-1])}, {scan.reason}" if scan.rounds else f"{name}: -"
            for name, scan in self.cases.items()
        )

    @property
    def mean_acceleration(self) -> float:
        """The harmonic mean of the accelerations at which the cases are now."""
        return 1 / float(np.mean([1 / scan.acceleration for scan in self.cases.values()]))

    @property
    def interval(self) -> Interval:
        """The last interval of each case, (case,) or (case, task)."""
        return stack_intervals([scan.interval for scan in self.cases.values()], axis=0)


def _interval(record: RoundRecord) -> str:
    return ", ".join(repr(Interval(record.lower, record.upper)).splitlines())


# What is promised of a scan whose state does not say it.
UNTOLD = (
    "Nobody can tell whether anything was promised: an earlier version stored this scan, and did "
    "not store whether the promise stood."
)


@dataclass(frozen=True)
class ScanFlags:
    """Shadow mode and void reason, stored with every decision."""

    void: str | None = None
    shadow: bool = False
    patient: str | None = None

    def stamped(
        self, records: Sequence[RoundRecord], monitor: Monitor | None = None
    ) -> list[RoundRecord]:
        """Return records that say on which terms they were decided."""
        void = self.void
        if void is None and monitor is not None and monitor.alarm:
            void = monitor.sentence
        return [replace(record, void_reason=void, shadow=self.shadow) for record in records]


def format_reason(reason: str, *, shadow: bool) -> str:
    """Format a decision's reason, with shadow mode."""
    is_early = reason.startswith("stop ")
    return f"would have stopped {reason.removeprefix('stop ')}" if shadow and is_early else reason


SCHEMA = "taskuq.acquisition/1"
Arrays = dict[str, np.ndarray]
# What the measurements of a round say about themselves.
SCAN, ROUND = "taskuq scan_id", "taskuq round"


@dataclass(frozen=True)
class ScanState:
    """State file of a scan."""

    path: Path
    policy: Policy
    cases: tuple[str, ...]
    is_group: bool
    scan_id: str
    seed: int
    rule: str | None = None
    patient: str | None = None

    def load(self) -> dict[str, Scan]:
        """Return the scan of each case as far as it was stored."""
        if not self.path.exists():
            return dict.fromkeys(self.cases, Scan())
        record = _record(self.path, self.policy)
        for name, mine in (("scan_id", self.scan_id), ("seed", self.seed), ("rule", self.rule)):
            if record.get(name) != mine:
                raise InputError(
                    f"{self.path} is of {name} {record.get(name)!r}, got {mine!r}; go on with the "
                    "former, or give this scan a state of its own"
                )
        scans, is_group = _read(self.path, self.policy, record)
        if is_group != self.is_group or tuple(scans) != self.cases:
            raise InputError(
                f"{self.path} is a scan of {_listed(scans, is_group)}, got "
                f"{_listed(self.cases, self.is_group)}; go on with the former or start a new scan"
            )
        return scans

    def storable(
        self, going: Sequence[str], pieces: Sequence[Any]
    ) -> tuple[list[Any], Arrays | None]:
        """Return the pieces of a round as they will be read back, and as arrays to store."""
        found = [_arrays_of(piece) for piece in pieces]
        kept = [p if a is None else _from_arrays(a) for p, a in zip(pieces, found, strict=True)]
        marks = [_mark(self.cases.index(case), self.is_group) for case in going]
        arrays: Arrays = {}
        for mark, of_case in zip(marks, found, strict=True):
            if of_case is None:
                return kept, None
            arrays |= {mark + name: array for name, array in of_case.items()}
        return kept, arrays

    def keep_measured(self, round: int, arrays: Arrays, scans: Mapping[str, Scan]) -> None:
        """Store what a round measured, with the name of its scan, and then that it was measured."""
        named: Arrays = {SCAN: np.array(self.scan_id), ROUND: np.array(round), **arrays}
        with atomic_write(_pieces_path(self.path, round)) as partial, partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **named)
        self.keep(scans, pieces_stored=True)

    def keep(
        self,
        scans: Mapping[str, Scan],
        *,
        pieces_stored: bool,
        first: Callable[[], None] | None = None,
    ) -> None:
        """Store what was decided so far, and which rounds were measured."""
        # On one line: an indented one is put together by Python, piece by piece, and not by C.
        with atomic_write(self.path) as partial, background(first):
            text = json_text(self._as_json(scans, pieces_stored), indent=None)
            partial.write_text(f"{text}\n", encoding="utf-8")
            fsync(partial)

    def _as_json(self, scans: Mapping[str, Scan], pieces_stored: bool) -> dict[str, Any]:
        each = [[record.to_dict() for record in scan.rounds] for scan in scans.values()]
        return {
            "schema": SCHEMA,
            "scan_id": self.scan_id,
            "patient": self.patient,
            "policy": self.policy.fingerprint,
            "seed": self.seed,
            "rule": self.rule,
            "samples": self.policy.samples,
            "finished": all(scan.is_finished for scan in scans.values()),
            "pieces_stored": pieces_stored,
            "measured": [len(scan.measurements) for scan in scans.values()],
            "faults": [list(scan.faults) for scan in scans.values()],
            "cases": list(scans),
            **({"scans": each} if self.is_group else {"rounds": each[0]}),
        }


def load_scan(path: str | os.PathLike[str], policy: Policy) -> Scan | GroupScan:
    """Return a stored scan of a case, or of a group, to look at it.

    Arguments:
        path: The state that :func:`acquire` wrote.
        policy: The policy it was made with; another one is refused.
    """
    source = Path(path)
    scans, is_group = _read(source, policy, _record(source, policy))
    return GroupScan(scans) if is_group else next(iter(scans.values()))


def _record(path: Path, policy: Policy) -> dict[str, Any]:
    record = read_json(path, SCHEMA, remedy="start a new scan")
    if record.get("policy") != policy.fingerprint:
        raise InputError(
            f"{path} is a scan under another policy; go on with that one or start a new scan"
        )
    return record


def _read(path: Path, policy: Policy, record: Mapping[str, Any]) -> tuple[dict[str, Scan], bool]:
    """Read the scan of each case, and whether they are those of a group."""
    with complete_record(path, "scan"):
        is_group = "scans" in record
        scans = record["scans"] if is_group else [record["rounds"]]
        rounds = {
            str(name): tuple(_round(r, str(name)) for r in of_case)
            for name, of_case in zip(record["cases"], scans, strict=True)
        }
        listed = [tuple(map(str, of_case)) for of_case in record["faults"]]
        faults = dict(zip(rounds, listed, strict=True))
        measured = dict(zip(rounds, map(int, record["measured"]), strict=True))
        stored, scan_id = record["pieces_stored"] is True, str(record["scan_id"])
    longest = max(map(len, rounds.values()), default=0)
    going = [r for r in rounds.values() if not Scan(r).is_finished]
    in_order = all([r.round for r in each] == [*range(len(each))] for each in rounds.values())
    # Whole groups are stopped at once, so that some of their cases can never be ahead.
    is_torn = policy.whole_group and 0 < len(going) < len(rounds)
    if not in_order or is_torn or any(len(each) < longest for each in going):
        raise InputError(f"{path} has rounds out of order; it is damaged")
    if going and longest and not stored:
        raise InputError(
            f"{path} cannot be taken up: its measurements were not arrays and were not stored"
        )
    pieces: dict[str, tuple[Any, ...]] = dict.fromkeys(rounds, ())
    if stored:
        pieces = _read_pieces(path, measured, is_group, scan_id)
    found = {name: Scan(rounds[name], pieces[name], of_case) for name, of_case in faults.items()}
    return found, is_group


def _round(record: Mapping[str, Any], case: str) -> RoundRecord:
    R = record["acceleration"]
    return RoundRecord(
        round=int(record["round"]),
        acceleration=np.nan if R is None else float(R),
        outputs=np.asarray(record["outputs"], dtype=float),
        stop=record["stop"] is True,
        lower=_ends(record["lower"]),
        upper=_ends(record["upper"]),
        reason=str(record["reason"]),
        case=case,
        fault=record["fault"],
        next_lines=tuple(map(int, record.get("wanted", ()))),
        void_reason=_void(record.get("void", UNTOLD)),
        shadow=record.get("shadow") is True,
    )


def _void(said: Any) -> str | None:
    return None if said is None else str(said)


def _read_pieces(
    path: Path, measured: Mapping[str, int], is_group: bool, scan_id: str
) -> dict[str, tuple[Any, ...]]:
    """Read what was measured of each case in each of its rounds."""
    pieces: dict[str, list[Any]] = {name: [] for name in measured}
    for k in range(max(measured.values(), default=0)):
        try:
            with open_npz(_pieces_path(path, k)) as archive:
                arrays = {name: archive[name] for name in archive}
            if [str(arrays.pop(SCAN, "")), str(arrays.pop(ROUND, ""))] != [scan_id, str(k)]:
                raise InputError("they are of another scan or round")
            for i, (name, rounds) in enumerate(measured.items()):
                if k < rounds:
                    pieces[name].append(_from_arrays(_marked(arrays, _mark(i, is_group))))
        except InputError as error:
            raise InputError(
                f"the measurements of round {k} beside {path} cannot be read ({error}); start again"
            ) from None
    return {name: tuple(of_case) for name, of_case in pieces.items()}


def _marked(arrays: Arrays, mark: str) -> Arrays:
    found = {n.removeprefix(mark): array for n, array in arrays.items() if n.startswith(mark)}
    if not found:
        raise InputError("a case is missing")
    return found


def _mark(position: int, is_group: bool) -> str:
    return f"case {position} " if is_group else ""


def _from_arrays(arrays: Arrays) -> Any:
    if list(arrays) == ["alone"]:
        return arrays["alone"]
    return {name.removeprefix("of "): array for name, array in arrays.items()}


def _pieces_path(path: Path, k: int) -> Path:
    # The whole name: scans named patient.1 and patient.2 must not share their measurements.
    return path.with_name(f"{path.name}-round{k}.npz")


def _ends(values: list[Any]) -> FloatArray:
    ends = np.array([number_from_json(v) for v in values])
    return ends if len(ends) > 1 else ends.reshape(())


def _listed(cases: Iterable[str], is_group: bool) -> str:
    names = list(cases)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    who = "a group with the cases" if is_group else "the one case"
    return f"{who} {', '.join(names[:3])}{more}"
