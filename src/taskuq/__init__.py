"""Intervals with a guarantee for what a task network would have said about the true image."""

from taskuq.calibrate import (
    Bound,
    calibrate,
    calibrate_joint,
    calibrate_online,
    calibration_size,
    load_bound,
)
from taskuq.errors import InputError
from taskuq.evaluate import Evaluation, evaluate, evaluate_exact
from taskuq.interval import Interval
from taskuq.outputs import TaskOutputs

__version__ = "0.1.0"

__all__ = [
    "Bound",
    "Evaluation",
    "InputError",
    "Interval",
    "TaskOutputs",
    "__version__",
    "calibrate",
    "calibrate_joint",
    "calibrate_online",
    "calibration_size",
    "evaluate",
    "evaluate_exact",
    "load_bound",
]
