"""taskuq train: networks from their configuration files, one command for each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import Parameter

from taskuq.commands.terminal import hand_over, say, show
from taskuq.errors import InputError
from taskuq.training.networks import LISTED, NETWORKS

WHERE = "The folder for weights, logs and the state; by default runs/ and the file's name."
Folder = Annotated[Path | None, Parameter(name=["--output", "-o"], help=WHERE)]


def command(kind: str) -> Callable[..., None]:
    """The command that trains networks of a kind."""

    def start(
        config: Path,
        /,
        *,
        output: Folder = None,
        devices: int = 1,
        nodes: int = 1,
        accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto",
        fresh: bool = False,
        steps: int | None = None,
        dry_run: bool = False,
        json: Annotated[str | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
        progress: bool = True,
    ) -> None:
        """Train a network; started again after it was stopped, it goes on.

        Arguments:
            config: A TOML file; configs/ has one for each data set.
            output: The folder of weights and logs.
            devices: Processes on each node, one for each GPU.
            nodes: Nodes that take part; start the same command on each, e.g. by srun.
            accelerator: What to train on.
            fresh: Begin again and overwrite what the folder holds.
            steps: A trial: stop after so many steps and leave everything that a training leaves.
            dry_run: Take a few steps (5, or --steps), say what all will take, and write nothing.
            json: Where a dry run writes its record; '-' is stdout.
            progress: Draw a progress bar.
        """
        # torch and lightning take seconds to import: only when there is something to train.
        from taskuq.runs.training import foresee_training, train_from
        from taskuq.training.fit import PROBES, Machine, is_first_process

        machine = Machine(accelerator, devices, nodes, progress)
        folder = output or Path("runs") / f"{config.parent.name}-{config.stem}".lstrip("-.")
        if json is not None and not dry_run:
            raise InputError("--json is for --dry-run; a training writes timing.json to its folder")
        if dry_run:
            taken = PROBES if steps is None else steps
            record = foresee_training(kind, config, machine=machine, steps=taken)
            if is_first_process():
                _show_cost(record, json)
            return
        path = train_from(kind, config, folder, machine=machine, fresh=fresh, steps=steps, tell=say)
        if is_first_process():
            show(str(path))

    return start


def _show_cost(record: dict[str, Any], json: str | None) -> None:
    from taskuq.training.timing import timing_sentence

    if json != "-":
        show(f"Cases were ready after {record['prepare_s']:.3g} s.")
        show(timing_sentence(record))
    hand_over(record, json)


# The names are those of the list of networks, which extensions may make longer.
train = cyclopts.App(name="train", help="Train networks from their configuration files.")
_ABOUT = {name: line.about for lines in LISTED.values() for name, line in lines.items()}
for _kind in NETWORKS:
    train.command(command(_kind), name=_kind, help=_ABOUT.get(_kind, f"Train {_kind}."))
