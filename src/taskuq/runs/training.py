"""A training from a configuration file, and what is made known of the network it leaves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from taskuq.files import write_json
from taskuq.settings import read_settings
from taskuq.training.fit import PROBES, Machine, foresee, is_first_process, train
from taskuq.training.networks import NETWORKS
from taskuq.training.seeds import own_randomness
from taskuq.training.stages import Staged, Storing


def train_from(
    kind: str,
    config: Path | str,
    folder: Path | str,
    *,
    machine: Machine | None = None,
    fresh: bool = False,
    steps: int | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Path:
    """Train the network that a TOML file describes, and judge it where its kind is judged.

    Arguments:
        kind: A name of :data:`taskuq.training.networks.NETWORKS`.
        config: The TOML file.
        folder: Where weights, logs and the state go.
        machine: On what to train.
        fresh: Whether to begin again and overwrite what is there.
        steps: After how many steps a trial stops; None trains all epochs.
        tell: Called with what a trial took, and a table of how good the network is.

    Example:
        >>> train_from("flow", "absent.toml", "runs/flow")
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: cannot read absent.toml: No such file or directory
    """
    network, machine = NETWORKS[kind], machine or Machine()
    settings = read_settings(network.training, config)
    cases = settings.prepare(machine)
    path = train(settings, folder, machine=machine, fresh=fresh, cases=cases, steps=steps)
    if steps is not None and is_first_process():
        from taskuq.training.timing import read_timing, timing_sentence

        tell(timing_sentence(read_timing(path.parent)))
    if network.judge is not None and is_first_process():
        from taskuq.report.figures import draw_record

        record = network.judge(settings, path, cases)
        write_json(path.parent / "quality.json", record)
        draw_record(record, path.parent, endings=(".svg",))
        for line in [] if network.table is None else network.table(record):
            tell(line)
    return path


def foresee_training(
    kind: str, config: Path | str, *, machine: Machine | None = None, steps: int = PROBES
) -> dict[str, Any]:
    """Take a few steps of the training that a TOML file describes; nothing is kept.

    Arguments:
        kind: A name of :data:`taskuq.training.networks.NETWORKS`.
        config: The TOML file.
        machine: On what to train.
        steps: How many steps to take, of each part.

    Returns:
        What they took and what all will take, as ``timing.json`` of a training has it, and the
        seconds ``prepare_s`` until cases were there.
    """
    machine = machine or Machine()
    settings = read_settings(NETWORKS[kind].training, config)
    start = time.perf_counter()
    data = settings.open_unstored() if isinstance(settings, Storing) else None
    cases = settings.prepare(machine, data)
    prepared = time.perf_counter() - start
    with TemporaryDirectory() as folder:
        if isinstance(settings, Staged):
            there = Path(folder)
            cases = settings.stages(cases, there, machine=machine, fresh=False, steps=steps)
            _hand_over(there)
        earlier = _one_after_another(Path(folder))
        with own_randomness(settings.training.seed):
            recipe = settings.recipe(cases, machine)
    how = settings.training
    record = foresee(recipe, cases[0], cases[1], how, machine=machine, steps=steps, earlier=earlier)
    return {**record, "prepare_s": prepared}


def _hand_over(folder: Path) -> None:
    """Give all processes the files that the first one, which alone writes, has in its folder."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return
    files = {}
    if is_first_process():
        parts = (path for path in folder.rglob("*") if path.is_file())
        files = {str(path.relative_to(folder)): path.read_bytes() for path in parts}
    handed = [files]
    distributed.broadcast_object_list(handed)
    for name, content in handed[0].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _one_after_another(folder: Path) -> dict[str, Any] | None:
    """What the trainings in the folders of a folder take, one before the other."""
    from taskuq.training.timing import projected_hours, read_timing

    earlier: dict[str, Any] | None = None
    for part in sorted(path for path in folder.iterdir() if path.is_dir()):
        record = {**read_timing(part), "before": earlier}
        earlier = {**record, "projected_hours": projected_hours(record)}
    return earlier
