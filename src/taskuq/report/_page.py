"""HTML page of a report, and exports of its tables and figures."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

import taskuq
from taskuq._io import atomic_write, write_json
from taskuq.report._answer import NO_GUARANTEE, answer_of
from taskuq.report._contents import STORY, Contents, interval_table, patient_table, task_table
from taskuq.report._explorer import explorer_payload
from taskuq.report._records import (
    DATA_CHECK,
    NOT_TESTED,
    STATUS,
    SUMMARY,
    Record,
    Table,
    csv_text,
    figure_table,
    latex_table,
    number,
    policy_name,
    round_called,
    shown,
    slug,
    title_of,
    two_digits,
    write_csv,
)
from taskuq.report._scan import scan_picture
from taskuq.report.figures import (
    Figure,
    draw_all,
    figure_svg,
    legend_of,
    method_colour,
    method_label,
    plain_values,
)
from taskuq.report.figures._evaluation import SAMPLES
from taskuq.table._table import suggest_range

# Experiments about data, masks and networks, folded in the report.
APPENDICES = ("recovery-quality", "classifier-quality", "masks", "data-splits")
ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("tables.js", "statistics.js", "model.js", "pictures.js", "play.js", "explorer.js")
MOST_ROWS = 400
TALL = 8  # rows beyond which a table scrolls
SHORT = 12  # rows up to which the numbers of a figure are a table and not only a file
Say = Callable[[str], str]


def write_page(contents: Contents) -> Path:
    text = page_text(contents)
    target = contents.folder.path / "report.html"
    with atomic_write(target) as partial:
        partial.write_text(text, encoding="utf-8")
    return target


def page_text(contents: Contents) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(ASSETS), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["explained"] = _explained
    return environment.get_template("report.html").render(**_context(contents))


def _grid(table: Table, say: Say = str) -> dict[str, Any]:
    """Return a table for the template, with cells as text and uncertainties next to values."""
    kept = [k for k, name in enumerate(table.columns) if k == 0 or not name.startswith("±")]

    def text(row: Sequence[Any], k: int) -> str:
        error = row[k + 1] if k + 1 < len(row) and k + 1 not in kept else None
        value = method_label(row[k]) if isinstance(row[k], str) else shown(row[k])
        if not isinstance(error, float) or not math.isfinite(error) or value == "–":
            return value
        return f"{value} ± {two_digits(error)}"

    return {
        "name": slug(table.name),
        "label": f"Table: {table.name}",
        "caption": say(table.caption),
        "columns": [say(table.columns[k]) for k in kept],
        "rows": [[text(row, k) for k in kept] for row in table.rows[:MOST_ROWS]],
        "text": [
            place
            for place, k in enumerate(kept)
            if k == 0 or any(isinstance(row[k], str) for row in table.rows[:50])
        ],
        "left_out": max(0, len(table.rows) - MOST_ROWS),
        "tall": len(table.rows) > TALL,
        "csv": _download(table) if len(table.rows) > TALL else None,
    }


def _download(table: Table) -> str:
    """Return a table as a data URL of a CSV file."""
    encoded = base64.b64encode(csv_text(table).encode("utf-8-sig")).decode()
    return f"data:text/csv;charset=utf-8;base64,{encoded}"


def _plate(
    figure: Figure, used: set[str], short: str, say: Say = str, named: Say = str
) -> dict[str, Any]:
    identity = f"fig-{slug(figure.name)}"
    while identity in used:
        identity += "-again"
    used.add(identity)
    names = "caption", "x_label", "y_label"
    texts: dict[str, Any] = {name: say(getattr(figure, name)) for name in names}
    if figure.x_label == "class":
        series = [replace(one, x=tuple(named(str(x)) for x in one.x)) for one in figure.series]
        texts["series"] = tuple(series)
        short = re.sub(r"class (\w+)\)$", lambda last: f"{named(last[1])})", short)
    figure = replace(figure, **texts)
    table = figure_table(figure)
    return {
        "id": identity,
        "name": figure.name,
        "title": say(short),
        "caption": figure.caption,
        "legend": legend_of(figure),
        "svg": figure_svg(figure, identity),
        "table": _grid(table) | {"csv": None} if len(table.rows) <= SHORT else None,
        "csv": _download(table),
        "file": f"{slug(figure.name)}.csv",
    }


# Tables of a simulation: its name with these endings.
PARTS = ("", "-stops", "-parts")


def _context(contents: Contents) -> dict[str, Any]:
    folder, words, run = contents.folder, contents.words, contents.folder.run
    used: set[str] = set()
    say, named = words.apply, partial(_with_class_names, contents=contents)
    explorer, notes = _explorer(contents)
    failures, counted = _failure_tables(contents)
    patients, by_task = patient_table(folder.table, contents.cases), task_table(contents.cases)
    simulated = {f"{name}{part}" for name in contents.simulations for part in PARTS}
    of_policies = [t for t in contents.tables if t.name in simulated]
    of_samples = [t for t in contents.tables if t.name in contents.diagnoses]
    others = [t for t in contents.tables if t not in (*of_policies, *of_samples)]
    rows = [row for results in contents.simulations.values() for row in results]
    names = SCRIPTS if explorer else SCRIPTS[:1]
    scripts = [(ASSETS / name).read_text(encoding="utf-8") for name in names]
    # The content security policy lists our scripts, so that no other one runs.
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    hashes = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
    scan, key, answer = contents.scan, _key_table(contents), answer_of(contents)
    simulated_row, policy = contents.simulated, contents.policy or {}
    kind = str(policy.get("kind")) if simulated_row is None else policy_name(simulated_row)
    sections = [
        (
            heading,
            say(reading),
            [_plate(f, used, title, say, contents.class_name) for title, f in under],
        )
        for heading, reading, under in contents.sections
    ]
    return {
        "title": str(run.get("title") or "Untitled run"),
        "words": words,
        "answer": answer,
        "no_guarantee": NO_GUARANTEE,
        "needs_independence": "independent" in getattr(answer.guarantee, "sentence", ""),
        "scan": None if scan is None else scan_picture(scan, folder.explorer, words)
        | {"colour": method_colour(kind) or 0},
        "explorer": explorer,
        "key_table": key and _grid(key, say),
        "key_alpha": key and _key_evaluation(contents)[1]["results"][0]["alpha"],
        "tables": [_grid(named(t), say) for t in (*of_policies, *filter(None, [by_task]))],
        "more_tables": [_grid(named(t), say) for t in others],
        "figures": [section for section in sections if section[0] != SAMPLES],
        "samples": [section for section in sections if section[0] == SAMPLES],
        "sample_tables": [_grid(named(t), say) for t in of_samples],
        "experiments": _experiments(contents, used),
        "guarantees": contents.guarantees[1:],
        "unit": "group" if contents.is_by_group else "case",
        "within_classes": policy.get("guarantee", {}).get("condition") == "each class",
        "what": contents.what,
        "undeclared": folder.table and suggest_range(folder.table),
        "measured": sorted({
            method_label(policy_name(row)) for row in rows if not row["guaranteed"]
        }),
        "is_synthetic": run.get("title") and "synthetic" in str(run.get("what", "")).lower(),
        "facts": _facts(contents),
        "networks": [
            (str(n.get("name") or "unnamed"),
             [(str(k), _words(v)) for k, v in n.items() if k != "name"])
            for n in run.get("networks") or () if isinstance(n, Mapping)
        ],
        "patients": patients and _grid(patients, say),
        "has_table": folder.table is not None,
        "failures": [_grid(t, say) for t in failures],
        "counted": say(counted),
        "notes": [
            *contents.notes,
            *notes,
            *(f"{path} has schema {schema}, which this report does not show."
              for path, schema in folder.others),
            *(f"{path} could not be read: {reason}" for path, reason in folder.unreadable),
        ],
        "commands": [str(c) for c in run.get("commands") or ()],
        "revision": str(run["revision"]) if run.get("revision") else None,
        "folder_name": folder.path.resolve().name or "RUN_DIR",
        "version": taskuq.__version__,
        "glossary": TERMS.items(),
        "css": Markup((ASSETS / "report.css").read_text(encoding="utf-8")),
        "scripts": [Markup(script) for script in scripts],
        "script_hashes": Markup(" ".join(hashes)),
    }  # fmt: skip


def _with_class_names(table: Table, contents: Contents) -> Table:
    """Return a table with class labels replaced by the names of the classes."""
    columns = {name: k for k, name in enumerate(table.columns)}
    at, by = columns.get("class", columns.get("name")), columns.get("by")
    if at is None or ("class" not in columns and by is None):
        return table
    body = [list(row) for row in table.rows]
    for row in body:
        if (by is None or row[by] == "class") and row[at] != "all":
            row[at] = contents.class_name(row[at])
    return replace(table, rows=tuple(map(tuple, body)))


def _experiments(contents: Contents, used: set[str]) -> list[dict[str, Any]]:
    found = []
    for identity, e in zip(contents.experiment_ids, contents.experiments, strict=True):
        first = next((t for t in e.tables if t.name == SUMMARY), next(iter(e.tables), None))
        # The words of a user's own experiment stay as they are.
        say = contents.words.apply if e.name in STORY else str
        found.append(
            {
                "id": identity,
                "title": e.title,
                **{name: say(getattr(e, name)) for name in ("claim", "finding", "criterion")},
                "verdict": e.verdict or NOT_TESTED,
                "is_appendix": e.name in APPENDICES,
                "figures": [
                    _plate(f, used, f.title or title_of(f.name), say, contents.class_name)
                    for f in e.figures
                ],
                "table": first and _grid(first, say),
                "tables": [_grid(t, say) for t in e.tables if t is not first],
                "settings": [(str(k), _words(v)) for k, v in e.settings.items()],
            }
        )
    return found


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {_words(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    return shown(value)


def _explorer(contents: Contents) -> tuple[dict[str, Any] | None, list[str]]:
    found = contents.folder.explorer
    if found is None or contents.numbers is None:
        return None, []
    payload = explorer_payload(found, contents.numbers, contents.words)
    for one in payload["slices"]:
        one["label"] = None if one["label"] is None else contents.class_name(one["label"])
    notes = []
    if payload["shrink"] > 1:
        notes.append(
            f"The explorer's images are {payload['shrink']} times smaller than the stored ones to "
            f"limit the size of this report; store fewer {contents.words.many('case')} or samples "
            "to keep the full resolution."
        )
    # Inside a script element only "<" could end it.
    text = json.dumps(payload, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    has = {"has_point": found.point_outputs, "has_estimate": found.estimate}
    return {"json": Markup(text), **{k: v is not None for k, v in has.items()}}, notes


WHAT = {"data": "Data", "measure": "Measurement h", "recover": "Reconstruction g", "task": "Task f"}


def _facts(contents: Contents) -> list[tuple[str, str]]:
    """Return (name, value) pairs of the run's settings."""
    run, table, words = contents.folder.run, contents.folder.table, contents.words
    found = [(WHAT.get(str(k), str(k)), str(v)) for k, v in contents.what.items()]
    alpha, tau = contents.alpha, contents.max_width
    if alpha is not None:
        found.append(("Error rate α", f"{alpha:g}"))
    of = ((contents.policy or {}).get("goal") or {}).get("tasks", ())
    widths = [f"{one['task']} {one['max_width']:g}" for one in of if one["max_width"] is not None]
    if tau is not None or widths:
        found.append(("Interval width τ at which a scan stops", ", ".join(widths) or f"{tau:g}"))
    if table is not None:
        found.append(("Posterior samples p", f"{table.samples}"))
        groups = "" if table.group is None else f" in {len(set(table.group.tolist()))} groups"
        found.append((words.many("case").capitalize(), f"{table.cases}{words.apply(groups)}"))
        if not np.isnan(table.accelerations).any():
            rounds = ", ".join(table.round_labels)
            found.append((words.many("round").capitalize(), f"{rounds}, then the full scan"))
        if table.task_names != ("task",):
            found.append(("Task outputs", ", ".join(table.task_names)))
    elif isinstance(run.get("samples"), int):
        found.append(("Posterior samples p", str(run["samples"])))
    if run.get("unit"):
        found.append(("Unit of the guarantee", words.apply(str(run["unit"]))))
    policy = contents.policy or {}
    certificate = policy.get("certificate", {})
    if "certified" in certificate:
        found.append((
            "Average acceleration, certified",
            f"at least {math.floor(100 * number(certificate['certified'])) / 100:.2f} for "
            f"{words.apply(certificate['mean_over'])}, except for a fraction "
            f"{certificate['delta']:g} of calibration sets, if all "
            f"{words.apply(policy['guarantee']['unit'] + 's')} are independent",
        ))  # fmt: skip
    if run.get("seed") is not None:
        found.append(("Seed", str(run["seed"])))
    if isinstance(versions := run.get("versions"), Mapping) and versions:
        found.append(("Versions", ", ".join(f"{k} {v}" for k, v in versions.items())))
    if run.get("revision"):
        found.append(("Revision", str(run["revision"])))
    if isinstance(seconds := run.get("seconds"), int | float):
        long = f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
        found.append(("Run time", f"{seconds:.0f} seconds" if seconds < 120 else long))
    return found


def _key_evaluation(contents: Contents) -> tuple[str, Record]:
    """Return the name and record of the first evaluation, preferably one with the run's unit."""
    unit, every = contents.folder.run.get("unit"), list(contents.evaluations.items())
    mine = (of for of in every if unit is None or of[1]["results"][0]["unit"] == unit)
    return next(mine, every[0])


def _key_table(contents: Contents) -> Table | None:
    """Return a table of mean interval widths by score and round, or None."""
    if not contents.evaluations:
        return None
    name, record = _key_evaluation(contents)
    most = max(r["samples"] for r in record["results"])
    rates = list(dict.fromkeys(r["acceleration"] for r in record["results"]))
    rows: dict[tuple[Any, str], dict[Any, Record]] = {}
    for r in record["results"]:
        if r["samples"] == most:
            rows.setdefault((r.get("task"), r["score"]), {})[r["acceleration"]] = r
    has_tasks = len({task for task, _ in rows}) > 1

    def cell(r: Record | None) -> str | None:
        if r is None:
            return None
        mean, sd = shown(number(r["width"]["mean"])), number(r["width"]["sd"])
        return mean if math.isnan(sd) else f"{mean} ± {two_digits(sd)}"

    columns = ["task", "score"][not has_tasks :]
    columns += [f"width at {round_called(record, R)}" if R else "width" for R in rates]
    body = [
        ((task, method_label(score))[not has_tasks :] + tuple(cell(of.get(R)) for R in rates)
         + (min(number(r["coverage"]["mean"]) for r in of.values()),))
        for (task, score), of in rows.items()
    ]  # fmt: skip
    samples = f"{most} {'sample' if most == 1 else 'samples'}"
    caption = f"Mean interval width ± standard deviation over splits, {samples} ({name})."
    return Table("key", caption, (*columns, "lowest coverage"), tuple(body))


def _failure_tables(contents: Contents) -> tuple[list[Table], str]:
    """Return tables of failed and skipped cases, and a sentence that counts them."""
    folder = contents.folder
    failed: dict[str, str] = {}
    skipped: list[tuple[str, str]] = []
    if folder.table is not None:
        failed |= dict.fromkeys(folder.table.missing_cases, "not finished; no reason is recorded")
    for found in folder.of(STATUS):
        if isinstance(reasons := found.record.get("failed"), dict):
            failed |= {str(case): str(reason) for case, reason in reasons.items()}
    failed |= contents.failed
    for found in folder.of(DATA_CHECK):
        files = found.record.get("files")
        for row in files if isinstance(files, list) else ():
            if isinstance(row, dict) and not row.get("used", True):
                name = next((str(v) for k, v in row.items() if k in ("file", "name", "path")), "?")
                skipped.append((name, str(row.get("reason", ""))))
    sentence = "Cases that failed or were not finished; they are not in the table."
    tables = [
        Table("failed", sentence, ("case", "reason"), tuple(failed.items())),
        Table("skipped", "Files that were skipped when the data were read.", ("file", "reason"),
              tuple(skipped)),
    ]  # fmt: skip
    if folder.table is None:
        known = "No table of task outputs is stored with this run: failures cannot be counted."
    elif failed:
        one = len(failed) == 1
        known = (
            f"{len(failed)} {'case' if one else 'cases'} failed or {'is' if one else 'are'} "
            f"unfinished; {folder.table.cases} are complete."
        )
    else:
        known = f"All {folder.table.cases} cases of the table are complete."
    return [table for table in tables if table.rows], known + (
        f" {len(skipped)} files were skipped." if skipped else ""
    )


# In the order of the glossary.
TERMS = {
    "AR": "absolute residual: intervals of equal width around a point estimate",
    "LWR": "locally weighted residual: intervals proportional to the spread of the samples",
    "CQR": "conformalized quantile regression: intervals between two widened sample quantiles",
    "MLWR": "LWR with a regularised spread: each spread is shrunk towards those of all cases",
    "α": "error rate: at most this fraction of reported intervals may miss the truth",
    "τ": "interval width at which a scan may stop",
    "R̄": "average acceleration: measurements of a full scan divided by the mean number taken",
    "q̂": "quantile of the calibration scores, which sets the width of intervals",
    "coverage": "fraction of intervals that contain the truth",
    "exchangeable": "all orders of new and calibration units are equally likely",
}
_FOUND = re.compile(r"(?<![\w-])(AR|M?LWR|CQR|α|τ|R̄|q̂)(?![\w-])")


def _explained(text: str) -> Markup:
    """Escape text, and add explanations of acronyms and symbols on hover."""
    pieces = _FOUND.split(str(text))
    abbr = Markup('<abbr title="{}">{}</abbr>')
    return Markup("").join(
        abbr.format(TERMS[piece], piece) if k % 2 else escape(piece)
        for k, piece in enumerate(pieces)
    )


ENDINGS = (".svg", ".png", ".pdf")


def write_exports(contents: Contents, endings: Sequence[str] = ENDINGS) -> Path:
    """Write the tables, figures and intervals of a report; return the folder of the tables."""
    folder = contents.folder
    target = folder.path / "exports"
    patients = patient_table(folder.table, contents.cases)
    found = (_key_table(contents), *contents.all_tables, task_table(contents.cases), patients)
    tables = [table for table in found if table is not None]
    for table in tables:
        write_csv(target / f"{table.name}.csv", table)
        with atomic_write(target / f"{table.name}.tex") as partial:
            partial.write_text(latex_table(table) + "\n", encoding="utf-8")
    for figure in contents.all_figures:
        name = slug(figure.name)
        write_csv(target / f"figure-{name}.csv", figure_table(figure))
        draw_all(figure, [folder.path / "figures" / f"{name}{ending}" for ending in endings])
    results = {
        "schema": "taskuq.results/1",
        "run": plain_values(folder.run),
        "tables": [plain_values(asdict(table)) for table in tables],
        "figures": [figure.to_dict() for figure in contents.all_figures],
        "notes": list(contents.notes),
    }
    write_json(target / "results.json", results)
    if contents.cases:
        write_csv(folder.path / "intervals.csv", interval_table(contents.cases))
    return target
