"""Intervals with a guarantee for what a task network would have said about the true image."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from taskuq.errors import InputError

if TYPE_CHECKING:
    from taskuq.calibrate import (
        Bound,
        calibrate,
        calibrate_joint,
        calibrate_online,
        calibration_size,
        load_bound,
    )
    from taskuq.decide import Policy, acquire, load_policy, plan
    from taskuq.evaluate import Evaluation, evaluate, evaluate_exact
    from taskuq.interval import Interval
    from taskuq.outputs import TaskOutputs
    from taskuq.pipeline import Pipeline

__version__ = "0.1.0"

__all__ = [
    "Bound",
    "Evaluation",
    "InputError",
    "Interval",
    "Pipeline",
    "Policy",
    "TaskOutputs",
    "__version__",
    "acquire",
    "calibrate",
    "calibrate_joint",
    "calibrate_online",
    "calibration_size",
    "evaluate",
    "evaluate_exact",
    "load_bound",
    "load_policy",
    "plan",
]

# Loaded on first use, so that the command line can print its help without NumPy.
_HOMES = {
    "Bound": "calibrate",
    "Evaluation": "evaluate",
    "Interval": "interval",
    "Pipeline": "pipeline",
    "Policy": "decide",
    "TaskOutputs": "outputs",
    "acquire": "decide",
    "calibrate": "calibrate",
    "calibrate_joint": "calibrate",
    "calibrate_online": "calibrate",
    "calibration_size": "calibrate",
    "evaluate": "evaluate",
    "evaluate_exact": "evaluate",
    "load_bound": "calibrate",
    "load_policy": "decide",
    "plan": "decide",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'taskuq' has no attribute {name!r}")
    value = getattr(import_module(f"taskuq.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
