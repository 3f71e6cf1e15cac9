"""The page's words: what was run, what is promised, what is not, and what was found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from taskuq.outputs.undeclared import undeclared_range
from taskuq.report.contents import Contents
from taskuq.report.records import DATA_CHECK, STATUS, number, policy_name, round_called
from taskuq.report.tables import Table, shown, two_digits

WHAT = {"data": "Data", "measure": "Measurement h", "recover": "Recovery g", "task": "Task f"}


def facts(contents: Contents) -> list[tuple[str, str]]:
    """Return what was run, as terms and what they are."""
    run, table, words = contents.folder.run, contents.folder.table, contents.words
    what = run.get("what")
    found = []
    if isinstance(what, Mapping):
        found += [(WHAT.get(str(k), str(k)), str(v)) for k, v in what.items()]
    alpha, tau = contents.alpha, contents.max_width
    if alpha is not None:
        found.append(("Error rate α", f"{alpha:g}"))
    of = ((contents.policy or {}).get("goal") or {}).get("tasks", ())
    widths = [f"{one['task']} {one['max_width']:g}" for one in of if one["max_width"] is not None]
    if tau is not None or widths:
        found.append(("Width τ to stop at", ", ".join(widths) or f"{tau:g}"))
    if table is not None:
        found.append(("Posterior samples p", f"{table.samples}"))
        groups = "" if table.group is None else f" in {len(set(table.group.tolist()))} groups"
        found.append((words.many("case").capitalize(), f"{table.cases}{words.said(groups)}"))
        if not np.isnan(table.accelerations).any():
            rounds = ", ".join(table.round_labels)
            found.append((words.many("round").capitalize(), f"{rounds}, then everything"))
        if table.task_names != ("task",):
            found.append(("Task outputs", ", ".join(table.task_names)))
    elif isinstance(run.get("samples"), int):
        found.append(("Posterior samples p", str(run["samples"])))
    if run.get("unit"):
        found.append(("Unit of the promise", words.said(str(run["unit"]))))
    certificate = (contents.policy or {}).get("certificate", {})
    if "certified" in certificate:
        found.append((
            "Average acceleration, certified",
            f"at least {number(certificate['certified']):.2f} for "
            f"{words.said(certificate['mean_over'])}, but for {certificate['delta']:g} of "
            "calibration sets",
        ))  # fmt: skip
    if run.get("seed") is not None:
        found.append(("Seed", str(run["seed"])))
    versions = run.get("versions")
    if isinstance(versions, Mapping) and versions:
        found.append(("Versions", ", ".join(f"{k} {v}" for k, v in versions.items())))
    if run.get("revision"):
        found.append(("Revision", str(run["revision"])))
    if isinstance(seconds := run.get("seconds"), int | float):
        long = f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
        found.append(("Time it took", f"{seconds:.0f} seconds" if seconds < 120 else long))
    return found


def card(contents: Contents) -> list[tuple[str, str]]:
    """Return what this is for, what it is not for, and from what, as the card of a model says it.

    What a run does not tell about its data and networks is left out.
    """
    words = contents.words
    what = contents.folder.run.get("what")
    told = what if isinstance(what, Mapping) else {}
    networks = " ".join(str(told[name]) for name in ("recover", "task") if told.get(name))
    found = [
        (
            "Intended use",
            f"To stop measuring each {words.case} once the answer of a fixed task is certain "
            "enough, and to bound what that task would have said with everything measured.",
        ),
        (
            "Not for",
            "A diagnosis, a statement about one given person or class, another source of data, or "
            "settings that were chosen by looking at the result.",
        ),
        (
            "Assumed",
            f"New {words.many('group' if contents.is_by_group else 'case')} are exchangeable with "
            "those of the calibration. taskuq cannot see from one page whether that is so.",
        ),
        ("Data", str(told.get("data") or "")),
        ("Networks", networks),
    ]
    return [(term, text) for term, text in found if text]


def limits(contents: Contents) -> list[str]:
    """Return what the promise is not."""
    run = contents.folder.run
    words = contents.words
    one = "group" if contents.is_by_group else "case"
    by = words.many(one)
    found = [
        "The target is what the task says about the true image. It is not a fact about what "
        "is shown there, and a task that is wrong about the true image is wrong here too.",
        f"The promise is an average over new {by} that come from where the calibration {by} came "
        f"from. It is not about one given {getattr(words, one)}, and not about a class of {by}: "
        "there coverage is measured.",
        "Exchangeability is assumed. Another device, setting or population breaks it, and "
        "nothing on this page would show that.",
        "Widths and accelerations are measured; no width is promised where a scan does not stop "
        "by it.",
    ]
    if (table := contents.folder.table) is not None and (said := undeclared_range(table)):
        found.append(said)
    simulated = [r for results in contents.simulations.values() for r in results]
    unpromised = sorted({policy_name(r) for r in simulated if not r["guaranteed"]})
    if unpromised:
        found.append(
            f"Stopping by {', '.join(unpromised)} carries no guarantee for the report at the stop: "
            "its coverage is measured."
        )
    if run.get("title") and "synthetic" in str(run.get("what", "")).lower():
        found.append("The data are synthetic: nothing here was measured on anybody.")
    return found


def key_table(contents: Contents) -> tuple[Table | None, str]:
    """Return the one table to look at first, and a sentence before it."""
    unit = contents.folder.run.get("unit")
    every = list(contents.evaluations.items())
    if not every:
        return None, ""
    mine = (of for of in every if unit is None or of[1]["results"][0]["unit"] == unit)
    name, record = next(mine, every[0])
    alpha, most = record["results"][0]["alpha"], max(r["samples"] for r in record["results"])
    rows = [r for r in record["results"] if r["samples"] == most]
    tasks = list(dict.fromkeys(r.get("task") for r in rows))
    rates = list(dict.fromkeys(r["acceleration"] for r in rows))
    scores = list(dict.fromkeys(r["score"] for r in rows))
    at = {(r.get("task"), r["score"], r["acceleration"]): r for r in rows}

    def cell(*place: Any) -> Any:
        width = at[place]["width"] if place in at else None
        if width is None:
            return None
        mean, sd = shown(number(width["mean"])), number(width["sd"])
        return mean if math.isnan(sd) else f"{mean} ± {two_digits(sd)}"

    several = ("task",) if len(tasks) > 1 else ()
    columns = (*several, "score",
               *(f"width at {round_called(record, R)}" if R else "width" for R in rates),
               "least coverage")  # fmt: skip
    body = []
    for task, score in product(tasks, scores):
        found = [at[task, score, R] for R in rates if (task, score, R) in at]
        if found:
            least = min(number(r["coverage"]["mean"]) for r in found)
            widths = (cell(task, score, R) for R in rates)
            body.append((*((task,) if several else ()), score, *widths, least))
    sentence = (
        f"Shorter intervals say more. Every score is calibrated to cover at least "
        f"{1 - alpha:g} on average; what differs is how wide its intervals are."
    )
    samples = f"{most} {'sample' if most == 1 else 'samples'}"
    caption = f"Mean interval width ± standard deviation over splits, {samples} ({name})."
    return Table("key", caption, columns, tuple(body)), sentence


def failure_tables(contents: Contents) -> tuple[list[Table], str]:
    """Return tables of failed and skipped cases, and a sentence that counts them."""
    folder = contents.folder
    failed: dict[str, str] = {}
    skipped: list[tuple[str, str]] = []
    if folder.table is not None:
        failed |= dict.fromkeys(folder.table.missing, "not finished; the run gives no reason")
    for found in folder.of(STATUS):
        reasons = found.record.get("failed")
        if isinstance(reasons, dict):
            failed |= {str(case): str(reason) for case, reason in reasons.items()}
    failed |= contents.logged
    for found in folder.of(DATA_CHECK):
        files = found.record.get("files")
        for row in files if isinstance(files, list) else ():
            if isinstance(row, dict) and not row.get("used", True):
                name = next((str(v) for k, v in row.items() if k in ("file", "name", "path")), "?")
                skipped.append((name, str(row.get("reason", ""))))
    tables = []
    if failed:
        tables.append(
            Table("failed", "Cases that failed or were not finished; they are not in the table.",
                  ("case", "reason"), tuple(failed.items()))
        )  # fmt: skip
    if skipped:
        tables.append(
            Table("skipped", "Files that were skipped before the run.", ("file", "reason"),
                  tuple(skipped))
        )  # fmt: skip
    if folder.table is None:
        known = "No table of task outputs is stored here, so failed cases cannot be counted."
    elif failed:
        one = len(failed) == 1
        known = (
            f"{len(failed)} {'case' if one else 'cases'} failed or {'is' if one else 'are'} "
            f"unfinished; {folder.table.cases} are complete."
        )
    else:
        known = f"All {folder.table.cases} cases of the table are complete."
    return tables, known + (f" {len(skipped)} files were skipped." if skipped else "")
