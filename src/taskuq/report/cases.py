"""What a stored policy or bound says about each case of a run, and patient by patient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taskuq.outputs import TaskOutputs
from taskuq.report.tables import Table

COLUMNS = (
    "case", "group", "label", "task", "source", "promise", "acceleration", "lower", "upper",
    "width", "target", "covered",
)  # fmt: skip


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


def interval_table(reports: Sequence[CaseReport]) -> Table:
    """Return what the policy and the bounds say about each case, one row each."""
    rows = tuple(tuple(getattr(report, name) for name in COLUMNS) for report in reports)
    return Table("intervals", "The interval of each case.", COLUMNS, rows)


def patient_table(table: TaskOutputs | None, reports: Sequence[CaseReport]) -> Table | None:
    """Return one row for each group of a table, or None where there are no groups."""
    if table is None or table.group is None:
        return None
    groups = [str(g) for g in dict.fromkeys(table.group.tolist())]
    counts = Counter(str(g) for g in table.group.tolist())
    sources = list(dict.fromkeys((r.source, r.acceleration) for r in reports if not r.is_stopped))
    stopped = [r for r in reports if r.is_stopped]
    tasks = list(dict.fromkeys(r.task for r in stopped))
    labels = [] if table.label is None else sorted({str(v) for v in table.label.tolist()})
    labels = labels if len(labels) <= 4 else []
    columns = ["group", "cases", *(f"label {name}" for name in labels)]
    if stopped:
        of = [f" of {task}" for task in tasks] if len(tasks) > 1 else [""]
        columns += ["stopped early", "average R", *(f"mean width{task}" for task in of), "missed"]
    columns += [
        f"missed by {source}" + ("" if R is None else f", R = {R:g}") for source, R in sources
    ]
    by_group: dict[str, list[CaseReport]] = {g: [] for g in groups}
    for report in reports:
        by_group[report.group].append(report)
    rows = []
    for g in groups:
        row: list[object] = [g, counts[g]]
        if labels:
            assert table.label is not None
            kinds = Counter(map(str, table.label[table.group.astype(str) == g].tolist()))
            row += [kinds[name] for name in labels]
        if stopped:
            row += _stopping([r for r in by_group[g] if r.is_stopped], tasks)
        mine = [r for r in by_group[g] if not r.is_stopped]
        row += [_missed([r for r in mine if (r.source, r.acceleration) == at]) for at in sources]
        rows.append(tuple(row))
    caption = f"The {len(groups)} groups of the table, one row each."
    if stopped:
        caption += (
            f" Scans are stopped by the stored policy ({stopped[0].source}, {stopped[0].promise}); "
            "the table may hold the cases it was calibrated on, so these rows describe and do not "
            "prove."
        )
    return Table("groups", caption, tuple(columns), tuple(rows))


def task_table(reports: Sequence[CaseReport]) -> Table | None:
    """Return what the stored policy reports task by task, or None where there are not several."""
    tasks: dict[str, list[CaseReport]] = {}
    for report in reports:
        if report.is_stopped:
            tasks.setdefault(report.task, []).append(report)
    if len(tasks) < 2:
        return None
    first = next(iter(tasks.values()))[0]
    rows = []
    for task, of in tasks.items():
        early = _early(of)
        errors = [abs(r.target - (r.lower + r.upper) / 2) for r in early if r.target is not None]
        rows.append((task, len(early), _mean([r.width for r in early]), _mean(errors), _missed(of)))
    caption = (
        f"Reports of the stored policy ({first.source}, {first.promise}) task by task, each in its "
        "own unit. The table may hold the cases it was calibrated on, so these rows describe and "
        "do not prove."
    )
    head = ("task", "early reports", "mean width", "mean centre error", "missed")
    return Table("tasks", caption, head, tuple(rows))


def _stopping(reports: list[CaseReport], tasks: Sequence[str]) -> list[object]:
    """What became of the scans of a group, each of which reports on all tasks at once."""
    early = _early(reports)
    # The tasks of a case stop together, so that one of them counts scans.
    scans = [r for r in reports if r.task == tasks[0]]
    rates = [r.acceleration or 1.0 for r in scans]
    widths = [_mean([r.width for r in early if r.task == task]) for task in tasks]
    missed = _missed(early)
    if len(tasks) > 1 and missed:
        missed = len({r.case for r in early if r.covered is False})
    return [len(_early(scans)), float(1 / np.mean([1 / R for R in rates])), *widths, missed]


def _early(reports: Sequence[CaseReport]) -> list[CaseReport]:
    return [r for r in reports if (r.acceleration or 1.0) > 1]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _missed(reports: list[CaseReport]) -> int | None:
    known = [r.covered for r in reports if r.covered is not None]
    return sum(not covered for covered in known) if known or not reports else None
