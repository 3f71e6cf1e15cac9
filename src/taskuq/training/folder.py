"""Folder of a training: its configuration, its state and its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from taskuq.errors import InputError
from taskuq.files import read_json, whole_file, write_json
from taskuq.settings import read_toml, toml_text

# The state to resume from, and the mark of a training that has ended.
RESUME = "resume.safetensors"
FINISHED, SCHEMA = "finished.json", "taskuq.finished/1"


def begin(folder: Path, settings: dict[str, Any], *, fresh: bool) -> Path | None:
    """Return the state to resume from, if any; a folder of another training is refused."""
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
    """Mark a training as ended, with its best weights in its folder.

    A state to resume from is several times as large as the weights. A training
    that has ended can move to another machine without it.
    """
    write_json(folder / FINISHED, {"schema": SCHEMA, "epochs": epochs})


def is_finished(folder: Path, epochs: int) -> bool:
    """Return True if a training of so many epochs has ended."""
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
