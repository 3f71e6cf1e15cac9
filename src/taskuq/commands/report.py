"""taskuq report: the page of a run, rebuilt from its stored results."""

from __future__ import annotations

from pathlib import Path

from taskuq.commands.terminal import show


def report(run_dir: Path, /) -> None:
    """Build report.html from the results stored in a run's folder.

    Args:
        run_dir: The folder of the run.
    """
    from taskuq.report.page import write_report

    show(str(write_report(run_dir)))
