"""Acquisition loop."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from time import perf_counter
from typing import Any, cast, overload

from taskuq._arrays import require_methods
from taskuq._io import file_lock
from taskuq.errors import InputError
from taskuq.pipeline._executor import DeadlineWorker
from taskuq.policy._policy import Policy
from taskuq.protocols import AdaptiveMeasure, Recover, Scanner, Task, VerifiableScanner
from taskuq.scan._audit import append_entries, audit_entry
from taskuq.scan._monitor import Monitor
from taskuq.scan._round import RoundExecutor, void_reason
from taskuq.scan._scanners import ScannerOfEach, Scanners, as_scanners, make_line_selector
from taskuq.scan._state import (
    GroupScan,
    RoundRecord,
    Scan,
    ScanFlags,
    ScanState,
    background,
    measurement_fault,
)


def _validate_scan_inputs(
    policy: Policy,
    scanners: Scanners,
    samples: int,
    scan_id: str | None,
    state: str | os.PathLike[str] | None,
    deadline: Any,
    seed: Any,
) -> None:
    """Validate policy, scanner and options before measuring."""
    if samples != policy.samples:
        raise InputError(
            f"this policy was calibrated with {policy.samples} samples, got samples={samples}"
        )
    if policy.whole_group and not scanners.is_group:
        raise InputError(
            "this policy decides about all cases of a group at once, got a scanner of one case; "
            "give a scanner for each case, or name them, cases=[...], and measure all in a round"
        )
    if state is not None and not scan_id:
        raise InputError(
            f"the state {state} needs the name of its scan, so that no other is taken for it; give "
            "scan_id=, e.g. an accession number"
        )
    if deadline is not None and not (isinstance(deadline, Real) and 0 < float(deadline) < 1e6):
        raise InputError(f"the deadline must be a positive number of seconds, got {deadline!r}")
    if not isinstance(seed, Integral):
        raise InputError(f"the seed must be an integer, got {seed!r}")


def _validate_monitor(monitor: Monitor, policy: Policy, scanners: Scanners) -> None:
    """Raise InputError if a monitor does not fit the scan."""
    if not monitor._is_of(policy):
        raise InputError("the monitor watches another policy; make one of this policy")
    if monitor._is_by_group and not scanners.is_group:
        raise InputError(
            "this policy is about groups, so its monitor has to see all cases of a group at once, "
            "got a scanner of one case; give a scanner for each case of the group"
        )
    if monitor.calibration_statistics and monitor.compute_statistics is None:
        raise InputError(
            f"the monitor has statistics of your own ({', '.join(monitor.calibration_statistics)}), and a scan "
            "has to know how they are read off a measurement; give the monitor compute_statistics="
        )


OnRound = Callable[[RoundRecord], None]
StatePath = str | os.PathLike[str] | None
# A round, and the cases that are measured in it.
Awaited = tuple[int, tuple[str, ...]]
Scanned = Scan | GroupScan


@overload
def acquire(
    policy: Policy, scanner: Scanner, *, recover: Recover, task: Task, samples: int,
    seed: int = 0, case: str | None = None, cases: None = None, scan_id: str | None = None,
    state: StatePath = None, audit_log: StatePath = None, deadline: float | None = None,
    monitor: Monitor | None = None, on_round: OnRound | None = None,
    adaptive: AdaptiveMeasure | None = None,
) -> Scan: ...  # fmt: skip


@overload
def acquire(
    policy: Policy, scanner: Scanner, *, recover: Recover, task: Task, samples: int,
    seed: int = 0, case: None = None, cases: Sequence[str], scan_id: str | None = None,
    state: StatePath = None, audit_log: StatePath = None, deadline: float | None = None,
    monitor: Monitor | None = None, on_round: OnRound | None = None,
    adaptive: AdaptiveMeasure | None = None,
) -> GroupScan: ...  # fmt: skip


@overload
def acquire(
    policy: Policy, scanner: ScannerOfEach, *, recover: Recover, task: Task, samples: int,
    seed: int = 0, case: None = None, cases: Sequence[str] | None = None,
    scan_id: str | None = None, state: StatePath = None, audit_log: StatePath = None,
    deadline: float | None = None, monitor: Monitor | None = None,
    on_round: OnRound | None = None, adaptive: AdaptiveMeasure | None = None,
) -> GroupScan: ...  # fmt: skip


def acquire(
    policy: Policy,
    scanner: Scanner | ScannerOfEach,
    *,
    recover: Recover,
    task: Task,
    samples: int,
    seed: int = 0,
    case: str | None = None,
    cases: Sequence[str] | None = None,
    scan_id: str | None = None,
    state: StatePath = None,
    audit_log: StatePath = None,
    deadline: float | None = None,
    monitor: Monitor | None = None,
    on_round: OnRound | None = None,
    adaptive: AdaptiveMeasure | None = None,
) -> Scanned:
    """Scan a case, or all cases of a group, round by round until the policy stops.

    Each round measures only what it adds, recovers posterior samples from everything measured so
    far, runs the task on them and asks the policy. When all rounds have passed, the rest is
    measured and the target is known. What a round draws depends on the seed, the name of the case
    and the acceleration alone, as in :class:`taskuq.Pipeline`: a scan of a case repeats its row of
    a table.

    The cases of a group are scanned together where there is a scanner for each, or where ``cases``
    names them and ``measure`` of the one scanner returns a piece for each. A policy for whole
    groups makes one decision for all of them, and refuses to scan one case by itself. Under every
    other policy each case stops on its own, as if it were scanned alone: its scanner measures no
    more, or, where one scanner measures all, what it still measures of that case is not looked at.

    With ``state`` every round is stored before the next one begins: what was measured, then the
    record as a small JSON file. Calling again with the same file and ``scan_id`` goes on after the
    last stored round, once every stored decision has been computed again and agrees; one process
    at a time. A scanner that has a method ``remeasure`` has to measure the stored rounds once more, as
    they are stored, and ``on_round`` then hears them too. Arrays, or a dictionary of them, can be
    stored; tensors become arrays, from the first round on, so that the recovery is given the same
    before and after a power cut. Beside the state an audit trail grows, ``log.jsonl``, which
    ``taskuq audit`` checks and tells.

    A round in which something is wrong (a piece that is empty, zero, not finite, repeated, or of
    another round or scan; outputs that cannot be; a recovery or task that fails or takes longer
    than the deadline) is never a reason to stop: the scan goes on measuring and says why. Because
    its promise needs every round, it then goes on to the end, unless the policy's intervals hold
    at any stop, the measurements are sound and no rule chooses lines.

    Arguments:
        policy: When to stop.
        scanner: What measures; for a group, a scanner for each case (a list, or a dictionary by
            name), or one that measures all. Where it can ``combine`` the pieces of all rounds of
            a case so far, the recovery is given what comes of that, otherwise the list of pieces.
        recover: The recovery method, called with the measurement, ``samples`` and ``seed``.
        task: The task, called with recoveries.
        samples: The number of posterior samples, as many as the policy was calibrated with.
        seed: The seed of the recoveries.
        case: The name of the case. Without one it is ``"0"``, as a pipeline calls the first of
            images without names.
        cases: The names of all cases of a group, in the order in which they are measured. A list
            of scanners may do without, and numbers them as a pipeline would.
        scan_id: What the scan is called, e.g. an accession number; needed with ``state``.
        state: Where to keep the state of the scan.
        audit_log: The audit trail; by default ``log.jsonl`` beside the state.
        deadline: Seconds that recovery and task may take together for a case in a round; not for
            the last round, nor for what is computed again on resuming.
        monitor: What watches whether new units are still like the calibration units: it is shown
            the first round of every scan, and where it withdraws the promise none stops early.
        on_round: Called after each round with the record of each case, e.g. to show progress.
        adaptive: What chooses the lines of later rounds for each case, the one that the policy's table
            was made with. Every scanner is told with ``request`` before it measures a round; a
            record names the lines wanted next. Where the rule fails or is late, the round has a
            fault: other lines are measured, and the scan goes on to the end.

    Returns:
        The scan of the case; for a group, those of all its cases.
    """
    scan = _scan(
        policy, scanner, recover=recover, task=task, samples=samples, seed=seed, case=case,
        cases=cases, scan_id=scan_id, state=state, audit_log=audit_log, worker=DeadlineWorker(deadline),
        monitor=monitor, on_round=on_round, adaptive=adaptive,
    )  # fmt: skip
    with scan.locked():
        rounds = scan.rounds()
        while True:
            try:
                next(rounds)
            except StopIteration as ended:
                return cast(Scanned, ended.value)


def iter_scan(
    policy: Policy, scanner: Scanner | ScannerOfEach, **options: Any
) -> Generator[Awaited, None, Scanned]:
    """Scan as a generator that yields before each round."""
    return _scan(policy, scanner, **options).rounds()


def _scan(
    policy: Policy,
    scanner: Scanner | ScannerOfEach,
    *,
    recover: Recover,
    task: Task,
    samples: int,
    worker: DeadlineWorker,
    seed: int = 0,
    case: str | None = None,
    cases: Sequence[str] | None = None,
    scan_id: str | None = None,
    state: StatePath = None,
    audit_log: StatePath = None,
    monitor: Monitor | None = None,
    on_round: OnRound | None = None,
    adaptive: AdaptiveMeasure | None = None,
    terms: ScanFlags | None = None,
) -> _ScanLoop:
    """A scan that is ready to begin or to go on, or what is wrong with how it was asked for."""
    if not isinstance(policy, Policy):
        raise InputError(
            f"policy is what plan returns, got {policy!r}; read a file with taskuq.load_policy"
        )
    scanners = as_scanners(scanner, case, cases)
    require_methods(recover, "recover", Recover)
    require_methods(task, "task", Task)
    _validate_scan_inputs(policy, scanners, samples, scan_id, state, worker.deadline, seed)
    if monitor is not None:
        _validate_monitor(monitor, policy, scanners)
    asked = make_line_selector(adaptive, scanners, len(policy.accelerations))
    steps = RoundExecutor(policy, scanners, recover, task, seed, worker, monitor, scan_id, asked)
    terms = terms or ScanFlags()
    if terms.void is None:
        terms = replace(terms, void=void_reason(steps.others, depth=4))
    if state is None:
        return _ScanLoop(
            steps, terms, scan_id, None, None if audit_log is None else Path(audit_log), on_round
        )
    path = Path(state)
    file = ScanState(
        path, policy, scanners.cases, scanners.is_group, str(scan_id), seed, steps.rule_name,
        terms.patient,
    )  # fmt: skip
    trail = path.with_name("log.jsonl") if audit_log is None else Path(audit_log)
    return _ScanLoop(steps, terms, scan_id, file, trail, on_round)


@dataclass(frozen=True)
class _ScanLoop:
    """Scan from its current state to its end."""

    steps: RoundExecutor
    terms: ScanFlags
    scan_id: str | None
    file: ScanState | None
    trail: Path | None
    on_round: OnRound | None

    def locked(self) -> AbstractContextManager[None]:
        if self.file is None:
            return nullcontext()
        path = self.file.path
        return file_lock(path.with_name(f".{path.name}.lock"), what=str(path))

    def rounds(self) -> Generator[Awaited, None, Scanned]:
        """Go on until every case has stopped; say before each round what is measured in it."""
        scanners = self.steps.scanners
        scans = dict.fromkeys(scanners.cases, Scan())
        if self.trail is not None:
            # A file that is no trail is refused before anything is measured.
            append_entries(self.trail, [])
        if self.file is not None:
            scans = self.file.load()
            self.steps.require_same(scans, self.file.path)
            yield from self._repeat(scans)
        all_stored = True
        while going := [name for name, scan in scans.items() if not scan.is_finished]:
            k, storing = len(scans[going[0]].rounds), None
            if len(scans[going[0]].measurements) == k:
                if (asked := self.steps.asking) is not None:
                    asked.tell(k, scanners, {name: scans[name] for name in going})
                yield k, tuple(going)
                storing = self._measure(k, going, scans, all_stored)
                all_stored = storing is not None
            measured = {name: scans[name] for name in going}
            # The disk writes while networks compute, not while they wait for their measurement;
            # neither monitor nor trail hears of a round before it is there.
            with background(storing, waits=True) as begin:
                storing, begun = None, perf_counter()
                found = self._storing(begin).found(k, measured)
                latency = perf_counter() - begun
            begun = perf_counter()
            records = self.steps.decided(k, measured, found)
            latency += perf_counter() - begun
            doubts = self.steps.doubts(records)
            records = [
                self.steps.doubted(record, scans[record.case], doubts[record.case])
                if record.case in doubts
                else record
                for record in records
            ]
            records = self.terms.stamped(records, self.steps.monitor)
            for record in records:
                before, doubt = scans[record.case], doubts.get(record.case)
                faults = before.faults if doubt is None else (*before.faults, doubt)
                scans[record.case] = Scan((*before.rounds, record), before.measurements, faults)
            # The trail comes first: what a power cut lets it tell twice is told, not lost.
            tell = partial(self._tell, records, latency)
            if self.file is None:
                tell()
            else:
                self.file.keep(scans, pieces_stored=all_stored, first=tell)
            if self.on_round is not None:
                for record in records:
                    self.on_round(record)
        return GroupScan(scans) if scanners.is_group else scans[scanners.cases[0]]

    def _storing(self, begin: Callable[[], None]) -> RoundExecutor:
        """RoundExecutor that let something begin as soon as a measurement is put together."""
        return replace(self.steps, scanners=replace(self.steps.scanners, combined=begin))

    def _repeat(self, scans: dict[str, Scan]) -> Generator[Awaited, None, None]:
        scanners, asked = self.steps.scanners, self.steps.asking
        showing = {n: s for n, s in scanners.of_case.items() if isinstance(s, VerifiableScanner)}
        rounds = max((len(scans[name].measurements) for name in showing), default=0)
        if any(len(scans[name].rounds) > len(scans[name].measurements) for name in showing):
            raise InputError(
                "what the stored scan measured is not stored beside it, so that nobody can tell "
                "whether it is this scan; start a new one"
            )
        for k in range(rounds):
            stored = {name: scans[name] for name in showing if len(scans[name].measurements) > k}
            if asked is not None:
                asked.tell(k, scanners, stored)
            yield k, tuple(stored)
            for name, scan in stored.items():
                showing[name].remeasure(k, scan.measurements[k])
            said = [scan.rounds[k] for scan in stored.values() if len(scan.rounds) > k]
            if doubts := self.steps.doubts(said):
                raise InputError(next(iter(doubts.values())))
            # After all of them: who scans them together waits for the answers of all.
            for record in said:
                if self.on_round is not None:
                    self.on_round(replace(record, restored=True))

    def _measure(
        self, k: int, going: list[str], scans: dict[str, Scan], all_stored: bool
    ) -> Callable[[], None] | None:
        """Measure a round of the cases that go on; return what stores it, where all was so far."""
        asked = self.steps.asking
        pieces, arrays = self.steps.scanners.measure(k, going), None
        if self.file is not None:
            pieces, arrays = self.file.storable(going, pieces)
        for name, piece in zip(going, pieces, strict=True):
            scan = scans[name]
            fault = measurement_fault(piece, scan.measurements, round=k, scan_id=self.scan_id)
            if fault is None and asked is not None:
                fault = asked.fault(k, scan, piece)
            faults = scan.faults if fault is None else (*scan.faults, fault)
            scans[name] = replace(scan, measurements=(*scan.measurements, piece), faults=faults)
        if self.file is None or arrays is None or not all_stored:
            if self.file is not None and all_stored:
                _warn_of_pieces(self.file.path, k)
            return None
        # Copies: a recovery may write into its measurement while that is being stored.
        copies = {name: array.copy() for name, array in arrays.items()}
        return partial(self.file.keep_measured, k, copies, dict(scans))

    def _tell(self, records: list[RoundRecord], latency: float) -> None:
        if self.trail is not None:
            made_with = {"scan_id": self.scan_id or "", **self.steps.fingerprints}
            made_with |= {} if self.file is None else {"state": self.file.path.name}
            if (monitor := self.steps.monitor) is not None:
                made_with |= {"evidence": monitor.e_value, "withdrawn": monitor.alarm}
            append_entries(
                self.trail, [audit_entry(record, latency, **made_with) for record in records]
            )


def _warn_of_pieces(path: Path, k: int) -> None:
    warnings.warn(
        f"what round {k} measured is no array and no dictionary of arrays, so it is not searched "
        f"for faults and {path} keeps decisions alone: a scan that is cut off cannot be taken up, "
        "and what was computed from measurements cannot be verified; let measure return arrays",
        UserWarning,
        stacklevel=5,
    )
