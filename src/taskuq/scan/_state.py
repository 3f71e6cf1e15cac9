"""Records, faults and stored state of scans."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from taskuq._arrays import as_array
from taskuq._display import Displayed, Summary, svg
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
from taskuq.table._terminology import round_label

SCHEMA = "taskuq.acquisition/1"
Arrays = dict[str, np.ndarray]
# Names of the arrays that identify stored measurements.
SCAN, ROUND = "taskuq scan_id", "taskuq round"


@contextmanager
def background(work: Callable[[], None] | None) -> Iterator[None]:
    """Run work in a thread while the ``with`` body runs; then wait and raise its error, if any."""
    if work is None:
        yield
        return
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        if failed:
            # An error that stayed here would keep its frames alive.
            raise failed.pop()


def measurement_fault(
    measurement: Any, earlier: Sequence[Any], *, round: int, scan_id: str | None
) -> str | None:
    """Return a description of the fault in a round's measurement, or None."""
    if measurement is None:
        return f"round {round} measured nothing"
    if isinstance(measurement, Mapping):
        for name, expected in (("round", round), ("scan_id", scan_id)):
            if name in measurement and expected is not None:
                value = np.asarray(measurement[name]).ravel()
                if value.size != 1 or str(value[0]) != str(expected):
                    text = ", ".join(map(str, value[:1]))[:60]
                    return f"the measurement of round {round} is labelled {name} {text!r}"
        if fault := str(np.asarray(measurement.get("fault", ""))):
            return f"round {round}: {fault:.200}"
    arrays = _as_arrays(measurement)
    if arrays is None:
        return None
    largest = _largest(arrays)
    if not largest:
        return f"round {round} measured nothing"
    for array in arrays.values():
        if array.dtype.kind in "fc" and not np.isfinite(array).all():
            return f"the measurement of round {round} contains NaN or infinity"
    for array in largest.values():
        if not array.any():
            return f"the measurement of round {round} is zero everywhere"
    for k, other in enumerate(earlier):
        before = _as_arrays(other) or {}
        for name, array in largest.items():
            if name in before and np.array_equal(array, before[name]):
                return f"the measurement of round {round} repeats that of round {k}"
    return None


def output_fault(policy: Policy, outputs: FloatArray, *, round: int) -> str | None:
    """Return a description of the fault in a round's task outputs, or None."""
    if len(outputs) != policy.samples:
        returned = f"recovery and task returned {len(outputs)} outputs in round {round}"
        return f"{returned} instead of {policy.samples}"
    outside = _outside(policy, outputs)
    return outside and f"outputs of round {round} lie outside the {outside}"


def require_value(policy: Policy, outputs: FloatArray) -> None:
    """Raise InputError unless outputs are the single value of a fully measured scan."""
    if len(outputs) != 1:
        text = f"recovery and task returned {len(outputs)} values of a full measurement, not one"
        raise InputError(text, code="component.invalid")
    if outside := _outside(policy, outputs):
        text = f"the value of the full measurement is {outputs[0]}, outside the {outside}"
        raise InputError(text, code="range.outside")


def _outside(policy: Policy, outputs: FloatArray) -> str | None:
    """Return as text the first task range that outputs violate, or None."""
    values = outputs.reshape(len(outputs), -1)
    for t, range_ in enumerate(policy.task_ranges):
        low, high = range_ or (-np.inf, np.inf)
        if values[:, t].min() < low or values[:, t].max() > high:
            whose = "task's" if len(policy.task_names) == 1 else f"{policy.task_names[t]}'s"
            return f"{whose} range [{low:g}, {high:g}]"
    return None


def _as_arrays(measurement: Any) -> dict[str, np.ndarray] | None:
    """Return a measurement as arrays by name, or None if a part of it is not an array."""
    # The prefix keeps names apart from the arguments of np.savez, and from a lone array.
    if isinstance(measurement, Mapping):
        values = {f"of {name}": value for name, value in measurement.items()}
    else:
        values = {"alone": measurement}
    arrays = {}
    for name, value in values.items():
        try:
            arrays[name] = as_array(value, "measurement")
        except InputError:
            return None
        if arrays[name].dtype.kind not in "biufcUS":
            return None
    return arrays


def _from_arrays(arrays: Arrays) -> Any:
    if list(arrays) == ["alone"]:
        return arrays["alone"]
    return {name.removeprefix("of "): array for name, array in arrays.items()}


def _largest(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the largest numeric arrays, which hold the measured values."""
    most, largest = 1, dict[str, np.ndarray]()
    for name, array in arrays.items():
        if array.dtype.kind in "biufc" and array.size >= most:
            largest = largest if array.size == most else {}
            largest[name], most = array, array.size
    return largest


@dataclass(frozen=True)
class RoundOutputs:
    """Task outputs, chosen lines and faults of one round, by case."""

    outputs: dict[str, FloatArray] = field(default_factory=dict)
    chosen: dict[str, BoolArray | None] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)


# Keys in files of fields with another name in Python.
STORED_NAMES = {"next_lines": "wanted", "void_reason": "void"}


@dataclass(frozen=True)
class RoundRecord:
    """Outputs and decision of one case in one round.

    Args:
        round: Index of the round, from 0.
        outputs: Task outputs (sample,) or (sample, task); one value if fully sampled.
        stop: True if the policy stopped the scan in this round.
        lower: Lower end of the interval, one per task.
        upper: Upper end of the interval, one per task.
        fault: Fault that prevented a decision, or None.
        next_lines: Indices of the lines that the next round adds, if lines are chosen adaptively.
        void_reason: Reason why the guarantee does not apply, or None if it does.
        shadow: True if the decision was only logged and did not stop the scan.
        restored: True if the record comes from the stored state; this field is not stored.
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
        """Return all fields as JSON values."""
        fields = {STORED_NAMES.get(n, n): v for n, v in vars(self).items() if n != "restored"}
        ends = {end: np.atleast_1d(getattr(self, end)).tolist() for end in ("lower", "upper")}
        return dict(to_json_value({**fields, "outputs": self.outputs.tolist(), **ends}))

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], case: str) -> RoundRecord:
        """Return the record of a stored round."""
        R, void = record["acceleration"], record["void"]
        ends = []
        for end in ("lower", "upper"):
            values = np.array([number_from_json(value) for value in record[end]])
            ends.append(values if len(values) > 1 else values.reshape(()))
        outputs = np.asarray(record["outputs"], dtype=float)
        return cls(
            int(record["round"]),
            np.nan if R is None else float(R),
            outputs,
            record["stop"] is True,
            ends[0],
            ends[1],
            str(record["reason"]),
            case,
            fault=record["fault"],
            next_lines=tuple(map(int, record["wanted"])),
            void_reason=None if void is None else str(void),
            shadow=record["shadow"] is True,
        )

    @property
    def interval(self) -> Interval:
        """Interval computed in the round."""
        return Interval(self.lower, self.upper)

    def __str__(self) -> str:
        pairs = zip(np.ravel(self.lower), np.ravel(self.upper), strict=True)
        return ", ".join([*(repr(Interval(*pair)) for pair in pairs), self.reason])


@dataclass(frozen=True, repr=False)
class Scan(Displayed):
    """Scan of one case, finished or in progress.

    Args:
        rounds: Records of the rounds so far.
        measurements: Measurements of each round, including a round not yet decided.
        faults: Measurement faults; after a fault the target remains unknown.
    """

    rounds: tuple[RoundRecord, ...] = ()
    measurements: tuple[Any, ...] = field(default=(), repr=False)
    faults: tuple[str, ...] = ()

    @property
    def is_finished(self) -> bool:
        """True if the policy has stopped the scan."""
        return bool(self.rounds) and self.rounds[-1].stop

    @property
    def acceleration(self) -> float:
        """Acceleration of the last round."""
        return self.rounds[-1].acceleration

    @property
    def interval(self) -> Interval:
        """Interval of the last round."""
        return self.rounds[-1].interval

    @property
    def reason(self) -> str:
        """Reason for the last decision."""
        return self.rounds[-1].reason

    @property
    def void_reason(self) -> str | None:
        """Reason why the guarantee does not apply, or None if it does."""
        reasons = (record.void_reason for record in reversed(self.rounds))
        return next(filter(None, reasons), None)

    def _summary(self) -> Summary:
        rows = [(f"round {one.round}", str(one)) for one in self.rounds]
        faults = "\n".join(f"fault: {fault}" for fault in self.faults)
        return Summary("" if rows else "a scan without rounds", rows, faults)

    def _picture(self) -> str:
        bars = [(float(np.ravel(r.lower)[0]), float(np.ravel(r.upper)[0])) for r in self.rounds]
        points = [float(np.ravel(r.outputs.mean(axis=0))[0]) for r in self.rounds]
        labels = [round_label(one.acceleration) for one in self.rounds]
        marked = len(bars) - 1 if self.is_finished else None
        return svg("interval by round", bars=bars, labels=labels, points=points, marked=marked)


@dataclass(frozen=True)
class GroupScan:
    """Scans of all cases of a group.

    Args:
        cases: Scans by case name, in the order in which the cases were given.
    """

    cases: Mapping[str, Scan]

    @property
    def is_finished(self) -> bool:
        """True if the policy has stopped every case."""
        return all(scan.is_finished for scan in self.cases.values())

    @property
    def mean_acceleration(self) -> float:
        """Harmonic mean of the current accelerations of the cases."""
        return 1 / float(np.mean([1 / scan.acceleration for scan in self.cases.values()]))

    @property
    def interval(self) -> Interval:
        """Last interval of each case, (case,) or (case, task)."""
        return stack_intervals([scan.interval for scan in self.cases.values()], axis=0)

    def __repr__(self) -> str:
        last = {name: scan.rounds[-1] if scan.rounds else "-" for name, scan in self.cases.items()}
        return "\n".join(f"{name}: {record}" for name, record in last.items())


@dataclass(frozen=True)
class ScanFlags:
    void_reason: str | None = None
    shadow: bool = False
    patient: str | None = None


def format_reason(reason: str, *, shadow: bool) -> str:
    """Return the reason for a decision; in shadow mode, a stop reads 'would have stopped'."""
    is_early = reason.startswith("stop ")
    return f"would have stopped {reason.removeprefix('stop ')}" if shadow and is_early else reason


@dataclass(frozen=True)
class ScanState:
    path: Path
    policy: Policy
    cases: tuple[str, ...]
    is_group: bool
    scan_id: str
    seed: int
    rule: str | None = None
    patient: str | None = None

    def load(self) -> dict[str, Scan]:
        """Return the stored scan of each case."""
        if not self.path.exists():
            return dict.fromkeys(self.cases, Scan())
        record = _read_record(self.path, self.policy)
        for name, mine in (("scan_id", self.scan_id), ("seed", self.seed), ("rule", self.rule)):
            if record.get(name) != mine:
                text = f"{self.path} belongs to {name} {record.get(name)!r}, got {mine!r}"
                raise InputError(f"{text}; use a new state file", code="resume.mismatch")
        scans, is_group = _read_scans(self.path, self.policy, record)
        if is_group != self.is_group or tuple(scans) != self.cases:
            stored, mine = f"{', '.join(scans):.80}", f"{', '.join(self.cases):.80}"
            kind = {True: "the group", False: "the case"}
            text = f"{self.path} holds {kind[is_group]} {stored}, got {kind[self.is_group]} {mine}"
            raise InputError(f"{text}; use a new state file", code="resume.mismatch")
        return scans

    def storable(
        self, active: Sequence[str], measurements: Sequence[Any]
    ) -> tuple[list[Any], Arrays | None]:
        """Return measurements as a resumed scan reads them back, and arrays to store or None."""
        each = [_as_arrays(measurement) for measurement in measurements]
        read_back = [
            measurement if arrays is None else _from_arrays(arrays)
            for measurement, arrays in zip(measurements, each, strict=True)
        ]
        stored: Arrays = {}
        for case, arrays in zip(active, each, strict=True):
            if arrays is None:
                return read_back, None
            prefix = _prefix(self.cases.index(case), self.is_group)
            stored |= {prefix + name: array for name, array in arrays.items()}
        return read_back, stored

    def store_measured(self, round: int, arrays: Arrays, scans: Mapping[str, Scan]) -> None:
        """Store the measurements of a round, then mark them as stored."""
        named: Arrays = {SCAN: np.array(self.scan_id), ROUND: np.array(round), **arrays}
        path = _arrays_path(self.path, round)
        with atomic_write(path, private=True) as partial, partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **named)
        self.store(scans, pieces_stored=True)

    def store(self, scans: Mapping[str, Scan], *, pieces_stored: bool, first: Any = None) -> None:
        """Store the decisions so far; replace the state file only after ``first`` has finished."""
        each = [[record.to_dict() for record in scan.rounds] for scan in scans.values()]
        record = {
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
        with atomic_write(self.path, private=True) as partial, background(first):
            # On one line: indented JSON is written by slow Python code.
            partial.write_text(f"{json_text(record, indent=None)}\n", encoding="utf-8")
            fsync(partial)


def load_scan(path: str | os.PathLike[str], policy: Policy) -> Scan | GroupScan:
    """Load a stored scan of a case or of a group.

    Args:
        path: State file written by :func:`taskuq.acquire`.
        policy: Policy of the scan or, for a scan with ``stratum``, the whole policy with strata;
            any other policy raises InputError.
    """
    source = Path(path)
    mark = read_json(source, SCHEMA, remedy="start a new scan").get("policy")
    own = (p for p in map(policy.for_stratum, policy.strata) if p.fingerprint == mark)
    policy = next(own, policy)
    scans, is_group = _read_scans(source, policy, _read_record(source, policy))
    return GroupScan(scans) if is_group else next(iter(scans.values()))


def _read_record(path: Path, policy: Policy) -> dict[str, Any]:
    record = read_json(path, SCHEMA, remedy="start a new scan")
    if record.get("policy") != policy.fingerprint:
        text = f"{path} belongs to a scan with a different policy; use a new state file"
        raise InputError(text, code="resume.mismatch")
    return record


def _read_scans(
    path: Path, policy: Policy, record: Mapping[str, Any]
) -> tuple[dict[str, Scan], bool]:
    """Return the scan of each case, and True if the cases form a group."""
    with complete_record(path, "scan"):
        if not isinstance(record["cases"], list):
            raise TypeError("cases")
        is_group = "scans" in record
        scans = record["scans"] if is_group else [record["rounds"]]
        rounds = {
            str(name): tuple(RoundRecord.from_dict(r, str(name)) for r in of_case)
            for name, of_case in zip(record["cases"], scans, strict=True)
        }
        listed = [tuple(map(str, of_case)) for of_case in record["faults"]]
        faults = dict(zip(rounds, listed, strict=True))
        measured = dict(zip(rounds, map(int, record["measured"]), strict=True))
        is_stored, scan_id = record["pieces_stored"] is True, str(record["scan_id"])
    longest = max(map(len, rounds.values()), default=0)
    active = [r for r in rounds.values() if not Scan(r).is_finished]
    in_order = all([r.round for r in each] == [*range(len(each))] for each in rounds.values())
    # Whole groups stop at once: none of their cases can be ahead.
    is_torn = policy.whole_group and 0 < len(active) < len(rounds)
    if not in_order or is_torn or any(len(each) < longest for each in active):
        text = f"{path} is damaged: its rounds are out of order; start a new scan"
        raise InputError(text, code="file.damaged")
    if active and longest and not is_stored:
        text = f"{path} cannot be resumed: its measurements were not arrays; start a new scan"
        raise InputError(text, code="resume.mismatch")
    measurements: dict[str, tuple[Any, ...]] = dict.fromkeys(rounds, ())
    if is_stored:
        measurements = _read_measurements(path, measured, is_group, scan_id)
    return {n: Scan(rounds[n], measurements[n], faults[n]) for n in rounds}, is_group


def _read_measurements(
    path: Path, measured: Mapping[str, int], is_group: bool, scan_id: str
) -> dict[str, tuple[Any, ...]]:
    measurements: dict[str, list[Any]] = {name: [] for name in measured}
    for k in range(max(measured.values(), default=0)):
        try:
            with open_npz(_arrays_path(path, k)) as archive:
                arrays = {name: archive[name] for name in archive}
            if [str(arrays.pop(SCAN, "")), str(arrays.pop(ROUND, ""))] != [scan_id, str(k)]:
                raise InputError("they belong to another scan or round", code="file.damaged")
            for i, (name, rounds) in enumerate(measured.items()):
                if k < rounds:
                    prefix = _prefix(i, is_group)
                    own = {n: a for n, a in arrays.items() if n.startswith(prefix)}
                    if not own:
                        raise InputError("a case is missing", code="file.damaged")
                    named = {n.removeprefix(prefix): array for n, array in own.items()}
                    measurements[name].append(_from_arrays(named))
        except InputError as error:
            text = f"the measurements of round {k} next to {path} cannot be read ({error})"
            raise InputError(f"{text}; start a new scan", code=error.code) from None
    return {name: tuple(of_case) for name, of_case in measurements.items()}


def _prefix(position: int, is_group: bool) -> str:
    return f"case {position} " if is_group else ""


def _arrays_path(path: Path, k: int) -> Path:
    # The whole name: scans named patient.1 and patient.2 must not share their measurements.
    return path.with_name(f"{path.name}-round{k}.npz")
