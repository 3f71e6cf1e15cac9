"""Several tasks of the same cases, put side by side."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from taskuq.errors import InputError
from taskuq.outputs.table import TaskOutputs


def join_tasks(tables: Mapping[str, TaskOutputs]) -> TaskOutputs:
    """Return one table of several tasks; a case that lacks one of them is listed as missing.

    Arguments:
        tables: A table of one task for each, by the names they are to have.

    Example:
        >>> lesion = TaskOutputs(rng.random((5, 3)), rng.random(5), case=list("abcde"))
        >>> area = TaskOutputs(40 * rng.random((4, 3)), rng.random(4), case=list("abcd"))
        >>> both = join_tasks({"lesion": lesion, "area": area})
        >>> both, both.missing
        (TaskOutputs(1 round, 4 cases, 3 samples, 2 tasks), ('e',))
    """
    names, first = list(tables), next(iter(tables.values()), None)
    if first is None:
        raise InputError("no task was given to join; give a table for each")
    for name, table in tables.items():
        _require_alike(first, table, names[0], name)
    places = [{case: k for k, case in enumerate(_ids(table).tolist())} for table in tables.values()]
    shared = [case for case in places[0] if all(case in place for place in places)]
    if not shared:
        raise InputError(f"no case has all of the tasks {', '.join(names)}; check the identities")
    parts = [
        table.select(cases=[place[case] for case in shared])
        for table, place in zip(tables.values(), places, strict=True)
    ]
    for kind in ("group", "label"):
        _require_agreeing(parts, names, kind)
    by_round = any(part.has_round_targets for part in parts)
    targets = [
        np.stack([part.targets_at(k) for k in range(part.rounds)]) if by_round else part.targets
        for part in parts
    ]
    missing = {str(case) for place in places for case in place.keys() - set(shared)}
    return TaskOutputs(
        np.stack([part.outputs for part in parts], axis=-1),
        np.stack(targets, axis=-1) if all(part.has_targets for part in parts) else None,
        parts[0].accelerations,
        case=parts[0].case, group=parts[0].group, label=parts[0].label, task_names=names,
        task_range=tuple(part.task_range for part in parts), round_names=parts[0].round_names,
        provenance=parts[0].provenance, lines=parts[0].lines,
        missing=sorted({*missing, *(m for part in parts for m in part.missing)}),
    )  # fmt: skip


def _ids(table: TaskOutputs) -> np.ndarray:
    return np.arange(table.cases) if table.case is None else table.case


def _require_alike(first: TaskOutputs, other: TaskOutputs, one: str, two: str) -> None:
    """Refuse tables that cannot stand side by side."""
    if other.tasks > 1:
        raise InputError(f"the table {two} has {other.tasks} tasks; select one of them first")
    shapes = [(t.rounds, t.samples, t.round_labels) for t in (first, other)]
    if shapes[0] != shapes[1]:
        said = [f"{rounds} rounds ({', '.join(of)}) and {p} samples" for rounds, p, of in shapes]
        raise InputError(
            f"task {one} has {said[0]}, task {two} has {said[1]}; every task needs the same"
        )
    if first.has_targets != other.has_targets:
        raise InputError(f"one of the tasks {one} and {two} has targets, the other has none")


def _require_agreeing(parts: list[TaskOutputs], names: list[str], kind: str) -> None:
    """Refuse tasks that put a case into different groups or classes."""
    first = getattr(parts[0], kind)
    for part, name in zip(parts[1:], names[1:], strict=True):
        other = getattr(part, kind)
        if (first is None) != (other is None) or not np.array_equal(first, other):
            raise InputError(
                f"tasks {names[0]} and {name} give a case different entries in {kind}; keep one"
            )
