from . import plot
from .conformal import (
    Bound,
    Comparison,
    Diagnosis,
    Evaluation,
    calibrate,
    calibrate_joint,
    calibrate_online,
    calibration_size,
    compare,
    diagnose,
    evaluate,
    evaluate_exact,
    load_bound,
)
from .errors import InputError
from .interval import Interval
from .pipeline import Pipeline
from .policy import Policy, Simulation, load_policy, plan, simulate
from .report import make_report
from .scan import Monitor, Scan, acquire, load_scan
from .table import TaskOutputs, Terminology

__version__: str

__all__ = [
    "Bound",
    "Comparison",
    "Diagnosis",
    "Evaluation",
    "InputError",
    "Interval",
    "Monitor",
    "Pipeline",
    "Policy",
    "Scan",
    "Simulation",
    "TaskOutputs",
    "Terminology",
    "__version__",
    "acquire",
    "calibrate",
    "calibrate_joint",
    "calibrate_online",
    "calibration_size",
    "compare",
    "diagnose",
    "evaluate",
    "evaluate_exact",
    "load_bound",
    "load_policy",
    "load_scan",
    "make_report",
    "plan",
    "plot",
    "simulate",
]
