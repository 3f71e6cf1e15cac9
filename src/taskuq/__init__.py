"""Intervals with a guarantee for what a task network would have said about the true image."""

from taskuq.calibrate import Bound, calibrate, calibration_size, load_bound
from taskuq.errors import InputError
from taskuq.interval import Interval

__version__ = "0.1.0"


__all__ = [
    "Bound",
    "InputError",
    "Interval",
    "__version__",
    "calibrate",
    "calibration_size",
    "load_bound",
]
