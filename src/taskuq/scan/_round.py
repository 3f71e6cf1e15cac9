"""One round: recover, task, decide, compatibility."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from taskuq._arrays import as_real_array, no_grad
from taskuq._seeds import case_seed
from taskuq.errors import GuaranteeWarning, InputError, first_line
from taskuq.interval import BoolArray, FloatArray, Interval
from taskuq.pipeline._executor import DeadlineWorker
from taskuq.policy._kinds import POLICIES
from taskuq.policy._policy import Decision, Policy
from taskuq.protocols import (
    CompletableScanner,
    FinalizingScanner,
    Fingerprinted,
    MultiRoundScore,
    Recover,
    Task,
)
from taskuq.scan._monitor import Monitor
from taskuq.scan._scanners import LineSelector, Scanners
from taskuq.scan._state import RoundOutputs, RoundRecord, Scan, output_fault, require_value


@dataclass(frozen=True, eq=False)
class _CachedTask:
    """Task that returns stored outputs for one known batch of samples."""

    task: Task
    outputs: Any
    memory: tuple[Any, ...] | None

    @classmethod
    def of(cls, task: Task, images: Any) -> _CachedTask:
        """Run the task on images."""
        # A task that writes into them is run again on what it made of them.
        memory = _memory(images)
        return cls(task, _copied(task(images)), memory)

    def __call__(self, images: Any) -> Any:
        """Return what the task says of images."""
        if self.memory is None or _memory(images) != self.memory:
            return self.task(images)
        return _copied(self.outputs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.task, name)


def _copied(outputs: Any) -> Any:
    """Numbers that whoever asked may write into."""
    return outputs.clone() if hasattr(outputs, "clone") else copy.deepcopy(outputs)


def _memory(images: Any) -> tuple[Any, ...] | None:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(images, torch.Tensor) or torch.is_grad_enabled():
        return None
    try:
        if torch.autograd.forward_ad.unpack_dual(images).tangent is not None:
            return None
        where = (images.device, images.data_ptr(), images.stride(), images._version)
    except RuntimeError:  # inside of a transform, sparse, or in inference mode
        return None
    return (*where, images.dtype, images.shape, images.is_conj(), images.is_neg())


VOID = "its promise is not about this one; plan again"


def find_mismatches(
    policy: Policy, recover: Any, task: Any, rule: Any, masks: str | None = None
) -> list[str]:
    """Return the differences between a scan and its policy's calibration."""
    known = policy.provenance.get("fingerprints")
    if not isinstance(known, Mapping):
        return []
    found = []
    if ("rule" in known) != (rule is not None):
        chose = "a rule chose" if rule is None else "no rule chose"
        found.append(
            f"the policy was calibrated with lines that {chose}, and this scan is not: {VOID}"
        )
    parts = {"recover": recover, "task": task} | ({"rule": rule} if "rule" in known else {})
    marks = {n: str(p.fingerprint) for n, p in parts.items() if isinstance(p, Fingerprinted)}
    for name, mark in {**marks, "masks": masks}.items():
        # A run marks masks always, and other parts where they have weights.
        was = known.get(name, "none with weights" if "masks" in known else "")
        if was and mark and mark != was:
            found.append(f"the policy was calibrated with {name} {was}, and this is {mark}: {VOID}")
    return found


def coil_mismatch(policy: Policy, coils: int) -> str | None:
    """Return a message if the number of coils differs."""
    known = policy.provenance.get("coils")
    if known in (None, coils):
        return None
    return f"the policy was calibrated with {known} coils, and this scan has {coils}: {VOID}"


def void_reason(found: Sequence[str], *, depth: int) -> str | None:
    """Warn and return why the guarantee does not apply."""
    if not found:
        return None
    said = "; ".join(found)
    warnings.warn(f"nothing is promised: {said}", GuaranteeWarning, stacklevel=depth)
    return f"Nothing is promised: {said}."


# How far outputs may be off when they are computed again, relative to their size.
AGREES = 1e-4


@dataclass(frozen=True)
class RoundExecutor:
    """Recover, run the task and decide one round."""

    policy: Policy
    scanners: Scanners
    recover: Recover
    task: Task
    seed: int
    worker: DeadlineWorker
    monitor: Monitor | None = None
    scan_id: str | None = None
    asking: LineSelector | None = None

    @cached_property
    def fingerprints(self) -> dict[str, Any]:
        return {
            "policy": self.policy.fingerprint,
            "recover": component_name(self.recover),
            "task": component_name(self.task),
            "rule": self.rule_name,
            "seed": self.seed,
            "samples": self.policy.samples,
        }

    @property
    def rule_name(self) -> str | None:
        return None if self.asking is None else component_name(self.asking.rule)

    @property
    def others(self) -> list[str]:
        rule = None if self.asking is None else self.asking.rule
        return find_mismatches(self.policy, self.recover, self.task, rule)

    def found(self, k: int, scans: dict[str, Scan]) -> RoundOutputs:
        """Recover the cases that were measured in round k and run the task; decide nothing yet."""
        found = RoundOutputs()
        if k == len(self.policy.accelerations):
            found.outputs.update({name: self._value(k, name, scan) for name, scan in scans.items()})
            return found
        for name, scan in scans.items():
            try:
                self._require_sound(scan)
                read = partial(self._read_and_choose, k, name, scan)
                found.outputs[name], found.chosen[name] = self.worker.run(read)
                fault = output_fault(self.policy, found.outputs[name], round=k)
            except Exception as error:
                fault = _failure(error, k)
            if fault is not None:
                found.faults[name] = fault
        return found

    def decided(self, k: int, scans: dict[str, Scan], found: RoundOutputs) -> list[RoundRecord]:
        """Return the record of round k of each case that was measured in it."""
        outputs, faults = found.outputs, found.faults
        if k == len(self.policy.accelerations):
            known = {name: self.policy.decide(k, None, value=x[0]) for name, x in outputs.items()}
            return [_record(k, name, outputs[name], said) for name, said in known.items()]
        if self.monitor is not None:
            faults = faults | self._withdrawn(self.monitor, k, scans, outputs, faults)
        faults = self._of_all(faults, list(scans))
        sound = {name: scan for name, scan in scans.items() if name not in faults}
        decided = dict(zip(sound, self._decisions(k, sound, outputs), strict=True))
        records = [
            self._undecided(k, name, faults[name], outputs.get(name))
            if name in faults
            else _record(k, name, outputs[name], decided[name])
            for name in scans
        ]
        return [self._asked(record, scans[record.case], found.chosen) for record in records]

    def doubts(self, records: Sequence[RoundRecord]) -> dict[str, str]:
        found: dict[str, str] = {}
        for record in records:
            scanner = self.scanners.of_case[record.case]
            if record.stop and isinstance(scanner, FinalizingScanner):
                fault = scanner.finalize()
                found |= {} if fault is None else {record.case: fault}
        return self._of_all(found, [record.case for record in records])

    def doubted(self, record: RoundRecord, scan: Scan, fault: str) -> RoundRecord:
        """Return what becomes of a stop when its measurements turn out wrong: measure more."""
        if record.round == len(self.policy.accelerations):
            raise InputError(_unknown(record.case, fault))
        undecided = self._undecided(record.round, record.case, fault, record.outputs)
        return self._asked(undecided, scan, {})

    def _of_all(self, faults: dict[str, str], cases: Sequence[str]) -> dict[str, str]:
        """One decision for all: what is wrong with one is wrong with all."""
        if not self.policy.whole_group or not faults:
            return faults
        first = next(iter(faults.values()))
        return {name: faults.get(name, first) for name in cases}

    def _asked(
        self, record: RoundRecord, scan: Scan, chosen: Mapping[str, BoolArray | None]
    ) -> RoundRecord:
        """A record with the lines that are wanted next, where a rule chooses them."""
        if self.asking is None or record.stop:
            return record
        wanted = self.asking.wanted(record.round, scan, chosen.get(record.case))
        return replace(record, next_lines=wanted)

    def _withdrawn(
        self,
        monitor: Monitor,
        k: int,
        scans: dict[str, Scan],
        outputs: dict[str, FloatArray],
        faults: dict[str, str],
    ) -> dict[str, str]:
        """Show the first round to the monitor; where the promise is withdrawn nothing may stop."""
        sound = [name for name in scans if name not in faults]
        try:
            if k == 0 and monitor._is_by_group and not faults:
                self._show(monitor, scans, outputs, self.scan_id)
            elif k == 0 and not monitor._is_by_group:
                for name in sound:
                    called = None if self.scan_id is None else f"{self.scan_id} {name}"
                    self._show(monitor, {name: scans[name]}, outputs, called)
            said = monitor.sentence if monitor.alarm else None
        except Exception as error:
            said = f"the monitor cannot tell whether the promise stands ({first_line(error)})"
        return {} if said is None else dict.fromkeys(sound, said)

    def _show(
        self,
        monitor: Monitor,
        scans: Mapping[str, Scan],
        outputs: Mapping[str, FloatArray],
        called: str | None,
    ) -> None:
        """Show a unit to the monitor: outputs of its cases, and what is seen in their images."""
        seen: dict[str, float] = {}
        if monitor.compute_statistics is not None:
            each = [
                monitor.compute_statistics(self.scanners.combine(n, s.measurements))
                for n, s in scans.items()
            ]
            seen = {name: float(np.mean([one[name] for one in each])) for name in each[0]}
        monitor.update(
            np.stack([outputs[name] for name in scans])[None], unit=called, statistics=seen
        )

    def require_same(self, scans: dict[str, Scan], path: Path) -> None:
        """Refuse a stored scan whose decisions do not come out again."""
        for k in range(max((len(scan.rounds) for scan in scans.values()), default=0)):
            stored = {
                name: scan
                for name, scan in scans.items()
                if len(scan.rounds) > k and scan.rounds[k].fault is None
            }
            for name, scan in stored.items():
                if len(scan.measurements) > k:
                    self._require_read_again(k, name, scan, path)
            before = {n: replace(scan, rounds=scan.rounds[:k]) for n, scan in stored.items()}
            outputs = {name: scan.rounds[k].outputs for name, scan in stored.items()}
            if k == len(self.policy.accelerations):
                said = [self.policy.decide(k, None, value=x[0]) for x in outputs.values()]
            else:
                said = self._decisions(k, before, outputs)
            for scan, decision in zip(stored.values(), said, strict=True):
                record, now = scan.rounds[k], decision.interval
                ends = np.array_equal(now.lower, record.lower) and np.array_equal(
                    now.upper, record.upper
                )
                if decision.stop is not record.stop or not ends:
                    raise InputError(
                        f"round {k} of {path} was not decided as the policy decides it: the state "
                        "is damaged or edited; start a new scan"
                    )

    def _require_read_again(self, k: int, name: str, scan: Scan, path: Path) -> None:
        """Refuse a stored round whose measurements now give other outputs, or want other lines."""
        record = scan.rounds[k]
        then = Scan(scan.rounds[:k], scan.measurements[: k + 1])
        if self.asking is None or k == len(self.policy.accelerations):
            again, chosen = self._read(k, name, then.measurements), None
        else:
            again, chosen = self._read_and_choose(k, name, then)
        _require_agreeing(again, record.outputs, k, path)
        if self.asking is not None and not record.stop:
            self.asking.require_wanted(k, then, chosen, record.next_lines, path)

    def _require_sound(self, scan: Scan) -> None:
        """Refuse to decide on measurements in which something is wrong."""
        if scan.faults:
            raise InputError(scan.faults[-1])
        missing = [record for record in scan.rounds if record.fault is not None]
        if missing and not self._may_skip():
            raise InputError(
                f"round {missing[0].round} could not be decided, and the promise of a stop needs "
                "every round before it"
            )

    def _may_skip(self) -> bool:
        """Return True if a stop keeps its promise although an earlier round was not decided."""
        scores = [rule.score for of_round in self.policy._rules for rule in of_round]
        reads_all = any(isinstance(s, MultiRoundScore) and s.uses_earlier_rounds for s in scores)
        # A rule that could not choose has left lines that no calibration case was replayed with.
        is_free = self.asking is None and not reads_all
        return POLICIES[self.policy.kind].holds_at_any_stop and is_free

    def _read_and_choose(
        self, k: int, case: str, scan: Scan
    ) -> tuple[FloatArray, BoolArray | None]:
        """Outputs of a round, and the lines of the next one where a rule chooses them."""
        if self.asking is None:
            return self._read(k, case, scan.measurements), None
        measurement, recoveries = self._recovered(k, case, scan.measurements)
        with no_grad():
            told = _CachedTask.of(self.task, recoveries)
            outputs = as_real_array(told.outputs, "task outputs", ndim=(1, 2))
            lines = self.asking.measured(scan)
            return outputs, self.asking.chosen(k, measurement, recoveries, told, lines)

    def _read(self, k: int, case: str, pieces: Sequence[Any]) -> FloatArray:
        """Recover a case from all its pieces and run the task, (sample,) or (sample, task)."""
        _, recoveries = self._recovered(k, case, pieces)
        with no_grad():
            return as_real_array(self.task(recoveries), "task outputs", ndim=(1, 2))

    def _recovered(self, k: int, case: str, pieces: Sequence[Any]) -> tuple[Any, Any]:
        """The measurement of a case, and what was recovered from it."""
        is_last = k == len(self.policy.accelerations)
        R = 1.0 if is_last else float(self.policy.accelerations[k])
        with no_grad():
            measurement = self.scanners.combine(case, pieces)
            recoveries = self.recover(
                measurement,
                samples=1 if is_last else self.policy.samples,
                seed=case_seed(self.seed, case, R),
            )
        return measurement, recoveries

    def _value(self, k: int, case: str, scan: Scan) -> FloatArray:
        """The value of a case that is measured in full, if it is, (1,) or (1, task)."""
        scanner, fault = self.scanners.of_case[case], "".join(scan.faults[:1])
        if isinstance(scanner, CompletableScanner) and not scanner.is_complete(
            list(scan.measurements)
        ):
            fault = fault or "the scanner says that lines are missing"
        if fault:
            raise InputError(_unknown(case, fault))
        outputs = self.worker.run(partial(self._read, k, case, scan.measurements), hurry=False)
        require_value(self.policy, outputs)
        return outputs

    def _decisions(
        self, k: int, scans: dict[str, Scan], outputs: dict[str, FloatArray]
    ) -> list[Decision]:
        """Ask the policy: about all cases at once where it decides about whole groups."""
        so_far = [_so_far(scan.rounds, outputs[name]) for name, scan in scans.items()]
        if not self.policy.whole_group or not scans:
            return [self.policy.decide(k, x) for x in so_far]
        together = self.policy.decide(k, np.stack(so_far, axis=1))
        return [replace(together, interval=together.interval[i]) for i in range(len(scans))]

    def _undecided(self, k: int, case: str, fault: str, outputs: FloatArray | None) -> RoundRecord:
        """The record of a round that cannot be decided: measure more."""
        tasks = len(self.policy.task_names)
        R = self.policy.accelerations[k]
        ends = np.array([range_ or (-np.inf, np.inf) for range_ in self.policy.task_ranges])
        decision = Decision(
            stop=False,
            stops=np.zeros((), dtype=bool),
            interval=Interval(*(ends[0] if tasks == 1 else ends.T)),
            round=k,
            acceleration=R,
            reason=f"continue {self.policy.round_label(k)}: {fault}",
            task_names=self.policy.task_names,
        )
        kept = np.empty(0) if outputs is None or not np.isfinite(outputs).all() else outputs
        return replace(_record(k, case, kept, decision), fault=fault)


def component_name(part: Any) -> str:
    """Return the fingerprint or class name of a component."""
    if isinstance(part, Fingerprinted) and part.fingerprint:
        return str(part.fingerprint)
    kind = part if hasattr(part, "__qualname__") else type(part)
    return f"{kind.__module__}.{kind.__qualname__}"


def _require_agreeing(again: FloatArray, stored: FloatArray, k: int, path: Path) -> None:
    same = again.shape == stored.shape
    if not same or np.abs(again - stored).max() > AGREES * (1 + np.abs(stored).max()):
        raise InputError(
            f"round {k} of {path} gives other outputs now ({again.flat[0]:.6g}, then "
            f"{stored.flat[0]:.6g}): recovery, task or measurements are not those it was decided "
            "with; go on with the former or start a new scan"
        )


def _unknown(case: str, fault: str) -> str:
    return (
        f"all rounds of {case} are over, but its value is not known: {fault}; the scan did not "
        "stop on that, start a new one"
    )


def _failure(error: Exception, k: int) -> str:
    if isinstance(error, TimeoutError | InputError):
        return first_line(error)
    said = f"{type(error).__name__}: {first_line(error):.160}"
    return f"recovery or task failed in round {k} ({said})"


def _so_far(rounds: Sequence[RoundRecord], outputs: FloatArray) -> FloatArray:
    """The outputs of all rounds; a round that was not decided is read by nobody."""
    earlier = [outputs if record.fault is not None else record.outputs for record in rounds]
    return np.stack([*earlier, outputs])


def _record(k: int, case: str, outputs: FloatArray, decision: Decision) -> RoundRecord:
    return RoundRecord(
        round=k,
        acceleration=decision.acceleration,
        outputs=outputs,
        stop=decision.stop,
        lower=decision.interval.lower,
        upper=decision.interval.upper,
        reason=decision.reason,
        case=case,
    )
