"""The page of a run: one HTML file that opens from disk."""

from __future__ import annotations

import os
from pathlib import Path

from taskuq.errors import InputError
from taskuq.files import whole_file


def write_report(run_dir: str | os.PathLike[str]) -> Path:
    """Build the page of a run from its stored results, and return its path.

    Arguments:
        run_dir: The folder of the run; records are recognised wherever they lie in it.
    """
    folder = Path(run_dir)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; give the folder of a run")
    target = folder / "report.html"
    with whole_file(target) as partial:
        partial.write_text("<!doctype html><title>Report</title><p>Being written.</p>\n")
    return target
