"""Tables as one .npz file: what people bring who have arrays from elsewhere."""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path

import numpy as np

from taskuq.errors import InputError, first_line
from taskuq.files import range_to_json, whole_file
from taskuq.outputs.table import TaskOutputs

ARRAYS = ("outputs", "targets", "accelerations", "group", "label", "case")
ATTRIBUTES = "attributes"


def write_npz(table: TaskOutputs, path: Path) -> Path:
    """Write a table as compressed arrays of the names in the class, and its attributes as JSON."""
    arrays = {name: getattr(table, name) for name in ARRAYS if getattr(table, name) is not None}
    for name in ("accelerations", "targets"):
        if np.isnan(arrays[name]).any():  # unknown
            del arrays[name]
    attributes = {
        "task_names": table.task_names,
        "task_range": range_to_json(table.task_range),
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
    try:
        with zipfile.ZipFile(path) as archive:
            refuse_lying_headers(archive, path)
        with np.load(path, allow_pickle=False) as archive:
            names = set(archive.files)
            if "outputs" not in names:
                raise InputError(
                    f"{path} has no array outputs; it holds {', '.join(sorted(names)) or 'nothing'}"
                )
            arrays = {name: archive[name] for name in ARRAYS if name in names}
            text = str(archive[ATTRIBUTES]) if ATTRIBUTES in names else "{}"
            attributes = json.loads(text)
    except InputError:
        raise
    except Exception as error:  # zlib, zipfile and NumPy each have several for damaged bytes
        raise InputError(
            f"{path} cannot be read as a table ({first_line(error):.80}); it may be truncated, "
            "or hold Python objects instead of arrays"
        ) from None
    if not isinstance(attributes, dict):
        raise InputError(f"{path} has attributes that are not a table's; write it again")
    range_ = attributes.get("task_range")
    return TaskOutputs(
        arrays.pop("outputs"),
        arrays.pop("targets", None),
        arrays.pop("accelerations", None),
        **arrays,
        task_names=attributes.get("task_names"),
        task_range=range_,
        provenance=attributes.get("provenance"),
        missing=attributes.get("missing", ()),
    )


def refuse_lying_headers(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse an array whose header claims another size than the file holds, before reading it."""
    for member in archive.infolist():
        if not member.filename.endswith(".npy"):
            continue
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }.get(version)
            if read is None:
                continue
            shape, _, dtype = read(file)
            claimed = math.prod(shape) * dtype.itemsize
            held = member.file_size - file.tell()
        if claimed != held and not dtype.hasobject:
            raise InputError(
                f"{path}: array {member.filename[:-4]} claims shape {shape} of {dtype} "
                f"({claimed} bytes) but holds {held} bytes; the file is damaged or forged"
            )
