"""One scan of a run, stopped by its policy, for the page to show."""

from __future__ import annotations

import numpy as np

from taskuq.decide.policy import Policy
from taskuq.interval import FloatArray
from taskuq.report.folder import RunFolder
from taskuq.report.scan import OneScan, ScanRound
from taskuq.words import round_label

# Nobody waits for a picture: this many cases are looked at.
MOST_CASES = 50


def one_scan(policy: Policy | None, folder: RunFolder) -> OneScan | None:
    """Return the first scan that stops after several rounds, or else the first that stops early.

    Whether its report holds the truth is not looked at: the picture shows how a scan stops, not
    how often it is right. None where nobody can be shown: policies for whole groups or several
    tasks, and runs without targets.

    Arguments:
        policy: The run's policy.
        folder: The run's folder; its shown slices come first, then the table's cases.
    """
    if policy is None or policy.whole_group or len(policy.task_names) > 1:
        return None
    labels = [round_label(float(R)) for R in policy.accelerations]
    labels = labels if folder.explorer is None else folder.explorer.labels
    found = []
    for case, target, outputs, shown in _cases(policy, folder):
        scan = OneScan(case, target, _rounds(policy, outputs, labels), shown, policy.kind)
        if scan.is_early and len(scan.rounds) > 1:
            return scan
        found.append(scan)
    return next((scan for scan in found if scan.is_early), next(iter(found), None))


def _cases(policy: Policy, folder: RunFolder) -> list[tuple[str, float, FloatArray, int | None]]:
    """Cases with their targets, outputs (round, sample), and which slice of the explorer it is."""
    explorer, table = folder.explorer, folder.table
    rates = [float(R) for R in policy.accelerations]
    if explorer is not None and [float(R) for R in explorer.accelerations] == rates:
        return [
            (str(explorer.case[s]), float(explorer.targets[s]), explorer.outputs[s], s)
            for s in range(explorer.slices)
        ]
    if table is None or not table.has_targets or [float(R) for R in table.accelerations] != rates:
        return []
    names = np.arange(table.cases) if table.case is None else table.case
    return [
        (str(names[i]), float(table.targets_at(0)[i]), table.outputs[:, i], None)
        for i in range(min(table.cases, MOST_CASES))
    ]


def _rounds(policy: Policy, outputs: FloatArray, labels: list[str]) -> tuple[ScanRound, ...]:
    rounds = []
    for k, label in enumerate(labels):
        decision = policy.decide(k, outputs[: k + 1])
        ends = float(decision.interval.lower), float(decision.interval.upper)
        rounds.append(ScanRound(label, tuple(map(float, outputs[k])), *ends, bool(decision.stop)))
        if decision.stop:
            break
    return tuple(rounds)
