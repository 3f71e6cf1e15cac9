"""taskuq table: task outputs made elsewhere become a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from taskuq.commands.arguments import load_table
from taskuq.commands.terminal import say, show


def table(
    source: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    range: Annotated[str | None, Parameter(name="--range", allow_leading_hyphen=True)] = None,
) -> None:
    """Make a table of task outputs that were made elsewhere.

    A CSV or Parquet file has one row for each case and round: case, acceleration, target, group,
    label, and output_0, output_1 and so on; or one row for each sample, with sample and output.

    Arguments:
        source: A .csv, .parquet or .npz file.
        output: The table to write: a folder, or an .npz file.
        range: The task's range, low,high; outputs and targets must lie in it.
    """
    loaded = load_table(source, range)
    missing = f", {len(loaded.missing)} cases lack a round" if loaded.missing else ""
    say(f"{loaded}{missing}")
    show(str(loaded.save(output)))
