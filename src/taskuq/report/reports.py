"""What stored policies and bounds say about each case of a run's table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from taskuq.calibration.bound import Bound
from taskuq.calibration.scores import score_name
from taskuq.decide.policy import Policy
from taskuq.errors import InputError
from taskuq.outputs import TaskOutputs
from taskuq.report.folder import RunFolder


@dataclass(frozen=True)
class CaseReport:
    """The interval reported for one case and task.

    Arguments:
        case: The case.
        group: Its patient or volume; empty where unknown.
        label: Its class; empty where unknown.
        source: The policy or bound.
        promise: 'guaranteed' or 'measured'.
        task: The task.
        acceleration: Where the scan stopped; 1 where everything was measured.
        lower: The lower end.
        upper: The upper end.
        target: The truth, None where unknown.
        is_stopped: Whether a policy chose when to stop; a bound is for one acceleration.
    """

    case: str
    group: str
    label: str
    source: str
    promise: str
    task: str
    acceleration: float | None
    lower: float
    upper: float
    target: float | None
    is_stopped: bool

    @property
    def width(self) -> float:
        """Upper minus lower end; 0 where the interval is empty."""
        return max(self.upper - self.lower, 0.0)

    @property
    def covered(self) -> bool | None:
        """Whether the interval contains the target; None where that is unknown."""
        return None if self.target is None else self.lower <= self.target <= self.upper


def case_reports(folder: RunFolder) -> tuple[list[CaseReport], list[str]]:
    """Return the reports of the run's policy and bounds for its table, and what went wrong.

    Arguments:
        folder: The run's folder.
    """
    reports: list[CaseReport] = []
    problems = []
    if folder.table is None:
        return [], []
    if folder.policy is not None:
        try:
            reports += policy_reports(folder.policy, folder.table)
        except InputError as error:
            problems.append(f"The policy does not fit the table: {error}")
    for name, bound in folder.bounds.items():
        try:
            reports += bound_reports(bound, folder.table)
        except InputError as error:
            problems.append(f"{name} does not fit the table: {error}")
    return reports, problems


def policy_reports(policy: Policy, table: TaskOutputs) -> Iterator[CaseReport]:
    """Stop every case of a table by a policy and say what is reported.

    Arguments:
        policy: The policy.
        table: A table with the policy's rounds.
    """
    if list(policy.accelerations) != [float(R) for R in table.accelerations]:
        raise InputError(
            f"it decides at R = {', '.join(f'{R:g}' for R in policy.accelerations)}, the table has "
            f"{', '.join(f'{R:g}' for R in table.accelerations)}"
        )
    n, tasks = table.cases, table.tasks
    stop = np.full(n, table.rounds)
    lower, upper = np.full((n, tasks), np.nan), np.full((n, tasks), np.nan)
    for k in range(table.rounds):
        for members in _together(policy, table):
            decision = policy.decide(round=k, outputs=table.outputs[: k + 1, members])
            here = members[(stop[members] == table.rounds) & np.atleast_1d(decision.stops)]
            at = np.isin(members, here)
            lower[here] = decision.interval.lower.reshape(len(members), tasks)[at]
            upper[here] = decision.interval.upper.reshape(len(members), tasks)[at]
            stop[here] = k
    source = f"{policy.kind} at alpha {policy.alpha:g}"
    promise = "guaranteed" if policy.is_guaranteed else "measured"
    rates = [*map(float, table.accelerations), 1.0]
    for i in range(n):
        is_known = stop[i] == table.rounds
        targets = np.atleast_1d(table.targets_at(min(int(stop[i]), table.rounds - 1))[i])
        for t, name in enumerate(table.task_names):
            z = float(targets[t]) if table.has_targets else None
            # Everything measured means the target is known, where the table holds it.
            ends = (z if z is not None else np.nan,) * 2 if is_known else (lower[i, t], upper[i, t])
            yield CaseReport(
                *_who(table, i), source, promise, name, rates[stop[i]], float(ends[0]),
                float(ends[1]), z, True,
            )  # fmt: skip


def bound_reports(bound: Bound, table: TaskOutputs) -> Iterator[CaseReport]:
    """Give the interval of a bound for every case of a table.

    Arguments:
        bound: The bound of one acceleration.
        table: A table with that acceleration.
    """
    k = 0 if bound.acceleration is None else table.round_at(bound.acceleration)
    if bound.acceleration is None and table.rounds > 1:
        raise InputError("it does not say which of the table's accelerations it is for")
    if table.tasks > 1:
        raise InputError("it is for one task, the table has several")
    outputs = table.until(k) if bound.rounds > 1 else table.outputs[k]
    interval = bound(outputs)
    targets = table.targets_at(k)
    source = f"{score_name(bound.score)} at alpha {bound.alpha:g}"
    for i in range(table.cases):
        yield CaseReport(
            *_who(table, i), source, "guaranteed", table.task_names[0], bound.acceleration,
            float(interval.lower[i]), float(interval.upper[i]),
            float(targets[i]) if table.has_targets else None, False,
        )  # fmt: skip


def _who(table: TaskOutputs, i: int) -> tuple[str, str, str]:
    return (
        str(i if table.case is None else table.case[i]),
        "" if table.group is None else str(table.group[i]),
        "" if table.label is None else str(table.label[i]),
    )


def _together(policy: Policy, table: TaskOutputs) -> list[np.ndarray]:
    """Cases that are decided together: all at once, or group by group."""
    if not policy.whole_group or table.group is None:
        return [np.arange(table.cases)]
    return [np.flatnonzero(table.group == g) for g in np.unique(table.group)]
