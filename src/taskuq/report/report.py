"""Reports of tables and of run folders."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import taskuq
from taskuq.calibration.units import PolicyUnitName, Unit
from taskuq.decide.goal import make_goals
from taskuq.decide.kinds import POLICIES, PolicyPlan
from taskuq.decide.planning import plan, policy_unit
from taskuq.decide.records import simulation_record
from taskuq.decide.simulation import simulate
from taskuq.disk import make_folder
from taskuq.errors import InputError, MachineError
from taskuq.evaluation.comparison import Comparison, compare
from taskuq.files import open_npz, write_json
from taskuq.fingerprints import fingerprint
from taskuq.outputs import TaskOutputs, as_table
from taskuq.outputs.undeclared import undeclared_range
from taskuq.report._answer import answer_of
from taskuq.report._contents import Contents, build_contents
from taskuq.report._explorer import save_explorer
from taskuq.report._page import ENDINGS, page_text, write_exports, write_page
from taskuq.report._records import read_folder
from taskuq.words import as_words

# What is compared on every page: with the paper's scores, the one that calibration takes.
SCORES = ("ar", "lwr", "cqr", "mlwr")
# Policies beside the one that is planned.
BESIDE = ("adaptive", "paper")
RECORD = "run.json"


def make_report(
    table: Any,
    folder: str | os.PathLike[str],
    *,
    alpha: float,
    max_width: Any = None,
    at_least: Any = None,
    at_most: Any = None,
    policy: str = "fixed-width",
    unit: PolicyUnitName | None = None,
    scores: Sequence[str] | None = None,
    trials: int = 1000,
    seed: int = 0,
    title: str | None = None,
    words: Any = None,
    tell: Callable[[str], None] = lambda line: None,
    **described: Any,
) -> Path:
    r"""Judge a table of task outputs, plan when to stop, and write one page about it.

    The folder gets the table, ``evaluate.json``, and, where there is a goal and more than one
    round, ``policy.json`` and ``simulate.json``; ``explorer.npz`` where the run that made the table
    kept pictures; and ``report.html``.

    Arguments:
        table: A table, its path, a data frame, or arrays (outputs, targets) with what describes
            them by name.
        folder: A new folder, or one that this function has filled before from the same table.
        alpha: The error rate.
        max_width: Stop when intervals are this narrow; one for each of several tasks, also by name.
        at_least: Stop when a lower bound exceeds this level, likewise.
        at_most: Stop when an upper bound is below this level, likewise.
        policy: The kind of policy that is planned; others are shown beside it.
        unit: Whom promises are for: 'case', 'group' or 'whole-group'; the group where there are
            groups.
        scores: The scores that are judged; without them ar, lwr, cqr and mlwr, or ar alone for
            point estimates, which have no spread.
        trials: The number of random splits.
        seed: Their seed.
        title: What the page is called.
        words: What cases, groups, rounds and pictures are called (:class:`taskuq.words.Words`).
        tell: Called with a sentence now and then.
        described: With arrays: ``accelerations``, ``group``, ``task_range``, ``round_names`` ...

    Returns:
        The path of the page.

    Example:
        >>> import tempfile
        >>> truth = rng.random(60)
        >>> outputs = np.clip(truth[:, None] + 0.1 * rng.standard_normal((2, 60, 4)), 0, 1)
        >>> page = make_report(
        ...     (outputs, truth), tempfile.mkdtemp(), accelerations=(8, 2), alpha=0.2,
        ...     max_width=0.6, trials=20, words={"case": "scene"})
        >>> page.name
        'report.html'
    """
    loaded, run = as_table(table, described, "make_report"), Path(folder)
    if not loaded.has_targets:
        raise InputError("the table has no targets, so nothing can be judged on it; add them")
    called = as_words(words if words is not None else loaded.provenance.get("words"))
    whom = policy_unit(loaded, unit, "random")
    asked = {"max_width": max_width, "at_least": at_least, "at_most": at_most}
    has_goal = any(value is not None for value in asked.values())
    # Before anything is judged: a goal that does not fit is known at once.
    goal = make_goals(**asked, side=None, names=loaded.task_names) if has_goal else None
    scores = scores or (SCORES if loaded.samples > 1 else SCORES[:1])
    _claim(run, loaded)
    loaded.save(run / "table.npz")
    if undeclared := undeclared_range(loaded):
        tell(undeclared)
    tell(f"{loaded}: judging {', '.join(scores)} over {trials} random splits.")
    judged = Comparison(tuple(scores), alpha, trials=trials, seed=seed, unit=whom.counted)
    write_json(run / "evaluate.json", compare(loaded, judged).to_dict())
    if goal is not None and not np.isnan(loaded.accelerations).any():
        tell(f"Planning when to stop: {policy}.")
        made = plan(loaded, alpha=alpha, policy=policy, unit=unit, **asked)
        made.save(run / "policy.json")
        kinds = dict.fromkeys((policy, *(k for k in BESIDE if _can(k, whom))))
        plans = [PolicyPlan(kind, alpha, goal) for kind in kinds]
        tell(f"Replaying {', '.join(kinds)} over {trials} random splits.")
        rng = np.random.default_rng(seed)
        found = simulate(loaded, plans, trials=trials, rng=rng, unit=unit)
        record = simulation_record(
            loaded, goal, [(loaded.samples, one) for one in found], {"seed": seed}
        )
        write_json(run / "simulate.json", record)
    if loaded.pictures is not None:
        _explorer(loaded, run, whom)
    write_json(run / RECORD, _run(loaded, alpha, max_width, whom, seed, title, called.to_dict()))
    return write_report(run)


def _claim(run: Path, table: TaskOutputs) -> None:
    """Make the folder; one that holds anything but a page of this table is refused."""
    make_folder(run)
    old = run / "table.npz"
    others = [path.name for path in run.iterdir() if not path.name.startswith(".")]
    if not others:
        return
    if not old.exists():
        raise InputError(
            f"{run} holds {sorted(others)[0]} and no page of a table; choose another folder"
        )
    found = TaskOutputs.load(old)
    if _mark(found) != _mark(table):
        raise InputError(f"{run} holds the page of another table; choose another folder")


def _mark(table: TaskOutputs) -> str:
    parts = (table.outputs.astype(np.float64), table.targets, table.accelerations)
    digests = [hashlib.sha256(part.tobytes()).hexdigest() for part in parts]
    return fingerprint([digests, [list(part.shape) for part in parts], list(table.task_names)])


def _can(kind: str, whom: Unit) -> bool:
    """Whether a kind of policy has a threshold for such units."""
    return POLICIES[kind].stops_whole_groups or not whom.stops_together


def _explorer(table: TaskOutputs, run: Path, whom: Unit) -> None:
    """Write what the explorer shows: the cases with pictures; the others calibrate."""
    assert table.pictures is not None
    with open_npz(table.pictures, "pictures") as archive:
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
    calibration = {} if group is None else {"calibration_group": group[rest]}
    save_explorer(
        run / "explorer.npz",
        **{name: values[kept] for name, values in seen.items()},
        case=[names[k] for k in shown],
        # One menu of all cases, where there is nothing to choose them by.
        group=["all"] * len(shown) if group is None else group[shown],
        label=None if table.label is None else table.label[shown],
        accelerations=table.accelerations,
        outputs=by_case[shown],
        targets=targets[shown],
        calibration_outputs=by_case[rest],
        calibration_targets=targets[rest],
        round_names=table.round_names,
        task_names=table.task_names,
        task_ranges=[range_ or (-np.inf, np.inf) for range_ in table.task_ranges],
        **calibration,
    )


def _run(
    table: TaskOutputs,
    alpha: float,
    max_width: Any,
    whom: Unit,
    seed: int,
    title: str | None,
    words: Mapping[str, str],
) -> dict[str, Any]:
    made = table.provenance.get("made_by")
    versions = made if isinstance(made, Mapping) else {"taskuq": taskuq.__version__}
    return {
        "schema": "taskuq.run/1",
        "title": title or ", ".join(n for n in table.task_names if n != "task") or "A table",
        "alpha": alpha,
        "max_width": max_width if isinstance(max_width, int | float) else None,
        "samples": table.samples,
        "unit": whom.name,
        "words": dict(words),
        "seed": seed,
        "versions": {
            "python": platform.python_version(),
            **{str(k): str(v) for k, v in versions.items() if k != "revision"},
        },
        "commands": [],
    }


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
    return _write(write_page, run_dir)


def answer_lines(run_dir: str | os.PathLike[str]) -> list[str]:
    """Return what the first screen of a run's page says, as lines for a terminal."""
    # The page's pictures take a while and say nothing here.
    return answer_of(build_contents(replace(read_folder(Path(run_dir)), explorer=None))).lines


def export(run_dir: str | os.PathLike[str], endings: Sequence[str] = ENDINGS) -> Path:
    """Write a run's results as CSV, JSON and LaTeX, its figures and intervals into a folder."""
    return _write(partial(write_exports, endings=endings), run_dir)


def _write(write: Callable[[Contents], Path], run_dir: str | os.PathLike[str]) -> Path:
    """Write a run's results; a record with something odd in it makes them shorter by itself."""
    folder = read_folder(Path(run_dir))
    try:
        return write(build_contents(folder))
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
            page_text(build_contents(replace(shown, **added)))
            shown = replace(shown, **added)
        except (MachineError, MemoryError):
            raise
        except Exception as error:
            reason = f"cannot be shown ({type(error).__name__}); make it again"
            shown = replace(shown, unreadable=(*shown.unreadable, (name, reason)))
    return write(build_contents(shown))
