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
        engine: Literal["local", "slurm"] = "local",
        slurm: Annotated[list[str] | None, Parameter(name="--slurm", negative=())] = None,
        detach: Annotated[bool, Parameter(negative=())] = False,
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
            nodes: How many nodes take part; without SLURM, start the same command on each.
            accelerator: What to train on.
            engine: Train here (local), or in a SLURM job (slurm) that is waited for.
            slurm: What SLURM is asked for, as submitit names it, e.g. slurm_partition=gpu;
                repeatable. A job has a GPU for each device and four hours (timeout_min=240).
            detach: Do not wait for the job; the same command waits for it, and goes on after it.
            fresh: Begin again and overwrite what the folder holds.
            steps: A trial: stop after so many steps and leave everything that a training leaves.
            dry_run: Take a few steps (5, or --steps), say what all will take, and write nothing.
            json: Where a dry run writes its record; '-' is stdout.
            progress: Draw a progress bar.
        """
        # torch and lightning take seconds to import: only when there is something to train.
        from taskuq.runs.launch import LAUNCHERS
        from taskuq.training.fit import PROBES, Machine, is_first_process

        machine = Machine(accelerator, devices, nodes, progress)
        where = LAUNCHERS[engine](machine, tuple(slurm or ()), say, detach)
        folder = output or Path("runs") / f"{config.parent.name}-{config.stem}".lstrip("-.")
        if json is not None and not dry_run:
            raise InputError("--json is for --dry-run; a training writes timing.json to its folder")
        if dry_run:
            taken = PROBES if steps is None else steps
            record = where.foresee(kind, config, folder, steps=taken)
            if is_first_process():
                _show_cost(record, json)
            return
        path = where.train(kind, config, folder, fresh=fresh, steps=steps)
        if is_first_process() and path is not None:
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
