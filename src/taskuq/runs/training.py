"""A training from a configuration file, and what is made known of the network it leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from taskuq.files import write_json
from taskuq.settings import read_settings
from taskuq.training.fit import Machine, is_first_process, train
from taskuq.training.networks import NETWORKS


def train_from(
    kind: str,
    config: Path | str,
    folder: Path | str,
    *,
    machine: Machine | None = None,
    fresh: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Path:
    """Train the network that a TOML file describes, and judge it where its kind is judged.

    Arguments:
        kind: A name of :data:`taskuq.training.networks.NETWORKS`.
        config: The TOML file.
        folder: Where weights, logs and the state go.
        machine: On what to train.
        fresh: Whether to begin again and overwrite what is there.
        tell: Called with the lines of a table of how good the network is.

    Example:
        >>> train_from("flow", "absent.toml", "runs/flow")
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: cannot read absent.toml: No such file or directory
    """
    network, machine = NETWORKS[kind], machine or Machine()
    settings = read_settings(network.training, config)
    cases = settings.prepare(machine)
    path = train(settings, folder, machine=machine, fresh=fresh, cases=cases)
    if network.judge is not None and is_first_process():
        from taskuq.report.ink import draw_record

        record = network.judge(settings, path, cases)
        write_json(path.parent / "quality.json", record)
        draw_record(record, path.parent, endings=(".svg",))
        for line in [] if network.table is None else network.table(record):
            tell(line)
    return path
