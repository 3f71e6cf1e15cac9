"""Intervals with a guarantee for what a task network would have said about the true image."""

import sys
from types import ModuleType
from typing import Any

from taskuq.calibrate import Bound, calibrate, calibration_size, load_bound
from taskuq.errors import InputError
from taskuq.interval import Interval

__version__ = "0.1.0"


class _Verb(ModuleType):
    """A folder that is also the verb it is named after.

    ``taskuq.calibrate`` is a folder and the function in it. Importing a submodule in an unusual
    way rebinds the name to the folder; calling it must then still calibrate.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


for _folder in ("taskuq.calibrate",):
    sys.modules[_folder].__class__ = _Verb

__all__ = [
    "Bound",
    "InputError",
    "Interval",
    "__version__",
    "calibrate",
    "calibration_size",
    "load_bound",
]
