"""Everything of a run that somebody may want elsewhere: tables, figures, intervals."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from taskuq.files import whole_file, write_json
from taskuq.report.contents import Contents, gather, slug
from taskuq.report.folder import RunFolder, read_folder
from taskuq.report.ink import draw_all
from taskuq.report.latex import latex_table
from taskuq.report.patients import patient_table
from taskuq.report.records import plain
from taskuq.report.reports import CaseReport, case_reports
from taskuq.report.sentences import key_table
from taskuq.report.spreadsheet import write_csv
from taskuq.report.tables import Table, figure_table

ENDINGS = (".svg", ".png", ".pdf")
INTERVAL_COLUMNS = (
    "case", "group", "label", "task", "source", "promise", "acceleration", "lower", "upper",
    "width", "target", "covered",
)  # fmt: skip


def export(run_dir: str | os.PathLike[str], endings: Sequence[str] = ENDINGS) -> Path:
    """Write a run's results as CSV, JSON and LaTeX, its figures, and its intervals.

    ``exports/`` gets one ``.csv`` and one ``.tex`` for each table, one ``.csv`` for the numbers of
    each figure and ``results.json`` with all of it; ``figures/`` gets the drawings; and
    ``intervals.csv`` the interval of each case, where a table and a policy or bounds are stored.

    Arguments:
        run_dir: The folder of the run.
        endings: Which kinds of drawings to make: '.svg', '.png', '.pdf'.

    Returns:
        The folder of the exports.
    """
    folder = read_folder(Path(run_dir))
    contents = gather(folder)
    reports, _ = case_reports(folder)
    target = folder.path / "exports"
    tables = list(_tables(folder, contents, reports))
    for table in tables:
        write_csv(target / f"{table.name}.csv", table.columns, table.rows)
        _write(target / f"{table.name}.tex", latex_table(table) + "\n")
    for figure in contents.all_figures:
        name = slug(figure.name)
        numbers = figure_table(figure)
        write_csv(target / f"figure-{name}.csv", numbers.columns, numbers.rows)
        draw_all(figure, [folder.path / "figures" / f"{name}{ending}" for ending in endings])
    write_json(target / "results.json", _results(folder, contents, tables))
    if reports:
        write_intervals(folder.path / "intervals.csv", reports)
    return target


def write_intervals(path: Path, reports: Sequence[CaseReport]) -> Path:
    """Write the interval of each case for a spreadsheet.

    Arguments:
        path: Where to write.
        reports: The reports.
    """
    return write_csv(
        path,
        INTERVAL_COLUMNS,
        (
            (
                r.case, r.group, r.label, r.task, r.source, r.promise, r.acceleration, r.lower,
                r.upper, r.width, r.target, r.covered,
            )
            for r in reports
        ),
    )  # fmt: skip


def _tables(folder: RunFolder, contents: Contents, reports: list[CaseReport]) -> Iterator[Table]:
    key, _ = key_table(folder, contents)
    if key is not None:
        yield key
    yield from contents.all_tables
    if folder.table is not None:
        patients = patient_table(folder.table, reports)
        if patients is not None:
            yield patients


def _results(folder: RunFolder, contents: Contents, tables: Sequence[Table]) -> dict[str, Any]:
    return {
        "schema": "taskuq.results/1",
        "run": plain(folder.run),
        "tables": [
            {"name": t.name, "caption": t.caption, "columns": list(t.columns),
             "rows": plain([list(row) for row in t.rows])}
            for t in tables
        ],
        "figures": [figure.to_dict() for figure in contents.all_figures],
        "notes": list(contents.notes),
    }  # fmt: skip


def _write(path: Path, text: str) -> None:
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")
