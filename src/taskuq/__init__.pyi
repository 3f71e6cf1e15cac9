from .calibration import (
    Bound,
    calibrate,
    calibrate_joint,
    calibrate_online,
    calibration_size,
    load_bound,
)
from .decide import (
    Monitor,
    Policy,
    acquire,
    load_policy,
    plan,
)
from .errors import InputError
from .evaluation import (
    Evaluation,
    evaluate,
    evaluate_exact,
)
from .interval import Interval
from .outputs import TaskOutputs
from .pipeline import Pipeline
from .report import make_report
from .words import Words

__version__: str

__all__ = [
    "Bound",
    "Evaluation",
    "InputError",
    "Interval",
    "Monitor",
    "Pipeline",
    "Policy",
    "TaskOutputs",
    "Words",
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
    "make_report",
    "plan",
]
