"""Nested training state in one safetensors file: nothing in it can run when it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from taskuq.disk import reading
from taskuq.errors import InputError
from taskuq.files import whole_file

SCHEMA = "taskuq.state/1"


def save_state(state: Any, path: Path | str) -> Path:
    """Write nested dictionaries, lists and tuples of tensors and plain values.

    Tensors are stored as such, everything else as JSON in the file's header. What is neither (an
    object of some class) is refused: only pickle could store it.
    """
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    skeleton = _take_apart(state, tensors, "state")
    header = {"schema": SCHEMA, "skeleton": json.dumps(skeleton)}
    with whole_file(path) as partial:
        save_file(tensors, partial, metadata=header)
    return Path(path)


def load_state(path: Path | str) -> Any:
    """Read what :func:`save_state` wrote, on the CPU."""
    from safetensors import safe_open

    with reading(path, "a training state", "train with --fresh"):
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if header.get("schema") != SCHEMA:
            raise InputError(
                f"{path} is no training state of this version; train with --fresh",
                code="file.schema",
            )
        return _put_together(json.loads(header["skeleton"]), tensors)


def _take_apart(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """Plain JSON, with {"kind": [...]} for what JSON does not have."""
    if isinstance(value, Tensor):
        # Two names of one storage would be refused; a copy is small.
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        pairs = [
            [_take_apart(k, tensors, f"{name}.key"), _take_apart(v, tensors, f"{name}.{k}")]
            for k, v in value.items()
        ]
        return {"dict": pairs}
    if isinstance(value, list | tuple):
        parts = [_take_apart(v, tensors, f"{name}.{i}") for i, v in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": parts}
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        # Exact for every float, infinities and NaN included.
        return {"float": value.hex()}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{name} is of type {type(value).__name__}, which is not plain data")


def _put_together(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "float":
        return float.fromhex(content)
    if kind == "dict":
        return {_put_together(k, tensors): _put_together(v, tensors) for k, v in content}
    parts = [_put_together(v, tensors) for v in content]
    return parts if kind == "list" else tuple(parts)
