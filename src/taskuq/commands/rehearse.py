"""taskuq rehearse: the published experiment, a few steps of everything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from taskuq.commands.terminal import say, show


def rehearse(
    configs: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("runs/rehearsal"),
    steps: Annotated[int, Parameter(validator=Number(gte=2))] = 3,
    volumes: Annotated[int, Parameter(validator=Number(gte=4, lte=10))] = 5,
    data: Path | None = None,
    toy: bool = False,
    fresh: bool = False,
) -> None:
    """Run every command of docs/fastmri.md at its real size, a few steps each; project the hours.

    A command that fails does not end the rehearsal. Started again, it keeps what has passed.

    Arguments:
        configs: The folder of configurations, configs/fastmri-knee.
        output: The folder for the record, the logs and the working folder.
        steps: Steps of each training, at least 2: the first compiles.
        volumes: Training volumes, and validation volumes, to make or to link.
        data: Your own files, laid out as data/ of the document; they are linked and only read.
            Without it, volumes of the same layout are made.
        toy: Small images and networks: the machinery without a GPU.
        fresh: Throw away an earlier rehearsal.
    """
    from taskuq.runs.rehearse import PAGE, Rehearsal, rehearsal_markdown

    rehearsal = Rehearsal(output, configs, steps, volumes, data, toy, say)
    record = rehearsal.run(fresh=fresh)
    say("\n" + rehearsal_markdown(record))
    show(str(output / PAGE))
    if record["failed"]:
        sys.exit(1)
