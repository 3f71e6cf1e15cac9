"""Registries by name, loaded on first use."""

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
# Your own Python files or modules, separated as PATH is, for extensions without a package.
VARIABLE = "TASKUQ_EXTENSIONS"
# The group of entry points by which an installed package names modules that register things.
GROUP = "taskuq.extensions"


class Registry(Generic[T]):
    """Names of one kind of extension, each loaded on first use.

    Arguments:
        what: What one of them is called in a sentence, e.g. ``"score"``.
        listed: Names, and where each lives as ``"module:attribute"``.

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
        """Add one by name, and return it; a name that stands for something else is refused."""
        if self._known.get(name, thing) is not thing:
            raise InputError(
                f"there is a {self.what} {name!r} already; choose another name",
                code="choice.unknown",
            )
        self._known[name] = thing
        return thing

    def __getitem__(self, name: str) -> T:
        """Return what a name stands for, or say which names there are."""
        is_name = isinstance(name, str)
        if is_name and name not in self._known:
            _load_extensions()
        if not is_name or name not in self._known:
            raise InputError(
                f"unknown {self.what} {name!r}; choose one of {', '.join(self)}",
                code="choice.unknown",
            )
        thing = self._known[name]
        if isinstance(thing, str):
            module, _, attribute = thing.partition(":")
            thing = cast(T, getattr(importlib.import_module(module), attribute))
            self._known[name] = thing
        return thing

    def name_of(self, thing: T) -> str:
        """Return the name by which a thing is listed."""
        name = self.find(thing)
        if name is None:
            raise InputError(
                f"{thing} is not listed as a {self.what}; register it under a name",
                code="choice.unknown",
            )
        return name

    def find(self, thing: T) -> str | None:
        """Return the name by which a thing is listed, or None where it is not."""
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
    """Run, once, the files and modules that register extensions."""
    for point in _installed():
        _load_once(point.name, point.load)
    for name in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        is_file = name.endswith(".py")
        load = partial(_run_file, Path(name)) if is_file else partial(importlib.import_module, name)
        _load_once(name, load)


@cache
def _installed() -> EntryPoints:
    """Return who of the installed packages extends ours; asking takes longer than any lookup."""
    return entry_points(group=GROUP)


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
        raise InputError(
            f"the extension {name} cannot be loaded ({reason}); mend it", code="component.invalid"
        ) from error


def _run_file(path: Path) -> None:
    """Import a file under its own name, so that what it defines can be sent to other processes."""
    known = sys.modules.get(path.stem)
    if known is not None:
        if Path(getattr(known, "__file__", None) or "").resolve() == path.resolve():
            return  # imported already
        raise InputError(
            f"there is a module {path.stem!r} already; rename the file", code="component.invalid"
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
