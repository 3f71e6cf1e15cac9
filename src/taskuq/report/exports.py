"""Everything of a run that somebody may want elsewhere: tables, figures, intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from taskuq.files import whole_file, write_json
from taskuq.report.cases import interval_table, patient_table, task_table
from taskuq.report.contents import Contents, slug
from taskuq.report.figure import drawable
from taskuq.report.ink import draw_all
from taskuq.report.sentences import key_table
from taskuq.report.tables import Table, figure_table, latex_table, write_csv

ENDINGS = (".svg", ".png", ".pdf")


def write_exports(contents: Contents, endings: Sequence[str] = ENDINGS) -> Path:
    """Write a run's results as CSV, JSON and LaTeX, its figures, and its intervals.

    ``exports/`` gets one ``.csv`` and one ``.tex`` for each table, one ``.csv`` for the numbers of
    each figure and ``results.json`` with all of it; ``figures/`` gets the drawings; and
    ``intervals.csv`` the interval of each case, where a table and a policy or bounds are stored.
    Return the folder of the exports.
    """
    folder = contents.folder
    target = folder.path / "exports"
    patients = patient_table(folder.table, contents.cases)
    found = (key_table(contents)[0], *contents.all_tables, task_table(contents.cases), patients)
    tables = [table for table in found if table is not None]
    for table in tables:
        write_csv(target / f"{table.name}.csv", table)
        with whole_file(target / f"{table.name}.tex") as partial:
            partial.write_text(latex_table(table) + "\n", encoding="utf-8")
    for figure in contents.all_figures:
        name = slug(figure.name)
        write_csv(target / f"figure-{name}.csv", figure_table(figure))
        draw_all(figure, [folder.path / "figures" / f"{name}{ending}" for ending in endings])
    write_json(target / "results.json", _results(contents, tables))
    if contents.cases:
        write_csv(folder.path / "intervals.csv", interval_table(contents.cases))
    return target


def _results(contents: Contents, tables: Sequence[Table]) -> dict[str, Any]:
    return {
        "schema": "taskuq.results/1",
        "run": drawable(contents.folder.run),
        "tables": [
            {"name": t.name, "caption": t.caption, "columns": list(t.columns),
             "rows": drawable([list(row) for row in t.rows])}
            for t in tables
        ],
        "figures": [figure.to_dict() for figure in contents.all_figures],
        "notes": list(contents.notes),
    }  # fmt: skip
