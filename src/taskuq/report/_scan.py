"""One scan, stopped by the policy of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from taskuq.interval import FloatArray
from taskuq.policy._learned import round_arrays
from taskuq.policy._policy import Policy, monitor_statistics
from taskuq.report._explorer import Explorer, brightness, thumbnail
from taskuq.report._records import RunFolder, shown
from taskuq.table._table import TaskOutputs
from taskuq.table._terminology import Terminology

# Cases of a table that are tried.
MOST_CASES = 50


def one_scan(policy: Policy | None, folder: RunFolder) -> OneScan | None:
    """Return the first scan that stops after several rounds, or the first that stops early."""
    if policy is None or policy.whole_group:
        return None
    found = []
    for one in _cases(policy, folder):
        scan = _scanned(policy, one)
        if scan.is_early and len(scan.rounds) > 1:
            return _with_calibration(scan, policy, folder)
        found.append(scan)
    chosen = next((scan for scan in found if scan.is_early), next(iter(found), None))
    return None if chosen is None else _with_calibration(chosen, policy, folder)


class _Stored(NamedTuple):
    """A case: outputs are (round, sample), with a last axis for several tasks."""

    case: str
    target: float
    outputs: FloatArray
    labels: Sequence[str]
    shown: int | None


def _cases(policy: Policy, folder: RunFolder) -> Iterator[_Stored]:
    explorer, table = folder.explorer, folder.table
    rates = [float(R) for R in policy.accelerations]
    if explorer is not None and [float(R) for R in explorer.accelerations] == rates:
        targets = explorer.of(0).targets
        for s in range(explorer.slices):
            yield _Stored(
                str(explorer.case[s]), float(targets[s]), explorer.outputs[s], explorer.labels, s
            )
    elif table is not None and table.has_targets:
        if [float(R) for R in table.accelerations] != rates:
            return
        names = np.arange(table.cases) if table.case is None else table.case
        targets = np.reshape(table.targets_at(0), (table.cases, -1))[:, 0]
        for i in range(min(table.cases, MOST_CASES)):
            yield _Stored(
                str(names[i]), float(targets[i]), table.outputs[:, i], table.round_labels, None
            )


def _scanned(policy: Policy, one: _Stored) -> OneScan:
    rounds = []
    for k, label in enumerate(one.labels):
        decision = policy.decide(k, one.outputs[: k + 1])
        ends = decision.interval.lower, decision.interval.upper
        lower, upper = (float(np.ravel(end)[0]) for end in ends)
        # The interval of a round that does not stop has no guarantee, so it is left out.
        report = (lower, upper) if decision.stop else None
        seen = np.reshape(one.outputs[k], (len(one.outputs[k]), -1))[:, 0]
        rounds.append(_ScanRound(label, tuple(map(float, seen)), report))
        if decision.stop:
            break
    task = policy.task_names[0] if len(policy.task_names) > 1 else None
    return OneScan(one.case, one.target, tuple(rounds), one.shown, task)


def _with_calibration(scan: OneScan, policy: Policy, folder: RunFolder) -> OneScan:
    """Mark a scan whose case the policy was calibrated on."""
    table, explorer = folder.table, folder.explorer
    if table is None or not table.has_targets or not _is_planned_on(policy, table):
        return scan
    outputs = np.array([one.outputs for one in scan.rounds])

    def holds(first: FloatArray) -> bool:
        return bool((first[: len(outputs)] == outputs[:, None]).all(axis=(0, 2)).any())

    if not holds(round_arrays(table)[0][..., 0]):
        return scan
    if scan.shown is None or explorer is None:
        return replace(scan, calibrated=table.cases)
    others = np.moveaxis(explorer.of(0).calibration_outputs, 1, 0)
    return replace(scan, calibrated=table.cases, without=None if holds(others) else others.shape[1])


def _is_planned_on(policy: Policy, table: TaskOutputs) -> bool:
    """Return True if the policy's stored statistics are those of the table."""
    whom = policy.guarantee.whom
    if not policy.monitor_reference or (whom.is_group and table.group is None):
        return False
    index = whom.index(table.cases, table.group)
    x, z = round_arrays(table)
    return monitor_statistics(x[0], index, table.task_names, z[0]) == dict(policy.monitor_reference)


@dataclass(frozen=True)
class _ScanRound:
    label: str
    outputs: tuple[float, ...]
    report: tuple[float, float] | None

    @property
    def stops(self) -> bool:
        return self.report is not None


@dataclass(frozen=True)
class OneScan:
    """A scan of one case, up to the round in which it stops."""

    case: str
    target: float
    rounds: tuple[_ScanRound, ...]
    shown: int | None
    task: str | None = None
    calibrated: int | None = None
    without: int | None = None

    @property
    def is_early(self) -> bool:
        return self.rounds[-1].stops


def scan_picture(scan: OneScan, explorer: Explorer | None, words: Terminology) -> dict[str, Any]:
    """Return a scan for the template: one row for each round, the truth last."""
    every = [scan.target, *(v for r in scan.rounds for v in r.outputs)]
    every += [v for r in scan.rounds if r.report is not None for v in r.report]
    known = [v for v in every if math.isfinite(v)]
    low, high = min(known), max(known)
    span = (high - low) or 1.0

    def x(value: float) -> float:
        inside = min(max(value, low), high)
        return round(4 + 192 * (inside - low) / span, 2)

    rows = [
        {
            "label": one.label,
            "image": _picture(explorer, scan.shown, k),
            "dots": [x(v) for v in one.outputs],
            "decision": "stops here" if one.stops else "measure more",
            "stops": one.stops,
            **_reported(one, x),
        }
        for k, one in enumerate(scan.rounds)
    ]
    of = "" if scan.task is None else f" ({scan.task})"
    return {
        "caption": f"{words.title('case')} {scan.case}{of}: measuring {_ending(scan, words)}",
        "rows": rows,
        "target": x(scan.target),
        "truth": {
            "label": words.title("truth"),
            "image": _picture(explorer, scan.shown, None),
            "text": shown(scan.target),
        },
    }


def _reported(one: _ScanRound, x: Callable[[float], float]) -> dict[str, Any]:
    if one.report is None:
        return {"text": "no report yet"}
    low, high = one.report
    text = f"{shown(low)} to {shown(high)}"
    return {"text": text, "from": x(low), "width": max(x(high) - x(low), 1.0)}


def _ending(scan: OneScan, words: Terminology) -> str:
    """End of the caption; a case that the policy was calibrated on is called so."""
    truth, last = shown(scan.target), scan.rounds[-1]
    end = f"continues until the truth, {truth}, is known."
    if last.report is not None:
        low, high = last.report
        verb = "holds" if low <= scan.target <= high else "misses"
        end = f"stops at {last.label}; the report {verb} the truth, {truth}."
    if scan.calibrated is None:
        return end
    own = f"It is one of the policy's own {scan.calibrated} calibration {words.many('case')}"
    without = f"; the explorer below calibrates on {scan.without}, without it"
    return f"{end} {own}{'' if scan.without is None else without}."


def _picture(explorer: Explorer | None, s: int | None, k: int | None) -> str | None:
    if explorer is None or s is None:
        return None
    true: FloatArray = explorer.truth[s].astype(np.float32)
    return thumbnail(true if k is None else explorer.mean[s, k], *brightness(true))
