"""taskuq report: the page of any run."""

from __future__ import annotations

from pathlib import Path

from taskuq.commands.terminal import say, show


def report(run_dir: Path, /, *, export: bool = False) -> None:
    """Build report.html from the results stored in a run's folder.

    Arguments:
        run_dir: The folder of the run.
        export: Also write tables (CSV, JSON, LaTeX), figures (SVG, PNG, PDF) and intervals.csv.
    """
    from taskuq.runs.reports import answer_lines, write_report

    page = write_report(run_dir)
    for line in answer_lines(run_dir):
        say(line)
    if export:
        from taskuq.runs.reports import export as write_exports

        folder = write_exports(run_dir)
        say(f"{folder}: tables and numbers; {folder.parent / 'figures'}: drawings")
    show(str(page))
