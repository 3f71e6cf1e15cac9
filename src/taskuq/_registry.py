"""Registries of extensions by name; an extension is imported on first use."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Generic, TypeVar, cast

from taskuq.errors import InputError, first_line

T = TypeVar("T")
# Python files or modules of extensions, separated as in PATH.
VARIABLE = "TASKUQ_EXTENSIONS"
# Entry points of installed packages that register extensions.
GROUP = "taskuq.extensions"


class Registry(Generic[T]):
    """Registry of extensions of one kind, by name; an extension is imported on first use.

    Args:
        what: Noun for error messages, e.g. ``"score"``.
        listed: Import path ``"module:attribute"`` of each extension, by name.

    Example:
        >>> shapes: Registry[type] = Registry("shape", {"fraction": "fractions:Fraction"})
        >>> shapes["fraction"](1, 2)
        Fraction(1, 2)
        >>> shapes.register("whole", int)
        <class 'int'>
        >>> shapes["round"]
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: unknown shape 'round'; choose one of fraction, whole
    """

    def __init__(self, what: str, listed: Mapping[str, str]) -> None:
        self.what = what
        self._known: dict[str, T | str] = dict(listed)

    def register(self, name: str, thing: T) -> T:
        """Register an extension under a new name and return it."""
        if self._known.get(name, thing) is not thing:
            raise InputError(f"{self.what} {name!r} exists already", code="choice.unknown")
        self._known[name] = thing
        return thing

    def __getitem__(self, name: str) -> T:
        """Return the extension registered under a name; raise InputError if there is none."""
        is_name = isinstance(name, str)
        if is_name and name not in self._known:
            _load_extensions()
        if not is_name or name not in self._known:
            message = f"unknown {self.what} {name!r}; choose one of {', '.join(self)}"
            raise InputError(message, code="choice.unknown")
        thing = self._known[name]
        if isinstance(thing, str):
            module, _, attribute = thing.partition(":")
            thing = cast(T, getattr(importlib.import_module(module), attribute))
            self._known[name] = thing
        return thing

    def name_of(self, thing: T) -> str:
        name = self.find(thing)
        if name is None:
            raise InputError(f"{thing} is not a {self.what}; register it", code="choice.unknown")
        return name

    def find(self, thing: T) -> str | None:
        place = f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"
        for name, known in self._known.items():
            if known is thing or known == place:
                return name
        return None

    def __contains__(self, name: object) -> bool:
        if name not in self._known:
            _load_extensions()
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        _load_extensions()
        return iter(tuple(self._known))


def _load_extensions() -> None:
    """Import the files and modules that register extensions, once per process."""
    for point in _installed():
        _load_once(point.name, point.load)
    for name in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        is_file = name.endswith(".py")
        load = partial(_run_file, Path(name)) if is_file else partial(importlib.import_module, name)
        _load_once(name, load)


@cache
def _installed() -> EntryPoints:
    return entry_points(group=GROUP)  # slow


_loaded: set[str] = set()


def _load_once(name: str, load: Callable[[], object]) -> None:
    if name in _loaded:
        return
    _loaded.add(name)  # before it runs: it may look things up itself
    try:
        load()
    except Exception as error:  # whatever the extension raises
        _loaded.discard(name)
        reason = f"{type(error).__name__}: {first_line(error)}"
        message = f"extension {name} cannot be loaded ({reason}); fix or remove it"
        raise InputError(message, code="component.invalid") from error


def _run_file(path: Path) -> None:
    """Import a file as a module of the same name, so that its classes can be pickled."""
    known = sys.modules.get(path.stem)
    if known is not None:
        if Path(getattr(known, "__file__", None) or "").resolve() == path.resolve():
            return  # imported already
        raise InputError(f"module {path.stem} exists; rename {path}", code="component.invalid")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
