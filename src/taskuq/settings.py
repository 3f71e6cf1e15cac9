"""Frozen dataclasses from TOML and back, with one sentence for every mistake."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from taskuq.errors import InputError

T = TypeVar("T")


def read_toml(path: Path | str) -> dict[str, Any]:
    r"""Read a TOML file, or say why it cannot be read.

    Arguments:
        path: The file.

    Returns:
        Its tables.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.toml"
        >>> _ = path.write_text("[training]\nepochs = 3\n")
        >>> read_toml(path)
        {'training': {'epochs': 3}}
    """
    try:
        return tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML ({error}); correct that line") from None


def from_table(cls: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """Make a dataclass from a TOML table; nested dataclasses are nested tables.

    Arguments:
        cls: The dataclass.
        table: Keys are field names; what is left out takes its default.
        where: The name of the table, for messages.

    Returns:
        An instance.

    Example:
        >>> from taskuq.training.config import TrainingConfig
        >>> from_table(TrainingConfig, {"epochs": 3}).epochs
        3
        >>> from_table(TrainingConfig, {"epoch": 3})
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: epoch is not a setting; choose from ...
    """
    hints = get_type_hints(cls)
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    values = {}
    for key, value in table.items():
        name = f"{where}.{key}" if where else key
        if key not in known:
            raise InputError(f"{name} is not a setting; choose from {', '.join(known)}")
        values[key] = _convert(value, hints[key], name)
    missing = [name for name, field in known.items() if _is_required(field) and name not in values]
    if missing:
        raise InputError(f"{where or 'the file'} lacks {', '.join(missing)}; add it")
    return cls(**values)


def read_settings(layout: Any, config: Path | str) -> Any:
    r"""Read a TOML file over the defaults of its kind; tables name only what they change.

    Arguments:
        layout: A dataclass whose fields are tables and have defaults.
        config: The TOML file.

    Returns:
        An instance of ``layout``.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.toml"
        >>> _ = path.write_text("[training]\nepochs = 2\n")
        >>> from taskuq.recover.train import FlowTraining
        >>> read_settings(FlowTraining, path).training.clip  # the flow's own default stays
        1.0
    """
    defaults = to_table(layout())
    return from_table(layout, _merged(defaults, read_toml(config)))


def to_table(config: Any) -> dict[str, Any]:
    """A dataclass as a TOML table; settings that are None are left out.

    Arguments:
        config: An instance.

    Returns:
        Nested dictionaries of plain values.

    Example:
        >>> from taskuq.training.config import TrainingConfig
        >>> to_table(TrainingConfig(epochs=3))["epochs"]
        3
    """
    table = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if value is not None:
            table[field.name] = to_table(value) if is_dataclass(value) else _plain(value)
    return table


def toml_text(table: Mapping[str, Any]) -> str:
    """Write tables as TOML text, which :func:`read_toml` reads back to the same values.

    Arguments:
        table: Nested dictionaries of strings, numbers, booleans and lists of these.

    Returns:
        The text.

    Example:
        >>> print(toml_text({"kind": "flow", "network": {"coils": 8, "rates": [16, 8]}}))
        kind = "flow"
        <BLANKLINE>
        [network]
        coils = 8
        rates = [16, 8]
        <BLANKLINE>
    """
    return "\n".join(_lines(table, ())).lstrip("\n") + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {k: v for k, v in table.items() if not isinstance(v, Mapping)}
    lines = [f"\n[{'.'.join(path)}]"] if path and (plain or not table) else []
    lines += [f"{_key(key)} = {_text(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _lines(value, (*path, _key(key)))
    return lines


def _key(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() else json.dumps(key)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(v) for v in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    # A JSON string is a TOML basic string; Python writes numbers as TOML reads them.
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _convert(value: Any, hint: Any, name: str) -> Any:
    """Check one value against its annotation; whole numbers pass as floats, strings as paths."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (hint,) = (a for a in arguments if a is not NoneType)
        return _convert(value, hint, name)
    if is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise InputError(f"{name} is {value!r}; make it a table, [{name}]")
        return from_table(hint, value, name)
    if origin is Literal:
        if value not in arguments:
            raise InputError(f"{name} is {value!r}; choose from {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise InputError(f"{name} is {value!r}; give a list")
        return tuple(_convert(v, arguments[0], name) for v in value)
    if hint is float and type(value) is int:
        return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    # type(), not isinstance(): true is no number here.
    if type(value) is not hint:
        raise InputError(f"{name} is {value!r}; give {_NAMES.get(hint, hint)}")
    return value


_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _merged(defaults: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    merged = dict(defaults)
    for key, value in table.items():
        both = isinstance(value, dict) and isinstance(defaults.get(key), dict)
        merged[key] = _merged(defaults[key], value) if both else value
    return merged
