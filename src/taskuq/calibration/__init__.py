"""Outputs and targets in, a bound out: ranks, scores, guarantees. NumPy only."""

from taskuq.calibration.bound import Bound, load_bound
from taskuq.calibration.guarantee import Guarantee
from taskuq.calibration.joint import JointBound, calibrate_joint, load_joint_bound
from taskuq.calibration.law import CoverageLaw, calibration_size
from taskuq.calibration.online import OnlineBound, calibrate_online, load_online_bound
from taskuq.calibration.rank import conformal_quantile, coverage_rank
from taskuq.calibration.scores.ar import AR
from taskuq.calibration.scores.cqr import CQR
from taskuq.calibration.scores.learned import Learned
from taskuq.calibration.scores.lwr import LWR
from taskuq.calibration.scores.mlwr import MLWR
from taskuq.calibration.single import calibrate

__all__ = [
    "AR",
    "CQR",
    "LWR",
    "MLWR",
    "Bound",
    "CoverageLaw",
    "Guarantee",
    "JointBound",
    "Learned",
    "OnlineBound",
    "calibrate",
    "calibrate_joint",
    "calibrate_online",
    "calibration_size",
    "conformal_quantile",
    "coverage_rank",
    "load_bound",
    "load_joint_bound",
    "load_online_bound",
]
