"""taskuq train: networks from their configuration files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Folder = Annotated[Path | None, Parameter(name=["--output", "-o"])]


def varnet(
    config: Path,
    /,
    *,
    output: Folder = None,
    devices: int = 1,
    nodes: int = 1,
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto",
    fresh: bool = False,
    progress: bool = True,
) -> None:
    """Train the variational network, a point estimate of the image.

    Started again after it was stopped, a training goes on behind its last whole epoch.

    Parameters
    ----------
    config
        A TOML file; configs/ has one for each data set.
    output
        The folder for weights, logs and the state; by default runs/ and the file's name.
    devices
        Processes on each node, one for each GPU.
    nodes
        How many nodes take part; start the same command on each.
    accelerator
        What to train on.
    fresh
        Begin again and overwrite what the folder holds.
    progress
        Draw a progress bar.
    """
    _train("varnet", config, output, devices, nodes, accelerator, fresh, progress)


def flow(
    config: Path,
    /,
    *,
    output: Folder = None,
    devices: int = 1,
    nodes: int = 1,
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto",
    fresh: bool = False,
    progress: bool = True,
) -> None:
    """Train the conditional flow, which draws posterior samples.

    Started again after it was stopped, a training goes on behind its last whole epoch.

    Parameters
    ----------
    config
        A TOML file; configs/ has one for each data set.
    output
        The folder for weights, logs and the state; by default runs/ and the file's name.
    devices
        Processes on each node, one for each GPU.
    nodes
        How many nodes take part; start the same command on each.
    accelerator
        What to train on.
    fresh
        Begin again and overwrite what the folder holds.
    progress
        Draw a progress bar.
    """
    _train("flow", config, output, devices, nodes, accelerator, fresh, progress)


def _train(
    kind: Literal["flow", "varnet"],
    config: Path,
    output: Path | None,
    devices: int,
    nodes: int,
    accelerator: str,
    fresh: bool,
    progress: bool,
) -> None:
    # torch and lightning take seconds to import: only when there is something to train.
    from taskuq.recover.train import train_from
    from taskuq.training.fit import Machine, is_first_process

    folder = output or Path("runs") / f"{config.parent.name}-{config.stem}".lstrip("-.")
    machine = Machine(accelerator, devices, nodes, progress)
    path = train_from(kind, config, folder, machine=machine, fresh=fresh)
    if is_first_process():
        print(path)  # noqa: T201 - the path is the command's answer
