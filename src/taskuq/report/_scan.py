"""Example scan, stopped by the policy of a run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskuq.errors import GuaranteeWarning
from taskuq.interval import FloatArray, TaskRange
from taskuq.policy._policy import Policy
from taskuq.report._explorer import Explorer, brightness, thumbnail
from taskuq.report._records import RunFolder, shown
from taskuq.table._terminology import Terminology

# Cases of a table that are tried, in order.
MOST_CASES = 50


def one_scan(policy: Policy | None, folder: RunFolder) -> OneScan | None:
    """Return an example scan, preferably the first that stops early after several rounds."""
    if policy is None or policy.whole_group:
        return None
    found = []
    for one in _cases(policy, folder):
        scan = _scanned(policy, *one)
        if scan.is_early and len(scan.rounds) > 1:
            return scan
        found.append(scan)
    return next((scan for scan in found if scan.is_early), next(iter(found), None))


# A case: name, target, outputs (round, sample[, task]), names of rounds, index in the explorer.
_Case = tuple[str, float, FloatArray, Sequence[str], int | None]


def _cases(policy: Policy, folder: RunFolder) -> Iterator[_Case]:
    explorer, table = folder.explorer, folder.table
    rates = [float(R) for R in policy.accelerations]
    if explorer is not None and [float(R) for R in explorer.accelerations] == rates:
        targets = explorer.for_task(0).targets
        for s, case in enumerate(explorer.case):
            yield str(case), float(targets[s]), explorer.outputs[s], explorer.labels, s
    elif table is not None and table.has_targets:
        if [float(R) for R in table.accelerations] != rates:
            return
        names = np.arange(table.cases) if table.case is None else table.case
        targets = np.reshape(table.targets_at(0), (table.cases, -1))[:, 0]
        for i, case in enumerate(names[:MOST_CASES]):
            yield str(case), float(targets[i]), table.outputs[:, i], table.round_labels, None


def _scanned(
    policy: Policy, case: str, target: float, x: FloatArray, labels: Sequence[str], s: int | None
) -> OneScan:
    rounds = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GuaranteeWarning)
        policy.decide(0, x[:1])
    for k, label in enumerate(labels):
        decision = policy.decide(k, x[: k + 1])
        ends = decision.interval.lower, decision.interval.upper
        lower, upper = (float(np.ravel(end)[0]) for end in ends)
        # The interval of a round that does not stop has no guarantee and is omitted.
        report = (lower, upper) if decision.stop else None
        outputs = np.reshape(x[k], (len(x[k]), -1))[:, 0]
        rounds.append(_ScanRound(label, tuple(map(float, outputs)), report))
        if decision.stop:
            break
    task = policy.task_names[0] if len(policy.task_names) > 1 else None
    return OneScan(case, target, tuple(rounds), s, task, bool(caught), policy.task_ranges[0])


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
    """Scan of one case up to the round in which it stops."""

    case: str
    target: float
    rounds: tuple[_ScanRound, ...]
    shown: int | None
    task: str | None = None
    is_calibration_case: bool = False
    task_range: TaskRange = None

    @property
    def is_early(self) -> bool:
        return self.rounds[-1].stops


def scan_picture(scan: OneScan, explorer: Explorer | None, words: Terminology) -> dict[str, Any]:
    """Return an example scan for the HTML template: a row per round, the truth and the axis."""
    every = [scan.target, *(v for r in scan.rounds for v in r.outputs)]
    every += [v for r in scan.rounds if r.report is not None for v in r.report]
    known = [v for v in (scan.task_range or ()) if math.isfinite(v)]
    if len(known) < 2:
        known = [v for v in every if math.isfinite(v)]
    ticks = _ticks(min(known), max(known))
    low, high = min(ticks[0], *known), max(ticks[-1], *known)

    def x(value: float) -> float:
        inside = min(max(value, low), high)
        return round(8 + 184 * (inside - low) / (high - low), 2)

    rows = []
    for k, one in enumerate(scan.rounds):
        low_end, high_end = one.report or (math.nan, math.nan)
        rows.append({
            "label": one.label,
            "image": _picture(explorer, scan.shown, k),
            "dots": [x(v) for v in one.outputs],
            "decision": "stop" if one.stops else "continue",
            "stops": one.stops,
            "text": f"{shown(low_end)} to {shown(high_end)}" if one.stops else "no interval",
            "from": x(low_end),
            "width": max(x(high_end) - x(low_end), 1.0),
        })  # fmt: skip
    of = "" if scan.task is None else f" ({scan.task})"
    return {
        "caption": f"{words.title('case')} {scan.case}{of} {_ending(scan, words)}",
        "rows": rows,
        "ticks": [(x(tick), shown(tick)) for tick in ticks],
        "target": x(scan.target),
        "truth": {
            "label": words.title("reference"),
            "image": _picture(explorer, scan.shown, None),
            "text": shown(scan.target),
        },
    }


def _ticks(low: float, high: float) -> list[float]:
    """Return at least two round numbers from low to high."""
    from matplotlib.ticker import MaxNLocator

    high = high if high > low else low + (abs(low) or 1.0)
    ticks = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [float(round(tick, 12)) for tick in ticks]


def _ending(scan: OneScan, words: Terminology) -> str:
    """Return the end of the caption, with a note if the policy was calibrated on the case."""
    truth, last = shown(scan.target), scan.rounds[-1]
    end = f"is measured in full, which yields the truth, {truth}."
    if last.report is not None:
        low, high = last.report
        verb = "contains" if low <= scan.target <= high else "misses"
        end = f"stops at {last.label}; the reported interval {verb} the truth, {truth}."
    own = f" It is one of the policy's own calibration {words.many('case')}."
    return end + own * scan.is_calibration_case


def _picture(explorer: Explorer | None, s: int | None, k: int | None) -> str | None:
    if explorer is None or s is None:
        return None
    true: FloatArray = explorer.truth[s].astype(np.float32)
    return thumbnail(true if k is None else explorer.mean[s, k], *brightness(true))
