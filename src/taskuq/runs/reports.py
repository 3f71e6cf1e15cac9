"""The page of a run's folder: what its policy, bounds and calibration set say, then the page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from taskuq.calibration.bound import Bound, load_bound
from taskuq.calibration.law import calibration_size
from taskuq.calibration.scores import score_name
from taskuq.decide.goal import goal_from_dict
from taskuq.decide.policy import Policy, load_policy
from taskuq.errors import InputError, MachineError
from taskuq.interval import TaskRange
from taskuq.outputs import TaskOutputs
from taskuq.report.answer import answer_of
from taskuq.report.cases import CaseReport
from taskuq.report.chosen import lines_record
from taskuq.report.contents import Contents, gather
from taskuq.report.exports import ENDINGS, write_exports
from taskuq.report.folder import RunFolder, StoredRecord, read_folder
from taskuq.report.page import page_text, write_page
from taskuq.report.records import BOUND, MONITOR, PLAN_SIZE, POLICY, SIMULATE
from taskuq.runs.explorer import explorer_numbers
from taskuq.runs.promises import promises, unit_said
from taskuq.runs.scans import one_scan
from taskuq.runs.simulated import simulated

TOLERANCES = (0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05)
# Sorts behind every path.
LAST = ("\U0010ffff",)
Stored = TypeVar("Stored", Policy, Bound)


def write_report(run_dir: str | os.PathLike[str]) -> Path:
    """Build the page of a run from its stored results, and return its path.

    Arguments:
        run_dir: The folder of the run; records are recognised wherever they lie in it.

    Example:
        >>> import tempfile
        >>> path = write_report(tempfile.mkdtemp())  # an empty run makes a short page with notes
        >>> "promises nothing" in path.read_text()
        True
    """
    return _of_what_can_be_shown(write_page, run_dir)


def answer_lines(run_dir: str | os.PathLike[str]) -> list[str]:
    """Return what the first screen of a run's page says, as lines for a terminal.

    Arguments:
        run_dir: The folder of the run.

    Example:
        >>> import tempfile
        >>> answer_lines(tempfile.mkdtemp())[0]
        'Nothing was measured yet: no simulation of a policy and no evaluation of intervals is ...'
    """
    # The page's pictures take a while and say nothing here.
    return answer_of(study(replace(read_folder(Path(run_dir)), explorer=None))).lines


def export(run_dir: str | os.PathLike[str], endings: Sequence[str] = ENDINGS) -> Path:
    """Write a run's results as CSV, JSON and LaTeX, its figures and intervals into a folder.

    Arguments:
        run_dir: The folder of the run.
        endings: Which kinds of drawings to make: '.svg', '.png', '.pdf'.
    """
    return _of_what_can_be_shown(partial(write_exports, endings=endings), run_dir)


def _of_what_can_be_shown(
    write: Callable[[Contents], Path], run_dir: str | os.PathLike[str]
) -> Path:
    """Write a run's results; a record with something odd in it makes them shorter by itself.

    Which one it is shows when they are put together one by one.
    """
    folder = read_folder(Path(run_dir))
    try:
        return write(study(folder))
    except (InputError, MachineError, MemoryError):
        raise
    except Exception:  # whatever a field of another kind leads to
        shown = replace(folder, run={}, records=(), table=None, table_path=None, explorer=None)
    parts: list[tuple[str, dict[str, Any]]] = [("run.json", {"run": folder.run})]
    parts += [(found.path, {"records": found}) for found in folder.records]
    parts.append((str(folder.table_path), {"table": folder.table, "table_path": folder.table_path}))
    parts.append(("explorer.npz", {"explorer": folder.explorer}))
    for name, part in parts:
        added = (
            {**part, "records": (*shown.records, part["records"])} if "records" in part else part
        )
        try:
            page_text(study(replace(shown, **added)))
            shown = replace(shown, **added)
        except (MachineError, MemoryError):
            raise
        except Exception as error:
            reason = f"cannot be shown ({type(error).__name__}); make it again"
            shown = replace(shown, unreadable=(*shown.unreadable, (name, reason)))
    return write(study(shown))


def study(folder: RunFolder) -> Contents:
    """Gather what a page shows of a run, and compute what follows from its policy and bounds."""
    folder, policies = _opened(folder, POLICY, load_policy)
    folder, bounds = _opened(folder, BOUND, load_bound)
    # A policy called policy.json decided; others lie beside it to be compared.
    names = sorted(policies, key=lambda name: (Path(name).name != "policy.json", name))
    policy = policies[names[0]] if names else None
    folder = replace(
        folder,
        records=tuple(map(_with_goal, folder.records)),
        others=(*folder.others, *((name, POLICY) for name in names[1:])),
    )
    contents = gather(folder)
    opened = [stored for stored in (policy, *bounds.values()) if stored is not None]
    contents.policy = None if policy is None else policy.to_dict()
    contents.simulated = None if policy is None else simulated(policy, contents)
    contents.alphas = [stored.alpha for stored in opened]
    watches = [found.record for found in folder.of(MONITOR)]
    said = promises(contents.evaluations.values(), opened, watches)
    contents.promises = [promise.in_words(contents.words) for promise in said]
    unit = unit_said(folder.run.get("unit") or (policy and policy.guarantee.unit))
    contents.is_by_group = unit is not None and unit.is_group
    contents.logged = _logged(folder)
    try:
        contents.scan = one_scan(policy, folder)
    except InputError as error:
        contents.notes.append(f"No scan of the policy is shown: {error}")
    if folder.table is not None and folder.table.lines is not None:
        contents.add(lines_record(folder.table, contents.words))
    _add_planner(contents, policy)
    _add_cases(contents, policy, bounds)
    _add_numbers(contents, policy)
    return contents


def _opened(
    folder: RunFolder, schema: str, load: Callable[[Path], Stored]
) -> tuple[RunFolder, dict[str, Stored]]:
    """Open stored policies or bounds; what cannot be read is remembered, not raised."""
    opened, unreadable = {}, list(folder.unreadable)
    for found in folder.of(schema):
        try:
            opened[found.path] = load(folder.path / found.path)
        except InputError as error:
            unreadable.append((found.path, str(error).replace(str(folder.path), ".")))
    # Records first, by their paths, then the table and the explorer, as they were read.
    unreadable.sort(key=lambda pair: Path(pair[0]).parts if pair[0].endswith(".json") else LAST)
    return replace(folder, unreadable=tuple(unreadable)), opened


def _with_goal(found: StoredRecord) -> StoredRecord:
    """Say in words until when a simulation scans; a record without it is noted as incomplete."""
    if found.schema != SIMULATE:
        return found
    try:
        until = goal_from_dict(found.record["goal"]).sentence
    except (InputError, KeyError, TypeError):
        return found
    return replace(found, record={**found.record, "until": until})


def _logged(folder: RunFolder) -> dict[str, str]:
    """The reasons that the log of an unfinished table gives."""
    if folder.table is None or not folder.table.missing or folder.table_path is None:
        return {}
    from taskuq.pipeline import status

    path = folder.path / folder.table_path
    try:
        return {str(k): str(v) for k, v in status(path)["failed"].items()} if path.is_dir() else {}
    except (InputError, OSError):
        return {}


def calibration_sizes(alpha: float, delta: float = 0.05, have: int | None = None) -> dict[str, Any]:
    """Return how many calibration cases how much certainty takes, as a record for a figure.

    Arguments:
        alpha: The error rate.
        delta: The probability of an unlucky calibration set.
        have: How many calibration cases this run has, for comparison.

    Example:
        >>> calibration_sizes(0.05)["sizes"][2]
        (0.02, 442, 360)
    """
    sizes = [
        (e, *(calibration_size(alpha, e, delta, two_sided=both) for both in (True, False)))
        for e in TOLERANCES
    ]
    return {"schema": PLAN_SIZE, "alpha": alpha, "delta": delta, "sizes": sizes, "have": have}


def _add_planner(contents: Contents, policy: Policy | None) -> None:
    """Add the planner for the run's error rate, or for a stored question about sizes."""
    asked = contents.folder.of(PLAN_SIZE)
    alpha = asked[0].record.get("alpha") if asked else contents.alpha
    delta = asked[0].record.get("delta", 0.05) if asked else 0.05
    if not isinstance(alpha, float) or not 0.001 <= alpha <= 0.5:
        return
    by_group = policy is None or policy.guarantee.whom.is_group
    have = None if policy is None or by_group else policy.guarantee.n_cases
    try:
        contents.add(calibration_sizes(alpha, float(delta), have))
    except InputError:
        contents.notes.append("No planner is shown for this error rate: its sizes are too large.")


def _add_cases(contents: Contents, policy: Policy | None, bounds: Mapping[str, Bound]) -> None:
    """Add what the run's policy and bounds say about the cases of its table."""
    table = contents.folder.table
    if table is None:
        return
    if policy is not None:
        try:
            contents.cases += policy_reports(policy, table)
        except InputError as error:
            contents.notes.append(f"The policy does not fit the table: {error}")
    for name, bound in bounds.items():
        try:
            contents.cases += bound_reports(bound, table)
        except InputError as error:
            contents.notes.append(f"{name} does not fit the table: {error}")


def _add_numbers(contents: Contents, policy: Policy | None) -> None:
    """Add what the explorer computes with, or say why there is none."""
    folder = contents.folder
    if folder.explorer is None:
        contents.notes.append(
            "No explorer.npz is stored with this run, so there are no pictures to look through."
        )
        return
    run_unit = unit_said(folder.run.get("unit"))
    said = "group" if run_unit is None else run_unit.counted
    try:
        contents.numbers = explorer_numbers(
            folder.explorer,
            alpha=contents.alpha or 0.05,
            max_widths=_widths(contents, policy, folder.explorer.tasks),
            unit=said if policy is None else policy.guarantee.unit,
            task_ranges=_ranges(folder, policy),
        )
    except InputError as error:
        contents.notes.append(f"The explorer cannot be shown: {error}")


def _widths(contents: Contents, policy: Policy | None, tasks: int) -> list[float]:
    """The width to stop at of each task that the explorer shows."""
    own: list[float | None] = [None] * tasks
    if policy is not None and len(policy.task_names) == tasks:
        own = [policy.goal.of(task).max_width for task in range(tasks)]
    return [width or contents.max_width or 0.1 for width in own]


def _ranges(folder: RunFolder, policy: Policy | None) -> list[TaskRange]:
    """The range of each task that the explorer shows, from wherever it is declared first."""
    explorer = folder.explorer
    assert explorer is not None
    declared = [[explorer.of(task).task_range for task in range(explorer.tasks)]]
    known = [one.task_ranges for one in (policy, folder.table) if one is not None]
    declared += [list(ranges) for ranges in known if len(ranges) == explorer.tasks]
    return [next((r for r in of if r is not None), None) for of in zip(*declared, strict=True)]


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
    if not policy.whole_group:
        return [np.arange(table.cases)]
    if table.group is None:
        raise InputError("it decides about whole groups, the table has none")
    return [np.flatnonzero(table.group == g) for g in np.unique(table.group)]
