"""One scan of a run, stopped by its policy, for the page to show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from taskuq.decide.learning import round_arrays
from taskuq.decide.policy import Policy
from taskuq.decide.seen import statistics
from taskuq.interval import FloatArray
from taskuq.outputs import TaskOutputs
from taskuq.report.folder import RunFolder
from taskuq.report.scan import OneScan, ScanRound

# Nobody waits for a picture: this many cases are looked at.
MOST_CASES = 50


def one_scan(policy: Policy | None, folder: RunFolder) -> OneScan | None:
    """Return the first scan that stops after several rounds, or else the first that stops early.

    Whether its report holds the truth is not looked at: the picture shows how a scan stops, not
    how often it is right. Of several tasks the first is shown. None where nobody can be shown:
    policies for whole groups, and runs without targets.

    Arguments:
        policy: The run's policy.
        folder: The run's folder; its shown slices come first, then the table's cases.
    """
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
    """A case: its name, target, outputs (round, sample) or with a last axis for tasks, labels."""

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
        # What a round that goes on would report keeps no promise, so it is not handed on.
        report = (_first(ends[0]), _first(ends[1])) if decision.stop else None
        seen = np.reshape(one.outputs[k], (len(one.outputs[k]), -1))[:, 0]
        rounds.append(ScanRound(label, tuple(map(float, seen)), report))
        if decision.stop:
            break
    task = policy.task_names[0] if len(policy.task_names) > 1 else None
    return OneScan(one.case, one.target, tuple(rounds), one.shown, task)


def _with_calibration(scan: OneScan, policy: Policy, folder: RunFolder) -> OneScan:
    """Say of a scan whether the policy was calibrated on its case, which flatters the policy."""
    table, explorer = folder.table, folder.explorer
    if table is None or not table.has_targets or not _is_planned_on(policy, table):
        return scan
    outputs = np.array([one.outputs for one in scan.rounds])

    def holds(first: FloatArray) -> bool:
        """Whether it is a case of these outputs of the first task (round, case, sample)."""
        return bool((first[: len(outputs)] == outputs[:, None]).all(axis=(0, 2)).any())

    if not holds(round_arrays(table)[0][..., 0]):
        return scan
    if scan.shown is None or explorer is None:
        return replace(scan, calibrated=table.cases)
    others = np.moveaxis(explorer.of(0).calibration_outputs, 1, 0)
    return replace(scan, calibrated=table.cases, without=None if holds(others) else others.shape[1])


def _is_planned_on(policy: Policy, table: TaskOutputs) -> bool:
    """Whether a table is a policy's own: the policy remembers what it saw of every unit."""
    whom = policy.guarantee.whom
    if not policy.watch or (whom.is_group and table.group is None):
        return False
    index = whom.index(table.cases, table.group)
    x, z = round_arrays(table)
    return statistics(x[0], index, table.task_names, z[0]) == dict(policy.watch)


def _first(values: FloatArray) -> float:
    """That of the first task."""
    return float(np.ravel(values)[0])
