"""Acquisition of a scan, round by round."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy as np

from taskuq._arrays import require_methods
from taskuq._io import file_lock
from taskuq._seeds import as_seed
from taskuq.errors import InputError
from taskuq.pipeline._executor import DeadlineWorker, Executor
from taskuq.policy._policy import Policy
from taskuq.protocols import AdaptiveMeasure, Recover, Scanner, Task
from taskuq.scan._audit import append_entries, audit_entry
from taskuq.scan._monitor import Monitor
from taskuq.scan._round import RoundDecider, find_mismatches, void_reason
from taskuq.scan._scanners import LineSelector, ScannerOfEach, Scanners, as_scanners
from taskuq.scan._state import (
    GroupScan,
    RoundRecord,
    Scan,
    ScanFlags,
    ScanState,
    background,
    measurement_fault,
)

PathLike = str | os.PathLike[str]
Work = Callable[[], None]
# A round, and the cases that are measured in it.
Awaited = tuple[int, tuple[str, ...]]


@dataclass(frozen=True)
class ScanOptions:
    scan_id: str | None = None
    state: PathLike | None = None
    audit_log: PathLike | None = None
    monitor: Monitor | None = None
    on_round: Callable[[RoundRecord], None] | None = None
    adaptive: AdaptiveMeasure | None = None
    flags: ScanFlags = field(default_factory=ScanFlags)


def acquire(
    policy: Policy,
    scanner: Scanner | ScannerOfEach,
    *,
    recover: Recover,
    task: Task,
    samples: int,
    seed: int | np.random.Generator = 0,
    case: str | None = None,
    cases: Sequence[str] | None = None,
    scan_id: str | None = None,
    state: PathLike | None = None,
    audit_log: PathLike | None = None,
    deadline: float | None = None,
    monitor: Monitor | None = None,
    on_round: Callable[[RoundRecord], None] | None = None,
    adaptive: AdaptiveMeasure | None = None,
    stratum: int | str | None = None,
) -> Scan | GroupScan:
    """Scan a case, or all cases of a group, round by round until the policy stops.

    Each round acquires new data, draws posterior samples of the image from all data so far, runs
    the task on the samples and applies the policy. The last round completes the measurement and
    yields the target. The samples depend only on measurement, seed, case and acceleration.

    The cases of a group are scanned together if each case has its own scanner, or if ``cases``
    names them and the method ``measure`` of a shared scanner returns one measurement per case. A
    policy for whole groups makes one decision for all cases. Under other policies each case stops
    separately; what a shared scanner measures of a stopped case is ignored.

    With ``state``, every round is stored before the next one begins. A second call with the same
    file and ``scan_id`` reproduces every stored decision and resumes after the last stored round. A
    scanner with a method ``remeasure`` first repeats the stored rounds, and ``on_round`` is called
    again for each of them. Measurements are stored if they are arrays or dictionaries of arrays;
    tensors are converted to arrays. ``taskuq audit`` verifies and prints the audit log.

    A fault never stops a scan early. Faults are measurements that are empty, zero, not finite,
    repeated, or of another round or scan; invalid outputs; and reconstructions or tasks that fail
    or exceed the deadline. After a fault the scan continues to full sampling, because the guarantee
    needs every round. Only an 'anytime' policy may still stop early, if the measurements are valid
    and lines are not chosen adaptively.

    Args:
        policy: Policy returned by :func:`taskuq.plan`.
        scanner: A scanner. For a group: a list of scanners, a dictionary of scanners by case name,
            or one scanner for all cases.
        recover: Reconstruction method, called with the measurement, ``samples`` and ``seed``. The
            measurement is the result of the scanner's method ``combine``; without this method, the
            list of the measurements of all rounds.
        task: Task, called with the reconstructed images.
        samples: Number of posterior samples; the policy needs the number it was calibrated with.
        seed: Integer or Generator for the posterior samples; an integer if a scan may resume.
        case: Name of the case; default: ``"0"``, as in a pipeline without names.
        cases: Names of all cases of a group, in the order in which they are measured; default:
            positions in the list of scanners.
        scan_id: Identifier of the scan, e.g. the accession number; required with ``state``.
        state: File in which the state of the scan is stored.
        audit_log: File of the audit log; default: ``log.jsonl`` in the folder of ``state``.
        deadline: Time limit in seconds for reconstruction and task of one case in one round. It
            does not apply to the last round and to repeated rounds.
        monitor: Monitor of exchangeability; after it raises an alarm, no scan stops early.
        on_round: Function that is called after each round with the record of each case.
        adaptive: Adaptive choice of lines, the same as for the table of the policy. Before each
            round, the method ``request`` of every scanner is called with the lines to add; the
            records of rounds contain the lines of the next round.
        stratum: Stratum of the scan, for a policy with strata.

    Returns:
        A :class:`taskuq.scan.Scan`; for a group, a :class:`taskuq.scan.GroupScan`.

    Raises:
        InputError: If arguments do not fit the policy or each other. A fault raises no error.
    """
    if not isinstance(cast(Any, policy), Policy):
        text = f"policy must be a Policy, got {type(policy).__name__}; use taskuq.load_policy"
        raise InputError(text, code="component.invalid")
    policy = policy.for_stratum(stratum)
    require_methods(recover, "recover", Recover)
    require_methods(task, "task", Task)
    if samples != policy.samples:
        text = f"the policy was calibrated with {policy.samples} samples, got samples={samples}"
        raise InputError(text, code="samples.mismatch")
    if deadline is not None and not (
        isinstance(cast(Any, deadline), Real) and 0 < float(deadline) < 1e6
    ):
        text = f"deadline must be a positive number of seconds, got {deadline!r}"
        raise InputError(text, code="value.invalid")
    executor = Executor(recover, task, as_seed(seed), worker=DeadlineWorker(deadline))
    options = ScanOptions(scan_id, state, audit_log, monitor, on_round, adaptive)
    return open_scan(policy, as_scanners(scanner, case, cases), executor, options).run()


def open_scan(
    policy: Policy, scanners: Scanners, executor: Executor, options: ScanOptions
) -> ScanLoop:
    """Return a scan that is ready to start or resume."""
    monitor, flags = options.monitor, options.flags
    if policy.whole_group and not scanners.is_group:
        text = "the policy stops whole groups; pass one scanner per case, or cases=[...]"
        raise InputError(text, code="policy.mismatch")
    if options.state is not None and not options.scan_id:
        text = "state= needs scan_id=, the identity of the scan, e.g. the accession number"
        raise InputError(text, code="option.missing")
    if monitor is not None:
        _validate_monitor(monitor, policy, scanners)
    selector = None
    if options.adaptive is not None:
        selector = LineSelector.checked(options.adaptive, scanners, len(policy.accelerations))
    mismatches = find_mismatches(policy, executor, options.adaptive)
    if mismatches and flags.void_reason is None:
        flags = replace(flags, void_reason=void_reason(mismatches, depth=4))
    decider = RoundDecider(policy, scanners, executor, monitor, options.scan_id, selector)
    state, log = None, None if options.audit_log is None else Path(options.audit_log)
    if options.state is not None:
        path = Path(options.state)
        log = path.with_name("log.jsonl") if log is None else log
        state = ScanState(
            path, policy, scanners.cases, scanners.is_group, str(options.scan_id), executor.seed,
            decider.rule_name, flags.patient,
        )  # fmt: skip
    return ScanLoop(decider, replace(options, flags=flags), state, log)


def _validate_monitor(monitor: Monitor, policy: Policy, scanners: Scanners) -> None:
    if not monitor._is_of(policy):
        text = "the monitor was built for a different policy; create Monitor(policy)"
        raise InputError(text, code="policy.mismatch")
    if monitor._is_by_group and not scanners.is_group:
        text = "the units of the monitor are groups; pass one scanner per case"
        raise InputError(text, code="policy.mismatch")
    if monitor.calibration_statistics and monitor.compute_statistics is None:
        names = ", ".join(monitor.calibration_statistics)
        text = f"the monitor has statistics {names}; pass compute_statistics= to Monitor"
        raise InputError(text, code="option.missing")


@dataclass(frozen=True)
class ScanLoop:
    """Loop over the remaining rounds of a scan."""

    decider: RoundDecider
    options: ScanOptions
    state: ScanState | None
    audit_log: Path | None

    def run(self) -> Scan | GroupScan:
        """Scan until every case has stopped, and return the scan."""
        lock: AbstractContextManager[None] = nullcontext()
        if self.state is not None:
            path = self.state.path
            lock = file_lock(path.with_name(f".{path.name}.lock"), what=str(path))
        with lock:
            rounds = self.rounds()
            while True:
                try:
                    next(rounds)
                except StopIteration as ended:
                    return cast(Scan | GroupScan, ended.value)

    def rounds(self) -> Generator[Awaited, None, Scan | GroupScan]:
        """Scan until every case has stopped; before measuring, yield the round and its cases."""
        scanners, selector = self.decider.scanners, self.decider.selector
        scans = dict.fromkeys(scanners.cases, Scan())
        if self.audit_log is not None:
            # A file that is no audit log is refused before anything is measured.
            append_entries(self.audit_log, [])
        if self.state is not None:
            scans = self.state.load()
            self.decider.require_same(scans, self.state.path)
            yield from self._repeat(scans)
        all_stored = True
        while active := [name for name, scan in scans.items() if not scan.is_finished]:
            k, store = len(scans[active[0]].rounds), None
            if len(scans[active[0]].measurements) == k:
                if selector is not None:
                    selector.request(k, scanners, {name: scans[name] for name in active})
                yield k, tuple(active)
                store = self._measure(k, active, scans, all_stored)
                all_stored = store is not None
            self._decide(k, active, scans, store, all_stored)
        return GroupScan(scans) if scanners.is_group else scans[scanners.cases[0]]

    def _decide(
        self, k: int, active: list[str], scans: dict[str, Scan], store: Work | None, stored: bool
    ) -> None:
        """Compute, decide and store round k of the active cases."""
        measured, decider = {name: scans[name] for name in active}, self.decider
        begun = perf_counter()
        # The disk writes while networks compute; monitor and audit log receive a round after its
        # measurements are stored.
        with nullcontext() if store is None else background(store):
            results = decider.compute(k, measured)
        records = decider.decide(k, measured, results)
        latency = perf_counter() - begun
        late_faults = decider.late_faults(records)
        for i, record in enumerate(records):
            scan, fault = scans[record.case], late_faults.get(record.case)
            if fault is not None:
                records[i] = decider.revoke(record, scan, fault)
                scans[record.case] = replace(scan, faults=(*scan.faults, fault))
        flags, monitor = self.options.flags, decider.monitor
        reason = flags.void_reason
        if reason is None and monitor is not None and monitor.alarm:
            reason = monitor.statement
        if reason is not None or flags.shadow:
            records = [replace(r, void_reason=reason, shadow=flags.shadow) for r in records]
        for record in records:
            scan = scans[record.case]
            scans[record.case] = Scan((*scan.rounds, record), scan.measurements, scan.faults)
        # The audit log comes first: after a power cut it may repeat a round, but lose none.
        log = partial(self._log, records, latency)
        if self.state is None:
            log()
        else:
            self.state.store(scans, pieces_stored=stored, first=log)
        if self.options.on_round is not None:
            for record in records:
                self.options.on_round(record)

    def _repeat(self, scans: dict[str, Scan]) -> Generator[Awaited, None, None]:
        """Repeat the stored rounds on each scanner that has a method ``remeasure``."""
        scanners, selector = self.decider.scanners, self.decider.selector
        verifiable = {
            name: again
            for name, scanner in scanners.of_case.items()
            if (again := getattr(scanner, "remeasure", None)) is not None
        }
        rounds = max((len(scans[name].measurements) for name in verifiable), default=0)
        if any(len(scans[name].rounds) > len(scans[name].measurements) for name in verifiable):
            text = "the stored scan has no measurements to verify; start a new scan"
            raise InputError(text, code="resume.mismatch")
        for k in range(rounds):
            stored = {name: scans[name] for name in verifiable if len(scans[name].measurements) > k}
            if selector is not None:
                selector.request(k, scanners, stored)
            yield k, tuple(stored)
            for name, scan in stored.items():
                verifiable[name](k, scan.measurements[k])
            records = [scan.rounds[k] for scan in stored.values() if len(scan.rounds) > k]
            if late_faults := self.decider.late_faults(records):
                raise InputError(next(iter(late_faults.values())), code="resume.mismatch")
            # After all of them: a client that scans them together awaits the replies of all.
            for record in records:
                if self.options.on_round is not None:
                    self.options.on_round(replace(record, restored=True))

    def _measure(
        self, k: int, active: list[str], scans: dict[str, Scan], all_stored: bool
    ) -> Work | None:
        """Measure a round of the active cases; return a function that stores the data, or None."""
        selector = self.decider.selector
        measurements, arrays = self.decider.scanners.measure(k, active), None
        if self.state is not None:
            measurements, arrays = self.state.storable(active, measurements)
        for name, measurement in zip(active, measurements, strict=True):
            scan = scans[name]
            earlier, scan_id = scan.measurements, self.options.scan_id
            fault = measurement_fault(measurement, earlier, round=k, scan_id=scan_id)
            if fault is None and selector is not None:
                fault = selector.fault(k, scan, measurement)
            faults = scan.faults if fault is None else (*scan.faults, fault)
            scans[name] = Scan(scan.rounds, (*scan.measurements, measurement), faults)
        if self.state is None or arrays is None or not all_stored:
            if self.state is not None and all_stored:
                text = f"the measurement of round {k} is not an array or dict of arrays: it is "
                text += "not checked, and the scan cannot be resumed; return arrays from measure"
                warnings.warn(text, UserWarning, stacklevel=5)
            return None
        # Copies: a recovery may write into its measurement while that is being stored.
        copies = {name: array.copy() for name, array in arrays.items()}
        return partial(self.state.store_measured, k, copies, dict(scans))

    def _log(self, records: list[RoundRecord], latency: float) -> None:
        if self.audit_log is None:
            return
        common = {"scan_id": self.options.scan_id or "", **self.decider.fingerprints}
        common |= {} if self.state is None else {"state": self.state.path.name}
        if (monitor := self.decider.monitor) is not None:
            common |= {"evidence": monitor.e_value, "withdrawn": monitor.alarm}
        entries = [audit_entry(record, latency, **common) for record in records]
        append_entries(self.audit_log, entries)
