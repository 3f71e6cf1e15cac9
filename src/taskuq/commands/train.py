"""taskuq train: networks from their configuration files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

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


def simclr(
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
    """Pre-train the classifier's backbone without labels.

    Only training patients are learnt from; which patients those are is stored with the first
    training and the same for all. Started again after it was stopped, a training goes on behind its
    last whole epoch.

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
    from taskuq.task.train import read_task_settings, train
    from taskuq.training.fit import Machine, is_first_process

    settings = read_task_settings("simclr", config)
    machine = Machine(accelerator, devices, nodes, progress)
    path = train(settings, _folder(config, output), machine=machine, fresh=fresh)
    if is_first_process():
        print(path)  # noqa: T201 - the path is the command's answer


def classifier(
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
    """Train the task network, with adversarial images where the configuration says so.

    Weights are chosen by tuning patients; the table that follows is also about patients that
    nothing was chosen by. The folder receives quality.json and the ROC and reliability curves too.
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
    from taskuq.task.train import open_parts, read_task_settings, train
    from taskuq.training.fit import Machine, is_first_process

    settings = read_task_settings("classifier", config)
    parts = open_parts(settings)
    machine = Machine(accelerator, devices, nodes, progress)
    folder = _folder(config, output)
    path = train(settings, folder, machine=machine, fresh=fresh, parts=parts[:2])
    if is_first_process():
        _judge(settings, path, parts)
        print(path)  # noqa: T201 - the path is the command's answer


def _judge(settings: Any, path: Path, parts: Any) -> None:
    from taskuq.files import write_json
    from taskuq.report.ink import draw_record
    from taskuq.task.quality import judge_trained, table

    record = judge_trained(settings, path, parts)
    write_json(path.parent / "quality.json", record)
    draw_record(record, path.parent, endings=(".svg",))
    for line in table(record):
        print(line, file=sys.stderr)  # noqa: T201 - what a person wants to know, beside the answer


def _folder(config: Path, output: Path | None) -> Path:
    return output or Path("runs") / f"{config.parent.name}-{config.stem}".lstrip("-.")


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

    machine = Machine(accelerator, devices, nodes, progress)
    path = train_from(kind, config, _folder(config, output), machine=machine, fresh=fresh)
    if is_first_process():
        print(path)  # noqa: T201 - the path is the command's answer
