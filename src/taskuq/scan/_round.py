"""One round of a scan: reconstruction, task, decision and compatibility with the policy."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from taskuq._arrays import as_real_array, no_grad
from taskuq.conformal._family import uses_earlier_rounds
from taskuq.errors import GuaranteeWarning, InputError, first_line
from taskuq.interval import BoolArray, FloatArray, Interval
from taskuq.pipeline._executor import Executor, component_name
from taskuq.policy._kinds import POLICIES
from taskuq.policy._policy import Decision, Policy
from taskuq.protocols import declared_fingerprint
from taskuq.scan._monitor import Monitor
from taskuq.scan._scanners import LineSelector, Scanners
from taskuq.scan._state import RoundOutputs, RoundRecord, Scan, output_fault, require_value

VOID = "its guarantee does not apply; plan again"
# Relative difference allowed when outputs are computed again.
AGREES = 1e-4


def find_mismatches(
    policy: Policy, executor: Executor, rule: Any, masks: str | None = None
) -> list[str]:
    """Return a sentence for each network, mask or line rule that calibration did not use."""
    calibrated = policy.provenance.get("fingerprints")
    if not isinstance(calibrated, Mapping):
        return []
    found = []
    if ("rule" in calibrated) != (rule is not None):
        with_, now = ("adaptive", "fixed") if rule is None else ("fixed", "adaptive")
        found.append(
            f"the policy was calibrated with {with_} lines, this scan has {now} lines: {VOID}"
        )
    fingerprints = {name: executor.fingerprint(name) for name in ("recover", "task")}
    if "rule" in calibrated:
        fingerprints["rule"] = declared_fingerprint(rule)
    for name, mine in {**fingerprints, "masks": masks}.items():
        # A run always stores the fingerprint of masks, and of other parts if they have weights.
        theirs = calibrated.get(name, "none with weights" if "masks" in calibrated else "")
        if theirs and mine and mine != theirs:
            found.append(f"the policy was calibrated with {name} {theirs}, got {mine}: {VOID}")
    return found


def void_reason(mismatches: Sequence[str], *, depth: int) -> str | None:
    """Warn about mismatches, and return the reason why the guarantee is void, or None."""
    if not mismatches:
        return None
    text = "; ".join(mismatches)
    warnings.warn(f"no guarantee: {text}", GuaranteeWarning, stacklevel=depth)
    return f"No guarantee: {text}."


@dataclass(frozen=True)
class RoundDecider:
    """Reconstruction, task and decision of each round of a scan."""

    policy: Policy
    scanners: Scanners
    executor: Executor
    monitor: Monitor | None = None
    scan_id: str | None = None
    selector: LineSelector | None = None

    @cached_property
    def fingerprints(self) -> dict[str, Any]:
        """Fingerprints of the policy, networks and settings of the scan."""
        return {
            "policy": self.policy.fingerprint,
            "recover": self.executor.name("recover"),
            "task": self.executor.name("task"),
            "rule": self.rule_name,
            "seed": self.executor.seed,
            "samples": self.policy.samples,
        }

    @property
    def rule_name(self) -> str | None:
        """Fingerprint of the rule that chooses lines, or None if lines are fixed."""
        return None if self.selector is None else component_name(self.selector.rule)

    def compute(self, k: int, scans: dict[str, Scan]) -> RoundOutputs:
        """Reconstruct the cases measured in round k; return task outputs, lines and faults."""
        results = RoundOutputs()
        for name, scan in scans.items():
            if k == len(self.policy.accelerations):
                results.outputs[name] = self._final_value(k, name, scan)
                continue
            try:
                self._require_sound(scan)
                outputs = partial(self._outputs, k, name, scan)
                results.outputs[name], results.chosen[name] = self.executor.worker.run(outputs)
                fault = output_fault(self.policy, results.outputs[name], round=k)
            except Exception as error:
                fault = _failure(error, k)
            if fault is not None:
                results.faults[name] = fault
        return results

    def decide(self, k: int, scans: dict[str, Scan], results: RoundOutputs) -> list[RoundRecord]:
        """Decide whether each case measured in round k stops; return one record per case."""
        outputs, faults = results.outputs, results.faults
        if k == len(self.policy.accelerations):
            return [
                _record(k, name, x, self.policy.decide(k, None, value=x[0]))
                for name, x in outputs.items()
            ]
        if self.monitor is not None:
            faults = faults | self._update_monitor(self.monitor, k, scans, results)
        faults = self._for_group(faults, list(scans)) if faults else faults
        sound = {name: scans[name] for name in scans if name not in faults} if faults else scans
        decisions = dict(zip(sound, self._decisions(k, sound, outputs), strict=True))
        records = [
            self._undecided(k, name, faults[name], outputs.get(name))
            if name in faults
            else _record(k, name, outputs[name], decisions[name])
            for name in scans
        ]
        if self.selector is None:
            return records
        return [self._with_lines(r, scans[r.case], results.chosen.get(r.case)) for r in records]

    def late_faults(self, records: Sequence[RoundRecord]) -> dict[str, str]:
        """Finalise the scanners of stopped cases; return the faults that they report, by case."""
        faults: dict[str, str] = {}
        for record in records:
            scanner = self.scanners.of_case[record.case]
            finalize = getattr(scanner, "finalize", None)
            if record.stop and finalize is not None and (fault := finalize()) is not None:
                faults[record.case] = fault
        return self._for_group(faults, [record.case for record in records]) if faults else faults

    def revoke(self, record: RoundRecord, scan: Scan, fault: str) -> RoundRecord:
        """Replace a stop based on faulty measurements by a decision to continue."""
        if record.round == len(self.policy.accelerations):
            raise _unknown_value(record.case, fault)
        undecided = self._undecided(record.round, record.case, fault, record.outputs)
        return self._with_lines(undecided, scan, None)

    def _for_group(self, faults: dict[str, str], cases: Sequence[str]) -> dict[str, str]:
        """Return faults by case; under a whole-group policy one case's fault applies to all."""
        if not self.policy.whole_group:
            return faults
        first = next(iter(faults.values()))
        return {name: faults.get(name, first) for name in cases}

    def _with_lines(self, record: RoundRecord, scan: Scan, chosen: BoolArray | None) -> RoundRecord:
        if self.selector is None or record.stop:
            return record
        return replace(record, next_lines=self.selector.added(record.round, scan, chosen))

    def _update_monitor(
        self, monitor: Monitor, k: int, scans: dict[str, Scan], results: RoundOutputs
    ) -> dict[str, str]:
        """Update the monitor in round 0; return a fault for each case if scans must continue."""
        outputs, faults = results.outputs, results.faults
        sound = [name for name in scans if name not in faults]
        try:
            if k == 0 and monitor._is_by_group and not faults:
                self._show(monitor, scans, outputs, self.scan_id)
            elif k == 0 and not monitor._is_by_group:
                for name in sound:
                    unit = None if self.scan_id is None else f"{self.scan_id} {name}"
                    self._show(monitor, {name: scans[name]}, outputs, unit)
            fault = monitor.statement if monitor.alarm else None
        except Exception as error:
            fault = f"the monitor failed ({first_line(error)}), so exchangeability is unknown"
        return {} if fault is None else dict.fromkeys(sound, fault)

    def _show(
        self, monitor: Monitor, scans: dict[str, Scan], outputs: dict[str, FloatArray], unit: Any
    ) -> None:
        statistics: dict[str, float] = {}
        if monitor.compute_statistics is not None:
            each = [
                monitor.compute_statistics(self.scanners.combine(name, scan.measurements))
                for name, scan in scans.items()
            ]
            statistics = {name: float(np.mean([one[name] for one in each])) for name in each[0]}
        x = np.stack([outputs[name] for name in scans])[None]
        monitor.update(x, unit=unit, statistics=statistics)

    def require_same(self, scans: dict[str, Scan], path: Path) -> None:
        """Raise InputError if the decisions of a stored scan are not reproduced."""
        for k in range(max((len(scan.rounds) for scan in scans.values()), default=0)):
            stored = {
                name: scan
                for name, scan in scans.items()
                if len(scan.rounds) > k and scan.rounds[k].fault is None
            }
            for name, scan in stored.items():
                if len(scan.measurements) > k:
                    self._require_same_outputs(k, name, scan, path)
            before = {n: replace(scan, rounds=scan.rounds[:k]) for n, scan in stored.items()}
            outputs = {name: scan.rounds[k].outputs for name, scan in stored.items()}
            if k == len(self.policy.accelerations):
                decisions = [self.policy.decide(k, None, value=x[0]) for x in outputs.values()]
            else:
                decisions = self._decisions(k, before, outputs)
            for scan, decision in zip(stored.values(), decisions, strict=True):
                record, now = scan.rounds[k], decision.interval
                same_lower = np.array_equal(now.lower, record.lower)
                same = same_lower and np.array_equal(now.upper, record.upper)
                if decision.stop is not record.stop or not same:
                    text = f"round {k} of {path} has a decision that the policy does not make"
                    raise InputError(f"{text}; start a new scan", code="file.damaged")

    def _require_same_outputs(self, k: int, name: str, scan: Scan, path: Path) -> None:
        """Raise InputError if recomputing a stored round gives other outputs or lines."""
        record = scan.rounds[k]
        then = Scan(scan.rounds[:k], scan.measurements[: k + 1])
        outputs, chosen = self._outputs(k, name, then)
        stored = record.outputs
        same = outputs.shape == stored.shape
        if not same or np.abs(outputs - stored).max() > AGREES * (1 + np.abs(stored).max()):
            raise InputError(
                f"round {k} of {path} has other outputs now ({outputs.flat[0]:.6g}, stored "
                f"{stored.flat[0]:.6g}): recovery, task or data have changed; start a new scan",
                code="resume.mismatch",
            )
        if self.selector is None or record.stop:
            return
        if self.selector.added(k, then, chosen) != record.next_lines:
            text = f"adaptive= chooses other lines after round {k} than {path}; start a new scan"
            raise InputError(text, code="resume.mismatch")

    def _require_sound(self, scan: Scan) -> None:
        if scan.faults:
            raise InputError(scan.faults[-1], code="component.invalid")
        for record in scan.rounds:
            if record.fault is not None and not self._may_skip():
                text = f"round {record.round} could not be decided, and the guarantee of a stop "
                raise InputError(f"{text}needs every round before it", code="component.invalid")

    def _may_skip(self) -> bool:
        """Return True if the guarantee holds even if an earlier round has no decision."""
        scores = [rule.score for of_round in self.policy._rules for rule in of_round]
        reads_all = any(map(uses_earlier_rounds, scores))
        # After a failed choice a scan has lines that no calibration case had.
        is_free = self.selector is None and not reads_all
        return POLICIES[self.policy.kind].holds_at_any_stop and is_free

    def _outputs(self, k: int, case: str, scan: Scan) -> tuple[FloatArray, BoolArray | None]:
        """Return the task outputs of a round, and the lines chosen for the next round, or None."""
        is_last = k == len(self.policy.accelerations)
        R = 1.0 if is_last else float(self.policy.accelerations[k])
        samples = 1 if is_last else self.policy.samples
        executor, selector = self.executor, self.selector
        with no_grad():
            measurement = self.scanners.combine(case, scan.measurements)
            recoveries = executor.sample(measurement, case, R, samples)
            if selector is None or k + 1 >= selector.rounds:
                return executor.outputs(recoveries), None
            task = executor.cached_task(recoveries)
            lines = selector.measured(scan)
            outputs = as_real_array(task.outputs, "task outputs", ndim=(1, 2))
            return outputs, selector.choose(k, measurement, recoveries, task, lines)

    def _final_value(self, k: int, case: str, scan: Scan) -> FloatArray:
        scanner, fault = self.scanners.of_case[case], "".join(scan.faults[:1])
        is_complete = getattr(scanner, "is_complete", None)
        if is_complete is not None and not is_complete(list(scan.measurements)):
            fault = fault or "the scanner reports missing lines"
        if fault:
            raise _unknown_value(case, fault)
        outputs, _ = self.executor.worker.run(partial(self._outputs, k, case, scan), hurry=False)
        require_value(self.policy, outputs)
        return outputs

    def _decisions(
        self, k: int, scans: dict[str, Scan], outputs: dict[str, FloatArray]
    ) -> list[Decision]:
        """Return one decision per case; for a whole-group policy, all cases stop together."""
        rounds = []
        for name, scan in scans.items():
            x = outputs[name]
            # The outputs of an undecided round are not used.
            earlier = [x if record.fault is not None else record.outputs for record in scan.rounds]
            rounds.append(np.stack([*earlier, x]))
        if not self.policy.whole_group or not scans:
            return list(map(partial(self.policy.decide, k), rounds))
        together = self.policy.decide(k, np.stack(rounds, axis=1))
        return [replace(together, interval=together.interval[i]) for i in range(len(scans))]

    def _undecided(self, k: int, case: str, fault: str, outputs: FloatArray | None) -> RoundRecord:
        tasks = len(self.policy.task_names)
        ends = np.array([range_ or (-np.inf, np.inf) for range_ in self.policy.task_ranges])
        decision = Decision(
            stop=False,
            stops=np.zeros((), dtype=bool),
            interval=Interval(*(ends[0] if tasks == 1 else ends.T)),
            round=k,
            acceleration=self.policy.accelerations[k],
            reason=f"continue {self.policy.round_label(k)}: {fault}",
            task_names=self.policy.task_names,
        )
        stored = np.empty(0) if outputs is None or not np.isfinite(outputs).all() else outputs
        return replace(_record(k, case, stored, decision), fault=fault)


def _unknown_value(case: str, fault: str) -> InputError:
    return InputError(
        f"all rounds of {case} are measured, but its value is unknown: {fault}; start a new scan",
        code="component.invalid",
    )


def _failure(error: Exception, k: int) -> str:
    if isinstance(error, TimeoutError | InputError):
        return first_line(error)
    text = f"{type(error).__name__}: {first_line(error):.160}"
    return f"recovery or task failed in round {k} ({text})"


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
