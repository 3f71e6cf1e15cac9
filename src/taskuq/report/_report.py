"""Reports of a table or of the folder of a run."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np

import taskuq
from taskuq._io import make_folder, open_npz, write_json
from taskuq._seeds import as_seed
from taskuq.conformal._diagnose import diagnose
from taskuq.conformal._evaluate import EvaluationGrid, evaluate_table
from taskuq.conformal._units import PolicyUnitName, Unit
from taskuq.errors import InputError, MachineError
from taskuq.policy._goal import make_goals
from taskuq.policy._kinds import POLICIES, PolicySpec
from taskuq.policy._plan import plan, policy_unit
from taskuq.policy._simulate import simulate, simulation_record
from taskuq.report._answer import answer_of
from taskuq.report._contents import Contents, build_contents
from taskuq.report._explorer import save_explorer
from taskuq.report._page import ENDINGS, page_text, write_exports, write_page
from taskuq.report._records import RunFolder, read_folder
from taskuq.table._table import (
    PerTask,
    TableFields,
    TableLike,
    TaskOutputs,
    as_table,
    suggest_range,
)
from taskuq.table._terminology import Terminology, as_terminology

T = TypeVar("T")
SCORES = ("ar", "lwr", "cqr", "mlwr")
# Policies that are simulated for comparison.
OTHERS = ("adaptive", "paper")


def make_report(
    table: TableLike,
    output: str | os.PathLike[str],
    *,
    alpha: float,
    max_width: PerTask = None,
    at_least: PerTask = None,
    at_most: PerTask = None,
    policy: str = "fixed-width",
    unit: PolicyUnitName | None = None,
    scores: Sequence[str] | None = None,
    splits: int = 1000,
    seed: int | np.random.Generator = 0,
    title: str | None = None,
    terminology: Terminology | Mapping[str, str] | None = None,
    log: Callable[[str], None] = lambda line: None,
    **table_kwargs: Unpack[TableFields],
) -> Path:
    """Evaluate a table of task outputs, plan a stopping policy and write a report.

    The output folder contains the table, ``evaluate.json`` and ``report.html``; ``diagnose.json``
    if there are several posterior samples; ``policy.json`` and ``simulate.json`` if there is a goal
    and more than one round; and ``explorer.npz`` if images were stored with the table.

    Args:
        table: A table, its path, a data frame, or arrays (outputs, targets).
        output: Output folder, either new or with an earlier report of the same table.
        alpha: Error rate in (0, 1).
        max_width: Stop when the interval is at most this wide; one value, or one per task, in order
            or by name.
        at_least: Stop when the lower bound exceeds this level; one value, or one per task.
        at_most: Stop when the upper bound is below this level; one value, or one per task.
        policy: Kind of policy to plan; other kinds are simulated for comparison.
        unit: Unit of the guarantee: 'case', 'group' or 'whole-group'; default: 'group' if the table
            has groups.
        scores: Scores to evaluate; default: ar, lwr, cqr and mlwr, or only ar for point estimates.
        splits: Number of random splits.
        seed: Integer or Generator for the splits.
        title: Title of the report.
        terminology: Terms for cases, groups, rounds and images, a mapping or a Terminology.
        log: Function called with progress messages.
        table_kwargs: If ``table`` is arrays: ``accelerations`` and other fields of a table.

    Returns:
        The path of the report.

    Raises:
        InputError: If the table has no targets, or the folder holds other results.

    Example:
        >>> import tempfile
        >>> truth = rng.random(60)
        >>> outputs = np.clip(truth[:, None] + 0.1 * rng.standard_normal((2, 60, 4)), 0, 1)
        >>> page = make_report(
        ...     (outputs, truth), tempfile.mkdtemp(), accelerations=(8, 2), alpha=0.2,
        ...     max_width=0.6, splits=20, terminology={"case": "scene"})
        >>> page.name
        'report.html'
    """
    loaded, run = as_table(table, table_kwargs, "make_report"), Path(output)
    seed = as_seed(seed)
    if not loaded.has_targets:
        message = "the table has no targets, so nothing can be evaluated; add them"
        raise InputError(message, code="targets.missing")
    called = as_terminology(terminology or loaded.provenance.get("words"))
    whom = policy_unit(loaded, unit, "random")
    asked: dict[str, Any] = {"max_width": max_width, "at_least": at_least, "at_most": at_most}
    has_goal = any(value is not None for value in asked.values())
    # Refuse a goal that does not fit before anything is computed.
    goal = make_goals(**asked, side=None, names=loaded.task_names) if has_goal else None
    scores = scores or (SCORES if loaded.samples > 1 else SCORES[:1])
    _claim(run, loaded)
    loaded.save(run / "table.npz")
    if undeclared := suggest_range(loaded):
        log(undeclared)
    log(f"{loaded!r}: evaluating {', '.join(scores)} over {splits} random splits.")
    grid = EvaluationGrid(tuple(scores), alpha, splits=splits, seed=seed, unit=whom.counted)
    write_json(run / "evaluate.json", evaluate_table(loaded, grid).to_dict())
    if loaded.samples > 1:
        write_json(run / "diagnose.json", diagnose(loaded).to_dict())
    if goal is not None and not np.isnan(loaded.accelerations).any():
        log(f"Planning a stopping policy: {policy}.")
        made = plan(loaded, alpha=alpha, policy=policy, unit=unit, **asked)
        made.save(run / "policy.json")
        others = [k for k in OTHERS if POLICIES[k].stops_whole_groups or not whom.stops_together]
        kinds = dict.fromkeys((policy, *others))
        plans = [PolicySpec(kind, alpha, goal) for kind in kinds]
        log(f"Replaying {', '.join(kinds)} over {splits} random splits.")
        found = simulate(loaded, plans, splits=splits, seed=seed, unit=unit)
        record = simulation_record(
            loaded, goal, [(loaded.samples, one) for one in found], {"seed": seed}
        )
        write_json(run / "simulate.json", record)
    if loaded.images_path is not None:
        _explorer(loaded, run, whom)
    made_by = loaded.provenance.get("made_by")
    versions = made_by if isinstance(made_by, Mapping) else {"taskuq": taskuq.__version__}
    versions = {str(k): str(v) for k, v in versions.items() if k != "revision"}
    names = [name for name in loaded.task_names if name != "task"]
    record = {
        "schema": "taskuq.run/1",
        "title": title or ", ".join(names) or "A table",
        "alpha": alpha,
        "max_width": max_width if isinstance(max_width, int | float) else None,
        "samples": loaded.samples,
        "unit": whom.name,
        "words": dict(called.to_dict()),
        "seed": seed,
        "versions": {"python": platform.python_version(), **versions},
        "commands": [],
    }
    write_json(run / "run.json", record)
    return write_report(run)


def _claim(run: Path, table: TaskOutputs) -> None:
    """Make the folder; raise InputError if it contains anything but a report of this table."""
    make_folder(run)
    others = sorted(path.name for path in run.iterdir() if not path.name.startswith("."))
    if not others:
        return
    what = f"{others[0]} and no report of a table"
    if "table.npz" in others:
        stored, what = TaskOutputs.load(run / "table.npz"), "the report of another table"
        is_same = stored.task_names == table.task_names and all(
            np.array_equal(getattr(stored, name), getattr(table, name), equal_nan=True)
            for name in ("outputs", "targets", "accelerations")
        )
        if is_same:
            return
    raise InputError(f"{run} holds {what}; choose another folder", code="file.exists")


def _explorer(table: TaskOutputs, run: Path, whom: Unit) -> None:
    """Write explorer.npz: cases with stored images are shown, others form the calibration set."""
    assert table.images_path is not None
    with open_npz(table.images_path, "pictures") as archive:
        seen = {name: archive[name] for name in archive}
    ids = np.arange(table.cases) if table.case is None else table.case
    names = [str(case) for case in ids]
    place = {name: k for k, name in enumerate(names)}
    pictured = [str(case) for case in seen.pop("case", ())]
    kept = [s for s, case in enumerate(pictured) if case in place]
    if not kept:
        return
    shown = [place[pictured[s]] for s in kept]
    group = None if table.group is None else table.group.astype(str)
    rest = np.ones(table.cases, dtype=bool)
    rest[shown] = False
    if whom.is_group and group is not None:
        rest &= ~np.isin(group, group[shown])
    by_case = np.moveaxis(table.outputs, 0, 1)
    targets = table.targets_at(table.rounds - 1)
    save_explorer(
        run / "explorer.npz", **{name: values[kept] for name, values in seen.items()},
        case=[names[k] for k in shown],
        # Without groups, one menu of all cases.
        group=["all"] * len(shown) if group is None else group[shown],
        label=None if table.label is None else table.label[shown],
        accelerations=table.accelerations, outputs=by_case[shown], targets=targets[shown],
        calibration_outputs=by_case[rest], calibration_targets=targets[rest],
        calibration_group=None if group is None else group[rest],
        calibration_label=None if table.label is None else table.label[rest],
        round_names=table.round_names, task_names=table.task_names,
        task_ranges=[range_ or (-np.inf, np.inf) for range_ in table.task_ranges],
    )  # fmt: skip


def write_report(run_dir: str | os.PathLike[str]) -> Path:
    """Build the report of a run from its stored results, and return its path.

    Args:
        run_dir: Folder of the run; it is searched recursively for records.

    Example:
        >>> import tempfile
        >>> write_report(tempfile.mkdtemp()).name  # an empty run makes a short report with notes
        'report.html'
    """
    return _write(write_page, read_folder(Path(run_dir)))


def answer_lines(run_dir: str | os.PathLike[str]) -> list[str]:
    """Return the report's first screen and notes on unreadable files, as lines for a terminal."""
    folder = replace(read_folder(Path(run_dir)), explorer=None)
    answer, damaged = _write(lambda one: (answer_of(one).lines, one.folder.unreadable), folder)
    return [*answer, *(f"{path} could not be read: {reason}" for path, reason in damaged)]


def export(run_dir: str | os.PathLike[str], endings: Sequence[str] = ENDINGS) -> Path:
    """Write the tables, figures and intervals of a run; return the folder of the tables."""
    return _write(partial(write_exports, endings=endings), read_folder(Path(run_dir)))


def _write(write: Callable[[Contents], T], folder: RunFolder) -> T:
    """Write the report of a run; omit records that cannot be rendered."""
    try:
        return write(build_contents(folder))
    except (InputError, MachineError, MemoryError):
        raise
    except Exception:  # a field of an unexpected type
        shown = replace(folder, run={}, records=(), table=None, table_path=None, explorer=None)
    parts: list[tuple[str, dict[str, Any]]] = [
        ("run.json", {"run": folder.run}),
        *((found.path, {"records": (found,)}) for found in folder.records),
        (str(folder.table_path), {"table": folder.table, "table_path": folder.table_path}),
        ("explorer.npz", {"explorer": folder.explorer}),
    ]
    for name, part in parts:
        if "records" in part:
            part["records"] = (*shown.records, *part["records"])
        try:
            page_text(build_contents(replace(shown, **part)))
            shown = replace(shown, **part)
        except (MachineError, MemoryError):
            raise
        except Exception as error:
            reason = f"cannot be shown ({type(error).__name__}); make it again"
            shown = replace(shown, unreadable=(*shown.unreadable, (name, reason)))
    return write(build_contents(shown))
