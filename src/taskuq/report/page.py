"""The page of a run: one HTML file that opens from disk."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

import taskuq
from taskuq.errors import InputError
from taskuq.evaluation.result import HONESTLY
from taskuq.files import whole_file
from taskuq.report.contents import LAW, Contents, gather, run_alpha, run_width, slug, title_of
from taskuq.report.explorer import Explorer
from taskuq.report.failures import failure_tables
from taskuq.report.figure import Figure
from taskuq.report.folder import RunFolder, read_folder
from taskuq.report.patients import patient_table
from taskuq.report.payload import explorer_payload
from taskuq.report.reports import case_reports
from taskuq.report.sentences import facts, headline, key_table, limits, promises, tiles
from taskuq.report.svg import figure_svg, swatch
from taskuq.report.tables import Table, figure_table, shown

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("statistics.js", "model.js", "explorer.js")
MOST_ROWS = 400


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
    folder = read_folder(Path(run_dir))
    text = render(folder)
    target = folder.path / "report.html"
    with whole_file(target) as partial:
        partial.write_text(text, encoding="utf-8")
    return target


def render(folder: RunFolder) -> str:
    """Return the page of a run as HTML.

    Arguments:
        folder: The run's folder, read.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(ASSETS), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    template = environment.get_template("report.html")
    return template.render(**_context(folder))


@dataclass(frozen=True)
class _Grid:
    """A table as the template wants it: cells as text, and which columns hold words."""

    name: str
    label: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text: frozenset[int]
    left_out: int


def _grid(table: Table) -> _Grid:
    words = frozenset(
        k
        for k in range(len(table.columns))
        if k == 0 or any(isinstance(row[k], str) for row in table.rows[:50])
    )
    return _Grid(
        slug(table.name),
        f"Table: {table.name}",
        table.caption,
        table.columns,
        tuple(tuple(shown(cell) for cell in row) for row in table.rows[:MOST_ROWS]),
        words,
        max(0, len(table.rows) - MOST_ROWS),
    )


def _plate(figure: Figure, used: set[str], short: str) -> dict[str, Any]:
    identity = f"fig-{slug(figure.name)}"
    while identity in used:
        identity += "-again"
    used.add(identity)
    is_strip = any(s.style == "strip" for s in figure.series)
    several = len(figure.series) > 1 and not is_strip
    return {
        "id": identity,
        "name": figure.name,
        "title": short,
        "caption": figure.caption,
        "legend": [(swatch(s, k), s.name) for k, s in enumerate(figure.series)] if several else [],
        "svg": figure_svg(figure),
        "table": _grid(figure_table(figure)),
    }


def _title(figure: Figure, contents: Contents) -> str:
    name = figure.name
    for table in contents.tables:
        name = name.removeprefix(f"{table.name}-")
    return contents.titles.get(figure.name) or title_of(name)


def _context(folder: RunFolder) -> dict[str, Any]:
    contents = gather(folder)
    run = folder.run
    reports, problems = case_reports(folder)
    patients = None if folder.table is None else patient_table(folder.table, reports)
    explorer, explorer_note = _explorer(folder, contents)
    failures, failures_sentence = failure_tables(folder)
    used: set[str] = set()
    figures = [
        (
            heading,
            HONESTLY if heading == LAW else "",
            [_plate(f, used, _title(f, contents)) for f in under],
        )
        for heading, under in contents.figures.items()
    ]
    experiments = [
        {
            "id": f"experiment-{k + 1}-{e.name}",
            "title": e.title,
            "claim": e.claim,
            "finding": e.finding,
            "short": e.finding.partition(":")[0].partition(". ")[0],
            "figures": [_plate(f, used, title_of(f.name)) for f in e.figures],
            "tables": [_grid(t) for t in e.tables],
            "settings": [(str(k), _words(v)) for k, v in e.settings.items()],
        }
        for k, e in enumerate(contents.experiments)
    ]
    key, key_sentence = key_table(folder, contents)
    summary = headline(folder, contents)
    notes = [*contents.notes, *problems, *explorer_note]
    notes += [f"{path} is {schema}, which has no place on this page." for path, schema in
              folder.others]  # fmt: skip
    notes += [f"{path} could not be read: {reason}" for path, reason in folder.unreadable]
    sections = [("guarantee", "Guarantee"), ("run", "What was run"), ("results", "Results")]
    sections += [("explore", "Look for yourself")] if explorer else []
    sections += [(str(e["id"]), str(e["title"])) for e in experiments]
    sections += [("figures", "Figures"), ("patients", "Patient by patient"),
                 ("failures", "Failures"), ("reproduce", "Reproduce")]  # fmt: skip
    scripts = [(ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return {
        "title": str(run.get("title") or "A run without a title"),
        "eyebrow": "Intervals for what the task network would have said about the true image",
        "summary": summary,
        "tiles": tiles(folder, contents),
        "promises": promises(folder, contents),
        "limits": limits(folder, contents),
        "facts": facts(folder, contents),
        "networks": [_network(n) for n in run.get("networks") or () if isinstance(n, Mapping)],
        "key_table": _grid(key) if key else None,
        "key_sentence": key_sentence,
        "tables": [_grid(t) for t in contents.tables if t.name in contents.simulations],
        "more_tables": [_grid(t) for t in contents.tables if t.name not in contents.simulations],
        "explorer": explorer,
        "experiments": experiments,
        "figures": figures,
        "patients": _grid(patients) if patients else None,
        "patients_note": "The table has no groups, so there is nothing to sum up by patient."
        if folder.table is not None
        else "No table of task outputs is stored with this run.",
        "failures": [_grid(t) for t in failures],
        "failures_sentence": failures_sentence,
        "notes": notes,
        "commands": [str(c) for c in run.get("commands") or ()],
        "revision": str(run["revision"]) if run.get("revision") else None,
        "folder_name": folder.path.resolve().name or "RUN_DIR",
        "version": taskuq.__version__,
        "sections": sections,
        "css": Markup((ASSETS / "report.css").read_text(encoding="utf-8")),
        "scripts": [Markup(script) for script in scripts],
        "script_hashes": Markup(" ".join(map(_hash, scripts)) if explorer else "'none'"),
    }


def _network(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": str(record.get("name") or "without a name"),
        "facts": [(str(k), _words(v)) for k, v in record.items() if k != "name"],
    }


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {_words(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    return shown(value)


def _explorer(folder: RunFolder, contents: Contents) -> tuple[dict[str, Any] | None, list[str]]:
    found = folder.explorer
    if found is None:
        return None, ["No explorer.npz is stored with this run, so there are no pictures to look "
                      "through."]  # fmt: skip
    try:
        payload = explorer_payload(
            found,
            alpha=run_alpha(folder, contents) or 0.05,
            max_width=run_width(folder) or 0.1,
            unit=_unit(folder),
            task_range=_range(folder, found),
        )
    except InputError as error:
        return None, [f"The explorer cannot be shown: {error}"]
    notes = []
    if payload["shrink"] > 1:
        notes.append(
            f"The explorer's pictures are {payload['shrink']} times smaller than the stored ones, "
            "so that the page stays small; store fewer slices or samples to see them whole."
        )
    # Inside a script element only "<" could end it.
    text = json.dumps(payload, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return {
        "json": Markup(text),
        "has_point": found.point_outputs is not None,
    }, notes


def _unit(folder: RunFolder) -> str:
    if folder.policy is not None:
        return folder.policy.guarantee.unit
    return "case" if folder.run.get("unit") == "case" else "group"


def _range(folder: RunFolder, explorer: Explorer) -> tuple[float, float] | None:
    if explorer.task_range is not None:
        return explorer.task_range
    if folder.policy is not None and folder.policy.task_range is not None:
        return folder.policy.task_range
    return None if folder.table is None else folder.table.task_range


def _hash(script: str) -> str:
    """Name a script so that the page runs it and no other."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
