"""Tables as one .npz file: what people bring who have arrays from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from taskuq.errors import InputError
from taskuq.files import open_npz, whole_file
from taskuq.outputs.table import TaskOutputs
from taskuq.ranges import ranges_to_json

ARRAYS = ("outputs", "targets", "accelerations", "group", "label", "case", "round_names", "lines")
ATTRIBUTES = "attributes"


def write_npz(table: TaskOutputs, path: Path) -> Path:
    """Write a table as compressed arrays of the names in the class, and its attributes as JSON."""
    arrays = {name: getattr(table, name) for name in ARRAYS if getattr(table, name) is not None}
    for name in ("accelerations", "targets"):
        if np.isnan(arrays[name]).any():  # unknown
            del arrays[name]
    attributes = {
        "task_names": table.task_names,
        **ranges_to_json(table.task_ranges),
        "provenance": table.provenance,
        "missing": table.missing,
    }
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez_compressed(
            file, allow_pickle=False, **arrays, **{ATTRIBUTES: np.array(json.dumps(attributes))}
        )
    return path


def read_npz(path: Path) -> TaskOutputs:
    """Read a table from an ``.npz`` file; only ``outputs`` is required."""
    with open_npz(path, "a table") as archive:
        if "outputs" not in archive:
            raise InputError(
                f"{path} has no array outputs; it holds {', '.join(sorted(archive)) or 'nothing'}"
            )
        arrays: dict[str, Any] = {name: archive[name] for name in ARRAYS if name in archive}
        text = str(archive[ATTRIBUTES]) if ATTRIBUTES in archive else "{}"
        attributes = json.loads(text)
    if not isinstance(attributes, dict):
        raise InputError(f"{path} has attributes that are not a table's; write it again")
    return TaskOutputs(
        arrays.pop("outputs"), arrays.pop("targets", None), arrays.pop("accelerations", None),
        **arrays, task_names=attributes.get("task_names"),
        task_range=attributes.get("task_ranges") or attributes.get("task_range"),
        provenance=attributes.get("provenance"), missing=attributes.get("missing", ()),
    )  # fmt: skip
