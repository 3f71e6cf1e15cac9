"""taskuq rehearse: the published experiment, a few steps of everything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from taskuq.commands.terminal import say, show


def rehearse(
    configs: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("runs/rehearsal"),
    steps: int = 3,
    volumes: int = 5,
    data: Path | None = None,
    toy: bool = False,
    fresh: bool = False,
    plan: bool = False,
) -> None:
    """Run every command of docs/fastmri.md at its real size, a few steps each; say what all take.

    A command that fails does not end the rehearsal. Started again, it keeps what has passed.

    Arguments:
        configs: The folder of configurations, configs/fastmri-knee.
        output: The folder for the record, the logs and the working folder.
        steps: Steps of each training.
        volumes: Training volumes, and validation volumes, to make or to link.
        data: Your own files, laid out as data/ of the document; they are linked and only read.
            Without it, volumes of the same layout are made.
        toy: Small images and networks: the machinery without a GPU.
        fresh: Throw away an earlier rehearsal.
        plan: Run nothing; print the table and the plans of the rehearsal that is there.
    """
    from taskuq.files import read_json
    from taskuq.runs.rehearsal.folder import Settings
    from taskuq.runs.rehearsal.run import PAGE, RECORD, SCHEMA, Rehearsal, closing
    from taskuq.runs.rehearsal.tables import rehearsal_markdown

    if plan:
        show(rehearsal_markdown(read_json(output / RECORD, SCHEMA)))
        return
    settings = Settings(configs, steps, volumes, data, toy)
    record = Rehearsal(output, settings, say).run(fresh=fresh)
    say("\n" + rehearsal_markdown(record))
    say(closing(record))
    show(str(output / PAGE))
    if record["failed"]:
        sys.exit(1)
