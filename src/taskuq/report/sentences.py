"""The page's words: what was run, what is promised, what is not, and what was found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from taskuq.calibration.units import unit_named
from taskuq.decide.simulation import Simulation
from taskuq.report.contents import Contents, run_alpha, run_width
from taskuq.report.folder import RunFolder
from taskuq.report.tables import Table, policy_name, shown

WHAT = {
    "data": "Data",
    "measure": "Measurement h",
    "recover": "Recovery g",
    "task": "Task f",
}


def facts(folder: RunFolder, contents: Contents) -> list[tuple[str, str]]:
    """Return what was run, as terms and what they are.

    Arguments:
        folder: The run's folder.
        contents: What was gathered from it.
    """
    run, table = folder.run, folder.table
    what = run.get("what")
    found = []
    if isinstance(what, Mapping):
        found += [(WHAT.get(str(k), str(k)), str(v)) for k, v in what.items()]
    alpha, tau = run_alpha(folder, contents), run_width(folder)
    if alpha is not None:
        found.append(("Error rate α", f"{alpha:g}"))
    if tau is not None:
        found.append(("Width τ to stop at", f"{tau:g}"))
    if table is not None:
        found.append(("Posterior samples p", f"{table.samples}"))
        groups = "" if table.group is None else f" in {len(set(table.group.tolist()))} groups"
        found.append(("Cases", f"{table.cases}{groups}"))
        rates = ", ".join(f"{R:g}" for R in table.accelerations if not math.isnan(R))
        if rates:
            found.append(("Rounds", f"R = {rates}, then everything"))
        if table.task_names != ("task",):
            found.append(("Task outputs", ", ".join(table.task_names)))
    elif isinstance(run.get("samples"), int):
        found.append(("Posterior samples p", str(run["samples"])))
    if run.get("unit"):
        found.append(("Unit of the promise", str(run["unit"])))
    if run.get("seed") is not None:
        found.append(("Seed", str(run["seed"])))
    versions = run.get("versions")
    if isinstance(versions, Mapping) and versions:
        found.append(("Versions", ", ".join(f"{k} {v}" for k, v in versions.items())))
    if run.get("revision"):
        found.append(("Revision", str(run["revision"])))
    if isinstance(run.get("seconds"), int | float):
        found.append(("Time it took", _duration(float(run["seconds"]))))
    return found


def promises(folder: RunFolder, contents: Contents) -> list[str]:
    """Return the sentences of what is guaranteed, each once.

    Arguments:
        folder: The run's folder.
        contents: What was gathered from it.
    """
    found = []
    if folder.policy is not None:
        found.append(folder.policy.sentence)
    found += [bound.guarantee.sentence for bound in folder.bounds.values()]
    if not found:
        for record in contents.evaluations.values():
            first = record.results[0]
            who = unit_named(first.unit).who
            found.append(
                f"Guaranteed: an interval calibrated as in these splits contains the target of "
                f"{who} with probability at least {1 - first.alpha:.10g}, if the new {first.unit} "
                f"is exchangeable with the {first.n_calibration} calibration {first.unit}s."
            )
    return list(dict.fromkeys(found))[:4]


def limits(folder: RunFolder, contents: Contents) -> list[str]:
    """Return what the promise is not.

    Arguments:
        folder: The run's folder.
        contents: What was gathered from it.
    """
    unit = folder.run.get("unit") or (folder.policy and folder.policy.guarantee.unit)
    by = "groups (patients or volumes)" if unit in ("group", "whole-group") else "cases"
    found = [
        "The target is what the task network says about the fully measured image. It is not the "
        "diagnosis, and a network that is wrong about the true image is wrong here too.",
        f"The promise is an average over new {by} that come from where the calibration {by} came "
        "from. It is not about one given patient, and not about a class of patients: there "
        "coverage is measured.",
        "Exchangeability is assumed. Another scanner, protocol or population breaks it, and "
        "nothing on this page would show that.",
        "Widths and accelerations are measured; no width is promised where a scan does not stop "
        "by it.",
    ]
    unpromised = sorted(
        {
            policy_name(r)
            for results in contents.simulations.values()
            for _, r in results
            if not r.guaranteed
        }
    )
    if unpromised:
        found.append(
            f"Stopping by {', '.join(unpromised)} carries no guarantee for the report at the stop: "
            "its coverage is measured."
        )
    if folder.run.get("title") and "synthetic" in str(folder.run.get("what", "")).lower():
        found.append("The data are synthetic: nothing here was measured on anybody.")
    return found


def headline(folder: RunFolder, contents: Contents) -> list[str]:
    """Return what was found, in a sentence or two computed from the records.

    Arguments:
        folder: The run's folder.
        contents: What was gathered from it.
    """
    best = best_simulation(folder, contents)
    if best is not None:
        share = 1 / best.mean_acceleration
        return [
            f"Stopping each scan as soon as that is safe takes {share:.1%} of the measurements on "
            f"average (average acceleration {best.mean_acceleration:.2f}). The reports contained "
            f"the target in {best.coverage:.1%} of test cases, measured over {best.trials} random "
            f"splits; {'guaranteed' if best.guaranteed else 'not guaranteed, but aimed at'} is at "
            f"least {100 * (1 - best.alpha):.6g}%."
        ]
    for record in contents.evaluations.values():
        results = [r for r in record.results if not math.isnan(r.width.mean)]
        if results:
            low = min(results, key=lambda r: r.width.mean)
            at = f" at R = {low.acceleration:g}" if low.acceleration else ""
            return [
                f"The narrowest intervals, of {low.score}{at}, are {low.width.mean:.3g} wide on "
                f"average and cover {low.coverage.mean:.2%} of test {low.unit}s."
            ]
    return []


def best_simulation(folder: RunFolder, contents: Contents) -> Simulation | None:
    """Return the simulation of the run's own policy, or else of the fastest guaranteed one."""
    unit = folder.run.get("unit")
    rows = [r for results in contents.simulations.values() for _, r in results]
    rows = [r for r in rows if unit is None or r.unit == unit] or rows
    mine = [r for r in rows if folder.policy is not None and r.policy == folder.policy.kind]
    promised = [r for r in mine or rows if r.guaranteed]
    return max(promised, key=lambda r: r.mean_acceleration, default=None)


def tiles(folder: RunFolder, contents: Contents) -> list[tuple[str, str]]:
    """Return the few numbers everybody looks for.

    Arguments:
        folder: The run's folder.
        contents: What was gathered from it.
    """
    found = []
    alpha, tau = run_alpha(folder, contents), run_width(folder)
    best = best_simulation(folder, contents)
    if alpha is not None:
        found.append((f"{1 - alpha:.4g}", "coverage aimed at, 1\u00a0−\u00a0α"))
    if best is not None:
        found.append((f"{best.coverage:.4f}", f"coverage measured, {policy_name(best)}"))
        found.append((f"{best.mean_acceleration:.2f}×", "average acceleration, measured"))
        found.append((f"{best.early:.1%}", "of scans stop early"))
    if tau is not None:
        found.append((f"{tau:g}", "width to stop at,\u00a0τ"))
    if folder.table is not None:
        table = folder.table
        groups = "" if table.group is None else f" of {len(set(table.group.tolist()))} groups"
        found.append((f"{table.cases}", f"cases{groups}, {table.samples} samples each"))
    return found


def key_table(folder: RunFolder, contents: Contents) -> tuple[Table | None, str]:
    """Return the one table to look at first, and a sentence before it.

    Arguments:
        folder: The run's folder.
        contents: What was gathered from it.
    """
    unit = folder.run.get("unit")
    chosen = [
        (name, record)
        for name, record in contents.evaluations.items()
        if unit is None or record.results[0].unit == unit
    ] or list(contents.evaluations.items())
    if not chosen:
        return None, ""
    name, record = chosen[0]
    most = max(r.samples for r in record.results)
    task = record.results[0].task
    results = [r for r in record.results if r.samples == most and r.task == task]
    rates = list(dict.fromkeys(r.acceleration for r in results))
    scores = list(dict.fromkeys(r.score for r in results))
    at = {(r.score, r.acceleration): r for r in results}

    def cell(score: str, R: float | None) -> Any:
        found = at.get((score, R))
        return None if found is None else f"{shown(found.width.mean)} ± {found.width.sd:.2g}"

    worst = {s: min(r.coverage.mean for r in results if r.score == s) for s in scores}
    columns = ("score", *(f"width at R = {R:g}" if R else "width" for R in rates),
               "least coverage")  # fmt: skip
    rows = tuple((s, *(cell(s, R) for R in rates), worst[s]) for s in scores)
    sentence = (
        f"Shorter intervals say more. Every score is calibrated to cover at least "
        f"{1 - record.results[0].alpha:g} on average; what differs is how wide its intervals are."
    )
    caption = f"Mean interval width ± standard deviation over splits, {most} samples ({name})."
    return Table("key", caption, columns, rows), sentence


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
