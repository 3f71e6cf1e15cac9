"""The folder of a training: whose it is, and whether there is anything to go on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from taskuq.errors import InputError
from taskuq.files import read_json, whole_file, write_json
from taskuq.settings import read_toml, toml_text

# The state from which a training goes on, and what says that it has ended.
RESUME = "resume.safetensors"
FINISHED, SCHEMA = "finished.json", "taskuq.finished/1"


def begin(folder: Path, settings: dict[str, Any], *, fresh: bool) -> Path | None:
    """Return where to go on from, if anywhere; a folder of something else is refused.

    Arguments:
        folder: Where the training leaves its files; it keeps the configuration from now on.
        settings: The whole configuration, with the table ``trial`` where it is one.
        fresh: Whether to begin again and overwrite what is there.
    """
    state, written = folder / RESUME, folder / "config.toml"
    there = read_toml(written) if written.exists() and not fresh else None
    if there is not None and "trial" in there and "trial" not in settings:
        raise InputError(
            f"{folder} holds a trial of {there['trial']['steps']} steps; give another folder, or "
            "--fresh to train there",
            code="file.exists",
        )
    if there is not None and "trial" in settings and "trial" not in there:
        raise InputError(
            f"{folder} holds a training; give a trial another folder, or --fresh to overwrite it",
            code="file.exists",
        )
    if fresh or "trial" in settings:
        for old in (state, written, folder / FINISHED):
            old.unlink(missing_ok=True)
    elif there is not None and settings and there != settings:
        raise InputError(
            f"{folder} holds a training of another configuration ({_difference(there, settings)}"
            "); give another folder, or --fresh to begin again",
            code="resume.mismatch",
        )
    with whole_file(written) as partial:
        partial.write_text(toml_text(settings), encoding="utf-8")
    return state if state.exists() else None


def finish(folder: Path, epochs: int) -> None:
    """Say in a training's folder that it has ended, with its best weights there.

    A state to go on from is several times as large as the weights. Whoever takes a training along
    to another machine needs no state of one that has ended.

    Arguments:
        folder: The folder of the training.
        epochs: How many epochs were asked for.
    """
    write_json(folder / FINISHED, {"schema": SCHEMA, "epochs": epochs})


def is_finished(folder: Path, epochs: int) -> bool:
    """Whether a training has ended that was asked for so many epochs.

    Arguments:
        folder: The folder of the training.
        epochs: How many epochs are asked for now.
    """
    path = folder / FINISHED
    return path.exists() and bool(read_json(path, SCHEMA)["epochs"] == epochs)


def _difference(there: dict[str, Any], settings: dict[str, Any]) -> str:
    old, new = (_flat(table) for table in (there, settings))
    changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    return ", ".join(f"{key}: {old.get(key)} there, {new.get(key)} here" for key in changed[:3])


def _flat(table: dict[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{path}{key}.") if isinstance(value, dict) else {path + key: value}
    return flat
