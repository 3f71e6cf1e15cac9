"""Judge samplers from what was stored: images, task outputs, intervals, scans and cost.

Every line of the judgement has one number for each round, or for each pair of error rate and width,
with a standard error over groups and beside it what the reference has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.errors import InputError
from taskuq.files import open_npz, read_json
from taskuq.interval import FloatArray
from taskuq.outputs import TaskOutputs
from taskuq.report.figure import drawable
from taskuq.runs.samplers.aims import Aim
from taskuq.runs.samplers.lines import Lines, Stored

SCHEMA, COST = "taskuq.samplers/1", "taskuq.sampler-cost/1"


def read_samplers(
    folders: Sequence[Path | str],
    tables: Mapping[str, str] | None = None,
    tasks: Sequence[str] | None = None,
) -> dict[str, Stored]:
    """Read what :func:`taskuq.runs.samplers.drawing.draw` stored, and other tables.

    A sampler that could not draw has no tables; it is kept with the reason.

    Arguments:
        folders: Each with a folder for each sampler.
        tables: Further tables by ``"SAMPLER:TASK"``.
        tasks: The task networks that judge; all whose tables are there where None.
    """
    found: dict[str, Stored] = {}
    for cost_file in [
        path for folder in folders for path in sorted(Path(folder).glob("*/cost.json"))
    ]:
        home = cost_file.parent
        if home.name in found:
            raise InputError(f"two samplers are called {home.name}; rename {home}")
        cost = read_json(cost_file, COST)
        if cost["failed"]:
            found[home.name] = Stored({}, cost=cost)
            continue
        names = sorted(path.parent.name for path in home.glob("*/table.json"))
        with open_npz(home / "pixels.npz") as arrays:
            pixels = {name: np.asarray(arrays[name]) for name in arrays}
        found[home.name] = Stored({n: TaskOutputs.load(home / n) for n in names}, pixels, cost)
    for name, path in (tables or {}).items():
        sampler, _, task = name.partition(":")
        before = found.get(sampler, Stored({}))
        more = {**before.tables, task or "task": TaskOutputs.load(path)}
        found[sampler] = Stored(more, before.pixels, before.cost)
    if not any(one.tables for one in found.values()):
        raise InputError("no sampler with a table is there; draw first, or name tables")
    return found if tasks is None else _judged_by(tasks, found)


def _judged_by(tasks: Sequence[str], samplers: Mapping[str, Stored]) -> dict[str, Stored]:
    """Leave out other task networks, and samplers that have tables of others alone."""
    there = {task for one in samplers.values() for task in one.tables}
    if unknown := [task for task in tasks if task not in there]:
        raise InputError(f"no table is of {', '.join(unknown)}; choose from {sorted(there)}")
    found = {}
    for name, one in samplers.items():
        tables = {task: table for task, table in one.tables.items() if task in tasks}
        if tables or not one.tables:
            found[name] = Stored(tables, one.pixels, one.cost)
    return found


def judge(
    samplers: Mapping[str, Stored],
    reference: str | None = None,
    *,
    aims: Sequence[Aim] = (),
    trials: int = 1000,
    seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Judge samplers side by side; the record has everything, ``words.markdown`` shows it.

    Arguments:
        samplers: What is known of each, for the same cases.
        reference: The sampler that the others are compared with; none where None.
        aims: What is to be reached.
        trials: Random splits for each stopping rule.
        seed: Where they come from.
        tell: Called with a line of progress now and then.
    """
    drawn = {name: one for name, one in samplers.items() if one.tables}
    if reference is not None and reference not in drawn:
        raise InputError(f"the reference is {reference!r}; choose from {', '.join(drawn)}")
    first = _require_same_cases(drawn)
    judging = Lines(drawn, reference, first, trials, seed)
    lines = []
    for line in judging.all():
        tell(" ".join(filter(None, (line["measure"], line["task"], line["unit"]))))
        lines.append(line)
    for line in lines:
        meant = [aim for aim in aims if aim.is_for(line)]
        line["aims"] = [
            {
                **{name: aim.words(name) for name in ("must", "goal")},
                "compared": aim.compared,
                "verdict": {
                    name: aim.verdict(line, name)
                    for name in line["samplers"]
                    if not (aim.compared and name == reference)
                },
            }
            for aim in meant
        ]
    return dict(
        drawable(
            {
                "schema": SCHEMA,
                "reference": reference,
                "cases": first.cases,
                "groups": len(np.unique(judging.index)),
                "samples": first.samples,
                "trials": trials,
                "seed": seed,
                "failed": {n: one.cost["failed"] for n, one in samplers.items()
                           if not one.tables and one.cost},
                "cost": {n: dict(one.cost) for n, one in drawn.items() if one.cost},
                "lines": lines,
                "histograms": judging.histograms,
                "figures": [figure.to_dict() for figure in judging.figures()],
            }
        )
    )  # fmt: skip


def _require_same_cases(samplers: Mapping[str, Stored]) -> TaskOutputs:
    """Return a table of the cases, which all others must be of, too."""
    first: TaskOutputs | None = None
    targets: dict[str, FloatArray] = {}
    for name, one in samplers.items():
        for task, table in one.tables.items():
            first = table if first is None else first
            same = all(
                np.array_equal(getattr(table, key), getattr(first, key))
                for key in ("case", "group", "accelerations")
            )
            if not same or table.samples != first.samples or table.tasks != 1:
                raise InputError(
                    f"the table of {name} for {task} has other cases, rounds, samples or tasks "
                    "than the first one; compare samplers on the same"
                )
            # Not equal: a network gives other last digits in another batch.
            if not np.allclose(table.targets, targets.setdefault(task, table.targets), atol=1e-3):
                raise InputError(
                    f"the table of {name} for {task} has other targets than the first one; read "
                    "all samplers by the same network"
                )
    assert first is not None, "some sampler has tables"
    return first
