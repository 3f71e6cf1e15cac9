"""The acquisition loop: measure a round, recover, run the task, decide, and survive a power cut."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from taskuq.checks import as_numbers, no_gradients, require_part
from taskuq.decide.policy import Decision, Policy
from taskuq.decide.scan import Acquisition, GroupAcquisition, RoundRecord
from taskuq.decide.scan_state import StateFile
from taskuq.decide.scanners import ScannerOfEach, Scanners, as_scanners
from taskuq.errors import InputError
from taskuq.interval import FloatArray
from taskuq.protocols import Recover, Scanner, Task
from taskuq.seeds import case_seed

OnRound = Callable[[RoundRecord], None]
StatePath = str | os.PathLike[str] | None


@overload
def acquire(
    policy: Policy, scanner: Scanner, *, recover: Recover, task: Task, samples: int,
    seed: int = 0, case: str | None = None, cases: None = None,
    state: StatePath = None, on_round: OnRound | None = None,
) -> Acquisition: ...  # fmt: skip


@overload
def acquire(
    policy: Policy, scanner: Scanner, *, recover: Recover, task: Task, samples: int,
    seed: int = 0, case: None = None, cases: Sequence[str],
    state: StatePath = None, on_round: OnRound | None = None,
) -> GroupAcquisition: ...  # fmt: skip


@overload
def acquire(
    policy: Policy, scanner: ScannerOfEach, *, recover: Recover, task: Task, samples: int,
    seed: int = 0, case: None = None, cases: Sequence[str] | None = None,
    state: StatePath = None, on_round: OnRound | None = None,
) -> GroupAcquisition: ...  # fmt: skip


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
    state: StatePath = None,
    on_round: OnRound | None = None,
) -> Acquisition | GroupAcquisition:
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

    With ``state`` every round is stored before the next one begins: the record as a small JSON
    file, and what was measured beside it. Calling again with the same file goes on after the last
    stored round. Arrays, or a dictionary of them, can be stored; tensors become arrays, from the
    first round on, so that the recovery is given the same before and after a power cut.

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
        state: Where to keep the state of the scan.
        on_round: Called after each round with the record of each case, e.g. to show progress.

    Returns:
        The scan of the case; for a group, those of all its cases.
    """
    scanners = as_scanners(scanner, case, cases)
    require_part(recover, "recover", Recover)
    require_part(task, "task", Task)
    if samples != policy.samples:
        raise InputError(
            f"this policy was calibrated with {policy.samples} samples, got samples={samples}"
        )
    if policy.whole_group and not scanners.is_group:
        raise InputError(
            "this policy decides about all cases of a group at once, got a scanner of one case; "
            "give a scanner for each case, or name them, cases=[...], and measure all in a round"
        )
    file = None
    if state is not None:
        file = StateFile(Path(state), policy, scanners.cases, scanners.is_group)
    steps = _Steps(policy, scanners, recover, task, seed)
    scans = dict.fromkeys(scanners.cases, Acquisition()) if file is None else file.load()
    all_stored = True
    while going := [name for name, scan in scans.items() if not scan.is_finished]:
        k = len(scans[going[0]].rounds)
        pieces, arrays = scanners.measure(k, going), None
        if file is not None:
            pieces, arrays = file.storable(going, pieces)
            all_stored = all_stored and arrays is not None
        for name, piece in zip(going, pieces, strict=True):
            scans[name] = replace(scans[name], pieces=(*scans[name].pieces, piece))
        records = steps.decided(k, {name: scans[name] for name in going})
        for record in records:
            before = scans[record.case]
            scans[record.case] = replace(before, rounds=(*before.rounds, record))
        if file is not None:
            file.store(scans, arrays if all_stored else None)
        if on_round is not None:
            for record in records:
                on_round(record)
    return GroupAcquisition(scans) if scanners.is_group else scans[scanners.cases[0]]


@dataclass(frozen=True)
class _Steps:
    """What turns the measurements of a round into decisions."""

    policy: Policy
    scanners: Scanners
    recover: Recover
    task: Task
    seed: int

    def decided(self, k: int, scans: dict[str, Acquisition]) -> list[RoundRecord]:
        """Return the record of round k of each case that was measured in it."""
        outputs = [self._read(k, name, scan.pieces) for name, scan in scans.items()]
        decisions = self._decisions(k, list(scans.values()), outputs)
        return [
            RoundRecord(
                round=k,
                acceleration=decision.acceleration,
                outputs=read,
                stop=decision.stop,
                lower=decision.interval.lower,
                upper=decision.interval.upper,
                reason=decision.reason,
                case=name,
            )
            for name, read, decision in zip(scans, outputs, decisions, strict=True)
        ]

    def _read(self, k: int, case: str, pieces: Sequence[Any]) -> FloatArray:
        """Recover a case from all its pieces and run the task, (sample,) or (sample, task)."""
        is_last = k == len(self.policy.accelerations)
        R = 1.0 if is_last else float(self.policy.accelerations[k])
        samples = 1 if is_last else self.policy.samples
        with no_gradients():
            recoveries = self.recover(
                self.scanners.combine(case, pieces),
                samples=samples,
                seed=case_seed(self.seed, case, R),
            )
            outputs = as_numbers(self.task(recoveries), "task outputs", ndim=(1, 2))
        if not is_last and len(outputs) != samples:
            raise InputError(
                f"the recovery and task gave {len(outputs)} outputs in round {k}, but {samples} "
                "samples were asked for"
            )
        return outputs

    def _decisions(
        self, k: int, scans: Sequence[Acquisition], outputs: Sequence[FloatArray]
    ) -> list[Decision]:
        """Ask the policy: about all cases at once where it decides about whole groups."""
        if k == len(self.policy.accelerations):
            return [self.policy.decide(k, None, value=read[0]) for read in outputs]
        so_far = [
            np.stack([*(record.outputs for record in scan.rounds), read])
            for scan, read in zip(scans, outputs, strict=True)
        ]
        if not self.policy.whole_group:
            return [self.policy.decide(k, x) for x in so_far]
        together = self.policy.decide(k, np.stack(so_far, axis=1))
        return [replace(together, interval=together.interval[i]) for i in range(len(scans))]
