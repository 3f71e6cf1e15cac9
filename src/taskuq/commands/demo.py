"""taskuq demo and taskuq report: the embedded experiment, and the page of any run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from taskuq.commands.terminal import say, show


def demo(
    *,
    fast: bool = False,
    seed: int = 0,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("runs/demo"),
) -> None:
    """Scan synthetic patients until the answer is certain enough, judge everything, write a page.

    Measures new patients of the embedded atlas round by round, draws posterior samples, runs the
    classifier and lets a calibrated policy decide when to stop; then repeats the paper's evaluation
    on the stored table of the package.

    Arguments:
        fast: Fewer slices and fewer random splits.
        seed: The seed of samples and splits.
        output: The folder for tables, records and the page.
    """
    from taskuq.runs.demo import DemoSettings, run_demo

    settings = DemoSettings.fast(seed) if fast else DemoSettings(seed=seed)
    page = run_demo(settings, output, tell=say)
    say("Open the page in a browser; its explorer shows every image and recomputes intervals.")
    show(str(page))


def report(run_dir: Path, /, *, export: bool = False) -> None:
    """Build report.html from the results stored in a run's folder.

    Arguments:
        run_dir: The folder of the run.
        export: Also write tables (CSV, JSON, LaTeX), figures (SVG, PNG, PDF) and intervals.csv.
    """
    from taskuq.runs.reports import write_report

    page = write_report(run_dir)
    if export:
        from taskuq.runs.reports import export as write_exports

        folder = write_exports(run_dir)
        say(f"{folder}: tables and numbers; {folder.parent / 'figures'}: drawings")
    show(str(page))
