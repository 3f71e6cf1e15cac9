"""Outputs and targets in, a bound out: ranks, scores, guarantees. NumPy only."""

import sys

from taskuq.calibrate.bound import Bound, load_bound
from taskuq.calibrate.guarantee import Guarantee
from taskuq.calibrate.joint import JointBound, calibrate_joint, load_joint_bound
from taskuq.calibrate.law import CoverageLaw, calibration_size
from taskuq.calibrate.learned import Learned
from taskuq.calibrate.mlwr import MLWR
from taskuq.calibrate.online import OnlineBound, calibrate_online, load_online_bound
from taskuq.calibrate.rank import conformal_quantile, coverage_rank
from taskuq.calibrate.scores import AR, CQR, LWR
from taskuq.calibrate.single import calibrate
from taskuq.verb import Verb

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

sys.modules[__name__].__class__ = Verb
