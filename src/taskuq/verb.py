"""Folders that are also the verb they are named after."""

from __future__ import annotations

from types import ModuleType
from typing import Any


class Verb(ModuleType):
    """A folder such as ``taskuq.calibrate`` that can be called like the function in it.

    ``tq.calibrate`` is meant to be the function. Importing a submodule in an unusual order, or
    through a test runner, rebinds the name to the folder; calling it must then still calibrate.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function of the folder's own name."""
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)
