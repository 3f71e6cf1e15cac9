"""Conversion of dataclasses from and to TOML and JSON."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from taskuq._io import read_text
from taskuq._registry import Registry
from taskuq.errors import InputError, first_line

T = TypeVar("T")


@dataclass(frozen=True)
class Within:
    """Allowed range of a setting, in interval notation such as ``"(0, 1]"``."""

    text: str

    def __contains__(self, value: float) -> bool:
        low, high = map(float, self.text[1:-1].split(","))
        above = value > low if self.text[0] == "(" else value >= low
        return above and (value < high if self.text[-1] == ")" else value <= high)


# Ranges of settings; upper ends keep a typing mistake from taking all memory.
Count = Annotated[int, Within("[1, 1e6]")]
Natural = Annotated[int, Within("[0, 1e6]")]
Seed = Annotated[int, Within("[0, 9.2e18]")]
Size = Annotated[int, Within("[1, 8192]")]
Coils = Annotated[int, Within("[0, 256]")]
Channels = Annotated[int, Within("[1, 4096]")]
Depth = Annotated[int, Within("[1, 100]")]
Positive = Annotated[float, Within("(0, 1e30]")]
NonNegative = Annotated[float, Within("[0, 1e30]")]
Unit = Annotated[float, Within("[0, 1]")]
BelowOne = Annotated[float, Within("[0, 1)")]
Acceleration = Annotated[float, Within("[1, 1e6]")]


@cache
def range_of(hint: Any) -> Within | None:
    """Return the :class:`Within` in a type annotation; None if there is none."""
    return next((mark for mark in get_args(hint)[1:] if isinstance(mark, Within)), None)


def check_ranges(config: Any) -> None:
    for name, hint in _hints(cast(Any, type(config))).items():
        if isinstance(value := getattr(config, name), int | float | tuple):
            _convert(list(value) if isinstance(value, tuple) else value, hint, name, None)


def read_toml(path: Path | str) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        message = f"{path} is not TOML ({first_line(error)}); correct that line"
        raise InputError(message, code="file.format") from None


def from_toml_table(
    cls: type[T],
    table: Mapping[str, Any],
    where: str = "",
    *,
    over: T | None = None,
    what: str = "this table",
) -> T:
    """Build a dataclass from a TOML table; missing keys keep the values of ``over`` or defaults.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Stop:
        ...     epochs: int = 10
        ...     widths: tuple[float, ...] = ()
        >>> from_toml_table(Stop, {"epochs": 20, "widths": [1, "inf"]})
        Stop(epochs=20, widths=(1.0, inf))
        >>> from_toml_table(Stop, {"epoch": 20})
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: unknown key epoch; the keys of this table are epochs, widths
    """
    hints = _hints(cast(Any, cls))
    known, required = _fields(cast(Any, cls))
    values = {} if over is None else {name: getattr(over, name) for name in known}
    for key, value in table.items():
        name = f"{where}.{key}" if where else key
        if key not in known:
            keys = f"the keys of {what} are {', '.join(known)}" if known else f"{what} has no keys"
            raise InputError(f"unknown key {name}; {keys}", code="config.key")
        values[key] = _convert(value, hints.get(key, Any), name, values.get(key))
    if missing := sorted(required - values.keys()):
        raise InputError(
            f"{where or 'the file'} has no key {', '.join(missing)}; add it", code="config.missing"
        )
    return cls(**values)


def from_registry(
    kinds: Registry[type[T]], table: Mapping[str, Any], where: str, *, over: T | None = None
) -> T:
    """Build the dataclass that is registered under the value of the key ``kind``."""
    kind = table.get("kind")
    if kind is None and over is not None:
        kind = kinds.name_of(type(over))
    if not isinstance(kind, str):
        raise InputError(
            f"{where}.kind must be one of {', '.join(kinds)}, got {kind!r}",
            code="config.missing" if kind is None else "config.type",
        )
    cls = kinds[kind]
    rest = {key: value for key, value in table.items() if key != "kind"}
    before = over if type(over) is cls else None
    what = f"the {kinds.what} {kind!r}"
    return from_toml_table(cls, rest, where, over=before, what=what)


def read_config(layout: Any, config: Path | str) -> Any:
    return from_toml_table(layout, read_toml(config), over=layout())


def to_toml_table(config: Any, *, complete: bool = False) -> dict[str, Any]:
    table: dict[str, Any] = {}
    hints = get_type_hints(type(config), include_extras=True)
    for field in fields(config):
        value = getattr(config, field.name)
        hint = hints[field.name]
        if is_dataclass(value):
            table[field.name] = _with_kind(value, hint, complete)
        elif get_origin(hint) is dict:
            inner = get_args(hint)[1]
            table[field.name] = {k: _with_kind(v, inner, complete) for k, v in value.items()}
        elif value is not None or complete:
            is_plain = value is None or isinstance(value, str | int | float)
            table[field.name] = value if is_plain else _plain(value)
    return table


def _with_kind(config: Any, hint: Any, complete: bool) -> dict[str, Any]:
    kinds = _kinds(hint)
    kind = {} if kinds is None else {"kind": kinds.name_of(type(config))}
    return kind | to_toml_table(config, complete=complete)


def toml_text(table: Mapping[str, Any]) -> str:
    import tomli_w  # here, because most commands write no TOML

    return tomli_w.dumps(table)


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the entries of nested tables under dotted names."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        is_table = isinstance(value, Mapping)
        flat |= flatten(value, f"{prefix}{key}.") if is_table else {prefix + key: value}
    return flat


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [v if isinstance(v, str | int | float) else _plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


@cache
def _fields(cls: Any) -> tuple[list[str], frozenset[str]]:
    """Return the names of all fields of a dataclass, and of the fields without a default."""
    required = [f.name for f in fields(cls) if f.default is MISSING is f.default_factory]
    return [f.name for f in fields(cls)], frozenset(required)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    try:
        return get_type_hints(cls, include_extras=True)
    except NameError:  # a user's class, annotated with local names
        return {}


@cache
def _kinds(hint: Any) -> Registry[Any] | None:
    """Return the registry in the annotation of a field; None if there is none."""
    if get_origin(hint) in (Union, UnionType):
        return next(filter(None, map(_kinds, get_args(hint))), None)
    return next((mark for mark in get_args(hint)[1:] if isinstance(mark, Registry)), None)


def _convert(value: Any, hint: Any, name: str, over: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        *others, last = [a for a in arguments if a is not NoneType]
        for one in others:
            with suppress(InputError):
                return _convert(value, one, name, over)
        return _convert(value, last, name, over)
    if (within := range_of(hint)) is not None:
        number = _convert(value, arguments[0], name, over)
        if number not in within:
            text = f"{name} must be in {within.text}, got {number!r:.80}"
            raise InputError(text, code="value.invalid")
        return number
    if origin is Annotated or (is_dataclass(hint) and isinstance(hint, type)):
        if not isinstance(value, Mapping):
            raise _mistyped(name, value, f"a table [{name}]")
        kinds = _kinds(hint)
        if kinds is not None:
            return from_registry(kinds, value, name, over=over)
        return from_toml_table(hint, value, name, over=over)
    if origin is Literal:
        if value not in arguments:
            choices = ", ".join(map(repr, arguments))
            raise InputError(
                f"{name} must be one of {choices}, got {value!r}", code="choice.unknown"
            )
        return value
    if origin is dict and (is_dataclass(arguments[1]) or get_origin(arguments[1]) is Annotated):
        if not isinstance(value, Mapping):
            raise _mistyped(name, value, f"named tables, e.g. [{name}.mine]")
        return {key: _convert(v, arguments[1], f"{name}.{key}", None) for key, v in value.items()}
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _mistyped(name, value, "a list")
        if Ellipsis not in arguments and len(value) != len(arguments):
            raise _mistyped(name, value, f"a list of {len(arguments)}")
        return tuple(_convert(v, arguments[0], name, None) for v in value)
    # JSON stores infinity as a string.
    if hint is float and (type(value) is int or value in ("inf", "-inf")):
        with suppress(OverflowError):
            return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    # type(), not isinstance(): true is not an integer here.
    if hint in _NAMES and type(value) is not hint:
        raise _mistyped(name, value, _NAMES[hint])
    return value


def _mistyped(name: str, value: Any, needed: str) -> InputError:
    return InputError(f"{name} must be {needed}, got {value!r:.80}", code="config.type")


_NAMES = {
    int: "an integer", float: "a number", str: "a string", bool: "true or false", Path: "a path"
}  # fmt: skip
