"""The page of a run: one HTML file that opens from disk."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

import taskuq
from taskuq.files import whole_file
from taskuq.report.answer import UNPROMISED, answer_of
from taskuq.report.cases import patient_table, task_table
from taskuq.report.contents import (
    APPENDICES,
    STORY,
    Contents,
    experiment_ids,
    slug,
    title_of,
)
from taskuq.report.figure import Figure
from taskuq.report.glossary import explained, glossary
from taskuq.report.payload import explorer_payload
from taskuq.report.records import SUMMARY
from taskuq.report.scan import scan_picture
from taskuq.report.sentences import card, facts, failure_tables, key_table, limits
from taskuq.report.svg import figure_svg, swatch
from taskuq.report.tables import Table, figure_table, shown
from taskuq.words import Words

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("statistics.js", "model.js", "pictures.js", "play.js", "explorer.js")
MOST_ROWS = 400
# A table with more rows than this scrolls by itself.
TALL = 8
# How a text about cases and groups is said.
Say = Callable[[str], str]


def write_page(contents: Contents) -> Path:
    """Write the page of a run, and return its path."""
    text = page_text(contents)
    target = contents.folder.path / "report.html"
    with whole_file(target) as partial:
        partial.write_text(text, encoding="utf-8")
    return target


def page_text(contents: Contents) -> str:
    """Return the page of a run as HTML."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(ASSETS), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["explained"] = explained
    return environment.get_template("report.html").render(**_context(contents))


def _by_group(words: Words) -> str:
    return f"{words.title('group')} by {words.group}"


def _grid(table: Table, say: Say = str) -> dict[str, Any]:
    """A table as the template wants it: cells as text, and which columns hold words."""
    return {
        "name": slug(table.name),
        "label": f"Table: {table.name}",
        "caption": say(table.caption),
        "columns": [say(column) for column in table.columns],
        "rows": [[shown(cell) for cell in row] for row in table.rows[:MOST_ROWS]],
        "text": [
            k
            for k in range(len(table.columns))
            if k == 0 or any(isinstance(row[k], str) for row in table.rows[:50])
        ],
        "left_out": max(0, len(table.rows) - MOST_ROWS),
        "tall": len(table.rows) > TALL,
    }


def _plate(figure: Figure, used: set[str], short: str, say: Say = str) -> dict[str, Any]:
    identity = f"fig-{slug(figure.name)}"
    while identity in used:
        identity += "-again"
    used.add(identity)
    figure = replace(
        figure,
        caption=say(figure.caption),
        x_label=say(figure.x_label),
        y_label=say(figure.y_label),
    )
    several = len(figure.series) > 1 and not figure.is_strip
    return {
        "id": identity,
        "name": figure.name,
        "title": say(short),
        "caption": figure.caption,
        "legend": [(swatch(s, k), s.name) for k, s in enumerate(figure.series)] if several else [],
        "svg": figure_svg(figure),
        "table": _grid(figure_table(figure)),
    }


def _context(contents: Contents) -> dict[str, Any]:
    """All that the template names."""
    used: set[str] = set()
    say = contents.words.said
    figures = []
    for heading, under in contents.figures.items():
        plates = [_plate(f, used, contents.titles[f.name], say) for f in under]
        figures.append((heading, say(contents.readings[heading]), plates))
    experiments = _experiments(contents, used)
    explorer, notes = _explorer(contents)
    sections = [("answer", "The answer")]
    sections += [("explore", "Look for yourself")] if explorer else []
    sections += [("results", "Results")]
    sections += [("claims", "Claims, one by one")] if experiments else []
    sections += [("guarantee", "Intended use and limits"), ("figures", "Figures"),
                 ("patients", _by_group(contents.words)), ("failures", "Failures"),
                 ("reproduce", "Reproduce"), ("glossary", "Glossary")]  # fmt: skip
    scripts = [(ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return {
        **_said(contents),
        **_results(contents),
        **_failures(contents, notes),
        "explorer": explorer,
        "experiments": experiments,
        "figures": figures,
        "sections": sections,
        "css": Markup((ASSETS / "report.css").read_text(encoding="utf-8")),
        "scripts": [Markup(script) for script in scripts],
        "script_hashes": Markup(" ".join(map(_hash, scripts)) if explorer else "'none'"),
    }


def _said(contents: Contents) -> dict[str, Any]:
    """What was run, what is promised, and how to do it again."""
    run = contents.folder.run
    return {
        "title": str(run.get("title") or "A run without a title"),
        "eyebrow": "Intervals for what the task would have said about the true image",
        "answer": answer_of(contents),
        "unpromised": UNPROMISED,
        "scan": None
        if contents.scan is None
        else scan_picture(contents.scan, contents.folder.explorer, contents.words),
        "promises": contents.promises[1:],
        "card": card(contents),
        "limits": limits(contents),
        "glossary": glossary(),
        "facts": facts(contents),
        "networks": [
            {"name": str(n.get("name") or "without a name"),
             "facts": [(str(k), _words(v)) for k, v in n.items() if k != "name"]}
            for n in run.get("networks") or ()
            if isinstance(n, Mapping)
        ],
        "commands": [str(c) for c in run.get("commands") or ()],
        "revision": str(run["revision"]) if run.get("revision") else None,
        "folder_name": contents.folder.path.resolve().name or "RUN_DIR",
        "version": taskuq.__version__,
        "words": contents.words,
    }  # fmt: skip


def _results(contents: Contents) -> dict[str, Any]:
    """The tables of results, those of policies first, and the run patient by patient."""
    key, sentence = key_table(contents)
    policies = [t for t in contents.tables if t.name in contents.simulations]
    by_task = task_table(contents.cases)
    policies += [by_task] if by_task else []
    others = [t for t in contents.tables if t.name not in contents.simulations]
    table = contents.folder.table
    patients = patient_table(table, contents.cases)
    say = contents.words.said
    return {
        "key_table": _grid(key, say) if key else None,
        "key_sentence": sentence,
        "tables": [_grid(t, say) for t in policies],
        "more_tables": [_grid(t, say) for t in others],
        "patients": _grid(patients, say) if patients else None,
        "patients_note": "The table has no groups, so there is nothing to sum up by "
        f"{contents.words.group}."
        if table is not None
        else "No table of task outputs is stored with this run.",
    }


def _failures(contents: Contents, notes: list[str]) -> dict[str, Any]:
    """What failed, and what the page leaves out."""
    tables, sentence = failure_tables(contents)
    folder = contents.folder
    return {
        "failures": [_grid(t, contents.words.said) for t in tables],
        "failures_sentence": contents.words.said(sentence),
        "notes": [
            *contents.notes,
            *notes,
            *(f"{path} is {schema}, which has no place on this page."
              for path, schema in folder.others),
            *(f"{path} could not be read: {reason}" for path, reason in folder.unreadable),
        ],
    }  # fmt: skip


def _experiments(contents: Contents, used: set[str]) -> list[dict[str, Any]]:
    found = []
    for identity, e in zip(experiment_ids(contents), contents.experiments, strict=True):
        first = next((t for t in e.tables if t.name == SUMMARY), next(iter(e.tables), None))
        # Somebody else's experiment has words of its own.
        say = contents.words.said if e.name in STORY else str
        found.append(
            {
                "id": identity,
                "title": e.title,
                "claim": say(e.claim),
                "finding": say(e.finding),
                "verdict": e.verdict or "measured",
                "is_appendix": e.name in APPENDICES,
                "figures": [_plate(f, used, title_of(f.name), say) for f in e.figures],
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
    notes = []
    if payload["shrink"] > 1:
        notes.append(
            f"The explorer's pictures are {payload['shrink']} times smaller than the stored ones, "
            f"so that the page stays small; store fewer {contents.words.many('case')} or samples "
            "to see them whole."
        )
    # Inside a script element only "<" could end it.
    text = json.dumps(payload, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    has = {"has_point": found.point_outputs, "has_estimate": found.estimate}
    return {"json": Markup(text), **{k: v is not None for k, v in has.items()}}, notes


def _hash(script: str) -> str:
    """Name a script so that the page runs it and no other."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
