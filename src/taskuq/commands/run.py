"""taskuq run and taskuq status: from images to the table, and how far that is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from taskuq.commands.terminal import hand_over, say, show


def run(
    config: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    device: str | None = None,
    fresh: bool = False,
    dry_run: bool = False,
) -> None:
    """Fill a table of task outputs, or go on filling it after a stop.

    Args:
        config: A TOML file that names data, measurement, recovery and task.
        output: The folder of the table.
        device: Where networks run: cpu, cuda, mps; the best there is by default.
        fresh: Throw away what the folder holds and begin again.
        dry_run: Try a few cases, say what all of them will take, and write nothing.
    """
    from taskuq.experiments.runs import estimate, open_run, read_run

    opened = open_run(read_run(config), device)
    if dry_run:
        show(estimate(opened).sentence)
        return
    table = opened.pipeline.run(
        opened.images,
        accelerations=opened.config.measure.accelerations,
        samples=opened.config.samples,
        seed=opened.config.seed,
        store=output,
        configuration=opened.configuration,
        fresh=fresh,
    )
    say(f"{table}" + (f", {len(table.missing)} cases missing" if table.missing else ""))
    show(str(output))


def status(
    table: Path,
    /,
    *,
    json: Annotated[str | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
) -> None:
    """Tell how far a run is and what failed.

    Args:
        table: The folder of a table.
        json: Write the record to this file, or to stdout for '-'.
    """
    from taskuq.pipeline import status as look

    found = look(table)
    if json != "-":
        show(
            f"{found['finished']} of {found['cases']} cases finished, {len(found['failed'])} "
            f"failed, {found['left']} left"
        )
        for case, reason in list(found["failed"].items())[:20]:
            show(f"  {case}: {reason}")
    hand_over(found, json)
