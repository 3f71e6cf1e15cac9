"""Frozen dataclasses from TOML and back, with one sentence for every mistake.

A field whose table may be of several kinds is annotated with their list, as in
``data: Annotated[Reader, READERS]``. In the file ``kind = "..."`` then chooses the class, and the
other keys belong to that class alone.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from taskuq.errors import InputError, first_line
from taskuq.kinds import Kinds

T = TypeVar("T")


def read_toml(path: Path | str) -> dict[str, Any]:
    """Read a TOML file, or say why it cannot be read.

    Arguments:
        path: The file.

    Example:
        >>> read_toml("absent.toml")
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: cannot read absent.toml: No such file or directory
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not TOML ({first_line(error)}); correct that line") from None


def from_table(
    cls: type[T], table: Mapping[str, Any], where: str = "", *, over: T | None = None
) -> T:
    """Make a dataclass from a TOML table; nested dataclasses are nested tables.

    Arguments:
        cls: The dataclass.
        table: Keys are field names.
        where: The name of the table, for messages.
        over: Where what is left out comes from, in nested tables too; by default every class's own
            defaults.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Stop:
        ...     epochs: int = 10
        ...     patience: int = 3
        >>> from_table(Stop, {"epochs": 20})
        Stop(epochs=20, patience=3)
        >>> from_table(Stop, {"epoch": 20})
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: epoch is not a setting; choose from epochs, patience
    """
    return _filled(cls, table, where, over, "a setting")


def from_kinds(
    kinds: Kinds[type[T]], table: Mapping[str, Any], where: str, *, over: T | None = None
) -> T:
    """Make one of several dataclasses from a TOML table whose ``kind`` says which.

    Arguments:
        kinds: The dataclasses by name.
        table: ``kind``, and the settings of that kind.
        where: The name of the table, for messages.
        over: Settings that hold where the table names no other kind.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Disc:
        ...     radius: float = 1.0
        >>> shapes: Kinds[type] = Kinds("shape", {})
        >>> _ = shapes.register("disc", Disc)
        >>> from_kinds(shapes, {"kind": "disc", "radius": 2}, "shape")
        Disc(radius=2.0)
        >>> from_kinds(shapes, {"kind": "disc", "edge": 2}, "shape")
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: shape.edge is not a setting of the shape 'disc'; choose from ...
    """
    kind = table.get("kind") if over is None else table.get("kind", kinds.name_of(type(over)))
    if not isinstance(kind, str):
        raise InputError(f"{where}.kind is {kind!r}; choose one of {', '.join(kinds)}")
    cls = kinds[kind]
    rest = {key: value for key, value in table.items() if key != "kind"}
    before = over if type(over) is cls else None
    return _filled(cls, rest, where, before, f"a setting of the {kinds.what} {kind!r}")


def read_settings(layout: Any, config: Path | str) -> Any:
    r"""Read a TOML file over the defaults of its kind; tables name only what they change.

    Arguments:
        layout: A dataclass whose fields are tables and have defaults.
        config: The TOML file.

    Example:
        >>> import tempfile
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Stop:
        ...     epochs: int = 10
        ...     patience: int = 3
        >>> path = Path(tempfile.mkdtemp()) / "a.toml"
        >>> _ = path.write_text("patience = 5\n")
        >>> read_settings(Stop, path)
        Stop(epochs=10, patience=5)
    """
    return from_table(layout, read_toml(config), over=layout())


def to_table(config: Any, *, complete: bool = False) -> dict[str, Any]:
    """A dataclass as a TOML table, with the ``kind`` of tables that are of one.

    Arguments:
        config: An instance.
        complete: Whether to name settings that are None, which TOML cannot hold and JSON can.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Stop:
        ...     epochs: int = 10
        ...     patience: int | None = None
        >>> to_table(Stop()), to_table(Stop(), complete=True)
        ({'epochs': 10}, {'epochs': 10, 'patience': None})
    """
    table: dict[str, Any] = {}
    hints = get_type_hints(type(config), include_extras=True)
    for field in fields(config):
        value, kinds = getattr(config, field.name), _kinds(hints[field.name])
        if is_dataclass(value):
            kind = {} if kinds is None else {"kind": kinds.name_of(type(value))}
            table[field.name] = kind | to_table(value, complete=complete)
        elif get_origin(hints[field.name]) is dict:
            inner = _kinds(get_args(hints[field.name])[1])
            table[field.name] = {
                name: ({} if inner is None else {"kind": inner.name_of(type(one))})
                | to_table(one, complete=complete)
                for name, one in value.items()
            }
        elif value is not None or complete:
            table[field.name] = _plain(value)
    return table


def toml_text(table: Mapping[str, Any]) -> str:
    """Write tables as TOML text, which :func:`read_toml` reads back to the same values.

    Arguments:
        table: Nested dictionaries of strings, numbers, booleans and lists of these.

    Example:
        >>> print(toml_text({"kind": "flow", "network": {"coils": 8}}))
        kind = "flow"
        <BLANKLINE>
        [network]
        coils = 8
        <BLANKLINE>
    """
    import tomli_w  # here, because most commands write no TOML

    return tomli_w.dumps(table)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _filled(cls: type[T], table: Mapping[str, Any], where: str, over: T | None, setting: str) -> T:
    hints = get_type_hints(cls, include_extras=True)
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    values = {} if over is None else {name: getattr(over, name) for name in known}
    for key, value in table.items():
        name = f"{where}.{key}" if where else key
        if key not in known:
            choice = f"choose from {', '.join(known)}" if known else "it has none, so leave it out"
            raise InputError(f"{name} is not {setting}; {choice}")
        values[key] = _convert(value, hints[key], name, values.get(key))
    missing = [name for name, field in known.items() if _is_required(field) and name not in values]
    if missing:
        raise InputError(f"{where or 'the file'} lacks {', '.join(missing)}; add it")
    return cls(**values)


def _kinds(hint: Any) -> Kinds[Any] | None:
    """The list of kinds that a field is annotated with, where it is."""
    if get_origin(hint) in (Union, UnionType):
        return next(filter(None, map(_kinds, get_args(hint))), None)
    return next((mark for mark in get_args(hint)[1:] if isinstance(mark, Kinds)), None)


def _convert(value: Any, hint: Any, name: str, over: Any) -> Any:
    """Check one value against its annotation; whole numbers pass as floats, strings as paths."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (hint,) = (a for a in arguments if a is not NoneType)
        return _convert(value, hint, name, over)
    if origin is Annotated or (is_dataclass(hint) and isinstance(hint, type)):
        if not isinstance(value, Mapping):
            raise InputError(f"{name} is {value!r}; make it a table, [{name}]")
        kinds = _kinds(hint)
        if kinds is not None:
            return from_kinds(kinds, value, name, over=over)
        return from_table(hint, value, name, over=over)
    if origin is Literal:
        if value not in arguments:
            raise InputError(f"{name} is {value!r}; choose from {', '.join(map(repr, arguments))}")
        return value
    if origin is dict:
        # Tables by names of the user's choice.
        if not isinstance(value, Mapping):
            raise InputError(f"{name} is {value!r}; make it tables with names, [{name}.mine]")
        return {key: _convert(v, arguments[1], f"{name}.{key}", None) for key, v in value.items()}
    if origin is tuple:
        if not isinstance(value, list):
            raise InputError(f"{name} is {value!r}; give a list")
        return tuple(_convert(v, arguments[0], name, None) for v in value)
    if hint is float and type(value) is int:
        return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    # type(), not isinstance(): true is no number here.
    if type(value) is not hint:
        raise InputError(f"{name} is {value!r}; give {_NAMES.get(hint, hint)}")
    return value


_NAMES = {
    int: "a whole number", float: "a number", str: "a text", bool: "true or false", Path: "a path"
}  # fmt: skip
